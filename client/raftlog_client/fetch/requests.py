"""A consumer's fetch requests, their limits, and the partitions due at each node.

Selects the node to fetch from, a replica in the client's rack or the leader.

Kafka's name for it is `client.rack` (KIP-392). In Kafka the leader names the replica. Here the
client chooses by the racks and the in-sync sets of the metadata. A follower serves records below
the high watermark that it knows. These are the leader's records, delayed at most by replication.

The leader serves a partition without an in-sync replica in the rack. It also does for a while after
the replica has failed or lacks the offset. The leader has the records or knows the reason, so no
error of a follower reaches the application. A replica that falls out of sync is left at the next
refresh of the in-sync set.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from raftlog.api.records import Isolation
from raftlog.record.frames import FetchFrame
from raftlog_client.fetch.protocol import BufferPool
from raftlog_client.fetch.subscription import OffsetReset, PartitionState
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.routing import LeaderCall
from raftlog_client.transport import NodeAddress
from raftlog_client.types import TopicPartition, require_at_least

PARTITION_BYTES_MIN: Final = 1_024
POOLED_BYTES_MIN: Final = 64 * 1024
"""Bytes of a frame from which it is received into pooled memory."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Limits of a fetch request. Raises ValueError for a setting out of bounds."""

    max_bytes: int
    partition_max_bytes: int
    min_bytes: int
    max_wait_ms: int
    buffer_bytes_max: int
    check_crcs: bool
    reset: OffsetReset
    isolation: Isolation
    rack: str | None
    """Rack whose replicas are read, where there are any."""

    def __post_init__(self) -> None:
        if self.isolation not in {"read_committed", "read_uncommitted"}:
            raise ValueError(
                f"isolation must be read_committed or read_uncommitted, not {self.isolation!r}"
            )
        require_at_least(PARTITION_BYTES_MIN, max_partition_fetch_bytes=self.partition_max_bytes)
        require_at_least(self.partition_max_bytes, fetch_max_bytes=self.max_bytes)
        require_at_least(self.partition_max_bytes, buffer_bytes_max=self.buffer_bytes_max)
        require_at_least(0, fetch_min_bytes=self.min_bytes, fetch_max_wait_ms=self.max_wait_ms)


@dataclass(slots=True)
class NodeFetches:
    """Partitions due at one node, and its requests under way."""

    address: NodeAddress
    wanted: dict[PartitionState, None] = field(default_factory=dict)
    """Due partitions, longest wait first. The partition served last is last."""
    requests: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class FetchInFlight:
    """One request under way, and the partitions still waiting for its response."""

    states: dict[TopicPartition, tuple[PartitionState, int]]
    """Waiting partitions with their generation when the request was made."""
    take: Callable[[PartitionState, FetchFrame], None]
    """Called with each frame still wanted."""
    buffers: BufferPool
    followers: Collection[TopicPartition]
    """Partitions led by another node, which this node follows in the client's rack."""
    progress: int = 0
    """Counter that grows with each part of the response."""
    call: LeaderCall = field(init=False)
    task: asyncio.Task[None] | None = None

    def leave(self, source: TopicPartition) -> None:
        """Remove the partition from the waiting partitions."""
        self.states.pop(source, None)
        self.call.seen.pop(source, None)

    def begin(self, frame: FetchFrame, size_bytes: int) -> memoryview:
        """Return memory for a frame's data. Satisfies `FrameSink`."""
        self.progress += 1
        if size_bytes < POOLED_BYTES_MIN:
            return memoryview(bytearray(size_bytes))
        # Rounded up, so frames of about the same size share buffers.
        size_max = -(-size_bytes // POOLED_BYTES_MIN) * POOLED_BYTES_MIN
        buffer = self.buffers.get(size_max, 2 * size_max)
        return memoryview(buffer)[:size_bytes]

    def end(self, frame: FetchFrame, data: memoryview) -> None:
        """Take the whole frame."""
        self.progress += 1
        found = self.states.get(TopicPartition(frame.topic, frame.partition))
        if found is not None:
            state, generation = found
            if state.generation == generation:
                self.take(state, frame._replace(data=data.toreadonly()))


LEADER_ONLY_S: Final = 10.0
"""Seconds that the leader serves a partition after a failure of the rack's replica."""
IN_SYNC_AGE_S: Final = 5.0
"""Age in seconds at which a topic's in-sync sets are looked up again."""


class ReplicaSelector:
    """Selects nodes for one consumer. Selects the leaders without a rack."""

    def __init__(
        self, metadata: ClusterMetadata, rack: str | None, refresh_soon: Callable[[str], None]
    ) -> None:
        """`refresh_soon` refreshes the metadata of a topic in the background."""
        self._metadata = metadata
        self._rack = rack
        self._refresh_soon = refresh_soon
        self._leader_only_until: dict[TopicPartition, float] = {}
        self._looked_up_at: dict[str, float] = {}

    def address(self, source: TopicPartition) -> NodeAddress | None:
        """Return the node to fetch the partition from, or None without a known leader."""
        leader = self._metadata.leader_address(*source)
        if self._rack is None or leader is None:
            return leader
        now = asyncio.get_running_loop().time()
        if now - self._looked_up_at.setdefault(source.topic, now) >= IN_SYNC_AGE_S:
            for topic, at in list(self._looked_up_at.items()):
                if now - at >= IN_SYNC_AGE_S:
                    del self._looked_up_at[topic]
                    self._refresh_soon(topic)
        if now < self._leader_only_until.get(source, -math.inf):
            return leader
        near = self._metadata.in_sync_addresses(*source, rack=self._rack)
        if leader in near or not near:
            return leader
        # Partitions spread over several replicas of a rack. Each stays with one replica.
        return near[source.partition % len(near)]

    def leave(self, source: TopicPartition) -> None:
        """Use the leader for a while, because the rack's replica failed or lacks the offset."""
        now = asyncio.get_running_loop().time()
        kept = {
            partition: until for partition, until in self._leader_only_until.items() if until > now
        }
        self._leader_only_until = kept | {source: now + LEADER_ONLY_S}
