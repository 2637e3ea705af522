"""REST consumer instances on any node, with state at their coordinators.

Each call goes to the coordinator, here or on another node. Records do not. A read gets positions
from the coordinator, fetches from the leaders of the partitions, and reports its progress to the
coordinator before it returns records. docs/decisions/rest-consumers.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from raftlog.broker.authorize import (
    Authorize,
    Operation,
    Principal,
    group_resource,
    topic_resource,
)
from raftlog.broker.fetch import FetchService, PartitionHandle
from raftlog.broker.groups import CALL_S, GroupService
from raftlog.broker.node import NodeServices
from raftlog.broker.offsets import NamedOffset, OffsetService, PartitionBounds
from raftlog.coordinator.groups.assignors import Pair, assignment_of, pairs
from raftlog.coordinator.groups.messages import GroupResponse, OffsetOutcomes
from raftlog.coordinator.groups.offset_messages import FetchedOffset, OffsetToCommit
from raftlog.coordinator.instances.consumer_instances import no_assignment
from raftlog.coordinator.instances.messages import (
    UNKNOWN_OFFSET,
    AssignInstance,
    BeginRead,
    CommitInstance,
    CreateInstance,
    DeleteInstance,
    DescribeInstance,
    EndRead,
    InstanceDescription,
    InstanceDone,
    InstanceRequest,
    PartitionMove,
    PartitionOffset,
    ReadOutcome,
    ReadPlan,
    SeekInstance,
    SubscribeInstance,
)
from raftlog.record.errors import (
    ERROR_TABLE,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import PartitionId

__all__ = [
    "UNKNOWN_OFFSET",
    "ConsumerInstanceService",
    "InstanceOptions",
    "InstanceView",
    "OffsetToCommit",
    "Pair",
    "PartitionMove",
    "PlannedPartition",
    "PlannedRead",
    "ReadPlan",
]

MEMBER_ID_BYTES: Final = 16
NAME_BYTES: Final = 8

T = TypeVar("T", bound=GroupResponse)
Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class InstanceOptions:
    """How an instance reads."""

    format: str
    auto_offset_reset: NamedOffset = NamedOffset.LATEST
    auto_commit_interval_ms: int = 5_000
    """0: the client commits."""
    fetch_min_bytes: int = 1
    """Bytes of an answer to wait for, until the read's timeout."""
    request_timeout_ms: int = 1_000
    """Milliseconds for a read that names no timeout."""


class InstanceView(NamedTuple):
    """An instance as it is now."""

    topics: tuple[str, ...]
    """Subscribed topics, or the topics that match the pattern."""
    partitions: tuple[Place, ...]
    """Assigned partitions."""


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition of a read."""

    handle: PartitionHandle
    offset: int
    """Position. With UNKNOWN_OFFSET, `auto_offset_reset` decides."""


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Where a read begins."""

    plan: ReadPlan
    partitions: tuple[PlannedPartition, ...]
    """Partitions in their order of turns."""


