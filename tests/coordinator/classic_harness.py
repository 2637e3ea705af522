"""A shard with one classic group, its log and clock, and the shell's part: held requests."""

from __future__ import annotations

from typing import TypeVar

from raftlog.coordinator.groups.classic.group import ClassicGroup
from raftlog.coordinator.groups.classic.messages import (
    ClassicHeartbeat,
    Held,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    MemberAssignment,
    MemberIdRequired,
    Protocol,
    Synced,
    SyncGroup,
)
from raftlog.coordinator.groups.messages import (
    ConsumerHeartbeatRequest,
    Done,
    GroupRequest,
    GroupResponse,
)
from raftlog.coordinator.groups.offset_messages import CommitOffsets, Committer
from raftlog.coordinator.groups.settings import GroupSettings, MemberTimer, Shared
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision, Producer
from raftlog.coordinator.shard.record_codec import decode_offsets_record, encode_record
from raftlog.coordinator.shard.records import GroupMetadataKey, GroupMetadataValue
from raftlog.record.errors import ErrorEntry, LogError
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.coordinator.images import image_of

GROUP = "g"
WALL_MS = 1_760_000_000_000
LIMITS = GroupSettings(
    session_timeout_ms_min=10, session_timeout_ms_max=1_000, initial_rebalance_delay_ms=5
)
JOIN = JoinGroup(GROUP, "consumer", (Protocol("range", b"m"),), 100, 300, requires_member_id=False)

R = TypeVar("R")
Answer = Joined | MemberIdRequired | Synced | ErrorEntry


class Stage:
    """Requests get an answer, or a ticket; the answer to a ticket comes into `answers`."""

    def __init__(self, limits: GroupSettings = LIMITS) -> None:
        self.limits = limits
        self.image = image_of(a=1)
        self.now_ms = 0
        self.records: list[CoordinatorRecord] = []
        self.made_ids = 0
        self.start()

    def start(self) -> None:
        """A coordinator that knows nothing yet."""
        self.shard = GroupShard(self.limits)
        self.timers = self.shard.timers
        self.waiting: dict[int, int] = {}
        """Held tickets, and since when."""
        self.answers: dict[int, Joined | Synced | ErrorEntry] = {}

    def reload(self) -> None:
        """Another coordinator loads the log; held requests end with the old one."""
        self.start()
        for position, record in enumerate(self.records):
            self.shard.replay(record, position=position, producer=None)
        # Without the timers of the shard itself.
        self.shard.classic.restart_timers(self.now_ms)
        group = self.shard.consumer_groups.get(GROUP)
        if group is not None:
            self.shard._decisions.loaded(group, self.now_ms)

    @property
    def group(self) -> ClassicGroup:
        """The group; a new one, which the shard does not know, if there is none."""
        return self.shard.classic.get(GROUP) or ClassicGroup(GROUP, Shared(self.limits))

    @property
    def log(self) -> list[GroupMetadataValue | None]:
        """The records of the classic kind."""
        return [
            value
            for key, value in self.records
            if isinstance(key, GroupMetadataKey)
            and (value is None or isinstance(value, GroupMetadataValue))
        ]

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms

    def decide(self, request: GroupRequest) -> GroupResponse | Held:
        return self.carry_out(self.shard.decide(request, self.image, self.now_ms, self.wall_ms))

    def carry_out(self, decision: Decision[R]) -> R:
        for record in decision.records:
            assert decode_offsets_record(*encode_record(record)) == record
            self.shard.replay(record, position=len(self.records), producer=None)
            self.records.append(record)
        response = decision.response
        if isinstance(response, Held):
            assert response.ticket not in self.waiting | self.answers
            self.waiting[response.ticket] = self.now_ms
        classic = self.shard.classic
        for ticket in [one for one in self.waiting if classic.is_answered(one)]:
            try:
                self.answers[ticket] = classic.take(ticket)
            except LogError as error:
                self.answers[ticket] = error.entry
            classic.forget(ticket)
            del self.waiting[ticket]
        return response

    def join(self, request: JoinGroup = JOIN, **changes: object) -> Answer | Held:
        """Held only if the ticket was not released at once."""
        self.made_ids += 1
        try:
            answer = self.decide(
                replace_request(request, new_member_id=f"m{self.made_ids}", **changes)
            )
        except LogError as error:
            return error.entry
        return self._settled(answer)

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
            answer = self.decide(request)
        except LogError as error:
            return error.entry
        return self._settled(answer)

    def _settled(self, response: GroupResponse | Held) -> Answer | Held:
        if isinstance(response, Held):
            return self.answers.get(response.ticket, response)
        assert isinstance(response, Joined | MemberIdRequired | Synced)
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
            assert self.decide(request) == Done()
        except LogError as error:
            return error.entry
        return None

    def consumer(self, member_id: str, epoch: int) -> ErrorEntry | None:
        """A heartbeat of the consumer kind."""
        request = ConsumerHeartbeatRequest(
            GROUP, member_id, epoch, subscribed_names=("a",), session_timeout_ms=100
        )
        try:
            self.decide(request)
        except LogError as error:
            return error.entry
        return None

    def commit(self, committer: Committer, *, is_transactional: bool = False) -> ErrorEntry | None:
        """A commit of no offsets at all."""
        producer = Producer(ProducerId(7), ProducerEpoch(0)) if is_transactional else None
        try:
            self.decide(CommitOffsets(GROUP, (), committer, producer))
        except LogError as error:
            return error.entry
        return None

    def leave(self, *members: LeavingMember) -> list[int]:
        left = self.decide(LeaveGroup(GROUP, members))
        assert isinstance(left, Left)
        return [each.error_code for each in left.outcomes]

    def advance(self, passed_ms: int) -> None:
        """Time passes; each deadline is acted on at its time."""
        end_ms = self.now_ms + passed_ms
        while (next_ms := self.timers.next_ms()) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            timer = self.timers.pop_due(self.now_ms)
            assert isinstance(timer, MemberTimer) and timer.group == GROUP
            self.carry_out(
                self.shard.expire(timer, self.image, self.now_ms, self.wall_ms, self.wall_ms)
            )
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
