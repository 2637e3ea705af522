"""Shapes about the cluster: metadata, leaders, replicas, reassignments, nodes, quorum, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog.api.common import REPLICAS_MAX, NodeNumber, PartitionNumber

SETTINGS_PER_REQUEST_MAX: Final = 1_000


class BrokerIds(msgspec.Struct, frozen=True):
    """The brokers of the cluster, by number."""

    brokers: list[int]


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What serves here, and where to go on."""

    name: str = "raftlog"
    version: str
    cluster_id: str
    node_id: int
    links: dict[str, str]
    """Paths of this node by their purpose."""


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster, as one of its nodes sees it."""

    cluster_id: str
    """Empty while this node does not know it yet."""
    node_id: int
    """The node that answers."""
    version: str
    """Version of this node's software."""
    controller_id: int = -1
    """The active controller; -1 while this node knows of none."""
    open_access: bool
    """Whether clients of other machines can use this node without authentication: a listener of it
    is beyond loopback, and there are no users."""
    clock_skew_ms: int | None = None
    """How far this node's wall clock is ahead of the cluster time, the median of the nodes' clocks;
    null while that is unknown."""
    replicas: int = 0
    """Replicas assigned to this node."""
    replicas_open: int = 0
    """Of these, the ones that this node has opened."""
    opening: int = 0
    """Of the rest, the ones that this node is still creating or opening."""


class MetadataBroker(msgspec.Struct, frozen=True):
    """A broker and its address."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataPartition(msgspec.Struct, frozen=True):
    """A partition's leader (-1: none), replicas, and the replicas in sync."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class MetadataTopic(msgspec.Struct, frozen=True):
    """A topic, or the error code for an unknown name."""

    name: str
    topic_id: str | None = None
    error_code: int | None = None
    partitions: list[MetadataPartition] = []
    message: str | msgspec.UnsetType = msgspec.UNSET
    """Of an error other than an unknown name; left out otherwise."""


