"""A group of the classic kind has generations, and join and sync barriers. Pure.

| state | leaves it |
|---|---|
| EMPTY | to PREPARING_REBALANCE, when a member joins |
| PREPARING_REBALANCE | to the next generation, when all have joined or at the rebalance deadline |
| COMPLETING_REBALANCE | to STABLE with the leader's sync, back when a member joins or goes |
| STABLE | to PREPARING_REBALANCE, when a member joins, changes, leaves, or its session ends |
| DEAD | never, since the group's record is deleted |

A generation without members is EMPTY. The first join of an EMPTY group waits for further members
for `initial_rebalance_delay_ms`, again after each delay with a new member, at most for the members'
longest rebalance timeout.

**Recorded and soft state.** A GroupMetadataValue is written when a generation is stable or empty,
and when a static member takes over in a stable generation. Only `replay` makes it STABLE. The
membership of a rebalance in progress (members, protocols, next generation, held requests, ids not
joined yet) is soft state. Decisions change it directly, and it is in no record.

**A reload** restores the last recorded generation, and `restart_timers` starts all sessions. Soft
state is lost, and members recover as Kafka's clients do:
- A member of the restored generation continues, and meets no rebalance that was in progress.
- A member that also joined the lost generation gets ILLEGAL_GENERATION and joins again by its id.
- A member that is in no record gets UNKNOWN_MEMBER and joins again as a new member.
- A member that had left is a member again until its session ends.
- A static member that was replaced in the lost rebalance has its place again. Its replacement gets
  FENCED_INSTANCE_ID and starts again to replace it.

**Held requests.** A member has at most a held join or a held sync. Its session has no deadline
during the hold. A join is held at most until the rebalance deadline. A sync is held at most until
the sync deadline, the longest rebalance timeout of a member, and again after a time without writes.
A newer request of the member, its removal or a rebalance releases the ticket with an error.

Errors are raised before anything changes (but a session's deadline may be set).

Sources: KIP-62 (rebalance timeouts), 134 (initial delay), 345 and 814 (static members), 394
(member ids).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from raftlog.coordinator.groups.classic.members import Member, Members, joining, restored
from raftlog.coordinator.groups.classic.messages import (
    PROTOCOLS_MAX,
    ClassicHeartbeat,
    ClassicState,
    DescribedGroup,
    Held,
    Joined,
    JoinGroup,
    JoinResponse,
    LeaveGroup,
    LeaveOutcome,
    LeavingMember,
    Left,
    MemberIdRequired,
    Released,
    Step,
    Synced,
    SyncGroup,
    SyncResponse,
)
from raftlog.coordinator.groups.offset_messages import Committer
from raftlog.coordinator.groups.settings import MemberTimer, Shared, TimerKind
from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision, Event
from raftlog.coordinator.shard.records import GroupMetadataKey, GroupMetadataValue
from raftlog.record.errors import (
    FENCED_INSTANCE_ID,
    GROUP_FULL,
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    REBALANCE_IN_PROGRESS,
    RECORD_TOO_LARGE,
    UNKNOWN_MEMBER,
    ErrorEntry,
    LogError,
)

R = TypeVar("R")


@dataclass(slots=True)
class _Turn:
    """The parts of a decision."""

    now_ms: int
    wall_ms: int
    released: list[Released] = field(default_factory=list)
    records: list[CoordinatorRecord] = field(default_factory=list)


class ClassicGroup:
    """The state machine of a group.

    `now_ms` is monotonic, for the timers. `wall_ms` is stored. The shard drops the group once it is
    DEAD or `is_vacant`.
    """

    def __init__(self, group_id: str, shared: Shared) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.is_recorded = False
        self._state_since_ms = 0
        self._shared = shared
        self._timers = shared.timers
        self._join_timer = MemberTimer(TimerKind.REBALANCE, group_id)
        self._sync_timer = MemberTimer(TimerKind.SYNC, group_id)
        self._members = Members()
        self._expected: dict[str, int] = {}
        """Session timeouts of ids handed out that have not joined yet (KIP-394)."""
        self._delay_end_ms: int | None = None
        """Latest end of the initial delay, or None outside the delay."""
        self._has_newcomer = False
        """Whether a member came since the initial delay was set."""

    # Queries

    @property
    def is_empty(self) -> bool:
        """Whether no member is left. Any author may commit then, and the group may be deleted."""
        return not self._members

    @property
    def member_count(self) -> int:
        """Members, without ids that have not joined yet."""
        return len(self._members)

    @property
    def is_vacant(self) -> bool:
        """Whether there are neither members, nor ids that may join, nor a record."""
        return not (self._members or self._expected or self.is_recorded)

    @property
    def empty_since_ms(self) -> int | None:
        """Time of the last member's leave, 0 if none ever joined, None with members."""
        return None if self._members else self._state_since_ms

    def describe(self) -> DescribedGroup:
        """State and members."""
        is_stable = self.state is ClassicState.STABLE
        members = (each.described(self.protocol, is_stable=is_stable) for each in self._members)
        protocol = self.protocol if is_stable else None
        return DescribedGroup(
            group=self.group_id,
            state=self.state,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=protocol,
            members=tuple(members),
        )

    def emptied(self, time_ms: int) -> tuple[CoordinatorRecord, ...]:
        """Records by which the last member left at a time."""
        if not self.is_recorded or self.state is not ClassicState.EMPTY:
            return ()
        return (self._record(_Turn(0, time_ms), {}),)

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """The records that delete an empty group."""
        key = GroupMetadataKey(self.group_id)
        return (CoordinatorRecord(key, None),) if self.is_recorded else ()

    # Replay

    def replay(self, value: GroupMetadataValue | None) -> None:
        """Apply a record, whose generation is STABLE or EMPTY. None makes the group DEAD."""
        self.is_recorded = value is not None
        if value is None:
            self.state = ClassicState.DEAD
            for member_id in (*(each.member_id for each in self._members), *self._expected):
                self._timers.cancel(self._session(member_id))
            self._members, self._expected = Members(), {}
            return
        self.generation, self.leader = value.generation, value.leader
        self.protocol_type, self.protocol = value.protocol_type, value.protocol
        self._state_since_ms = value.current_state_timestamp_ms
        known, self._members = self._members, Members()
        for each in value.members:
            member = known.get(each.member_id)
            if member is None or member.recorded(value.protocol, each.assignment) != each:
                member = restored(each, value.protocol)
            member.assignment = each.assignment
            self._members.put(member)
        self.state = ClassicState.STABLE if self._members else ClassicState.EMPTY

    def restart_timers(self, now_ms: int) -> None:
        """Restart all timers with their full length, after a load or a time without writes."""
        for member in self._members:
            self._begin_session(member, now_ms)
        for member_id, timeout_ms in self._expected.items():
            self._timers.set(self._session(member_id), now_ms + timeout_ms)
        wait_ms = self._members.longest_rebalance_timeout_ms()
        if any(each.owes_sync for each in self._members):
            self._timers.set(self._sync_timer, now_ms + wait_ms)
        if self.state is ClassicState.PREPARING_REBALANCE:
            if self._delay_end_ms is not None:
                wait_ms = self._shared.settings.initial_rebalance_delay_ms
            self._timers.set(self._join_timer, now_ms + wait_ms)

    # Decisions

    def join(
        self, request: JoinGroup, *, now_ms: int, wall_ms: int
    ) -> Decision[Step[JoinResponse]]:
        """Join or join again.

        Raises INCONSISTENT_PROTOCOL, GROUP_FULL, UNKNOWN_MEMBER, FENCED_INSTANCE_ID.
        """
        turn = _Turn(now_ms, wall_ms)
        previous: Member | None = None
        if request.member_id and request.member_id not in self._expected:
            previous = self._members.find(request.member_id, request.instance_id)
        else:
            previous = self._members.of_instance(request.instance_id)
            if previous is not None and request.member_id:
                raise LogError(FENCED_INSTANCE_ID)
        member = joining(request, request.member_id or request.new_member_id)
        self._check_join(request, member, previous)
        if previous is None:
            return self._join_as_new(member, request, turn)
        if request.member_id:
            return self._join_again(previous, request, turn)
        return self._take_over(previous, member, request, turn)

    def sync(
        self, request: SyncGroup, *, now_ms: int, wall_ms: int
    ) -> Decision[Step[SyncResponse]]:
        """Get the assignment of a generation. The leader's request sets all assignments.

        Raises UNKNOWN_MEMBER, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL,
        REBALANCE_IN_PROGRESS, or RECORD_TOO_LARGE for the leader's assignments.
        """
        turn = _Turn(now_ms, wall_ms)
        member = self._members.find(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        if request.protocol_type not in (None, self.protocol_type) or (
            request.protocol not in (None, self.protocol)
        ):
            raise LogError(INCONSISTENT_PROTOCOL)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise LogError(REBALANCE_IN_PROGRESS)
        if self.state is ClassicState.STABLE:
            self._mark_synced(member)
            self._begin_session(member, now_ms)
            return Decision(Step(self._synced(member.assignment)))
        is_leader = member.member_id == self.leader
        assignments = {each.member_id: each.assignment for each in request.assignments}
        if is_leader:
            size = sum(len(assignments.get(each.member_id, b"")) for each in self._members)
            if size > self._shared.settings.classic_bytes_max:
                raise LogError(
                    RECORD_TOO_LARGE,
                    f"The assignments of group {self.group_id!r} take {size:,} bytes; "
                    f"{self._shared.settings.classic_bytes_max:,} are possible.",
                )
        member.sync_ticket = ticket = self._hold(member, turn)
        self._mark_synced(member)
        if is_leader:
            turn.records.append(self._record(turn, assignments))
            for each in self._members:
                synced = self._synced(assignments.get(each.member_id, b""))
                self._release_sync(each, synced, turn)
        return self._decided(Held(ticket), turn)

    def heartbeat(self, request: ClassicHeartbeat, *, now_ms: int) -> Decision[None]:
        """Keep the member's session.

        Raises UNKNOWN_MEMBER, FENCED_INSTANCE_ID, ILLEGAL_GENERATION. After REBALANCE_IN_PROGRESS
        the member must join again, and its session is kept.
        """
        member = self._members.find(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        self._begin_session(member, now_ms)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise LogError(REBALANCE_IN_PROGRESS)
        return Decision(None)

    def leave(self, request: LeaveGroup, *, now_ms: int, wall_ms: int) -> Decision[Step[Left]]:
        """Remove members. Each may fail separately by UNKNOWN_MEMBER or FENCED_INSTANCE_ID."""
        turn = _Turn(now_ms, wall_ms)
        outcomes, removed = [], []
        for leaving in request.members:
            code = 0
            try:
                removed += self._leave_one(leaving, turn)
            except LogError as error:
                code = error.entry.code
            outcomes.append(LeaveOutcome(leaving.member_id, leaving.instance_id, code))
        self._after_removal(removed, turn)
        return self._decided(Left(tuple(outcomes)), turn)

    def check_commit(self, committer: Committer, *, is_transactional: bool, now_ms: int) -> None:
        """Check the author of a commit, and keep a member's session.

        Any author may commit while the group is empty, and in a transaction that names no member
        (clients before KIP-447). Raises UNKNOWN_MEMBER, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, or
        REBALANCE_IN_PROGRESS for a plain commit before the generation is stable.
        """
        if committer.epoch < 0 and self.is_empty:
            return
        if committer == Committer():
            if is_transactional:
                return
            raise LogError(
                UNKNOWN_MEMBER, f"Group {self.group_id!r} has members: only they may commit."
            )
        member = self._members.find(committer.member_id, committer.instance_id)
        self._check_generation(committer.epoch)
        self._begin_session(member, now_ms)
        if self.state is ClassicState.COMPLETING_REBALANCE and not is_transactional:
            raise LogError(REBALANCE_IN_PROGRESS)

    def on_timer(self, timer: MemberTimer, *, now_ms: int, wall_ms: int) -> Decision[Step[None]]:
        """Act on a deadline of this group that has passed."""
        turn = _Turn(now_ms, wall_ms)
        match timer.kind:
            case TimerKind.SESSION:
                member = self._members.get(timer.member_id)
                self._expected.pop(timer.member_id, None)
                self._after_removal(self._remove([member] if member else [], turn), turn)
            case TimerKind.REBALANCE:
                self._end_wait_for_joins(turn)
            case TimerKind.SYNC:
                late = [each for each in self._members if each.owes_sync]
                self._after_removal(self._remove(late, turn), turn)
        return self._decided(None, turn)

    def dissolve(self, *, now_ms: int, wall_ms: int) -> tuple[Released, ...]:
        """Give up all members, since the records of a decision that changed them were refused."""
        turn = _Turn(now_ms, wall_ms)
        self._remove(list(self._members), turn, RECORD_TOO_LARGE)
        self._timers.cancel(self._join_timer)
        self._timers.cancel(self._sync_timer)
        self.state, self._state_since_ms, self._delay_end_ms = ClassicState.EMPTY, wall_ms, None
        self.protocol = None
        return tuple(turn.released)

    # Joining

    def _check_join(self, request: JoinGroup, member: Member, previous: Member | None) -> None:
        settings = self._shared.settings
        others = len(self._members) - (previous is not None)
        if (
            not request.protocol_type
            or len(request.protocols) > PROTOCOLS_MAX
            or (others and request.protocol_type != self.protocol_type)
            or not self._members.have_common_protocol(member, previous)
        ):
            raise LogError(INCONSISTENT_PROTOCOL)
        is_new = previous is None and member.member_id not in self._expected
        if is_new and others + len(self._expected) >= settings.members_max:
            raise LogError(GROUP_FULL)
        if self._members.size_with(member, previous) > settings.classic_bytes_max:
            raise LogError(
                GROUP_FULL,
                f"The metadata of all members of group {self.group_id!r} would take more than "
                f"{settings.classic_bytes_max:,} bytes.",
            )

    def _join_as_new(
        self, member: Member, request: JoinGroup, turn: _Turn
    ) -> Decision[Step[JoinResponse]]:
        member_id = member.member_id
        is_expected = member_id in self._expected
        if request.requires_member_id and request.instance_id is None and not is_expected:
            self._expected[member_id] = member.session_timeout_ms
            self._begin_session(member, turn.now_ms)
            return Decision(Step(MemberIdRequired(member_id)))
        self._expected.pop(member_id, None)
        self._members.put(member)
        self._has_newcomer = True
        return self._rebalance_with(member, request, turn)

    def _join_again(
        self, member: Member, request: JoinGroup, turn: _Turn
    ) -> Decision[Step[JoinResponse]]:
        offered = (request.protocol_type, request.protocols)
        is_same = offered == (self.protocol_type, member.protocols)
        is_stable = self.state is ClassicState.STABLE and member.member_id != self.leader
        if is_same and (is_stable or self.state is ClassicState.COMPLETING_REBALANCE):
            # The request is repeated, since its response was lost.
            self._release_sync(member, LogError(REBALANCE_IN_PROGRESS), turn)
            member.owes_sync = self.state is ClassicState.COMPLETING_REBALANCE
            self._begin_session(member, turn.now_ms)
            return self._decided(self._joined(member), turn)
        member.update(request)
        return self._rebalance_with(member, request, turn)

    def _take_over(
        self, previous: Member, member: Member, request: JoinGroup, turn: _Turn
    ) -> Decision[Step[JoinResponse]]:
        """Replace a restarted static member by itself, under a new member id."""
        was_leader = previous.member_id == self.leader
        self._remove([previous], turn, FENCED_INSTANCE_ID)
        member.assignment = previous.assignment
        self._members.put(member)
        if was_leader:
            self.leader = member.member_id
        agreed = (self.protocol_type, self.protocol)
        wanted = (request.protocol_type, self._members.voted_protocol())
        if self.state is not ClassicState.STABLE or wanted != agreed:
            return self._rebalance_with(member, request, turn)
        self._begin_session(member, turn.now_ms)
        kept = {each.member_id: each.assignment for each in self._members}
        turn.records.append(self._record(turn, kept))
        joined = self._joined(member, skip_assignment=was_leader)
        if was_leader and not request.can_skip_assignment:
            # The client would assign as leader, so the response names the previous member.
            joined = self._joined(member, leader=previous.member_id)
        return self._decided(joined, turn)

    def _rebalance_with(
        self, member: Member, request: JoinGroup, turn: _Turn
    ) -> Decision[Step[JoinResponse]]:
        self.protocol_type = request.protocol_type
        member.join_ticket = ticket = self._hold(member, turn)
        self._prepare(turn)
        self._maybe_complete(turn)
        return self._decided(Held(ticket), turn)

    # Rebalances

    def _prepare(self, turn: _Turn) -> None:
        """Start a rebalance unless a rebalance waits for joins already."""
        if self.state is ClassicState.PREPARING_REBALANCE:
            return
        was_empty = self.state is ClassicState.EMPTY
        self.state = ClassicState.PREPARING_REBALANCE
        self._timers.cancel(self._sync_timer)
        for member in self._members:
            member.owes_sync = False
            self._release_sync(member, LogError(REBALANCE_IN_PROGRESS), turn)
        wait_ms = self._members.longest_rebalance_timeout_ms()
        delay_ms = self._shared.settings.initial_rebalance_delay_ms
        self._delay_end_ms = None
        if was_empty and delay_ms:
            self._delay_end_ms = turn.now_ms + max(wait_ms, delay_ms)
            self._has_newcomer = False
            wait_ms = delay_ms
        self._timers.set(self._join_timer, turn.now_ms + wait_ms)

    def _maybe_complete(self, turn: _Turn) -> None:
        """End the wait for joins if no further join can come."""
        if self.state is not ClassicState.PREPARING_REBALANCE:
            return
        is_waiting = self._delay_end_ms is not None or bool(self._expected)
        has_all = all(each.join_ticket is not None for each in self._members)
        if not self._members or (has_all and not is_waiting):
            self._complete(turn)

    def _end_wait_for_joins(self, turn: _Turn) -> None:
        if self.state is not ClassicState.PREPARING_REBALANCE:
            return
        delay_end_ms = self._delay_end_ms
        if self._has_newcomer and delay_end_ms is not None and turn.now_ms < delay_end_ms:
            self._has_newcomer = False
            next_ms = turn.now_ms + self._shared.settings.initial_rebalance_delay_ms
            self._timers.set(self._join_timer, min(next_ms, delay_end_ms))
            return
        self._delay_end_ms = None
        silent = [each for each in self._members if each.join_ticket is None]
        self._remove([each for each in silent if each.instance_id is None], turn)
        if self._members and all(each.join_ticket is None for each in self._members):
            # Static members only: they keep their places until their sessions end.
            self._timers.set(
                self._join_timer, turn.now_ms + self._members.longest_rebalance_timeout_ms()
            )
        else:
            self._complete(turn)

    def _complete(self, turn: _Turn) -> None:
        """Start the next generation, with the members that have joined and static members."""
        self._timers.cancel(self._join_timer)
        self._delay_end_ms = None
        self.generation += 1
        joined = [each for each in self._members if each.join_ticket is not None]
        if not joined:
            self.state = ClassicState.EMPTY
            self.protocol, self.leader = None, None
            turn.records.append(self._record(turn, {}))
            return
        self._shared.counts[Event.REBALANCE] += 1
        self.state = ClassicState.COMPLETING_REBALANCE
        self.protocol = self._members.voted_protocol()
        if self.leader not in {each.member_id for each in joined}:
            self.leader = joined[0].member_id
        for member in joined:
            ticket, member.join_ticket = member.join_ticket, None
            member.owes_sync = True
            self._begin_session(member, turn.now_ms)
            if ticket is not None:
                turn.released.append(Released(ticket, self._joined(member)))
        sync_end_ms = turn.now_ms + self._members.longest_rebalance_timeout_ms()
        self._timers.set(self._sync_timer, sync_end_ms)

    def _mark_synced(self, member: Member) -> None:
        member.owes_sync = False
        if not any(each.owes_sync for each in self._members):
            self._timers.cancel(self._sync_timer)

    # Leaving

    def _leave_one(self, leaving: LeavingMember, turn: _Turn) -> list[Member]:
        if leaving.member_id in self._expected:
            del self._expected[leaving.member_id]
            self._timers.cancel(self._session(leaving.member_id))
            return []
        static = None if leaving.member_id else self._members.of_instance(leaving.instance_id)
        member = static or self._members.find(leaving.member_id, leaving.instance_id)
        return self._remove([member], turn)

    def _remove(
        self, members: list[Member], turn: _Turn, error: ErrorEntry = UNKNOWN_MEMBER
    ) -> list[Member]:
        """Remove members and release their tickets with the error."""
        for member in members:
            self._release(member, error, turn)
            self._timers.cancel(self._session(member.member_id))
            self._members.remove(member)
            if member.member_id == self.leader:
                self.leader = None
        return members

    def _after_removal(self, removed: list[Member], turn: _Turn) -> None:
        if removed:
            self._prepare(turn)
        self._maybe_complete(turn)

    # Held requests and sessions

    def _hold(self, member: Member, turn: _Turn) -> int:
        """A ticket for the member's request, which ends the session's deadline.

        An earlier request of the member is released, since its client has given it up.
        """
        self._release(member, REBALANCE_IN_PROGRESS, turn)
        self._timers.cancel(self._session(member.member_id))
        return self._shared.next_ticket()

    def _release(self, member: Member, error: ErrorEntry, turn: _Turn) -> None:
        self._release_sync(member, LogError(error), turn)
        if member.join_ticket is not None:
            turn.released.append(Released(member.join_ticket, LogError(error)))
            member.join_ticket = None

    def _release_sync(self, member: Member, response: Synced | LogError, turn: _Turn) -> None:
        """Release the member's sync if it is held, and start its session."""
        if member.sync_ticket is not None:
            turn.released.append(Released(member.sync_ticket, response))
            member.sync_ticket = None
            self._begin_session(member, turn.now_ms)

    def _begin_session(self, member: Member, now_ms: int) -> None:
        if not member.is_held:
            end_ms = now_ms + member.session_timeout_ms
            self._timers.set(self._session(member.member_id), end_ms)

    def _session(self, member_id: str) -> MemberTimer:
        return MemberTimer(TimerKind.SESSION, self.group_id, member_id)

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            words = f"Group {self.group_id!r} is at generation {self.generation}: join it again."
            raise LogError(ILLEGAL_GENERATION, words)

    # Responses and records

    def _decided(self, response: R, turn: _Turn) -> Decision[Step[R]]:
        return Decision(Step(response, tuple(turn.released)), tuple(turn.records))

    def _joined(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> Joined:
        leader = leader or self.leader or ""
        protocol = self.protocol or ""
        is_leader = leader == member.member_id
        return Joined(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=protocol,
            leader=leader,
            members=self._members.joined(protocol) if is_leader else (),
            skip_assignment=skip_assignment,
        )

    def _synced(self, assignment: bytes) -> Synced:
        return Synced(self.protocol_type, self.protocol or "", assignment)

    def _record(self, turn: _Turn, assignments: dict[str, bytes]) -> CoordinatorRecord:
        members = self._members.recorded(self.protocol, assignments)
        value = GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp_ms=turn.wall_ms,
            members=members,
        )
        return CoordinatorRecord(GroupMetadataKey(self.group_id), value)
