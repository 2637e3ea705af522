"""Offsets of partition ends, offsets by timestamp, and offsets by name.

Bulk calls cover many partitions. By default they return partitions that this node leads, all or an
error, because a client that knows leaders would take a missing partition for an empty partition.
With `any_node` this node queries the other leaders, once each, and every partition has its own
outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TypeAlias, TypeVar

from raftlog.api.common import offset_before_end
from raftlog.broker.authorize import Authorize, Operation, Principal, topic_resource
from raftlog.broker.limits import BrokerSettings
from raftlog.broker.node import NodeServices
from raftlog.metadata.image import TopicImage
from raftlog.record.errors import LogError
from raftlog.record.types import LeaderEpoch, Offset, PartitionId
from raftlog.replication.partition import Isolation
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.many import (
    FoundRecord,
    PartitionBounds,
    bounds_of_many,
    local_bounds,
    local_times,
    times_of_many,
)

__all__ = ["FoundRecord", "OffsetService", "PartitionBounds"]

T = TypeVar("T")
ByPartition: TypeAlias = Mapping[str, tuple[TopicImage, Mapping[int, T]]]
"""Topic and outcomes of its partitions, by topic name."""


class NamedOffset(StrEnum):
    """An offset given by its name."""

    EARLIEST = "earliest"
    """The log start offset."""
    LATEST = "latest"
    """Readable end, which is the high watermark or the last stable offset."""


async def named_offset(
    name: NamedOffset,
    partition: PartitionHandle,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> Offset:
    """The present value of a named offset."""
    start, end = await partition.bounds(isolation)
    return start if name is NamedOffset.EARLIEST else end


async def offset_from_end(
    count: int, partition: PartitionHandle, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> Offset:
    """The present offset of the last `count` offsets, as `offset_before_end`."""
    start, end = await partition.bounds(isolation)
    return Offset(offset_before_end(start, end, count))


async def offset_at_time(
    timestamp_ms: int,
    partition: PartitionHandle,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> Offset:
    """The first offset at or after a timestamp, or the readable end."""
    # Before the lookup, because a record committed in between may be that young.
    _, end = await partition.bounds(isolation)
    found = await partition.offset_for_timestamp(timestamp_ms, isolation)
    return end if found is None else found[0]


class OffsetService:
    """Offsets of one node's partitions, and of the other leaders'."""

    def __init__(
        self, services: NodeServices, settings: BrokerSettings, authorize: Authorize
    ) -> None:
        self._metadata = services.metadata
        self._replicas = services.replicas
        self._partitions = services.partitions
        self._settings = settings
        self._authorize = authorize

    async def bounds(self, principal: Principal, topic: str, number: int) -> tuple[Offset, Offset]:
        """Log start offset and high watermark of one partition, on any node."""
        self._authorize(principal, Operation.DESCRIBE, topic_resource(topic))
        return await self._partitions.find(topic, number).bounds()

    async def bounds_of(
        self,
        principal: Principal,
        wanted: Sequence[str] | Mapping[str, Collection[int]],
        *,
        any_node: bool,
    ) -> ByPartition[PartitionBounds | LogError]:
        """The bounds of whole topics, or of some partitions of each.

        Raises LogError UNKNOWN_TOPIC. Without `any_node` it also raises any partition's error.
        """
        topics = self._topics(principal, wanted)
        numbers: dict[str, Collection[int]]
        if isinstance(wanted, Mapping):
            numbers = {name: dict.fromkeys(some) for name, some in wanted.items()}
        else:
            numbers = {name: range(len(topic.partitions)) for name, topic in topics.items()}
        self._settings.check_partition_count(sum(map(len, numbers.values())))
        rows: Sequence[PartitionBounds | LogError]
        if any_node:
            rows = await bounds_of_many(
                self._partitions,
                [self._handle(topics[name], n) for name, some in numbers.items() for n in some],
            )
        else:
            find = self._replicas.partition
            rows = await local_bounds(
                [partial(find, name, n) for name, some in numbers.items() for n in some]
            )
            _raise_first_error(rows)
        row = iter(rows)
        return {
            name: (topics[name], {number: next(row) for number in some})
            for name, some in numbers.items()
        }

    async def at_times(
        self,
        principal: Principal,
        wanted: Mapping[str, Mapping[PartitionId, int]],
        *,
        any_node: bool,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> ByPartition[FoundRecord | LogError | None]:
        """Each partition's first readable record at or after its timestamp (ms).

        None: no readable record is that young. Raises LogError as `bounds_of` does.
        """
        self._settings.check_partition_count(sum(map(len, wanted.values())))
        topics = self._topics(principal, wanted)
        flat = [
            (name, number, timestamp_ms)
            for name, timestamps in wanted.items()
            for number, timestamp_ms in timestamps.items()
        ]
        rows: Sequence[FoundRecord | LogError | None]
        if any_node:
            rows = await times_of_many(
                self._partitions,
                [(self._handle(topics[name], number), time) for name, number, time in flat],
                isolation,
            )
        else:
            find = self._replicas.partition
            rows = await local_times(
                [(partial(find, name, number), time) for name, number, time in flat], isolation
            )
            _raise_first_error(rows)
        row = iter(rows)
        return {
            name: (topics[name], {number: next(row) for number in timestamps})
            for name, timestamps in wanted.items()
        }

    async def newest_record(
        self,
        principal: Principal,
        topic: str,
        number: int,
        isolation: Isolation,
        *,
        any_node: bool = False,
    ) -> FoundRecord | None:
        """The first readable record of a partition with the largest timestamp.

        None without a record that has a timestamp. Raises LogError UNKNOWN_TOPIC, UNKNOWN_PARTITION
        or NO_LEADER. Without `any_node` it also raises NO_LEADER for a partition led elsewhere.
        """
        self._authorize(principal, Operation.DESCRIBE, topic_resource(topic))
        if any_node:
            return await self._partitions.find(topic, number).newest_record(isolation)
        return await self._replicas.partition(topic, number).newest_record(isolation)

    def leader_epoch_at(self, topic: str, number: int, offset: Offset | None) -> LeaderEpoch | None:
        """The leader epoch of a committed record, of a partition led here (KIP-320).

        The present leader epoch for None. None for a partition led elsewhere, because a wrong epoch
        would make clients find records lost.
        """
        try:
            partition = self._replicas.partition(topic, number)
        except LogError:
            return None
        role = partition.leader_role
        if role is None:
            return None
        if offset is None:
            return role.state.row.leader_epoch
        return partition.log.leader_epochs.epoch_for(offset)

    async def epoch_end(
        self,
        principal: Principal,
        topic: str,
        number: int,
        epoch: LeaderEpoch,
        *,
        any_node: bool = False,
    ) -> tuple[LeaderEpoch, Offset] | None:
        """The largest leader epoch not above `epoch` at a partition's leader, and its end offset.

        A client detects by it that records it has read are gone (KIP-320). None means that no such
        epoch is known. Raises LogError, as `newest_record`.
        """
        self._authorize(principal, Operation.DESCRIBE, topic_resource(topic))
        if any_node:
            return await self._partitions.find(topic, number).epoch_end(epoch)
        found = self._replicas.partition(topic, number).epoch_end(epoch)
        return None if found is None else (found.epoch, found.end_offset)

    def _topics(self, principal: Principal, names: Collection[str]) -> dict[str, TopicImage]:
        self._settings.check_partition_count(len(names))
        image = self._metadata.image
        topics: dict[str, TopicImage] = {}
        for name in names:
            self._authorize(principal, Operation.DESCRIBE, topic_resource(name))
            topics[name] = image.topic(name)
        return topics

    def _handle(self, topic: TopicImage, number: int) -> PartitionHandle:
        """A partition of the topic. Raises LogError UNKNOWN_PARTITION."""
        row = topic.partition(number)
        return PartitionHandle(self._partitions, topic.name, topic.topic_id, row.partition, None)


def _raise_first_error(rows: Iterable[object]) -> None:
    for row in rows:
        if isinstance(row, LogError):
            raise row
