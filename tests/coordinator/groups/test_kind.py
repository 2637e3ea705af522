"""The group coordinator over a log: held heartbeats, what a load refuses, what a reload keeps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog.coordinator.groups.kind import (
    TOPIC,
    GroupCoordinator,
    GroupKind,
)
from raftlog.coordinator.groups.messages import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    DeleteGroupRequest,
    DescribeGroupRequest,
    Done,
    FetchedOffsets,
    MemberReport,
)
from raftlog.coordinator.groups.offset_messages import CommitOffsets, FetchOffsets, OffsetToCommit
from raftlog.coordinator.groups.settings import GroupSettings
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.shard.load import load_shard
from raftlog.coordinator.shard.shard import Shard
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import FENCED_MEMBER_EPOCH, UNKNOWN_GROUP, UNSUPPORTED_FORMAT, LogError
from raftlog.world.cluster_clock import ClusterClock
from tests.broker.data_fakes import DataNode
from tests.controller.clock import SteppedClock, settle
from tests.coordinator.calls import carry_out
from tests.coordinator.group_harness import no_transactions
from tests.coordinator.images import put_topic

KIND = GroupKind(GroupSettings(), no_transactions)
SESSION_MS = 9_000
HOLD_MS = 3_000
HELD_S = 2.0
"""Less: an answer within it did not wait for the end of the hold."""


class Harness:
    """The partition `__consumer_offsets-0`, led by this node, and topic `six`."""

    def __init__(self, node: DataNode) -> None:
        self.node = node
        self.clock = SteppedClock()
        self.fatal: list[str] = []
        self.tasks = TaskGroup(self.fatal.append)
        self.partition = node.replicas.here(TOPIC, 0)

    async def load(self) -> GroupCoordinator:
        role = self.partition.require_leader()
        shard: GroupCoordinator = Shard(
            KIND,
            self.partition,
            role,
            clock=self.clock,
            cluster_clock=ClusterClock(self.clock),
            image=lambda: self.node.metadata.image,
            tasks=self.tasks,
        )
        await load_shard(shard, self.clock.monotonic)
        self.tasks.spawn(shard.run(), "shard")
        return shard


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    node = DataNode()
    await node.metadata.create_topic(TOPIC, partitions=1)
    await node.metadata.create_topic("six", partitions=6)
    one = Harness(node)
    yield one
    await one.tasks.close()
    assert not one.fatal


async def beat(
    shard: GroupCoordinator, member: str, epoch: int, **fields: Any
) -> ConsumerHeartbeatResponse:
    request = ConsumerHeartbeatRequest("g", member, epoch, **fields)
    answer = await carry_out(shard, request)
    assert isinstance(answer, ConsumerHeartbeatResponse)
    return answer


async def join(shard: GroupCoordinator, member: str) -> ConsumerHeartbeatResponse:
    return await beat(
        shard, member, 0, subscribed_names=("six",), session_timeout_ms=SESSION_MS, owned=()
    )


def count(answer: ConsumerHeartbeatResponse) -> int:
    assert answer.assignment is not None
    return sum(len(topic.partitions) for topic in answer.assignment)


async def test_a_held_heartbeat_is_answered_when_the_member_has_to_give_something_up(
    harness: Harness,
) -> None:
    shard = await harness.load()
    joined = await join(shard, "a")
    assert count(joined) == 6
    held = asyncio.ensure_future(beat(shard, "a", joined.member_epoch, max_wait_ms=HOLD_MS))
    await settle()
    assert not held.done()
    assert count(await join(shard, "b")) == 0
    assert count(await asyncio.wait_for(held, HELD_S)) == 3


async def test_a_held_heartbeat_without_news_ends_with_its_time(harness: Harness) -> None:
    shard = await harness.load()
    joined = await join(shard, "a")
    begun = asyncio.get_running_loop().time()
    answer = await beat(shard, "a", joined.member_epoch, max_wait_ms=200)
    assert asyncio.get_running_loop().time() - begun >= 0.2 * 15 / 16
    assert (answer.assignment, answer.session_timeout_ms) == (None, SESSION_MS)


async def test_another_heartbeat_of_the_member_ends_the_held_one(harness: Harness) -> None:
    shard = await harness.load()
    epoch = (await join(shard, "a")).member_epoch
    first = asyncio.ensure_future(beat(shard, "a", epoch, max_wait_ms=HOLD_MS))
    await settle()
    second = asyncio.ensure_future(beat(shard, "a", epoch, max_wait_ms=HOLD_MS))
    await asyncio.wait_for(first, HELD_S)
    assert not second.done()
    await join(shard, "b")
    assert count(await asyncio.wait_for(second, HELD_S)) == 3


async def test_a_held_heartbeat_wakes_no_other_member(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await harness.load()
    joined = [
        await beat(shard, member, 0, subscribed_names=("none",), owned=()) for member in "abc"
    ]
    epochs = {
        one.member_id: (await beat(shard, one.member_id, one.member_epoch)).member_epoch
        for one in joined
    }
    looks: Counter[str] = Counter()
    has_news = GroupShard.has_news

    def counted(state: GroupShard, group: str, member: str) -> bool:
        looks[member] += 1
        return has_news(state, group, member)

    monkeypatch.setattr(GroupShard, "has_news", counted)
    held = []
    for member, epoch in epochs.items():
        held.append(asyncio.ensure_future(beat(shard, member, epoch, max_wait_ms=HOLD_MS)))
        await settle()
    assert not any(one.done() for one in held)
    assert looks == dict.fromkeys("abc", 1)
    for one in held:
        one.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_a_heartbeat_of_an_old_epoch_is_refused_and_not_held(harness: Harness) -> None:
    shard = await harness.load()
    epoch = (await join(shard, "a")).member_epoch
    with pytest.raises(LogError) as refused:
        await asyncio.wait_for(beat(shard, "a", epoch + 1, max_wait_ms=HOLD_MS), 1)
    assert refused.value.entry is FENCED_MEMBER_EPOCH


async def test_a_held_heartbeat_does_not_outlive_its_session(harness: Harness) -> None:
    shard = await harness.load()
    epoch = (await join(shard, "a")).member_epoch
    held = asyncio.ensure_future(beat(shard, "a", epoch, max_wait_ms=HOLD_MS))
    await settle()
    held.cancel()
    await harness.clock.advance(SESSION_MS / 1000 + 1)
    assert not (await describe(shard)).members
    assert not shard.state._held


REPORT = MemberReport(7, disconnect_timeout_ms=300)


async def lead(shard: GroupCoordinator) -> int:
    """Have member `a` join with reports; its epoch."""
    joined = await beat(
        shard,
        "a",
        0,
        subscribed_names=("six",),
        assignor="primary",
        session_timeout_ms=SESSION_MS,
        owned=(),
        report=REPORT,
    )
    return joined.member_epoch


async def test_the_end_of_the_connection_of_a_held_heartbeat_shortens_the_session(
    harness: Harness,
) -> None:
    shard = await harness.load()
    epoch = await lead(shard)
    held = asyncio.ensure_future(beat(shard, "a", epoch, max_wait_ms=HOLD_MS, report=REPORT))
    await settle()
    await harness.clock.advance(0.1)
    held.cancel()
    group = shard.state.consumer_groups.get("g")
    assert group is not None
    await harness.clock.advance(0.195)
    assert group.members
    await harness.clock.advance(0.01)
    assert not group.members


@pytest.mark.parametrize("max_wait_ms", [0, HOLD_MS])
async def test_a_newer_heartbeat_outlives_the_connection_of_the_held_one(
    harness: Harness, max_wait_ms: int
) -> None:
    shard = await harness.load()
    epoch = await lead(shard)
    held = asyncio.ensure_future(beat(shard, "a", epoch, max_wait_ms=HOLD_MS, report=REPORT))
    await settle()
    newer = asyncio.ensure_future(
        beat(shard, "a", epoch, max_wait_ms=max_wait_ms, report=MemberReport(8))
    )
    await settle()
    held.cancel()
    await harness.clock.advance(SESSION_MS / 1000 - 0.1)
    (member,) = (await describe(shard)).members
    assert member.report == MemberReport(8)
    newer.cancel()
    await asyncio.gather(newer, return_exceptions=True)


async def test_a_held_heartbeat_that_ends_late_does_not_bring_its_old_report_back(
    harness: Harness,
) -> None:
    shard = await harness.load()
    epoch = await lead(shard)
    held = asyncio.ensure_future(beat(shard, "a", epoch, max_wait_ms=200, report=REPORT))
    await settle()
    await beat(shard, "a", epoch, report=MemberReport(8))
    assert (await held).assignment is None
    (member,) = (await describe(shard)).members
    assert member.report == MemberReport(8)


async def test_a_held_heartbeat_of_the_next_primary_wakes_when_the_partitions_are_free(
    harness: Harness,
) -> None:
    shard = await harness.load()
    epoch = await lead(shard)
    joined = await beat(
        shard,
        "b",
        0,
        instance_id="i",
        subscribed_names=("six",),
        assignor="primary",
        session_timeout_ms=SESSION_MS,
        owned=(),
        report=REPORT,
    )
    assert count(joined) == 0
    epoch = (await beat(shard, "a", epoch, report=REPORT)).member_epoch
    held = [
        asyncio.ensure_future(beat(shard, member, at, max_wait_ms=HOLD_MS, report=REPORT))
        for member, at in (("a", epoch), ("b", joined.member_epoch))
    ]
    await settle()
    assert not any(one.done() for one in held)
    left = await beat(shard, "a", epoch, owned=(), sequence=5, report=REPORT, hand_over_to="i")
    assert count(left) == 0
    await beat(shard, "a", left.member_epoch, owned=(), sequence=6, report=REPORT)
    assert count(await asyncio.wait_for(held[1], HELD_S)) == 6
    held[0].cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def describe(shard: GroupCoordinator) -> Any:
    return await carry_out(shard, DescribeGroupRequest("g"))


async def test_members_and_offsets_are_in_the_log(harness: Harness) -> None:
    shard = await harness.load()
    await carry_out(shard, CommitOffsets("g", (OffsetToCommit("six", 1, 7),)))
    await join(shard, "a")
    before = await describe(shard)
    shard.end(LogError(UNKNOWN_GROUP))
    shard = await harness.load()
    assert await describe(shard) == before
    found = await carry_out(shard, FetchOffsets("g", None))
    assert isinstance(found, FetchedOffsets)
    assert [(one.partition, one.offset) for one in found.offsets] == [(1, 7)]


async def test_new_partitions_are_news(harness: Harness) -> None:
    shard = await harness.load()
    epoch = (await join(shard, "a")).member_epoch
    held = asyncio.ensure_future(beat(shard, "a", epoch, max_wait_ms=HOLD_MS))
    await settle()
    image = harness.node.metadata.image
    put_topic(image, "six", 8, image.topics_by_name["six"].topic_id)
    shard.topics_changed({"six"})
    await harness.clock.advance(1)
    assert count(await asyncio.wait_for(held, HELD_S)) == 8


async def test_a_group_is_deleted_in_all_its_steps(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.coordinator.groups.shard.DELETED_OFFSETS_MAX", 2)
    shard = await harness.load()
    offsets = tuple(OffsetToCommit("six", number, 7) for number in range(5))
    await carry_out(shard, CommitOffsets("g", offsets))
    assert await carry_out(shard, DeleteGroupRequest("g")) == Done()
    with pytest.raises(LogError) as refused:
        await describe(shard)
    assert refused.value.entry is UNKNOWN_GROUP


def test_records_that_this_release_does_not_know_are_refused() -> None:
    with pytest.raises(LogError) as refused:
        KIND.decode_record(b"\0\x63newer", b"\0\0")
    assert refused.value.entry is UNSUPPORTED_FORMAT
