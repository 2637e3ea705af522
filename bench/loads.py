"""Throughput of one process that awaits each send, or reads all records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, Final

from raftlog_client import Consumer, Producer, TopicPartition

from raftlog.workloads.load import KEY_BYTES, PARTITIONS, keys, payload

SEND_WINDOW: Final = 20_000
"""Outstanding futures of the awaited-send workload."""


async def awaited_sends(
    servers: str,
    topic: str,
    size_bytes: int,
    count: int,
    *,
    keyed: bool = False,
    linger_ms: float = 0,
) -> float:
    """Seconds to `send` each record and await each record's own future, in windows."""
    value = payload(size_bytes)
    rest = value[KEY_BYTES:] if keyed else value
    given = iter(list(keys(count)) if keyed else repeat(None, count))
    async with Producer(bootstrap_servers=servers, linger_ms=linger_ms) as producer:
        await producer.send_and_wait(topic, value)
        send = producer.send
        started = time.perf_counter()
        outstanding: list[asyncio.Future[Any]] = []
        for window in _windows(count):
            previous, outstanding = (
                outstanding,
                [await send(topic, rest, key) for key in islice(given, window)],
            )
            for future in previous:
                await future
        for future in outstanding:
            await future
        return time.perf_counter() - started


def _windows(count: int) -> Iterator[int]:
    for start in range(0, count, SEND_WINDOW):
        yield min(SEND_WINDOW, count - start)


async def consume_many(servers: str, topic: str, count: int, partitions: int = PARTITIONS) -> float:
    """Seconds to read `count` records by `getmany`, looking at every value."""
    async with _consumer(servers, topic, partitions) as consumer:
        seen = length = 0
        started = time.perf_counter()
        while seen < count:
            for records in (await consumer.getmany(timeout_ms=5000)).values():
                seen += len(records)
                for record in records:
                    length += len(record.value or b"")
        elapsed = time.perf_counter() - started
    assert length > 0
    return elapsed


async def consume_each(servers: str, topic: str, count: int, partitions: int = PARTITIONS) -> float:
    """Seconds to read `count` records by `async for`."""
    async with _consumer(servers, topic, partitions) as consumer:
        seen = length = 0
        started = time.perf_counter()
        async for record in consumer:
            length += len(record.value or b"")
            seen += 1
            if seen >= count:
                break
        elapsed = time.perf_counter() - started
    assert length > 0
    return elapsed


def _consumer(servers: str, topic: str, partitions: int) -> Consumer:
    consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
    return consumer
