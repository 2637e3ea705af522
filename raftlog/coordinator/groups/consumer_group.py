"""The state of one consumer group (KIP-848): members, epochs, target assignment. Pure.

The state is the newest value of each key of the group's records, with two indexes derived from it.
Only `replay` changes it; decisions about it are in `consumer_decisions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from raftlog.coordinator.groups.assignors import (
    Assignment,
    Pair,
    assignment_of,
    pairs,
    preferred_assignor,
)
from raftlog.coordinator.groups.messages import (
    STATIC_LEAVE_EPOCH,
    ConsumerGroupDescription,
    MemberDescription,
    MemberReport,
)
from raftlog.coordinator.groups.reconciliation import UNASSIGNED, MemberState, reconcile
from raftlog.coordinator.shard.decision import CoordinatorRecord
from raftlog.coordinator.shard.records import (
    NO_TIMESTAMP,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from raftlog.record.errors import STALE_MEMBER_EPOCH, UNKNOWN_MEMBER, LogError, quoted
from raftlog.record.types import TopicId

ConsumerGroupKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)


class ConsumerGroup:
    """A group, made by the replay of its records."""

    __slots__ = (
        "_emptied_ms",
        "_holders",
        "assignment_epoch",
        "current",
        "epoch",
        "group_id",
        "instances",
        "members",
        "metadata_hash",
        "patterns",
        "reports",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        """Number of changes of members, subscriptions and their topics, from 1."""
        self.metadata_hash = 0
        """Hash of the topics at the last change of the epoch."""
        self.assignment_epoch = 0
        """Epoch of the targets."""
        self.members: dict[str, ConsumerGroupMemberMetadataValue] = {}
        self.current: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = {}
        """Present assignment, by member id."""
        self.targets: dict[str, Assignment] = {}
        """Target assignment, by member id. A missing target is empty."""
        self.patterns: dict[str, ConsumerGroupRegularExpressionValue] = {}
        self.instances: dict[str, str] = {}
        """Member id, by instance id."""
        self.reports: dict[str, MemberReport] = {}
        """Newest report, by id of members that send reports. Soft state as timers are, in no
        record. Decisions set it, and it is empty after a load until the next heartbeats."""
        self._emptied_ms = NO_TIMESTAMP
        self._holders: dict[TopicId, dict[int, str]] = {}
        """Member id by partition that is assigned or to be given up."""

    @property
    def is_void(self) -> bool:
        """Whether no record of the group is left."""
        return not (
            self.epoch
            or self.assignment_epoch
            or self.members
            or self.current
            or self.targets
            or self.patterns
        )

    @property
    def member_count(self) -> int:
        """Members, with those that are absent for a restart."""
        return len(self.members)

    @property
    def empty_since_ms(self) -> int | None:
        """Time of the last leave, NO_TIMESTAMP if unknown, None with members."""
        return None if self.members else self._emptied_ms

    @property
    def state(self) -> str:
        """`Empty`, `Reconciling` or `Stable`."""
        if not self.members:
            return "Empty"
        is_stable = all(
            current.state == MemberState.STABLE
            and current.member_epoch in (self.assignment_epoch, STATIC_LEAVE_EPOCH)
            for current in self.current.values()
        )
        return "Stable" if is_stable else "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer."""
        return preferred_assignor(member.server_assignor for member in self.members.values())

    def holder(self, pair: Pair) -> str | None:
        """The member with the partition, assigned or to be given up, or None."""
        return self._holders.get(pair[0], {}).get(pair[1])

    def known(self, member_id: str) -> ConsumerGroupCurrentMemberAssignmentValue:
        """The member's present assignment. Raises LogError(UNKNOWN_MEMBER)."""
        if member_id not in self.members:
            raise LogError(
                UNKNOWN_MEMBER,
                f"Group {quoted(self.group_id)} has no member {quoted(member_id)}: its session "
                "ended, or it left. Give up all partitions and join again, with epoch 0.",
            )
        return self.current.get(member_id, UNASSIGNED)

    def check_commit(self, member_id: str, member_epoch: int) -> None:
        """Raise unless offsets may be committed as this member, in this epoch.

        An epoch below 0 stands for no member, allowed only while the group is empty. Raises
        LogError(UNKNOWN_MEMBER or STALE_MEMBER_EPOCH).
        """
        if member_epoch < 0:
            if self.members:
                raise LogError(
                    UNKNOWN_MEMBER,
                    f"Group {quoted(self.group_id)} has members: commit as one of them, with its "
                    "epoch, or stop all of them first.",
                )
            return
        known = self.known(member_id).member_epoch
        if member_epoch != known:
            raise LogError(
                STALE_MEMBER_EPOCH,
                f"Member {quoted(member_id)} of group {quoted(self.group_id)} has epoch {known}, "
                f"not {member_epoch}: try again with the epoch of its last heartbeat's answer.",
            )

    def has_news(self, member_id: str) -> bool:
        """Whether an idle heartbeat of the member would get an assignment or an error.

        True wakes a held heartbeat. False while the member has partitions to give up, since its
        next heartbeat, with `owned`, continues from there.
        """
        if member_id not in self.members:
            return True
        current = self.current.get(member_id, UNASSIGNED)
        target = self.targets.get(member_id, ())
        if target == current.assigned_partitions:
            return False
        step = reconcile(
            current,
            target,
            self.assignment_epoch,
            shown_epoch=current.member_epoch,
            owned=None,
            is_free=lambda pair: self.holder(pair) is None,
        )
        return step.assigned_partitions != current.assigned_partitions

    def set_report(self, member_id: str, report: MemberReport | None) -> None:
        """Keep the report of the member's newest heartbeat, if there is any."""
        if report is None:
            self.reports.pop(member_id, None)
        else:
            self.reports[member_id] = report

    def describe(self) -> ConsumerGroupDescription:
        """The group and its members, as replayed."""
        return ConsumerGroupDescription(
            group=self.group_id,
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            assignor=self.assignor,
            members=tuple(self._description(member_id) for member_id in sorted(self.members)),
        )

    def _description(self, member_id: str) -> MemberDescription:
        member = self.members[member_id]
        current = self.current.get(member_id, UNASSIGNED)
        return MemberDescription(
            member_id=member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_epoch=current.member_epoch,
            subscribed_names=member.subscribed_topic_names,
            subscribed_pattern=member.subscribed_topic_regex,
            assignment=assignment_of(held_pairs(current)),
            target=self.targets.get(member_id, ()),
            report=self.reports.get(member_id),
        )

    def member_tombstones(self, member_id: str) -> list[CoordinatorRecord]:
        """Records that end a member."""
        keys: list[ConsumerGroupKey] = []
        if member_id in self.current:
            keys.append(ConsumerGroupCurrentMemberAssignmentKey(self.group_id, member_id))
        if member_id in self.targets:
            keys.append(ConsumerGroupTargetAssignmentMemberKey(self.group_id, member_id))
        keys.append(ConsumerGroupMemberMetadataKey(self.group_id, member_id))
        return [CoordinatorRecord(key, None) for key in keys]

    def tombstones(self) -> list[CoordinatorRecord]:
        """Records that end the group, which must be empty."""
        assert not self.members
        keys: list[ConsumerGroupKey] = [
            ConsumerGroupRegularExpressionKey(self.group_id, pattern) for pattern in self.patterns
        ]
        keys.append(ConsumerGroupTargetAssignmentMetadataKey(self.group_id))
        keys.append(ConsumerGroupMetadataKey(self.group_id))
        return [CoordinatorRecord(key, None) for key in keys]

    def emptied(self, time_ms: int) -> tuple[CoordinatorRecord, ...]:
        """Records by which the last member left at a time."""
        value = ConsumerGroupMetadataValue(self.epoch, self.metadata_hash, time_ms)
        return (CoordinatorRecord(ConsumerGroupMetadataKey(self.group_id), value),)

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record of this group. Tombstones of unknown keys change nothing."""
        key, value = record
        match key, value:
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
                self._emptied_ms = value.empty_since_ms
            case ConsumerGroupMetadataKey(), None:
                self.epoch, self.metadata_hash, self._emptied_ms = 0, 0, NO_TIMESTAMP
            case (
                ConsumerGroupTargetAssignmentMetadataKey(),
                ConsumerGroupTargetAssignmentMetadataValue(),
            ):
                self.assignment_epoch = value.assignment_epoch
            case ConsumerGroupTargetAssignmentMetadataKey(), None:
                self.assignment_epoch = 0
            case ConsumerGroupMemberMetadataKey(), ConsumerGroupMemberMetadataValue() | None:
                self._replay_member(key.member_id, value)
            case (
                ConsumerGroupTargetAssignmentMemberKey(),
                ConsumerGroupTargetAssignmentMemberValue(),
            ):
                self.targets[key.member_id] = value.topic_partitions
            case ConsumerGroupTargetAssignmentMemberKey(), None:
                self.targets.pop(key.member_id, None)
            case (
                ConsumerGroupCurrentMemberAssignmentKey(),
                ConsumerGroupCurrentMemberAssignmentValue() | None,
            ):
                self._replay_current(key.member_id, value)
            case ConsumerGroupRegularExpressionKey(), ConsumerGroupRegularExpressionValue():
                self.patterns[key.regular_expression] = value
            case ConsumerGroupRegularExpressionKey(), None:
                self.patterns.pop(key.regular_expression, None)
            case _:
                raise AssertionError(f"not a record of a consumer group: {record}")

    def _replay_member(
        self, member_id: str, member: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        before = self.members.get(member_id)
        instance_id = None if before is None else before.instance_id
        # The id may be another member's by now, since compaction drops records between them.
        if instance_id is not None and self.instances.get(instance_id) == member_id:
            del self.instances[instance_id]
        if member is None:
            self.members.pop(member_id, None)
            self.reports.pop(member_id, None)
            return
        self.members[member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member_id

    def _replay_current(
        self, member_id: str, current: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        before = self.current.pop(member_id, None)
        if before is not None:
            for topic_id, partition in held_pairs(before):
                holders = self._holders.get(topic_id, {})
                if holders.get(partition) == member_id:
                    del holders[partition]
                    if not holders:
                        del self._holders[topic_id]
        if current is not None:
            self.current[member_id] = current
            for topic_id, partition in held_pairs(current):
                self._holders.setdefault(topic_id, {})[partition] = member_id


def held_pairs(current: ConsumerGroupCurrentMemberAssignmentValue) -> Iterator[Pair]:
    """Partitions the member may own, with those to be given up until it acknowledges."""
    yield from pairs(current.assigned_partitions)
    yield from pairs(current.partitions_pending_revocation)
