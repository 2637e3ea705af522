from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.raft.log.journal import (
    JournalContent,
    VoteRecord,
)
from raftlog.raft.log.log import BASE_COMMAND, VOTERS, RaftLog
from raftlog.raft.log.store import Loaded
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.raft.voters import Voter, VoterSet, encode_voters, parse_voters
from raftlog.record.errors import LogError

THREE = parse_voters("1@a:1,2@b:2,3@c:3")
FOUR = THREE.add(Voter(4, "d", 4))
FIVE = FOUR.add(Voter(5, "e", 5))


def voters_command(voters: VoterSet) -> bytes:
    return bytes((VOTERS,)) + encode_voters(voters)


def empty(base_index: int = 1, base_term: int = 0, term: int = 0) -> RaftLog:
    return RaftLog(Loaded(None, JournalContent(base_index, base_term, THREE, term, None, [])))


def filled(*terms: int) -> RaftLog:
    """Entries 2, 3, ... of these terms, all durable."""
    log = empty()
    for number, term in enumerate(terms, 2):
        log.add(b"\x00%d" % number, number, term)
    log.written(log.lsn)
    return log


def terms_of(log: RaftLog) -> list[int]:
    return [term for _, _, term in log[1:]]


# pysyncobj's side


def test_empty_log_holds_its_base() -> None:
    log = empty(base_index=7, base_term=3, term=5)
    assert len(log) == 1
    assert log[0] == log[-1] == (BASE_COMMAND, 7, 3)
    assert (log.first_index, log.last_index, log.last_term) == (7, 7, 3)
    assert log.getRaftCommitIndex() == 1
    assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (5, None)


def test_entries_are_given_as_tuples_by_number_and_slice() -> None:
    log = filled(1, 1, 2)
    assert log[-1] == (b"\x004", 4, 2)
    assert log[1:3] == [(b"\x002", 2, 1), (b"\x003", 3, 1)]
    assert log[2:] == [(b"\x003", 3, 1), (b"\x004", 4, 2)]
    assert log[9:] == [] and isinstance(log[0:1], list)


def test_known_entry_is_kept_with_all_that_follows() -> None:
    log = filled(1, 1, 2)
    lsn = log.lsn
    log.add(b"\x002", 2, 1)
    log.add(b"\x003", 3, 1)
    assert terms_of(log) == [1, 1, 2] and log.lsn == lsn and log.durable_index == 4


def test_conflict_replaces_all_from_there() -> None:
    log = filled(1, 1, 2)
    log.add(b"\x00new", 3, 3)
    assert log[1:] == [(b"\x002", 2, 1), (b"\x00new", 3, 3)]
    # A later leader may bring back an entry of an earlier term.
    log.add(b"\x003", 3, 2)
    assert terms_of(log) == [1, 2] and log.getCurrentTerm() == 3


def test_committed_entry_is_never_replaced() -> None:
    log = filled(1, 1, 1)
    log.setRaftCommitIndex(3)
    log.setRaftCommitIndex(2)
    with pytest.raises(AssertionError, match="entry 3 is committed"):
        log.add(b"\x00", 3, 2)
    assert terms_of(log) == [1, 1, 1]
    log.add(b"\x00", 4, 2)


def test_entries_of_the_snapshot_are_never_replaced() -> None:
    entries = [(b"\x00", 3, 1), (b"\x00", 4, 1), (b"\x00", 5, 1)]
    snapshot = SnapshotMeta(4, 1, THREE)
    log = RaftLog(Loaded(snapshot, JournalContent(2, 1, THREE, 1, None, entries)))
    with pytest.raises(AssertionError, match="entry 4 is committed"):
        log.add(b"\x00", 4, 2)
    with pytest.raises(AssertionError, match="entry 2 is committed"):
        log.add(b"\x00", 2, 2)
    log.add(b"\x00", 5, 2)


def test_entry_below_the_base_is_covered() -> None:
    log = empty(base_index=5, base_term=2, term=2)
    log.add(b"\x00x", 4, 1)
    log.add(b"\x00y", 5, 2)
    assert len(log) == 1 and log.lsn == 0


