"""Consumer groups decide about heartbeats, leaves, timers and changes of topics (KIP-848). Pure.

Every change of members, subscriptions or their topics raises the group epoch, and the same
decision computes the target assignment of the new epoch. Each member then moves to it by its own
heartbeats (`reconciliation`).

| heartbeat with | response |
|---|---|
| epoch 0, unknown member id | joins, with a new target, and is reconciled at once |
| epoch 0, known member id | full state again. It counts as a new subscription |
| epoch 0, `instance_id` of a member that left with -2 | takes over its assignment |
| epoch 0, `instance_id` of a live member | UNRELEASED_INSTANCE_ID |
| epoch -1 | leaves. Tombstones, group epoch + 1 |
| epoch -2 | owns nothing. Its target stays for `instance_id` until its session ends |
| its epoch, or the earlier epoch below | reconciles, responds |
| another epoch, or a `sequence` below the newest report's | FENCED_MEMBER_EPOCH |
| an unknown member id | UNKNOWN_MEMBER_ID |

The earlier epoch is the epoch of the heartbeat whose response changed the member last, with an
owned set that the member still holds. A fenced member gives up everything and joins again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from raftlog.coordinator.groups.assignors import (
    ASSIGNORS,
    PRIMARY_ASSIGNOR,
    Assignment,
    assignment_of,
    assignor_name,
    pairs,
    preferred_assignor,
)
from raftlog.coordinator.groups.consumer_group import ConsumerGroup, held_pairs
from raftlog.coordinator.groups.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
)
from raftlog.coordinator.groups.reconciliation import UNASSIGNED, MemberState, reconcile
from raftlog.coordinator.groups.settings import MemberTimer, Shared, TimerKind
from raftlog.coordinator.groups.subscriptions import (
    Members,
    Patterns,
    Reports,
    check_pattern,
    metadata_hash,
    partition_counts,
    resolve,
    resolved_again,
    subscribed_names,
    subscribers,
)
from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision, Event
from raftlog.coordinator.shard.records import (
    NO_TIMESTAMP,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import (
    BAD_REQUEST,
    FENCED_INSTANCE_ID,
    FENCED_MEMBER_EPOCH,
    GROUP_FULL,
    ILLEGAL_STATE,
    UNKNOWN_MEMBER,
    UNRELEASED_INSTANCE_ID,
    LogError,
    counted,
    quoted,
)

T = TypeVar("T")

REBALANCE_TIMEOUT_MS: Final = 5 * 60 * 1000
"""Rebalance timeout of a member that names none, Kafka's `max.poll.interval.ms`."""
DISCONNECT_GRACE_MS: Final = 100
"""Milliseconds for a member's next heartbeat by another node, after its connection ends."""
HEARTBEATS_PER_SESSION: Final = 3
"""Heartbeats in a session timeout. Losing one or two must not end the session."""


class _Target(NamedTuple):
    """A decided target assignment."""

    epoch: int
    assignments: Mapping[str, Assignment]


