"""Offsets of a group in transactions, over a real log: docs/decisions/transactions.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog.coordinator.groups.kind import GroupCoordinator, GroupKind
from raftlog.coordinator.groups.messages import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    DeleteGroupRequest,
    FetchedOffsets,
    OffsetOutcomes,
)
from raftlog.coordinator.groups.offset_messages import (
    CommitOffsets,
    Committer,
    FetchOffsets,
    OffsetToCommit,
)
from raftlog.coordinator.groups.settings import GroupSettings
from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.shard.load import load_shard
from raftlog.coordinator.shard.shard import Shard
from raftlog.coordinator.transactions.messages import TopicPartition
from raftlog.coordinator.transactions.verification import VerifiedTransactions
from raftlog.peer.tasks import TaskGroup
from raftlog.record.control import Marker
from raftlog.record.errors import (
    COORDINATOR_FENCED,
    NO_CONTROLLER,
    NO_LEADER,
    PRODUCER_FENCED,
    QUOTA_EXCEEDED,
    STALE_MEMBER_EPOCH,
    TRANSACTION_NOT_VERIFIED,
    UNKNOWN_MEMBER,
    UNSTABLE_OFFSET_COMMIT,
    LogError,
)
from raftlog.record.types import PartitionId, ProducerEpoch, ProducerId
from raftlog.replication.leader.verification import VerificationGuard
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.time import SystemClock
from tests.controller.clock import settle
from tests.coordinator.calls import carry_out
from tests.coordinator.scripted_coordinator import ScriptedCoordinator
from tests.http.fakes import FakeMetadata
from tests.replication.pair import HandFeed, Node, ack, catch_up, nodes, row, send
from tests.waiting import until

GROUP = "g"
NONE = -1
PENDING = -2
SIMPLE = Committer()


def producer(producer_id: int = 4, epoch: int = 0) -> Producer:
    return Producer(ProducerId(producer_id), ProducerEpoch(epoch))


class GroupLeader:
    """The leader of a group's partition, with its shard, and a follower that the test drives."""

    def __init__(self, node: Node, follower: Node, metadata: FakeMetadata) -> None:
        self.node = node
        self.follower = follower
        self.feed: HandFeed | None = None
        self.metadata = metadata
        self.coordinator = ScriptedCoordinator()
        self.fatal: list[str] = []
        self.tasks = TaskGroup(self.fatal.append)
        coordinators: Any = self.coordinator
        image: Any = metadata
        self.transactions = VerifiedTransactions(coordinators, image, SystemClock(), self.tasks)
        self.kind = GroupKind(GroupSettings(), self.verify)
        self.shard: GroupCoordinator

    @classmethod
    async def start(cls, *, has_follower: bool = False) -> GroupLeader:
        metadata = FakeMetadata(brokers=1)
        await metadata.create_topic("__transaction_state", partitions=4)
        await metadata.create_topic("six", partitions=6)
        node, follower = nodes(1, 2)
        members = (1, 2) if has_follower else (1,)
        for each in (node, follower):
            await each.open(row(1, 1, isr=members, replicas=members))
        one = cls(node, follower, metadata)
        if has_follower:
            one.feed = await catch_up(node, follower)
        await one.load()
        return one

    async def load(self) -> None:
        role = self.node.partition.require_leader()
        self.shard = Shard(
            self.kind,
            self.node.partition,
            role,
            clock=SystemClock(),
            cluster_clock=ClusterClock(SystemClock()),
            image=lambda: self.metadata.image,
            tasks=self.tasks,
        )
        role.end_listeners.append(self.shard.end)
        self.coordinator.shard = self.shard
        await load_shard(self.shard, SystemClock().monotonic)

    async def replicate(self) -> None:
        """Bring the follower to the log's end: what is written so far is committed."""
        assert self.feed is not None
        await send(self.node, self.follower)
        ack(self.node, self.follower, self.feed)

    async def verify(
        self, found: Any, transactional_id: str, one: Producer, *, adds: bool
    ) -> VerificationGuard | None:
        return await self.transactions.verify(found, transactional_id, one, adds=adds)

    async def request(self, request: Any) -> Any:
        return await carry_out(self.shard, request)

    def commit(
        self,
        offset: int,
        one: Producer | None = None,
        *,
        partition: int = 0,
        committer: Committer = SIMPLE,
    ) -> asyncio.Task[OffsetOutcomes]:
        """Commit an offset of `six`, in the transaction of producer 4, epoch 0, or of another."""
        offsets = (OffsetToCommit("six", partition, offset),)
        return asyncio.ensure_future(
            self.request(
                CommitOffsets(
                    GROUP, offsets, committer, one or producer(), transactional_id="reader"
                )
            )
        )

    async def offset(self, partition: int = 0) -> int:
        """The committed offset; NONE, or PENDING."""
        found = await self.request(FetchOffsets(GROUP, None, require_stable=True))
        assert isinstance(found, FetchedOffsets)
        for each in found.offsets:
            if each.partition == partition:
                is_pending = each.error_code == UNSTABLE_OFFSET_COMMIT.code
                return PENDING if is_pending else each.offset
        return NONE

    def end(
        self,
        one: Producer | None = None,
        *,
        is_commit: bool = True,
        is_epoch_next: bool = True,
        coordinator_epoch: int = 1,
        coordinator: PartitionId | None = None,
        timeout_s: float = 5.0,
    ) -> asyncio.Task[None]:
        """The marker of a decided transaction: of the epoch after its batches', by default."""
        producer_id, epoch = one or producer()
        return asyncio.ensure_future(
            self.transactions.write_marker(
                self.node.partition,
                producer_id,
                ProducerEpoch(epoch + is_epoch_next),
                Marker(is_commit, coordinator_epoch, is_epoch_next, coordinator),
                timeout_s=timeout_s,
            )
        )

    async def join(self, member: str) -> int:
        answer = await self.request(
            ConsumerHeartbeatRequest(
                GROUP,
                member,
                0,
                subscribed_names=("six",),
                session_timeout_ms=9_000,
                owned=(),
            )
        )
        assert isinstance(answer, ConsumerHeartbeatResponse)
        return answer.member_epoch


