"""`raftlog cluster info|health|remove-node`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import click
import msgspec
from raftlog_client import Admin, ClusterInfo, NodeInfo, QuorumInfo, ServerError, TopicDescription

from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.options import format_option, servers_option
from raftlog.cli.common.session import run, unready_too
from raftlog.fleet.partitions import min_isr_by_topic, out_of_sync
from raftlog.record.decoders import json_decoder
from raftlog.record.errors import NOT_READY
from raftlog.world.cluster_clock import CLOCK_SKEW_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

READY_TIMEOUT_S = 5.0
PARTITIONS_LISTED_MAX = 20


@click.command()
@servers_option
@format_option
def info(servers: str, output_format: str) -> None:
    """Show the cluster's id, controller and nodes."""

    async def describe() -> tuple[ClusterInfo, tuple[NodeInfo, ...]]:
        async with Admin(bootstrap_servers=servers) as admin:
            return await admin.describe_cluster(), await admin.describe_nodes()

    cluster, nodes = run(servers, describe())
    if output_format == "json":
        output.write_json({**msgspec.to_builtins(cluster), "nodes": msgspec.to_builtins(nodes)})
        return
    click.echo(f"cluster {cluster.cluster_id}")
    output.write_table(
        ("node", "host", "port", "rack", "role", "fenced", "writes", "leads", "holds", "request"),
        [
            (
                node.node_id,
                node.host,
                node.port,
                node.rack,
                _role(node),
                _yes(node.fenced),
                _yes(node.can_write),
                node.led,
                node.held,
                _request(node),
            )
            for node in nodes
        ],
    )


def _role(node: NodeInfo) -> str:
    if node.is_controller:
        return "leader"
    return "voter" if node.is_voter else "observer"


def _yes(answer: bool | None) -> str | None:
    return None if answer is None else "yes" if answer else "no"


def _request(node: NodeInfo) -> str | None:
    """Operator requests to the node, other than serving."""
    if node.decommissioning:
        return "decommission"
    return "maintenance" if node.maintenance else None


@dataclass(frozen=True, slots=True)
class OpeningReplicas:
    """Progress of one node with its replicas."""

    replicas: int
    """Replicas assigned to the node."""
    open: int
    opening: int


@dataclass(frozen=True, slots=True)
class Health:
    """Findings that keep the cluster from its full promises."""

    quorum: list[str]
    """Faults of the metadata quorum."""
    fenced: list[int]
    """Nodes without a live session at the controller."""
    unwritable: list[int]
    """Nodes without a writable disk, which are full or hang."""
    not_ready: dict[int, str]
    """Reasons of nodes that are not ready, by node."""
    opening: dict[int, OpeningReplicas]
    """Nodes that are still creating or opening replicas."""
    clocks: dict[int, int]
    """Milliseconds that a clock to be set is ahead of the cluster time, by node."""
    leaderless: list[str]
    """`topic/partition`s without a leader."""
    below_min_isr: list[str]
    """`topic/partition`s with fewer replicas in sync than min.insync.replicas. They reject
    acks=all."""
    under_replicated: list[str]
    """`topic/partition`s with fewer replicas in sync than replicas."""
    warnings: list[str]
    """Fragile points of a cluster without a fault."""

    @property
    def is_healthy(self) -> bool:
        """Whether no fault was found."""
        return not (
            self.quorum
            or self.fenced
            or self.unwritable
            or self.not_ready
            or self.opening
            or self.leaderless
            or self.below_min_isr
            or self.under_replicated
        )


@click.command()
@servers_option
@format_option
def health(servers: str, output_format: str) -> int:
    """Check the health of the quorum, of every node, and of every partition.

    A healthy cluster has an active controller and reaches every voter. Every node is ready, not
    fenced, and its disk takes writes. Every partition is led and all its replicas are in sync.
    Partitions with fewer replicas in sync than min.insync.replicas reject acks=all and are named as
    well.

    A cluster that is healthy but would not survive the loss of a node, for want of votes, gets a
    warning. So does a node with a clock 10 minutes off the cluster time, the median of all clocks.

    The exit code is 0 if healthy, 1 if not, 4 without a response of any node.
    """

    async def look() -> Health:
        async with unready_too(servers) as admin:
            nodes = await admin.describe_nodes()
            quorum = await admin.describe_quorum()
            not_ready = await _not_ready(nodes)
            try:
                topics = await admin.describe_topics()
            except ServerError as error:
                # No node is ready to report partitions, and the reason is known.
                if error.entry is not NOT_READY or not not_ready:
                    raise
                topics = []
            described = await admin.describe_each_node()
            names = [topic.name for topic in out_of_sync(topics)]
            min_isr = await min_isr_by_topic(admin, names)
            return _health(
                quorum, nodes, topics, not_ready=not_ready, described=described, min_isr=min_isr
            )

    found = run(servers, look())
    if output_format == "json":
        output.write_json({"healthy": found.is_healthy, **msgspec.to_builtins(found)})
    else:
        for line in _lines(found):
            click.echo(line)
    return ExitCode.OK if found.is_healthy else ExitCode.FAILED


