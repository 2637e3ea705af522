"""Small requests that arrive together share one record batch and one append.

A batch of one record costs its header on disk and in every read, and a separate append. Thirty
writers of single records would make thirty of each at a time. So the batcher collects the records
of small requests during one iteration of the event loop. This delays no request, because all
requests of one iteration have arrived already.

The promise to each request stays. Its records of one partition are appended in one call, whole or
not at all, next to each other and in order, and its outcome is the outcome of that call. Only
requests with the same acks and timeout share a batch. Requests with sequence numbers never do,
because a producer's sequence identifies a batch.

A request with records that the log refuses fails alone. A request without keys never shares an
append to a compacted topic. Where a shared append is refused for its records, each request is
appended separately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from raftlog.record.batch import RecordBatch
from raftlog.record.codec import RecordTuple
from raftlog.record.errors import (
    CORRUPT_BATCH,
    INVALID_BODY,
    MALFORMED_BATCH,
    RECORD_TOO_LARGE,
    LogError,
)
from raftlog.replication.partition import Acks
from raftlog.routing.handle import PartitionHandle

REQUEST_BYTES_MAX: Final = 16 * 1024
"""Largest request that shares a batch. A larger one fills a batch well by itself."""
RECORD_OVERHEAD_BYTES: Final = 64
"""Upper bound of a record's size in a batch besides its key, value and headers."""

REFUSED_FOR_RECORDS: Final = frozenset(
    {INVALID_BODY, CORRUPT_BATCH, MALFORMED_BATCH, RECORD_TOO_LARGE}
)
"""Errors of an append that depend on its records. Nothing was written."""

Pack: TypeAlias = Callable[[Sequence[RecordTuple], int], list[RecordBatch]]
"""Packs records into batches of at most so many bytes."""
_Key: TypeAlias = tuple[PartitionHandle, Acks, float]


@dataclass(frozen=True, slots=True)
class Placed:
    """Consecutive offsets of a request's records, from `base_offset`."""

    base_offset: int
    log_append_time_ms: int


@dataclass(slots=True)
class _Shared:
    """The requests that share the next append to one partition."""

    records: list[RecordTuple] = field(default_factory=list)
    waiters: list[tuple[int, asyncio.Future[Placed]]] = field(default_factory=list)
    """Index of each request's first record, and the request's future."""

    def requests(self) -> Iterator[tuple[Sequence[RecordTuple], asyncio.Future[Placed]]]:
        """The records and the future of each request."""
        ends = [start for start, _ in self.waiters[1:]] + [len(self.records)]
        for (start, future), end in zip(self.waiters, ends, strict=True):
            yield self.records[start:end], future


class SmallRequestBatcher:
    """Collects the records of small requests by partition, acks and timeout."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._open: dict[_Key, _Shared] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def append(
        self,
        partition: PartitionHandle,
        records: Sequence[RecordTuple],
        *,
        acks: Acks,
        timeout_s: float,
    ) -> asyncio.Future[Placed]:
        """Append records together with other requests'. Fails as `PartitionHandle.append` does."""
        loop = asyncio.get_running_loop()
        key = (partition, acks, timeout_s)
        if partition.is_compacted and any(record[1] is None for record in records):
            return self._append_alone(key, records, loop.create_future())
        shared = self._open.get(key)
        if shared is None:
            shared = self._open[key] = _Shared()
            loop.call_soon(self._flush, key)
        future: asyncio.Future[Placed] = loop.create_future()
        shared.waiters.append((len(shared.records), future))
        shared.records += records
        return future

    def _append_alone(
        self, key: _Key, records: Sequence[RecordTuple], future: asyncio.Future[Placed]
    ) -> asyncio.Future[Placed]:
        self._begin(key, _Shared(list(records), [(0, future)]))
        return future

    def _flush(self, key: _Key) -> None:
        self._begin(key, self._open.pop(key))

    def _begin(self, key: _Key, shared: _Shared) -> None:
        task = asyncio.get_running_loop().create_task(self._append(key, shared))
        # The loop keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _append(self, key: _Key, shared: _Shared) -> None:
        partition, acks, timeout_s = key
        is_packed = False
        try:
            batches = self._pack(shared.records, partition.max_message_bytes)
            is_packed = True
            results = await partition.append(batches, acks=acks, timeout_s=timeout_s)
            base_offset, append_time_ms = results[0].base_offset, results[0].log_append_time_ms
            assert results[-1].last_offset == base_offset + len(shared.records) - 1, (
                "the batches of one append are not next to each other"
            )
        except BaseException as error:
            is_refused = isinstance(error, LogError) and error.entry in REFUSED_FOR_RECORDS
            if len(shared.waiters) > 1 and (
                is_refused or (not is_packed and isinstance(error, Exception))
            ):
                for records, future in shared.requests():
                    self._append_alone(key, records, future)
                return
            if not _fail(shared, error) or not isinstance(error, Exception):
                raise
            return
        for index, future in shared.waiters:
            if not future.done():
                future.set_result(Placed(base_offset + index, append_time_ms))


def _fail(shared: _Shared, error: BaseException) -> bool:
    """Fail the futures that are still pending. Returns whether any was pending."""
    is_delivered = False
    for _, future in shared.waiters:
        if not future.done():
            is_delivered = True
            # Separate, because an exception raised in many tasks collects all their tracebacks.
            own = LogError(error.entry, error.message) if isinstance(error, LogError) else error
            future.set_exception(own)
    return is_delivered
