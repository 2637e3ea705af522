"""Switches that take out one guard of the quorum each, to show its effect.

A switch is a function of pytest's `monkeypatch`. In the place of the guard it puts pysyncobj's way,
or the naive one. Nothing of this exists in the shipped code.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raftlog.raft import kernel
from raftlog.raft.core import RaftCore
from raftlog.raft.log import journal, store
from raftlog.raft.log.journal import VoteRecord
from raftlog.raft.log.journal_writer import JournalWriter
from raftlog.raft.log.log import BASE_COMMAND, RaftLog
from raftlog.raft.log.store import SnapshotStore
from raftlog.raft.member import RaftMember
from raftlog.raft.membership import VoterChanges
from raftlog.raft.messages import Append, AppendAnswer, Message, SnapshotChunk
from raftlog.raft.outbox import Outbox
from raftlog.raft.peers import peers
from raftlog.raft.proposals import router as proposal_router
from raftlog.raft.proposals.proposals import PendingProposals
from raftlog.raft.rules import Confirmations, Guards
from raftlog.raft.snapshots.format import SnapshotMeta, decode_snapshot
from raftlog.raft.snapshots.snapshots import SnapshotManager
from raftlog.raft.snapshots.transfer import SnapshotReceiver, _Stream
from raftlog.raft.voters import VoterSet
from raftlog.record.errors import NO_CONTROLLER, LogError
from raftlog.world import DiskError
from tests.simulation.life import SimulationError

Patch = pytest.MonkeyPatch


def violation(match: str) -> Any:
    """Expect a violation, whether it ends the test's own code, a member, or a process."""
    return pytest.raises((AssertionError, SimulationError), match=match)


# Messages that leave a member


def hold_off(patch: Patch) -> None:
    """Messages leave at once, durable log or not."""

    def send(self: Outbox, peer: int, message: Message) -> None:
        if peer in self._connections:
            self._transmit(peer, message)

    patch.setattr(Outbox, "send", send)


def votes_kept_in_memory(patch: Patch) -> None:
    """Term and vote are not written."""

    def set_current_term(self: RaftLog, term: int, vote: int | None) -> None:
        self._term, self._vote = term, vote

    patch.setattr(RaftLog, "setCurrentTerm", set_current_term)


# Effects of messages


def stale_answers_count(patch: Patch) -> None:
    patch.setattr(Guards, "answer_counts", lambda _self, _answer, _term: True)


def commit_clamp_off(patch: Patch) -> None:
    def commit_index(_self: Guards, append: Append) -> int:
        return append.commit_index

    patch.setattr(Guards, "commit_index", commit_index)


def votes_count_twice(patch: Patch) -> None:
    patch.setattr(Guards, "counts_vote", lambda _self, _term, _peer: True)


def unknown_kinds_pass(patch: Patch) -> None:
    patch.setattr(Guards, "entries_known", lambda _self, _append: True)


def resets_always_count(patch: Patch) -> None:
    patch.setattr(Guards, "counts_reset", lambda _self, _peer, _answer, _newest: True)


def next_index_goes_back(patch: Patch) -> None:
    patch.setattr(Guards, "next_index", lambda _self, _before, after: after)


def hints_off(patch: Patch) -> None:
    patch.setattr(Guards, "hint", lambda _self, next_index, _log, _commit_index: next_index)


def gone_peers_are_heard(patch: Patch) -> None:
    """pysyncobj's way: an answer counts for any sender."""

    def on_append_answer(self: RaftCore, peer: int, message: AppendAnswer) -> None:
        self._deliver_append_answer(peer, message, reset=message.reset)

    shipped = RaftCore.receive

    def receive(self: RaftCore, peer: int, message: Message) -> None:
        if not isinstance(message, AppendAnswer):
            shipped(self, peer, message)
            return
        with self._scope:
            self._on_append_answer(peer, message)

    patch.setattr(RaftCore, "_on_append_answer", on_append_answer)
    patch.setattr(RaftCore, "receive", receive)


def higher_terms_are_ignored(patch: Patch) -> None:
    """pysyncobj's way: only appends and requests for votes bring a new term."""
    patch.setattr(RaftCore, "_adopt_term", lambda _self, _term: False)


def prevote_off(patch: Patch) -> None:
    def may_campaign(self: RaftCore) -> bool:
        return self.is_voter

    patch.setattr(RaftCore, "_may_campaign", may_campaign)


# The log