@pytest.fixture
async def leader() -> AsyncIterator[GroupLeader]:
    one = await GroupLeader.start()
    yield one
    await one.tasks.close()
    assert not one.fatal
    assert one.shard.ended is None


@pytest.fixture
async def replicated() -> AsyncIterator[GroupLeader]:
    one = await GroupLeader.start(has_follower=True)
    yield one
    await one.tasks.close()
    assert not one.fatal
    assert one.shard.ended is None


async def refused(commit: asyncio.Task[OffsetOutcomes]) -> LogError:
    with pytest.raises(LogError) as raised:
        await commit
    return raised.value


@pytest.mark.parametrize("is_commit", [True, False])
async def test_offsets_count_with_the_marker_of_a_commit_only(
    leader: GroupLeader, *, is_commit: bool
) -> None:
    await leader.commit(7)
    assert await leader.offset() == PENDING
    await leader.end(is_commit=is_commit)
    assert await leader.offset() == (7 if is_commit else NONE)


async def test_the_first_commit_adds_the_partition_and_later_ones_ask_again(
    leader: GroupLeader,
) -> None:
    await leader.commit(7)
    await leader.commit(8)
    assert len(leader.coordinator.asked) == 2
    for asked in leader.coordinator.asked:
        (verification,) = asked.verifications
        assert verification.transactional_id == "reader"
        assert verification.producer == producer()
        assert verification.partitions == (TopicPartition("t", 0),)
        assert verification.is_addition
    await leader.end()
    assert await leader.offset() == 8


async def test_a_marker_that_waits_longer_than_its_asker_ends_no_shard(
    replicated: GroupLeader,
) -> None:
    written = replicated.end(timeout_s=0.01)
    await asyncio.wait((written,), timeout=0.1)
    assert replicated.shard.ended is None
    await replicated.replicate()
    await written


@pytest.mark.parametrize("epoch", [5, 1_000_000])
async def test_a_marker_of_no_coordinator_ends_no_shard(leader: GroupLeader, epoch: int) -> None:
    leader.node.coordinators = {None: 4}
    await leader.commit(7)
    with pytest.raises(LogError) as raised:
        await leader.end(coordinator_epoch=epoch)
    assert raised.value.entry is COORDINATOR_FENCED
    leader.node.nothing_learned = LogError(NO_CONTROLLER)
    with pytest.raises(LogError) as raised:
        await leader.end(coordinator_epoch=epoch)
    assert raised.value.entry is NO_LEADER
    assert leader.shard.ended is None
    assert await leader.offset() == PENDING
    await leader.end(coordinator_epoch=4)
    assert await leader.offset() == 7


