"""Invariants of all nodes' metadata and leases, checked after every event of any node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from raftlog.metadata.image import MetadataImage
from raftlog.metadata.snapshot import snapshot_pieces
from raftlog.node.assembly import NodeCore
from raftlog.record.types import BrokerId


class InvariantError(AssertionError):
    """An invariant of the cluster was violated."""


@dataclass
class _View:
    """Observed state of one process of a node."""

    applied_index: int = 0
    partition_epochs: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Leader epoch and partition epoch, by topic id and number."""
    broker_epochs: dict[BrokerId, int] = field(default_factory=dict)


class NodeChecker:
    """Watches cores. Raises InvariantError."""

    def __init__(self) -> None:
        self.digests: dict[int, bytes] = {}
        """Digest of the image after the entry of an index, on the first node to apply the entry."""
        self.newest: tuple[int, dict[BrokerId, tuple[int, bool]]] = (0, {})
        """The newest index applied by any node, and each broker's epoch and fencing at this
        index."""
        self.leaders: dict[tuple[str, int, int], int] = {}
        """Topic id, partition and leader epoch to the node acting as leader."""
        self.on_fenced: Callable[[int], None] | None = None
        """Called for each fenced broker, when the first node applies the fencing."""
        self.is_off = False
        """Where nodes of several clusters meet: this is for one."""
        self._views: dict[int, _View] = {}
        self._fenced_at: dict[BrokerId, float] = {}

    @staticmethod
    def digest(image: MetadataImage) -> bytes:
        """Digest of the whole image but the index, which only commands move."""
        captured = image.copy()
        captured.applied_index = 0
        return hashlib.sha256(b"".join(snapshot_pieces(captured))).digest()

    def opened(self, node_id: int) -> None:
        """A new process of the node has recovered."""
        self._views[node_id] = _View()

    def after_event(self, node_id: int, core: NodeCore, now: float) -> None:
        """Check after an event of a living node."""
        if self.is_off:
            return
        view = self._views[node_id]
        applied_index = core.quorum.applied_index
        if applied_index != view.applied_index:
            if applied_index < view.applied_index:
                self._fail(f"node {node_id} goes back from {view.applied_index} to {applied_index}")
            view.applied_index = applied_index
            self._applied(node_id, view, core.services.metadata.image, applied_index, now)
        if self._fenced_at:
            self._check_lease(node_id, core, now)

    def led(self, node_id: int, topic_id: str, partition: int, leader_epoch: int) -> None:
        """A node has acted as the leader of a partition in an epoch (promise 7)."""
        known = self.leaders.setdefault((topic_id, partition, leader_epoch), node_id)
        if known != node_id:
            self._fail(f"{topic_id}-{partition} has leaders {known}, {node_id} in {leader_epoch}")

    def _applied(
        self, node_id: int, view: _View, image: MetadataImage, index: int, now: float
    ) -> None:
        digest = self.digest(image)
        if self.digests.setdefault(index, digest) != digest:
            self._fail(f"node {node_id} holds another image than others after entry {index}")
        for topic_id, topic in image.topics_by_id.items():
            for row in topic.partitions:
                key, epochs = (topic_id, row.partition), (row.leader_epoch, row.partition_epoch)
                before = view.partition_epochs.get(key, (0, 0))
                if epochs[0] < before[0] or epochs[1] < before[1]:
                    self._fail(f"node {node_id}: {topic.name} goes back from {before} to {epochs}")
                view.partition_epochs[key] = epochs
        for broker_id, broker in image.brokers.items():
            if broker.broker_epoch < view.broker_epochs.get(broker_id, 0):
                self._fail(f"node {node_id}: broker {broker_id} goes back to {broker}")
            view.broker_epochs[broker_id] = broker.broker_epoch
        if index > self.newest[0]:
            self._note_fencing(image, index, now)

    def _note_fencing(self, image: MetadataImage, index: int, now: float) -> None:
        before = self.newest[1]
        after = {
            broker_id: (int(broker.broker_epoch), broker.fenced)
            for broker_id, broker in image.brokers.items()
        }
        self.newest = (index, after)
        for broker_id in sorted(before.keys() - after.keys()):
            self._fenced_at.pop(broker_id, None)
        for broker_id, (epoch, fenced) in after.items():
            if not fenced:
                self._fenced_at.pop(broker_id, None)
                continue
            self._fenced_at.setdefault(broker_id, now)
            if before.get(broker_id) == (epoch, False) and self.on_fenced is not None:
                self.on_fenced(broker_id)

    def _check_lease(self, node_id: int, core: NodeCore, now: float) -> None:
        """A node fenced in any node's metadata must not act as a leader (promise 7)."""
        broker_id = core.services.node_id
        fenced_at = self._fenced_at.get(broker_id)
        if fenced_at is None:
            return
        if core.quorum.voters.ids == {broker_id}:
            # The only voter needs no lease: see raftlog/controller/DESIGN.md.
            return
        # The fenced process may be another one of the node.
        if core.permit.broker_epoch != self.newest[1][broker_id][0]:
            return
        if core.permit.has_lease(now):
            self._fail(f"node {node_id} acts as a leader {now - fenced_at:.3f} s after fencing")

    def _fail(self, what: str) -> None:
        raise InvariantError(what)