def test_broken_invariants_stop() -> None:
    log = filled(1, 3)
    with pytest.raises(AssertionError, match="entry 5 after 3"):
        log.add(b"\x00", 5, 3)
    with pytest.raises(AssertionError, match="entry 4 of 2 after one of 3"):
        log.add(b"\x00", 4, 2)
    with pytest.raises(AssertionError, match="two entries 3 of 3"):
        log.add(b"\x00other", 3, 3)
    for call in (log.clear, lambda: log.deleteEntriesTo(1)):
        with pytest.raises(AssertionError):
            call()
    log.deleteEntriesFrom(1)
    assert terms_of(log) == [1, 3]


def test_term_and_vote_are_never_taken_back() -> None:
    log = empty()
    log.setCurrentTerm(2, None)
    log.setCurrentTerm(2, 3)
    log.setCurrentTerm(2, 3)
    assert log.take_pending() == ([VoteRecord(2, None), VoteRecord(2, 3)], 2)
    for term, vote in [(1, 3), (2, 1), (2, None)]:
        with pytest.raises(AssertionError):
            log.setCurrentTerm(term, vote)
    log.setCurrentTerm(4, 1)
    assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (4, 1)


def test_entry_of_a_later_term_brings_its_term() -> None:
    log = empty()
    log.setCurrentTerm(2, 3)
    log.add(b"\x00", 2, 5)
    assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (5, None)


# Content


def test_terms_and_entries_by_index() -> None:
    log = filled(1, 1, 4)
    log.trim(2)
    assert [log.term_at(index) for index in (2, 3, 4)] == [1, 1, 4]
    assert log.entry(4) == (b"\x004", 4, 4)
    calls: list[Callable[[], object]] = [lambda: log.term_at(1), lambda: log.entry(2)]
    for call in calls:
        with pytest.raises(AssertionError, match="only in the snapshot"):
            call()


def test_entries_to_send_are_bounded_by_count_and_bytes() -> None:
    log = empty()
    for index in range(2, 8):
        log.add(b"\x00" + b"x" * 9, index, 1)
    assert len(log.entries_from(2, count_max=3, bytes_max=1000)) == 3
    assert len(log.entries_from(4, count_max=100, bytes_max=1000)) == 4
    assert len(log.entries_from(2, count_max=100, bytes_max=29)) == 2
    assert len(log.entries_from(2, count_max=100, bytes_max=30)) == 3
    assert log.entries_from(2, count_max=100, bytes_max=1) == [(1, b"\x00" + b"x" * 9)]
    assert log.entries_from(8, count_max=100, bytes_max=1000) == []
    assert log.entries_from(2, count_max=0, bytes_max=1000) == []


# Voters


def test_voters_hold_from_the_moment_they_are_added_and_go_with_their_entry() -> None:
    log = filled(1, 1)
    told: list[VoterSet] = []
    log.on_voters_changed(lambda: told.append(log.voters))
    assert (log.voters, log.voters_index) == (THREE, 1)
    log.add(voters_command(FOUR), 4, 2)
    assert (log.voters, log.voters_index) == (FOUR, 4)
    log.add(b"\x00", 5, 2)
    log.add(voters_command(FIVE), 6, 2)
    assert told == [FOUR, FIVE]
    log.add(b"\x00", 6, 3)
    assert (log.voters, log.voters_index) == (FOUR, 4)
    log.add(b"\x00", 3, 4)
    assert (log.voters, log.voters_index) == (THREE, 1)
    assert told == [FOUR, FIVE, FOUR, THREE]
    log.add(b"\x00", 4, 4)
    assert len(told) == 4


def test_replacing_one_voter_set_by_another_is_one_change() -> None:
    log = filled(1)
    log.add(voters_command(FOUR), 3, 1)
    told: list[VoterSet] = []
    log.on_voters_changed(lambda: told.append(log.voters))
    log.add(voters_command(THREE.remove(3)), 3, 2)
    assert told == [THREE.remove(3)]


def test_voters_at_an_index_and_over_trims() -> None:
    log = filled(1)
    log.add(voters_command(FOUR), 3, 1)
    log.add(b"\x00", 4, 1)
    log.add(voters_command(FIVE), 5, 1)
    log.written(log.lsn)
    assert [log.voters_at(index) for index in range(1, 7)] == [
        THREE, THREE, FOUR, FOUR, FIVE, FIVE,
    ]  # fmt: skip
    log.trim(4)
    assert [log.voters_at(index) for index in (4, 5)] == [FOUR, FIVE]
    assert log.content()[0].voters_at_base == FOUR
    log.trim(5)
    assert (log.voters, log.voters_index) == (FIVE, 5)
    with pytest.raises(AssertionError):
        log.voters_at(4)


