"""A group shard with its log, its clock and its topics; and members that follow the protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from raftlog.coordinator.groups.assignors import Assignment, Pair, assignment_of, pairs
from raftlog.coordinator.groups.classic.messages import Held
from raftlog.coordinator.groups.consumer_group import ConsumerGroup
from raftlog.coordinator.groups.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    GroupRequest,
    GroupResponse,
)
from raftlog.coordinator.groups.settings import GroupSettings, MemberTimer
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.shard.decision import UNDATED_MS, CoordinatorRecord, Decision
from raftlog.coordinator.shard.record_codec import decode_offsets_record, encode_record
from raftlog.coordinator.shard.records import Key
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import TRANSACTION_NOT_VERIFIED, UNKNOWN_MEMBER, LogError
from tests.coordinator.images import image_of

GROUP = "group"
R = TypeVar("R")


async def no_transactions(
    found: object, transactional_id: str, producer: object, *, adds: bool
) -> None:
    """Stands in for a coordinator of transactions that does not answer."""
    raise LogError(TRANSACTION_NOT_VERIFIED)


class ShardHarness:
    """Appends and replays each decision's records, as the shell does."""

    def __init__(self, image: MetadataImage, **settings: int) -> None:
        self.settings = GroupSettings(**settings)
        self.shard = GroupShard(self.settings)
        self.image = image
        self.now_ms = 0
        self.is_dated = True
        """Whether the cluster time is known."""
        self.log: list[CoordinatorRecord] = []
        self.expired: list[str] = []
        """Member ids, of all timers that were due."""

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.consumer_groups.get(GROUP)
        assert group is not None
        return group

    @property
    def time_ms(self) -> int:
        """The time that is stored."""
        return self.now_ms if self.is_dated else UNDATED_MS

    def decide(self, request: GroupRequest) -> GroupResponse:
        """The response; of a request that is held, the one that the same decision releases."""
        before = repr(self.state())
        decision = self.shard.decide(request, self.image, self.now_ms, self.time_ms)
        assert repr(self.state()) == before, "only replay changes the state"
        response = self.append(decision)
        if not isinstance(response, Held):
            return response
        answer = self.shard.classic.take(response.ticket)
        self.shard.classic.forget(response.ticket)
        return answer

    def heartbeat(self, **fields: Any) -> ConsumerHeartbeatResponse:
        response = self.decide(ConsumerHeartbeatRequest(GROUP, **fields))
        assert isinstance(response, ConsumerHeartbeatResponse)
        return response

    def append(self, decision: Decision[R]) -> R:
        for record in decision.records:
            self.shard.replay(record, position=len(self.log), producer=None)
            self.log.append(record)
        return decision.response

    def advance(self, milliseconds: int) -> None:
        """Let time pass, with all due timers."""
        self.now_ms += milliseconds
        while (timer := self.shard.timers.pop_due(self.now_ms)) is not None:
            if isinstance(timer, MemberTimer):
                self.expired.append(timer.member_id)
            expiry_ms = self.now_ms if self.is_dated else None
            self.append(self.shard.expire(timer, self.image, self.now_ms, self.time_ms, expiry_ms))

    def topics_changed(self, names: Iterable[str] | None) -> None:
        changed = None if names is None else tuple(names)
        for group_id in self.shard.stale_groups(self.image, changed):
            decision = self.shard.refresh(group_id, self.image, changed, self.now_ms)
            assert decision.records
            self.append(decision)
        assert not self.shard.stale_groups(self.image, changed)

    def reload(self, compact_before: int, *, keep_tombstones: bool) -> None:
        """A new coordinator: the log, compacted up to a position, is replayed from its start."""
        newest: dict[Key, int] = {
            record.key: position for position, record in enumerate(self.log[:compact_before])
        }
        self.log = [
            record
            for position, record in enumerate(self.log)
            if position >= compact_before
            or (newest[record.key] == position and (keep_tombstones or record.value is not None))
        ]
        self.shard = GroupShard(self.settings)
        for position, record in enumerate(self.log):
            decoded = decode_offsets_record(*encode_record(record))
            assert isinstance(decoded, CoordinatorRecord)
            assert decoded == record
            self.shard.replay(decoded, position=position, producer=None)
        self.shard.loaded(self.now_ms)
        self.topics_changed(None)

    def state(self) -> dict[str, dict[str, object]]:
        """The state, as replay makes its parts: without the soft one."""
        names = [name for name in ConsumerGroup.__slots__ if name != "reports"]
        return {
            group_id: {name: getattr(group, name) for name in names}
            for group_id, group in self.shard.consumer_groups.items()
        }


