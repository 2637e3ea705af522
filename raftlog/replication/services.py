"""What a node offers to those who serve its users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftlog.record.types import BrokerId
from raftlog.replication.cluster_metadata import ClusterMetadata
from raftlog.replication.manager import ReplicaManager
from raftlog.storage.manager import LogManager
from raftlog.world import Clock, Randomness


@dataclass(frozen=True, slots=True)
class Services:
    """The node as the HTTP layer sees it."""

    replicas: ReplicaManager
    metadata: ClusterMetadata
    logs: LogManager
    clock: Clock
    randomness: Randomness
    node_id: BrokerId
    cluster_id: str
    is_ready: Callable[[], str | None]
    """None when the node serves; otherwise why it does not."""
