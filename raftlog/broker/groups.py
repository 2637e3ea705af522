"""Consumer groups on any node, with membership, committed offsets, lags and resets.

Each call goes to the group's coordinator, here or on another node. Clients use topic names and
coordinators use topic ids. This node's metadata translates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from raftlog.broker.authorize import (
    Authorize,
    Operation,
    Principal,
    group_resource,
    may_describe,
    topic_resource,
    transactional_id_resource,
)
from raftlog.broker.node import NodeServices
from raftlog.broker.offsets import FoundRecord, OffsetService
from raftlog.broker.offsets import PartitionBounds as RoutedBounds
from raftlog.broker.shared import Closing
from raftlog.coordinator.groups.checks import check_group_id
from raftlog.coordinator.groups.classic.messages import DescribedGroup
from raftlog.coordinator.groups.kind import MESSAGES, NAME, TOPIC
from raftlog.coordinator.groups.messages import (
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    DeleteGroupRequest,
    DescribeGroupRequest,
    Done,
    FetchedOffsets,
    GroupList,
    GroupListing,
    GroupRequest,
    GroupResponse,
    ListGroupsRequest,
    MemberDescription,
    MemberReport,
    OffsetOutcomes,
    classic_description,
    state_words,
)
from raftlog.coordinator.groups.offset_messages import (
    NO_OFFSET,
    OFFSETS_MAX,
    ByDuration,
    CommitOffsets,
    CommittedOffset,
    Committer,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    OffsetToCommit,
    PartitionBounds,
    PartitionOutcome,
    ResetRow,
    ResetTarget,
    ShiftBy,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToOffsetsOf,
    TopicPartition,
    ToTimestamp,
)
from raftlog.coordinator.groups.offset_reset import lookup_time_ms, offsets_to_commit, plan_reset
from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.shard.records import TopicPartitions
from raftlog.coordinator.transactions import kind as transactions
from raftlog.coordinator.transactions.messages import shard_key
from raftlog.metadata.image import BrokerImage, TopicImage
from raftlog.record.coordinators import partition_of
from raftlog.record.errors import (
    FORBIDDEN,
    GROUP_NOT_EMPTY,
    INVALID_BODY,
    NOT_READY,
    UNKNOWN_MEMBER,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC_ID,
    UNSTABLE_OFFSET_COMMIT,
    LogError,
    counted,
    quoted,
)
from raftlog.record.types import BrokerId, PartitionId, TopicId

__all__ = [
    "ByDuration",
    "Committer",
    "ConsumerGroupDescription",
    "ConsumerHeartbeatRequest",
    "ConsumerHeartbeatResponse",
    "DescribedGroup",
    "FetchedOffset",
    "GroupListing",
    "GroupService",
    "GroupView",
    "MemberDescription",
    "MemberReport",
    "OffsetToCommit",
    "OpenTransaction",
    "PartitionOutcome",
    "ResetRow",
    "ResetTarget",
    "ShiftBy",
    "ToEarliest",
    "ToLatest",
    "ToOffset",
    "ToOffsetsOf",
    "ToTimestamp",
    "TopicPartition",
    "TopicPartitions",
    "state_words",
]

CALL_S: Final = 10.0
"""Longest wait for a coordinator, besides the time for which a heartbeat is held."""
MEMBER_ID_BYTES: Final = 16

T = TypeVar("T", bound=GroupResponse)


class OffsetView(NamedTuple):
    """A committed offset and the end of its partition."""

    committed: CommittedOffset
    end_offset: int | None
    """None: unknown at the moment."""
    member_id: str | None


class OpenTransaction(NamedTuple):
    """A producer's transaction, for offsets that are committed with it."""

    transactional_id: str
    producer: Producer
    adds_group: bool = True
    """Whether the commit adds the group to the transaction. Clients of version 1 did before."""


class GroupView(NamedTuple):
    """A group with its lags."""

    description: ConsumerGroupDescription
    coordinator: BrokerId | None
    """Leader of the group's partition, or None while there is none."""
    offsets: tuple[OffsetView, ...]


