"""Log replication: sections 5.3 and 5.4.2 of the Raft paper. The scenarios are those of etcd's
raft_paper_test. Logs begin at index 2: index 1 is the base that all share."""

from __future__ import annotations

import pytest

from raftlog.raft.messages import Append, AppendAnswer
from tests.simulation.quorum.core_cluster import Blind, CoreCluster


def entry(index: int, term: int) -> tuple[int, bytes]:
    return term, b"\x00%d of %d" % (index, term)


def entries(first: int, *terms: int) -> list[tuple[int, bytes]]:
    return [entry(index, term) for index, term in enumerate(terms, first)]


def test_leader_sends_heartbeats_to_all() -> None:
    """Section 5.2: "periodic heartbeats (AppendEntries RPCs that carry no log entries)"."""
    cores = CoreCluster((1, 2, 3), (4,))
    cores.elect(1, 2, 3)
    cores.exchange()
    cores.pump(1)
    assert not any(cores.on_way.values()), "not before it is time"
    for _ in range(3):
        cores.heartbeat(1)
        for peer in (2, 3, 4):
            (heartbeat,) = cores.on_way[1, peer]
            assert isinstance(heartbeat, Append)
            assert heartbeat.entries == []
        cores.exchange()


def test_leader_sends_a_new_entry_to_all() -> None:
    """Section 5.3: "appends the command to its log as a new entry, then issues AppendEntries"."""
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.exchange()
    cores.propose(1, b"a")
    assert cores[1].core.commit_index == 2
    for peer in (2, 3):
        (append,) = cores.on_way[1, peer]
        assert isinstance(append, Append)
        assert (append.previous_index, append.previous_term, append.commit_index) == (2, 1, 2)
        assert append.entries == [(1, b"\x00a")]


def test_leader_commits_and_tells_the_others() -> None:
    """Section 5.3: "keeps track of the highest index it knows to be committed, and includes it"."""
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.exchange()
    cores.propose(1, b"a")
    cores.exchange(1, 2)
    assert cores[1].core.commit_index == 3
    assert cores[1].ledger.commands == [b"a"]
    told = cores.last_said(1, 3)
    assert isinstance(told, Append)
    assert told.commit_index == 3
    cores.exchange()
    assert all(seat.ledger.commands == [b"a"] for seat in cores.seats.values())


@pytest.mark.parametrize(
    ("size", "acceptors", "is_committed"),
    [
        (1, [], True),
        (3, [], False),
        (3, [2], True),
        (3, [2, 3], True),
        (5, [], False),
        (5, [2], False),
        (5, [2, 3], True),
        (5, [2, 3, 4], True),
        (5, [2, 3, 4, 5], True),
    ],
)
def test_entry_on_a_majority_is_committed(
    size: int, acceptors: list[int], is_committed: bool
) -> None:
    """Section 5.3: "once the leader ... has replicated it on a majority of the servers"."""
    cores = CoreCluster(range(1, size + 1))
    cores.elect(1, *range(2, size + 1))
    cores.exchange()
    cores.propose(1, b"a")
    for acceptor in acceptors:
        cores.deliver(1, acceptor)
        cores.deliver(acceptor, 1)
    assert (cores[1].core.commit_index == 3) == is_committed


@pytest.mark.parametrize("terms", [[], [2], [1, 2], [1]])
def test_commit_takes_all_preceding_entries_along(terms: list[int]) -> None:
    """Section 5.3: "This also commits all preceding entries", those of other leaders too."""
    cores = CoreCluster((1, 2, 3))
    cores.fill(1, terms, term=2)
    cores.elect(1, 2, 3)
    cores.propose(1, b"a")
    cores.settle(1)
    assert cores.terms(2) == [*terms, 3, 3]
    expected = [command[1:] for _, command in entries(2, *terms)] + [b"a"]
    assert cores[2].ledger.commands == expected


