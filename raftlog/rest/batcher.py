"""Small requests that arrive together share one record batch and one append.

A batch of one record costs its header on disk and in every read, and an append of its own; thirty
writers of single records would make thirty of them at a time. So the records of small requests are
gathered for as long as one iteration of the event loop takes, which delays nobody: the requests in
it had all arrived already.

What a request is promised stays: its records of one partition are appended in one call, whole or
not at all, next to each other and in order, and it is answered by what became of that call. Only
requests that want the same acks and timeout share. Those that carry sequence numbers never do: a
batch is what a producer's sequence identifies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from raftlog.record.batch import RecordBatch
from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks
from raftlog.rest.json_records import StoredRecord
from raftlog.routing.handle import PartitionHandle

REQUEST_BYTES_MAX = 16 * 1024
"""Largest request that shares. A larger one fills a batch well by itself."""
RECORD_OVERHEAD_BYTES = 64
"""More than a record takes in a batch besides its key, value and headers."""

Pack: TypeAlias = Callable[[Sequence[StoredRecord], int], list[RecordBatch]]
"""Packs records into batches of at most so many bytes."""
_Key: TypeAlias = tuple[PartitionHandle, Acks, float]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a request's records went: consecutive offsets from `base_offset` on."""

    base_offset: int
    log_append_time_ms: int


@dataclass(slots=True)
class _Gathering:
    pack: Pack
    records: list[StoredRecord] = field(default_factory=list)
    waiting: list[tuple[int, asyncio.Future[Placed]]] = field(default_factory=list)
    """Index of each request's first record, and who waits for it."""


class SmallRequestBatcher:
    """Gathers the records of small requests by partition, acks and timeout."""

    def __init__(self) -> None:
        self._open: dict[_Key, _Gathering] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def append(
        self,
        partition: PartitionHandle,
        records: Sequence[StoredRecord],
        *,
        acks: Acks,
        timeout_s: float,
        pack: Pack,
    ) -> asyncio.Future[Placed]:
        """Append records with those of others; the future fails as `Partition.append` does."""
        loop = asyncio.get_running_loop()
        key = (partition, acks, timeout_s)
        gathering = self._open.get(key)
        if gathering is None:
            gathering = self._open[key] = _Gathering(pack)
            loop.call_soon(self._flush, key)
        future: asyncio.Future[Placed] = loop.create_future()
        gathering.waiting.append((len(gathering.records), future))
        gathering.records += records
        return future

    def _flush(self, key: _Key) -> None:
        gathering = self._open.pop(key)
        task = asyncio.get_running_loop().create_task(_append(key, gathering))
        # The loop keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _append(key: _Key, gathering: _Gathering) -> None:
    partition, acks, timeout_s = key
    try:
        batches = gathering.pack(gathering.records, partition.max_message_bytes)
        results = await partition.append(batches, acks=acks, timeout_s=timeout_s)
        base_offset, append_time_ms = results[0].base_offset, results[0].log_append_time_ms
        assert results[-1].last_offset == base_offset + len(gathering.records) - 1, (
            "the batches of one append are not next to each other"
        )
    except BaseException as error:
        if not _fail(gathering, error) or not isinstance(error, Exception):
            raise
        return
    for index, future in gathering.waiting:
        if not future.done():
            future.set_result(Placed(base_offset + index, append_time_ms))


def _fail(gathering: _Gathering, error: BaseException) -> bool:
    """Give the error to all who wait; return whether there was anyone."""
    told = False
    for _, future in gathering.waiting:
        if not future.done():
            told = True
            # Each its own: an exception raised in many tasks collects all their tracebacks.
            own = LogError(error.entry, error.message) if isinstance(error, LogError) else error
            future.set_exception(own)
    return told
