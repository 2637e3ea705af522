"""A classic group, its timers and clock, and the shell's part: replay, and held requests."""

from __future__ import annotations

from typing import TypeVar

from raftlog.coordinator.classic_group import ClassicGroup
from raftlog.coordinator.classic_messages import (
    ClassicHeartbeat,
    ClassicLimits,
    ClassicTimer,
    Held,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    MemberAssignment,
    MemberIdRequired,
    Protocol,
    Step,
    Synced,
    SyncGroup,
)
from raftlog.coordinator.decision import Decision, Timers
from raftlog.coordinator.record_codec import decode_offsets_record, encode_record
from raftlog.coordinator.records import GroupMetadataKey, GroupMetadataValue
from raftlog.record.errors import ErrorEntry, LogError

GROUP = "g"
WALL_MS = 1_760_000_000_000
LIMITS = ClassicLimits(
    session_timeout_min_ms=10, session_timeout_max_ms=1_000, initial_rebalance_delay_ms=5
)
JOIN = JoinGroup(GROUP, "consumer", (Protocol("range", b"m"),), 100, 300, requires_member_id=False)

R = TypeVar("R")
Answer = Joined | MemberIdRequired | Synced | ErrorEntry


class Stage:
    """Requests get an answer, or a ticket; the answer to a ticket comes into `answers`."""

    def __init__(self, limits: ClassicLimits = LIMITS) -> None:
        self.limits = limits
        self.now_ms = 0
        self.log: list[GroupMetadataValue | None] = []
        self.made_ids = 0
        self.start()

    def start(self) -> None:
        """A coordinator that knows nothing yet."""
        self.timers: Timers[ClassicTimer] = Timers()
        self.group = ClassicGroup(GROUP, self.timers, self.limits)
        self.waiting: dict[int, int] = {}
        """Held tickets, and since when."""
        self.answers: dict[int, Joined | Synced | ErrorEntry] = {}

    def reload(self) -> None:
        """Another coordinator loads the log; held requests end with the old one."""
        self.start()
        for value in self.log:
            self.group.replay(value)
        self.group.restart_timers(self.now_ms)

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms

    def carry_out(self, decision: Decision[Step[R]]) -> R:
        for record in decision.records:
            assert decode_offsets_record(*encode_record(record)) == record
            key, value = record
            assert key == GroupMetadataKey(GROUP)
            assert value is None or isinstance(value, GroupMetadataValue)
            self.log.append(value)
            self.group.replay(value)
        response, released = decision.response
        if isinstance(response, Held):
            assert response.ticket not in self.waiting | self.answers
            self.waiting[response.ticket] = self.now_ms
        for ticket, outcome in released:
            del self.waiting[ticket]
            self.answers[ticket] = outcome.entry if isinstance(outcome, LogError) else outcome
        return response

    def join(self, request: JoinGroup = JOIN, **changes: object) -> Answer | Held:
        """Held only if the ticket was not released at once."""
        self.made_ids += 1
        try:
            decision = self.group.join(
                replace_request(request, **changes),
                new_member_id=f"m{self.made_ids}",
                now_ms=self.now_ms,
                wall_ms=self.wall_ms,
            )
        except LogError as error:
            return error.entry
        return self._settled(self.carry_out(decision))

    def sync(
        self,
        joined: Joined,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
    ) -> Answer | Held:
        request = SyncGroup(
            GROUP,
            joined.member_id,
            joined.generation,
            instance_id,
            joined.protocol_type,
            joined.protocol,
            tuple(MemberAssignment(*each) for each in (assignments or {}).items()),
        )
        try:
            decision = self.group.sync(request, now_ms=self.now_ms, wall_ms=self.wall_ms)
        except LogError as error:
            return error.entry
        return self._settled(self.carry_out(decision))

    def _settled(self, response: R | Held) -> R | Joined | Synced | ErrorEntry | Held:
        if isinstance(response, Held):
            return self.answers.get(response.ticket, response)
        return response

    def answer(self, held: Answer | Held) -> Joined | Synced | ErrorEntry:
        """The later answer of a held request."""
        assert isinstance(held, Held)
        return self.answers[held.ticket]

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None
    ) -> ErrorEntry | None:
        request = ClassicHeartbeat(GROUP, member_id, generation, instance_id)
        try:
            self.group.heartbeat(request, now_ms=self.now_ms)
        except LogError as error:
            return error.entry
        return None

    def leave(self, *members: LeavingMember) -> list[int]:
        decision = self.group.leave(
            LeaveGroup(GROUP, members), now_ms=self.now_ms, wall_ms=self.wall_ms
        )
        left = self.carry_out(decision)
        assert isinstance(left, Left)
        return [each.error_code for each in left.outcomes]

    def advance(self, passed_ms: int) -> None:
        """Time passes; each deadline is acted on at its time."""
        end_ms = self.now_ms + passed_ms
        while (next_ms := self.timers.next_ms()) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            timer = self.timers.pop_due(self.now_ms)
            assert timer is not None and timer.group_id == GROUP
            self.carry_out(self.group.on_timer(timer, now_ms=self.now_ms, wall_ms=self.wall_ms))
        self.now_ms = end_ms

    def stable(self, *requests: JoinGroup) -> list[Joined]:
        """A stable generation of new members; the first is the leader, assignments are ids."""
        held = [self.join(request) for request in requests]
        self.advance(2 * self.limits.initial_rebalance_delay_ms)
        joined = [each for each in map(self.answer, held) if isinstance(each, Joined)]
        assert len(joined) == len(requests)
        self.sync_all(joined)
        return joined

    def sync_all(self, joined: list[Joined]) -> None:
        """The followers sync, then the leader."""
        leader = next(each for each in joined if each.leader == each.member_id)
        waiting = [self.sync(each) for each in joined if each is not leader]
        parts = {each.member_id: each.member_id.encode() for each in leader.members}
        assert isinstance(self.sync(leader, parts), Synced)
        assert all(isinstance(self.answer(each), Synced) for each in waiting)


def replace_request(request: JoinGroup, **changes: object) -> JoinGroup:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return JoinGroup(**(fields | changes))
