"""Sends snapshots from a leader to a peer without the entries before its log.

The sender reads its snapshot file in chunks and waits for the response to each. The receiver
responds with the number of bytes it has, so that after a lost chunk, another connection or another
leader the sender only continues from elsewhere. Until then, chunks without data are the leader's
heartbeats. The received file is verified as a whole before it is put in place. No chunk moves a
commit index.

Reading and writing happen off the event loop. A chunk is either under way or being written, never
both.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from raftlog.raft.core import RaftCore
from raftlog.raft.log.store import QuorumStore, ReceivedSnapshotError, SnapshotReader
from raftlog.raft.messages import CHUNK_BYTES_MAX, Message, SnapshotAnswer, SnapshotChunk
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.world import Clock, Disk, DiskFullError, Wakeup

CHUNK_RESEND_S: Final = 1.0
"""Seconds after which a chunk without a response is sent again."""

logger = logging.getLogger(__name__)

Send = Callable[[int, Message], None]


class SnapshotSender:
    """Sends this member's snapshot to one peer, for as long as the peer needs it."""

    def __init__(
        self,
        peer: int,
        *,
        core: RaftCore,
        store: QuorumStore,
        disk: Disk,
        clock: Clock,
        send: Send,
        chunk_bytes: int = CHUNK_BYTES_MAX,
    ) -> None:
        self._peer = peer
        self._core = core
        self._store = store
        self._disk = disk
        self._clock = clock
        self._send = send
        self._chunk_bytes = chunk_bytes
        self._reader: SnapshotReader | None = None
        self._position = 0
        self._answered = Wakeup(clock)

    async def run(self) -> None:
        """Send chunks until the task is cancelled (the peer has all, or its connection ended)."""
        self._reader = await self._disk.run(self._store.open_snapshot)
        if self._reader is None:
            return
        try:
            while True:
                await self._send_chunk(self._reader)
                await self._answer_or_timeout()
        finally:
            self._reader.close()
            self._reader = None

    @property
    def index(self) -> int | None:
        """The last entry of the snapshot being sent, or None before it is open."""
        return None if self._reader is None else self._reader.meta.index

    def send_heartbeat(self) -> None:
        """Send the leader's heartbeat to the peer, which responds with its position."""
        if self._reader is not None:
            self._send_part(self._reader, self._reader.size, b"")

    def received(self, answer: SnapshotAnswer) -> None:
        """Handle the peer's response, which is its position."""
        reader = self._reader
        if reader is None or (answer.index, answer.last_term) != (
            reader.meta.index,
            reader.meta.term,
        ):
            return
        # The same position again responds to a heartbeat, while the chunk is still under way.
        if answer.position != self._position:
            self._position = min(answer.position, reader.size)
            self._answered.set()

    async def _send_chunk(self, reader: SnapshotReader) -> None:
        position = self._position
        if position < reader.size:
            data = await self._disk.run(lambda: reader.read(position, self._chunk_bytes))
            self._send_part(reader, position, data)

    async def _answer_or_timeout(self) -> None:
        # A response that came while the chunk was read does not belong to it.
        self._answered = Wakeup(self._clock)
        await self._answered.wait(self._clock.monotonic() + CHUNK_RESEND_S)

    def _send_part(self, reader: SnapshotReader, position: int, data: bytes) -> None:
        core, meta = self._core, reader.meta
        self._send(
            self._peer,
            SnapshotChunk(
                term=core.term,
                index=meta.index,
                last_term=meta.term,
                position=position,
                size=reader.size,
                data=data,
            ),
        )


@dataclass(slots=True)
class _Stream:
    """The snapshot being received, with its sender, entry, size and bytes so far."""

    peer: int
    index: int
    last_term: int
    size: int
    position: int = 0

    def is_of(self, peer: int, chunk: SnapshotChunk) -> bool:
        """Whether a chunk belongs to this stream."""
        return (peer, chunk.index, chunk.last_term, chunk.size) == (
            self.peer,
            self.index,
            self.last_term,
            self.size,
        )


class SnapshotReceiver:
    """Receives a leader's snapshot, and installs it."""

    def __init__(
        self,
        *,
        core: RaftCore,
        store: QuorumStore,
        disk: Disk,
        send: Send,
        install: Callable[[SnapshotMeta], Awaitable[None]],
    ) -> None:
        self._core = core
        self._store = store
        self._disk = disk
        self._send = send
        self._install = install
        self._stream: _Stream | None = None
        self._is_busy = False

    async def received(self, peer: int, chunk: SnapshotChunk) -> None:
        """Handle a chunk or a heartbeat from a leader.

        Raises DiskError and LogError, which are final.
        """
        core = self._core
        if core.heard_leader(peer, chunk.term) and not self._is_busy:
            covered = core.covers(chunk.index, chunk.last_term)
            if covered is not None:
                core.answer_covered(peer, covered)
                return
            self._is_busy = True
            try:
                await self._append(peer, chunk)
            except DiskFullError as error:
                # The leader sends the same chunk again, until there is room.
                logger.error(
                    "disk full, the leader's metadata snapshot waits for free space: %s", error
                )
            finally:
                self._is_busy = False
        self._answer(peer, chunk)

    async def _append(self, peer: int, chunk: SnapshotChunk) -> None:
        if self._stream is None or not self._stream.is_of(peer, chunk):
            # An unfinished file of another stream is dropped, begun or not.
            self._stream = None
            await self._disk.run(self._store.begin_received)
            self._stream = _Stream(peer, chunk.index, chunk.last_term, chunk.size)
        stream = self._stream
        if not chunk.data or chunk.position != stream.position:
            return
        try:
            await self._disk.run(lambda: self._store.append_received(chunk.data))
            stream.position += len(chunk.data)
            if stream.position >= stream.size:
                await self._finish()
        except ReceivedSnapshotError as error:
            self._stream = None
            logger.error(
                "metadata snapshot from node %d is damaged (%s), requesting it again", peer, error
            )

    async def _finish(self) -> None:
        try:
            meta = await self._disk.run(self._store.finish_received)
            if meta is not None:
                await self._install(meta)
        finally:
            self._stream = None

    def _answer(self, peer: int, chunk: SnapshotChunk) -> None:
        """Respond with this stream's position. An installed snapshot is acknowledged as covered."""
        core = self._core
        covered = core.covers(chunk.index, chunk.last_term)
        if covered is not None and chunk.term == core.term:
            core.answer_covered(peer, covered)
            return
        stream = self._stream
        position = stream.position if stream is not None and stream.is_of(peer, chunk) else 0
        self._send(peer, SnapshotAnswer(core.term, chunk.index, chunk.last_term, position))
