"""All groups of one partition of `__consumer_offsets`: dispatch, replay, timers, bounds. Pure.

The shard decides which groups exist, of which kind, and whether they are empty. Requests are
validated here, whichever face they come from. The caller appends a decision's records, replays
them at once, and sends the response when they are committed (DESIGN.md, rules of a shard).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Final, assert_never

from raftlog.coordinator.consumer_decisions import (
    ConsumerDecisions,
    GroupSettings,
    GroupTimer,
    ShardTimer,
)
from raftlog.coordinator.consumer_group import ConsumerGroup
from raftlog.coordinator.decision import CoordinatorRecord, Decision, Producer, Timers
from raftlog.coordinator.group_messages import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeatRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    Done,
    FetchedOffsets,
    GroupList,
    GroupListing,
    GroupRequest,
    GroupResponse,
    ListGroupsRequest,
    OffsetOutcomes,
)
from raftlog.coordinator.offset_messages import (
    CommitOffsets,
    Committer,
    DeleteOffsets,
    FetchOffsets,
)
from raftlog.coordinator.offsets import OffsetTable
from raftlog.coordinator.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from raftlog.coordinator.subscriptions import subscribed_names
from raftlog.metadata.image import TOPIC_NAME_CHARACTERS_MAX, MetadataImage
from raftlog.record.errors import (
    BAD_REQUEST,
    GROUP_NOT_EMPTY,
    INVALID_GROUP,
    INVALID_SESSION_TIMEOUT,
    TOO_MANY_GROUPS,
    UNKNOWN_GROUP,
    UNKNOWN_MEMBER,
    LogError,
    counted,
    quoted,
)
from raftlog.record.types import ProducerEpoch, ProducerId, TopicId

ID_CHARACTERS_MAX: Final = 255
"""Of the ids of groups, members, instances, racks and clients, and of a client's host."""
SUBSCRIBED_NAMES_MAX: Final = 10_000
"""Topics of one member by name: all of them are in one record."""
OWNED_PARTITIONS_MAX: Final = 100_000
"""Of one heartbeat."""
DELETED_OFFSETS_MAX: Final = 1_000
"""Of one decision: all of its records are in one batch."""
REFRESH_AFTER_LOAD_MS: Final = 1_000
"""The first search for topics changed since the last coordinator's last decision."""
OFFSETS_KIND: Final = "offsets"
"""The kind of a group that never had a member."""
REBALANCE_TIMEOUT_MS_MAX: Final = 2**31 - 1
"""Kafka's clients use the largest int32 to say: never."""


