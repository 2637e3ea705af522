"""`scripts/bench transactions`: small ones alone and many at once, throughput, idempotence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from raftlog_client import Consumer, Producer, TopicPartition

from bench.cluster import PARTITIONS, Meter, run_workload, running_cluster
from bench.report import Options, Percentiles, Result
from raftlog.workloads import transactions as load
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import POLL_MS, payload, send_many

RECORDS: Final = 10
SPREAD: Final = 3
PRODUCERS: Final = 32
SMALL_S: Final = 5.0
THROUGHPUT_S: Final = 4.0
TRANSACTION_S: Final = 0.1
LARGE_BYTES: Final = 1_000
SMALL_BYTES: Final = 100
COPIED: Final = 2_000_000
TOPIC: Final = "transactional"


def small(options: Options) -> list[Result]:
    """Transactions of 10 records on 3 partitions: one producer, then 32."""
    seconds = max(1.0, SMALL_S * options.scale)
    given = {"records": RECORDS, "partitions": SPREAD, "seconds": seconds, "record_bytes": 100}
    lone = Percentiles("transactions: one producer {}", {"p50": 6.0, "p99": 25.0}, given)
    rate = Result(
        f"transactions: {PRODUCERS} producers", "transactions/s", goal=1_500, parameters=given
    )
    many = Percentiles(f"transactions: {PRODUCERS} producers {{}}", {"p99": None}, given)
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC))
        for _ in range(options.runs):
            for producers in (1, PRODUCERS):
                meter = Meter(cluster)
                found = run_workload(
                    load.transactions(
                        cluster.servers,
                        TOPIC,
                        f"small-{producers}-",
                        producers=producers,
                        records=RECORDS,
                        partitions=SPREAD,
                        seconds=seconds,
                    )
                )
                each = meter.microseconds_each(len(found.latencies))
                figures = lone if producers == 1 else many
                figures.note(Latencies.from_seconds(found.latencies), **each)
                if producers == PRODUCERS:
                    rate.runs.append(len(found.latencies) / found.seconds)
    return [*lone.results, rate, *many.results]


def throughput(options: Options) -> list[Result]:
    """1 KB records in transactions of 100 ms against without, in turn."""
    return _compared(
        options,
        "transactions: throughput in 100 ms / without, 1 KB",
        0.95,
        {
            "in transactions of 100 ms": {"transactional_id": "throughput"},
            "without transactions": {},
        },
    )


def idempotence(options: Options) -> list[Result]:
    """Throughput of an idempotent producer against one without sequence numbers, in turn."""
    return _compared(
        options,
        "transactions: idempotence on / off, 1 KB",
        0.97,
        {"idempotent": {}, "not idempotent": {"idempotent": False}},
    )


def _compared(
    options: Options, name: str, goal: float, ways: dict[str, dict[str, Any]]
) -> list[Result]:
    """The ratio of the medians of two ways to write, one after the other in each run."""
    seconds = max(1.0, THROUGHPUT_S * options.scale)
    given = {"record_bytes": LARGE_BYTES, "seconds": seconds, "partitions": PARTITIONS}
    results = [Result(f"transactions: {way}, 1 KB", "MB/s", parameters=given) for way in ways]
    with running_cluster(options.flush) as cluster:
        for run in range(options.runs):
            # In alternating order: a write fills the caches of the next one.
            turns = list(zip(results, ways.items(), strict=True))
            for result, (way, settings) in turns if run % 2 == 0 else reversed(turns):
                topic = f"{TOPIC}-{run}-{way.replace(' ', '-')}"
                run_workload(cluster.create_topic(topic, PARTITIONS))
                found = run_workload(
                    write_at_full_speed(
                        cluster.servers,
                        topic,
                        record_bytes=LARGE_BYTES,
                        seconds=seconds,
                        **settings,
                    )
                )
                result.runs.append(found.records * LARGE_BYTES / found.seconds / 1e6)
                result.details[f"run {run + 1}"] = {"transactions": found.transactions}
                print(f"   {way}: {result.runs[-1]:.0f} MB/s", flush=True)
                run_workload(cluster.wait_in_sync([topic]))
                run_workload(cluster.delete_topic(topic))
    ratio = Result(
        name, "", runs=[results[0].median / results[1].median], goal=goal, parameters=given
    )
    return [ratio, *results]


def exactly_once(options: Options) -> list[Result]:
    """Read, process, write exactly once: a topic of 100 B records is copied by one process."""
    count = max(10_000, int(COPIED * options.scale))
    given = {"records": count, "record_bytes": SMALL_BYTES, "transaction_s": TRANSACTION_S}
    rate = Result(
        "transactions: read-process-write, 100 B", "records/s", goal=150_000, parameters=given
    )
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC))
        run_workload(send_many(cluster.servers, TOPIC, SMALL_BYTES, count))
        for run in range(options.runs):
            target = f"copied-{run}"
            run_workload(cluster.create_topic(target))
            found = run_workload(
                copy_exactly_once(
                    cluster.servers, TOPIC, target, f"copy-{run}", partitions=PARTITIONS
                )
            )
            rate.runs.append(found.records / found.seconds)
            rate.details[f"run {run + 1}"] = {"transactions": found.transactions}
            print(f"   {rate.runs[-1]:,.0f} records/s", flush=True)
            run_workload(cluster.delete_topic(target))
    return [rate]


STRETCH: Final = 100
"""Records between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Written:
    """Records written in a time."""

    records: int
    seconds: float
    transactions: int


async def copy_exactly_once(
    servers: str,
    source: str,
    target: str,
    name: str,
    *,
    partitions: int,
    transaction_s: float = TRANSACTION_S,
) -> Written:
    """Copy all values of `source` up to its present end to `target`, by a group and an id `name`.

    `source` has every offset, since it was written without transactions and is not compacted.
    """
    places = [TopicPartition(source, number) for number in range(partitions)]
    written = done = 0
    async with (
        Consumer(
            bootstrap_servers=servers,
            group_id=name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=None,
        ) as consumer,
        Producer(bootstrap_servers=servers, transactional_id=name) as producer,
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
                    if written >= total or time.perf_counter() >= until:
                        break
                    fetched = await consumer.getmany(timeout_ms=0)
                await transaction.commit_offsets(consumer)
            done += 1
        ended = time.perf_counter()
    return Written(written, ended - (ended if started is None else started), done)


async def write_at_full_speed(
    servers: str,
    topic: str,
    *,
    record_bytes: int,
    seconds: float,
    transactional_id: str | None = None,
    transaction_s: float = TRANSACTION_S,
    idempotent: bool = True,
) -> Written:
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
        if transactional_id is None:
            await producer.send_and_wait(topic, value)
            started = time.perf_counter()
            written = (await producer.send_many(topic, until(started + seconds))).count
        else:
            async with producer.transaction():
                await producer.send_and_wait(topic, value)
            started = time.perf_counter()
            while (now := time.perf_counter()) < started + seconds:
                async with producer.transaction():
                    summary = await producer.send_many(topic, until(now + transaction_s))
                written += summary.count
                transactions_done += 1
        return Written(written, time.perf_counter() - started, transactions_done)