@click.command("remove-node")
@click.argument("node", type=click.IntRange(1, 2**31 - 1))
@servers_option
@format_option
def remove_node(node: int, servers: str, output_format: str) -> None:
    """Unregister node NODE, which is gone for good.

    A node with an empty data directory may then join under its id (`raftlog serve --join`). The
    node must be stopped, have no vote (`raftlog quorum remove-voter`) and hold no replicas.
    """

    async def change() -> None:
        async with unready_too(servers) as admin:
            await admin.remove_node(node)

    try:
        run(servers, change())
    except CommandError as error:
        # The error names the first step. The remaining question is the cluster's state.
        error.hint = error.hint or "`raftlog cluster info` shows which nodes live and vote."
        raise
    if output_format == "json":
        output.write_json({"node_id": node, "is_registered": False})
    else:
        output.message(
            f"node {node} is forgotten: with an empty data directory one of that id may join again "
            "(`raftlog serve --join`)"
        )


def _health(
    quorum: QuorumInfo,
    nodes: Iterable[NodeInfo],
    topics: Iterable[TopicDescription],
    *,
    not_ready: dict[int, str],
    described: dict[int, NodeInfo],
    min_isr: dict[str, int],
) -> Health:
    """Judge `described`, the nodes by themselves, and the metadata.

    `min_isr` is by topic, and unknown for a missing topic.
    """
    partitions = [partition for topic in topics for partition in topic.partitions]
    return Health(
        quorum=list(_quorum_faults(quorum)),
        fenced=[node.node_id for node in nodes if node.fenced],
        unwritable=[node.node_id for node in nodes if node.can_write is False],
        not_ready=not_ready,
        opening={
            node_id: OpeningReplicas(node.held or 0, node.replicas_open or 0, node.opening)
            for node_id, node in described.items()
            if node.opening
        },
        clocks=wrong_clocks(described),
        leaderless=[f"{info.topic}/{info.partition}" for info in partitions if info.leader is None],
        below_min_isr=[
            f"{info.topic}/{info.partition}"
            for info in partitions
            # A topic with fewer replicas needs all of them.
            if len(info.isr) < min(min_isr.get(info.topic, 0), len(info.replicas))
        ],
        under_replicated=[
            f"{info.topic}/{info.partition}"
            for info in partitions
            if len(info.isr) < len(info.replicas)
        ],
        warnings=list(quorum.warnings),
    )


def wrong_clocks(described: dict[int, NodeInfo]) -> dict[int, int]:
    """Milliseconds that clocks to be set are ahead of the cluster time, by node."""
    return {
        node_id: node.clock_skew_ms
        for node_id, node in described.items()
        if node.clock_skew_ms is not None and abs(node.clock_skew_ms) > CLOCK_SKEW_MS_MAX
    }


def clock_warnings(clocks: dict[int, int]) -> Iterable[str]:
    """A line for each of `wrong_clocks`."""
    for node_id, skew_ms in sorted(clocks.items()):
        yield (
            f"the clock of node {node_id} is {abs(skew_ms) // 1000:,} s "
            f"{'ahead of' if skew_ms > 0 else 'behind'} the cluster time, the median of the nodes' "
            "clocks: it keeps records longer; set the clock"
        )


def _quorum_faults(quorum: QuorumInfo) -> Iterable[str]:
    if quorum.leader_id is None:
        yield "there is no active controller"
    for voter in quorum.voters:
        if not voter.connected:
            # Of two nodes without a connection to each other, the leader's view counts.
            yield f"node {quorum.node_id} does not reach voter {voter.node_id}"


async def _not_ready(nodes: Iterable[NodeInfo]) -> dict[int, str]:
    timeout = aiohttp.ClientTimeout(total=READY_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def reason(node: NodeInfo) -> tuple[int, str | None]:
            if not (node.host and node.port):
                return node.node_id, "nobody knows its address"
            host = f"[{node.host}]" if ":" in node.host else node.host
            try:
                async with session.get(f"http://{host}:{node.port}/ready") as response:
                    is_ready = response.status == 200
                    return node.node_id, None if is_ready else _reason(await response.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                return node.node_id, f"does not answer: {error}"

        answers = await asyncio.gather(*map(reason, nodes))
    return {node_id: why for node_id, why in answers if why is not None}


def _reason(body: bytes) -> str:
    try:
        answer = json_decoder(dict[str, object]).decode(body)
        return str(answer["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _lines(found: Health) -> Iterable[str]:
    yield "healthy" if found.is_healthy else "not healthy"
    for warning in (*found.warnings, *clock_warnings(found.clocks)):
        yield f"  warning: {warning}"
    for fault in found.quorum:
        yield f"  quorum: {fault}"
    for words, node_ids in (("fenced", found.fenced), ("disk full, or hangs", found.unwritable)):
        if node_ids:
            yield f"  {words}: {', '.join(f'node {node_id}' for node_id in node_ids)}"
    for broker_id, why in sorted(found.not_ready.items()):
        yield f"  node {broker_id}: {why}"
    for broker_id, one in sorted(found.opening.items()):
        yield (
            f"  node {broker_id}: {one.open:,} of {one.replicas:,} replicas open, "
            f"{one.opening:,} are being opened"
        )
    for words, partitions in (
        ("without a leader", found.leaderless),
        ("below min.insync.replicas, acks=all is refused", found.below_min_isr),
        ("under-replicated", found.under_replicated),
    ):
        if partitions:
            more = ", …" if len(partitions) > PARTITIONS_LISTED_MAX else ""
            listed = ", ".join(partitions[:PARTITIONS_LISTED_MAX])
            yield f"  {words}: {len(partitions)} ({listed}{more})"
