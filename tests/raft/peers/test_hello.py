from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.peer.hello import HELLO_BYTES_MAX, encode_hello
from raftlog.raft.peers.hello import (
    PROTOCOL,
    QuorumHello,
    check_hello,
    decode_quorum_hello,
    dial_targets,
)
from raftlog.raft.voters import VOTERS_MAX, Voter, VoterSet
from raftlog.record.errors import (
    BAD_REQUEST,
    ILLEGAL_STATE,
)
from raftlog.world.network import RejectedError
from tests.raft.peers_world import hello_of, voter, voter_set


def voters(*directories: str | None) -> VoterSet:
    """Voters from 1 on with these data directories."""
    return VoterSet(tuple(voter(number, each) for number, each in enumerate(directories, 1)))


def reason(
    mine: QuorumHello, theirs: QuorumHello, pinned: str | None = None, *, live: str | None = None
) -> str:
    with pytest.raises(RejectedError) as caught:
        check_hello(mine, theirs, pinned, live=live)
    assert caught.value.code == ILLEGAL_STATE.code
    return caught.value.message


def test_what_is_sent_is_what_arrives() -> None:
    hello = hello_of(1, voters=voters("a", None))
    assert decode_quorum_hello(encode_hello(hello)) == hello


def test_the_longest_hello_is_within_the_limit() -> None:
    wide = "\N{SNOWMAN}"
    crowd = tuple(
        Voter(2**31 - 1 - number, "h" * 255, 65_535, "d" * 128)
        for number in reversed(range(VOTERS_MAX))
    )
    hello = hello_of(
        2**31 - 1,
        directory_id=wide * 128,
        cluster_id=wide * 128,
        bootstrap_id=wide * 128,
        address="a" * 300,
        software_version=wide * 128,
        voters=VoterSet(crowd),
    )
    assert len(encode_hello(hello)) <= HELLO_BYTES_MAX // 2
    assert decode_quorum_hello(encode_hello(hello)) == hello


@given(st.binary(max_size=200))
def test_anything_else_is_rejected(content: bytes) -> None:
    with pytest.raises(RejectedError):
        decode_quorum_hello(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        encode_hello(hello_of(1))[:-1],
        encode_hello(hello_of(-1)),
        encode_hello(hello_of(1, address="")),
        encode_hello(hello_of(1, directory_id="")),
        encode_hello(hello_of(1, voters=voters("a"))).replace(b'"port":8082', b'"port":0'),
        encode_hello(hello_of(1)) + b" " * HELLO_BYTES_MAX,
    ],
)
def test_a_malformed_hello_is_a_bad_request(content: bytes) -> None:
    with pytest.raises(RejectedError) as caught:
        decode_quorum_hello(content)
    assert caught.value.code == BAD_REQUEST.code


def test_another_protocol_is_told_as_such_however_its_hello_looks() -> None:
    content = msgspec.json.encode({"protocol": PROTOCOL + 1, "software_version": "9.9"})
    with pytest.raises(RejectedError, match=r"version 9\.9 speaks protocol 3") as caught:
        decode_quorum_hello(content)
    assert caught.value.code == ILLEGAL_STATE.code
    assert "protocol 3" in reason(hello_of(1), hello_of(2, protocol=3))


def test_a_later_version_may_say_more() -> None:
    content = encode_hello(hello_of(1))[:-1] + b',"rack":"a"}'
    assert decode_quorum_hello(content) == hello_of(1)


def test_nodes_of_one_cluster_may_talk() -> None:
    check_hello(hello_of(1), hello_of(2), None)
    check_hello(hello_of(1), hello_of(2), "directory-2", live="directory-2")
    check_hello(hello_of(1, voters=voters("directory-1", "directory-2")), hello_of(2), None)
    check_hello(hello_of(1), hello_of(2, cluster_id=None), None)
    check_hello(hello_of(1, cluster_id=None), hello_of(2), None)


def test_nodes_of_different_clusters_may_not() -> None:
    text = reason(hello_of(1), hello_of(2, cluster_id="other"))
    assert "cluster other" in text
    assert "cluster cluster" in text


def test_different_lists_of_voters_may_not_begin_a_cluster() -> None:
    one = hello_of(1, cluster_id=None, bootstrap_id="a")
    assert "different lists" in reason(one, hello_of(2, cluster_id=None, bootstrap_id="b"))
    # A member of an old cluster, and a node at the start of another one.
    assert "different lists" in reason(one, hello_of(2, bootstrap_id="b"))
    check_hello(one, hello_of(2, cluster_id=None, bootstrap_id="a"), None)
    check_hello(one, hello_of(2, cluster_id=None), None)


