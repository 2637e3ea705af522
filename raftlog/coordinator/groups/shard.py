"""All groups of one partition of `__consumer_offsets`: dispatch, replay, timers, bounds. Pure.

The shard decides which groups exist, of which kind, and whether they are empty. Requests are
validated here, whichever face they come from. The caller appends a decision's records, replays
them at once, and sends the response when they are committed (DESIGN.md, rules of a shard).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Final, assert_never

from raftlog.coordinator.groups.checks import (
    check_classic_heartbeat,
    check_group_id,
    check_heartbeat,
    check_join,
    check_leave,
    check_length,
    check_sync,
)
from raftlog.coordinator.groups.classic.group import ClassicGroup
from raftlog.coordinator.groups.classic.messages import (
    ClassicHeartbeat,
    ClassicRequest,
    DescribedGroup,
    Held,
    JoinGroup,
    JoinResponse,
    LeaveGroup,
    SyncGroup,
)
from raftlog.coordinator.groups.classic.shard import ClassicGroups
from raftlog.coordinator.groups.consumer_decisions import ConsumerDecisions
from raftlog.coordinator.groups.consumer_group import ConsumerGroup
from raftlog.coordinator.groups.messages import (
    CLASSIC_KIND,
    JOIN_EPOCH,
    OFFSETS_KIND,
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
    OffsetOutcomes,
    state_words,
)
from raftlog.coordinator.groups.offset_messages import (
    CommitOffsets,
    Committer,
    DeleteOffsets,
    FetchOffsets,
)
from raftlog.coordinator.groups.offsets import OffsetTable
from raftlog.coordinator.groups.settings import (
    GroupSettings,
    GroupTimer,
    InstanceTimer,
    MemberTimer,
    ShardTimer,
    Shared,
    TimerKind,
)
from raftlog.coordinator.groups.subscriptions import subscribed_names
from raftlog.coordinator.instances.consumer_instances import ConsumerInstances
from raftlog.coordinator.instances.messages import InstanceRequest
from raftlog.coordinator.shard.decision import (
    Aging,
    CoordinatorRecord,
    Counts,
    Decision,
    Event,
    Producer,
    Timers,
    weakly,
)
from raftlog.coordinator.shard.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerInstanceKey,
    ConsumerInstancePositionKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import (
    COORDINATOR_LOADING,
    GROUP_NOT_EMPTY,
    INCONSISTENT_PROTOCOL,
    TOO_MANY_GROUPS,
    UNKNOWN_GROUP,
    UNKNOWN_MEMBER,
    LogError,
    counted,
    quoted,
)
from raftlog.record.types import ProducerEpoch, ProducerId, TopicId

DELETED_OFFSETS_MAX: Final = 1_000
"""Most offsets deleted by a decision, whose records are in one batch."""
REFRESH_AFTER_LOAD_MS: Final = 1_000
"""Milliseconds from a load to the search for topics changed since the last decision."""


class GroupShard:
    """The groups of a shard. A new shard is empty until its log is replayed and `loaded` called."""

    def __init__(
        self,
        settings: GroupSettings,
        on_changed: Callable[[Hashable], None] = lambda _: None,
        counts: Counts | None = None,
    ) -> None:
        """A replay calls `on_changed` with the id of a changed group. Decisions add to `counts`."""
        self._defaults = settings
        self._shared = Shared(settings, Counter() if counts is None else counts)
        self._on_changed = on_changed
        self.classic = ClassicGroups(self._shared, on_changed)
        """Classic groups, and their held requests."""
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        """Consumer groups by id."""
        self.offsets = OffsetTable()
        """Committed and pending offsets."""
        self._decisions = ConsumerDecisions(self._shared)
        self.instances = ConsumerInstances(
            self._shared,
            groups=self.consumer_groups,
            offsets=self.offsets,
            heartbeat=weakly(self._heartbeat),
            commit=weakly(self._commit),
            check_commit=weakly(self._check_commit),
        )
        """REST consumer instances."""
        self._changed_topics: set[str] | None = None
        """Topics that the next refresh follows, or None if any may have changed."""
        self._stale: list[str] = []
        """Remaining groups of the refresh."""
        self._sweep: Iterator[tuple[CoordinatorRecord, ...]] | None = None
        """The sweep under way."""
        self._missing: set[tuple[str, TopicId | None]] = set()
        """Topics with offsets that the last sweep did not find in the metadata. The next sweep
        deletes their offsets. The last sweep may have run on metadata older than a commit's."""
        self._ending: dict[str, int] = {}
        """Number of requests that are deleting each group."""
        self._held: dict[tuple[str, str], int] = {}
        """Number of the newest held heartbeat of a member."""
        self._held_count = 0

    def follow_settings(self, cluster: Mapping[str, str]) -> None:
        """Apply the settings of the cluster from now on."""
        self._shared.settings = self._defaults.following(cluster)

    # Queries

    def __len__(self) -> int:
        return len(self.consumer_groups) + len(self.classic)

    @property
    def timers(self) -> Timers[GroupTimer]:
        """The timers. Read the next deadline after each decision. `expire` takes due timers."""
        return self._shared.timers

    def group_states(self) -> Counter[tuple[str, str]]:
        """Groups by kind and state."""
        return Counter((group.kind, state_words(group.state)) for group in self._list().groups)

    def has_news(self, group_id: str, member_id: str) -> bool:
        """Whether a heartbeat held open for the member must be decided again now."""
        group = self.consumer_groups.get(group_id)
        return group is None or group.has_news(member_id)

    def hold(self, group_id: str, member_id: str) -> int:
        """Hold a heartbeat of the member, and end the hold of an earlier heartbeat."""
        self._held_count += 1
        is_held = (group_id, member_id) in self._held
        self._held[group_id, member_id] = self._held_count
        if is_held:
            # This wakes all held heartbeats of the group, so do it only to end a hold.
            self._on_changed(group_id)
        return self._held_count

    def is_held(self, group_id: str, member_id: str, number: int) -> bool:
        """Whether the heartbeat is the member's newest."""
        return self._held.get((group_id, member_id)) == number

    def release(self, group_id: str, member_id: str, number: int) -> None:
        """End the hold of a heartbeat."""
        if self.is_held(group_id, member_id, number):
            del self._held[group_id, member_id]

    def is_newest(self, request: ConsumerHeartbeatRequest) -> bool:
        """Whether the member has sent no report after this heartbeat's."""
        group = self.consumer_groups.get(request.group)
        newest = None if group is None else group.reports.get(request.member_id)
        return newest is None or newest is request.report

    def disconnected(
        self, request: ConsumerHeartbeatRequest, received_ms: int, now_ms: int
    ) -> None:
        """Shorten the session, since the connection of a held heartbeat has ended."""
        group = self.consumer_groups.get(request.group)
        if group is not None:
            self._decisions.disconnected(group, request, received_ms, now_ms)

    def topics_changed(self, names: Collection[str], now_ms: int) -> None:
        """Have the groups of these topics refreshed by a timer that is due now."""
        if self._changed_topics is not None:
            self._changed_topics.update(names)
        self.timers.set(ShardTimer.REFRESH, now_ms)

    def stale_groups(
        self, image: MetadataImage, changed: Collection[str] | None
    ) -> tuple[str, ...]:
        """Groups to `refresh`, each by a decision, after topics were created, deleted or enlarged.

        `changed` names those topics. None stands for any topics after a load, since the metadata
        may have changed after the last coordinator's last decision.
        """
        return tuple(
            group_id
            for group_id, group in self.consumer_groups.items()
            if self._decisions.is_stale(group, image, changed)
        )

    # Decisions

    def decide(
        self, request: GroupRequest, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[GroupResponse | Held]:
        """Decide about a request. `now_ms` is monotonic, `time_ms` stored. Raises LogError.

        `classic.take` returns the response to a held request.
        """
        decision: Decision[GroupResponse | Held]
        match request:
            case ConsumerHeartbeatRequest():
                decision = self._heartbeat(request, image, now_ms, time_ms)
            case DeleteGroupRequest():
                decision = self._delete(request.group)
            case CommitOffsets():
                decision = self._commit(request, now_ms, time_ms)
            case DeleteOffsets():
                decision = self._delete_offsets(request)
            case DescribeGroupRequest() | ListGroupsRequest() | FetchOffsets():
                decision = Decision(self.read(request))
            case JoinGroup() | SyncGroup() | ClassicHeartbeat() | LeaveGroup():
                decision = self._decide_classic(request, now_ms, time_ms)
            case _:
                decision = self._decide_instance(request, image, now_ms, time_ms)
        return decision

    def read(
        self, request: DescribeGroupRequest | ListGroupsRequest | FetchOffsets
    ) -> GroupResponse:
        """Respond from the state. Raises LogError."""
        match request:
            case DescribeGroupRequest():
                return self._describe(request.group)
            case ListGroupsRequest():
                return self._list()
            case FetchOffsets():
                return self._fetch(request)
        assert_never(request)

    def expire(
        self,
        timer: GroupTimer,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
        expiry_ms: int | None = None,
    ) -> Decision[None]:
        """Decide about a timer that is due, taken from `timers`.

        Stored times expire by `expiry_ms`, and by nothing else.
        """
        if timer is ShardTimer.REFRESH:
            return self._refresh_next(image, now_ms, time_ms)
        if timer is ShardTimer.SWEEP:
            aging = None if expiry_ms is None else Aging(expiry_ms, time_ms)
            return self._sweep_next(image, now_ms, aging)
        if isinstance(timer, InstanceTimer):
            return self.instances.expire(timer, image, now_ms, time_ms)
        return self._expire_member(timer, image, now_ms, time_ms)

    def _expire_member(
        self, timer: MemberTimer, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[None]:
        group = self.consumer_groups.get(timer.group)
        if group is None:
            return self.classic.on_timer(timer, now_ms, time_ms)
        if timer.member_id not in group.members:
            return Decision(None)
        is_session = timer.kind is TimerKind.SESSION
        if is_session and self.instances.is_member(timer.group, timer.member_id):
            return self.instances.renew(timer.group, timer.member_id, image, now_ms, time_ms)
        return self._decisions.expire(group, timer.member_id, image, time_ms)

    def _decide_instance(
        self, request: InstanceRequest, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[GroupResponse]:
        check_group_id(request.group)
        check_length("consumer instance", request.instance, least=1)
        return self.instances.decide(request, image, now_ms, time_ms)

    def refresh(
        self,
        group_id: str,
        image: MetadataImage,
        changed: Collection[str] | None,
        time_ms: int,
    ) -> Decision[None]:
        """Follow a change of topics in one of the `stale_groups`, with the same `changed`."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            return Decision(None)
        return self._decisions.refresh(group, image, changed, time_ms)

    def _heartbeat(
        self,
        request: ConsumerHeartbeatRequest,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[ConsumerHeartbeatResponse]:
        check_heartbeat(request, self._shared.settings)
        group = self.consumer_groups.get(request.group)
        end: tuple[CoordinatorRecord, ...] = ()
        if group is None:
            if request.member_epoch == JOIN_EPOCH:
                self._check_not_ending(request.group)
                end = self._classic_end(request.group)
            # The replay of the decision's records makes the group that stays.
            group = ConsumerGroup(request.group)
        decision = self._decisions.heartbeat(group, request, image, now_ms, time_ms)
        return Decision(decision.response, (*end, *decision.records))

    def _classic_end(self, group_id: str) -> tuple[CoordinatorRecord, ...]:
        """Records that make room for a consumer group of the id. Raises LogError."""
        classic = self.classic.get(group_id)
        if classic is None:
            self._check_room(group_id, len(self))
            return ()
        if not classic.is_empty:
            raise LogError(
                INCONSISTENT_PROTOCOL,
                f"Group {quoted(group_id)} has members of the classic protocol: members of the "
                "consumer protocol can join once all of them have left.",
            )
        return classic.tombstones()

    def _decide_classic(
        self, request: ClassicRequest, now_ms: int, time_ms: int
    ) -> Decision[GroupResponse | Held]:
        match request:
            case JoinGroup():
                return self._join(request, now_ms, time_ms)
            case SyncGroup():
                check_sync(request)
                return self.classic.sync(request, now_ms, time_ms)
            case ClassicHeartbeat():
                check_classic_heartbeat(request)
                self.classic.heartbeat(request, now_ms)
                return Decision(Done())
            case LeaveGroup():
                check_leave(request)
                return self.classic.leave(request, now_ms, time_ms)
        assert_never(request)

    def _join(self, request: JoinGroup, now_ms: int, time_ms: int) -> Decision[JoinResponse]:
        """Decide about a join of the classic kind. It ends an empty consumer group."""
        check_join(request, self._shared.settings)
        group_id = request.group_id
        self._check_not_ending(group_id)
        consumer = self.consumer_groups.get(group_id)
        end: tuple[CoordinatorRecord, ...] = ()
        if consumer is not None:
            if consumer.members:
                raise LogError(
                    INCONSISTENT_PROTOCOL,
                    f"Group {quoted(group_id)} has members of the consumer protocol: members of "
                    "the classic protocol can join once all of them have left.",
                )
            end = tuple(consumer.tombstones())
        elif self.classic.get(group_id) is None:
            self._check_room(group_id, len(self))
        decision = self.classic.join(request, now_ms, time_ms)
        if not end:
            return decision
        return Decision(decision.response, (*end, *decision.records))

    def _check_room(self, group_id: str, count: int) -> None:
        """Raise LogError if `count` groups leave no room for another."""
        if count >= self._shared.settings.groups_max:
            raise LogError(
                TOO_MANY_GROUPS,
                f"The coordinator of group {quoted(group_id)} has {counted(count, 'group')}, the "
                "most it may have: delete groups no longer used.",
            )

    def _exists(self, group_id: str) -> ConsumerGroup | ClassicGroup | None:
        """The group, or None if there are only offsets. Raises LogError(UNKNOWN_GROUP)."""
        group = self._group(group_id)
        if group is None and not self.offsets.has_offsets(group_id):
            raise LogError(UNKNOWN_GROUP, f"Group {quoted(group_id)} not found.")
        return group

    def _group(self, group_id: str) -> ConsumerGroup | ClassicGroup | None:
        return self.consumer_groups.get(group_id) or self.classic.get(group_id)

    def _describe(self, group_id: str) -> ConsumerGroupDescription | DescribedGroup:
        group = self._exists(group_id)
        if group is None:
            return ConsumerGroupDescription(
                group=group_id,
                state="Empty",
                epoch=0,
                assignment_epoch=0,
                assignor="",
                members=(),
                kind=OFFSETS_KIND,
            )
        return group.describe()

    def _list(self) -> GroupList:
        found = {
            group_id: GroupListing(group_id, OFFSETS_KIND, "Empty")
            for group_id in self.offsets.group_ids()
        }
        for group_id, group in self.consumer_groups.items():
            found[group_id] = GroupListing(
                group=group_id,
                kind="consumer",
                state=group.state,
                members=len(group.members),
                assignor=group.assignor,
            )
        for classic in self.classic:
            found[classic.group_id] = GroupListing(
                classic.group_id,
                CLASSIC_KIND,
                classic.state,
                classic.member_count,
                protocol_type=classic.protocol_type,
            )
        return GroupList(tuple(found[group_id] for group_id in sorted(found)))

    def _delete(self, group_id: str) -> Decision[GroupResponse | Held]:
        """Delete some offsets, or finally the group."""
        group = self._exists(group_id)
        if group is not None and (count := group.member_count):
            raise LogError(
                GROUP_NOT_EMPTY,
                f"Group {quoted(group_id)} has {counted(count, 'member')}: stop all of them first.",
            )
        step = self.offsets.delete_group(group_id, offsets_max=DELETED_OFFSETS_MAX)
        if not step.response:
            return Decision(Done(is_complete=False), step.records)
        return Decision(Done(), (*step.records, *self._end(group)))

    def _end(self, group: ConsumerGroup | ClassicGroup | None) -> tuple[CoordinatorRecord, ...]:
        """Records that end an empty group."""
        if isinstance(group, ClassicGroup):
            return self.classic.end(group)
        return () if group is None else tuple(group.tombstones())

    def begin_deletion(self, group_id: str) -> None:
        """Refuse joins of the group, and reads and commits of its offsets, until `end_deletion`.

        A member between two steps would resume from some offsets and not from others.
        """
        self._ending[group_id] = self._ending.get(group_id, 0) + 1

    def end_deletion(self, group_id: str) -> None:
        """End a deletion, with the group or with an error."""
        self._ending[group_id] -= 1
        if not self._ending[group_id]:
            del self._ending[group_id]

    def _check_not_ending(self, group_id: str) -> None:
        """Raise LogError(COORDINATOR_LOADING), which callers retry, while the group is deleted."""
        if group_id in self._ending:
            raise LogError(COORDINATOR_LOADING, f"Group {quoted(group_id)} is being deleted.")

    # Decisions about offsets

    def _commit(
        self, request: CommitOffsets, now_ms: int, time_ms: int
    ) -> Decision[OffsetOutcomes]:
        group_id = check_group_id(request.group_id)
        is_transactional = request.producer is not None
        self._check_commit(group_id, request.committer, now_ms, is_transactional=is_transactional)
        is_new = self._group(group_id) is None and not self.offsets.has_offsets(group_id)
        if is_new:
            self._check_room(group_id, len(self.offsets.group_ids()))
        decision = self.offsets.commit(
            group_id,
            request.offsets,
            now_ms=time_ms,
            producer=request.producer,
            retention_ms=request.retention_ms,
        )
        self._shared.counts[Event.OFFSET_COMMIT] += len(decision.records)
        return Decision(OffsetOutcomes(decision.response), decision.records, decision.producer)

    def _check_commit(
        self, group_id: str, committer: Committer, now_ms: int, *, is_transactional: bool = False
    ) -> None:
        """Raise LogError unless a commit of this author may be appended now.

        Any author without an epoch may commit while the group has no members.
        """
        self._check_not_ending(group_id)
        classic = self.classic.get(group_id)
        if classic is None:
            self._check_committer(group_id, committer)
        else:
            classic.check_commit(committer, is_transactional=is_transactional, now_ms=now_ms)

    def _check_committer(self, group_id: str, committer: Committer) -> None:
        """Raise LogError unless this author may commit for the group now."""
        group = self.consumer_groups.get(group_id)
        if group is not None:
            group.check_commit(committer.member_id, committer.epoch)
        elif committer.epoch >= 0:
            raise LogError(
                UNKNOWN_MEMBER,
                f"Group {quoted(group_id)} has no member {quoted(committer.member_id)}: give up "
                "all partitions and join, with epoch 0.",
            )

    def _fetch(self, request: FetchOffsets) -> FetchedOffsets:
        check_group_id(request.group_id)
        self._check_not_ending(request.group_id)
        if request.reader.epoch >= 0 and self.classic.get(request.group_id) is None:
            self._check_committer(request.group_id, request.reader)
        return FetchedOffsets(
            self.offsets.fetch(
                request.group_id, request.partitions, require_stable=request.require_stable
            )
        )

    def _delete_offsets(self, request: DeleteOffsets) -> Decision[GroupResponse | Held]:
        group = self._exists(request.group_id)
        if isinstance(group, ClassicGroup) and not group.is_empty:
            raise LogError(
                GROUP_NOT_EMPTY,
                f"Group {quoted(request.group_id)} has {counted(group.member_count, 'member')}: "
                "stop all of them first.",
            )
        if isinstance(group, ConsumerGroup) and group.members:
            used = subscribed_names(group.members, group.patterns)
            for name in request.partitions:
                if name.topic in used:
                    raise LogError(
                        GROUP_NOT_EMPTY,
                        f"A member of group {quoted(request.group_id)} subscribes to topic "
                        f"{quoted(name.topic)}: stop the group's members first.",
                    )
        decision = self.offsets.delete(request.group_id, request.partitions)
        return Decision(OffsetOutcomes(decision.response), decision.records)

    # Timers of the shard

    def _refresh_next(self, image: MetadataImage, now_ms: int, time_ms: int) -> Decision[None]:
        """Refresh a stale group. The timer continues while there are more."""
        if not self._stale:
            changed, self._changed_topics = self._changed_topics, set()
            self._stale = list(self.stale_groups(image, changed))
        if not self._stale:
            return Decision(None)
        group_id = self._stale.pop()
        if self._stale or self._changed_topics:
            self.timers.set(ShardTimer.REFRESH, now_ms)
        return self.refresh(group_id, image, None, time_ms)

    def _sweep_next(self, image: MetadataImage, now_ms: int, aging: Aging | None) -> Decision[None]:
        """Delete some expired offsets or groups. The timer continues until the sweep is over."""
        if self._sweep is None:
            self._sweep = self._swept(image, aging)
        records = next(self._sweep, None)
        if records is None:
            self._sweep = None
            self.timers.set(ShardTimer.SWEEP, now_ms + self._shared.settings.sweep_interval_ms)
            return Decision(None)
        self.timers.set(ShardTimer.SWEEP, now_ms)
        return Decision(None, records)

    def _swept(
        self, image: MetadataImage, aging: Aging | None
    ) -> Iterator[tuple[CoordinatorRecord, ...]]:
        """The steps of a sweep."""
        missing_before, self._missing = self._missing, set()

        def is_deleted(name: str, topic_id: TopicId | None) -> bool:
            topic = image.topics_by_name.get(name)
            if topic is not None and topic_id in (None, topic.topic_id):
                return False
            self._missing.add((name, topic_id))
            return (name, topic_id) in missing_before

        def empty_since_ms(group_id: str) -> int | None:
            group = self._group(group_id)
            return 0 if group is None else group.empty_since_ms

        retention_ms = self._shared.settings.retention_ms
        yield from self.offsets.sweep(
            aging=aging,
            retention_ms=retention_ms,
            empty_since_ms=empty_since_ms,
            is_deleted=is_deleted,
        )
        if aging is None:
            return
        for group_id in (*self.consumer_groups, *(group.group_id for group in self.classic)):
            group, since_ms = self._group(group_id), empty_since_ms(group_id)
            if group is None or since_ms is None:
                continue
            if aging.is_ahead(since_ms):
                yield group.emptied(aging.time_ms)
            elif aging.is_over(since_ms, retention_ms) and not self.offsets.has_offsets(group_id):
                yield self._end(group)

    # Replay

    def replay(
        self, record: CoordinatorRecord, *, position: int, producer: Producer | None
    ) -> None:
        """Apply the record at an offset of the log, in the log's order."""
        key, value = record
        match key, value:
            case OffsetCommitKey(), OffsetCommitValue() | None:
                self.offsets.replay(key, value, position=position, producer=producer)
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
                group = self.consumer_groups.get(key.group)
                if value is not None:
                    self.classic.replaced(key.group)
                if group is None:
                    # Compaction may have removed the group's first records.
                    group = self.consumer_groups[key.group] = ConsumerGroup(key.group)
                group.replay(record)
                if group.is_void:
                    del self.consumer_groups[key.group]
                self.instances.group_changed(key.group)
                self._on_changed(key.group)
            case GroupMetadataKey(), GroupMetadataValue() | None:
                self.classic.replay(key, value)
                self._on_changed(key.group)
            case ConsumerInstanceKey() | ConsumerInstancePositionKey(), _:
                self.instances.replay(record)
                self._on_changed(key.group)
            case _:
                raise AssertionError(f"not a record of a group: {record}")

    def replay_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        committed: bool,
        position: int,
    ) -> None:
        """End the producer's transaction, which commits or drops its pending offsets."""
        self.offsets.replay_marker(producer_id, producer_epoch, committed=committed)

    def refused(self, records: tuple[CoordinatorRecord, ...], now_ms: int, time_ms: int) -> None:
        """Keep the old state, since the records of the last decision are too large."""
        self.classic.refused(records, now_ms, time_ms)
        self.loaded(now_ms)

    def loaded(self, now_ms: int) -> None:
        """Set all timers, after the replay of the log."""
        self.classic.restart_timers(now_ms)
        for group in self.consumer_groups.values():
            self._decisions.loaded(group, now_ms)
        self.instances.loaded(now_ms)
        self._changed_topics, self._stale, self._sweep = None, [], None
        self.timers.set(ShardTimer.REFRESH, now_ms + REFRESH_AFTER_LOAD_MS)
        self.timers.set(ShardTimer.SWEEP, now_ms + self._shared.settings.sweep_interval_ms)
