"""Effects of late, repeated and foreign messages on pysyncobj.

Each defect has a trace, run with the shipped code and with its guard switched off. A missing
previous entry has no test: `RaftCore._replicate` computes each append's previous entry itself,
and never names one behind its log's end.
"""

from __future__ import annotations

import pytest

from raftlog.raft import core
from raftlog.raft.core import UnknownEntryError
from raftlog.raft.messages import Append, AppendAnswer
from tests.simulation.quorum.checker import InvariantError
from tests.simulation.quorum.core_cluster import CoreCluster
from tests.simulation.quorum.switches import (
    commit_clamp_off,
    gone_peers_are_heard,
    hints_off,
    next_index_goes_back,
    resets_always_count,
    stale_answers_count,
    unknown_kinds_pass,
    votes_count_twice,
)

Patch = pytest.MonkeyPatch
COMMANDS = 60


# Answers of an earlier term


def acknowledged_in_another_term() -> None:
    cores = CoreCluster((1, 2, 3, 4, 5))
    cores.elect(1, 2, 3, 4, 5)
    # Only 2 hears of these, and its answers are stuck on the way back.
    cores.propose(1, *(b"old-%d" % number for number in range(6)))
    cores.exchange(1, 2, without=[(2, 1)])
    cores.isolate(1, (2, 1))
    # 4 leads, and replaces the entries on both.
    cores.elect(4, 3, 5)
    cores.exchange(without=[(2, 1)])
    assert cores.terms(2) == [1, 2]
    cores.elect(1, 3, 4, 5)
    # Only 3 receives the new ones; then a very old answer of 2 arrives.
    cores.propose(1, *(b"new-%d" % number for number in range(3)))
    cores.exchange(1, 3)
    cores.deliver(2, 1, len(cores.on_way[2, 1]))
    assert cores[1].core.commit_index < cores[1].log.last_index
    cores.settle(1)


def test_answer_of_an_earlier_term_holds() -> None:
    """An answer to an append of an earlier term acknowledges entries that were replaced since."""
    acknowledged_in_another_term()


def test_answer_of_an_earlier_term_without_guard_fails(monkeypatch: Patch) -> None:
    stale_answers_count(monkeypatch)
    with pytest.raises(InvariantError, match=r"commits 5 of term 3, durable on \[1, 3\] of"):
        acknowledged_in_another_term()


# The commit index of an append


def told_of_commits_behind_a_stale_tail() -> None:
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.propose(1, b"a", b"b")
    cores.exchange()
    cores.propose(1, b"stale-1", b"stale-2", b"stale-3")
    cores.isolate(1)
    cores.restart(1, connect=False)
    cores.elect(2, 3)
    cores.propose(2, b"c", b"d")
    cores.exchange(2, 3)
    cores.elect(3, 2)
    # 1 does not match at 3's end; everything from the last common term on is sent again. The first
    # append of these brings two entries only, with a commit index that covers all of 3's.
    cores.connect(1, 3)
    cores.connect(1, 2)
    cores.settle(3)


def test_commit_index_beyond_an_append_holds(monkeypatch: Patch) -> None:
    """An append's commit index does not cover the receiver's entries behind the append.

    pysyncobj commits up to its log's end all the same. Source: figure 2 of the Raft
    paper, AppendEntries rule 5 ("index of last new entry").
    """
    monkeypatch.setattr(core, "ENTRIES_PER_APPEND_MAX", 2)
    told_of_commits_behind_a_stale_tail()


def test_commit_index_beyond_an_append_without_guard_fails(monkeypatch: Patch) -> None:
    monkeypatch.setattr(core, "ENTRIES_PER_APPEND_MAX", 2)
    commit_clamp_off(monkeypatch)
    with pytest.raises(InvariantError, match="b'stale-2' at 6, where another applied b'c'"):
        told_of_commits_behind_a_stale_tail()


# Votes


def a_vote_arrives_twice() -> None:
    cores = CoreCluster((1, 2, 3, 4, 5))
    cores.campaign(1, 2, 3)
    cores.deliver(1, 2)
    (vote,) = cores.deliver(2, 1)
    cores.take(2, 1, vote)
    cores.isolate(1)
    cores.elect(3, 4, 5)
    cores.propose(3, b"a")
    cores.exchange(3, 4, 5)


def test_vote_that_arrives_twice_holds() -> None:
    """pysyncobj counts votes, not voters: a repeated one makes a leader of a minority.

    Source: the Raft paper, section 5.2.
    """
    a_vote_arrives_twice()


def test_vote_that_arrives_twice_without_guard_fails(monkeypatch: Patch) -> None:
    votes_count_twice(monkeypatch)
    with pytest.raises(InvariantError, match="term 1 has leaders 1 and 3"):
        a_vote_arrives_twice()


