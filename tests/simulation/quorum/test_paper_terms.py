"""Terms: section 5.1 of the Raft paper. The scenarios are those of etcd's raft_paper_test."""

from __future__ import annotations

import pytest

from raftlog.raft.messages import (
    Append,
    AppendAnswer,
    Message,
    PreVoteGranted,
    RequestVote,
)
from tests.simulation.quorum.core_cluster import CoreCluster


def in_role(role: str) -> CoreCluster:
    """Three members, of which 1 has that role in term 1."""
    cores = CoreCluster((1, 2, 3))
    if role == "follower":
        cores.elect(2, 1, 3)
    elif role == "candidate":
        cores.campaign(1, 2, 3)
    else:
        cores.elect(1, 2, 3)
    assert cores[1].core.term == 1
    return cores


ROLES = ["follower", "candidate", "leader"]
OF_TERM_2 = [
    Append(2, 1, 0, 1, 1, []),
    RequestVote(2, 1, 0),
    AppendAnswer(2, 1, False, False, 1),
    PreVoteGranted(2, 1),
]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("message", OF_TERM_2)
def test_member_of_any_role_follows_in_a_newer_term(role: str, message: Message) -> None:
    """Section 5.1: "If one server's current term is smaller than the other's, then it updates".

    And it becomes a follower, if it was not one. What pysyncobj does not take a term from, a
    follower need not either: the others bring it.
    """
    cores = in_role(role)
    cores.isolate(1)
    cores.take(3, 1, message)
    assert cores[1].core.term == 2
    assert not cores[1].core.is_leader
    assert cores[1].log.getVotedForNodeId() in (None, 3)


STALE: list[Message] = [
    Append(1, 1, 0, 1, 1, [(1, b"\x00stale")]),
    RequestVote(1, 9, 1),
    AppendAnswer(1, 9, True, False, 1),
]


@pytest.mark.parametrize("message", STALE)
def test_message_of_an_older_term_changes_nothing(message: Message) -> None:
    """Section 5.1: "If a server receives a request with a stale term number, it rejects it"."""
    cores = in_role("leader")
    cores.exchange()
    cores.elect(2, 3)
    cores.isolate(2)
    before = (cores.commands(2), cores[2].core.commit_index, cores[2].log.getVotedForNodeId())
    cores.take(1, 2, message)
    assert cores[2].core.term == 2
    assert cores[2].core.is_leader
    assert (
        cores.commands(2),
        cores[2].core.commit_index,
        cores[2].log.getVotedForNodeId(),
    ) == before
    answer = cores.last_said(2, 1)
    # A request is answered with the newer term, and with nothing else.
    assert answer is None or (answer.term == 2 and not getattr(answer, "success", False))


def test_member_starts_as_a_follower_without_a_leader() -> None:
    """Section 5.2: "When servers start up, they begin as followers"."""
    cores = CoreCluster((1, 2, 3))
    for seat in cores.seats.values():
        assert not seat.core.is_leader
        assert seat.core.leader_id is None
        assert seat.core.term == 0
    cores.elect(1, 2, 3)
    cores.restart(1)
    assert not cores[1].core.is_leader
    assert cores[1].core.leader_id is None
    assert cores[1].core.term == 1
