"""Latency at a fixed rate, open loop: from the time when a record was due, not when it left.

A closed loop waits for the slow answer before it sends the next request, and so does not measure
the requests that would have waited behind the slow one (coordinated omission). Here the schedule
never waits.

Publish latency is measured without a consumer, end-to-end latency with one. The driver spins for
the last two milliseconds before a send is due: event loop timers are a millisecond coarse, which is
the order of the measured latencies. It does not where the nodes need its core.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvloop
from raftlog_client import Consumer, Producer, TopicPartition

from bench.node import LoneNode
from bench.report import Latencies, Result
from bench.throughput import PARTITIONS, payload

DRAIN_TIMEOUT_S = 10.0
WARM_UP_S = 1.0
SPIN_S = 0.002


@dataclass(slots=True)
class Samples:
    """Samples of one open-loop run, in seconds."""

    publish: list[float] = field(default_factory=list)
    publish_delay: list[float] = field(default_factory=list)
    end_to_end: list[float] = field(default_factory=list)
    errors: int = 0


async def until(due: float, spin_s: float) -> None:
    """Return when `time.perf_counter()` reaches `due`, letting the loop work meanwhile."""
    ahead = due - time.perf_counter()
    if ahead > spin_s:
        await asyncio.sleep(ahead - spin_s)
    while time.perf_counter() < due:  # noqa: ASYNC110 - no event tells the time
        await asyncio.sleep(0)


async def open_loop(
    servers: str,
    topic: str,
    rate: int,
    seconds: float,
    *,
    consume: bool,
    partitions: int = PARTITIONS,
    arrive_in: str | None = None,
    warm_up_s: float = WARM_UP_S,
    spin_s: float = SPIN_S,
) -> Samples:
    """Send `rate` 100-byte records a second on schedule; `consume`: while a consumer reads.

    The consumer reads the topic `arrive_in` instead if another program copies the records there.
    """
    samples = Samples()
    count = int(rate * (seconds + warm_up_s))
    warm_up = int(rate * warm_up_s)
    filler = payload(80)
    due = [0.0] * count
    unread = set(range(count))
    all_read = asyncio.Event()

    async def read(consumer: Consumer) -> None:
        async for record in consumer:
            number = int((record.value or b"")[:20])
            if number >= warm_up:
                samples.end_to_end.append(time.perf_counter() - due[number])
            unread.discard(number)
            if not unread:
                all_read.set()
                return

    def acknowledged(number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            samples.errors += 1
        elif number >= warm_up:
            samples.publish.append(time.perf_counter() - due[number])

    async with (
        Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        Producer(bootstrap_servers=servers, linger_ms=0) as producer,
    ):
        reader: asyncio.Task[None] | None = None
        if consume:  # an assigned consumer fetches ahead even if nothing iterates over it
            read_from = topic if arrive_in is None else arrive_in
            consumer.assign([TopicPartition(read_from, number) for number in range(partitions)])
            reader = asyncio.create_task(read(consumer))
        # A collection of all that was imported would hold this driver for 40 ms.
        gc.collect()
        gc.freeze()
        start = time.perf_counter() + 0.2
        for number in range(count):
            due[number] = start + number / rate
            await until(due[number], spin_s)
            if number >= warm_up:
                samples.publish_delay.append(max(0.0, time.perf_counter() - due[number]))
            future = await producer.send(topic, b"%020d" % number + filler)
            future.add_done_callback(partial(acknowledged, number))
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            await producer.flush()
            if reader is not None:
                await all_read.wait()
                await reader
    return samples


def run(node: LoneNode, *, runs: int, scale: float) -> list[Result]:
    """Publish and end-to-end latency at 1,000 records a second."""
    rate, seconds = 1_000, max(3.0, 10.0 * scale)
    parameters = {"rate": rate, "record_bytes": 100, "seconds": seconds, "acks": "all"}
    parameters["partitions"] = PARTITIONS
    results = [
        Result("publish latency p50, 1,000/s", "ms", [], 1.0, True, parameters),
        Result("publish latency p99, 1,000/s", "ms", [], 5.0, True, parameters),
        Result("end-to-end latency p50, 1,000/s", "ms", [], None, True, parameters),
        Result("end-to-end latency p99, 1,000/s", "ms", [], None, True, parameters),
    ]
    for run_number in range(runs):
        topic = f"latency-{run_number}"
        node.create_topic(topic, PARTITIONS)
        samples = uvloop.run(open_loop(node.address, topic, rate, seconds, consume=False))
        publish = Latencies.from_seconds(samples.publish)
        delay = Latencies.from_seconds(samples.publish_delay)
        node.delete_topic(topic)
        node.create_topic(topic, PARTITIONS)
        both = uvloop.run(open_loop(node.address, topic, rate, seconds, consume=True))
        end_to_end = Latencies.from_seconds(both.end_to_end)
        for result, latencies, name in (
            (results[0], publish, "50pct"),
            (results[1], publish, "99pct"),
            (results[2], end_to_end, "50pct"),
            (results[3], end_to_end, "99pct"),
        ):
            result.runs.append(latencies.percentiles[name])
        results[0].details[f"run {run_number}"] = {
            **publish.as_fields("publishLatency"),
            **delay.as_fields("publishDelayLatency"),
            **end_to_end.as_fields("endToEndLatency"),
            "publishErrors": samples.errors + both.errors,
        }
        node.delete_topic(topic)
    return results
