"""REST consumer instances of one shard, with their membership and positions. Pure.

An instance is a record of its group. While subscribed it is a member of the group, and the
coordinator heartbeats for it. Positions beyond the last commit are soft state, as timers are. A new
coordinator resumes from the commit. docs/decisions/rest-consumers.md has the reads.

| state | event | next |
|---|---|---|
| (none) | create | idle. 40902 if it exists, 40928 above `consumer.instances.max` |
| idle | subscribe to names or a pattern | subscribed. The member joins |
| idle | assign | assigned |
| subscribed | the same kind again | the same, with the new topics |
| subscribed, assigned | another of these three kinds | 40903, as in Kafka. Nothing changes |
| subscribed | unsubscribe | idle. The member leaves. Positions and records 102 end |
| assigned | unsubscribe, assign nothing | idle |
| any | delete, or idle for too long | (none), with a leave and tombstones |
| subscribed, assigned | seek of a partition that it has | position and record 102 |
| any | commit | offsets of the group, as the member. Ends records 102 |
| subscribed | a partition is revoked | auto commit. Position and record 102 end |

Without membership a commit succeeds only while the group is empty. A delete commits all reads. The
idle timer and a revocation commit only reads that a later read followed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

from msgspec.structs import replace

from raftlog.coordinator.groups.assignors import Pair, assignment_of, pairs
from raftlog.coordinator.groups.consumer_group import ConsumerGroup
from raftlog.coordinator.groups.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    GroupResponse,
    OffsetOutcomes,
)
from raftlog.coordinator.groups.offset_messages import (
    CommitOffsets,
    Committer,
    OffsetToCommit,
    TopicPartition,
)
from raftlog.coordinator.groups.offsets import OffsetTable
from raftlog.coordinator.groups.reconciliation import reconcile
from raftlog.coordinator.groups.settings import InstanceTimer, InstanceTimerKind, Shared
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
    PartitionOffset,
    ReadOutcome,
    ReadPlan,
    SeekInstance,
    SubscribeInstance,
)
from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision
from raftlog.coordinator.shard.records import (
    ConsumerInstanceKey,
    ConsumerInstancePositionKey,
    ConsumerInstancePositionValue,
    ConsumerInstanceValue,
)
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import (
    COORDINATOR_LOADING,
    ILLEGAL_STATE,
    INSTANCE_EXISTS,
    INVALID_BODY,
    TOO_MANY_INSTANCES,
    UNKNOWN_INSTANCE,
    UNKNOWN_MEMBER,
    UNSUPPORTED_FORMAT,
    LogError,
    counted,
    quoted,
)

INSTANCE_PARTITIONS_MAX: Final = 1_000
"""Most partitions of one instance. Its starts end in one batch, and each is a record."""
STEP_AFTER_LOAD_MS: Final = 1_000
"""Delay of a step after a load, in milliseconds. Compaction may have brought an instance's record
behind its group's. A step that is too large for a batch is not tried in a loop."""
LATEST: Final = "latest"
_CHOOSE_ONE: Final = (
    "IllegalStateError: You must choose only one way to configure your consumer: (1) subscribe to "
    "specific topics by name, (2) subscribe to topics matching a regex pattern, (3) assign itself "
    "specific topic-partitions."
)

InstanceId: TypeAlias = tuple[str, str]
"""Group and name."""
Heartbeat: TypeAlias = Callable[
    [ConsumerHeartbeatRequest, MetadataImage, int, int], Decision[ConsumerHeartbeatResponse]
]
"""Decides about a member's heartbeat, at a monotonic and at a wall time."""
Commit: TypeAlias = Callable[[CommitOffsets, int, int], Decision[OffsetOutcomes]]
"""Decides about a commit, at a monotonic and at a wall time."""


@dataclass(slots=True, eq=False)
class Instance:
    """One instance, with its record and the soft state of its reads."""

    group: str
    name: str
    value: ConsumerInstanceValue
    positions: dict[Pair, int] = field(default_factory=dict)
    """Next offsets to read, where a read or a seek has set an offset."""
    followed: dict[Pair, int] = field(default_factory=dict)
    """Positions at the start of the newest read, which auto commit covers."""
    turns: dict[Pair, None] = field(default_factory=dict)
    """Partitions in the order of the next read."""
    committed_ms: int = 0
    """Monotonic time of the last auto commit."""

    @property
    def is_subscribed(self) -> bool:
        """Whether the instance is a member of its group."""
        value = self.value
        return bool(value.subscribed_topic_names) or value.subscribed_topic_regex is not None

    @property
    def commits(self) -> bool:
        """Whether auto commit is on."""
        return self.value.auto_commit_interval_ms > 0