class GroupShard:
    """The groups of one shard. A new one is empty: replay its log, then call `loaded`."""

    def __init__(
        self, settings: GroupSettings, on_changed: Callable[[Hashable], None] = lambda _: None
    ) -> None:
        """`on_changed` is called with the id of each group that a replay changes."""
        self._settings = settings
        self._on_changed = on_changed
        self.timers: Timers[GroupTimer] = Timers()
        """Ask for the next deadline after each decision; give what is due to `expire`."""
        self._consumer_groups: dict[str, ConsumerGroup] = {}
        self._offsets = OffsetTable()
        self._decisions = ConsumerDecisions(settings, self.timers)
        self._changed_topics: set[str] | None = None
        """To be followed by the next refresh; None: any may have changed."""
        self._stale: list[str] = []
        """Groups of the refresh under way."""
        self._sweep: Iterator[tuple[CoordinatorRecord, ...]] | None = None
        """The sweep under way."""
        self._empty_since_ms: dict[str, int] = {}
        """When a sweep first found a group empty, in wall time. A load forgets it."""
        self._missing: set[tuple[str, TopicId | None]] = set()
        """Topics with offsets that the last sweep did not find in the metadata: the next one
        deletes their offsets. The first may have run on metadata older than a commit's."""
        self._held: dict[tuple[str, str], int] = {}
        """The number of the newest held heartbeat of a member."""
        self._held_count = 0

    # Queries

    def __len__(self) -> int:
        return len(self._consumer_groups)

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """The consumer group of the id, to check a commit against; None without one."""
        return self._consumer_groups.get(group_id)

    def has_news(self, group_id: str, member_id: str) -> bool:
        """Whether a heartbeat held open for the member must be decided again now."""
        group = self._consumer_groups.get(group_id)
        return group is None or group.has_news(member_id)

    def hold(self, group_id: str, member_id: str) -> int:
        """Begin to hold a heartbeat of the member open; ends the hold of an earlier one."""
        self._held_count += 1
        self._held[group_id, member_id] = self._held_count
        self._on_changed(group_id)
        return self._held_count

    def is_held(self, group_id: str, member_id: str, number: int) -> bool:
        """Whether the heartbeat is the member's newest one."""
        return self._held.get((group_id, member_id)) == number

    def release(self, group_id: str, member_id: str, number: int) -> None:
        """End the hold of a heartbeat."""
        if self.is_held(group_id, member_id, number):
            del self._held[group_id, member_id]

    def topics_changed(self, names: Collection[str], now_ms: int) -> None:
        """Have the groups of these topics refreshed by a timer that is due now."""
        if self._changed_topics is not None:
            self._changed_topics.update(names)
        self.timers.set(ShardTimer.REFRESH, now_ms)

    def stale_groups(
        self, image: MetadataImage, changed: Collection[str] | None
    ) -> tuple[str, ...]:
        """Groups to `refresh`, one decision each, after topics were created, deleted or enlarged.

        `changed` names those topics. None stands for any: after a load, since the metadata may have
        changed after the last coordinator's last decision.
        """
        return tuple(
            group_id
            for group_id, group in self._consumer_groups.items()
            if self._decisions.is_stale(group, image, changed)
        )

    # Decisions

    def decide(
        self, request: GroupRequest, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[GroupResponse]:
        """Decide about a request. `now_ms` is monotonic, `time_ms` wall time. Raises LogError."""
        match request:
            case ConsumerHeartbeatRequest():
                return self._heartbeat(request, image, now_ms, time_ms)
            case DeleteGroupRequest():
                return self._delete(request.group)
            case CommitOffsets():
                return self._commit(request, time_ms)
            case DeleteOffsets():
                return self._delete_offsets(request)
            case DescribeGroupRequest() | ListGroupsRequest() | FetchOffsets():
                return Decision(self.read(request))
        assert_never(request)

    def read(
        self, request: DescribeGroupRequest | ListGroupsRequest | FetchOffsets
    ) -> GroupResponse:
        """Answer from the state. Raises LogError."""
        match request:
            case DescribeGroupRequest():
                return self._describe(request.group)
            case ListGroupsRequest():
                return self._list()
            case FetchOffsets():
                return self._fetch(request)
        assert_never(request)

    def expire(
        self, timer: GroupTimer, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[None]:
        """Decide about a timer that is due, taken from `timers`."""
        if timer is ShardTimer.REFRESH:
            return self._refresh_next(image, now_ms, time_ms)
        if timer is ShardTimer.SWEEP:
            return self._sweep_next(image, now_ms, time_ms)
        group = self._consumer_groups.get(timer.group)
        if group is None or timer.member_id not in group.members:
            return Decision(None)
        return self._decisions.expire(group, timer.member_id, image, time_ms)

    def refresh(
        self,
        group_id: str,
        image: MetadataImage,
        changed: Collection[str] | None,
        time_ms: int,
    ) -> Decision[None]:
        """Follow a change of topics in one of the `stale_groups`, with the same `changed`."""
        group = self._consumer_groups.get(group_id)
        if group is None:
            return Decision(None)
        return self._decisions.refresh(group, image, changed, time_ms)

    def _heartbeat(
        self,
        request: ConsumerHeartbeatRequest,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[GroupResponse]:
        _check_heartbeat(request, self._settings)
        group = self._consumer_groups.get(request.group)
        if group is None:
            if (
                request.member_epoch == JOIN_EPOCH
                and len(self._consumer_groups) >= self._settings.groups_max
            ):
                raise LogError(
                    TOO_MANY_GROUPS,
                    f"The coordinator of group {quoted(request.group)} has "
                    f"{counted(len(self._consumer_groups), 'group')}, the most it may have: delete "
                    "groups no longer used.",
                )
            # The replay of the decision's records makes the group that stays.
            group = ConsumerGroup(request.group)
        decision = self._decisions.heartbeat(group, request, image, now_ms, time_ms)
        return Decision(decision.response, decision.records)

    def _exists(self, group_id: str) -> ConsumerGroup | None:
        """The consumer group, None if there are offsets only. Raises LogError(UNKNOWN_GROUP)."""
        group = self._consumer_groups.get(group_id)
        if group is None and not self._offsets.has_offsets(group_id):
            raise LogError(UNKNOWN_GROUP, f"Group {quoted(group_id)} not found.")
        return group

    def _describe(self, group_id: str) -> ConsumerGroupDescription:
        group = self._exists(group_id)
        if group is None:
            return ConsumerGroupDescription(group_id, "Empty", 0, 0, "", (), OFFSETS_KIND)
        return group.describe()

    def _list(self) -> GroupList:
        groups = self._consumer_groups
        listings = []
        for group_id in sorted({*groups, *self._offsets.group_ids()}):
            group = groups.get(group_id)
            if group is None:
                listings.append(GroupListing(group_id, OFFSETS_KIND, "Empty"))
            else:
                members = len(group.members)
                listings.append(GroupListing(group_id, "consumer", group.state, members))
        return GroupList(tuple(listings))

    def _delete(self, group_id: str) -> Decision[GroupResponse]:
        """Delete some offsets, or at last the group. A later join ends it between two steps."""
        group = self._exists(group_id)
        end = () if group is None else self._decisions.delete(group).records
        step = self._offsets.delete_group(group_id, offsets_max=DELETED_OFFSETS_MAX)
        if not step.response:
            return Decision(Done(is_complete=False), step.records)
        return Decision(Done(), (*step.records, *end))

    # Decisions about offsets

    def _commit(self, request: CommitOffsets, time_ms: int) -> Decision[GroupResponse]:
        group_id = check_group_id(request.group_id)
        self._check_committer(group_id, request.committer)
        is_new = group_id not in self._consumer_groups and not self._offsets.has_offsets(group_id)
        if is_new and (count := len(self._offsets.group_ids())) >= self._settings.groups_max:
            raise LogError(
                TOO_MANY_GROUPS,
                f"The coordinator of group {quoted(group_id)} has offsets of {count} groups, the "
                "most it may have: delete groups no longer used.",
            )
        decision = self._offsets.commit(
            group_id,
            request.offsets,
            now_ms=time_ms,
            producer=request.producer,
            retention_ms=request.retention_ms,
        )
        return Decision(OffsetOutcomes(decision.response), decision.records, decision.producer)

    def _check_committer(self, group_id: str, committer: Committer) -> None:
        """Raise LogError unless this author may commit for the group now."""
        group = self._consumer_groups.get(group_id)
        if group is not None:
            group.check_commit(committer.member_id, committer.epoch)
        elif committer.epoch >= 0 or committer.member_id:
            raise LogError(
                UNKNOWN_MEMBER,
                f"Group {quoted(group_id)} has no member {quoted(committer.member_id)}: give up "
                "all partitions and join, with epoch 0.",
            )

    def _fetch(self, request: FetchOffsets) -> FetchedOffsets:
        check_group_id(request.group_id)
        if request.reader.epoch >= 0:
            self._check_committer(request.group_id, request.reader)
        return FetchedOffsets(
            self._offsets.fetch(
                request.group_id, request.partitions, require_stable=request.require_stable
            )
        )

    def _delete_offsets(self, request: DeleteOffsets) -> Decision[GroupResponse]:
        group = self._exists(request.group_id)
        if group is not None and group.members:
            used = subscribed_names(group.members, group.patterns)
            for name in request.partitions:
                if name.topic in used:
                    raise LogError(
                        GROUP_NOT_EMPTY,
                        f"A member of group {quoted(request.group_id)} subscribes to topic "
                        f"{quoted(name.topic)}: stop the group's members first.",
                    )
        decision = self._offsets.delete(request.group_id, request.partitions)
        return Decision(OffsetOutcomes(decision.response), decision.records)

    # Timers of the shard

    def _refresh_next(self, image: MetadataImage, now_ms: int, time_ms: int) -> Decision[None]:
        """Refresh one stale group; the timer goes on while there are more."""
        if not self._stale:
            changed, self._changed_topics = self._changed_topics, set()
            self._stale = list(self.stale_groups(image, changed))
        if not self._stale:
            return Decision(None)
        group_id = self._stale.pop()
        if self._stale or self._changed_topics:
            self.timers.set(ShardTimer.REFRESH, now_ms)
        return self.refresh(group_id, image, None, time_ms)

    def _sweep_next(self, image: MetadataImage, now_ms: int, time_ms: int) -> Decision[None]:
        """Delete some ended offsets, or ended groups; the timer goes on until the sweep is over."""
        if self._sweep is None:
            self._sweep = self._swept(image, time_ms)
        records = next(self._sweep, None)
        if records is None:
            self._sweep = None
            self.timers.set(ShardTimer.SWEEP, now_ms + self._settings.sweep_interval_ms)
            return Decision(None)
        self.timers.set(ShardTimer.SWEEP, now_ms)
        return Decision(None, records)

    def _swept(self, image: MetadataImage, time_ms: int) -> Iterator[tuple[CoordinatorRecord, ...]]:
        """The steps of one sweep."""
        missing_before, self._missing = self._missing, set()

        def is_deleted(name: str, topic_id: TopicId | None) -> bool:
            topic = image.topics_by_name.get(name)
            if topic is not None and topic_id in (None, topic.topic_id):
                return False
            self._missing.add((name, topic_id))
            return (name, topic_id) in missing_before

        def empty_since_ms(group_id: str) -> int | None:
            group = self._consumer_groups.get(group_id)
            if group is None:
                return 0
            return None if group.members else self._empty_since_ms.setdefault(group_id, time_ms)

        retention_ms = self._settings.retention_ms
        yield from self._offsets.sweep(
            now_ms=time_ms,
            retention_ms=retention_ms,
            empty_since_ms=empty_since_ms,
            is_deleted=is_deleted,
        )
        for group_id in tuple(self._consumer_groups):
            since_ms = empty_since_ms(group_id)
            is_over = since_ms is not None and since_ms <= time_ms - retention_ms
            if is_over and not self._offsets.has_offsets(group_id):
                yield self._decisions.delete(self._consumer_groups[group_id]).records

    # Replay

    def replay(
        self, record: CoordinatorRecord, *, position: int, producer: Producer | None
    ) -> None:
        """Apply the record at an offset of the log, in its order."""
        key, value = record
        match key, value:
            case OffsetCommitKey(), OffsetCommitValue() | None:
                self._offsets.replay(key, value, position=position, producer=producer)
            case (
                (
                    ConsumerGroupMetadataKey()
                    | ConsumerGroupMemberMetadataKey()
                    | ConsumerGroupTargetAssignmentMetadataKey()
                    | ConsumerGroupTargetAssignmentMemberKey()
                    | ConsumerGroupCurrentMemberAssignmentKey()
                    | ConsumerGroupRegularExpressionKey()
                ),
                _,
            ):
                group = self._consumer_groups.get(key.group)
                if group is None:
                    # Compaction may have removed the group's first records.
                    group = self._consumer_groups[key.group] = ConsumerGroup(key.group)
                group.replay(record)
                if group.is_void:
                    del self._consumer_groups[key.group]
                if group.members or group.is_void:
                    self._empty_since_ms.pop(key.group, None)
                self._on_changed(key.group)
            case _:
                raise AssertionError(f"not a record of a consumer group: {record}")

    def replay_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        committed: bool,
        position: int,
    ) -> None:
        """End the producer's transaction: its pending offsets count, or are dropped."""
        self._offsets.replay_marker(producer_id, producer_epoch, committed=committed)

    def loaded(self, now_ms: int) -> None:
        """Set all timers, after the replay of the log."""
        for group in self._consumer_groups.values():
            self._decisions.loaded(group, now_ms)
        self._changed_topics, self._stale, self._sweep = None, [], None
        self.timers.set(ShardTimer.REFRESH, now_ms + REFRESH_AFTER_LOAD_MS)
        self.timers.set(ShardTimer.SWEEP, now_ms + self._settings.sweep_interval_ms)


def _check_heartbeat(request: ConsumerHeartbeatRequest, settings: GroupSettings) -> None:
    """Raise LogError for values out of bounds."""
    check_group_id(request.group)
    _check_length("member id", request.member_id, least=1)
    if request.instance_id is not None:
        _check_length("instance id", request.instance_id, least=1)
    _check_length("rack id", request.rack_id or "")
    _check_length("client id", request.client_id)
    _check_length("client host", request.client_host)
    names = request.subscribed_names or ()
    if len(names) > SUBSCRIBED_NAMES_MAX:
        raise LogError(
            BAD_REQUEST,
            f"A subscription of {len(names)} topics by name is over {SUBSCRIBED_NAMES_MAX}: use a "
            "pattern.",
        )
    for name in names:
        _check_length("topic name", name, least=1, most=TOPIC_NAME_CHARACTERS_MAX)
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        raise LogError(BAD_REQUEST, f"There is no member epoch {request.member_epoch}.")
    owned = sum(len(topic.partitions) for topic in request.owned or ())
    if owned > OWNED_PARTITIONS_MAX:
        raise LogError(BAD_REQUEST, f"{owned} owned partitions are over {OWNED_PARTITIONS_MAX}.")
    rebalance_ms = request.rebalance_timeout_ms
    if rebalance_ms is not None and not 1 <= rebalance_ms <= REBALANCE_TIMEOUT_MS_MAX:
        raise LogError(
            BAD_REQUEST,
            f"A rebalance timeout of {rebalance_ms} ms is not between 1 and "
            f"{REBALANCE_TIMEOUT_MS_MAX}.",
        )
    session_ms = request.session_timeout_ms
    least_ms, most_ms = settings.session_timeout_ms_min, settings.session_timeout_ms_max
    if session_ms is not None and not least_ms <= session_ms <= most_ms:
        raise LogError(
            INVALID_SESSION_TIMEOUT,
            f"A session timeout of {session_ms} ms is not between {least_ms} and {most_ms}, the "
            "cluster's bounds.",
        )


def check_group_id(group_id: str) -> str:
    """The id itself, if valid. Raises LogError(INVALID_GROUP)."""
    if not 1 <= len(group_id) <= ID_CHARACTERS_MAX or not group_id.strip():
        raise LogError(
            INVALID_GROUP,
            f"Group id {quoted(group_id)} is not valid: use 1 to {ID_CHARACTERS_MAX} characters, "
            "not spaces only.",
        )
    return group_id


def _check_length(noun: str, text: str, *, least: int = 0, most: int = ID_CHARACTERS_MAX) -> None:
    if not least <= len(text) <= most:
        raise LogError(
            BAD_REQUEST, f"A {noun} has {least} to {most} characters; this one has {len(text)}."
        )
