"""Keyed records and compacted topics, for directed scenarios.

The invariants of `ReplicaChecker` compare logs batch by batch, and replicas are compacted one after
the other: these scenarios run without them, and compare what readers see instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final
from unittest import mock

from raftlog.record.batch import RecordBatch, iterate_batches, split_batches
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.compression import Compression
from raftlog.record.types import Offset
from raftlog.replication.partition import Acks
from raftlog.storage import manager
from raftlog.storage.types import StorageSettings
from tests.simulation.data.clients import TIME_MS, ask
from tests.simulation.data.data_world import DataWorld, Part
from tests.simulation.data.invariants import ReplicaChecker

COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "min.insync.replicas": "2",
}
READ_BYTES: Final = 4_000
BATCH_BYTES_MAX: Final = 1 << 16

Pair = tuple[str, str | None]
"""A record's key and value; None: a tombstone."""


@contextlib.contextmanager
def compacting(interval_ms: int = 1_000) -> Iterator[None]:
    """Compact often, and compare no replicas batch by batch."""
    often = partial(StorageSettings, retention_interval_ms=interval_ms)
    with (
        mock.patch.object(manager, "StorageSettings", often),
        mock.patch.object(ReplicaChecker, "_look", lambda *_arguments: None),
        mock.patch.object(ReplicaChecker, "_check_electable", lambda *_arguments: None),
    ):
        yield


def keyed_batch(pairs: Sequence[Pair]) -> list[RecordBatch]:
    """One batch of these records."""
    builder = BatchBuilder(Compression.NONE, BATCH_BYTES_MAX)
    for key, value in pairs:
        assert builder.append(TIME_MS, key.encode(), None if value is None else value.encode(), [])
    return split_batches(bytes(builder.build()), max_message_bytes=BATCH_BYTES_MAX)


async def put(
    data: DataWorld, part: Part, node_id: int, *pairs: Pair, acks: Acks = Acks.ALL
) -> Any:
    """Append one batch at that node, by its own replica; returns its result. Raises LogError."""

    async def work(core: Any) -> Any:
        found = core.services.replicas.partition(part.topic, part.number)
        return await found.append(keyed_batch(pairs), acks=acks, timeout_s=1.5)

    return (await ask(data, node_id, work))[0]


async def lead(data: DataWorld, part: Part, node_id: int) -> None:
    """Move the leadership to that node; return when it takes writes."""
    if data.leader(part) != node_id:
        controller = await data.nodes.until(data.nodes.controller)
        await data.nodes.call(
            controller,
            lambda core: core.services.metadata.operations.transfer_leader(
                part.topic, part.number, node_id
            ),
        )
    await data.led(part, node_id)


async def committed_records(
    data: DataWorld, part: Part, node_id: int
) -> list[tuple[int, str, str | None]]:
    """Offset, key and value of each committed record on a replica."""
    replica = data.replica(node_id, part)
    assert replica is not None
    records: list[tuple[int, str, str | None]] = []
    offset, end = replica.log_start_offset, replica.high_watermark
    while offset < end:
        fetched = await data.nodes.call(
            node_id,
            lambda _, at=offset: replica.read(Offset(at), max_bytes=READ_BYTES, any_replica=True),  # type: ignore[misc]
        )
        for batch in iterate_batches(fetched.data):
            if batch.header.record_count:
                for one in decode(batch, decompressed_bytes_max=BATCH_BYTES_MAX):
                    assert one.key is not None
                    value = None if one.value is None else one.value.decode()
                    records.append((one.offset, one.key.decode(), value))
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    return records