def test_voters_are_found_in_a_loaded_log() -> None:
    entries = [(b"\x00", 3, 1), (voters_command(FOUR), 4, 1), (b"", 5, 1)]
    log = RaftLog(Loaded(None, JournalContent(2, 1, THREE, 1, None, entries)))
    assert (log.voters, log.voters_index, log.voters_at(3)) == (FOUR, 4, THREE)


def test_voters_that_are_not_understood_change_nothing() -> None:
    log = filled(1, 1)
    with pytest.raises(LogError, match="does not understand"):
        log.add(b"\x02{}", 3, 2)
    assert terms_of(log) == [1, 1] and log.voters == THREE


# The way to the disk


def test_records_are_taken_again_until_they_are_written() -> None:
    log = empty()
    log.add(b"\x00a", 2, 1)
    log.add(b"\x00b", 3, 1)
    taken = log.take_pending()
    assert taken == ([(b"\x00a", 2, 1), (b"\x00b", 3, 1)], 2)
    assert log.take_pending() == taken
    log.setCurrentTerm(2, 1)
    log.written(taken[1])
    assert (log.durable_index, log.durable_lsn, log.lsn) == (3, 2, 3)
    assert log.take_pending() == ([VoteRecord(2, 1)], 3)


def test_replaced_entry_is_not_durable_though_its_write_ends() -> None:
    log = filled(1, 1)
    log.add(b"\x00", 4, 1)
    log.add(b"\x00", 5, 1)
    _, lsn = log.take_pending()
    log.add(b"\x00", 4, 2)
    log.written(lsn)
    assert log.durable_index == 3
    log.written(log.lsn)
    assert log.durable_index == 4


def test_replaced_durable_entry_is_not_durable_any_more() -> None:
    log = filled(1, 1, 1)
    assert log.durable_index == 4
    log.add(b"\x00", 3, 2)
    assert log.durable_index == 2


def test_trim_needs_durable_entries() -> None:
    log = filled(1, 1)
    log.add(b"\x00", 4, 1)
    with pytest.raises(AssertionError):
        log.trim(4)
    log.trim(3)
    assert log[:] == [(BASE_COMMAND, 3, 1), (b"\x00", 4, 1)]


def test_reset_keeps_what_follows_the_snapshots_entry() -> None:
    log = filled(1, 1, 1, 1)
    log.reset(3, 1, THREE)
    assert (log.first_index, log.last_index, log.durable_index) == (3, 5, 5)
    log.add(b"\x00", 6, 1)
    with pytest.raises(AssertionError, match="gap"):
        log.take_pending()
    content, lsn = log.content()
    assert (content.base_index, content.last_index) == (3, 6)
    log.written(lsn)
    assert log.durable_index == 6 and log.take_pending() == ([], lsn)
    assert not log.rewrite_due


def test_reset_to_another_entry_empties_the_log() -> None:
    for index, term in [(4, 7), (9, 7)]:
        log = filled(1, 1, 1, 1)
        log.add(voters_command(FOUR), 6, 1)
        told: list[VoterSet] = []
        log.on_voters_changed(lambda log=log, told=told: told.append(log.voters))
        log.setCurrentTerm(6, 1)
        lsn = log.lsn
        log.reset(index, term, FIVE)
        assert log[:] == [(BASE_COMMAND, index, term)]
        assert (log.voters, told, log.durable_index) == (FIVE, [FIVE], index)
        assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (7, None)
        assert log.lsn == lsn + 1, "what leaves the node from now on must wait"
        with pytest.raises(AssertionError):
            log.add(b"\x00", index, term + 1)


def test_reset_against_a_committed_entry_stops() -> None:
    log = filled(1, 1, 1)
    log.setRaftCommitIndex(3)
    with pytest.raises(AssertionError, match="committed"):
        log.reset(3, 2, THREE)
    with pytest.raises(AssertionError):
        log.reset(0, 0, THREE)


def test_write_that_ends_after_a_reset_makes_no_new_entry_durable() -> None:
    log = filled(1)
    log.add(b"\x00", 3, 1)
    log.add(b"\x00", 4, 1)
    _, lsn = log.take_pending()
    log.reset(3, 2, THREE)
    log.add(b"\x00", 4, 2)
    log.written(lsn)
    assert log.durable_index == 3 and log.rewrite_due
    log.written(log.lsn)
    assert log.durable_index == 4
