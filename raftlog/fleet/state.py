"""The observed state of a cluster, as far as the reconciler decides by it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raftlog.fleet.safety import PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node, as its driver and the cluster's metadata know it."""

    node_id: int
    address: str = ""
    """`host:port`, empty while not known."""
    host: str = ""
    """Name of its machine (driver ssh)."""
    is_managed: bool = True
    """Whether the driver has the node. Otherwise only the cluster's metadata know the node."""
    is_running: bool = True
    is_ready: bool = True
    why: str | None = None
    """Why the node is not ready."""
    version: str | None = None
    has_settings: bool = True
    """Whether the node was started with the settings of the file."""
    has_data: bool = True
    """Whether the node's data directory has begun. An empty directory may be a lost disk."""
    is_registered: bool = True
    is_voter: bool = False
    is_decommissioning: bool = False
    held: int = 0
    """Replicas on the node."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic of the file, as the cluster has it."""

    partitions: int
    replication_factor: int
    """Replicas of each partition. 0 if the partitions differ."""
    config: Mapping[str, str]
    """Configs that the topic sets itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster. `nodes` is empty before the creation."""

    nodes: tuple[NodeState, ...] = ()
    """Nodes by id."""
    is_created: bool = True
    """Whether the first voters have once been ready together."""
    is_led: bool = True
    """Whether a controller is active. Otherwise membership and topics are not known."""
    cluster_id: str = ""
    controller_id: int | None = None
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    """Existing topics of the file, by name."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Partitions of each topic, except internal topics."""
    under_min_isr: tuple[PartitionState, ...] = ()
    """Partitions that refuse acks=all."""

    def node(self, node_id: int) -> NodeState:
        """The node of this id."""
        return next(node for node in self.nodes if node.node_id == node_id)

    @property
    def voters(self) -> tuple[NodeState, ...]:
        """The nodes with a vote."""
        return tuple(node for node in self.nodes if node.is_voter)
