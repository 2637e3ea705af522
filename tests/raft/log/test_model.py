"""Anything a member may do to its log, in any order, against a simple model."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftlog.raft.log.journal import (
    JournalContent,
    LogEntry,
    PendingRecord,
    VoteRecord,
    encode_journal,
    encode_pending,
    recover,
)
from raftlog.raft.log.log import BASE_COMMAND, VOTERS, RaftLog
from raftlog.raft.log.store import Loaded, reconciled
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.raft.voters import Voter, VoterSet, encode_voters, parse_voters
from tests.examples import examples

THREE = parse_voters("1@a:1,2@b:2,3@c:3")
FOUR = THREE.add(Voter(4, "d", 4))
FIVE = FOUR.add(Voter(5, "e", 5))


def voters_command(voters: VoterSet) -> bytes:
    return bytes((VOTERS,)) + encode_voters(voters)


@dataclass(frozen=True, slots=True)
class Job:
    """A write or a rewrite under way to the disk."""

    lsn: int
    records: list[PendingRecord]
    content: JournalContent | None
    said: JournalContent
    """The whole log when the job began."""


class LogAgainstModel(RuleBasedStateMachine):
    """Anything a member may do, against lists; and the disk's bytes, replayed after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.base = (BASE_COMMAND, 1, 0)
        self.entries: list[LogEntry] = []
        self.sets: dict[int, VoterSet] = {1: THREE}
        self.term, self.vote, self.commit = 0, None, 1
        self.snapshot: SnapshotMeta | None = None
        self.job: Job | None = None
        start = JournalContent(1, 0, THREE, 0, None, [])
        self.journal = b"".join(encode_journal(start))
        self.on_disk = start
        self.log = RaftLog(Loaded(None, start))
        self.told = self.log.voters
        self.log.on_voters_changed(self.changed)
        self.commands = 0

    vote: int | None

    def changed(self) -> None:
        assert self.log.voters != self.told, "told of no change"
        self.told = self.log.voters

    @property
    def last_index(self) -> int:
        return self.base[1] + len(self.entries)

    def term_at(self, index: int) -> int:
        return [self.base, *self.entries][index - self.base[1]][2]

    def add(self, index: int, term: int, voters: VoterSet | None) -> None:
        self.commands += 1
        command = b"\x00%d" % self.commands if voters is None else voters_command(voters)
        self.log.add(command, index, term)
        del self.entries[index - self.base[1] - 1 :]
        self.entries.append((command, index, term))
        self.sets = {at: each for at, each in self.sets.items() if at < index}
        if voters is not None:
            self.sets[index] = voters
        if term > self.term:
            self.term, self.vote = term, None

    @rule(further=st.integers(0, 2), voters=st.sampled_from([None, None, None, THREE, FOUR, FIVE]))
    def append(self, further: int, voters: VoterSet | None) -> None:
        self.add(self.last_index + 1, self.term_at(self.last_index) + further, voters)

    @precondition(lambda self: self.last_index > self.commit)
    @rule(data=st.data(), voters=st.sampled_from([None, FOUR, FIVE]))
    def conflict(self, data: st.DataObject, voters: VoterSet | None) -> None:
        index = data.draw(st.integers(self.commit + 1, self.last_index))
        term = self.term_at(index - 1) + data.draw(st.integers(0, 3))
        if term != self.term_at(index):
            self.add(index, term, voters)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        command, index, term = data.draw(st.sampled_from(self.entries))
        self.log.add(command, index, term)

    @rule(further=st.integers(1, 2), vote=st.none() | st.integers(1, 3))
    def enter_term(self, further: int, vote: int | None) -> None:
        self.term, self.vote = self.term + further, vote
        self.log.setCurrentTerm(self.term, vote)

    @precondition(lambda self: self.vote is None)
    @rule(vote=st.integers(1, 3))
    def give_vote(self, vote: int) -> None:
        self.vote = vote
        self.log.setCurrentTerm(self.term, vote)

    @rule(data=st.data())
    def commit_some(self, data: st.DataObject) -> None:
        self.commit = data.draw(st.integers(self.commit, self.last_index))
        self.log.setRaftCommitIndex(self.commit)

    @rule(data=st.data())
    def save_snapshot_and_trim(self, data: st.DataObject) -> None:
        applied = min(self.commit, self.log.durable_index)
        lowest = self.base[1] if self.snapshot is None else max(self.snapshot.index, self.base[1])
        if lowest >= applied:
            return
        index = data.draw(st.integers(lowest + 1, applied))
        self.snapshot = SnapshotMeta(index, self.term_at(index), self.log.voters_at(index))
        index = data.draw(st.integers(self.base[1], index))
        self.log.trim(index)
        self.set_base(index, self.term_at(index))

    @rule(data=st.data(), voters=st.sampled_from([THREE, FOUR, FIVE]))
    def install_snapshot(self, data: st.DataObject, voters: VoterSet) -> None:
        index = data.draw(st.integers(self.commit, self.last_index + 2))
        known = self.term_at(index) if index <= self.last_index else None
        if self.snapshot is not None and index <= self.snapshot.index:
            return
        term = known
        if term is None or (index > self.commit and data.draw(st.booleans())):
            term = self.term_at(min(index, self.last_index)) + data.draw(st.integers(0, 2))
        self.snapshot = SnapshotMeta(index, term, voters, received=True)
        self.log.reset(index, term, voters)
        if term != known:
            self.entries.clear()
            self.sets.clear()
            self.base = (BASE_COMMAND, index, term)
        self.set_base(index, term)
        self.sets[index] = voters
        self.commit = max(self.commit, index)
        if term > self.term:
            self.term, self.vote = term, None

    def set_base(self, index: int, term: int) -> None:
        newest = [voters for at, voters in sorted(self.sets.items()) if at <= index]
        self.sets = {at: voters for at, voters in self.sets.items() if at > index}
        if newest:
            self.sets[index] = newest[-1]
        self.entries = [entry for entry in self.entries if entry[1] > index]
        self.base = (BASE_COMMAND, index, term)

    @precondition(lambda self: self.job is None)
    @rule(rewrite=st.integers(0, 3))
    def begin_job(self, rewrite: int) -> None:
        content, lsn = self.log.content()
        if self.log.rewrite_due or rewrite == 0:
            self.job = Job(lsn, [], content, content)
        else:
            records, lsn = self.log.take_pending()
            self.job = Job(lsn, records, None, content)

    @precondition(lambda self: self.job is not None)
    @rule(full=st.booleans())
    def end_job(self, full: bool) -> None:
        job = self.job
        assert job is not None
        self.job = None
        if full and job.lsn % 2:
            return
        if job.content is not None:
            self.journal = b"".join(encode_journal(job.content))
        else:
            last_index = self.on_disk.last_index
            for record in job.records:
                position = len(self.journal)
                self.journal += encode_pending(
                    record, position=position, synced=0, last_index=last_index
                )
                if not isinstance(record, VoteRecord):
                    last_index = record[1]
        self.on_disk = recover(self.journal).content
        self.log.written(job.lsn)
        said = job.said
        assert (self.on_disk.term, self.on_disk.vote) == (said.term, said.vote)
        assert self.on_disk.last_index == said.last_index
        assert list(self.on_disk.entries)[-len(said.entries) :] == list(said.entries) or (
            not said.entries
        )

    @invariant()
    def says_what_the_model_says(self) -> None:
        log = self.log
        assert log[:] == [self.base, *self.entries]
        assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (self.term, self.vote)
        assert (log.voters_index, log.voters) == max(self.sets.items(), key=lambda each: each[0])
        assert self.told == log.voters
        for index in range(log.first_index, log.last_index + 1):
            assert log.voters_at(index) == self.sets[max(at for at in self.sets if at <= index)]

    @invariant()
    def durable_index_is_what_a_start_would_find(self) -> None:
        log = self.log
        found = reconciled(self.on_disk, self.snapshot)
        assert found.base_index <= log.durable_index <= found.last_index
        for index in range(max(found.base_index, log.first_index) + 1, log.durable_index + 1):
            assert found.entries[index - found.base_index - 1] == log.entry(index)
        assert found.term_at(log.first_index) == log.term_at(log.first_index)
        assert found.term <= self.term
        if log.durable_lsn == log.lsn:
            assert log.durable_index == log.last_index == found.last_index
            assert (found.term, found.vote) == (self.term, self.vote)


LogAgainstModel.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestLogAgainstModel = LogAgainstModel.TestCase