class ConsumerDecisions:
    """Decisions for all consumer groups of a shard. `time_ms` is wall time, `now_ms` monotonic.

    A decision that raises has changed no timer.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._timers = shared.timers

    def heartbeat(
        self,
        group: ConsumerGroup,
        request: ConsumerHeartbeatRequest,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[ConsumerHeartbeatResponse]:
        """Decide about a heartbeat. Raises LogError as in the table above."""
        _check_sequence(group, request)
        if request.member_epoch < JOIN_EPOCH:
            _check_known(group, request)
            if request.member_epoch == STATIC_LEAVE_EPOCH:
                return self._leave_for_restart(group, request, now_ms)
            return self._leave(group, request, image, time_ms)
        member_id = request.member_id
        is_joining = request.member_epoch == JOIN_EPOCH
        predecessor = None
        if is_joining:
            predecessor = self._predecessor(group, request)
        else:
            _check_known(group, request)
        before = group.members.get(predecessor or member_id)
        # A member that joins owns nothing, whatever it had.
        current, owned = (
            UNASSIGNED,
            None if request.owned is None else assignment_of(pairs(request.owned)),
        )
        if not is_joining:
            current = group.known(member_id)
            _check_epoch(group, request, current, owned)
        after = _updated(before, request)

        records: list[CoordinatorRecord] = []
        members: Members = group.members
        targets: Mapping[str, Assignment] = group.targets
        if predecessor is not None:
            records += group.member_tombstones(predecessor)
            members = _without(group.members, predecessor)
            targets = _without(group.targets, predecessor)
            targets[member_id] = group.targets.get(predecessor, ())
            self._cancel(group, predecessor)
        if after != before or predecessor is not None:
            member_key = ConsumerGroupMemberMetadataKey(group.group_id, member_id)
            records.append(CoordinatorRecord(member_key, after))
        handed_over = _handed_over(group, request)
        if before is None or handed_over or _subscription(before) != _subscription(after):
            members = {**members, member_id: after}
            self._shared.counts[Event.REBALANCE] += 1
            target = _rebalance(
                records,
                group,
                members,
                {**targets, **handed_over},
                reports=_reports(group, request),
                image=image,
                time_ms=time_ms,
            )
        else:
            target = _Target(group.assignment_epoch, targets)
            if predecessor is not None:
                records.append(_target_record(group, member_id, targets[member_id]))

        step = reconcile(
            current,
            target.assignments.get(member_id, ()),
            target.epoch,
            shown_epoch=request.member_epoch,
            owned=() if is_joining else owned,
            is_free=lambda pair: group.holder(pair) in (None, member_id, predecessor),
        )
        self._set_timers(group, member_id, after, step, now_ms, is_new=step is not current)
        group.set_report(member_id, request.report)
        # The log has it, so that a late copy does not count after a failover either.
        known = group.current.get(member_id, UNASSIGNED)
        step = replace(step, sequence=request.sequence or known.sequence)
        if step != known:
            step_key = ConsumerGroupCurrentMemberAssignmentKey(group.group_id, member_id)
            records.append(CoordinatorRecord(step_key, step))
        must_answer = (
            is_joining
            or step.assigned_partitions != current.assigned_partitions
            # The response to an earlier heartbeat was lost, or the member has not followed it yet.
            or (owned is not None and owned != step.assigned_partitions)
        )
        assignment = step.assigned_partitions if must_answer else None
        return Decision(
            self._response(member_id, after, step.member_epoch, assignment), tuple(records)
        )

    def expire(
        self, group: ConsumerGroup, member_id: str, image: MetadataImage, time_ms: int
    ) -> Decision[None]:
        """Remove a member that a timer found gone or stuck."""
        return Decision(None, self._removal(group, member_id, image, time_ms))

    def disconnected(
        self,
        group: ConsumerGroup,
        request: ConsumerHeartbeatRequest,
        received_ms: int,
        now_ms: int,
    ) -> None:
        """Shorten the session, since the connection of a held heartbeat has ended.

        The member's process may have ended. If the heartbeat is the member's newest, the session
        ends `disconnect_timeout_ms` after its receipt, never earlier. The member relies on this
        time from the sending on. The session ends later if the end was noticed late, since the
        member, or its node, may have given up on a slow response. The next heartbeat starts a whole
        session.
        """
        report = group.reports.get(request.member_id)
        timer = MemberTimer(TimerKind.SESSION, group.group_id, request.member_id)
        deadline_ms = self._timers.deadline_ms(timer)
        # A newer heartbeat has brought another report, equal perhaps.
        if report is None or report is not request.report or deadline_ms is None:
            return
        if report.disconnect_timeout_ms is not None:
            least_ms = max(
                # The clock's fraction of a millisecond is lost in `received_ms`.
                received_ms + report.disconnect_timeout_ms + 1,
                now_ms + DISCONNECT_GRACE_MS,
            )
            self._timers.set(timer, min(deadline_ms, least_ms))

    def is_stale(
        self, group: ConsumerGroup, image: MetadataImage, changed: Collection[str] | None
    ) -> bool:
        """Whether `refresh` would raise the epoch."""
        new_patterns = resolved_again(group.patterns, image, changed, 0)
        names = subscribed_names(group.members, {**group.patterns, **new_patterns})
        if not new_patterns and changed is not None and names.isdisjoint(changed):
            return False
        return bool(new_patterns) or _hash(image, names) != group.metadata_hash

    def refresh(
        self,
        group: ConsumerGroup,
        image: MetadataImage,
        changed: Collection[str] | None,
        time_ms: int,
    ) -> Decision[None]:
        """Follow new partitions, and topics created or deleted.

        `changed` names the topics of the change. None, after a load, stands for any.
        """
        new_patterns = resolved_again(group.patterns, image, changed, time_ms)
        patterns = {**group.patterns, **new_patterns}
        names = subscribed_names(group.members, patterns)
        if not new_patterns and _hash(image, names) == group.metadata_hash:
            return Decision(None)
        records = [
            CoordinatorRecord(ConsumerGroupRegularExpressionKey(group.group_id, pattern), value)
            for pattern, value in new_patterns.items()
        ]
        self._shared.counts[Event.REBALANCE] += 1
        _retarget(
            records,
            group,
            group.members,
            patterns,
            group.targets,
            reports=group.reports,
            image=image,
            time_ms=time_ms,
        )
        return Decision(None, tuple(records))

    def loaded(self, group: ConsumerGroup, now_ms: int) -> None:
        """Set the timers of all members to their full length."""
        for member_id, member in group.members.items():
            current = group.current.get(member_id, UNASSIGNED)
            self._set_timers(group, member_id, member, current, now_ms, is_new=True)

    def _response(
        self,
        member_id: str,
        member: ConsumerGroupMemberMetadataValue,
        epoch: int,
        assignment: Assignment | None,
    ) -> ConsumerHeartbeatResponse:
        return ConsumerHeartbeatResponse(
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(member),
            assignment=assignment,
            session_timeout_ms=self._session_timeout_ms(member),
        )

    def _leave(
        self,
        group: ConsumerGroup,
        request: ConsumerHeartbeatRequest,
        image: MetadataImage,
        time_ms: int,
    ) -> Decision[ConsumerHeartbeatResponse]:
        records = self._removal(group, request.member_id, image, time_ms)
        return Decision(ConsumerHeartbeatResponse(request.member_id, LEAVE_EPOCH, 0), records)

    def _leave_for_restart(
        self, group: ConsumerGroup, request: ConsumerHeartbeatRequest, now_ms: int
    ) -> Decision[ConsumerHeartbeatResponse]:
        member_id = request.member_id
        member, current = group.members[member_id], group.known(member_id)
        if member.instance_id is None:
            raise LogError(
                BAD_REQUEST,
                f"Member {quoted(member_id)} has no instance id: only a static member leaves with "
                f"epoch {STATIC_LEAVE_EPOCH}. Leave with epoch {LEAVE_EPOCH}.",
            )
        response = ConsumerHeartbeatResponse(member_id, STATIC_LEAVE_EPOCH, 0)
        if current.member_epoch == STATIC_LEAVE_EPOCH:
            return Decision(response)
        # The target keeps its partitions for it. Nothing delays others that get some of them.
        absent = replace(
            UNASSIGNED,
            member_epoch=STATIC_LEAVE_EPOCH,
            previous_member_epoch=current.member_epoch,
            sequence=request.sequence or current.sequence,
        )
        self._set_timers(group, member_id, member, absent, now_ms, is_new=True)
        # An absent member is not the furthest.
        group.set_report(member_id, None)
        key = ConsumerGroupCurrentMemberAssignmentKey(group.group_id, member_id)
        return Decision(response, (CoordinatorRecord(key, absent),))

    def _removal(
        self, group: ConsumerGroup, member_id: str, image: MetadataImage, time_ms: int
    ) -> tuple[CoordinatorRecord, ...]:
        """End a member, whose free partitions are in the targets of the others."""
        records = group.member_tombstones(member_id)
        members = _without(group.members, member_id)
        targets = _without(group.targets, member_id)
        self._shared.counts[Event.REBALANCE] += 1
        _rebalance(
            records,
            group,
            members,
            targets,
            reports=group.reports,
            image=image,
            time_ms=time_ms,
        )
        self._cancel(group, member_id)
        return tuple(records)

    def _predecessor(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> str | None:
        """The static member that the joining one replaces, if any. Raises LogError."""
        member_id, instance_id = request.member_id, request.instance_id
        if request.owned:
            raise LogError(
                BAD_REQUEST, "A member that joins owns nothing: send no owned partitions."
            )
        holder = None if instance_id is None else group.instances.get(instance_id)
        if holder is None or holder == member_id:
            if (
                member_id not in group.members
                and len(group.members) >= self._shared.settings.members_max
            ):
                raise LogError(
                    GROUP_FULL,
                    f"Group {quoted(group.group_id)} has {counted(len(group.members), 'member')}, "
                    "the most it may have: stop one, or use another group.",
                )
            return None
        if group.known(holder).member_epoch != STATIC_LEAVE_EPOCH:
            raise LogError(
                UNRELEASED_INSTANCE_ID,
                f"Instance id {quoted(str(instance_id))} of group {quoted(group.group_id)} belongs "
                f"to the live member {quoted(holder)}: stop that member, or wait for its session "
                "to end.",
            )
        return holder

    def _session_timeout_ms(self, member: ConsumerGroupMemberMetadataValue) -> int:
        return member.session_timeout_ms or self._shared.settings.session_timeout_ms

    def _heartbeat_interval_ms(self, member: ConsumerGroupMemberMetadataValue) -> int:
        third_ms = self._session_timeout_ms(member) // HEARTBEATS_PER_SESSION
        return min(third_ms, self._shared.settings.heartbeat_interval_ms_max)

    def _set_timers(
        self,
        group: ConsumerGroup,
        member_id: str,
        member: ConsumerGroupMemberMetadataValue,
        current: ConsumerGroupCurrentMemberAssignmentValue,
        now_ms: int,
        *,
        is_new: bool,
    ) -> None:
        """Restart the session, and start, keep or end the rebalance."""
        session = MemberTimer(TimerKind.SESSION, group.group_id, member_id)
        self._timers.set(session, now_ms + self._session_timeout_ms(member))
        rebalance = MemberTimer(TimerKind.REBALANCE, group.group_id, member_id)
        if current.state != MemberState.UNREVOKED_PARTITIONS:
            self._timers.cancel(rebalance)
        elif is_new:
            self._timers.set(rebalance, now_ms + member.rebalance_timeout_ms)

    def _cancel(self, group: ConsumerGroup, member_id: str) -> None:
        for kind in TimerKind:
            self._timers.cancel(MemberTimer(kind, group.group_id, member_id))


def _check_known(group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> None:
    """Raise LogError unless the member exists, with the request's instance id if any."""
    group.known(request.member_id)
    if request.instance_id is None:
        return
    holder = group.instances.get(request.instance_id)
    if holder is None:
        raise LogError(
            UNKNOWN_MEMBER,
            f"Group {quoted(group.group_id)} has no member with instance id "
            f"{quoted(request.instance_id)}: give up all partitions and join again, with epoch 0.",
        )
    if holder != request.member_id:
        raise LogError(
            FENCED_INSTANCE_ID,
            f"Instance id {quoted(request.instance_id)} of group {quoted(group.group_id)} belongs "
            f"to member {quoted(holder)} by now. Stop one of the two: both have the same id.",
        )


