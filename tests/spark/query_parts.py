"""Shared by the tests of queries: encoded batches, and blocking calls from async tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from raftlog_client.fetch.range_reader import RangeChunk
from raftlog_client.transport import NodeAddress, Transport

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.compression import Compression
from raftlog.record.frames import ProduceFrame
from raftlog.record.isolation import readable_batches
from raftlog.record.types import Buffer, PartitionId
from tests.record.wire import encode_produce_frames

T = TypeVar("T")


def encoded(*values: bytes, timestamp_ms: int = 0) -> bytearray:
    """One batch, as an encoder yields it."""
    builder = BatchBuilder(Compression.NONE, 1 << 30)
    for value in values:
        builder.append(timestamp_ms, None, value)
    return builder.build()


def values_in(chunks: Iterable[RangeChunk], start: int = 0, end: int = 1 << 62) -> list[bytes]:
    """The records of a range that may be read, in order of arrival."""
    records = [
        record
        for chunk in chunks
        for batch in readable_batches(iterate_batches(chunk.data), chunk.aborted)
        for record in decode(batch, decompressed_bytes_max=1 << 28)
        if start <= record.offset < end
    ]
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), "in order, and none twice"
    return [bytes(record.value or b"") for record in records]


async def blocking(call: Callable[[], T]) -> T:
    """Make a blocking call, while the loop goes on serving."""
    return await asyncio.wait_for(asyncio.to_thread(call), 30.0)


async def append(address: str, topic: str, partition: int, batches: Iterable[Buffer]) -> None:
    """Write batches unchanged."""
    transport = Transport(client_id="test", request_timeout_ms=10_000)
    transport.start()
    try:
        for data in batches:
            body = encode_produce_frames((ProduceFrame(topic, PartitionId(partition), data),))
            answer = await transport.produce(
                NodeAddress(address), "/v1/produce", (body,), len(body)
            )
            assert not answer.results[0].error_code, answer
    finally:
        await transport.close()
