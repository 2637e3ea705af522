"""The catch-up reader of one session: reads the log for streams that are behind, round-robin.

It also sends `Restart`, as the producers in it may be long.

The reader waits while the window is full, while the throttle holds all streams that are behind, or
while no stream is behind. Chunks wait for room in the connection: a batch longer than a message
goes in pieces, which the window does not bound.

`Throttle` bounds the bytes per second sent to replicas that a reassignment adds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from raftlog.record.errors import RETRIABLE, LogError
from raftlog.record.types import Buffer, LeaderEpoch, Offset
from raftlog.replication.stream_protocol import (
    CONTINUES,
    MORE,
    PRODUCERS_BYTES_MAX,
    PRODUCERS_PIECE_BYTES,
    Restart,
)
from raftlog.world import Clock, Wakeup

if TYPE_CHECKING:
    from raftlog.replication.stream_session import PartitionStream, StreamSession


class CatchUpReader:
    """The only task that reads for a session."""

    def __init__(self, session: StreamSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._wakeup = Wakeup(clock)
        self._held: OrderedDict[int, PartitionStream] = OrderedDict()
        """Streams to replicas in addition, while the throttle holds them."""
        self._held_until_s = 0.0
        self._is_waiting_for_window = False

    def window_moved(self) -> None:
        """Wake the reader if it waits for the window."""
        if self._is_waiting_for_window:
            self._wakeup.set()

    def wake(self) -> None:
        """Wake the reader: one more stream is behind."""
        self._wakeup.set()

    async def run(self) -> None:
        """Read and send, until cancelled."""
        while True:
            self._is_waiting_for_window = self._is_window_full()
            stream = None if self._is_waiting_for_window else self._next()
            if self._is_waiting_for_window:
                await self._wakeup.wait(None)
            elif stream is None:
                await self._wakeup.wait(self._held_until_s if self._held else None)
            else:
                await self._push(stream)
                # A read from memory never waits: let other tasks run.
                await self._clock.sleep(0)

    def _is_window_full(self) -> bool:
        settings = self._session.settings
        return self._session.bytes_in_flight + settings.chunk_bytes > settings.window_bytes

    def _next(self) -> PartitionStream | None:
        """The next stream to read for, taken from the queue; None: wait."""
        session = self._session
        behind = session.behind
        if self._held and self._clock.monotonic() >= self._held_until_s:
            behind.update(self._held)
            self._held.clear()
        while behind:
            handle, stream = behind.popitem(last=False)
            if stream.is_ended:
                continue
            if session.broker_id in stream.replica.image.adding:
                wait_s = session.throttle.wait_s()
                if wait_s > 0:
                    self._held[handle] = stream
                    self._held_until_s = self._clock.monotonic() + wait_s
                    continue
            return stream
        return None

    async def _push(self, stream: PartitionStream) -> None:
        """Send one chunk; then the stream is live, queued again, or ended."""
        if stream.restart is not None:
            await self._restart(stream, *stream.restart)
            return
        session = self._session
        error = await self._read(stream)
        if stream.is_ended:
            return
        if error is not None:
            stream.detach()
            session.refuse(stream, error)
        elif stream.read_offset == stream.replica.log_end_offset:
            # No append can come in between: appends happen in the event loop.
            stream.is_behind = False
        else:
            session.behind[stream.handle] = stream

    async def _restart(
        self, stream: PartitionStream, offset: Offset, leader_epoch: LeaderEpoch
    ) -> None:
        """Send the follower a restart at `offset`."""
        session = self._session
        try:
            producers = stream.replica.require_leader().producers_below(
                offset, leader_epoch=leader_epoch
            )
        except LogError as error:
            session.refuse(stream, error)
            return
        assert len(producers) <= PRODUCERS_BYTES_MAX, "the storage remembers fewer"
        if session.broker_id in stream.replica.image.adding:
            session.throttle.took(len(producers))
        start = 0
        while await self._has_room(stream):
            end = start + PRODUCERS_PIECE_BYTES
            has_more = end < len(producers)
            session.send(Restart(stream.handle, offset, producers[start:end], has_more))
            if not has_more:
                session.restarted(stream)
                return
            start = end

    async def _read(self, stream: PartitionStream) -> LogError | None:
        """Read a chunk and send it. Returns an error that ends the stream."""
        offset = stream.read_offset
        if offset == stream.replica.log_end_offset:
            return None
        try:
            result = await stream.replica.require_leader().read_uncommitted(
                offset, max_bytes=self._session.settings.chunk_bytes
            )
        except LogError as error:
            return error
        if stream.is_ended:
            return None
        if result.data:
            await self._send(stream, result.next_offset, result.data)
        elif result.next_offset > offset:
            # Compaction has removed the whole range. The next batch shows the gap by its offset.
            stream.read_offset = result.next_offset
        else:
            return LogError(RETRIABLE, f"No batch could be read at offset {offset}.")
        return None

    async def _has_room(self, stream: PartitionStream) -> bool:
        """Wait until the connection takes more; False if the stream has ended meanwhile.

        The window does not bound the connection's queue: it counts no bytes of ended streams.
        """
        session = self._session
        while session.connection.queued_bytes > session.settings.queued_bytes_max:
            await self._clock.sleep(session.settings.pace_s)
        return not stream.is_ended

    async def _send(self, stream: PartitionStream, next_offset: Offset, data: Buffer) -> None:
        session = self._session
        size_bytes = len(data)
        if session.broker_id in stream.replica.image.adding:
            session.throttle.took(size_bytes)
        piece_bytes = session.settings.piece_bytes
        if size_bytes <= piece_bytes:
            if await self._has_room(stream):
                session.send_data(stream, next_offset, (data,), size_bytes)
            return
        view = memoryview(data)
        for start in range(0, size_bytes, piece_bytes):
            if not await self._has_room(stream):
                return
            piece = view[start : start + piece_bytes]
            flags = CONTINUES if start else 0
            if start + piece_bytes < size_bytes:
                flags |= MORE
            session.send_data(stream, next_offset, (piece,), len(piece), flags)


BURST_S: Final = 0.1
"""Unused tokens are kept for this time."""
WAIT_S_MIN: Final = 0.001
WAIT_S_MAX: Final = 0.5
"""Longest wait before the next check: the rate may have been raised."""


class Throttle:
    """A token bucket. A chunk may overdraw it, as its length is known only after the read."""

    def __init__(self, clock: Clock, bytes_per_s: Callable[[], int]) -> None:
        """`bytes_per_s` is called each time; 0 is no bound."""
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._tokens = 0.0
        self._as_of_s = clock.monotonic()

    def wait_s(self) -> float:
        """Time until the next check; 0: the next chunk may be sent now."""
        rate = self._bytes_per_s()
        if rate <= 0:
            return 0.0
        now_s = self._clock.monotonic()
        earned = (now_s - self._as_of_s) * rate
        self._tokens = min(self._tokens + earned, rate * BURST_S)
        self._as_of_s = now_s
        if self._tokens >= 0:
            return 0.0
        return min(max(-self._tokens / rate, WAIT_S_MIN), WAIT_S_MAX)

    def took(self, size_bytes: int) -> None:
        """Take the tokens of sent bytes."""
        if self._bytes_per_s() > 0:
            self._tokens -= size_bytes
