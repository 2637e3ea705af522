"""Throughput of one Python process against one node or a cluster: produce and consume."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

import uvloop
from raftlog_client import Consumer, Producer, TopicPartition

from bench.node import LoneNode
from bench.report import Result

PARTITIONS = 6
SEND_WINDOW = 20_000
"""Outstanding futures of the awaited-send workload."""
KEY_BYTES = 16


def payload(size_bytes: int) -> bytes:
    """A value that looks like data: not constant, and different for each size."""
    pattern = b"".join(b"%07d|" % number for number in range(size_bytes // 8 + 1))
    return pattern[:size_bytes]


async def send_many(
    servers: str, topic: str, size_bytes: int, count: int, *, keyed: bool = False
) -> float:
    """Seconds until all of `count` values given to `send_many` are acknowledged.

    `keyed`: each with a key of its own, of 16 of the bytes.
    """
    value = payload(size_bytes)
    rest = value[KEY_BYTES:]
    # Keys are made before: their making costs as much as their sending.
    pairs = [(key, rest) for key in _keys(count)] if keyed else ()
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_many(topic, [value])
        started = time.perf_counter()
        await producer.send_many(topic, pairs if keyed else repeat(value, count))
        return time.perf_counter() - started


async def awaited_sends(
    servers: str, topic: str, size_bytes: int, count: int, *, keyed: bool = False
) -> float:
    """Seconds to `send` each record and await each record's own future, in windows."""
    value = payload(size_bytes)
    rest = value[KEY_BYTES:] if keyed else value
    keys = iter(list(_keys(count)) if keyed else repeat(None, count))
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait(topic, value)
        send = producer.send
        started = time.perf_counter()
        outstanding: list[asyncio.Future[Any]] = []
        for window in _windows(count):
            previous, outstanding = (
                outstanding,
                [await send(topic, rest, key) for key in islice(keys, window)],
            )
            for future in previous:
                await future
        for future in outstanding:
            await future
        return time.perf_counter() - started


def _keys(count: int) -> Iterator[bytes]:
    return (b"key-%012d" % number for number in range(count))


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


def run(node: LoneNode, *, runs: int, scale: float) -> list[Result]:
    """All throughput figures, the workloads in turn within each run."""
    small_count, large_count = int(3_000_000 * scale), int(1_000_000 * scale)
    send_count = int(600_000 * scale)
    workloads = {"partitions": PARTITIONS, "acks": "all"}
    small = {**workloads, "record_bytes": 100}
    large = {**workloads, "record_bytes": 1000}
    results = [
        Result("produce send_many 100 B", "records/s", [], 1_000_000, parameters=small),
        Result("produce awaited send 100 B", "records/s", [], 250_000, parameters=small),
        Result(
            "produce send_many 1 KB",
            "MB/s",
            [],
            300,
            parameters=large,
        ),
        Result("consume getmany 100 B", "records/s", [], 2_000_000, parameters=small),
        Result("consume async for 100 B", "records/s", [], 700_000, parameters=small),
        Result("produce send_many keyed 100 B", "records/s", [], 1_200_000, parameters=small),
        Result("produce awaited send keyed 100 B", "records/s", [], 450_000, parameters=small),
    ]
    for run_number in range(runs):
        topic, large_topic = f"small-{run_number}", f"large-{run_number}"
        node.create_topic(topic, PARTITIONS)
        node.create_topic(large_topic, PARTITIONS)
        seconds = uvloop.run(send_many(node.address, topic, 100, small_count))
        results[0].runs.append(small_count / seconds)
        seconds = uvloop.run(awaited_sends(node.address, topic, 100, send_count))
        results[1].runs.append(send_count / seconds)
        seconds = uvloop.run(send_many(node.address, large_topic, 1000, large_count))
        results[2].runs.append(large_count * 1000 / seconds / 1e6)
        seconds = uvloop.run(consume_many(node.address, topic, small_count))
        results[3].runs.append(small_count / seconds)
        each = int(small_count / 2)
        seconds = uvloop.run(consume_each(node.address, topic, each))
        results[4].runs.append(each / seconds)
        keyed_count = int(small_count / 3)
        seconds = uvloop.run(send_many(node.address, topic, 100, keyed_count, keyed=True))
        results[5].runs.append(keyed_count / seconds)
        seconds = uvloop.run(awaited_sends(node.address, topic, 100, send_count, keyed=True))
        results[6].runs.append(send_count / seconds)
        node.delete_topic(topic)
        node.delete_topic(large_topic)
    return results