class ConsumerInstanceService:
    """The consumer instances of the cluster."""

    def __init__(
        self,
        services: NodeServices,
        groups: GroupService,
        fetch: FetchService,
        offsets: OffsetService,
        authorize: Authorize,
    ) -> None:
        self._services = services
        self._groups = groups
        self._fetch = fetch
        self._offsets = offsets
        self._authorize = authorize

    # What an instance is

    async def create(
        self, principal: Principal, group_id: str, name: str | None, options: InstanceOptions
    ) -> str:
        """Create an instance and return its name.

        Raises LogError INSTANCE_EXISTS or TOO_MANY_INSTANCES.
        """
        randomness = self._services.randomness
        name = name or f"rest-consumer-{randomness.token(NAME_BYTES).hex()}"
        request = CreateInstance(
            group=group_id,
            instance=name,
            member_id=randomness.token(MEMBER_ID_BYTES).hex(),
            format=options.format,
            auto_offset_reset=options.auto_offset_reset,
            auto_commit_interval_ms=options.auto_commit_interval_ms,
            fetch_min_bytes=options.fetch_min_bytes,
            request_timeout_ms=options.request_timeout_ms,
        )
        await self._call(principal, request, InstanceDone)
        return name

    async def delete(self, principal: Principal, group_id: str, name: str) -> None:
        """End an instance. Raises LogError UNKNOWN_INSTANCE."""
        await self._call(principal, DeleteInstance(group_id, name), InstanceDone)

    async def describe(self, principal: Principal, group_id: str, name: str) -> InstanceView:
        """An instance. Raises LogError UNKNOWN_INSTANCE."""
        request = DescribeInstance(group_id, name)
        found = await self._call(principal, request, InstanceDescription, may_change=False)
        return InstanceView(
            found.names,
            tuple(
                (self._groups.topic_name_or_id(topic_id), number)
                for topic_id, number in pairs(found.partitions)
            ),
        )

    async def subscribe(
        self,
        principal: Principal,
        group_id: str,
        name: str,
        *,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        client_host: str = "",
    ) -> None:
        """Subscribe to topics or to a pattern. With neither, reads return nothing.

        Raises LogError UNKNOWN_INSTANCE, ILLEGAL_STATE, INVALID_PATTERN or GROUP_FULL.
        """
        for topic in topics:
            self._authorize(principal, Operation.DESCRIBE, topic_resource(topic))
        request = SubscribeInstance(
            group=group_id,
            instance=name,
            names=tuple(topics),
            pattern=pattern,
            client_host=client_host,
        )
        await self._call(principal, request, InstanceDone)

    async def assign(
        self, principal: Principal, group_id: str, name: str, places: Iterable[Place]
    ) -> None:
        """Read these partitions. LogError ILLEGAL_STATE, UNKNOWN_TOPIC, UNKNOWN_PARTITION."""
        wanted = assignment_of(self._pair(principal, place) for place in places)
        await self._call(principal, AssignInstance(group_id, name, wanted), InstanceDone)

    # Positions and offsets

    async def seek(
        self,
        principal: Principal,
        group_id: str,
        name: str,
        *,
        offsets: Mapping[Place, int],
        times_ms: Mapping[Place, int],
    ) -> None:
        """Continue at these offsets, and at the first records of these times.

        Raises LogError ILLEGAL_STATE for a partition that the instance does not have.
        """
        await self._require_assigned(principal, group_id, name, (*offsets, *times_ms))
        found = dict(offsets)
        if times_ms:
            by_topic: dict[str, dict[PartitionId, int]] = {}
            for (topic, number), time_ms in times_ms.items():
                by_topic.setdefault(topic, {})[PartitionId(number)] = time_ms
            # Before the lookup, because a record committed in between may be that young.
            ends = await self._bounds(principal, times_ms)
            answers = await self._offsets.at_times(principal, by_topic, any_node=True)
            for place in times_ms:
                row = answers[place[0]][1][place[1]]
                if isinstance(row, LogError):
                    raise row
                found[place] = ends[place].high_watermark if row is None else row[0]
        await self._seek(principal, group_id, name, found)

    async def seek_to(
        self,
        principal: Principal,
        group_id: str,
        name: str,
        places: Collection[Place],
        target: NamedOffset,
    ) -> None:
        """Continue at the start, or at the end, of these partitions. LogError ILLEGAL_STATE."""
        await self._require_assigned(principal, group_id, name, places)
        bounds = await self._bounds(principal, places)
        is_earliest = target is NamedOffset.EARLIEST
        found = {
            place: row.log_start_offset if is_earliest else row.high_watermark
            for place, row in bounds.items()
        }
        await self._seek(principal, group_id, name, found)

    async def commit(
        self,
        principal: Principal,
        group_id: str,
        name: str,
        offsets: Sequence[OffsetToCommit] | None,
    ) -> None:
        """Commit offsets, or all that was read. Raises LogError, with none committed."""
        known = None
        if offsets is not None:
            known = tuple(
                replace(offset, topic_id=self._pair(principal, (offset.topic, offset.partition))[0])
                for offset in offsets
            )
        request = CommitInstance(group_id, name, known)
        response = await self._call(principal, request, OffsetOutcomes)
        for outcome in response.outcomes:
            if outcome.error_code:
                raise LogError(ERROR_TABLE[outcome.error_code])

    async def committed(
        self,
        principal: Principal,
        group_id: str,
        name: str,
        places: Collection[Place] | None,
    ) -> tuple[FetchedOffset, ...]:
        """Committed offsets of the group, for these partitions or the instance's."""
        view = await self.describe(principal, group_id, name)
        wanted: dict[str, dict[int, None]] = {}
        for topic, number in view.partitions if places is None else places:
            wanted.setdefault(topic, {})[number] = None
        return await self._groups.committed(principal, group_id, wanted, require_stable=False)

    # Reads

    async def begin_read(
        self,
        principal: Principal,
        group_id: str,
        name: str,
        formats: Sequence[str],
        *,
        is_first: bool,
        max_wait_s: float,
    ) -> PlannedRead:
        """Start or continue a read. Waits for a first partition.

        Raises LogError UNKNOWN_INSTANCE, or UNSUPPORTED_FORMAT unless the instance's is in
        `formats`.
        """
        request = BeginRead(
            group=group_id,
            instance=name,
            formats=tuple(formats),
            is_first=is_first,
            max_wait_ms=int(max_wait_s * 1000),
        )
        plan = await self._call(
            principal, request, ReadPlan, may_change=False, held_s=max(max_wait_s, 0.0)
        )
        topics = self._services.metadata.image.topics_by_id
        found = []
        for planned in plan.partitions:
            topic = topics.get(planned.topic_id)
            if topic is None:
                # Deleted, or too new for this node's metadata until the read continues.
                continue
            try:
                handle = self._fetch.partition(principal, topic.name, planned.partition)
            except LogError as error:
                if error.entry not in (UNKNOWN_TOPIC, UNKNOWN_PARTITION):
                    raise
                continue
            if handle.topic_id == planned.topic_id:
                found.append(PlannedPartition(handle, planned.offset))
        return PlannedRead(plan, tuple(found))

    async def end_read(
        self,
        principal: Principal,
        group_id: str,
        name: str,
        moves: Sequence[PartitionMove],
        last: Iterable[Pair],
    ) -> set[Pair]:
        """Move positions, and return the partitions that did not move.

        Their records must not be returned. The result is empty if the outcome is unknown, because
        records read twice are better than records lost.
        """
        request = EndRead(group_id, name, tuple(moves), assignment_of(last))
        try:
            outcome = await self._call(principal, request, ReadOutcome)
        except LogError as error:
            if not error.entry.outcome_unknown:
                raise
            return set()
        return set(pairs(outcome.lost))

    # Parts

    async def _call(
        self,
        principal: Principal,
        request: InstanceRequest,
        kind: type[T],
        *,
        may_change: bool = True,
        held_s: float = 0.0,
    ) -> T:
        group_id = request.group
        self._authorize(principal, Operation.READ, group_resource(group_id))
        return await self._groups.call(
            group_id,
            request,
            kind,
            timeout_s=CALL_S + held_s,
            may_change=may_change,
            is_held=held_s > 0,
        )

    def _pair(self, principal: Principal, place: Place) -> Pair:
        """A partition of a topic that the principal may read, by the topic's id."""
        topic, number = place
        self._authorize(principal, Operation.READ, topic_resource(topic))
        image = self._services.metadata.image.topic(topic)
        return image.topic_id, image.partition(number).partition

    async def _require_assigned(
        self, principal: Principal, group_id: str, name: str, places: Iterable[Place]
    ) -> None:
        view = await self.describe(principal, group_id, name)
        assigned = set(view.partitions)
        for place in places:
            if place not in assigned:
                raise no_assignment(*place)

    async def _seek(
        self, principal: Principal, group_id: str, name: str, offsets: Mapping[Place, int]
    ) -> None:
        wanted = tuple(
            PartitionOffset(*self._pair(principal, place), offset)
            for place, offset in offsets.items()
        )
        if wanted:
            await self._call(principal, SeekInstance(group_id, name, wanted), InstanceDone)

    async def _bounds(
        self, principal: Principal, places: Iterable[Place]
    ) -> dict[Place, PartitionBounds]:
        """The readable offsets of these partitions. Raises the first partition's LogError."""
        wanted: dict[str, dict[int, None]] = {}
        for topic, number in places:
            wanted.setdefault(topic, {})[number] = None
        answers = await self._offsets.bounds_of(principal, wanted, any_node=True)
        found = {}
        for topic, (_, rows) in answers.items():
            for number, row in rows.items():
                if isinstance(row, LogError):
                    raise row
                found[topic, number] = row
        return found