def appends_truncate(patch: Patch) -> None:
    """pysyncobj's journal: an append truncates the log behind its beginning."""

    def delete_entries_from(self: RaftLog, number: int) -> None:
        del self._log[number:]
        self.durable_index = min(self.durable_index, self.last_index)
        while self._voter_sets[-1][0] > self.last_index:
            self._voter_sets.pop()

    patch.setattr(RaftLog, "deleteEntriesFrom", delete_entries_from)


def leader_counts_itself_early(patch: Patch) -> None:
    """pysyncobj's way: the leader's own copy counts before it is durable."""

    def entries(
        self: RaftCore, start: int, count: int | None = None, _bytes_max: int | None = None
    ) -> list[tuple[bytes, int, int]]:
        position = start - self.log.first_index
        if position < 0:
            return []
        return self.log[position:] if count is None else self.log[position : position + count]

    patch.setattr(RaftCore, "_entries", entries)


def older_terms_are_counted(patch: Patch) -> None:
    """Entries of older terms are committed by counting their copies."""
    shipped = RaftCore._entries

    def entries(
        self: RaftCore, start: int, count: int | None = None, bytes_max: int | None = None
    ) -> list[tuple[bytes, int, int]]:
        found = shipped(self, start, count, bytes_max)
        return [(command, index, self.term) for command, index, _ in found] if count == 1 else found

    patch.setattr(RaftCore, "_entries", entries)


def applied_before_durable(patch: Patch) -> None:
    """pysyncobj's way: committed entries are applied, durable or not."""

    def apply_entries(self: RaftCore) -> bool:
        for index in range(self.applied_index + 1, self.commit_index + 1):
            command, _, term = self.log.entry(index)
            self._set_applied_index(index)
            self._apply(index, term, command)
        return (self.log.last_index, self.commit_index) != self._announced

    patch.setattr(RaftCore, "_apply_entries", apply_entries)


def damage_is_cut_off(patch: Patch) -> None:
    """Every bad record is taken for a torn tail."""

    def nothing_was_durable(_content: bytes, _position: int) -> int:
        return 0

    parse = journal._parse

    def without_witness(content: bytes, position: int) -> Any:
        record = parse(content, position)
        return None if record is None else replace(record, synced=0)

    patch.setattr(journal, "_highest_synced", nothing_was_durable)
    patch.setattr(journal, "_parse", without_witness)


def names_are_not_synced(patch: Patch) -> None:
    """Files are renamed, and the directory is never synced."""

    def put_in_place(disk: Any, temporary: str, path: str) -> None:
        disk.rename(temporary, path)

    patch.setattr(store, "put_in_place", put_in_place)
    patch.setattr(store, "put_in_place", put_in_place)


def failed_writes_pass(patch: Patch) -> None:
    """pysyncobj's way: an error of the disk is logged and ignored."""
    attempt = JournalWriter._try

    async def try_once(self: JournalWriter, work: Callable[[], None]) -> bool:
        try:
            return await attempt(self, work)
        except DiskError:
            store = self._store
            store._failed = False
            store._synced_bytes, store._last_index = store.journal_bytes, self._log.last_index
            return True

    patch.setattr(JournalWriter, "_try", try_once)


# Snapshots


def older_snapshots_are_placed(patch: Patch) -> None:
    """pysyncobj's fork: the snapshot finished last stays."""

    def place_snapshot(self: SnapshotStore, temporary: str, meta: SnapshotMeta) -> bool:
        store.put_in_place(self._disk, temporary, self._snapshot)
        self._snapshot_meta = meta
        return True

    patch.setattr(SnapshotStore, "_place_snapshot", place_snapshot)


def chunks_commit(patch: Patch) -> None:
    """pysyncobj's way: a chunk is an append, and brings the leader's commit index."""
    received = SnapshotReceiver.received

    async def commit_too(self: SnapshotReceiver, peer: int, chunk: SnapshotChunk) -> None:
        core = self._core
        if chunk.term >= core.term:
            with core._scope:
                core._deliver_heartbeat(peer, chunk.term, chunk.index)
        await received(self, peer, chunk)

    patch.setattr(SnapshotReceiver, "received", commit_too)


def streams_are_mixed(patch: Patch) -> None:
    """Any chunk counts as the next part of the present stream."""
    patch.setattr(_Stream, "is_of", lambda _self, _peer, _chunk: True)