def test_the_list_that_a_cluster_was_begun_with_means_nothing_later() -> None:
    check_hello(hello_of(1, bootstrap_id="a"), hello_of(2, bootstrap_id="b"), None)


def test_ones_own_id_is_a_duplicate_or_oneself() -> None:
    assert "in use twice" in reason(hello_of(1), hello_of(1, directory_id="d", address="b:1"))
    assert "this very node" in reason(hello_of(1), hello_of(1))


def test_another_directory_than_the_pinned_one_is_a_wiped_disk() -> None:
    assert "disk was wiped" in reason(hello_of(1), hello_of(2), "older")


def test_another_directory_than_the_voter_sets_is_a_wiped_disk() -> None:
    assert "disk was wiped" in reason(hello_of(1, voters=voters(None, "older")), hello_of(2))


def test_the_voter_set_goes_before_the_pin() -> None:
    mine = hello_of(1, voters=voters("directory-1", "directory-2"))
    check_hello(mine, hello_of(2), "older")
    check_hello(mine, hello_of(2), "older", live="older")


def test_a_voter_without_a_known_directory_is_held_to_its_pin() -> None:
    mine = hello_of(1, voters=voters(None, None))
    check_hello(mine, hello_of(2), "directory-2")
    assert "disk was wiped" in reason(mine, hello_of(2), "older")


def test_another_directory_than_that_of_a_connected_node_is_a_duplicate() -> None:
    assert "in use twice" in reason(hello_of(1), hello_of(2), "older", live="older")
    assert "in use twice" in reason(hello_of(1), hello_of(2), None, live="older")


def test_a_wiped_node_is_told_even_by_the_one_that_it_answers() -> None:
    theirs = hello_of(2, voters=voters("older", "directory-2"))
    assert "The cluster knows node 1" in reason(hello_of(1), theirs)
    check_hello(hello_of(1), hello_of(2, voters=voters(None, "directory-2")), None)


def test_a_wiped_node_is_told_the_whole_way_back() -> None:
    for text, wiped in (
        (reason(hello_of(1), hello_of(2), "older"), 2),
        (reason(hello_of(1), hello_of(2, voters=voters("older", "directory-2"))), 1),
    ):
        assert f"an empty one takes its place: `raftlog serve --replace {wiped} --join …`" in text


def test_whoever_one_side_rejects_is_rejected_by_the_other_if_it_knows_as_much() -> None:
    old = voters("directory-1", "older")
    assert reason(hello_of(1, voters=old), hello_of(2, voters=old))
    assert reason(hello_of(2, voters=old), hello_of(1, voters=old))


def test_a_voter_calls_the_voters_of_lower_id_and_all_others_every_voter() -> None:
    voters = voter_set(1, 2, 3)

    def targets(me: int, me_is_voter: bool) -> list[int]:
        return [each.node_id for each in dial_targets(me, me_is_voter, voters)]

    assert [targets(me, True) for me in (1, 2, 3)] == [[], [1], [1, 2]]
    assert targets(9, False) == [1, 2, 3]
    assert targets(2, False) == [1, 3]


def test_every_pair_with_a_voter_in_it_has_exactly_one_side_that_calls() -> None:
    voters = voter_set(2, 4, 6)
    nodes = range(1, 8)
    calls = [
        (me, each.node_id) for me in nodes for each in dial_targets(me, me in voters.ids, voters)
    ]
    pairs = [frozenset(call) for call in calls]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == {
        frozenset((one, other))
        for one in nodes
        for other in nodes
        if one != other and {one, other} & voters.ids
    }


def test_voter_of_a_new_cluster_does_not_follow_a_listed_node_that_is_one_alone() -> None:
    """Three nodes would have one vote, and each operator's list would say three."""
    alone = hello_of(1, cluster_id="c", bootstrap_id=None, voters=voters("directory-1"))
    new = hello_of(2, cluster_id=None, bootstrap_id="three", voters=voters(None, None, None))
    for mine, theirs in ((alone, new), (new, alone)):
        assert "Node 1 at" in reason(mine, theirs)
        assert "in which it has the only vote" in reason(mine, theirs)
    three = voters("directory-1", "directory-2", "directory-3")
    for fine in (
        # A voter of the same list that starts late, a joining node, a voter of the alone list.
        (hello_of(1, cluster_id="c", bootstrap_id="three", voters=three), new),
        (hello_of(4, cluster_id="c", bootstrap_id=None, voters=three), new),
        (alone, hello_of(2, cluster_id=None, bootstrap_id=None)),
        (hello_of(1, cluster_id="c", bootstrap_id="three", voters=voters("directory-1")), new),
    ):
        check_hello(*fine, None)
        check_hello(*reversed(fine), None)
