"""Observes a cluster, its nodes by the driver, membership and topics by the client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from raftlog_client import (
    Admin,
    ConfigEntry,
    NodeInfo,
    QuorumInfo,
    RaftlogClientError,
    TopicDescription,
)

from raftlog.cluster.manifest import host_port
from raftlog.cluster.membership import NO_ANSWER, Probes, admin_of
from raftlog.fleet.drivers.driver import Driver, Machines
from raftlog.fleet.partitions import out_of_sync, partition_states
from raftlog.fleet.safety import PartitionState
from raftlog.fleet.spec import ClusterSpec, TopicSpec
from raftlog.fleet.state import ClusterState, NodeState, TopicState
from raftlog.record.coordinators import INTERNAL_TOPICS

TOPIC_SOURCE: Final = "DYNAMIC_TOPIC_CONFIG"
"""Source of a config that the topic sets. A default may change with the number of replicas."""


@dataclass(frozen=True, slots=True)
class _Metadata:
    """A cluster's own view."""

    cluster_id: str
    nodes: Mapping[int, NodeInfo]
    quorum: QuorumInfo
    topics: Mapping[str, TopicDescription]
    configs: Mapping[str, Mapping[str, ConfigEntry]]
    under_min_isr: tuple[PartitionState, ...]


async def observe(
    spec: ClusterSpec, driver: Driver, topics: Sequence[TopicSpec] = ()
) -> ClusterState:
    """Observe a cluster and the file's `topics`. Raises FleetError, OSError."""
    machines = await driver.inspect()
    if not machines.nodes and not machines.is_created:
        return ClusterState(is_created=False, is_led=False)
    addresses = [node.address for node in machines.nodes]
    probes = Probes()
    try:
        metadata = await _metadata(addresses, probes, topics)
        nodes = _nodes(spec, machines, metadata)
        found = await asyncio.gather(*(_probed(node, probes) for node in nodes))
    finally:
        await probes.close()
    if metadata is None:
        return ClusterState(nodes=tuple(found), is_created=machines.is_created, is_led=False)
    managed_topics = {topic.name for topic in topics}
    return ClusterState(
        nodes=tuple(found),
        is_created=machines.is_created,
        cluster_id=metadata.cluster_id,
        controller_id=metadata.quorum.leader_id,
        topics={
            name: _topic(metadata.topics[name], metadata.configs[name])
            for name in sorted(managed_topics & metadata.configs.keys())
        },
        partitions={
            name: len(topic.partitions)
            for name, topic in sorted(metadata.topics.items())
            if name not in INTERNAL_TOPICS
        },
        under_min_isr=metadata.under_min_isr,
    )


async def _metadata(
    addresses: Sequence[str], probes: Probes, topics: Sequence[TopicSpec]
) -> _Metadata | None:
    """The cluster's own view. None without an active controller or a ready node."""
    if await probes.controller(*addresses) is None:
        return None
    try:
        async with admin_of(addresses) as admin:
            nodes = {node.node_id: node for node in await admin.describe_nodes()}
            described = {topic.name: topic for topic in await admin.describe_topics()}
            names = [topic.name for topic in topics if topic.name in described]
            configs = {name: await admin.describe_configs(name) for name in names}
            return _Metadata(
                cluster_id=(await admin.describe_cluster()).cluster_id,
                nodes=nodes,
                quorum=await admin.describe_quorum(),
                topics=described,
                configs=configs,
                under_min_isr=await _under_min_isr(admin, described),
            )
    except RaftlogClientError as error:
        if not error.retriable:
            raise
        # No node is ready yet, or the controller has just died.
        return None


async def _under_min_isr(
    admin: Admin, topics: Mapping[str, TopicDescription]
) -> tuple[PartitionState, ...]:
    states = await partition_states(admin, out_of_sync(topics.values()))
    return tuple(state for state in states if state.is_under_min_isr)


async def _probed(node: NodeState, probes: Probes) -> NodeState:
    """Complete a node with its readiness, and the version unless the driver knows it."""
    reason = await probes.why_not_ready(node.address)
    version = node.version
    if version is None and not node.host and reason != NO_ANSWER:
        version = await probes.version(node.address)
    why = None if reason is None else node.why or reason
    return replace(node, is_ready=reason is None, why=why, version=version)


def _nodes(
    spec: ClusterSpec, machines: Machines, metadata: _Metadata | None
) -> tuple[NodeState, ...]:
    """Nodes of the driver and nodes of the metadata as one list, by id."""
    known = {} if metadata is None else metadata.nodes
    found = {node.node_id: _joined(node, known.get(node.node_id)) for node in machines.nodes}
    for node_id, info in known.items():
        if node_id in found or info.host is None or info.port is None:
            continue
        if info.broker_epoch is None and not info.is_voter:
            continue  # unregistered, though its connection may last a moment longer
        # The driver does not find the node. Its host does not respond, or it has left the driver.
        why = machines.unreachable.get(info.host)
        alone = NodeState(
            node_id=node_id,
            address=host_port(info.host, info.port),
            host=info.host if spec.driver == "ssh" else "",
            is_managed=why is not None,
            is_running=False,
            why=why,
        )
        found[node_id] = _joined(alone, info)
    return tuple(found[node_id] for node_id in sorted(found))


def _joined(node: NodeState, info: NodeInfo | None) -> NodeState:
    """A driver's node with what the metadata know about it."""
    if info is None:
        return replace(node, is_registered=False)
    return replace(
        node,
        is_registered=info.broker_epoch is not None,
        is_voter=info.is_voter,
        is_decommissioning=bool(info.decommissioning),
        held=info.held or 0,
    )


def _topic(topic: TopicDescription, configs: Mapping[str, ConfigEntry]) -> TopicState:
    factors = {len(info.replicas) for info in topic.partitions}
    return TopicState(
        len(topic.partitions),
        factors.pop() if len(factors) == 1 else 0,
        {
            name: entry.value
            for name, entry in configs.items()
            if entry.value is not None and entry.source == TOPIC_SOURCE
        },
    )
