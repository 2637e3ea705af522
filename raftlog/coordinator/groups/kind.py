"""The group coordinator is a kind of shard, with topic, record codec and held requests."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from raftlog.coordinator.groups.checks import REBALANCE_TIMEOUT_MS_MAX
from raftlog.coordinator.groups.classic.messages import Held, JoinGroup, SyncGroup
from raftlog.coordinator.groups.consumer_decisions import HEARTBEATS_PER_SESSION
from raftlog.coordinator.groups.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    DeleteGroupRequest,
    DescribeGroupRequest,
    Done,
    GroupRequest,
    GroupResponse,
    ListGroupsRequest,
)
from raftlog.coordinator.groups.offset_messages import CommitOffsets, FetchOffsets
from raftlog.coordinator.groups.settings import GroupSettings, GroupTimer
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.instances.messages import BeginRead, ReadPlan
from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision, Producer, Timers
from raftlog.coordinator.shard.messages import Messages
from raftlog.coordinator.shard.record_codec import (
    decode_offsets_record,
    encode_record,
    known_record,
)
from raftlog.coordinator.shard.shard import Kind, Moment, Shard
from raftlog.record.codec import Record
from raftlog.record.coordinators import OFFSETS_TOPIC
from raftlog.replication.leader.verification import VerificationGuard
from raftlog.replication.partition import Partition

NAME: Final = "group"
TOPIC: Final = OFFSETS_TOPIC
HELD_S_MAX: Final = REBALANCE_TIMEOUT_MS_MAX / 1000
"""Longest seconds to hold a classic join or sync, the longest rebalance timeout."""

GroupCoordinator: TypeAlias = Shard[GroupShard, GroupTimer]


class VerifyTransaction(Protocol):
    """Adds a partition to a producer's transaction: `VerifiedTransactions.verify`."""

    def __call__(
        self, found: Partition, transactional_id: str, producer: Producer, *, adds: bool
    ) -> Awaitable[VerificationGuard | None]:
        """Check only that the transaction has the partition unless `adds`. Raises LogError."""
        ...


MESSAGES: Final[Messages[GroupRequest, GroupResponse]] = Messages.of(
    NAME, GroupRequest, GroupResponse
)


