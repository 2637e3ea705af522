"""The kind of a start, for every combination of settings and data directory."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.node.directory import DirectoryState, FirstStart, Identity
from raftlog.node.settings import NodeSettings
from raftlog.node.start import (
    Begin,
    Join,
    Restart,
    Start,
    StartError,
    decide_start,
    needs_secret,
)
from raftlog.raft.voters import parse_voters

THREE = "1@10.0.0.1:8082,2@10.0.0.2:8082,3@10.0.0.3:8082"
NEW = DirectoryState()


def decided(state: DirectoryState = NEW, **values: Any) -> Start:
    values = {"listen": "0.0.0.0:8082", **values}
    return decide_start(NodeSettings(data_dir="d", **values), state)


def used(*, has_journal: bool = True, **first: Any) -> DirectoryState:
    return DirectoryState(Identity("d1", 2, FirstStart(**first)), has_journal)


def test_new_directory_begins_a_cluster_alone_or_of_voters_or_joins() -> None:
    assert decided() == Begin(None)
    assert decided(voters=THREE, node_id=2) == Begin(parse_voters(THREE))
    assert decided(join="a:1,b:2") == Join(("a:1", "b:2"))


@pytest.mark.parametrize("values", [{}, {"voters": THREE}, {"join": "a:1"}])
def test_directory_with_a_journal_goes_on_whatever_is_given(values: dict[str, str]) -> None:
    assert decided(used(), node_id=2, **values) == Restart(began_alone=True)
    assert decided(used(voters=THREE), node_id=2, **values) == Restart(began_alone=False)


@pytest.mark.parametrize(
    ("first", "alone"),
    [
        ({}, True),
        ({"voters": "2@10.0.0.2:8082"}, True),
        ({"voters": THREE}, False),
        ({"join": "a:1"}, False),
    ],
)
def test_restart_knows_whether_the_cluster_was_begun_alone(
    first: dict[str, str], alone: bool
) -> None:
    assert decided(used(**first), node_id=2) == Restart(began_alone=alone)


def test_first_start_that_was_not_finished_is_taken_up_again() -> None:
    """A voter of three that died before its journal existed must not begin a cluster of its own."""
    assert decided(used(has_journal=False, voters=THREE), node_id=2) == Begin(parse_voters(THREE))
    assert decided(used(has_journal=False, join="a:1"), node_id=2) == Join(("a:1",))


def test_first_start_that_was_not_finished_can_be_asked_for_in_another_way() -> None:
    unfinished = used(has_journal=False, join="mistyped:1")
    assert decided(unfinished, node_id=2, join="right:1") == Join(("right:1",))
    assert decided(unfinished, node_id=2, voters=THREE) == Begin(parse_voters(THREE))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"voters": THREE, "join": "a:1"}, "give one of them"),
        ({"voters": THREE, "node_id": 4}, r"node 4 is not among the voters given \(1, 2, 3\)"),
        (
            {"voters": THREE, "node_id": 2, "listen": "0.0.0.0:9000"},
            "found at 10.0.0.2:8082, but it would listen on 0.0.0.0:9000: give --listen HOST:8082",
        ),
        (
            {"voters": THREE, "node_id": 2, "advertised": "b:8082"},
            "found at 10.0.0.2:8082, --advertised says b:8082",
        ),
        (
            {"voters": THREE, "node_id": 2, "listen": "127.0.0.1:8082"},
            r"other machines, which cannot reach 127\.0\.0\.1:8082: give --listen 0\.0\.0\.0:8082",
        ),
        ({"join": "127.0.0.1:1,a:1", "listen": "localhost:9"}, "cannot reach localhost:9"),
        ({"voters": "1@"}, "is not a voter"),
        ({"join": "a"}, "'a' is not an address"),
    ],
)
def test_start_that_cannot_work_is_refused_with_what_to_change(
    values: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(StartError, match=complaint):
        decided(**values)


def test_forwarded_port_is_advertised() -> None:
    start = decided(
        voters=THREE, node_id=2, listen="0.0.0.0:9000", advertised="10.0.0.2:8082"
    )  # the machine forwards 8082 to 9000
    assert isinstance(start, Begin)


def test_cluster_on_one_machine_may_be_on_its_loopback() -> None:
    own = {"listen": "127.0.0.1:9001"}
    assert isinstance(decided(voters="1@127.0.0.1:9001,2@localhost:9002", **own), Begin)
    assert isinstance(decided(join="127.0.0.1:9000,[::1]:9", **own), Join)
    assert isinstance(decided(join="a:1", advertised="b:1", **own), Join)


def test_only_a_cluster_begun_alone_can_do_without_a_given_secret() -> None:
    assert not needs_secret(Begin(None))
    assert not needs_secret(Begin(parse_voters("1@a:1")))
    assert not needs_secret(Restart(began_alone=True))
    assert needs_secret(Begin(parse_voters(THREE)))
    assert needs_secret(Join(("a:1",)))
    assert needs_secret(Restart(began_alone=False))
