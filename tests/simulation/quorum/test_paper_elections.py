"""Leader election: sections 5.2 and 5.4.1 of the Raft paper. The scenarios are those of etcd's
raft_paper_test; a pre-vote (section 9.6 of the dissertation) comes before each election."""

from __future__ import annotations

import pytest

from raftlog.raft.messages import Append, Message, RequestVote, Vote
from tests.simulation.quorum.core_cluster import Blind, CoreCluster
from tests.simulation.quorum.core_harness import TIMING

ROUND_TRIP_S = 0.01
"""Two candidates that begin closer together than this may split the vote."""


def said(cores: CoreCluster, source: int, kind: type[Message]) -> list[tuple[int, Message]]:
    """Messages under way from a member, by receiver."""
    return [
        (target, message)
        for (sender, target), messages in cores.on_way.items()
        if sender == source
        for message in messages
        if isinstance(message, kind)
    ]


def test_follower_without_a_leader_begins_an_election() -> None:
    """Section 5.2: "increments its current term ... votes for itself ... in parallel"."""
    cores = CoreCluster((1, 2, 3))
    cores.campaign(1, 2, 3)
    assert cores[1].core.term == 1
    assert cores[1].log.getVotedForNodeId() == 1
    assert said(cores, 1, RequestVote) == [(2, RequestVote(1, 1, 0)), (3, RequestVote(1, 1, 0))]


def test_candidate_that_is_not_elected_begins_another_election() -> None:
    """Section 5.2: "each candidate will time out and start a new election"."""
    cores = CoreCluster((1, 2, 3))
    cores.campaign(1, 2, 3)
    cores.isolate(1)
    cores.campaign(1, 2, 3)
    assert cores[1].core.term == 2
    assert said(cores, 1, RequestVote) == [(2, RequestVote(2, 1, 0)), (3, RequestVote(2, 1, 0))]


@pytest.mark.parametrize(
    ("size", "voters", "is_elected"),
    [
        (1, [], True),
        (3, [2, 3], True),
        (3, [2], True),
        (3, [], False),
        (5, [2, 3, 4, 5], True),
        (5, [2, 3, 4], True),
        (5, [2, 3], True),
        (5, [2], False),
        (5, [], False),
    ],
)
def test_candidate_wins_with_a_majority_of_votes(
    size: int, voters: list[int], is_elected: bool
) -> None:
    """Section 5.2: "votes from a majority of the servers in the full cluster for the same term"."""
    cores = CoreCluster(range(1, size + 1))
    cores.campaign(1, *range(2, size + 1))
    for voter in voters:
        cores.deliver(1, voter)
        cores.deliver(voter, 1)
    assert cores[1].core.is_leader == is_elected
    assert cores[1].core.term == 1


@pytest.mark.parametrize(
    ("voted_for", "candidate", "is_granted"),
    [(None, 2, True), (None, 3, True), (2, 2, False), (2, 3, False)],
)
def test_follower_votes_once_in_a_term(
    voted_for: int | None, candidate: int, is_granted: bool
) -> None:
    """Section 5.2: "at most one candidate in a given term, on a first-come-first-served basis".

    A repeated request is not answered again: the vote is on its way, in order, or lost with the
    connection, and the candidate goes on to another term.
    """
    cores = CoreCluster((1, 2, 3))
    if voted_for is not None:
        cores.take(voted_for, 1, RequestVote(1, 1, 0))
        assert said(cores, 1, Vote) == [(voted_for, Vote(1))]
        cores.drop(1, voted_for)
    cores.take(candidate, 1, RequestVote(1, 1, 0))
    assert bool(said(cores, 1, Vote)) == is_granted
    assert cores[1].log.getVotedForNodeId() == (voted_for or candidate)


@pytest.mark.parametrize("term", [1, 2])
def test_candidate_follows_a_leader_of_its_term_or_a_newer(term: int) -> None:
    """Section 5.2: "recognizes the leader as legitimate and returns to follower state"."""
    cores = CoreCluster((1, 2, 3), checker=Blind())
    cores.campaign(1, 2, 3)
    cores.take(2, 1, Append(term, 1, 0, 1, 1, []))
    assert cores[1].core.term == term
    assert cores[1].core.leader_id == 2
    # Later votes are too late.
    cores.take(2, 1, Vote(1))
    cores.take(3, 1, Vote(1))
    assert not cores[1].core.is_leader


