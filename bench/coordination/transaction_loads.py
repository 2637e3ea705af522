"""Full-speed transactions, and the exactly-once loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftlog_client import Consumer, Producer, TopicPartition

from raftlog.workloads.load import POLL_MS, Progress, no_progress, payload

STRETCH: Final = 100
"""Records between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Records written in a time."""

    records: int
    seconds: float
    transactions: int


async def exactly_once(
    servers: str,
    source: str,
    target: str,
    group: str,
    transactional_id: str,
    *,
    partitions: int,
    transaction_s: float = 0.1,
    progress: Progress = no_progress,
) -> Throughput:
    """Copy all values of `source` to `target`, with the group's offsets in the transactions.

    The loop reads, processes and writes from the first records up to the present end. `source` has
    every offset, since it was written without transactions and is not compacted.
    """
    places = [TopicPartition(source, number) for number in range(partitions)]
    written = done = 0
    async with (
        Consumer(
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=None,
        ) as consumer,
        Producer(bootstrap_servers=servers, transactional_id=transactional_id) as producer,
    ):
        ends = await consumer.end_offsets(places)
        begins = await consumer.beginning_offsets(places)
        total = sum(ends.values()) - sum(begins.values())
        await consumer.subscribe([source])
        started: float | None = None
        while written < total:
            fetched = await consumer.getmany(timeout_ms=POLL_MS)
            if not fetched:
                continue
            started = started or time.perf_counter()
            until = time.perf_counter() + transaction_s
            async with producer.transaction() as transaction:
                while fetched:
                    values = [record.value for found in fetched.values() for record in found]
                    written += (await producer.send_many(target, values)).count
                    progress(written / total, f"{written:,} records")
                    if written >= total or time.perf_counter() >= until:
                        break
                    fetched = await consumer.getmany(timeout_ms=0)
                await transaction.commit_offsets(consumer)
            done += 1
        ended = time.perf_counter()
    return Throughput(written, ended - (ended if started is None else started), done)


async def throughput(
    servers: str,
    topic: str,
    *,
    record_bytes: int,
    seconds: float,
    transactional_id: str | None = None,
    transaction_s: float = 0.1,
    idempotent: bool = True,
) -> Throughput:
    """Write at full speed for a time, in transactions of a length each, or without."""
    value = payload(record_bytes)
    written = transactions_done = 0

    def until(moment: float) -> Iterator[bytes]:
        while time.perf_counter() < moment:
            for _ in range(STRETCH):
                yield value

    async with Producer(
        bootstrap_servers=servers, transactional_id=transactional_id, idempotent=idempotent
    ) as producer:

        async def warm_up() -> None:
            await producer.send_and_wait(topic, value)

        if transactional_id is None:
            await warm_up()
            started = time.perf_counter()
            written = (await producer.send_many(topic, until(started + seconds))).count
        else:
            async with producer.transaction():
                await warm_up()
            started = time.perf_counter()
            while (now := time.perf_counter()) < started + seconds:
                async with producer.transaction():
                    summary = await producer.send_many(topic, until(now + transaction_s))
                written += summary.count
                transactions_done += 1
        return Throughput(written, time.perf_counter() - started, transactions_done)