class GroupService:
    """Consumer groups of the cluster."""

    def __init__(
        self,
        services: NodeServices,
        offsets: OffsetService,
        authorize: Authorize,
        closing: Closing,
    ) -> None:
        self._services = services
        self._offsets = offsets
        self._authorize = authorize
        self._closing = closing

    # Membership

    async def heartbeat(
        self, principal: Principal, request: ConsumerHeartbeatRequest
    ) -> ConsumerHeartbeatResponse:
        """Join, stay in, or leave a group. Raises LogError as the coordinator decides.

        A held heartbeat ends with NOT_READY when the listeners close. Another node holds the next.
        """
        self._authorize(principal, Operation.READ, group_resource(request.group))
        for name in request.subscribed_names or ():
            self._authorize(principal, Operation.DESCRIBE, topic_resource(name))
        if request.member_epoch == JOIN_EPOCH and not request.member_id:
            token = self._services.randomness.token(MEMBER_ID_BYTES).hex()
            request = replace(request, member_id=token)
        wait_s = request.max_wait_ms / 1000
        if not wait_s:
            return await self.call(request.group, request, ConsumerHeartbeatResponse)
        return await self.call_held(request.group, request, ConsumerHeartbeatResponse, wait_s)

    def topic_name(self, topic_id: TopicId) -> str:
        """The name of a topic. Raises LogError(NOT_READY) until this node's metadata has it."""
        topic = self._services.metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            raise LogError(
                NOT_READY, f"Node {self._services.node_id} does not know topic {topic_id} (yet)."
            )
        return topic.name

    def topic_name_or_id(self, topic_id: TopicId) -> str:
        """The name of a topic, or the id of a deleted topic."""
        topic = self._services.metadata.image.topics_by_id.get(topic_id)
        return topic_id if topic is None else topic.name

    # Offsets

    async def commit(
        self,
        principal: Principal,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        committer: Committer,
        transaction: OpenTransaction | None = None,
        *,
        retention_ms: int = -1,
    ) -> list[PartitionOutcome]:
        """Commit offsets, at once or with a transaction. Returns the outcomes in their order.

        `retention_ms` is of these offsets, for old clients only. -1 stands for the group's. Raises
        LogError, for a transaction also as its coordinator decides, with nothing committed.
        """
        if transaction is not None:
            resource = transactional_id_resource(transaction.transactional_id)
            self._authorize(principal, Operation.WRITE, resource)
        self._authorize(principal, Operation.READ, group_resource(group_id))
        _check_count(len(offsets))
        codes: list[int] = []
        known: list[OffsetToCommit] = []
        for offset in offsets:
            try:
                known.append(self._with_topic_id(principal, offset))
            except LogError as error:
                codes.append(error.entry.code)
            else:
                codes.append(0)
        request = CommitOffsets(group_id, tuple(known), committer, retention_ms=retention_ms)
        if transaction is not None:
            request = replace(
                request,
                producer=transaction.producer,
                transactional_id=transaction.transactional_id,
                adds=transaction.adds_group,
            )
        outcomes = iter((await self.call(group_id, request, OffsetOutcomes)).outcomes)
        return [
            next(outcomes) if not code else PartitionOutcome(offset.topic, offset.partition, code)
            for offset, code in zip(offsets, codes, strict=True)
        ]

    async def committed(
        self,
        principal: Principal,
        group_id: str,
        partitions: Mapping[str, Iterable[int]] | None,
        *,
        require_stable: bool,
        reader: Committer | None = None,
    ) -> tuple[FetchedOffset, ...]:
        """Committed offsets of some partitions, or of all with a committed offset.

        `reader` is a member of a consumer group. Its epoch is checked.
        """
        self._authorize(principal, Operation.DESCRIBE, group_resource(group_id))
        wanted: tuple[TopicPartition, ...] | None = None
        if partitions is not None:
            topics = self._services.metadata.image.topics_by_name
            wanted = tuple(
                TopicPartition(name, number, topics[name].topic_id if name in topics else None)
                for name, numbers in partitions.items()
                for number in dict.fromkeys(numbers)
            )
            _check_count(len(wanted))
        request = FetchOffsets(group_id, wanted, require_stable, reader or Committer())
        found = await self.call(group_id, request, FetchedOffsets, may_change=False)
        return tuple(
            one
            for one in found.offsets
            if may_describe(self._authorize, principal, topic_resource(one.topic))
        )

    # Administration

    async def groups(
        self, principal: Principal, *, of_this_node: bool = False
    ) -> tuple[list[tuple[GroupListing, BrokerId | None]], list[str]]:
        """Groups with their coordinators, and why some are missing.

        All of the cluster, or those that this node coordinates.
        """
        topic = self._services.metadata.image.topics_by_name.get(TOPIC)
        if topic is None:
            return [], []
        rows = topic.partitions
        if of_this_node:
            rows = tuple(row for row in rows if row.leader == self._services.node_id)
        answers = await asyncio.gather(*(self._groups_of(topic, row.partition) for row in rows))
        found: list[tuple[GroupListing, BrokerId | None]] = []
        incomplete: list[str] = []
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, LogError):
                incomplete.append(f"{TOPIC}-{row.partition}: {answer.message}")
                continue
            for listing in answer.groups:
                try:
                    self._authorize(principal, Operation.DESCRIBE, group_resource(listing.group))
                except LogError as error:
                    if error.entry is not FORBIDDEN:
                        raise
                else:
                    found.append((listing, self._leader(row.partition)))
        return sorted(found, key=lambda pair: pair[0].group), incomplete

    async def describe(self, principal: Principal, group_id: str) -> GroupView:
        """A group with members and lags. Raises LogError(UNKNOWN_GROUP)."""
        description = await self._description(principal, group_id)
        committed = await self.committed(principal, group_id, None, require_stable=False)
        owners = {
            (self.topic_name_or_id(topic.topic_id), number): member.member_id
            for member in description.members
            for topic in member.assignment
            for number in topic.partitions
        }
        rows: dict[tuple[str, int], CommittedOffset] = {
            (offset.topic, offset.partition): offset for offset in committed
        }
        for place in owners:
            rows.setdefault(place, CommittedOffset(*place, NO_OFFSET))
        bounds = {
            (row.topic, row.partition): row.end_offset
            for row in await self._bounds(principal, rows, None)
            if not isinstance(row, LogError)
        }
        topic = self._services.metadata.image.topics_by_name.get(TOPIC)
        number = 0 if topic is None else partition_of(group_id, len(topic.partitions))
        return GroupView(
            description,
            self._leader(number),
            tuple(
                OffsetView(rows[place], bounds.get(place), owners.get(place))
                for place in sorted(rows)
            ),
        )

    async def description(
        self, principal: Principal, group_id: str
    ) -> ConsumerGroupDescription | DescribedGroup:
        """A group with its members, in the words of its kind. Raises LogError(UNKNOWN_GROUP)."""
        self._authorize(principal, Operation.DESCRIBE, group_resource(group_id))
        request = DescribeGroupRequest(check_group_id(group_id))
        kinds = ConsumerGroupDescription | DescribedGroup
        found: ConsumerGroupDescription | DescribedGroup = await self.call(
            group_id, request, kinds, may_change=False
        )
        return found

    async def delete(self, principal: Principal, group_id: str) -> None:
        """Delete a group with its offsets. Raises LogError UNKNOWN_GROUP or GROUP_NOT_EMPTY."""
        self._authorize(principal, Operation.DELETE, group_resource(group_id))
        await self.call(group_id, DeleteGroupRequest(check_group_id(group_id)), Done)

    async def delete_offsets(
        self, principal: Principal, group_id: str, topics: Mapping[str, Collection[int] | None]
    ) -> None:
        """Forget committed offsets. Raises LogError UNKNOWN_GROUP or GROUP_NOT_EMPTY."""
        self._authorize(principal, Operation.DELETE, group_resource(group_id))
        for name in topics:
            self._authorize(principal, Operation.READ, topic_resource(name))
        await self._description(principal, group_id)
        committed = await self.committed(principal, group_id, None, require_stable=False)
        places = tuple(
            TopicPartition(offset.topic, offset.partition) for offset in _chosen(committed, topics)
        )
        if places:
            await self.call(group_id, DeleteOffsets(group_id, places), OffsetOutcomes)

    async def reset(
        self,
        principal: Principal,
        group_id: str,
        topics: Mapping[str, Collection[int] | None] | None,
        target: ResetTarget,
        *,
        validate_only: bool,
    ) -> list[tuple[ResetRow, LogError | None]]:
        """Set the committed offsets of an empty group. Returns the rows done, or only planned.

        Raises LogError UNKNOWN_GROUP, GROUP_NOT_EMPTY or UNKNOWN_TOPIC.
        """
        self._authorize(principal, Operation.READ, group_resource(group_id))
        description = await self._description(principal, group_id)
        if description.members:
            raise LogError(
                GROUP_NOT_EMPTY,
                f"Group {quoted(group_id)} has {counted(len(description.members), 'member')}: stop "
                "all of them first.",
            )
        old = _offsets(await self.committed(principal, group_id, None, require_stable=True))
        others: Mapping[tuple[str, int], int] = {}
        if isinstance(target, ToOffsetsOf):
            others = _offsets(
                await self.committed(principal, target.group_id, None, require_stable=True)
            )
        places = [*old] if topics is None else self._places(principal, topics)
        time_ms = lookup_time_ms(target, self._services.cluster_clock.estimate_ms())
        found = await self._bounds(principal, places, time_ms)
        rows: list[tuple[ResetRow, LogError | None]] = []
        bounds = []
        for place, outcome in zip(places, found, strict=True):
            if isinstance(outcome, LogError):
                row = ResetRow(*place, TopicId(""), old.get(place), None)
                rows.append((row, outcome))
            else:
                bounds.append(outcome)
        planned = plan_reset(target, bounds, old, others)
        to_commit = offsets_to_commit(planned)
        refused: dict[tuple[str, int], int] = {}
        if to_commit and not validate_only:
            refused = await self._commit_reset(principal, group_id, to_commit)
        for row in planned:
            code = refused.get((row.topic, row.partition), 0)
            rows.append((row, LogError(UNKNOWN_PARTITION) if code else None))
        return sorted(rows, key=lambda pair: (pair[0].topic, pair[0].partition))

    def _places(
        self, principal: Principal, topics: Mapping[str, Collection[int] | None]
    ) -> list[tuple[str, int]]:
        """The named partitions, without repeats. Raises LogError(UNKNOWN_TOPIC)."""
        places: dict[tuple[str, int], None] = {}
        for name, numbers in topics.items():
            count = len(self._readable(principal, name).partitions)
            wanted = range(count) if numbers is None else numbers
            places.update(dict.fromkeys((name, number) for number in wanted))
        return list(places)

    async def _commit_reset(
        self, principal: Principal, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> dict[tuple[str, int], int]:
        """Commit the offsets of a reset. Returns the error codes by place."""
        try:
            outcomes = await self.commit(principal, group_id, offsets, Committer())
        except LogError as error:
            if error.entry is UNKNOWN_MEMBER:
                raise LogError(GROUP_NOT_EMPTY, error.message) from None
            raise
        return {(outcome.topic, outcome.partition): outcome.error_code for outcome in outcomes}

    # Parts

    async def _description(self, principal: Principal, group_id: str) -> ConsumerGroupDescription:
        found = await self.description(principal, group_id)
        return classic_description(found) if isinstance(found, DescribedGroup) else found

    async def call(
        self,
        group_id: str,
        request: GroupRequest,
        kind: type[T] | UnionType,
        *,
        timeout_s: float = CALL_S,
        may_change: bool = True,
        is_held: bool = False,
    ) -> T:
        """Have the group's coordinator answer a request of an authorized caller.

        Without `may_change`, it may be repeated. Raises LogError.
        """
        response = await self._services.coordinators.call(
            MESSAGES,
            check_group_id(group_id),
            request,
            timeout_s=timeout_s,
            may_change=may_change,
            may_repeat=not may_change,
            is_held=is_held,
        )
        assert isinstance(response, kind)
        return response

    async def call_held(
        self, group_id: str, request: GroupRequest, kind: type[T] | UnionType, wait_s: float
    ) -> T:
        """Call as `call` does, for a request that the coordinator may hold for `wait_s`.

        Ends with NOT_READY when the listeners close. Another node holds the next request.
        """
        held: Coroutine[Any, Any, T] = self.call(
            group_id, request, kind, timeout_s=CALL_S + wait_s, is_held=True
        )
        found = await self._closing.unless_set(held)
        if found is None:
            raise LogError(NOT_READY, "The node is stopping.")
        return found

    async def _groups_of(self, topic: TopicImage, number: PartitionId) -> GroupList | LogError:
        try:
            response = await self._services.coordinators.call_partition(
                MESSAGES,
                topic,
                number,
                ListGroupsRequest(),
                timeout_s=CALL_S,
                may_change=False,
                may_repeat=True,
            )
        except LogError as error:
            return error
        assert isinstance(response, GroupList)
        return response

    async def _bounds(
        self,
        principal: Principal,
        places: Iterable[tuple[str, int]],
        time_ms: int | None,
    ) -> list[PartitionBounds | LogError]:
        """The bounds of each place, and the offset at a time, or the place's error."""
        image = self._services.metadata.image
        wanted: dict[str, list[int]] = {}
        found: dict[tuple[str, int], PartitionBounds | LogError] = {}
        places = list(places)
        for name, number in places:
            try:
                image.topic(name).partition(number)
            except LogError as error:
                found[name, number] = error
            else:
                wanted.setdefault(name, []).append(number)
        times = await self._times(principal, wanted, time_ms)
        bounds = await self._offsets.bounds_of(principal, wanted, any_node=True)
        for name, (topic, rows) in bounds.items():
            for number, row in rows.items():
                found[name, number] = _bounds(
                    name, number, topic.topic_id, row, times.get((name, number))
                )
        return [found[place] for place in places]

    async def _times(
        self, principal: Principal, wanted: Mapping[str, Iterable[int]], time_ms: int | None
    ) -> dict[tuple[str, int], FoundRecord | LogError | None]:
        """The first record at or after a time, by place."""
        if time_ms is None:
            return {}
        at = {
            name: dict.fromkeys(map(PartitionId, numbers), time_ms)
            for name, numbers in wanted.items()
        }
        answers = await self._offsets.at_times(principal, at, any_node=True)
        return {
            (name, number): row
            for name, (_, rows) in answers.items()
            for number, row in rows.items()
        }

    def _readable(self, principal: Principal, name: str) -> TopicImage:
        self._authorize(principal, Operation.READ, topic_resource(name))
        return self._services.metadata.image.topic(name)

    def _with_topic_id(self, principal: Principal, offset: OffsetToCommit) -> OffsetToCommit:
        """The offset with its topic's id, if the principal may commit it.

        Raises LogError FORBIDDEN, UNKNOWN_TOPIC, UNKNOWN_PARTITION or UNKNOWN_TOPIC_ID.
        """
        topic = self._readable(principal, offset.topic)
        topic.partition(offset.partition)
        if offset.topic_id is None:
            return replace(offset, topic_id=topic.topic_id)
        if offset.topic_id != topic.topic_id:
            raise LogError(UNKNOWN_TOPIC_ID)
        return offset

    def _leader(self, number: int) -> BrokerId | None:
        topic = self._services.metadata.image.topics_by_name.get(TOPIC)
        return None if topic is None else topic.partitions[number].leader


class CoordinatorLookup:
    """Finds coordinators of groups and transactional ids, for clients that call them directly.

    Creates their internal topics with the first use. Any other node forwards such a call.
    """

    def __init__(self, services: NodeServices, authorize: Authorize) -> None:
        self._services = services
        self._authorize = authorize

    async def of_group(self, principal: Principal, group_id: str) -> BrokerImage | None:
        """The coordinator of a group, or None while there is none. Raises LogError."""
        self._authorize(principal, Operation.DESCRIBE, group_resource(group_id))
        return await self._found(NAME, check_group_id(group_id))

    async def of_transactional_id(
        self, principal: Principal, transactional_id: str
    ) -> BrokerImage | None:
        """The coordinator of a transactional id, as `of_group`. Raises LogError."""
        self._authorize(principal, Operation.DESCRIBE, transactional_id_resource(transactional_id))
        return await self._found(transactions.NAME, shard_key(transactional_id))

    async def _found(self, kind: str, key: str) -> BrokerImage | None:
        broker_id = await self._services.coordinators.coordinator_of(kind, key)
        return self._services.metadata.image.brokers.get(broker_id)


def _bounds(
    name: str,
    number: int,
    topic_id: TopicId,
    row: RoutedBounds | LogError,
    at_time: FoundRecord | LogError | None,
) -> PartitionBounds | LogError:
    for error in (row, at_time):
        if isinstance(error, LogError):
            return error
    assert isinstance(row, RoutedBounds)
    assert not isinstance(at_time, LogError)
    offset = None if at_time is None else at_time[0]
    return PartitionBounds(
        topic=name,
        partition=number,
        topic_id=topic_id,
        start_offset=row.log_start_offset,
        end_offset=row.last_stable_offset,
        offset_at_time=offset,
    )


def _offsets(fetched: Iterable[FetchedOffset]) -> dict[tuple[str, int], int]:
    """Committed offsets by place. Raises LogError for one that a transaction may change."""
    found = {}
    for offset in fetched:
        if offset.error_code:
            raise LogError(UNSTABLE_OFFSET_COMMIT)
        found[offset.topic, offset.partition] = offset.offset
    return found


def _chosen(
    committed: Iterable[FetchedOffset], topics: Mapping[str, Collection[int] | None]
) -> Iterable[FetchedOffset]:
    wanted = {
        name: None if numbers is None else frozenset(numbers) for name, numbers in topics.items()
    }
    for offset in committed:
        if offset.topic in wanted:
            numbers = wanted[offset.topic]
            if numbers is None or offset.partition in numbers:
                yield offset


def _check_count(count: int) -> None:
    if count > OFFSETS_MAX:
        raise LogError(INVALID_BODY, f"{count} offsets are over {OFFSETS_MAX}, the most at once.")
