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
    check_restart,
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
def test_directory_with_a_journal_is_a_restart_whatever_is_given(values: dict[str, str]) -> None:
    """The options are compared with the voters once the journal is open: `check_restart`."""
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


def voters(*node_ids: int, host: str = "10.0.0.") -> str:
    return ",".join(f"{node_id}@{host}{node_id}:8082" for node_id in node_ids)


def checked(journal: str, first: dict[str, str], **values: str) -> str | None:
    """The outcome of a restart of node 1."""
    settings = NodeSettings(data_dir="d", listen="0.0.0.0:8082", **values)
    identity = Identity("d1", 1, FirstStart(**first))
    return check_restart(settings, identity, parse_voters(journal), "c1")


GO_ON: list[tuple[str, dict[str, str], dict[str, str]]] = [
    # Without options, and with those of the first start, whatever happened to the voters since.
    *((journal, first, first) for journal in (voters(1), voters(1, 2, 3, 4), voters(2, 3))
      for first in ({}, {"voters": voters(1, 2, 3)}, {"voters": voters(1)}, {"join": "a:1"})),
    # In another order, and with other addresses.
    (voters(1, 2, 3, 4), {"voters": voters(1, 2, 3)}, {"voters": voters(3, 1, 2)}),
    (voters(1, 2, 3, 4), {"voters": voters(1, 2, 3)}, {"voters": voters(1, 2, 3, host="new-")}),
    # The list that an operator keeps up to date.
    (voters(1, 2, 4), {"voters": voters(1, 2, 3)}, {"voters": voters(1, 2, 4)}),
    (voters(1, 2, 3), {}, {"voters": voters(1, 2, 3)}),
    (voters(1, 2, 3), {"join": "a:1"}, {"voters": voters(1, 2, 3)}),
    (voters(2, 3), {"join": "a:1"}, {"voters": voters(2, 3)}),
    (voters(1), {}, {"voters": voters(1, host="new-")}),
    # Joined once: by any node of the cluster, at changed addresses, too.
    (voters(2), {"join": "a:1"}, {"join": "b:1,c:1"}),
    (voters(1), {"join": "a:1"}, {"join": "b:1"}),
    # The same list for all nodes, the first one included.
    (voters(1), {}, {"join": "10.0.0.1:8082,10.0.0.2:8082"}),
    (voters(1), {}, {"join": "h1:8082", "advertised": "h1:8082"}),
    (voters(1, 2, 3), {}, {"join": "10.0.0.2:8082"}),
    (voters(1, 2, 4), {"voters": voters(1, 2, 3)}, {"join": "10.0.0.3:8082"}),
]  # fmt: skip


@pytest.mark.parametrize(("journal", "first", "values"), GO_ON)
def test_restart_goes_on_with_options_that_fit(
    journal: str, first: dict[str, str], values: dict[str, str]
) -> None:
    assert checked(journal, first, **values) is None


@pytest.mark.parametrize(
    ("journal", "first", "values", "complaint"),
    [
        # "Three nodes" with one vote.
        (
            voters(1),
            {},
            {"voters": voters(1, 2, 3)},
            r"node 1 of cluster c1, in which this node has the only vote; --voters asks for the "
            r"voters 1, 2, 3\. .* start without --voters .*`raftlog quorum add-voter N`.* "
            "give an empty --data-dir",
        ),
        (voters(1), {}, {"join": "h2:1"}, "only vote; --join asks to enter the cluster of h2:1"),
        (voters(1), {"voters": voters(1)}, {"voters": voters(1, 2)}, "asks for the voters 1, 2"),
        # A voter that every other one has left, and a list that was never this directory's.
        (voters(1), {"voters": voters(1, 2, 3)}, {"voters": voters(1, 2, 4)}, "the only vote"),
        # Joined as an observer, and now a voter by the list.
        (voters(2), {"join": "h2:1"}, {"voters": voters(1, 2, 3)}, "with the voters 2; --voters"),
        # Another cluster's list.
        (voters(1, 2, 3), {"voters": voters(1, 2, 3)}, {"voters": voters(1, 5, 6)}, "1, 2, 3; "),
        (voters(2, 3), {"join": "h2:1"}, {"voters": voters(7, 8, 9)}, "voters 2, 3; --voters"),
    ],
)
def test_restart_refuses_options_that_contradict_the_directory(
    journal: str, first: dict[str, str], values: dict[str, str], complaint: str
) -> None:
    with pytest.raises(StartError, match=complaint):
        checked(journal, first, **values)


@pytest.mark.parametrize(
    ("journal", "first", "values", "warning"),
    [
        # This journal may be behind the operator's list.
        (voters(1, 2, 3), {"voters": voters(1, 2, 3)}, {"voters": voters(1, 2, 4)}, "1, 2, 3: --v"),
        (voters(1, 2), {}, {"voters": voters(1, 2, 3)}, "those of the cluster are 1, 2"),
        (voters(2), {"join": "h2:1"}, {"voters": voters(2, 3)}, "those of the cluster are 2"),
        (voters(1, 2, 3), {}, {"join": "unknown:1"}, "--join counts at the first start only"),
    ],
)
def test_restart_warns_of_options_that_it_ignores(
    journal: str, first: dict[str, str], values: dict[str, str], warning: str
) -> None:
    ignored = checked(journal, first, **values)
    assert ignored is not None
    assert warning in ignored