class Member:
    """A consumer that follows the protocol, and works on the partitions in `owned`."""

    def __init__(
        self,
        harness: ShardHarness,
        member_id: str,
        instance_id: str | None = None,
        **subscription: Any,
    ) -> None:
        self.harness = harness
        self.member_id = member_id
        self.instance_id = instance_id
        self.subscription = subscription or {"subscribed_names": ("a",)}
        self.epoch = JOIN_EPOCH
        self.owned: set[Pair] = set()
        self.assigned: set[Pair] = set()
        """Of the newest answer."""
        self.must_send = True
        """Whether the next heartbeat has `owned`: an assignment followed, or an answer lost."""
        self.has_followed = True
        self.reports: list[ConsumerHeartbeatRequest] = []
        """All that were made: copies of them may come late."""

    def request(self) -> ConsumerHeartbeatRequest:
        is_joining = self.epoch == JOIN_EPOCH
        is_report = self.must_send or is_joining
        request = ConsumerHeartbeatRequest(
            GROUP,
            self.member_id,
            self.epoch,
            instance_id=self.instance_id,
            owned=self.claimed() if self.must_send and not is_joining else None,
            sequence=self.next_sequence if is_report else 0,
            **(self.subscription if is_joining else {}),
        )
        if is_report:
            self.reports.append(request)
        return request

    @property
    def next_sequence(self) -> int:
        """The number of the next report."""
        return len(self.reports) + 1

    def claimed(self) -> Assignment:
        """Partitions the member has, or takes over next: none may go to another member yet."""
        return assignment_of(self.owned | self.assigned)

    def beat(self, *, is_lost: bool = False) -> None:
        """One heartbeat. A removed member gives up everything, and joins by its next one.

        A member that follows the protocol is never fenced, however many answers are lost.
        """
        try:
            response = self.harness.decide(self.request())
        except LogError as error:
            assert error.entry is UNKNOWN_MEMBER, error
            if not is_lost:
                self.forget()
            return
        if is_lost:
            self.must_send = True
            return
        assert isinstance(response, ConsumerHeartbeatResponse)
        self.must_send = False
        self.adopt(response)

    def adopt(self, response: ConsumerHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = set(pairs(response.assignment))
            self.has_followed = False

    def work(self) -> None:
        """Give up and take over partitions as the newest assignment says."""
        self.must_send = self.must_send or not self.has_followed
        self.has_followed = True
        self.owned = set(self.assigned)

    def forget(self) -> None:
        self.epoch = JOIN_EPOCH
        self.owned, self.assigned = set(), set()

    def leave(self, epoch: int) -> None:
        request = ConsumerHeartbeatRequest(
            GROUP, self.member_id, epoch, self.instance_id, sequence=self.next_sequence
        )
        self.reports.append(request)
        self.harness.decide(request)
        self.forget()

    def subscribe(self, **subscription: Any) -> None:
        """Change the subscription at the member's present epoch."""
        self.subscription = subscription
        request = ConsumerHeartbeatRequest(
            GROUP,
            self.member_id,
            self.epoch,
            instance_id=self.instance_id,
            owned=self.claimed(),
            sequence=self.next_sequence,
            **subscription,
        )
        self.reports.append(request)
        response = self.harness.decide(request)
        assert isinstance(response, ConsumerHeartbeatResponse)
        self.adopt(response)

    @property
    def may_commit(self) -> bool:
        group = self.harness.shard.consumer_groups.get(GROUP)
        if group is None or self.epoch <= 0:
            return False
        try:
            group.check_commit(self.member_id, self.epoch)
        except LogError:
            return False
        return True


def settle(members: Iterable[Member], rounds: int = 5) -> int:
    """Heartbeats without faults until nothing changes; the number of rounds it took."""
    members = list(members)
    for done in range(rounds):
        before = [(member.epoch, set(member.owned)) for member in members]
        for member in members:
            member.beat()
            member.work()
        if before == [(member.epoch, member.owned) for member in members]:
            return done
    raise AssertionError(f"not settled after {rounds} rounds")


def joined(harness: ShardHarness, *member_ids: str, **subscription: Any) -> list[Member]:
    """New members, settled."""
    members = [Member(harness, member_id, **subscription) for member_id in member_ids]
    settle(members)
    return members


def one_topic(count: int = 6, **settings: int) -> ShardHarness:
    return ShardHarness(image_of(a=count), **settings)
