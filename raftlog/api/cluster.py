"""Shapes about the cluster, from metadata and replicas to nodes, quorum and settings."""

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
    """Name and version of the service, with links to its interfaces."""

    name: str = "raftlog"
    version: str
    cluster_id: str
    node_id: int
    links: dict[str, str]
    """Paths of this node by their purpose."""


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as one node sees it."""

    cluster_id: str
    """Empty while this node does not know it yet."""
    node_id: int
    """Number of the responding node."""
    version: str
    """Version of this node's software."""
    controller_id: int = -1
    """Node id of the active controller, or -1 while this node knows none."""
    open_access: bool
    """Whether clients of other machines can use this node without authentication. True if a
    listener accepts them beyond loopback and the cluster has no users."""
    clock_skew_ms: int | None = None
    """Milliseconds by which this node's wall clock is ahead of the cluster time. Null while
    unknown. The cluster time is the median of the nodes' clocks."""
    replicas: int = 0
    """Replicas assigned to this node."""
    replicas_open: int = 0
    """Replicas assigned to this node that it has opened."""
    opening: int = 0
    """Replicas assigned to this node that it is still creating or opening."""


class MetadataBroker(msgspec.Struct, frozen=True):
    """A broker and its address."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataPartition(msgspec.Struct, frozen=True):
    """A partition's leader (-1 for none), replicas and ISR."""

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
    """Message of an error other than an unknown name, else absent."""


class TopicsToProduce(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Topics that a producer is about to write to."""

    topics: list[str]


class MetadataResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes and partition leaders, as applied by one node."""

    cluster_id: str
    controller_id: int = -1
    """Node id of the active controller, or -1 while this node knows none."""
    brokers: list[MetadataBroker]
    topics: list[MetadataTopic]


class LeaderElection(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The replica to lead a partition until the preferred (first) replica leads again.

    To change the preferred replica, reassign the partition to the same nodes in another order.
    """

    broker: NodeNumber | None = None
    """Node id of the new leader. Null selects the best replica except the present leader."""
    unclean: bool = False
    """Whether a replica with missing records may lead if no other replica can. Its missing records
    are lost permanently. Without a `broker`, the live replica with the longest log leads."""


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica. `log_end_offset` and `lag` are null on a node that does not lead the partition,
    and until the replica has contacted the leader.
    """

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
    """Eligible leader replicas, which are not in sync but have all committed records (KIP-966)."""
    high_watermark: int | None = None
    """First offset not committed yet. Null on a node that does not lead the partition."""


class PartitionStatusList(msgspec.Struct, frozen=True):
    """The partitions of a topic, in order."""

    partitions: list[PartitionStatus]


class NewReassignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition and its new replicas, the preferred leader first."""

    topic: str
    partition: PartitionNumber
    replicas: Annotated[tuple[NodeNumber, ...], Meta(min_length=1, max_length=REPLICAS_MAX)]


class NewReassignments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Partitions to move. All are checked before the first move starts."""

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
    """Nodes that leave once the added nodes are in sync."""


class ReassignmentList(msgspec.Struct, frozen=True):
    """Partitions under reassignment, by topic and number. Lists as many of `total` as fit."""

    total: int
    reassignments: tuple[Reassignment, ...]


class DecommissionProgress(msgspec.Struct, frozen=True):
    """Progress of a node's decommission."""

    node_id: int
    decommissioning: bool
    partitions_left: int
    """Partitions with a replica still on the node. At 0 the node may be stopped and removed."""
    partitions_moving: int
    """Partitions of `partitions_left` that are being copied to other nodes."""
    is_empty: bool


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster. Null if the responding node does not know the value."""

    node_id: int
    host: str | None
    port: int | None
    kafka: str | None = None
    """`host:port` for Kafka clients, or null without a Kafka listener or before registration."""
    rack: str | None
    directory_id: str | None
    broker_epoch: int | None
    """Epoch of the node's last start, or null before its registration."""
    fenced: bool | None
    """Whether the controller keeps the node from leading partitions. Null before registration."""
    maintenance: bool | None = None
    """Whether the node leads only partitions without another leader. Null before registration."""
    can_write: bool | None = None
    """Whether the node's disk accepts writes. While the disk is full or stalled, other nodes lead
    its partitions if they can. Null before the node's registration."""
    decommissioning: bool | None = None
    """Whether all replicas of the node are to move to other nodes. Null before its registration."""
    led: int | None = None
    """Partitions led by the node."""
    held: int | None = None
    """Partitions with a replica on the node."""
    opening: int | None = None
    """Replicas that the node is still creating or opening. Null if another node responds."""
    replicas_open: int | None = None
    """Replicas counted by `held` that the node has opened. Null if another node responds."""
    clock_skew_ms: int | None = None
    """Milliseconds by which the node's wall clock is ahead of the cluster time. Null while unknown
    and if another node responds. The cluster time is the median of the nodes' clocks."""
    is_voter: bool
    is_controller: bool
    connected: bool
    software_version: str | None


class NodeList(msgspec.Struct, frozen=True):
    """The nodes of the cluster, by number."""

    nodes: tuple[NodeInfo, ...]


class QuorumMember(msgspec.Struct, frozen=True):
    """A member of the metadata quorum. Null if the responding node does not know the value."""

    node_id: int
    host: str | None
    port: int | None
    directory_id: str | None
    """Identity of its data directory."""
    is_leader: bool
    connected: bool
    """Whether the responding node is connected to the member. True for itself."""
    match_index: int | None
    """Newest entry of the metadata log known to be durable on the member."""
    lag: int | None
    """Entries of the metadata log not known to be durable on the member."""
    last_heard_ms: int | None
    """Milliseconds since the member's last message. 0 for the responding node."""


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
    """Connected members without a vote, including this node if it has none."""
    warnings: tuple[str, ...] = ()
    """Weaknesses of a working quorum. An example is a single vote in a cluster of three nodes."""


class NewVoter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node that gets a vote. It must be a connected observer."""

    node_id: NodeNumber


class NewDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The empty data directory that replaces a lost directory."""

    directory_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    """Identity drawn by the directory's node at its first start (`directory.json`)."""


class LeadershipTransfer(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The voter to lead the quorum. Null selects the other voter with the longest log."""

    node_id: NodeNumber | None = None


class ClusterSettings(msgspec.Struct, frozen=True):
    """Topic configs set for the whole cluster, as of an index of the metadata log."""

    values: Mapping[str, str]
    index: int


class ClusterSettingsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Topic configs to set for all topics, and names to reset. All change or none."""

    values: Annotated[dict[str, str], Meta(max_length=SETTINGS_PER_REQUEST_MAX)] = {}
    removals: Annotated[list[str], Meta(max_length=SETTINGS_PER_REQUEST_MAX)] = []
