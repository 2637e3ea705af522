"""`raftlog bench` measures any cluster with the workloads of raftlog.workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeVar

import click

from raftlog.cli.bench.run import Field, Report, Used, Where, measured
from raftlog.cli.common.errors import CommandError
from raftlog.cli.common.options import format_option, servers_option
from raftlog.cli.common.output import MEGABYTE
from raftlog.workloads import groups as group_load
from raftlog.workloads import load
from raftlog.workloads import transactions as transaction_load
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import Progress
from raftlog.workloads.open_loop import SAMPLES_MAX, WARM_UP_S, open_loop

_Command = TypeVar("_Command", bound=Callable[..., Any])

TRANSACTIONAL_ID: Final = "raftlog-bench/"
"""Prefix of the transactional ids. Each run reuses them, since they cannot be deleted."""
_COUNT_MAX: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Rate:
    """A load on schedule."""

    rate: int
    seconds: float
    record_bytes: int
    acks: Literal["all", 1, 0]


def _topic_options(partitions: int) -> Callable[[_Command], _Command]:
    """`--topic`, or the partitions and replicas of the topic made for the run."""

    def decorate(command: _Command) -> _Command:
        for option in (
            click.option(
                "-p",
                "--partitions",
                type=click.IntRange(1, 10_000),
                default=partitions,
                show_default=True,
                help="Partitions of the topic made for the run.",
            ),
            click.option(
                "-r", "--replicas", type=click.IntRange(1), help="Copies of each partition."
            ),
            click.option("-t", "--topic", help="Use this topic, which stays, with the records."),
        ):
            command = option(command)
        return command

    return decorate


_record_bytes = click.option(
    "--record-bytes",
    type=click.IntRange(20, 1_000_000),
    default=100,
    show_default=True,
    help="Size of each value.",
)
_seconds = click.option(
    "--seconds", type=click.FloatRange(0.1, 86_400), default=10.0, show_default=True
)
_acks = click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True
)


@click.command()
@click.option(
    "-n",
    "--records",
    type=click.IntRange(1, _COUNT_MAX),
    default=1_000_000,
    show_default=True,
    help="Number of records, without --rate.",
)
@click.option(
    "--rate", type=click.IntRange(1, 1_000_000), help="Records a second, by default at full speed."
)
@_seconds
@_record_bytes
@_acks
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option("--no-idempotence", is_flag=True, help="Without sequence numbers.")
@_topic_options(6)
@servers_option
@format_option
def produce(
    *,
    records: int,
    rate: int | None,
    seconds: float,
    record_bytes: int,
    acks: str,
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"],
    no_idempotence: bool,
    topic: str | None,
    replicas: int | None,
    partitions: int,
    servers: str,
    output_format: str,
) -> None:
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
        _at_rate(
            "produce",
            Where(servers, topic, partitions, replicas),
            _Rate(rate, seconds, record_bytes, _acks_value(acks)),
            output_format,
            with_consumer=False,
        )
        return

    async def measure(used: Used, progress: Progress) -> Report:
        found = await load.produce(
            servers,
            used.topic,
            record_bytes=record_bytes,
            count=records,
            acks=_acks_value(acks),
            compression=compression,
            idempotent=not no_idempotence,
            progress=progress,
        )
        latencies = {"publishLatency": found.publish} if found.publish else {}
        parameters = {
            "messageSize": record_bytes,
            "partitions": used.partitions,
            "records": records,
            "acks": acks,
            "compression": compression,
        }
        return Report(
            "produce",
            parameters,
            [
                *_throughput("publish", records, records * record_bytes, found.seconds),
                Field("publishErrors", "failed probes", "records", found.errors),
            ],
            {name: Latencies.from_seconds(samples) for name, samples in latencies.items()},
        )

    where = Where(servers, topic, partitions, replicas)
    measured("produce", where, measure).show(output_format)


@click.command()
@click.option(
    "-n",
    "--records",
    type=click.IntRange(1, _COUNT_MAX),
    default=1_000_000,
    show_default=True,
    help="Records to write first, without --topic.",
)
@_record_bytes
@click.option("--in-group", is_flag=True, help="As a member of a new group, with commits.")
@_topic_options(6)
@servers_option
@format_option
def consume(
    *,
    records: int,
    record_bytes: int,
    in_group: bool,
    topic: str | None,
    replicas: int | None,
    partitions: int,
    servers: str,
    output_format: str,
) -> None:
    """Read a topic from its beginning to its present end, looking at every value.

    \b
      raftlog bench consume --records 5000000
      raftlog bench consume --topic orders --in-group
    """

    async def measure(used: Used, progress: Progress) -> Report:
        if topic is None:
            await load.produce(
                servers, used.topic, record_bytes=record_bytes, count=records, progress=progress
            )
        group = used.group("consume") if in_group else None
        found = await load.consume(
            servers, used.topic, used.partitions, group=group, progress=progress
        )
        size = found.size_bytes // max(found.records, 1)
        return Report(
            "consume",
            {"messageSize": size, "partitions": used.partitions, "inGroup": in_group},
            _throughput("consume", found.records, found.size_bytes, found.seconds),
            {},
        )

    where = Where(servers, topic, partitions, replicas)
    measured("consume", where, measure).show(output_format)


@click.command("end-to-end")
@click.option("--rate", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True)
@_seconds
@_record_bytes
@_acks
@_topic_options(6)
@servers_option
@format_option
def end_to_end(
    *,
    rate: int,
    seconds: float,
    record_bytes: int,
    acks: str,
    topic: str | None,
    replicas: int | None,
    partitions: int,
    servers: str,
    output_format: str,
) -> None:
    """Write at a rate and read, with latency from the due time to the consumer.

    The schedule never waits for responses, so a pause of the cluster counts for every record that
    was due in it. --topic must be empty.
    """
    _at_rate(
        "end-to-end",
        Where(servers, topic, partitions, replicas),
        _Rate(rate, seconds, record_bytes, _acks_value(acks)),
        output_format,
        with_consumer=True,
    )


@click.command()
@click.option("--members", type=click.IntRange(2, 500), default=8, show_default=True)
@click.option(
    "--trials",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="Joins and leaves of the last member.",
)
@click.option(
    "--clients",
    type=click.IntRange(1, 500),
    default=32,
    show_default=True,
    help="Clients that commit offsets at once.",
)
@_seconds
@_topic_options(64)
@servers_option
@format_option
def groups(
    *,
    members: int,
    trials: int,
    clients: int,
    seconds: float,
    topic: str | None,
    replicas: int | None,
    partitions: int,
    servers: str,
    output_format: str,
) -> None:
    """Measure a consumer group's rebalances, then offset commits for --seconds.

    A rebalance lasts from the join or leave of one member until every partition has one owner, in
    equal shares. All members and clients run in this process.
    """

    async def measure(used: Used, progress: Progress) -> Report:
        if used.partitions < members:
            raise CommandError(f"{members} members need a topic of as many partitions")
        found = await group_load.rebalances(
            servers,
            used.topic,
            used.partitions,
            used.group("rebalance"),
            members=members,
            trials=trials,
            progress=progress,
        )
        names = [used.group(f"commits-{number}") for number in range(clients)]
        prefix = names[0].removesuffix("-0")
        lone = await group_load.commits(
            servers,
            used.topic,
            used.partitions,
            prefix,
            clients=1,
            seconds=seconds / 2,
            progress=progress,
        )
        many = await group_load.commits(
            servers,
            used.topic,
            used.partitions,
            prefix,
            clients=clients,
            seconds=seconds,
            progress=progress,
        )
        parameters: dict[str, object] = {
            "members": members,
            "partitions": used.partitions,
            "clients": clients,
        }
        return _group_report(parameters, found, lone, many)

    where = Where(servers, topic, partitions, replicas)
    measured("groups", where, measure).show(output_format)


def _group_report(
    parameters: dict[str, object],
    found: group_load.Rebalances,
    lone: group_load.Commits,
    many: group_load.Commits,
) -> Report:
    return Report(
        "groups",
        parameters,
        [
            Field(
                "commitRate",
                f"commits of {parameters['clients']} clients",
                "commits/s",
                len(many.latencies) / many.seconds,
            ),
            Field(
                "keptPartitionGap",
                "longest gap of partitions that stay",
                "ms",
                max(found.kept_gaps) * 1000,
            ),
            Field(
                "calmPartitionGap",
                "the same without a rebalance",
                "ms",
                max(found.calm_gaps) * 1000,
            ),
        ],
        {
            "joinLatency": Latencies.from_seconds(found.joins),
            "leaveLatency": Latencies.from_seconds(found.leaves),
            "loneCommitLatency": Latencies.from_seconds(lone.latencies),
            "commitLatency": Latencies.from_seconds(many.latencies),
        },
    )


@click.command()
@click.option("--records", type=click.IntRange(1, 100_000), default=10, show_default=True)
@click.option(
    "--spread",
    type=click.IntRange(1, 10_000),
    default=3,
    show_default=True,
    help="Partitions that each transaction writes to.",
)
@click.option(
    "--producers",
    type=click.IntRange(1, 500),
    default=32,
    show_default=True,
    help="Producers at once, after a single producer.",
)
@_seconds
@_record_bytes
@_topic_options(6)
@servers_option
@format_option
def transactions(
    *,
    records: int,
    spread: int,
    producers: int,
    seconds: float,
    record_bytes: int,
    topic: str | None,
    replicas: int | None,
    partitions: int,
    servers: str,
    output_format: str,
) -> None:
    """Commit transactions for --seconds, by one producer and then by several.

    Latency counts from the start to the response to the commit. The transactional ids are
    raftlog-bench/0 and so on, the same in each run.
    """

    async def measure(used: Used, progress: Progress) -> Report:
        if used.partitions < spread:
            raise CommandError(f"--spread {spread} needs a topic of as many partitions")
        workload = partial(
            transaction_load.transactions,
            servers,
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
            "transactions",
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
            {
                "loneTransactionLatency": Latencies.from_seconds(lone.latencies),
                "transactionLatency": Latencies.from_seconds(many.latencies),
            },
        )

    where = Where(servers, topic, partitions, replicas)
    measured("transactions", where, measure).show(output_format)


def _at_rate(
    workload: str, where: Where, load_of: _Rate, output_format: str, *, with_consumer: bool
) -> None:
    if load_of.rate * (load_of.seconds + WARM_UP_S) > SAMPLES_MAX:
        raise click.UsageError(f"more than {SAMPLES_MAX:,} records: lower --rate or --seconds")

    async def measure(used: Used, progress: Progress) -> Report:
        samples = await open_loop(
            where.servers,
            used.topic,
            load_of.rate,
            load_of.seconds,
            consume=with_consumer,
            partitions=used.partitions,
            record_bytes=load_of.record_bytes,
            acks=load_of.acks,
            progress=progress,
        )
        found = {
            "publishLatency": samples.publish,
            "publishDelayLatency": samples.publish_delay,
            "endToEndLatency": samples.end_to_end,
        }
        return Report(
            workload,
            {
                "messageSize": load_of.record_bytes,
                "partitions": used.partitions,
                "rate": load_of.rate,
                "seconds": load_of.seconds,
                "acks": load_of.acks,
            },
            [
                Field(
                    "publishRate",
                    "acknowledged",
                    "records/s",
                    len(samples.publish) / load_of.seconds,
                ),
                Field("publishErrors", "failed", "records", samples.errors),
            ],
            {name: Latencies.from_seconds(each) for name, each in found.items() if each},
        )

    measured(workload, where, measure).show(output_format)


def _throughput(kind: str, records: int, size_bytes: int, seconds: float) -> list[Field]:
    seconds = max(seconds, 1e-9)
    verb = "written" if kind == "publish" else "read"
    return [
        Field(f"{kind}Rate", f"records {verb}", "records/s", records / seconds),
        Field(f"{kind}RateMB", "the same in bytes", "MB/s", size_bytes / seconds / MEGABYTE),
        Field("seconds", "time", "s", seconds),
    ]


def _acks_value(acks: str) -> Literal["all", 1, 0]:
    return "all" if acks == "all" else 1 if acks == "1" else 0