def _check_sequence(group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> None:
    """Raise LogError(FENCED_MEMBER_EPOCH) for a late copy, if the member has reported since."""
    current = group.current.get(request.member_id)
    if current is not None and 0 < request.sequence < current.sequence:
        raise LogError(
            FENCED_MEMBER_EPOCH,
            f"Member {quoted(request.member_id)} of group {quoted(group.group_id)} has sent report "
            f"{current.sequence} by now: this is {request.sequence}, a late copy. Give up all "
            "partitions and join again, with epoch 0 and a larger sequence.",
        )


def _check_epoch(
    group: ConsumerGroup,
    request: ConsumerHeartbeatRequest,
    current: ConsumerGroupCurrentMemberAssignmentValue,
    owned: Assignment | None,
) -> None:
    """Raise LogError(FENCED_MEMBER_EPOCH) for a member with another epoch."""
    shown, known = request.member_epoch, current.member_epoch
    if shown == known:
        return
    # The response with the newer epoch was lost: harmless while the member has nothing else.
    if (
        shown == current.previous_member_epoch
        and shown < known
        and owned is not None
        and set(pairs(owned)) <= set(held_pairs(current))
    ):
        return
    raise LogError(
        FENCED_MEMBER_EPOCH,
        f"Member {quoted(request.member_id)} of group {quoted(group.group_id)} has epoch {known}, "
        f"not {shown}: give up all partitions and join again, with epoch 0.",
    )


def _updated(
    before: ConsumerGroupMemberMetadataValue | None, request: ConsumerHeartbeatRequest
) -> ConsumerGroupMemberMetadataValue:
    """The member's properties with those of the request. Raises LogError."""
    if before is None:
        before = ConsumerGroupMemberMetadataValue(
            instance_id=None,
            rack_id=None,
            client_id="",
            client_host="",
            subscribed_topic_names=(),
            subscribed_topic_regex=None,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            server_assignor=None,
        )
    names, pattern = request.subscribed_names, request.subscribed_pattern
    if request.member_epoch == JOIN_EPOCH:
        names, pattern = names or (), pattern or ""
    if pattern:
        check_pattern(pattern)
    assignor = request.assignor
    return ConsumerGroupMemberMetadataValue(
        instance_id=request.instance_id or before.instance_id,
        rack_id=request.rack_id or before.rack_id,
        client_id=request.client_id or before.client_id,
        client_host=request.client_host or before.client_host,
        subscribed_topic_names=(
            before.subscribed_topic_names if names is None else tuple(sorted(set(names)))
        ),
        subscribed_topic_regex=before.subscribed_topic_regex
        if pattern is None
        else pattern or None,
        rebalance_timeout_ms=request.rebalance_timeout_ms or before.rebalance_timeout_ms,
        server_assignor=assignor_name(assignor) if assignor else before.server_assignor,
        session_timeout_ms=request.session_timeout_ms or before.session_timeout_ms,
    )


def _handed_over(group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> dict[str, Assignment]:
    """Targets of the requesting member and its heir after a hand-over, empty without a change.

    Raises LogError(ILLEGAL_STATE).
    """
    instance_id, member_id = request.hand_over_to, request.member_id
    if instance_id is None:
        return {}
    heir = group.instances.get(instance_id)
    name = f"Member {quoted(member_id)} of group {quoted(group.group_id)}"
    if group.assignor != PRIMARY_ASSIGNOR:
        raise LogError(
            ILLEGAL_STATE,
            f"{name} cannot hand over: the group's assignor is {group.assignor}, not "
            f"{PRIMARY_ASSIGNOR}.",
        )
    if heir is None or group.known(heir).member_epoch == STATIC_LEAVE_EPOCH:
        raise LogError(
            ILLEGAL_STATE, f"{name} cannot hand over: {quoted(instance_id)} is no live member."
        )
    target = group.targets.get(member_id)
    if not target and (heir == member_id or not group.targets.get(heir)):
        raise LogError(ILLEGAL_STATE, f"{name} cannot hand over: it is not the primary.")
    if not target or heir == member_id:
        return {}  # A repeated request: it is done.
    if _topics(group.members[heir]) != _topics(group.members[member_id]):
        raise LogError(
            ILLEGAL_STATE,
            f"{name} cannot hand over: {quoted(instance_id)} subscribes to other topics.",
        )
    return {heir: target, member_id: ()}


def _reports(group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> Reports:
    if request.report is None:
        return group.reports
    return {**group.reports, request.member_id: request.report}


def _topics(member: ConsumerGroupMemberMetadataValue) -> tuple[object, ...]:
    return member.subscribed_topic_names, member.subscribed_topic_regex


def _subscription(member: ConsumerGroupMemberMetadataValue) -> tuple[object, ...]:
    """The properties that the target assignment depends on."""
    return (*_topics(member), member.server_assignor, member.instance_id)


def _rebalance(
    records: list[CoordinatorRecord],
    group: ConsumerGroup,
    members: Members,
    targets: Mapping[str, Assignment],
    *,
    reports: Reports,
    image: MetadataImage,
    time_ms: int,
) -> _Target:
    """Target these members, and append the records. Resolve new and remove unused patterns."""
    used = {member.subscribed_topic_regex for member in members.values()}
    patterns = {one: value for one, value in group.patterns.items() if one in used}
    for unused in group.patterns.keys() - used:
        unused_key = ConsumerGroupRegularExpressionKey(group.group_id, unused)
        records.append(CoordinatorRecord(unused_key, None))
    for new in sorted(one for one in used if one and one not in patterns):
        patterns[new] = resolve(new, image, time_ms)
        new_key = ConsumerGroupRegularExpressionKey(group.group_id, new)
        records.append(CoordinatorRecord(new_key, patterns[new]))
    return _retarget(
        records,
        group,
        members,
        patterns,
        targets,
        reports=reports,
        image=image,
        time_ms=time_ms,
    )


def _retarget(
    records: list[CoordinatorRecord],
    group: ConsumerGroup,
    members: Members,
    patterns: Patterns,
    targets: Mapping[str, Assignment],
    *,
    reports: Reports,
    image: MetadataImage,
    time_ms: int,
) -> _Target:
    """Raise the group epoch and compute its target assignment. Appends the records."""
    epoch = group.epoch + 1
    counts = partition_counts(image, subscribed_names(members, patterns))
    records.append(
        CoordinatorRecord(
            ConsumerGroupMetadataKey(group.group_id),
            ConsumerGroupMetadataValue(
                epoch, metadata_hash(counts), NO_TIMESTAMP if members else time_ms
            ),
        )
    )
    assignor = ASSIGNORS[preferred_assignor(member.server_assignor for member in members.values())]
    reported = subscribers(members, patterns, image, reports)
    assignments = assignor(reported, counts, targets)
    records += [
        _target_record(group, member_id, assignment)
        for member_id, assignment in assignments.items()
        if assignment != group.targets.get(member_id, ())
    ]
    # The target's epoch comes last and stands for all of its records.
    records.append(
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMetadataKey(group.group_id),
            ConsumerGroupTargetAssignmentMetadataValue(epoch),
        )
    )
    return _Target(epoch, assignments)


def _target_record(
    group: ConsumerGroup, member_id: str, assignment: Assignment
) -> CoordinatorRecord:
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group.group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(assignment),
    )


def _hash(image: MetadataImage, names: Collection[str]) -> int:
    return metadata_hash(partition_counts(image, names))


def _without(table: Mapping[str, T], key: str) -> dict[str, T]:
    return {one: value for one, value in table.items() if one != key}