@pytest.mark.parametrize(
    ("commands", "commit_index"),
    [([b"a"], 2), ([b"a", b"b"], 3), ([b"b", b"a"], 3), ([b"a", b"b"], 2)],
)
def test_follower_applies_what_it_learns_to_be_committed(
    commands: list[bytes], commit_index: int
) -> None:
    """Section 5.3: "it applies the entry to its local state machine (in log order)"."""
    cores = CoreCluster((1, 2, 3), checker=Blind())
    brought = [(1, b"\x00" + command) for command in commands]
    cores.take(2, 1, Append(1, 1, 0, commit_index, 1, brought))
    assert cores[1].ledger.commands == commands[: commit_index - 1]


@pytest.mark.parametrize(
    ("previous_index", "previous_term", "matches", "next_index"),
    [
        (1, 0, True, 2),
        (2, 1, True, 3),
        (3, 2, True, 4),
        # Of another term: the leader goes on from there, or before.
        (3, 1, False, 3),
        (3, 3, False, 3),
        # Behind the log's end: from there on.
        (4, 3, False, 4),
        (9, 3, False, 4),
    ],
)
def test_follower_compares_the_entry_before(
    previous_index: int, previous_term: int, matches: bool, next_index: int
) -> None:
    """Section 5.3: "If the follower does not find an entry ... with the same index and term"."""
    cores = CoreCluster((1, 2, 3), checker=Blind())
    cores.fill(1, [1, 2], term=2)
    cores.take(2, 1, Append(3, previous_index, previous_term, 1, 7, []))
    answer = cores.last_said(1, 2)
    assert answer == AppendAnswer(3, next_index, matches, not matches, 7)


@pytest.mark.parametrize(
    ("previous_index", "previous_term", "brought", "expected"),
    [
        (3, 2, [3], [1, 2, 3]),
        (2, 1, [3, 4], [1, 3, 4]),
        (1, 0, [1], [1, 2]),
        (1, 0, [1, 2], [1, 2]),
        (1, 0, [3], [3]),
        (2, 1, [], [1, 2]),
    ],
)
def test_follower_replaces_what_conflicts_and_nothing_else(
    previous_index: int, previous_term: int, brought: list[int], expected: list[int]
) -> None:
    """Figure 2, AppendEntries, rules 3 and 4."""
    cores = CoreCluster((1, 2, 3), checker=Blind())
    cores.fill(1, [1, 2], term=2)
    append = Append(4, previous_index, previous_term, 1, 1, entries(previous_index + 1, *brought))
    cores.take(2, 1, append)
    assert cores.terms(1) == expected
    cores.restart(1)
    assert cores.terms(1) == expected, "and so it is found again"


LEADER = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]


@pytest.mark.parametrize(
    "terms",
    [
        [1, 1, 1, 4, 4, 5, 5, 6, 6],
        [1, 1, 1, 4],
        [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
        [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
        [1, 1, 1, 4, 4, 4, 4],
        [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
    ],
    ids="abcdef",
)
def test_leader_brings_a_follower_of_figure_7_into_line(terms: list[int]) -> None:
    """Section 5.3 and figure 7, (a) to (f)."""
    cores = CoreCluster((1, 2, 3))
    cores.fill(1, LEADER, term=7)
    cores.fill(2, terms)
    cores.elect(1, 3)
    cores.settle(1)
    assert cores.terms(2) == [*LEADER, 8]
    assert cores.commands(2) == cores.commands(1)


@pytest.mark.parametrize(("match_index", "commit_index"), [(2, 1), (3, 1), (4, 4)])
def test_leader_counts_copies_of_its_own_terms_entries_only(
    match_index: int, commit_index: int
) -> None:
    """Section 5.4.2: "only log entries from the leader's current term are committed" that way."""
    cores = CoreCluster((1, 2, 3), checker=Blind())
    cores.fill(1, [1, 2], term=2)
    cores.elect_briefly(1, 2, 3)
    assert cores.terms(1) == [1, 2, 3]
    cores.take(2, 1, AppendAnswer(3, match_index + 1, True, False, 1))
    assert cores[1].core.commit_index == commit_index