async def test_a_coordinator_that_is_replaced_during_its_write_ends_no_shard(
    replicated: GroupLeader,
) -> None:
    """Another release has stored an epoch that no coordinator had."""
    leader, coordinator = replicated, PartitionId(3)
    stored = leader.end(coordinator_epoch=1_000_000)
    await until(lambda: leader.node.partition.log_end_offset == 1)
    await leader.replicate()
    await stored
    leader.node.coordinators = {coordinator: 4}
    role, judged = leader.shard.role, leader.shard.role.needs_marker

    def replaced(*arguments: Any, **named: Any) -> bool:
        is_needed = judged(*arguments, **named)
        leader.node.coordinators = {coordinator: 5}
        return is_needed

    role.needs_marker = replaced  # type: ignore[method-assign]
    present = leader.end(coordinator_epoch=4, coordinator=coordinator)
    await until(lambda: leader.node.partition.log_end_offset == 2)
    late = leader.end(coordinator_epoch=4, coordinator=coordinator)
    newer = leader.end(coordinator_epoch=5, coordinator=coordinator)
    await leader.replicate()
    await present
    await late
    await until(lambda: leader.node.partition.log_end_offset == 3)
    await leader.replicate()
    await newer
    with pytest.raises(LogError) as raised:
        await leader.end(coordinator_epoch=4, coordinator=coordinator)
    assert raised.value.entry is COORDINATOR_FENCED


async def test_a_late_commit_between_decision_and_marker_is_refused(leader: GroupLeader) -> None:
    await leader.commit(7)
    leader.coordinator.outcomes.append(LogError(PRODUCER_FENCED))
    assert (await refused(leader.commit(5))).entry is PRODUCER_FENCED
    await leader.end()
    assert await leader.offset() == 7


async def test_a_marker_between_question_and_answer_refuses_the_commit(
    leader: GroupLeader,
) -> None:
    leader.coordinator.answers.clear()
    late = leader.commit(7)
    await until(lambda: leader.coordinator.asked)
    await leader.end(is_commit=False)
    leader.coordinator.answers.set()
    assert (await refused(late)).entry is PRODUCER_FENCED
    assert await leader.offset() == NONE
    # The marker alone.
    assert leader.node.partition.log_end_offset == 1


async def test_a_marker_of_the_same_epoch_between_question_and_answer_refuses_the_commit(
    leader: GroupLeader,
) -> None:
    """Version 1: the second marker looks like a repetition of the first, and is not written."""
    await leader.end(is_epoch_next=False)
    leader.coordinator.answers.clear()
    late = leader.commit(7)
    await until(lambda: leader.coordinator.asked)
    await leader.end(is_epoch_next=False)
    leader.coordinator.answers.set()
    assert (await refused(late)).entry is TRANSACTION_NOT_VERIFIED
    assert await leader.offset() == NONE


async def test_a_later_commit_of_the_same_epoch_does_not_open_what_a_marker_has_ended(
    leader: GroupLeader,
) -> None:
    """Version 1: the epoch goes on, so nothing else fences the commit."""
    await leader.commit(7)
    leader.coordinator.answers.clear()
    late = leader.commit(5)
    await until(lambda: len(leader.coordinator.asked) == 2)
    await leader.end(is_epoch_next=False)
    leader.coordinator.answers.set()
    assert (await refused(late)).entry is TRANSACTION_NOT_VERIFIED
    assert await leader.offset() == 7


async def test_a_commit_waits_for_a_marker_that_is_not_committed_yet(
    replicated: GroupLeader,
) -> None:
    leader = replicated
    first = leader.commit(7)
    await until(lambda: leader.node.partition.log_end_offset == 1)
    await leader.replicate()
    await first
    marker = leader.end()
    await until(lambda: leader.node.partition.log_end_offset == 2)
    late, following = leader.commit(5), leader.commit(9, producer(epoch=1))
    await settle()
    assert leader.node.partition.log_end_offset == 2
    await leader.replicate()
    await marker
    assert (await refused(late)).entry is PRODUCER_FENCED
    await until(lambda: leader.node.partition.log_end_offset == 3)
    await leader.replicate()
    await following
    query = asyncio.ensure_future(leader.offset())
    assert await query == PENDING


