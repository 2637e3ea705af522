"""Latency and rate of small transactions."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from raftlog_client import Producer, RecordMetadata

from raftlog.workloads.load import Progress, no_progress, payload

WARM_UP_TRANSACTIONS: Final = 20


@dataclass(slots=True)
class Transactions:
    """Transactions of several producers, each in a closed loop."""

    seconds: float
    latencies: list[float]
    """Seconds of each, from its start to the response to its commit."""


async def transactions(
    servers: str,
    topic: str,
    id_prefix: str,
    *,
    producers: int,
    records: int,
    partitions: int,
    seconds: float,
    record_bytes: int = 100,
    progress: Progress = no_progress,
) -> Transactions:
    """Commit transactions of `records` records on the first `partitions` partitions."""
    found = Transactions(0.0, [])
    value = payload(record_bytes)

    async def commit(producer: Producer) -> None:
        async with producer.transaction():
            for number in range(records):
                future = await producer.send(topic, value, partition=number % partitions)
                # The commit raises what the records do.
                future.add_done_callback(_ignore)

    async def repeat(producer: Producer, until: float, *, is_first: bool) -> None:
        while (started := time.perf_counter()) < until:
            await commit(producer)
            found.latencies.append(time.perf_counter() - started)
            if is_first:
                text = f"{len(found.latencies):,} transactions"
                progress(1 - (until - started) / seconds, text)

    async with AsyncExitStack() as stack:
        started_producers = [
            await stack.enter_async_context(
                Producer(bootstrap_servers=servers, transactional_id=f"{id_prefix}{number}")
            )
            for number in range(producers)
        ]
        for _ in range(WARM_UP_TRANSACTIONS):
            await asyncio.gather(*map(commit, started_producers))
        started = time.perf_counter()
        until = started + seconds
        await asyncio.gather(
            *(
                repeat(producer, until, is_first=number == 0)
                for number, producer in enumerate(started_producers)
            )
        )
        found.seconds = time.perf_counter() - started
    return found


def _ignore(future: asyncio.Future[RecordMetadata]) -> None:
    if not future.cancelled():
        future.exception()
