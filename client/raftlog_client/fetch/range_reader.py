"""Reads one range of one partition as stored bytes, for callers with their own decoder.

A range always gives the same records, from `start` up to the exclusive `end`, wherever the
partition is led. Each chunk starts at the end of the previous chunk. The first and the last batch
are whole, so records outside the range may come with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from raftlog.api.records import FetchPartition, FetchRequest, Isolation
from raftlog.record.errors import OFFSET_OUT_OF_RANGE, STORAGE_FAILED, UNKNOWN_TOPIC, LogError
from raftlog.record.frames import FetchFrame
from raftlog.record.header import parse_header
from raftlog.record.types import AbortedTransaction, Offset
from raftlog_client.errors import (
    ConnectionLostError,
    RaftlogClientError,
    RecordsGoneError,
    ServerError,
    TopicChangedError,
    TopicNotFoundError,
    server_error,
)
from raftlog_client.fetch.protocol import BufferPool, FetchConnectionPool
from raftlog_client.metadata import UNKNOWN_TOPIC_ATTEMPTS, ClusterMetadata
from raftlog_client.routing import SLOW_S, LeaderCalls
from raftlog_client.transport import NodeAddress
from raftlog_client.types import TopicPartition

WAIT_MS: Final = 500
"""Milliseconds that a node waits for missing records of the range. They were committed once, so a
new leader is about to receive them."""
WAIT_SHARE_MAX: Final = 0.5
"""Most of the remaining time that a node may wait."""
ATTEMPT_S_MIN: Final = 1.0
"""Shortest seconds of an attempt, so that the caller gets the error of the last."""
FIRST_BUFFER_BYTES: Final = 256 * 1024
GROWTH: Final = 4
BUFFERS_KEPT_MAX: Final = 3
"""Most buffers kept. The caller has the first, the second is ready, the third is being filled."""

logger = logging.getLogger("raftlog_client")


class RangeChunk(NamedTuple):
    """Whole batches in order, as stored."""

    data: memoryview
    """Bytes of the batches. May be empty, because compaction leaves offsets without records."""
    next_offset: int
    """Offset below which all records of the range have been given."""
    aborted: Sequence[AbortedTransaction] = ()
    """Transactions whose records in `data` must be skipped, with read_committed."""


class _Buffer:
    """Memory for the data of one response's frames, stored contiguously."""

    __slots__ = ("_buffers", "_bytes_max", "_data", "_taken")

    def __init__(self, buffers: BufferPool, first_bytes: int, bytes_max: int) -> None:
        self._buffers = buffers
        self._data = memoryview(buffers.get(first_bytes))
        self._bytes_max = bytes_max
        self._taken = 0

    @property
    def taken_bytes(self) -> int:
        return self._taken

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def allocate(self, size: int) -> memoryview:
        """Return memory for the next frame's data. Memory given before is full."""
        end = self._taken + size
        if end > len(self._data):
            # Rare, because a chunk starts with the size of the previous chunk. The last batch may
            # exceed the request by any size.
            size_bytes = max(end + end // 8, min(GROWTH * end, self._bytes_max))
            grown = memoryview(self._buffers.get(size_bytes))
            grown[: self._taken] = self._data[: self._taken]
            self._data = grown
        view = self._data[self._taken : end]
        self._taken = end
        return view

    def first(self, size: int) -> memoryview:
        """Return the first bytes, permanently."""
        return self._data[:size].toreadonly()


class _Answer:
    """Frames of one fetch. If the response is cut off, its whole frames still count."""

    def __init__(self, offset: int, buffer: _Buffer) -> None:
        self.buffer = buffer
        self.offset = self.next_offset = offset
        self.size_bytes = 0
        self.log_start_offset = -1
        self.aborted: dict[AbortedTransaction, None] = {}
        """Aborted transactions of all whole frames. A transaction may be in several lists."""
        self.error: RaftlogClientError | None = None

    def begin(self, frame: FetchFrame, size_bytes: int) -> memoryview:
        """Return memory for a frame's data. Satisfies `FrameSink`."""
        if frame.error_code or self.error is not None:
            return memoryview(bytearray(size_bytes))
        return self.buffer.allocate(size_bytes)

    def end(self, frame: FetchFrame, data: memoryview) -> None:
        """Take the whole frame."""
        self.log_start_offset = frame.log_start_offset
        if frame.error_code:
            self.error = server_error(frame.error_code, bytes(data).decode(errors="replace"))
        elif self.error is None:
            self.size_bytes += len(data)
            self.aborted.update(dict.fromkeys(frame.aborted))
            self.next_offset = max(self.next_offset, frame.next_offset)

    def chunk(self) -> RangeChunk | None:
        """Return the received frames as a chunk, or None without progress."""
        if self.next_offset <= self.offset:
            return None
        return RangeChunk(self.buffer.first(self.size_bytes), self.next_offset, tuple(self.aborted))


class RangeReader:
    """Reads one range in chunks. Not for several tasks at once."""

    def __init__(
        self,
        fetcher: FetchConnectionPool,
        metadata: ClusterMetadata,
        source: TopicPartition,
        *,
        topic_id: str,
        start: int,
        end: int,
        chunk_bytes: int,
        isolation: Isolation = "read_uncommitted",
    ) -> None:
        """`chunk_bytes` is about the size of a chunk. Only a single larger batch exceeds it.

        With read_committed, chunks name the aborted transactions in their data, and a range up to
        an `end` beyond the last stable offset is waited for.
        """
        self.offset = start
        """Start of the next chunk."""
        self._end = end
        self._fetcher = fetcher
        self._metadata = metadata
        self._leaders = LeaderCalls(metadata)
        self._source = source
        self._topic_id = topic_id
        self._chunk_bytes = chunk_bytes
        self._isolation: Isolation = isolation
        self._buffer_bytes = min(FIRST_BUFFER_BYTES, chunk_bytes)
        self._buffers = BufferPool(BUFFERS_KEPT_MAX)
        self._is_stale = False
        self._times_changed = 0
        """Consecutive metadata responses without the topic, or with another topic of its name."""

    async def next(self) -> RangeChunk | None:
        """Return the next chunk, or None at the end of the range.

        Retries up to the request timeout while the partition has no leader or the leader does not
        respond. Raises RecordsGoneError, TopicChangedError, or the last error.
        """
        if self.offset >= self._end:
            return None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._metadata.request_timeout_s
        attempt = 0
        while True:
            try:
                chunk = await self._attempt(max(deadline - loop.time(), ATTEMPT_S_MIN))
            except RaftlogClientError as error:
                delay_s = self._metadata.backoff.delay_s(attempt)
                if not self._may_pass(error) or loop.time() + delay_s >= deadline:
                    raise
                logger.info("%s-%d cannot be read: %s", *self._source, error)
            else:
                self.offset = chunk.next_offset
                return chunk
            attempt += 1
            self._is_stale = True
            await asyncio.sleep(delay_s)

    async def _attempt(self, timeout_s: float) -> RangeChunk:
        topic, partition = self._source
        await self._look()
        address = self._metadata.leader_address(topic, partition)
        if address is None:
            raise ConnectionLostError(
                f"{topic}-{partition} has no leader at the moment.", outcome_unknown=False
            )
        answer = _Answer(self.offset, _Buffer(self._buffers, self._buffer_bytes, self._chunk_bytes))
        error: RaftlogClientError | None = None
        try:
            await self._fetch(address, answer, timeout_s)
        except RaftlogClientError as failure:
            if isinstance(failure, ConnectionLostError):
                self._metadata.suspect(address)
            self._is_stale = True
            error = failure
        chunk = answer.chunk()
        if chunk is not None:
            self._check_start(chunk, answer)
            if len(chunk.data) > self._buffer_bytes // 2:
                self._buffer_bytes = answer.buffer.size_bytes
            return chunk
        error = answer.error or error
        if error is None:
            error = ConnectionLostError(
                f"{address} has nothing of {topic}-{partition} from offset {self.offset} on; "
                f"wanted is what stands before {self._end}.",
                outcome_unknown=False,
            )
        is_out_of_range = isinstance(error, ServerError) and error.entry is OFFSET_OUT_OF_RANGE
        if is_out_of_range and self.offset < answer.log_start_offset:
            raise self._gone(answer.log_start_offset)
        raise error

    async def _look(self) -> None:
        """Check the topic id in the metadata, after a refresh if stale."""
        topic = self._source.topic
        if self._is_stale or topic not in self._metadata.view.topics:
            self._is_stale = False
            await self._metadata.refresh((topic,))
        known = self._metadata.view.topics.get(topic)
        if known is not None and known.topic_id == self._topic_id:
            self._times_changed = 0
            return
        found = None if known is None else known.topic_id
        self._times_changed += 1
        if self._times_changed >= UNKNOWN_TOPIC_ATTEMPTS:
            what = "does not exist any more" if found is None else f"is another one now, {found}"
            raise TopicChangedError(
                f"Topic {topic!r} of id {self._topic_id} {what}.",
                topic=topic,
                topic_id=self._topic_id,
                found_id=found,
            )
        # The responding node may be behind the others.
        raise TopicNotFoundError(UNKNOWN_TOPIC, f"Topic {topic!r} of that id is not known.")

    async def _fetch(self, address: NodeAddress, answer: _Answer, timeout_s: float) -> None:
        """Fill the response. A silent node is abandoned once another node leads."""
        part = FetchPartition(
            self._source.topic,
            self._source.partition,
            Offset(self.offset),
            max_bytes=self._chunk_bytes,
            end_offset=Offset(self._end),
            topic_id=self._topic_id,
        )
        request = FetchRequest(
            [part],
            max_bytes=self._chunk_bytes,
            # The node must respond before this reader stops listening.
            max_wait_ms=int(min(WAIT_MS, timeout_s * 1000 * WAIT_SHARE_MAX)),
            isolation=self._isolation,
        )
        call = self._leaders.follow(
            address,
            (self._source,),
            patience_s=SLOW_S + WAIT_MS / 1000,
            progress=lambda: answer.buffer.taken_bytes,
        )
        with call:
            await self._fetcher.fetch(address, msgspec.json.encode(request), answer, timeout_s)

    def _check_start(self, chunk: RangeChunk, answer: _Answer) -> None:
        """Raise if retention deleted records of the range during the fetch. These are no gap."""
        first = self.offset
        if chunk.data:
            try:
                first = parse_header(chunk.data).base_offset
            except LogError as error:
                raise ConnectionLostError(
                    f"{self._source.topic}-{self._source.partition}: what a node sent from offset "
                    f"{self.offset} on is no record batch: {error}",
                    outcome_unknown=False,
                ) from error
        elif answer.log_start_offset > self.offset:
            raise self._gone(answer.log_start_offset)
        if first > self.offset and answer.log_start_offset > self.offset:
            raise self._gone(answer.log_start_offset)

    def _gone(self, log_start_offset: int) -> RecordsGoneError:
        topic, partition = self._source
        return RecordsGoneError(
            f"{topic}-{partition}: the records from offset {self.offset} on were deleted; the "
            f"first that can be read has offset {log_start_offset}.",
            topic=topic,
            partition=partition,
            offset=self.offset,
            log_start_offset=log_start_offset,
        )

    def _may_pass(self, error: RaftlogClientError) -> bool:
        """Return whether another leader, or the same leader later, may succeed."""
        if isinstance(error, RecordsGoneError | TopicChangedError):
            return False
        if isinstance(error, ServerError):
            return (
                error.retriable
                or error.entry.refresh_metadata
                # A deposed leader that does not know its successor lacks the records committed
                # since.
                or error.entry is OFFSET_OUT_OF_RANGE
                or (error.entry is STORAGE_FAILED and self._metadata.is_replicated(*self._source))
            )
        return error.retriable
