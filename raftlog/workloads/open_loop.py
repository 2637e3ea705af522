"""Latency at a fixed rate in open loop, counted from a record's due time.

A closed loop waits for the slow response before it sends the next request, and so does not measure
the requests that would have waited behind the slow request (coordinated omission). Here the
schedule never waits.

The driver spins for the last two milliseconds before a send is due, since event loop timers are a
millisecond coarse, which is the order of the measured latencies. It does not spin where the nodes
need its core.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from raftlog_client import Consumer, Producer, TopicPartition

from raftlog.workloads.load import PARTITIONS, Progress, no_progress, payload

DRAIN_TIMEOUT_S: Final = 10.0
WARM_UP_S: Final = 1.0
SPIN_S: Final = 0.002
NUMBER_BYTES: Final = 20
"""Bytes of the number at the start of each value."""
SAMPLES_MAX: Final = 5_000_000
"""Records of one run. Their due times and latencies are kept."""
PROGRESS_EVERY: Final = 100
"""Records between two reports of the progress."""


@dataclass(slots=True)
class Samples:
    """Samples of one open-loop run, in seconds."""

    publish: list[float] = field(default_factory=list)
    publish_delay: list[float] = field(default_factory=list)
    end_to_end: list[float] = field(default_factory=list)
    errors: int = 0


async def until(due: float, spin_s: float) -> None:
    """Return when `time.perf_counter()` reaches `due`, and let the loop work until then."""
    ahead = due - time.perf_counter()
    if ahead > spin_s:
        await asyncio.sleep(ahead - spin_s)
    while time.perf_counter() < due:  # noqa: ASYNC110 - no event tells the time
        await asyncio.sleep(0)


async def _read(
    consumer: Consumer, due: list[float], warm_up: int, samples: Samples, all_read: asyncio.Event
) -> None:
    unread = set(range(len(due)))
    async for record in consumer:
        number = int((record.value or b"")[:NUMBER_BYTES])
        if number >= warm_up:
            samples.end_to_end.append(time.perf_counter() - due[number])
        unread.discard(number)
        if not unread:
            all_read.set()
            return


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
    record_bytes: int = 100,
    acks: Literal["all", 1, 0] = "all",
    linger_ms: float = 0,
    progress: Progress = no_progress,
) -> Samples:
    """Send `rate` records a second on schedule. With `consume`, a consumer also reads.

    The consumer reads the topic `arrive_in` instead if another program copies the records there.
    Raises ValueError for more than SAMPLES_MAX records, or records too small for their number.
    Raises TimeoutError if records are missing DRAIN_TIMEOUT_S after the last record left.
    """
    samples = Samples()
    count = int(rate * (seconds + warm_up_s))
    warm_up = int(rate * warm_up_s)
    if count > SAMPLES_MAX:
        raise ValueError(f"{count:,} records are more than the {SAMPLES_MAX:,} of one run")
    if record_bytes < NUMBER_BYTES:
        raise ValueError(f"records must have at least {NUMBER_BYTES} bytes")
    filler = payload(record_bytes - NUMBER_BYTES)
    due = [0.0] * count
    all_read = asyncio.Event()

    def acknowledged(number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            samples.errors += 1
        elif number >= warm_up:
            samples.publish.append(time.perf_counter() - due[number])

    async with (
        Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        Producer(bootstrap_servers=servers, linger_ms=linger_ms, acks=acks) as producer,
    ):
        reader: asyncio.Task[None] | None = None
        if consume:  # an assigned consumer fetches ahead even if nothing iterates over it
            read_from = topic if arrive_in is None else arrive_in
            consumer.assign([TopicPartition(read_from, number) for number in range(partitions)])
            reader = asyncio.create_task(_read(consumer, due, warm_up, samples, all_read))
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
            if number % PROGRESS_EVERY == 0:
                progress(number / count, f"{number:,} records sent")
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            await producer.flush()
            if reader is not None:
                await all_read.wait()
                await reader
    return samples