# Entries of unknown kinds


def an_entry_of_a_newer_version_arrives() -> list[AppendAnswer]:
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    log = cores[2].log
    entries = [(1, b"\x03newer")]
    append = Append(1, log.last_index, log.last_term, log.last_index, 1_000, entries)
    cores.take(1, 2, append)
    return [message for message in cores.on_way[2, 1] if isinstance(message, AppendAnswer)]


def test_entry_of_unknown_kind_holds() -> None:
    """An entry of an unknown kind must stop the member: skipping the entry diverges.

    pysyncobj obeys entries of its log (voters by pickle, code versions), or skips some. Source:
    filter (f) of the quorum's design.
    """
    with pytest.raises(UnknownEntryError):
        an_entry_of_a_newer_version_arrives()


def test_entry_of_unknown_kind_without_guard_fails(monkeypatch: Patch) -> None:
    unknown_kinds_pass(monkeypatch)
    answers = an_entry_of_a_newer_version_arrives()
    assert answers[-1].success, "acknowledged, and never carried out"


# Answers of peers that are gone


def an_observer_answers_and_goes() -> None:
    cores = CoreCluster((1, 2, 3), (4,))
    cores.elect(1, 2, 3)
    cores.exchange()
    cores.propose(1, b"a")
    cores.deliver(1, 4)
    late = cores.on_way[4, 1].popleft()
    cores.disconnect(1, 4)
    cores.take(4, 1, late)
    cores.exchange(1, 2, 3)
    assert cores[1].core.commit_index == cores[1].log.last_index


def test_late_answer_of_a_gone_observer_holds() -> None:
    """pysyncobj forgets an observer with its connection, and fails at a late answer."""
    an_observer_answers_and_goes()


def test_late_answer_of_a_gone_observer_without_guard_fails(monkeypatch: Patch) -> None:
    gone_peers_are_heard(monkeypatch)
    with pytest.raises(KeyError):
        an_observer_answers_and_goes()


# For liveness only: the same work, many times over


def entries_sent(cores: CoreCluster, peer: int) -> int:
    return sum(
        len(message.entries)
        for _, target, message in cores.delivered
        if target == peer and isinstance(message, Append)
    )


def many_appends_miss() -> int:
    """Entries sent to a member that missed one of many appends under way."""
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.propose(1, b"missed")
    cores.drop(1, 3)
    cores.propose(1, *(b"%d" % number for number in range(COMMANDS)))
    cores.settle(1)
    return entries_sent(cores, 3)


def test_resets_of_many_appends_under_way_hold() -> None:
    """Each append under way fails after a lost one, with a reset of the leader.

    Obeying all resets sends everything again and again.
    """
    assert many_appends_miss() < 4 * COMMANDS


def test_resets_of_many_appends_under_way_without_guard_fails(monkeypatch: Patch) -> None:
    resets_always_count(monkeypatch)
    assert many_appends_miss() > 20 * COMMANDS


def many_appends_succeed() -> int:
    """Entries sent to a member that takes all of many appends under way."""
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.propose(1, *(b"%d" % number for number in range(COMMANDS)))
    cores.settle(1)
    return entries_sent(cores, 2)


def test_successes_of_many_appends_under_way_hold() -> None:
    """pysyncobj goes on from the answer to the oldest append.

    All later appends under way are sent again.
    """
    assert many_appends_succeed() < 2 * COMMANDS


def test_successes_of_many_appends_under_way_without_guard_fails(monkeypatch: Patch) -> None:
    next_index_goes_back(monkeypatch)
    assert many_appends_succeed() > 10 * COMMANDS


def a_long_tail_conflicts() -> int:
    """Messages needed to replace a long tail of a deposed leader."""
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.propose(1, *(b"stale-%d" % number for number in range(COMMANDS)))
    cores.isolate(1)
    cores.elect(2, 3)
    cores.propose(2, *(b"%d" % number for number in range(COMMANDS)))
    cores.exchange(2, 3)
    cores.isolate(1)
    cores.elect(3, 2)
    cores.isolate(1)
    count = len(cores.delivered)
    cores.heartbeat(3)
    cores.settle(3)
    return len(cores.delivered) - count


def test_long_conflicting_tail_holds() -> None:
    """Without a hint by terms, a leader goes back one entry with each answer.

    Source: the Raft paper, end of section 5.3.
    """
    assert a_long_tail_conflicts() < COMMANDS / 2


def test_long_conflicting_tail_without_guard_fails(monkeypatch: Patch) -> None:
    hints_off(monkeypatch)
    assert a_long_tail_conflicts() > 2 * COMMANDS