def patience_s(cores: CoreCluster, node_id: int) -> float:
    """Election timeout of a member that has just heard a leader."""
    seat = cores[node_id]
    seat.core.receive(1, Append(1, 1, 0, 1, 1, []))
    wait_s = seat.core.election_deadline - seat.clock.now
    assert TIMING.election_min_s <= wait_s <= TIMING.election_max_s
    return wait_s


def test_followers_wait_for_random_times_each_in_a_part_of_its_own() -> None:
    """Section 5.2: "chosen randomly from a fixed interval", so that split votes are rare.

    Here each possible successor has a part of the interval, and draws from its first half.
    """
    cores = CoreCluster((1, 2, 3), checker=Blind())
    part_s = (TIMING.election_max_s - TIMING.election_min_s) / 2
    for before, node_id in enumerate((2, 3)):
        begin_s = TIMING.election_min_s + before * part_s
        waits = [patience_s(cores, node_id) for _ in range(500)]
        # The first append comes from a leader unknown so far.
        shares = {int(20 * (wait - begin_s) / part_s) for wait in waits[1:]}
        assert shares == set(range(10)), "every part of it occurs, and nothing else"


def test_candidates_wait_for_random_times() -> None:
    """Section 5.2: "Each candidate restarts its randomized election timeout at the start"."""
    cores = CoreCluster((1, 2, 3))
    waits = set()
    for _ in range(20):
        cores.campaign(1, 2, 3)
        cores.isolate(1)
        waits.add(cores[1].core.election_deadline - cores[1].clock.now)
    assert len(waits) == 20
    assert all(TIMING.election_min_s <= wait <= TIMING.election_max_s for wait in waits)


@pytest.mark.parametrize("size", [3, 5])
def test_members_seldom_lose_patience_together(size: int) -> None:
    """Section 5.2: "in most cases only a single server will time out" before another is elected."""
    cores = CoreCluster(range(1, size + 1), checker=Blind())
    rounds, conflicts = 500, 0
    for _ in range(rounds):
        first, second, *_ = sorted(patience_s(cores, node) for node in range(2, size + 1))
        conflicts += second - first < ROUND_TRIP_S
    # 1 - (1 - round trip / interval) ** n of the rounds: 7 % of 2 members, 13 % of 4.
    assert conflicts / rounds < 0.25


@pytest.mark.parametrize("terms", [[], [1], [1, 2]])
def test_request_for_a_vote_tells_of_the_log(terms: list[int]) -> None:
    """Section 5.4.1: "the RPC includes information about the candidate's log"."""
    cores = CoreCluster((1, 2, 3))
    cores.fill(1, terms, term=2)
    cores.campaign(1, 2, 3)
    expected = RequestVote(3, 1 + len(terms), terms[-1] if terms else 0)
    assert said(cores, 1, RequestVote) == [(2, expected), (3, expected)]


@pytest.mark.parametrize(
    ("terms", "last_term", "last_index", "is_granted"),
    [
        ([1], 1, 2, True),
        ([1], 1, 3, True),
        ([1, 1], 1, 2, False),
        ([1], 2, 2, True),
        ([1], 2, 3, True),
        ([1, 1], 2, 2, True),
        ([2], 1, 2, False),
        ([2], 1, 3, False),
    ],
)
def test_voter_denies_its_vote_to_a_log_behind_its_own(
    terms: list[int], last_term: int, last_index: int, is_granted: bool
) -> None:
    """Section 5.4.1: "the voter denies its vote if its own log is more up-to-date"."""
    cores = CoreCluster((1, 2, 3))
    cores.fill(1, terms)
    cores.take(2, 1, RequestVote(3, last_index, last_term))
    assert bool(said(cores, 1, Vote)) == is_granted
    assert cores[1].core.term == 3
