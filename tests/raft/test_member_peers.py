"""What other members may send, and what must come of it: never the end of a leader."""

from __future__ import annotations

import pytest

from raftlog.raft.interface import Applied, ConnectionEvent
from raftlog.raft.messages import (
    Append,
    Control,
    Forward,
    Message,
    Ping,
    PreVote,
    RequestKind,
    encode_message,
)
from tests.raft.test_member_cluster import hear, in_cluster, others
from tests.simulation.quorum.member_world import MemberWorld


@pytest.mark.parametrize("frame", [b"", b"\xff\xff", b"\x92\x63\x01", bytes(1000)])
def test_what_is_no_message_ends_the_connection_and_nothing_else(frame: bytes) -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        ends: list[ConnectionEvent] = []
        members.members[leader].on_connection(lambda _, event: ends.append(event))
        hear(members, leader, follower, frame)
        assert ends == [ConnectionEvent.DOWN]
        await members.until(lambda: follower in members.members[leader].peers())
        assert isinstance(await members.propose(follower), Applied)

    in_cluster(work)


@pytest.mark.parametrize("voters", [b"", b"{}", b'{"voters":[]}', b"\xff", b'{"voters":[{}]}'])
def test_voters_that_make_no_sense_end_the_connection_only(voters: bytes) -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        hear(members, leader, follower, encode_message(Ping(1, 10**6, voters)))
        assert follower not in members.members[leader].peers()
        await members.until(lambda: follower in members.members[leader].peers())

    in_cluster(work)


def test_a_forwarded_change_that_names_no_node_does_not_hurt_the_leader() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        term = members.members[leader].term
        hear(
            members, leader, follower, encode_message(Forward(term, 1, RequestKind.ADD_VOTER, b"?"))
        )
        assert isinstance(await members.propose(leader), Applied)

    in_cluster(work)


def test_entries_of_a_newer_version_stop_the_member() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        term = members.members[leader].term
        entry = Append(term, 1, 0, 1, 10**6, [(term, b"\x09new")])
        hear(members, follower, leader, encode_message(entry))
        (reason,) = members.failures
        assert "upgrade" in reason
        members.failures.clear()

    in_cluster(work)


@pytest.mark.parametrize("kind", ["ping", "control", "forward"])
def test_whoever_says_a_higher_term_ends_the_time_of_a_leader(kind: str) -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        term = members.members[leader].term + 5
        kinds: dict[str, Message] = {
            "ping": Ping(term, 1, b""),
            "control": Control(term, b"x"),
            "forward": Forward(term, 1, RequestKind.BARRIER, b""),
        }
        hear(members, leader, follower, encode_message(kinds[kind]))
        assert members.members[leader].term == term
        assert not members.members[leader].is_active
        await members.elected()

    in_cluster(work)


def test_who_only_asks_for_a_pre_vote_ends_nobodys_time() -> None:
    async def work(members: MemberWorld, leader: int) -> None:
        follower = others(members, leader)[0]
        term = members.members[leader].term
        hear(members, leader, follower, encode_message(PreVote(term + 5, 10**6, term + 5, 1)))
        assert members.members[leader].term == term
        assert members.members[leader].is_active

    in_cluster(work)