def received_unverified(patch: Patch) -> None:
    """The received file is put in place unverified."""

    def begin_only(file: Any) -> SnapshotMeta:
        return decode_snapshot(file.read, file.size)[0]

    patch.setattr(store, "verify_snapshot", begin_only)


def covered_is_never_said(patch: Patch) -> None:
    patch.setattr(RaftCore, "covers", lambda _self, _index, _term: None)


def install_clears(patch: Patch) -> None:
    """pysyncobj's way: the log is cleared, with all entries after the snapshot's."""

    def reset(self: RaftLog, index: int, term: int, voters: VoterSet) -> None:
        self._log = [(BASE_COMMAND, index, term)]
        self._base = self.durable_index = index
        self._voter_sets = [(index, voters)]
        self._commit_index = max(self._commit_index, index)
        self._pending.append(VoteRecord(self._term, self._vote))
        self.lsn += 1
        self._rewrite_lsn = self.lsn

    patch.setattr(RaftLog, "reset", reset)


def failed_load_is_installed(patch: Patch) -> None:
    """pysyncobj's way: a snapshot with a load failure is logged, and acknowledged."""
    install = SnapshotManager._install

    async def install_anyway(self: SnapshotManager, meta: SnapshotMeta) -> None:
        restore = self._state_machine.restore

        def forgiving(index: int, pieces: Any) -> Any:
            try:
                return restore(index, pieces)
            except ValueError:
                return lambda: None

        patch.setattr(self._state_machine, "restore", forgiving)
        await install(self, meta)

    patch.setattr(SnapshotManager, "_install", install_anyway)


# Voters


def voters_count_from_commit(patch: Patch) -> None:
    """A voter set is in force from its commit on, not from its append on."""
    set_commit_index = RaftLog.setRaftCommitIndex

    def in_force(self: RaftLog) -> VoterSet:
        return self.voters_at(max(self._base, self._commit_index))

    def moved(self: RaftLog, index: int) -> None:
        before = self.voters
        set_commit_index(self, index)
        self._notify_if_changed(before)

    patch.setattr(RaftLog, "voters", property(in_force))
    patch.setattr(RaftLog, "setRaftCommitIndex", moved)


def changes_at_any_time(patch: Patch) -> None:
    """Any leader changes voters, whatever of its log is committed."""

    def check(self: VoterChanges) -> None:
        if not self.core.is_leader:
            raise LogError(NO_CONTROLLER)

    patch.setattr(VoterChanges, "_check_may_change", check)


def strangers_are_let_in(patch: Patch) -> None:
    """No member compares the data directory of a node."""
    patch.setattr(peers, "check_hello", lambda *_arguments, **_options: None)


# The member


def replaced_entries_are_acknowledged(patch: Patch) -> None:
    """Any entry applied at a request's index counts as the request's own."""
    applied = PendingProposals.applied

    def of_any_term(self: PendingProposals[Any], index: int, _term: int, result: Any) -> None:
        for term in {term for term, _ in self._in_log.get(index, ())}:
            applied(self, index, term, result)

    patch.setattr(PendingProposals, "applied", of_any_term)


def leadership_is_not_confirmed(patch: Patch) -> None:
    """A leader answers its commit index without a confirmation."""
    patch.setattr(RaftCore, "is_confirmed", lambda _self, _after: True)


def late_answers_confirm(patch: Patch) -> None:
    """An answer confirms as of its arrival, not as of when the append had left."""
    answered = Confirmations.answered

    def as_of_now(self: Confirmations, peer: int, sequence: int) -> None:
        newest = max(self._sent, default=0)
        is_known = sequence in self._sent
        answered(self, peer, sequence)
        if is_known:
            self._newest[peer] = newest

    patch.setattr(Confirmations, "answered", as_of_now)


def request_ids_restart(patch: Patch) -> None:
    """pysyncobj's way: each life counts its requests from the beginning."""
    patch.setattr(proposal_router, "PendingProposals", lambda _first: PendingProposals(0))


def exceptions_are_swallowed(patch: Patch) -> None:
    """pysyncobj's own thread: log the exception, and go on."""
    apply = RaftMember.apply

    def forgiving(self: RaftMember[Any], index: int, term: int, command: bytes) -> None:
        try:
            apply(self, index, term, command)
        except ValueError:
            return

    patch.setattr(RaftMember, "apply", forgiving)


def pickle_is_back(patch: Patch) -> None:
    patch.setattr(importlib.import_module(kernel._COPY), "pickle", pickle)
