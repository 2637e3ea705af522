"""`raftlog cluster info|health`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import click
import msgspec
from raftlog_client import Admin, BrokerInfo, ClusterInfo, TopicDescription

from raftlog.cli import output
from raftlog.cli.errors import ExitCode
from raftlog.cli.lazy import Lazy, LazyGroup
from raftlog.cli.options import format_option, servers_option
from raftlog.cli.session import run

if TYPE_CHECKING:
    from collections.abc import Iterable

READY_TIMEOUT_S = 5.0
PARTITIONS_LISTED_MAX = 20


@click.command()
@servers_option
@format_option
def info(servers: str, output_format: str) -> None:
    """Show the cluster's id, controller and nodes."""

    async def describe() -> ClusterInfo:
        async with Admin(bootstrap_servers=servers) as admin:
            return await admin.describe_cluster()

    cluster = run(servers, describe())
    if output_format == "json":
        output.write_json(msgspec.to_builtins(cluster))
        return
    click.echo(f"cluster {cluster.cluster_id}")
    output.write_table(
        ("node", "host", "port", "rack", "role"),
        [
            (
                broker.broker_id,
                broker.host,
                broker.port,
                broker.rack,
                "controller" if broker.broker_id == cluster.controller_id else None,
            )
            for broker in cluster.brokers
        ],
    )


@dataclass(frozen=True, slots=True)
class Health:
    """What keeps the cluster from its full promises."""

    not_ready: dict[int, str]
    """Node → why."""
    leaderless: list[str]
    """`topic/partition`s that nobody leads."""
    under_replicated: list[str]
    """`topic/partition`s with fewer replicas in sync than they have."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is amiss."""
        return not (self.not_ready or self.leaderless or self.under_replicated)


@click.command()
@servers_option
@format_option
def health(servers: str, output_format: str) -> int:
    """Say whether every node is ready and every partition led and in sync.

    The exit code is 0 if so, 1 if not, 4 if no node could be asked.
    """

    async def look() -> Health:
        async with Admin(bootstrap_servers=servers) as admin:
            cluster = await admin.describe_cluster()
            topics = await admin.describe_topics()
        return _health(topics, await _not_ready(cluster.brokers))

    found = run(servers, look())
    if output_format == "json":
        output.write_json({"healthy": found.is_healthy, **msgspec.to_builtins(found)})
    else:
        for line in _lines(found):
            click.echo(line)
    return ExitCode.OK if found.is_healthy else ExitCode.FAILED


def _health(topics: Iterable[TopicDescription], not_ready: dict[int, str]) -> Health:
    partitions = [partition for topic in topics for partition in topic.partitions]
    return Health(
        not_ready,
        [f"{info.topic}/{info.partition}" for info in partitions if info.leader is None],
        [
            f"{info.topic}/{info.partition}"
            for info in partitions
            if len(info.isr) < len(info.replicas)
        ],
    )


async def _not_ready(brokers: Iterable[BrokerInfo]) -> dict[int, str]:
    timeout = aiohttp.ClientTimeout(total=READY_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def reason(broker: BrokerInfo) -> tuple[int, str | None]:
            host = f"[{broker.host}]" if ":" in broker.host else broker.host
            try:
                async with session.get(f"http://{host}:{broker.port}/ready") as response:
                    is_ready = response.status == 200
                    return broker.broker_id, None if is_ready else _reason(await response.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                return broker.broker_id, f"does not answer: {error}"

        answers = await asyncio.gather(*map(reason, brokers))
    return {broker_id: why for broker_id, why in answers if why is not None}


def _reason(body: bytes) -> str:
    try:
        answer: Any = msgspec.json.decode(body)
        return str(answer["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _lines(found: Health) -> Iterable[str]:
    if found.is_healthy:
        yield "healthy"
        return
    yield "not healthy"
    for broker_id, why in sorted(found.not_ready.items()):
        yield f"  node {broker_id}: {why}"
    for words, partitions in (
        ("without a leader", found.leaderless),
        ("under-replicated", found.under_replicated),
    ):
        if partitions:
            more = ", …" if len(partitions) > PARTITIONS_LISTED_MAX else ""
            listed = ", ".join(partitions[:PARTITIONS_LISTED_MAX])
            yield f"  {words}: {len(partitions)} ({listed}{more})"


cluster = LazyGroup(
    "cluster",
    subcommands={
        "info": Lazy(__name__, "info", "Show the cluster's id, controller and nodes."),
        "health": Lazy(__name__, "health", "Say whether all is well; the exit code too."),
    },
    help="Show the cluster and its health.",
)
