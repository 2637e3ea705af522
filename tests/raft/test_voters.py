from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from raftlog.raft.voters import (
    NO_VOTERS,
    VOTERS_MAX,
    Voter,
    VoterSet,
    bootstrap_id,
    decode_voters,
    encode_voters,
    few_voters_warning,
    parse_voters,
)
from raftlog.record.errors import ILLEGAL_STATE, STORAGE_FAILED, LogError

THREE = parse_voters("1@a:1,2@b:2,3@c:3")


def test_list_of_voters_is_parsed_in_any_order() -> None:
    voters = parse_voters(" 3@c.example.org:8082, 1@10.0.0.1:1,2@[::1]:65535")
    assert voters.voters == (
        Voter(1, "10.0.0.1", 1),
        Voter(2, "::1", 65_535),
        Voter(3, "c.example.org", 8082),
    )
    assert voters.addresses == ("10.0.0.1:1", "[::1]:65535", "c.example.org:8082")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not a voter"),
        ("1@a:1,", "'' is not a voter"),
        ("a:1", "'a:1' is not a voter"),
        ("x@a:1", "'x@a:1' is not a voter"),
        ("-1@a:1", "is not a voter"),
        ("1@:1", "is not a voter"),
        ("1@a", "is not a voter"),
        ("1@::1:1", "is not a voter"),
        ("1@a:1 2@b:2", "is not a voter"),
        ("0@a:1", "node id 0"),
        ("2147483648@a:1", "node id 2147483648"),
        ("1@a:0", "port 0 of node 1"),
        ("1@a:65536", "port 65536 of node 1"),
        ("1@a:1,1@b:2", "node 1 is named twice"),
        ("1@a:1,2@A:1", "two voters have the address A:1"),
        (",".join(f"{n}@h{n}:1" for n in range(1, 11)), "more than the limit of 9"),
    ],
)
def test_bad_list_of_voters_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_voters(text)


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (9, 5)])
def test_majority(count: int, majority: int) -> None:
    voters = VoterSet(tuple(Voter(n, "h", n) for n in range(1, count + 1)))
    assert voters.majority == majority


def test_empty_voter_set_has_no_majority() -> None:
    assert NO_VOTERS.majority > len(NO_VOTERS.ids)


def test_one_voter_is_added_or_removed() -> None:
    added = THREE.add(Voter(7, "d", 4, "directory"))
    assert added.ids == {1, 2, 3, 7} and THREE.ids == {1, 2, 3}
    assert added.find(7) == Voter(7, "d", 4, "directory") and added.find(4) is None
    assert added.remove(7) == THREE
    assert VoterSet((Voter(2, "b", 2),)).add(Voter(1, "a", 1)).voters[0].node_id == 1


def test_impossible_changes_are_refused() -> None:
    full = VoterSet(tuple(Voter(n, "h", n) for n in range(1, VOTERS_MAX + 1)))
    one = VoterSet((Voter(1, "h", 1),))
    changes: list[tuple[Callable[[], VoterSet], str]] = [
        (lambda: THREE.add(Voter(2, "x", 1)), "Node 2 is a voter already"),
        (lambda: full.add(Voter(10, "x", 1)), "the limit"),
        (lambda: THREE.remove(4), "Node 4 is not a voter"),
        (lambda: one.remove(1), "the only voter"),
    ]
    for change, reason in changes:
        with pytest.raises(LogError, match=reason) as raised:
            change()
        assert raised.value.entry is ILLEGAL_STATE


def test_voters_are_sorted_and_each_once() -> None:
    for ids in [(2, 1), (1, 1)]:
        with pytest.raises(ValueError, match="ascending"):
            VoterSet(tuple(Voter(n, "h", 1) for n in ids))


def test_voters_round_trip_through_the_log() -> None:
    voters = THREE.add(Voter(4, "::1", 4, "directory"))
    assert decode_voters(encode_voters(voters)) == voters


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"{}",
        b'{"voters":[]}',
        b'{"voters":[{"node_id":0,"host":"h","port":1}]}',
        b'{"voters":[{"node_id":1,"host":"","port":1}]}',
        b'{"voters":[{"node_id":1,"host":"h","port":65536}]}',
        b'{"voters":[{"node_id":2,"host":"h","port":1},{"node_id":1,"host":"h","port":1}]}',
        b'{"voters":"\xff"}',
    ],
)
def test_voters_that_are_not_understood_are_refused(content: bytes) -> None:
    with pytest.raises(LogError, match="does not understand") as raised:
        decode_voters(content)
    assert raised.value.entry is STORAGE_FAILED


def test_bootstrap_id_is_that_of_ids_and_addresses() -> None:
    same = parse_voters("3@C:3,1@a:1,2@b:2")
    assert bootstrap_id(same) == bootstrap_id(THREE)
    known = VoterSet(tuple(Voter(v.node_id, v.host, v.port, "directory") for v in THREE.voters))
    assert bootstrap_id(known) == bootstrap_id(THREE)
    for other in ["1@a:1,2@b:2", "1@a:1,2@b:2,4@c:3", "1@a:1,2@b:2,3@c:4", "1@a:1,2@b:2,3@d:3"]:
        assert bootstrap_id(parse_voters(other)) != bootstrap_id(THREE)


@pytest.mark.parametrize(
    ("votes", "nodes", "warning"),
    [
        (1, 1, None),
        (1, 2, None),
        (2, 2, None),
        (
            1,
            3,
            "1 of 3 nodes has a vote: the whole cluster stops with node 1. Give votes to 2 more",
        ),
        (2, 5, "2 of 5 nodes have a vote: the whole cluster stops with node 1 or node 2."),
        (3, 3, None),
        (3, 100, None),
        (0, 3, None),
    ],
)
def test_cluster_of_three_nodes_and_fewer_votes_is_warned_of(
    votes: int, nodes: int, warning: str | None
) -> None:
    listed = ",".join(f"{n}@a{n}:1" for n in range(1, votes + 1))
    voters = parse_voters(listed) if votes else NO_VOTERS
    found = few_voters_warning(voters, nodes)
    assert (found is None) == (warning is None)
    assert found is None or (warning or "") in found
