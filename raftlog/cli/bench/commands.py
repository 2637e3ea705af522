"""`raftlog bench` measures any cluster with the workloads of raftlog.workloads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final, Literal

import click

from raftlog.cli.bench.run import Field, Measurement, Report, Used, measure_on
from raftlog.cli.common.errors import CommandError
from raftlog.cli.common.options import (
    acks_option,
    acks_value,
    compression_option,
    format_option,
    servers_option,
)
from raftlog.cli.common.output import MEGABYTE
from raftlog.workloads import groups as group_load
from raftlog.workloads import load
from raftlog.workloads import transactions as transaction_load
from raftlog.workloads.load import Progress
from raftlog.workloads.open_loop import SAMPLES_MAX, WARM_UP_S, open_loop

TRANSACTIONAL_ID: Final = "raftlog-bench/"
"""Prefix of the transactional ids. Each run reuses them, since they cannot be deleted."""
_COUNT_MAX: Final = 1_000_000_000


def _on_topic(partitions: int) -> Callable[[Callable[..., Measurement]], Callable[..., None]]:
    """The command runs its measurement on `--topic` or on a new topic."""

    def decorate(command: Callable[..., Measurement]) -> Callable[..., None]:
        @click.option("-t", "--topic", help="Use this topic, which stays, with the records.")
        @click.option("-r", "--replicas", type=click.IntRange(1), help="Copies of each partition.")
        @click.option(
            "-p",
            "--partitions",
            type=click.IntRange(1, 10_000),
            default=partitions,
            help="Partitions of the topic made for the run.",
        )
        @servers_option
        @format_option
        @wraps(command)
        def run(
            *,
            topic: str | None,
            replicas: int | None,
            partitions: int,
            servers: str,
            output_format: str,
            **options: Any,
        ) -> None:
            workload = command.__name__.replace("_", "-")
            report = measure_on(
                workload,
                command(**options),
                servers=servers,
                topic=topic,
                partitions=partitions,
                replicas=replicas,
            )
            report.show(workload, output_format)

        return run

    return decorate


_record_bytes = click.option(
    "--record-bytes", type=click.IntRange(20, 1_000_000), default=100, help="Size of each value."
)
_seconds = click.option("--seconds", type=click.FloatRange(0.1, 86_400), default=10.0)
_acks = acks_option()


@click.command()
@click.option(
    "-n",
    "--records",
    type=click.IntRange(1, _COUNT_MAX),
    default=1_000_000,
    help="Number of records, without --rate.",
)
@click.option(
    "--rate", type=click.IntRange(1, 1_000_000), help="Records a second, by default at full speed."
)
@_seconds
@_record_bytes
@_acks
@compression_option()
@click.option("--no-idempotence", is_flag=True, help="Without sequence numbers.")
@_on_topic(6)
def produce(
    *,
    records: int,
    rate: int | None,
    seconds: float,
    record_bytes: int,
    acks: str,
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"],
    no_idempotence: bool,
) -> Measurement:
    """Write records at full speed, or at a rate for --seconds.

    At full speed publish latency is that of a record sent alone beside the load every 10 ms. At a
    rate it counts from the moment when the record was due.

    \b
      raftlog bench produce --records 5000000 --record-bytes 1000
      raftlog bench produce --rate 1000 --seconds 30
    """
    if rate is not None:
        if compression != "none" or no_idempotence:
            raise click.UsageError("--compression and --no-idempotence are for full speed")
        return _at_rate(rate, seconds, record_bytes, acks, with_consumer=False)

    async def measure(used: Used, progress: Progress) -> Report:
        found = await load.produce(
            used.servers,
            used.topic,
            record_bytes=record_bytes,
            count=records,
            acks=acks_value(acks),
            compression=compression,
            idempotent=not no_idempotence,
            progress=progress,
        )
        return Report(
            {
                "messageSize": record_bytes,
                "partitions": used.partitions,
                "records": records,
                "acks": acks,
                "compression": compression,
            },
            [
                *_throughput("publish", records, records * record_bytes, found.seconds),
                Field("publishErrors", "failed probes", "records", found.errors),
            ],
            {"publishLatency": found.publish},
        )

    return measure


@click.command()
@click.option(
    "-n",
    "--records",
    type=click.IntRange(1, _COUNT_MAX),
    default=1_000_000,
    help="Records to write first, without --topic.",
)
@_record_bytes
@click.option("--in-group", is_flag=True, help="As a member of a new group, with commits.")
@_on_topic(6)
def consume(*, records: int, record_bytes: int, in_group: bool) -> Measurement:
    """Read a topic from its beginning to its present end, looking at every value.

    \b
      raftlog bench consume --records 5000000
      raftlog bench consume --topic orders --in-group
    """

    async def measure(used: Used, progress: Progress) -> Report:
        if used.is_own:
            await load.produce(
                used.servers,
                used.topic,
                record_bytes=record_bytes,
                count=records,
                progress=progress,
            )
        group = used.group("consume") if in_group else None
        found = await load.consume(
            used.servers, used.topic, used.partitions, group=group, progress=progress
        )
        size = found.size_bytes // max(found.records, 1)
        return Report(
            {"messageSize": size, "partitions": used.partitions, "inGroup": in_group},
            _throughput("consume", found.records, found.size_bytes, found.seconds),
            {},
        )

    return measure


@click.command("end-to-end")
@click.option("--rate", type=click.IntRange(1, 1_000_000), default=1_000)
@_seconds
@_record_bytes
@_acks
@_on_topic(6)
def end_to_end(*, rate: int, seconds: float, record_bytes: int, acks: str) -> Measurement:
    """Write at a rate and read, with latency from the due time to the consumer.

    The schedule never waits for responses, so a pause of the cluster counts for every record that
    was due in it. --topic must be empty.
    """
    return _at_rate(rate, seconds, record_bytes, acks, with_consumer=True)


@click.command()
@click.option("--members", type=click.IntRange(2, 500), default=8)
@click.option(
    "--trials",
    type=click.IntRange(1, 10_000),
    default=10,
    help="Joins and leaves of the last member.",
)
@click.option(
    "--clients",
    type=click.IntRange(1, 500),
    default=32,
    help="Clients that commit offsets at once.",
)
@_seconds
@_on_topic(64)
def groups(*, members: int, trials: int, clients: int, seconds: float) -> Measurement:
    """Measure a consumer group's rebalances, then offset commits for --seconds.

    A rebalance lasts from the join or leave of one member until every partition has one owner, in
    equal shares. All members and clients run in this process.
    """

    async def measure(used: Used, progress: Progress) -> Report:
        if used.partitions < members:
            raise CommandError(f"{members} members need a topic of as many partitions")
        found = await group_load.rebalances(
            used.servers,
            used.topic,
            used.partitions,
            used.group("rebalance"),
            members=members,
            trials=trials,
            progress=progress,
        )
        names = [used.group(f"commits-{number}") for number in range(clients)]
        commits = partial(
            group_load.commits,
            used.servers,
            used.topic,
            used.partitions,
            names[0].removesuffix("-0"),
            progress=progress,
        )
        lone = await commits(clients=1, seconds=seconds / 2)
        many = await commits(clients=clients, seconds=seconds)
        kept_ms, calm_ms = max(found.kept_gaps) * 1000, max(found.calm_gaps) * 1000
        rate = len(many.latencies) / many.seconds
        return Report(
            {"members": members, "partitions": used.partitions, "clients": clients},
            [
                Field("commitRate", f"commits of {clients} clients", "commits/s", rate),
                Field("keptPartitionGap", "longest gap of partitions that stay", "ms", kept_ms),
                Field("calmPartitionGap", "the same without a rebalance", "ms", calm_ms),
            ],
            {
                "joinLatency": found.joins,
                "leaveLatency": found.leaves,
                "loneCommitLatency": lone.latencies,
                "commitLatency": many.latencies,
            },
        )

    return measure


@click.command()
@click.option("--records", type=click.IntRange(1, 100_000), default=10)
@click.option(
    "--spread",
    type=click.IntRange(1, 10_000),
    default=3,
    help="Partitions that each transaction writes to.",
)
@click.option(
    "--producers",
    type=click.IntRange(1, 500),
    default=32,
    help="Producers at once, after a single producer.",
)
@_seconds
@_record_bytes
@_on_topic(6)
def transactions(
    *, records: int, spread: int, producers: int, seconds: float, record_bytes: int
) -> Measurement:
    """Commit transactions for --seconds, by one producer and then by several.

    Latency counts from the start to the response to the commit. The transactional ids are
    raftlog-bench/0 and so on, the same in each run.
    """

    async def measure(used: Used, progress: Progress) -> Report:
        if used.partitions < spread:
            raise CommandError(f"--spread {spread} needs a topic of as many partitions")
        workload = partial(
            transaction_load.transactions,
            used.servers,
            used.topic,
            TRANSACTIONAL_ID,
            records=records,
            partitions=spread,
            record_bytes=record_bytes,
            progress=progress,
        )
        lone = await workload(producers=1, seconds=seconds / 2)
        many = await workload(producers=producers, seconds=seconds)
        return Report(
            {
                "messageSize": record_bytes,
                "partitions": used.partitions,
                "records": records,
                "spread": spread,
                "producers": producers,
            },
            [
                Field(
                    "transactionRate",
                    f"transactions of {producers} producers",
                    "transactions/s",
                    len(many.latencies) / many.seconds,
                ),
                Field(
                    "loneTransactionRate",
                    "transactions of one producer",
                    "transactions/s",
                    len(lone.latencies) / lone.seconds,
                ),
            ],
            {"loneTransactionLatency": lone.latencies, "transactionLatency": many.latencies},
        )

    return measure


def _at_rate(
    rate: int, seconds: float, record_bytes: int, acks: str, *, with_consumer: bool
) -> Measurement:
    if rate * (seconds + WARM_UP_S) > SAMPLES_MAX:
        raise click.UsageError(f"more than {SAMPLES_MAX:,} records: lower --rate or --seconds")

    async def measure(used: Used, progress: Progress) -> Report:
        samples = await open_loop(
            used.servers,
            used.topic,
            rate,
            seconds,
            consume=with_consumer,
            partitions=used.partitions,
            record_bytes=record_bytes,
            acks=acks_value(acks),
            progress=progress,
        )
        return Report(
            {
                "messageSize": record_bytes,
                "partitions": used.partitions,
                "rate": rate,
                "seconds": seconds,
                "acks": acks_value(acks),
            },
            [
                Field("publishRate", "acknowledged", "records/s", len(samples.publish) / seconds),
                Field("publishErrors", "failed", "records", samples.errors),
            ],
            {
                "publishLatency": samples.publish,
                "publishDelayLatency": samples.publish_delay,
                "endToEndLatency": samples.end_to_end,
            },
        )

    return measure


def _throughput(kind: str, records: int, size_bytes: int, seconds: float) -> list[Field]:
    seconds = max(seconds, 1e-9)
    verb = "written" if kind == "publish" else "read"
    return [
        Field(f"{kind}Rate", f"records {verb}", "records/s", records / seconds),
        Field(f"{kind}RateMB", "the same in bytes", "MB/s", size_bytes / seconds / MEGABYTE),
        Field("seconds", "time", "s", seconds),
    ]