class GroupKind(Kind[GroupShard, GroupTimer, GroupRequest, GroupResponse]):
    """The group coordinator, for all shards of a node."""

    name = NAME
    topic = TOPIC
    messages = MESSAGES

    def __init__(self, settings: GroupSettings, verify: VerifyTransaction) -> None:
        super().__init__()
        self._settings = settings
        self._verify = verify

    def create(self, changed: Callable[[Hashable], None]) -> GroupShard:
        """See `Kind`."""
        return GroupShard(self._settings, changed, self.counts)

    def timers(self, state: GroupShard) -> Timers[GroupTimer]:
        """See `Kind`."""
        return state.timers

    def loaded(self, state: GroupShard, moment: Moment) -> None:
        """See `Kind`."""
        state.loaded(moment.now_ms)

    def follow_settings(self, state: GroupShard, settings: Mapping[str, str]) -> None:
        """See `Kind`."""
        state.follow_settings(settings)

    def topics_changed(self, state: GroupShard, names: Collection[str], moment: Moment) -> None:
        """See `Kind`."""
        state.topics_changed(names, moment.now_ms)

    async def handle(self, shard: GroupCoordinator, request: GroupRequest) -> GroupResponse:
        """See `Kind`."""
        match request:
            case DescribeGroupRequest() | ListGroupsRequest() | FetchOffsets():
                return await shard.query(lambda state: state.read(request))
            case ConsumerHeartbeatRequest(max_wait_ms=max_wait_ms) if max_wait_ms > 0:
                return await _held(shard, request)
            case BeginRead(max_wait_ms=max_wait_ms) if max_wait_ms > 0:
                return await _begun(shard, request)
            case CommitOffsets(producer=Producer() as producer):
                return await self._commit_in_transaction(shard, request, producer)
            case DeleteGroupRequest():
                return await _delete(shard, request)
            case _:
                return await _execute(shard, request)

    async def _commit_in_transaction(
        self, shard: GroupCoordinator, request: CommitOffsets, producer: Producer
    ) -> GroupResponse:
        # Each commit is verified, not only the first (docs/decisions/transactions.md).
        verification = await self._verify(
            shard.partition, request.transactional_id, producer, adds=request.adds
        )
        response = await shard.execute_in_transaction(
            producer, verification, lambda state: _decide(shard, state, request)
        )
        assert not isinstance(response, Held), "commits are not held"
        return response

    def expire(self, state: GroupShard, key: GroupTimer, moment: Moment) -> Decision[object]:
        """See `Kind`."""
        decision = state.expire(key, moment.image, moment.now_ms, moment.time_ms, moment.expiry_ms)
        return Decision(None, decision.records)

    def refused(self, state: GroupShard, decision: Decision[object], moment: Moment) -> None:
        """See `Kind`."""
        state.refused(decision.records, moment.now_ms, moment.time_ms)

    def encode_record(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """See `Kind`."""
        return encode_record(record)

    def decode_record(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """See `Kind`."""
        return known_record(TOPIC, decode_offsets_record, key, value)

    def replay_usual(self, state: GroupShard, records: Sequence[Record], start: int) -> int:
        """See `Kind`."""
        return state.offsets.replay_usual(records, start)


async def _execute(shard: GroupCoordinator, request: GroupRequest) -> GroupResponse:
    """Decide, and wait for the commit of the records and for a held response."""
    tickets: list[int] = []

    def decide(state: GroupShard) -> Decision[GroupResponse | Held]:
        decision = _decide(shard, state, request)
        if isinstance(decision.response, Held):
            tickets.append(decision.response.ticket)
        return decision

    try:
        response = await shard.execute(decide)
        if not isinstance(response, Held):
            return response
        assert isinstance(request, JoinGroup | SyncGroup)
        ticket = response.ticket
        # The deadlines of the group end the wait, or the caller gives up.
        await shard.wait_until(
            (request.group_id,), lambda state: state.classic.is_answered(ticket), HELD_S_MAX
        )
        return await shard.execute(lambda state: Decision(state.classic.take(ticket)))
    finally:
        for ticket in tickets:
            shard.state.classic.forget(ticket)


def _decide(
    shard: GroupCoordinator, state: GroupShard, request: GroupRequest
) -> Decision[GroupResponse | Held]:
    moment = shard.moment()
    return state.decide(request, moment.image, moment.now_ms, moment.time_ms)


async def _delete(shard: GroupCoordinator, request: DeleteGroupRequest) -> GroupResponse:
    """Delete a group in bounded steps. No member joins it in between.

    After a failure some offsets may be gone. The group still exists and can be deleted again.
    """
    shard.state.begin_deletion(request.group)
    try:
        while True:
            done = await _execute(shard, request)
            if not isinstance(done, Done) or done.is_complete:
                return done
    finally:
        shard.state.end_deletion(request.group)


async def _held(shard: GroupCoordinator, request: ConsumerHeartbeatRequest) -> GroupResponse:
    """Respond to a heartbeat at news or at the deadline, and watch its connection.

    The end of the connection cancels the request, also if another node forwards it.
    """
    received_ms = shard.moment().now_ms
    try:
        return await _held_open(shard, request)
    except CancelledError:
        # Or the time of the call is up. The member has sent another heartbeat by then, or is gone.
        shard.state.disconnected(request, received_ms, shard.moment().now_ms)
        shard.timers_changed()
        raise


async def _held_open(shard: GroupCoordinator, request: ConsumerHeartbeatRequest) -> GroupResponse:
    """Decide once to check the epoch and restart the session, and again for the news.

    In between, the end of the connection ends the wait. So does another heartbeat of the member,
    with the first response.
    """
    response = await _execute(shard, request)
    assert isinstance(response, ConsumerHeartbeatResponse)
    has_news = response.assignment is not None or response.member_epoch != request.member_epoch
    if has_news or request.member_epoch <= JOIN_EPOCH:
        return response
    group, member = request.group, request.member_id
    wait_ms = min(request.max_wait_ms, response.session_timeout_ms // HEARTBEATS_PER_SESSION)
    number = shard.state.hold(group, member)
    try:
        await shard.wait_until(
            (group,),
            lambda state: state.has_news(group, member) or not state.is_held(group, member, number),
            wait_ms / 1000,
        )
        is_newest = shard.state.is_held(group, member, number) and shard.state.is_newest(request)
        return await _execute(shard, request) if is_newest else response
    finally:
        shard.state.release(group, member, number)


async def _begun(shard: GroupCoordinator, request: BeginRead) -> GroupResponse:
    """Start the read of an instance once it has a partition, or at the deadline."""
    plan = await _execute(shard, request)
    assert isinstance(plan, ReadPlan)
    group, instance = request.group, request.instance
    if shard.state.instances.has_partitions(group, instance):
        return plan
    if not await shard.wait_until(
        (group,),
        lambda state: state.instances.has_partitions(group, instance),
        request.max_wait_ms / 1000,
    ):
        return plan
    return await _execute(shard, replace(request, is_first=False))
