"""The clients of a trial, as processes beside the machines.

pulse SERVERS FILE         write and read until SIGTERM; print a line after the first
                           acknowledgement; the observations go to FILE, as JSON
fill SERVERS TOPIC BYTES   write that many bytes to a topic, acks=all
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from raftlog_client import Admin, Consumer, Producer, RaftlogClientError, RecordMetadata

PULSE_TOPIC: Final = "pulse"
SINGLE_TOPIC: Final = "single"
"""Of one replica: an upgrade names its partition, and does not wait for another."""
FIRST_LINE: Final = b"acknowledged\n"
PARTITIONS: Final = 3
INTERVAL_S: Final = 0.005
DRAIN_TIMEOUT_S: Final = 30.0
"""After the last write, until the reader must have all records."""
ERRORS_KEPT: Final = 10
RECORD_BYTES: Final = 256 * 1024
CONFIGS: Final = {"min.insync.replicas": 2}


class Pulse(msgspec.Struct, frozen=True):
    """Observations of one pulse: records every few ms, acks=all, read by a consumer meanwhile."""

    acknowledged: int
    errors: list[str]
    """The first errors after all retries."""
    error_count: int
    gap_ms: float
    """Longest time without any acknowledgement."""
    partition_gap_ms: float
    """Longest time without an acknowledgement of one partition."""
    lost: int
    """Acknowledged records that the reader did not get."""
    doubled: int


async def pulse(servers: str) -> Pulse:
    """Write until SIGTERM, read until all acknowledged records have come."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    acknowledged: dict[str, tuple[float, int]] = {}
    errors: list[str] = []
    read: Counter[str] = Counter()
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(
            PULSE_TOPIC, partitions=PARTITIONS, replication_factor=3, configs=CONFIGS
        )
        await admin.create_topic(SINGLE_TOPIC, partitions=1, replication_factor=1)

    def settled(value: str, sent: asyncio.Future[RecordMetadata]) -> None:
        error = sent.exception()
        if error is None:
            if not acknowledged:
                print(FIRST_LINE.decode(), end="", flush=True)
            acknowledged[value] = (time.monotonic(), sent.result().partition)
        else:
            errors.append(repr(error))

    async def follow() -> None:
        async with Consumer[bytes, bytes](
            PULSE_TOPIC, bootstrap_servers=servers, auto_offset_reset="earliest"
        ) as consumer:
            async for record in consumer:
                read[record.value.decode()] += 1

    reader = asyncio.create_task(follow())
    async with Producer(bootstrap_servers=servers) as producer:
        number = 0
        while not stop.is_set() and not reader.done():
            value = f"pulse {number}"
            partition = number % PARTITIONS
            try:
                sent = await producer.send(PULSE_TOPIC, value.encode(), partition=partition)
            except RaftlogClientError as error:
                errors.append(repr(error))
            else:
                sent.add_done_callback(partial(settled, value))
            number += 1
            await asyncio.sleep(INTERVAL_S)
        await producer.flush()
    deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
    while not acknowledged.keys() <= read.keys() and time.monotonic() < deadline_s:
        if reader.done():
            errors.append(f"the reader ended: {reader.exception()!r}")
            break
        await asyncio.sleep(0.05)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    times = acknowledged.values()
    return Pulse(
        acknowledged=len(acknowledged),
        errors=errors[:ERRORS_KEPT],
        error_count=len(errors),
        gap_ms=_longest_gap_ms(at for at, _ in times),
        partition_gap_ms=max(
            _longest_gap_ms(at for at, one in times if one == number)
            for number in range(PARTITIONS)
        ),
        lost=len(acknowledged.keys() - read.keys()),
        doubled=sum(count - 1 for count in read.values()),
    )


async def fill(servers: str, topic: str, total_bytes: int) -> None:
    """Create a topic of three replicas and write to it, in large records."""

    values = (os.urandom(RECORD_BYTES) for _ in range(0, total_bytes, RECORD_BYTES))
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(
            topic, partitions=PARTITIONS, replication_factor=3, configs=CONFIGS
        )
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_many(topic, values)


def _longest_gap_ms(moments: Iterable[float]) -> float:
    ordered = sorted(moments)
    return max((1000 * (later - earlier) for earlier, later in pairwise(ordered)), default=0.0)


def main(command: str, *arguments: str) -> None:
    match command, arguments:
        case "pulse", (servers, report):
            Path(report).write_bytes(msgspec.json.encode(asyncio.run(pulse(servers))))
        case "fill", (servers, topic, total_bytes):
            asyncio.run(fill(servers, topic, int(total_bytes)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