async def test_a_commit_after_the_awaited_marker_of_the_transaction_before_is_written(
    leader: GroupLeader,
) -> None:
    await leader.commit(7)
    following = leader.commit(9, producer(epoch=1))
    await settle()
    assert len(leader.coordinator.asked) == 1
    await leader.end()
    await following
    assert len(leader.coordinator.asked) == 2
    await leader.end(producer(epoch=1))
    assert await leader.offset() == 9


async def test_commits_of_one_producer_at_the_same_time_are_all_written(
    leader: GroupLeader,
) -> None:
    await asyncio.gather(*(leader.commit(7, partition=number) for number in range(6)))
    await leader.end()
    assert [await leader.offset(number) for number in range(6)] == [7] * 6


async def test_commits_of_many_producers_share_questions(leader: GroupLeader) -> None:
    await asyncio.gather(
        *(leader.commit(one, producer(one), partition=one % 6) for one in range(4, 20))
    )
    assert len(leader.coordinator.asked) == 1
    for one in range(4, 20):
        await leader.end(producer(one))
    assert await leader.offset(1) == 19


async def test_without_an_answer_nothing_is_written(leader: GroupLeader) -> None:
    leader.coordinator.error = LogError(NO_LEADER, "No leader.")
    error = await refused(leader.commit(7))
    assert error.entry is TRANSACTION_NOT_VERIFIED
    assert error.entry.retriable
    assert leader.node.partition.log_end_offset == 0


async def test_an_epoch_older_than_the_logs_is_refused(leader: GroupLeader) -> None:
    await leader.commit(7, producer(epoch=3))
    assert (await refused(leader.commit(5, producer(epoch=2)))).entry is PRODUCER_FENCED


async def test_a_stale_or_unknown_member_is_refused_and_nothing_is_written(
    leader: GroupLeader,
) -> None:
    epoch = await leader.join("m")
    end = leader.node.partition.log_end_offset
    for committer, entry in (
        (Committer("m", epoch + 1), STALE_MEMBER_EPOCH),
        (Committer("other", epoch), UNKNOWN_MEMBER),
        (Committer(), UNKNOWN_MEMBER),
    ):
        assert (await refused(leader.commit(7, committer=committer))).entry is entry
    assert leader.node.partition.log_end_offset == end
    await leader.commit(8, committer=Committer("m", epoch))
    await leader.end()
    assert await leader.offset() == 8


async def test_more_new_producers_than_a_log_admits_are_refused_and_the_shard_goes_on(
    leader: GroupLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.storage.producers.state.NEW_PRODUCERS_MAX", 3)
    monkeypatch.setattr("raftlog.storage.producers.state.NEW_PRODUCERS_PER_S", 0)
    outcomes = await asyncio.gather(
        *(leader.commit(7, producer(one), partition=one - 4) for one in range(4, 9)),
        return_exceptions=True,
    )
    entries = [one.entry for one in outcomes if isinstance(one, LogError)]
    assert entries == [QUOTA_EXCEEDED] * 2
    # No marker is written where there is no room: nothing is open.
    await leader.end(producer(8))
    assert leader.node.partition.log_end_offset == 3
    assert leader.shard.ended is None


async def test_pending_offsets_survive_a_reload_and_end_with_the_marker(
    leader: GroupLeader,
) -> None:
    await leader.commit(7)
    await leader.commit(8, producer(5), partition=1)
    leader.shard.end(LogError(NO_LEADER))
    await leader.load()
    assert (await leader.offset(0), await leader.offset(1)) == (PENDING, PENDING)
    await leader.commit(9)
    await leader.end()
    await leader.end(producer(5), is_commit=False)
    assert (await leader.offset(0), await leader.offset(1)) == (9, NONE)
    leader.shard.end(LogError(NO_LEADER))
    await leader.load()
    assert (await leader.offset(0), await leader.offset(1)) == (9, NONE)


async def test_a_deleted_group_gets_no_offsets_of_a_transaction_begun_before(
    leader: GroupLeader,
) -> None:
    await leader.commit(7)
    await leader.request(DeleteGroupRequest(GROUP))
    await leader.end()
    assert await leader.offset() == NONE