class TopicsToProduce(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Topics that a producer is about to write to."""

    topics: list[str]


class MetadataResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes and partition leaders, as applied by one node."""

    cluster_id: str
    controller_id: int = -1
    """The active controller; -1 while this node knows of none."""
    brokers: list[MetadataBroker]
    topics: list[MetadataTopic]


class LeaderElection(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The replica to lead a partition, until the preferred replica (the first one) leads again.

    For another preferred replica, reassign the partition to the same nodes in another order.
    """

    broker: NodeNumber | None = None
    """A replica; null: the best one, but for the present leader."""
    unclean: bool = False
    """Whether a replica with missing records may lead, if no other can: those records are lost for
    good. Without a `broker` it is the living replica with the longest log."""


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica. `log_end_offset` and `lag` are null if this node does not lead the partition, or
    has not heard from the replica yet."""

    broker_id: int
    in_sync: bool = False
    log_end_offset: int | None = None
    lag: int | None = None
    """Records behind the leader's log end."""


class PartitionStatus(msgspec.Struct, frozen=True):
    """A partition and its replicas."""

    partition: int
    leader: int = -1
    leader_epoch: int = -1
    replicas: tuple[ReplicaStatus, ...] = ()
    elr: tuple[int, ...] | None = None
    """Eligible leader replicas: not in sync, but with all committed records (KIP-966)."""
    high_watermark: int | None = None
    """Null if this node does not lead the partition."""


class PartitionStatusList(msgspec.Struct, frozen=True):
    """The partitions of a topic, in order."""

    partitions: list[PartitionStatus]


class NewReassignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition and its new replicas, the preferred leader first."""

    topic: str
    partition: PartitionNumber
    replicas: Annotated[tuple[NodeNumber, ...], Meta(min_length=1, max_length=REPLICAS_MAX)]


class NewReassignments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Partitions to move. All are checked before the first is begun."""

    reassignments: Annotated[list[NewReassignment], Meta(min_length=1)]


class Reassignment(msgspec.Struct, frozen=True):
    """A partition under reassignment."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    """Nodes still to join the ISR."""
    removing: tuple[int, ...]
    """Nodes that leave once the added ones are in sync."""


class ReassignmentList(msgspec.Struct, frozen=True):
    """Partitions under reassignment, by topic and number; of `total` as many as fit."""

    total: int
    reassignments: tuple[Reassignment, ...]


class DecommissionProgress(msgspec.Struct, frozen=True):
    """Progress of a node's decommission."""

    node_id: int
    decommissioning: bool
    partitions_left: int
    """Partitions with a replica still on the node; at 0 the node may be stopped and removed."""
    partitions_moving: int
    """Of those: partitions in copy to other nodes."""
    is_empty: bool


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster. Null: not known to the answering node."""

    node_id: int
    host: str | None
    port: int | None
    kafka: str | None = None
    """`host:port` for Kafka clients; null: no Kafka listener, or not registered."""
    rack: str | None
    directory_id: str | None
    broker_epoch: int | None
    """Of its last start; null before its registration."""
    fenced: bool | None
    """Whether the controller keeps the node from leading partitions; null before registration."""
    maintenance: bool | None = None
    """Whether the node leads only partitions without another leader; null before registration."""
    can_write: bool | None = None
    """Whether its disk takes writes: while it is full or stalled, other nodes lead its partitions
    if they can. Null before the node's registration."""
    decommissioning: bool | None = None
    """Whether all its replicas are to move to other nodes; null before its registration."""
    led: int | None = None
    """Partitions led by the node."""
    held: int | None = None
    """Partitions with a replica on the node."""
    opening: int | None = None
    """Replicas that the node is still creating or opening. Null: another node answers."""
    replicas_open: int | None = None
    """Replicas, of `held`, that the node has opened. Null: another node answers."""
    clock_skew_ms: int | None = None
    """How far the node's wall clock is ahead of the cluster time, the median of the nodes' clocks.
    Null: not known, or another node answers."""
    is_voter: bool
    is_controller: bool
    connected: bool
    software_version: str | None


class NodeList(msgspec.Struct, frozen=True):
    """The nodes of the cluster, by number."""

    nodes: tuple[NodeInfo, ...]


class QuorumMember(msgspec.Struct, frozen=True):
    """A member of the metadata quorum. Null: not known to the answering node."""

    node_id: int
    host: str | None
    port: int | None
    directory_id: str | None
    """Identity of its data directory."""
    is_leader: bool
    connected: bool
    """Whether the answering node is connected to the member; true for itself."""
    match_index: int | None
    """Newest entry of the metadata log known to be durable on the member."""
    lag: int | None
    """Entries of the metadata log not known to be durable on the member."""
    last_heard_ms: int | None
    """Milliseconds since its last message; 0 for the answering node."""


class QuorumInfo(msgspec.Struct, frozen=True):
    """The metadata quorum as the node `node_id` sees it."""

    cluster_id: str
    node_id: int
    leader_id: int | None
    term: int
    is_active: bool
    """Whether this node is the active controller."""
    last_index: int
    commit_index: int
    applied_index: int
    voters: tuple[QuorumMember, ...]
    observers: tuple[QuorumMember, ...]
    """Connected members without a vote, and this node itself without one."""
    warnings: tuple[str, ...] = ()
    """What is fragile although it works, such as one vote in a cluster of three nodes."""


class NewVoter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node to get a vote. Must be connected, as an observer."""

    node_id: NodeNumber


class NewDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The empty data directory that takes the place of a lost one."""

    directory_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    """Drawn by its node at the first start (`directory.json`)."""


class LeadershipTransfer(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The voter to lead the quorum; null: the other voter with the longest log."""

    node_id: NodeNumber | None = None


class ClusterSettings(msgspec.Struct, frozen=True):
    """Topic configs set for the whole cluster, as of an index of the metadata log."""

    values: Mapping[str, str]
    index: int


class ClusterSettingsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Topic configs to set for all topics, and names to return to their defaults: all or none."""

    values: Annotated[dict[str, str], Meta(max_length=SETTINGS_PER_REQUEST_MAX)] = {}
    removals: Annotated[list[str], Meta(max_length=SETTINGS_PER_REQUEST_MAX)] = []
