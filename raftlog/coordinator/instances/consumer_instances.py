"""REST consumer instances of one shard: what they are, their membership, their positions. Pure.

An instance is a record of its group. While subscribed it is a member of the group, and the
coordinator heartbeats for it. Positions beyond the last commit are soft state, as timers are: a new
coordinator resumes from the commit. docs/decisions/rest-consumers.md has the reads.

| state | event | next |
|---|---|---|
| (none) | create | idle. 40902 if there is one, 40928 above `consumer.instances.max` |
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
from raftlog.coordinator.instances.table import Instance, InstanceTable
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
"""Of one instance: its starts end in one batch, and each is a record."""
STEP_AFTER_LOAD_MS: Final = 1_000
"""Compaction may have brought an instance's record behind its group's; and a step that is too large
for a batch is not tried in a loop."""
LATEST: Final = "latest"
_CHOOSE_ONE: Final = (
    "IllegalStateError: You must choose only one way to configure your consumer: (1) subscribe to "
    "specific topics by name, (2) subscribe to topics matching a regex pattern, (3) assign itself "
    "specific topic-partitions."
)

Heartbeat: TypeAlias = Callable[
    [ConsumerHeartbeatRequest, MetadataImage, int, int], Decision[ConsumerHeartbeatResponse]
]
"""Decides about a member's heartbeat, at a monotonic and at a wall time."""
Commit: TypeAlias = Callable[[CommitOffsets, int, int], Decision[OffsetOutcomes]]
"""Decides about a commit, at a monotonic and at a wall time."""


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
        one = self.table.by_id.get((group_id, name))
        return one is None or bool(self._assigned(one))

    # Decisions

    def decide(
        self, request: InstanceRequest, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[GroupResponse]:
        """Decide about a request. Raises LogError: UNKNOWN_INSTANCE, and as each says."""
        if isinstance(request, CreateInstance):
            return self._create(request, now_ms)
        one = self.table.by_id.get((request.group, request.instance))
        if one is None:
            raise LogError(UNKNOWN_INSTANCE)
        self._restart_idle(one.group, one.name, now_ms)
        decision: Decision[GroupResponse]
        match request:
            case DeleteInstance():
                records = self._end(one, one.positions, image, now_ms, time_ms)
                decision = Decision(InstanceDone(), records)
            case SubscribeInstance():
                decision = self._subscribe(one, request, image, now_ms, time_ms)
            case AssignInstance():
                decision = self._assign(one, request)
            case SeekInstance():
                decision = self._seek(one, request, image)
            case DescribeInstance():
                decision = Decision(self._description(one))
            case BeginRead():
                decision = self._begin_read(one, request, image, now_ms, time_ms)
            case EndRead():
                decision = self._end_read(one, request, image)
            case CommitInstance():
                decision = self._commit(one, request, image, now_ms, time_ms)
            case _:
                assert_never(request)
        return decision

    def expire(
        self, timer: InstanceTimer, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[None]:
        """Decide about a timer that is due: an idle instance ends, members of a group go on."""
        if timer.kind is InstanceTimerKind.STEP:
            return self._step(timer.group, image, now_ms, time_ms)
        one = self.table.by_id.get((timer.group, timer.instance))
        if one is None:
            return Decision(None)
        # The client may have died with the newest answer.
        return Decision(None, self._end(one, one.followed, image, now_ms, time_ms))

    def renew(
        self, group_id: str, member_id: str, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[None]:
        """Begin the session of an instance's member again: only idle instances end."""
        group = self._groups[group_id]
        epoch = group.known(member_id).member_epoch
        request = ConsumerHeartbeatRequest(group_id, member_id, epoch)
        return Decision(None, self._heartbeat(request, image, now_ms, time_ms).records)

    def group_changed(self, group_id: str) -> None:
        """After a replay: have the instances of the group follow their targets at once."""
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
        one: Instance,
        request: SubscribeInstance,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[GroupResponse]:
        value = one.value
        if request.names and request.pattern is not None:
            raise LogError(ILLEGAL_STATE, _CHOOSE_ONE)
        if not request.names and request.pattern is None:
            records = self._leave(one, image, now_ms, time_ms)
            after = replace(
                value,
                subscribed_topic_names=(),
                subscribed_topic_regex=None,
                assigned_partitions=(),
            )
            records += self._forget(one, ())
            return Decision(InstanceDone(), (*records, _record(one, after)))
        other = value.subscribed_topic_regex if request.names else value.subscribed_topic_names
        if value.assigned_partitions or other:
            raise LogError(ILLEGAL_STATE, _CHOOSE_ONE)
        after = replace(
            value,
            subscribed_topic_names=request.names,
            subscribed_topic_regex=request.pattern,
        )
        beat = self._join(one, after, request.client_host)
        joined = self._heartbeat(beat, image, now_ms, time_ms)
        return Decision(InstanceDone(), (_record(one, after), *joined.records))

    def _join(
        self, one: Instance, value: ConsumerInstanceValue, client_host: str = ""
    ) -> ConsumerHeartbeatRequest:
        """The heartbeat by which the instance joins; of a member, one with the subscription."""
        group = self._groups.get(one.group)
        epoch = JOIN_EPOCH
        if group is not None and value.member_id in group.members:
            epoch = group.known(value.member_id).member_epoch
        return ConsumerHeartbeatRequest(
            one.group,
            value.member_id,
            epoch,
            client_id=one.name,
            client_host=client_host,
            subscribed_names=value.subscribed_topic_names,
            subscribed_pattern=value.subscribed_topic_regex or "",
        )

    def _assign(self, one: Instance, request: AssignInstance) -> Decision[GroupResponse]:
        if one.is_subscribed:
            raise LogError(ILLEGAL_STATE, _CHOOSE_ONE)
        wanted = assignment_of(pairs(request.partitions))
        count = sum(len(topic.partitions) for topic in wanted)
        if count > INSTANCE_PARTITIONS_MAX:
            raise LogError(
                INVALID_BODY,
                f"{count} partitions are over {INSTANCE_PARTITIONS_MAX}, the most of one consumer "
                "instance.",
            )
        records = self._forget(one, pairs(wanted))
        after = replace(one.value, assigned_partitions=wanted)
        return Decision(InstanceDone(), (*records, _record(one, after)))

    def _seek(
        self, one: Instance, request: SeekInstance, image: MetadataImage
    ) -> Decision[GroupResponse]:
        assigned = set(self._assigned(one))
        for seek in request.offsets:
            if (seek.topic_id, seek.partition) not in assigned:
                topic = image.topics_by_id.get(seek.topic_id)
                name = seek.topic_id if topic is None else topic.name
                raise no_assignment(name, seek.partition)
        records = []
        for seek in request.offsets:
            pair = (seek.topic_id, seek.partition)
            one.positions[pair] = seek.offset
            one.followed.pop(pair, None)
            records.append(_start_record(one, pair, seek.offset))
        return Decision(InstanceDone(), tuple(records))

    def _begin_read(
        self,
        one: Instance,
        request: BeginRead,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[GroupResponse]:
        value = one.value
        if value.format not in request.formats:
            raise LogError(
                UNSUPPORTED_FORMAT,
                f"The consumer instance reads {value.format}; the Accept header allows none of "
                "its media types.",
            )
        records: tuple[CoordinatorRecord, ...] = ()
        if request.is_first:
            one.followed = dict(one.positions)
            if one.commits and now_ms - one.committed_ms >= value.auto_commit_interval_ms:
                one.committed_ms = now_ms
                records = self._auto_commit(one, one.followed, image, now_ms, time_ms)
        group = self._groups.get(one.group)
        if one.is_subscribed and (group is None or value.member_id not in group.members):
            # Somebody else had the member leave.
            beat = self._join(one, value)
            records += self._heartbeat(beat, image, now_ms, time_ms).records
        assigned = self._assigned(one)
        if len(assigned) > INSTANCE_PARTITIONS_MAX:
            raise LogError(
                ILLEGAL_STATE,
                f"The consumer instance has {len(assigned)} partitions, and "
                f"{INSTANCE_PARTITIONS_MAX} are the most: add instances to the group.",
            )
        self._take_turns(one, assigned)
        found = self._positions(one, one.turns, image)
        plan = ReadPlan(
            format=value.format,
            auto_offset_reset=value.auto_offset_reset,
            fetch_min_bytes=value.fetch_min_bytes,
            request_timeout_ms=value.request_timeout_ms,
            partitions=tuple(PartitionOffset(*pair, offset) for pair, offset in found.items()),
        )
        return Decision(plan, records)

    def _end_read(
        self, one: Instance, request: EndRead, image: MetadataImage
    ) -> Decision[GroupResponse]:
        assigned = set(self._assigned(one))
        moved = [(move.topic_id, move.partition) for move in request.moves]
        found = self._positions(one, (pair for pair in moved if pair in assigned), image)
        starts = self.table.starts(one)
        lost: list[Pair] = []
        records = []
        for pair, move in zip(moved, request.moves, strict=True):
            if found.get(pair) != move.planned:
                lost.append(pair)
                continue
            one.positions[pair] = found[pair] = move.next
            is_reset = move.reset_to != UNKNOWN_OFFSET
            # Any coordinator finds the earliest offset again, or a later one.
            if is_reset and one.value.auto_offset_reset == LATEST:
                records.append(_start_record(one, pair, move.reset_to))
            elif is_reset and pair in starts:
                records.append(_start_record(one, pair, None))
        for pair in pairs(request.last):
            if pair in one.turns:
                del one.turns[pair]
                one.turns[pair] = None
        return Decision(ReadOutcome(assignment_of(lost)), tuple(records))

    def _commit(
        self,
        one: Instance,
        request: CommitInstance,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[GroupResponse]:
        offsets = request.offsets
        if offsets is None:
            offsets = _to_commit(one.positions, image)
        if not offsets:
            return Decision(OffsetOutcomes(()))
        request_of_group = CommitOffsets(one.group, offsets, self._committer(one))
        decision = self._commit_offsets(request_of_group, now_ms, time_ms)
        done = []
        for outcome in decision.response.outcomes:
            topic = image.topics_by_name.get(outcome.topic)
            if not outcome.error_code and topic is not None:
                done.append((topic.topic_id, outcome.partition))
        return Decision(decision.response, (*decision.records, *self._started(one, done)))

    def _description(self, one: Instance) -> InstanceDescription:
        value = one.value
        names = value.subscribed_topic_names
        pattern = value.subscribed_topic_regex
        group = self._groups.get(one.group)
        if pattern is not None and group is not None and pattern in group.patterns:
            names = group.patterns[pattern].topics
        partitions = assignment_of(self._assigned(one))
        return InstanceDescription(value.format, names, pattern, partitions)

    # Parts of decisions

    def _restart_idle(self, group_id: str, name: str, now_ms: int) -> None:
        timer = InstanceTimer(InstanceTimerKind.IDLE, group_id, name)
        self._shared.timers.set(timer, now_ms + self._shared.settings.instance_timeout_ms)

    def _assigned(self, one: Instance) -> list[Pair]:
        """Partitions to read: the client's assignment, or the group's."""
        if not one.is_subscribed:
            return pairs(one.value.assigned_partitions)
        group = self._groups.get(one.group)
        current = None if group is None else group.current.get(one.value.member_id)
        return [] if current is None else pairs(current.assigned_partitions)

    def _take_turns(self, one: Instance, assigned: Collection[Pair]) -> None:
        kept = set(assigned)
        turns = {pair: None for pair in one.turns if pair in kept}
        for pair in assigned:
            turns.setdefault(pair, None)
        one.turns = turns

    def _positions(
        self, one: Instance, wanted: Iterable[Pair], image: MetadataImage
    ) -> dict[Pair, int]:
        """Positions, in the order asked; UNKNOWN_OFFSET where nothing says one.

        Without partitions of deleted topics, and those that an open transaction commits.
        """
        starts = self.table.starts(one)
        found: dict[Pair, int] = {}
        for pair in wanted:
            topic = image.topics_by_id.get(pair[0])
            if topic is None:
                continue
            offset = one.positions.get(pair, starts.get(pair))
            if offset is None:
                place = TopicPartition(topic.name, pair[1], topic.topic_id)
                (committed,) = self._offsets.fetch(one.group, (place,), require_stable=True)
                if committed.error_code:
                    continue
                offset = committed.offset
            found[pair] = offset
        return found

    def _committer(self, one: Instance) -> Committer:
        """The author of the instance's commits. Raises LogError(UNKNOWN_MEMBER)."""
        group = self._groups.get(one.group)
        if not one.is_subscribed or group is None:
            return Committer()
        member_id = one.value.member_id
        return Committer(member_id, group.known(member_id).member_epoch)

    def _auto_commit(
        self,
        one: Instance,
        offsets: Mapping[Pair, int],
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> tuple[CoordinatorRecord, ...]:
        """Records of a commit by itself: of what changed, where the instance may commit."""
        try:
            self._check_commit(one.group, self._committer(one), now_ms)
        except LogError as error:
            if error.entry not in {UNKNOWN_MEMBER, COORDINATOR_LOADING}:
                raise
            # The offsets belong to the group's members, and the instance is none; or the group is
            # being deleted with them.
            return ()
        wanted = _to_commit(offsets, image)
        places = (TopicPartition(row.topic, row.partition, row.topic_id) for row in wanted)
        present = self._offsets.fetch(one.group, places)
        changed = [
            row for row, old in zip(wanted, present, strict=True) if row.offset != old.offset
        ]
        decision = self._offsets.commit(one.group, changed, now_ms=time_ms)
        return (*decision.records, *self._started(one, offsets))

    def _started(self, one: Instance, committed: Iterable[Pair]) -> list[CoordinatorRecord]:
        """Tombstones of starts that a commit replaces."""
        starts = self.table.starts(one)
        return [_start_record(one, pair, None) for pair in committed if pair in starts]

    def _forget(self, one: Instance, kept: Iterable[Pair]) -> list[CoordinatorRecord]:
        """End the positions of all partitions but these; tombstones of their starts."""
        stays = set(kept)
        for table in (one.positions, one.followed):
            for pair in [pair for pair in table if pair not in stays]:
                del table[pair]
        starts = self.table.starts(one)
        return [_start_record(one, pair, None) for pair in starts if pair not in stays]

    def _leave(
        self, one: Instance, image: MetadataImage, now_ms: int, time_ms: int
    ) -> list[CoordinatorRecord]:
        """Records of the member's leave, after the auto commit of what was followed."""
        group = self._groups.get(one.group)
        member_id = one.value.member_id
        if not one.is_subscribed or group is None or member_id not in group.members:
            return []
        records = (
            [*self._auto_commit(one, one.followed, image, now_ms, time_ms)] if one.commits else []
        )
        beat = ConsumerHeartbeatRequest(one.group, member_id, LEAVE_EPOCH)
        return [*records, *self._heartbeat(beat, image, now_ms, time_ms).records]

    def _end(
        self,
        one: Instance,
        read: Mapping[Pair, int],
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> tuple[CoordinatorRecord, ...]:
        """End an instance, committing `read` first if auto commit is on."""
        one.followed = dict(read)
        records = self._leave(one, image, now_ms, time_ms)
        if one.commits and not one.is_subscribed:
            records += self._auto_commit(one, read, image, now_ms, time_ms)
        records += self._forget(one, ())
        key = ConsumerInstanceKey(one.group, one.name)
        return (*dict.fromkeys(records), CoordinatorRecord(key, None))

    def _step(
        self, group_id: str, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[None]:
        """One instance of a group goes on to its target; the replay sets the timer again."""
        group = self._groups.get(group_id)
        for member_id, one in self.table.members.get(group_id, {}).items():
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
            if one.commits:
                kept = set(pairs(owned))
                revoked = {
                    pair: offset for pair, offset in one.followed.items() if pair not in kept
                }
                records += self._auto_commit(one, revoked, image, now_ms, time_ms)
            records += self._forget(one, pairs(owned))
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


def _record(one: Instance, value: ConsumerInstanceValue) -> CoordinatorRecord:
    return CoordinatorRecord(ConsumerInstanceKey(one.group, one.name), value)


def _start_record(one: Instance, pair: Pair, offset: int | None) -> CoordinatorRecord:
    key = ConsumerInstancePositionKey(one.group, one.name, *pair)
    return CoordinatorRecord(key, None if offset is None else ConsumerInstancePositionValue(offset))


def _to_commit(offsets: Mapping[Pair, int], image: MetadataImage) -> tuple[OffsetToCommit, ...]:
    """Offsets of topics that exist, by their names."""
    rows = []
    for (topic_id, partition), offset in offsets.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:
            rows.append(OffsetToCommit(topic.name, partition, offset, topic_id=topic_id))
    return tuple(rows)
