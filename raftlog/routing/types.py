"""What is needed of partitions wherever they are led, and of the replicas of this node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from raftlog.metadata.image import MetadataImage
from raftlog.record.batch import RecordBatch
from raftlog.record.types import (
    Offset,
    PartitionId,
    TopicId,
)
from raftlog.replication.partition import Acks, Fetched, Partition
from raftlog.storage.types import AppendResult


class PartitionAccess(Protocol):
    """What is needed of a partition wherever it is. All raise LogError as `Partition` does."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        ...

    @property
    def topic_id(self) -> TopicId:
        """The topic's identity."""
        ...

    @property
    def partition(self) -> PartitionId:
        """The partition's number in its topic."""
        ...

    @property
    def max_message_bytes(self) -> int:
        """The largest batch that the topic takes."""
        ...

    async def append(
        self, batches: Sequence[RecordBatch], *, acks: Acks, timeout_s: float
    ) -> list[AppendResult]:
        """See `Partition.append`."""
        ...

    async def read(
        self, offset: Offset, *, max_bytes: int, end_offset: Offset | None = None
    ) -> Fetched:
        """See `Partition.read`."""
        ...

    async def bounds(self) -> tuple[Offset, Offset]:
        """Log start offset and high watermark."""
        ...

    async def wait_for_data(self, offset: Offset, timeout_s: float) -> None:
        """Return when there may be a committed record at `offset`, or the time is up."""
        ...

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        """See `Partition.offset_for_timestamp`."""
        ...

    async def delete_records(self, before: Offset) -> Offset:
        """See `Partition.delete_records`."""
        ...


class LocalReplicas(Protocol):
    """What is needed of `ReplicaManager`."""

    @property
    def image(self) -> MetadataImage:
        """The applied metadata."""
        ...

    def partition(self, topic: str, partition: int) -> Partition:
        """A partition that this node leads; LogError otherwise."""
        ...

    def replica(self, topic_id: TopicId, partition: PartitionId) -> Partition | None:
        """This node's replica, leader or follower."""
        ...

    async def wait_for_data(
        self, wants: Sequence[tuple[Partition, Offset]], *, min_bytes: int, timeout_s: float
    ) -> None:
        """Return when any partition has a committed record at its offset, or the time is up."""
        ...
