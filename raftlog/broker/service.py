"""What a node offers to those who serve its users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftlog.metadata.apply import ApplyResult
from raftlog.raft import RaftMember
from raftlog.record.types import BrokerId
from raftlog.replication.cluster_metadata import ClusterMetadata
from raftlog.replication.manager import ReplicaManager, ReplicationStatus
from raftlog.routing.router import PartitionRouter
from raftlog.storage.manager import LogManager
from raftlog.world import Clock, Randomness


@dataclass(frozen=True, slots=True)
class Services:
    """The node as the HTTP layer sees it."""

    replicas: ReplicaManager
    partitions: PartitionRouter
    """All partitions of the cluster, wherever they are led."""
    metadata: ClusterMetadata
    quorum: RaftMember[ApplyResult]
    logs: LogManager
    clock: Clock
    randomness: Randomness
    node_id: BrokerId
    replication: Callable[[], ReplicationStatus]
    """Sums over all replicas of this node, for metrics."""
    is_ready: Callable[[], str | None]
    """None when the node serves; otherwise why it does not (it starts, or stops): then every
    request is refused. A node without an active controller serves; see http/health.py."""
    can_write: Callable[[], bool] = lambda: True
    """Whether this node's disk takes writes: if not, others lead what they can."""

    @property
    def cluster_id(self) -> str:
        """The cluster's identity; empty before this node knows it."""
        return self.metadata.image.cluster_id or ""
