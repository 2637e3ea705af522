"""The services of one node, as its broker uses them, and the node's readiness.

Readiness has two levels. A starting or stopping node serves nothing, because it may merely not have
read an unknown topic yet (`NodeServices.readiness`). A node without an active controller can still
read and write the partitions that it leads. It serves, and the quorum itself refuses changes of
metadata (NO_CONTROLLER). But the node is not *ready* (`unready`), because a load balancer or a
rolling restart should prefer the other nodes. The same holds for a fenced node, and after a start
until each replica has been in sync once, because the next node's stop would leave too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from raftlog.controller.disk_watch import DiskWatch
from raftlog.coordinator.shard.service import Coordinators
from raftlog.coordinator.shard.status import CoordinatorStatus
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.raft import RaftMember
from raftlog.record.errors import NO_CONTROLLER, NOT_READY, LogError
from raftlog.record.types import BrokerId
from raftlog.replication.cluster_metadata import ClusterMetadata
from raftlog.replication.manager import ReplicaManager, ReplicationStatus
from raftlog.routing.router import PartitionRouter
from raftlog.storage.manager import LogManager
from raftlog.world import Clock, Randomness
from raftlog.world.cluster_clock import ClusterClock


class Readiness:
    """Whether a node serves. A node without an active controller serves."""

    def __init__(self) -> None:
        self.reason: str | None = "The node is starting."
        """Why the node does not serve. None while it serves."""

    def started(self) -> None:
        """Serve from now on."""
        self.reason = None

    def stopping(self) -> None:
        """Serve no more."""
        self.reason = "The node is stopping."


@dataclass(frozen=True, slots=True)
class NodeServices:
    """The parts of a running node that the broker builds on."""

    replicas: ReplicaManager
    """The replicas of this node."""
    partitions: PartitionRouter
    """All partitions of the cluster, on any node."""
    metadata: ClusterMetadata
    coordinators: Coordinators
    """The coordinators of groups and transactions, on any node."""
    quorum: RaftMember[ApplyResult]
    logs: LogManager
    clock: Clock
    cluster_clock: ClusterClock
    randomness: Randomness
    node_id: BrokerId
    replication: Callable[[], ReplicationStatus]
    """Sums over all replicas of this node, for metrics."""
    coordination: Callable[[], CoordinatorStatus]
    """Sums over all coordinators of this node, for metrics."""
    readiness: Readiness
    """Whether the node serves. If not, listeners refuse every request."""
    catching_up: Callable[[], str | None]
    """None once the replicas have been in sync since the start, otherwise those that lag."""
    disk: DiskWatch
    """Whether this node's disk takes writes. If not, the node resigns its leadership."""

    @property
    def cluster_id(self) -> str:
        """The cluster's identity, empty before this node knows it."""
        return self.metadata.image.cluster_id or ""


def cluster_hosts(services: NodeServices) -> Iterator[str]:
    """The hosts of the cluster's nodes, as nodes and clients know them."""
    for voter in services.quorum.voters.voters:
        yield voter.host
    for broker in services.metadata.image.brokers.values():
        yield broker.host


def unready(services: NodeServices) -> LogError | None:
    """None while the node is ready, otherwise the error with the reason."""
    reason = services.readiness.reason
    if reason is not None:
        return LogError(NOT_READY, reason)
    quorum = services.quorum
    leader_id = quorum.leader_id
    if leader_id is None:
        return LogError(
            NO_CONTROLLER,
            f"Node {services.node_id} knows no active controller: {_reach(services)} Its "
            "partitions are served; topics, leaders and settings cannot be changed.",
        )
    if leader_id == services.node_id and not quorum.is_active:
        return LogError(
            NO_CONTROLLER,
            f"Node {services.node_id} has been elected controller and is not active yet.",
        )
    broker = services.metadata.image.brokers.get(services.node_id)
    if broker is not None and broker.fenced:
        return LogError(
            NOT_READY,
            f"Node {services.node_id} is fenced: controller {leader_id} has not heard from it, and "
            "has it lead nothing.",
        )
    catching_up = services.catching_up()
    return None if catching_up is None else LogError(NOT_READY, catching_up)


def _reach(services: NodeServices) -> str:
    """The number of voters this node reaches, itself included."""
    voters = services.quorum.voters
    peers = services.quorum.peers()
    reached = sum(node_id == services.node_id or node_id in peers for node_id in voters.ids)
    return f"it reaches {reached} of {len(voters.ids)} voters, {voters.majority} are needed."
