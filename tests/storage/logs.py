"""Batches and logs for the tests of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from raftlog.record.batch import RecordBatch, iterate_batches, split_batches
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    LeaderEpoch,
    Offset,
    PartitionId,
    ProducerEpoch,
    ProducerId,
    TopicId,
)
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.log.core import LogContext
from raftlog.storage.log.log import Log
from raftlog.storage.types import LogConfig
from tests.record.batches import stamped
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk

EPOCH = LeaderEpoch(1)
DIRECTORY = "replica"
TOPIC = TopicId("0123456789abcdef0123456789abcdef")
PARTITION = PartitionId(0)
BATCH_BYTES_MAX = 1 << 24


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = 1000,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    sequence: int = NO_SEQUENCE,
) -> RecordBatch:
    """One batch; its records' timestamps rise by one from `timestamp_ms`."""
    builder = BatchBuilder(
        size_bytes_max=BATCH_BYTES_MAX,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    for number, value in enumerate(values):
        key = None if keys is None else keys[number]
        assert builder.append(timestamp_ms + number, key, value, [])
    return split_batches(builder.build(), max_message_bytes=BATCH_BYTES_MAX)[0]


def new_log(
    disk: SimulatedDisk | None = None,
    config: LogConfig | None = None,
    *,
    checkpoint: ReplicaCheckpoint | None = None,
    start: StartKind = StartKind.CLEAN,
    clock: ManualClock | None = None,
) -> Log:
    """A log in `DIRECTORY` of a simulated disk."""
    disk = disk or SimulatedDisk()
    disk.make_directory(DIRECTORY)
    disk.sync_directory("")

    async def publish() -> None:
        log.published(log.current_checkpoint())

    log = Log.open(
        LogContext(disk, clock or ManualClock()),
        DIRECTORY,
        config or LogConfig(),
        checkpoint=checkpoint,
        start=start,
        publish=publish,
    )
    disk.slow_outside_run.clear()
    return log


async def read_all(log: Log, *, max_bytes: int = 1 << 20) -> list[bytes | None]:
    """The values of all records, checked for offsets without a gap."""
    values: list[bytes | None] = []
    offset = log.log_start_offset
    expected = offset
    while offset < log.log_end_offset:
        result = await log.reader.read(offset, end=log.log_end_offset, max_bytes=max_bytes)
        for found in iterate_batches(result.data):
            if found.header.is_control:
                # A marker takes an offset.
                assert found.header.base_offset == expected
                expected = found.header.next_offset
                values.append(None)
            for record in decode(found, decompressed_bytes_max=BATCH_BYTES_MAX):
                if record.offset >= offset:
                    assert record.offset == expected
                    expected = Offset(expected + 1)
                    values.append(record.value)
        assert result.next_offset > offset
        offset = result.next_offset
    return values


def numbered(values: list[bytes], sequence: int, *, timestamp_ms: int = 1000) -> RecordBatch:
    """A batch of one idempotent producer."""
    return batch(
        list(values),
        timestamp_ms=timestamp_ms,
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(0),
        sequence=sequence,
    )


def sent(*batches: RecordBatch, base_offset: int = 0, epoch: int = EPOCH) -> bytes:
    """The bytes of these batches from a leader of `epoch`, the first at `base_offset`."""
    data = b""
    offset = base_offset
    for one in batches:
        data += b"".join(stamped(one, Offset(offset), LeaderEpoch(epoch)))
        offset += one.header.last_offset_delta + 1
    return data


async def all_bytes(log: Log) -> bytes:
    """The log's batches as stored, from start to end."""
    data = b""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = await log.reader.read(offset, end=log.log_end_offset, max_bytes=1 << 20)
        data += result.data
        offset = result.next_offset
    return data


class Gate:
    """Holds disk work of one name back, before its thread, until opened."""

    def __init__(self, disk: SimulatedDisk, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        run = disk.run

        async def gated(work: Any) -> Any:
            if getattr(getattr(work, "func", None), "__name__", "") == name:
                self.reached.set()
                await self.opened.wait()
            return await run(work)

        monkeypatch.setattr(disk, "run", gated)
