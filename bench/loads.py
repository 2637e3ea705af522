"""Throughput and latency of one Python process against one node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, Final

import uvloop
from raftlog_client import Consumer, Producer, TopicPartition

from bench.node import running_node
from bench.report import Options, Percentiles, Result
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import KEY_BYTES, PARTITIONS, keys, payload, send_many
from raftlog.workloads.open_loop import open_loop

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


def throughput(options: Options) -> list[Result]:
    """All throughput figures, the workloads in turn within each run."""
    small_count, large_count = int(3_000_000 * options.scale), int(1_000_000 * options.scale)
    send_count = int(600_000 * options.scale)
    each_count, keyed_count = small_count // 2, small_count // 3
    workloads = {"partitions": PARTITIONS, "acks": "all"}
    small = {**workloads, "record_bytes": 100}
    large = {**workloads, "record_bytes": 1000}
    results = [
        Result("produce send_many 100 B", "records/s", goal=1_000_000, parameters=small),
        Result("produce awaited send 100 B", "records/s", goal=250_000, parameters=small),
        Result("produce send_many 1 KB", "MB/s", goal=300, parameters=large),
        Result("consume getmany 100 B", "records/s", goal=2_000_000, parameters=small),
        Result("consume async for 100 B", "records/s", goal=700_000, parameters=small),
        Result("produce send_many keyed 100 B", "records/s", goal=1_200_000, parameters=small),
        Result("produce awaited send keyed 100 B", "records/s", goal=450_000, parameters=small),
    ]
    with running_node(options.flush) as node:
        for run_number in range(options.runs):
            topic, large_topic = f"small-{run_number}", f"large-{run_number}"
            node.create_topic(topic, PARTITIONS)
            node.create_topic(large_topic, PARTITIONS)
            to_small = (node.address, topic, 100)
            work = [
                (small_count, send_many(*to_small, small_count)),
                (send_count, awaited_sends(*to_small, send_count)),
                (large_count * 1000 / 1e6, send_many(node.address, large_topic, 1000, large_count)),
                (small_count, consume_many(node.address, topic, small_count)),
                (each_count, consume_each(node.address, topic, each_count)),
                (keyed_count, send_many(*to_small, keyed_count, keyed=True)),
                (send_count, awaited_sends(*to_small, send_count, keyed=True)),
            ]
            for result, (amount, workload) in zip(results, work, strict=True):
                result.runs.append(amount / uvloop.run(workload))
            node.delete_topic(topic)
            node.delete_topic(large_topic)
    return results


def latency(options: Options) -> list[Result]:
    """Publish and end-to-end latency at 1,000 records a second."""
    rate, seconds = 1_000, max(3.0, 10.0 * options.scale)
    parameters = {"rate": rate, "record_bytes": 100, "seconds": seconds, "acks": "all"}
    parameters["partitions"] = PARTITIONS
    publish = Percentiles("publish latency {}, 1,000/s", {"p50": 1.0, "p99": 5.0}, parameters)
    end_to_end = Percentiles(
        "end-to-end latency {}, 1,000/s", {"p50": None, "p99": None}, parameters
    )
    with running_node(options.flush) as node:
        for run_number in range(options.runs):
            topic = f"latency-{run_number}"
            node.create_topic(topic, PARTITIONS)
            samples = uvloop.run(open_loop(node.address, topic, rate, seconds, consume=False))
            node.delete_topic(topic)
            delay = Latencies.from_seconds(samples.publish_delay)
            publish.note(
                Latencies.from_seconds(samples.publish),
                **delay.as_fields("publishDelayLatency"),
                publishErrors=samples.errors,
            )
            node.create_topic(topic, PARTITIONS)
            both = uvloop.run(open_loop(node.address, topic, rate, seconds, consume=True))
            node.delete_topic(topic)
            end_to_end.note(Latencies.from_seconds(both.end_to_end), publishErrors=both.errors)
    return [*publish.results, *end_to_end.results]
