"""Throughput of one Python process that produces and consumes as programs do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Final, Literal, TypeAlias

from raftlog_client import Consumer, Producer, RaftlogClientError, TopicPartition

Progress: TypeAlias = Callable[[float, str], None]
"""Called with the share done, from 0 to 1, and the figures so far."""


def no_progress(_share: float, _text: str) -> None:
    """Report nothing."""


PARTITIONS: Final = 6
KEY_BYTES: Final = 16
PROGRESS_RECORDS: Final = 10_000
"""Records between two reports of the progress."""
PROBE_PERIOD_S: Final = 0.01
POLL_MS: Final = 5_000


@dataclass(slots=True)
class Produced:
    """Duration and latencies of a load of records."""

    seconds: float
    publish: list[float] = field(default_factory=list)
    """Seconds of the probes. A probe is a record sent alone beside the load, at most every
    PROBE_PERIOD_S."""
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Consumed:
    """Records read from the second response on, as the first response starts the clock.

    With only one response, all of it counts from the beginning.
    """

    records: int
    size_bytes: int
    seconds: float


def payload(size_bytes: int) -> bytes:
    """A value that looks like data, not constant and different for each size."""
    pattern = b"".join(b"%07d|" % number for number in range(size_bytes // 8 + 1))
    return pattern[:size_bytes]


async def send_many(
    servers: str, topic: str, size_bytes: int, count: int, *, keyed: bool = False
) -> float:
    """Seconds until all of `count` values given to `send_many` are acknowledged.

    With `keyed`, each record has its key, of 16 of the bytes.
    """
    value = payload(size_bytes)
    rest = value[KEY_BYTES:]
    # Keys are made before, since their making costs as much as their sending.
    pairs = [(key, rest) for key in keys(count)] if keyed else ()
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_many(topic, [value])
        started = time.perf_counter()
        await producer.send_many(topic, pairs if keyed else repeat(value, count))
        return time.perf_counter() - started


def keys(count: int) -> Iterator[bytes]:
    """Distinct keys of KEY_BYTES bytes."""
    return (b"key-%012d" % number for number in range(count))


async def produce(
    servers: str,
    topic: str,
    *,
    record_bytes: int,
    count: int,
    acks: Literal["all", 1, 0] = "all",
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
    idempotent: bool = True,
    progress: Progress = no_progress,
) -> Produced:
    """Write `count` records at full speed by `send_many`, with probes of the latency.

    Raises SendManyError if a record of the load was not written. Failed probes are counted.
    """
    value = payload(record_bytes)
    found = Produced(0.0)

    def stretches() -> Iterator[Iterator[bytes]]:
        for start in range(0, count, PROGRESS_RECORDS):
            progress(start / count, f"{start:,} records")
            yield repeat(value, min(PROGRESS_RECORDS, count - start))

    async def probe() -> None:
        while True:
            started = time.perf_counter()
            try:
                await producer.send_and_wait(topic, value)
            except RaftlogClientError:
                found.errors += 1
            else:
                found.publish.append(time.perf_counter() - started)
            await asyncio.sleep(max(0.0, started + PROBE_PERIOD_S - time.perf_counter()))

    async with Producer(
        bootstrap_servers=servers, acks=acks, compression=compression, idempotent=idempotent
    ) as producer:
        await producer.send_and_wait(topic, value)
        started = time.perf_counter()
        probing = asyncio.create_task(probe())
        try:
            await producer.send_many(topic, chain.from_iterable(stretches()))
            found.seconds = time.perf_counter() - started
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
    return found


async def consume(
    servers: str,
    topic: str,
    partitions: int,
    *,
    group: str | None = None,
    progress: Progress = no_progress,
) -> Consumed:
    """Read a topic from its beginning to its present end by `getmany`.

    Every value is looked at. Partitions are assigned, or the consumer is the only member of a new
    group, with automatic commits.
    """
    places = [TopicPartition(topic, number) for number in range(partitions)]
    records = size_bytes = 0
    first: Consumed | None = None
    async with Consumer(
        bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        begins = await consumer.beginning_offsets(places)
        ends = await consumer.end_offsets(places)
        total = max(1, sum(ends.values()) - sum(begins.values()))
        unread = {place for place in places if begins[place] < ends[place]}
        if group is None:
            consumer.assign(places)
        else:
            await consumer.subscribe([topic])
        started = time.perf_counter()
        while unread:
            fetched = await consumer.getmany(timeout_ms=POLL_MS)
            for place, found in fetched.items():
                records += len(found)
                for record in found:
                    size_bytes += len(record.value or b"")
                # The last offset may be a marker, so the position counts.
                if await consumer.position(place) >= ends[place]:
                    unread.discard(place)
            if not fetched:
                held = consumer.assignment() & unread
                unread -= {place for place in held if await consumer.position(place) >= ends[place]}
            elif first is None:
                first = Consumed(records, size_bytes, time.perf_counter() - started)
            progress(records / total, f"{records:,} records")
        seconds = time.perf_counter() - started
    if first is None or first.records == records:
        return Consumed(records, size_bytes, seconds)
    return Consumed(records - first.records, size_bytes - first.size_bytes, seconds - first.seconds)
