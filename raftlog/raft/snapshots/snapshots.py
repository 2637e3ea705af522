"""The snapshots that a member takes of its state, sends to peers and installs.

One job at a time changes the snapshot in place, so taking and installing exclude each other. During
an installation the member handles no other messages (these are lost, which Raft allows), applies
nothing and starts no election.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from raftlog.raft.core import RaftCore
from raftlog.raft.interface import MemberSettings, StateMachine
from raftlog.raft.log.journal_writer import JournalWriter
from raftlog.raft.log.log import RaftLog
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.messages import Message, SnapshotAnswer, SnapshotChunk
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.raft.snapshots.transfer import SnapshotReceiver, SnapshotSender
from raftlog.world import Clock, Disk, DiskFullError

KEPT_SHARE: Final = 4
"""Divisor: the part of the journal's growth that entries kept behind a snapshot may take."""

logger = logging.getLogger(__name__)


class SnapshotManager:
    """Takes, sends and installs a member's snapshots."""

    def __init__(
        self,
        *,
        core: RaftCore,
        log: RaftLog,
        store: QuorumStore,
        disk: Disk,
        clock: Clock,
        settings: MemberSettings,
        state_machine: StateMachine[Any],
        writer: JournalWriter,
        send: Callable[[int, Message], None],
        installed: Callable[[int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._core = core
        self._log = log
        self._store = store
        self._disk = disk
        self._clock = clock
        self._settings = settings
        self._state_machine = state_machine
        self._writer = writer
        self._send = send
        self._installed = installed
        self._failed = failed
        self._receiver = SnapshotReceiver(
            core=core, store=store, disk=disk, send=send, install=self._install
        )
        self._senders: dict[int, tuple[SnapshotSender, asyncio.Task[None]]] = {}
        self._saving: asyncio.Task[None] | None = None
        snapshot = store.snapshot
        self._due_index = settings.snapshot_entries + (0 if snapshot is None else snapshot.index)
        self._due_bytes = settings.snapshot_bytes
        self.is_installing = False

    # Taking

    def snapshot_if_due(self) -> None:
        """Start a snapshot if the log has grown by enough since the last snapshot."""
        if self._saving is not None or self.is_installing:
            return
        snapshot = self._store.snapshot
        if snapshot is not None and self._core.applied_index <= snapshot.index:
            return
        is_due = self._core.applied_index >= self._due_index
        has_grown = self._store.journal_bytes >= self._due_bytes and not self._writer.is_trimming
        if is_due or has_grown:
            self._saving = asyncio.get_running_loop().create_task(
                self._save(), name="quorum-snapshot"
            )
            self._saving.add_done_callback(self._save_done)

    async def _save(self) -> None:
        core, log = self._core, self._log
        index = core.applied_index
        self._due_index = index + self._settings.snapshot_entries
        if index <= log.first_index:
            return
        meta = SnapshotMeta(index, log.term_at(index), log.voters_at(index))
        # Later commands do not change the captured state. Encoding it takes longer.
        encode = self._state_machine.snapshot()
        try:
            await self._disk.run(lambda: self._store.save_snapshot(meta, encode()))
        except DiskFullError:
            logger.error(
                "disk full, no metadata snapshot taken, retrying once the journal has grown"
            )
            self._due_bytes = self._store.journal_bytes + self._settings.snapshot_bytes
            return
        self._trim(index)

    def _trim(self, index: int) -> None:
        """Drop entries covered by the snapshot, but for some that lagging members may need."""
        settings, log = self._settings, self._log
        lowest = max(log.first_index, index - settings.entries_kept)
        # Kept entries must leave room in the journal, or the next snapshot is due at once, for
        # ever.
        kept_bytes = 0
        while index > lowest and kept_bytes <= settings.snapshot_bytes // KEPT_SHARE:
            kept_bytes += len(log.entry(index)[0])
            index -= 1
        if index > log.first_index:
            log.trim(index)
            self._writer.trim()
        self._due_bytes = settings.snapshot_bytes

    def _save_done(self, task: asyncio.Task[None]) -> None:
        self._saving = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # Sending

    def send_to(self, peer: int) -> None:
        """Start to send the snapshot to a peer. Send a heartbeat, if already started."""
        found = self._senders.get(peer)
        if found is not None:
            found[0].send_heartbeat()
            return
        sender = SnapshotSender(
            peer,
            core=self._core,
            store=self._store,
            disk=self._disk,
            clock=self._clock,
            send=self._send,
            chunk_bytes=self._settings.chunk_bytes,
        )
        task = asyncio.get_running_loop().create_task(sender.run(), name=f"quorum-send-{peer}")
        self._senders[peer] = (sender, task)
        task.add_done_callback(lambda task: self._send_done(peer, task))

    def answered(self, peer: int, answer: SnapshotAnswer) -> None:
        """Handle a peer's response to a chunk."""
        found = self._senders.get(peer)
        if found is not None:
            found[0].received(answer)

    def stop_sending_to(self, peer: int) -> None:
        """Stop sending to a peer that is gone or up to date."""
        found = self._senders.pop(peer, None)
        if found is not None:
            found[1].cancel()

    def stop_idle_senders(self) -> None:
        """Stop sending to peers without a need for that snapshot, or with another leader."""
        for peer in sorted(self._senders):
            index = self._senders[peer][0].index
            has_it = index is not None and (self._core.match_index(peer) or 0) >= index
            if has_it or not self._core.needs_snapshot(peer):
                self.stop_sending_to(peer)

    def _send_done(self, peer: int, task: asyncio.Task[None]) -> None:
        found = self._senders.get(peer)
        if found is not None and found[1] is task:
            del self._senders[peer]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # Receiving

    async def received(self, peer: int, chunk: SnapshotChunk) -> None:
        """Handle a leader's chunk. Its errors must end the member."""
        await self._receiver.received(peer, chunk)

    async def _install(self, meta: SnapshotMeta) -> None:
        """Restore the state from a received snapshot, which is in place already."""
        if self._saving is not None:
            await asyncio.wait((self._saving,))
        self.is_installing = True
        try:
            found = await self._disk.run(self._store.read_snapshot)
            assert found is not None
            meta, pieces = found
            if meta.index > self._core.applied_index:
                step = await self._disk.run(lambda: self._state_machine.restore(meta.index, pieces))
                step()
                self._log.reset(meta.index, meta.term, meta.voters)
                self._core.installed(meta.index)
                self._writer.wake()
                self._due_index = meta.index + self._settings.snapshot_entries
                self._installed(meta.index)
                logger.info("installed the leader's snapshot of entry %d", meta.index)
        finally:
            self.is_installing = False

    async def close(self) -> None:
        """Stop sending, and wait for a snapshot that is being taken."""
        for peer in sorted(self._senders):
            self.stop_sending_to(peer)
        if self._saving is not None:
            await asyncio.wait((self._saving,))