class InstanceTable:
    """The instances of one shard."""

    def __init__(self) -> None:
        self.by_id: dict[InstanceId, Instance] = {}
        self.members: dict[str, dict[str, Instance]] = {}
        """Instances of each group, by the id of their present or possible member."""
        self._starts: dict[InstanceId, dict[Pair, int]] = {}
        """Starts of each instance. A compacted log may have them before the instance."""

    def starts(self, instance: Instance) -> Mapping[Pair, int]:
        """The instance's starts that no commit shows."""
        return self._starts.get((instance.group, instance.name), {})

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record of an instance. Tombstones of unknown keys change nothing."""
        key, value = record
        match key, value:
            case ConsumerInstanceKey(), ConsumerInstanceValue():
                self._replay_instance(key, value)
            case ConsumerInstanceKey(), None:
                self._replay_end(key)
            case ConsumerInstancePositionKey(), ConsumerInstancePositionValue():
                starts = self._starts.setdefault((key.group, key.instance), {})
                starts[key.topic_id, key.partition] = value.offset
            case ConsumerInstancePositionKey(), None:
                starts = self._starts.get((key.group, key.instance), {})
                starts.pop((key.topic_id, key.partition), None)
                if not starts:
                    self._starts.pop((key.group, key.instance), None)
            case _:
                raise AssertionError(f"not a record of a consumer instance: {record}")

    def _replay_instance(self, key: ConsumerInstanceKey, value: ConsumerInstanceValue) -> None:
        instance = self.by_id.get((key.group, key.instance))
        if instance is not None and instance.value.member_id != value.member_id:
            # Compaction has removed the end of an earlier instance of that name.
            self._replay_end(key)
            instance = None
        if instance is None:
            instance = Instance(key.group, key.instance, value)
            self.by_id[key.group, key.instance] = instance
            self.members.setdefault(key.group, {})[value.member_id] = instance
        instance.value = value

    def _replay_end(self, key: ConsumerInstanceKey) -> None:
        instance = self.by_id.pop((key.group, key.instance), None)
        if instance is None:
            return
        members = self.members[key.group]
        del members[instance.value.member_id]
        if not members:
            del self.members[key.group]


class ConsumerInstances:
    """The instances of one shard. Only `replay` changes what is in records."""

    def __init__(
        self,
        shared: Shared,
        *,
        groups: Mapping[str, ConsumerGroup],
        offsets: OffsetTable,
        heartbeat: Heartbeat,
        commit: Commit,
        check_commit: Callable[[str, Committer, int], None],
    ) -> None:
        """`groups` and `offsets` are the shard's own, as they change."""
        self._shared = shared
        self._groups = groups
        self._offsets = offsets
        self._heartbeat = heartbeat
        self._commit_offsets = commit
        self._check_commit = check_commit
        self.table = InstanceTable()

    def is_member(self, group_id: str, member_id: str) -> bool:
        """Whether the member is an instance."""
        return member_id in self.table.members.get(group_id, ())

    def has_partitions(self, group_id: str, name: str) -> bool:
        """Whether a read that waits for its first partition must be decided again."""
        instance = self.table.by_id.get((group_id, name))
        return instance is None or bool(self._assigned(instance))

    # Decisions

    def decide(
        self, request: InstanceRequest, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[GroupResponse]:
        """Decide about a request. Raises LogError, UNKNOWN_INSTANCE without the instance."""
        if isinstance(request, CreateInstance):
            return self._create(request, now_ms)
        instance = self.table.by_id.get((request.group, request.instance))
        if instance is None:
            raise LogError(UNKNOWN_INSTANCE)
        self._restart_idle(instance.group, instance.name, now_ms)
        decision: Decision[GroupResponse]
        match request:
            case DeleteInstance():
                records = self._end(instance, instance.positions, image, now_ms, time_ms)
                decision = Decision(InstanceDone(), records)
            case SubscribeInstance():
                decision = self._subscribe(instance, request, image, now_ms, time_ms)
            case AssignInstance():
                decision = self._assign(instance, request)
            case SeekInstance():
                decision = self._seek(instance, request, image)
            case DescribeInstance():
                decision = Decision(self._description(instance))
            case BeginRead():
                decision = self._begin_read(instance, request, image, now_ms, time_ms)
            case EndRead():
                decision = self._end_read(instance, request, image)
            case CommitInstance():
                decision = self._commit(instance, request, image, now_ms, time_ms)
            case _:
                assert_never(request)
        return decision

    def expire(
        self, timer: InstanceTimer, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[None]:
        """Decide about a due timer. An idle instance ends, and members continue."""
        if timer.kind is InstanceTimerKind.STEP:
            return self._step(timer.group, image, now_ms, time_ms)
        instance = self.table.by_id.get((timer.group, timer.instance))
        if instance is None:
            return Decision(None)
        # The client may have died with the newest answer.
        return Decision(None, self._end(instance, instance.followed, image, now_ms, time_ms))

    def renew(
        self, group_id: str, member_id: str, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[None]:
        """Start the session of an instance's member again, because only idle instances end."""
        group = self._groups[group_id]
        epoch = group.known(member_id).member_epoch
        request = ConsumerHeartbeatRequest(group_id, member_id, epoch)
        return Decision(None, self._heartbeat(request, image, now_ms, time_ms).records)

    def group_changed(self, group_id: str) -> None:
        """Have the group's instances follow their targets at once, after a replay."""
        if group_id in self.table.members:
            self._shared.timers.set(InstanceTimer(InstanceTimerKind.STEP, group_id, ""), 0)

    def _create(self, request: CreateInstance, now_ms: int) -> Decision[GroupResponse]:
        instance_id = (request.group, request.instance)
        if instance_id in self.table.by_id:
            raise LogError(
                INSTANCE_EXISTS,
                f"Group {quoted(request.group)} has a consumer instance "
                f"{quoted(request.instance)} already.",
            )
        if len(self.table.by_id) >= self._shared.settings.instances_max:
            raise LogError(
                TOO_MANY_INSTANCES,
                f"The coordinator of group {quoted(request.group)} has "
                f"{counted(len(self.table.by_id), 'consumer instance')}, the most it may have: "
                "delete instances no longer used.",
            )
        value = ConsumerInstanceValue(
            member_id=request.member_id,
            format=request.format,
            auto_offset_reset=request.auto_offset_reset,
            auto_commit_interval_ms=request.auto_commit_interval_ms,
            fetch_min_bytes=request.fetch_min_bytes,
            request_timeout_ms=request.request_timeout_ms,
        )
        key = ConsumerInstanceKey(*instance_id)
        self._restart_idle(*instance_id, now_ms)
        return Decision(InstanceDone(), (CoordinatorRecord(key, value),))

    def _subscribe(
        self,
        instance: Instance,
        request: SubscribeInstance,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[GroupResponse]:
        value = instance.value
        if request.names and request.pattern is not None:
            raise LogError(ILLEGAL_STATE, _CHOOSE_ONE)
        if not request.names and request.pattern is None:
            records = self._leave(instance, image, now_ms, time_ms)
            after = replace(
                value,
                subscribed_topic_names=(),
                subscribed_topic_regex=None,
                assigned_partitions=(),
            )
            records += self._forget(instance, ())
            return Decision(InstanceDone(), (*records, _record(instance, after)))
        other = value.subscribed_topic_regex if request.names else value.subscribed_topic_names
        if value.assigned_partitions or other:
            raise LogError(ILLEGAL_STATE, _CHOOSE_ONE)
        after = replace(
            value,
            subscribed_topic_names=request.names,
            subscribed_topic_regex=request.pattern,
        )
        beat = self._join(instance, after, request.client_host)
        joined = self._heartbeat(beat, image, now_ms, time_ms)
        return Decision(InstanceDone(), (_record(instance, after), *joined.records))

    def _join(
        self, instance: Instance, value: ConsumerInstanceValue, client_host: str = ""
    ) -> ConsumerHeartbeatRequest:
        """The heartbeat by which the instance joins, or a member's with the subscription."""
        group = self._groups.get(instance.group)
        epoch = JOIN_EPOCH
        if group is not None and value.member_id in group.members:
            epoch = group.known(value.member_id).member_epoch
        return ConsumerHeartbeatRequest(
            instance.group,
            value.member_id,
            epoch,
            client_id=instance.name,
            client_host=client_host,
            subscribed_names=value.subscribed_topic_names,
            subscribed_pattern=value.subscribed_topic_regex or "",
        )

    def _assign(self, instance: Instance, request: AssignInstance) -> Decision[GroupResponse]:
        if instance.is_subscribed:
            raise LogError(ILLEGAL_STATE, _CHOOSE_ONE)
        wanted = assignment_of(pairs(request.partitions))
        count = sum(len(topic.partitions) for topic in wanted)
        if count > INSTANCE_PARTITIONS_MAX:
            raise LogError(
                INVALID_BODY,
                f"{count} partitions are over {INSTANCE_PARTITIONS_MAX}, the most of one consumer "
                "instance.",
            )
        records = self._forget(instance, pairs(wanted))
        after = replace(instance.value, assigned_partitions=wanted)
        return Decision(InstanceDone(), (*records, _record(instance, after)))

    def _seek(
        self, instance: Instance, request: SeekInstance, image: MetadataImage
    ) -> Decision[GroupResponse]:
        assigned = set(self._assigned(instance))
        for seek in request.offsets:
            if (seek.topic_id, seek.partition) not in assigned:
                topic = image.topics_by_id.get(seek.topic_id)
                name = seek.topic_id if topic is None else topic.name
                raise no_assignment(name, seek.partition)
        records = []
        for seek in request.offsets:
            pair = (seek.topic_id, seek.partition)
            instance.positions[pair] = seek.offset
            instance.followed.pop(pair, None)
            records.append(_start_record(instance, pair, seek.offset))
        return Decision(InstanceDone(), tuple(records))

    def _begin_read(
        self,
        instance: Instance,
        request: BeginRead,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[GroupResponse]:
        value = instance.value
        if value.format not in request.formats:
            raise LogError(
                UNSUPPORTED_FORMAT,
                f"The consumer instance reads {value.format}; the Accept header allows none of "
                "its media types.",
            )
        records: tuple[CoordinatorRecord, ...] = ()
        if request.is_first:
            instance.followed = dict(instance.positions)
            if instance.commits and now_ms - instance.committed_ms >= value.auto_commit_interval_ms:
                instance.committed_ms = now_ms
                records = self._auto_commit(instance, instance.followed, image, now_ms, time_ms)
        group = self._groups.get(instance.group)
        if instance.is_subscribed and (group is None or value.member_id not in group.members):
            # Somebody else had the member leave.
            beat = self._join(instance, value)
            records += self._heartbeat(beat, image, now_ms, time_ms).records
        assigned = self._assigned(instance)
        if len(assigned) > INSTANCE_PARTITIONS_MAX:
            raise LogError(
                ILLEGAL_STATE,
                f"The consumer instance has {len(assigned)} partitions, and "
                f"{INSTANCE_PARTITIONS_MAX} are the most: add instances to the group.",
            )
        self._take_turns(instance, assigned)
        found = self._positions(instance, instance.turns, image)
        plan = ReadPlan(
            format=value.format,
            auto_offset_reset=value.auto_offset_reset,
            fetch_min_bytes=value.fetch_min_bytes,
            request_timeout_ms=value.request_timeout_ms,
            partitions=tuple(PartitionOffset(*pair, offset) for pair, offset in found.items()),
        )
        return Decision(plan, records)

    def _end_read(
        self, instance: Instance, request: EndRead, image: MetadataImage
    ) -> Decision[GroupResponse]:
        assigned = set(self._assigned(instance))
        moved = [(move.topic_id, move.partition) for move in request.moves]
        found = self._positions(instance, (pair for pair in moved if pair in assigned), image)
        starts = self.table.starts(instance)
        lost: list[Pair] = []
        records = []
        for pair, move in zip(moved, request.moves, strict=True):
            if found.get(pair) != move.planned:
                lost.append(pair)
                continue
            instance.positions[pair] = found[pair] = move.next
            is_reset = move.reset_to != UNKNOWN_OFFSET
            # Any coordinator finds the earliest offset again, or a later offset.
            if is_reset and instance.value.auto_offset_reset == LATEST:
                records.append(_start_record(instance, pair, move.reset_to))
            elif is_reset and pair in starts:
                records.append(_start_record(instance, pair, None))
        for pair in pairs(request.last):
            if pair in instance.turns:
                del instance.turns[pair]
                instance.turns[pair] = None
        return Decision(ReadOutcome(assignment_of(lost)), tuple(records))

    def _commit(
        self,
        instance: Instance,
        request: CommitInstance,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[GroupResponse]:
        offsets = request.offsets
        if offsets is None:
            offsets = _to_commit(instance.positions, image)
        if not offsets:
            return Decision(OffsetOutcomes(()))
        request_of_group = CommitOffsets(instance.group, offsets, self._committer(instance))
        decision = self._commit_offsets(request_of_group, now_ms, time_ms)
        done = []
        for outcome in decision.response.outcomes:
            topic = image.topics_by_name.get(outcome.topic)
            if not outcome.error_code and topic is not None:
                done.append((topic.topic_id, outcome.partition))
        return Decision(decision.response, (*decision.records, *self._started(instance, done)))

    def _description(self, instance: Instance) -> InstanceDescription:
        value = instance.value
        names = value.subscribed_topic_names
        pattern = value.subscribed_topic_regex
        group = self._groups.get(instance.group)
        if pattern is not None and group is not None and pattern in group.patterns:
            names = group.patterns[pattern].topics
        partitions = assignment_of(self._assigned(instance))
        return InstanceDescription(value.format, names, pattern, partitions)

    # Parts of decisions

    def _restart_idle(self, group_id: str, name: str, now_ms: int) -> None:
        timer = InstanceTimer(InstanceTimerKind.IDLE, group_id, name)
        self._shared.timers.set(timer, now_ms + self._shared.settings.instance_timeout_ms)

    def _assigned(self, instance: Instance) -> list[Pair]:
        """Partitions to read, from the client's assignment or the group's."""
        if not instance.is_subscribed:
            return pairs(instance.value.assigned_partitions)
        group = self._groups.get(instance.group)
        current = None if group is None else group.current.get(instance.value.member_id)
        return [] if current is None else pairs(current.assigned_partitions)

    def _take_turns(self, instance: Instance, assigned: Collection[Pair]) -> None:
        kept = set(assigned)
        turns = {pair: None for pair in instance.turns if pair in kept}
        for pair in assigned:
            turns.setdefault(pair, None)
        instance.turns = turns

    def _positions(
        self, instance: Instance, wanted: Iterable[Pair], image: MetadataImage
    ) -> dict[Pair, int]:
        """Positions in the order of `wanted`, with UNKNOWN_OFFSET where none is set.

        Leaves out partitions of deleted topics, and those that an open transaction commits.
        """
        starts = self.table.starts(instance)
        found: dict[Pair, int] = {}
        for pair in wanted:
            topic = image.topics_by_id.get(pair[0])
            if topic is None:
                continue
            offset = instance.positions.get(pair, starts.get(pair))
            if offset is None:
                place = TopicPartition(topic.name, pair[1], topic.topic_id)
                (committed,) = self._offsets.fetch(instance.group, (place,), require_stable=True)
                if committed.error_code:
                    continue
                offset = committed.offset
            found[pair] = offset
        return found

    def _committer(self, instance: Instance) -> Committer:
        """The author of the instance's commits. Raises LogError(UNKNOWN_MEMBER)."""
        group = self._groups.get(instance.group)
        if not instance.is_subscribed or group is None:
            return Committer()
        member_id = instance.value.member_id
        return Committer(member_id, group.known(member_id).member_epoch)

    def _auto_commit(
        self,
        instance: Instance,
        offsets: Mapping[Pair, int],
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> tuple[CoordinatorRecord, ...]:
        """Records of an automatic commit of the changes, where the instance may commit."""
        try:
            self._check_commit(instance.group, self._committer(instance), now_ms)
        except LogError as error:
            if error.entry not in {UNKNOWN_MEMBER, COORDINATOR_LOADING}:
                raise
            # The offsets belong to the group's members, and the instance is none. Or the group is
            # being deleted with them.
            return ()
        wanted = _to_commit(offsets, image)
        places = (TopicPartition(row.topic, row.partition, row.topic_id) for row in wanted)
        present = self._offsets.fetch(instance.group, places)
        changed = [
            row for row, old in zip(wanted, present, strict=True) if row.offset != old.offset
        ]
        decision = self._offsets.commit(instance.group, changed, now_ms=time_ms)
        return (*decision.records, *self._started(instance, offsets))

    def _started(self, instance: Instance, committed: Iterable[Pair]) -> list[CoordinatorRecord]:
        """Tombstones of starts that a commit replaces."""
        starts = self.table.starts(instance)
        return [_start_record(instance, pair, None) for pair in committed if pair in starts]

    def _forget(self, instance: Instance, kept: Iterable[Pair]) -> list[CoordinatorRecord]:
        """End the positions of all partitions but these, with tombstones of their starts."""
        stays = set(kept)
        for table in (instance.positions, instance.followed):
            for pair in [pair for pair in table if pair not in stays]:
                del table[pair]
        starts = self.table.starts(instance)
        return [_start_record(instance, pair, None) for pair in starts if pair not in stays]

    def _leave(
        self, instance: Instance, image: MetadataImage, now_ms: int, time_ms: int
    ) -> list[CoordinatorRecord]:
        """Records of the member's leave, after the auto commit of what was followed."""
        group = self._groups.get(instance.group)
        member_id = instance.value.member_id
        if not instance.is_subscribed or group is None or member_id not in group.members:
            return []
        records = (
            [*self._auto_commit(instance, instance.followed, image, now_ms, time_ms)]
            if instance.commits
            else []
        )
        beat = ConsumerHeartbeatRequest(instance.group, member_id, LEAVE_EPOCH)
        return [*records, *self._heartbeat(beat, image, now_ms, time_ms).records]

    def _end(
        self,
        instance: Instance,
        read: Mapping[Pair, int],
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> tuple[CoordinatorRecord, ...]:
        """End an instance, committing `read` first if auto commit is on."""
        instance.followed = dict(read)
        records = self._leave(instance, image, now_ms, time_ms)
        if instance.commits and not instance.is_subscribed:
            records += self._auto_commit(instance, read, image, now_ms, time_ms)
        records += self._forget(instance, ())
        key = ConsumerInstanceKey(instance.group, instance.name)
        return (*dict.fromkeys(records), CoordinatorRecord(key, None))

    def _step(
        self, group_id: str, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[None]:
        """Move one instance of a group to its target. The replay sets the timer again."""
        group = self._groups.get(group_id)
        for member_id, instance in self.table.members.get(group_id, {}).items():
            if group is None or member_id not in group.members:
                continue
            current = group.known(member_id)
            target = group.targets.get(member_id, ())
            assigned = pairs(current.assigned_partitions)
            wanted = set(pairs(target))
            owned = assignment_of(pair for pair in assigned if pair in wanted)

            def is_free(pair: Pair, group: ConsumerGroup = group, member: str = member_id) -> bool:
                return group.holder(pair) in (None, member)

            step = reconcile(
                current,
                target,
                group.assignment_epoch,
                shown_epoch=current.member_epoch,
                owned=owned,
                is_free=is_free,
            )
            if step == current:
                continue
            records: list[CoordinatorRecord] = []
            if instance.commits:
                kept = set(pairs(owned))
                revoked = {
                    pair: offset for pair, offset in instance.followed.items() if pair not in kept
                }
                records += self._auto_commit(instance, revoked, image, now_ms, time_ms)
            records += self._forget(instance, pairs(owned))
            beat = ConsumerHeartbeatRequest(group_id, member_id, current.member_epoch, owned=owned)
            records += self._heartbeat(beat, image, now_ms, time_ms).records
            return Decision(None, tuple(dict.fromkeys(records)))
        return Decision(None)

    # Replay

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record of an instance."""
        self.table.replay(record)
        key = record.key
        if isinstance(key, ConsumerInstanceKey) and record.value is None:
            timer = InstanceTimer(InstanceTimerKind.IDLE, key.group, key.instance)
            self._shared.timers.cancel(timer)

    def loaded(self, now_ms: int) -> None:
        """Set the timers of all instances, with their full length."""
        for group_id, name in self.table.by_id:
            self._restart_idle(group_id, name, now_ms)
        for group_id in self.table.members:
            timer = InstanceTimer(InstanceTimerKind.STEP, group_id, "")
            self._shared.timers.set(timer, now_ms + STEP_AFTER_LOAD_MS)


def no_assignment(topic: str, partition: int) -> LogError:
    """The refusal of a seek in a partition that the instance does not have."""
    return LogError(
        ILLEGAL_STATE,
        f"IllegalStateError: No current assignment for partition {quoted(topic)}-{partition}: "
        "subscribe to its topic, or assign it, first.",
    )


def _record(instance: Instance, value: ConsumerInstanceValue) -> CoordinatorRecord:
    return CoordinatorRecord(ConsumerInstanceKey(instance.group, instance.name), value)


def _start_record(instance: Instance, pair: Pair, offset: int | None) -> CoordinatorRecord:
    key = ConsumerInstancePositionKey(instance.group, instance.name, *pair)
    return CoordinatorRecord(key, None if offset is None else ConsumerInstancePositionValue(offset))


def _to_commit(offsets: Mapping[Pair, int], image: MetadataImage) -> tuple[OffsetToCommit, ...]:
    """Offsets of topics that exist, by their names."""
    rows = []
    for (topic_id, partition), offset in offsets.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:
            rows.append(OffsetToCommit(topic.name, partition, offset, topic_id=topic_id))
    return tuple(rows)
