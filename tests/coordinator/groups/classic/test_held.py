"""Classic groups over a log: held joins and syncs, what ends them, deletion in steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from raftlog.coordinator.groups.classic.messages import (
    ClassicHeartbeat,
    DescribedGroup,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    MemberIdRequired,
    Protocol,
    Synced,
    SyncGroup,
)
from raftlog.coordinator.groups.kind import (
    TOPIC,
    GroupCoordinator,
)
from raftlog.coordinator.groups.messages import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    Done,
)
from raftlog.coordinator.groups.offset_messages import CommitOffsets, Committer, OffsetToCommit
from raftlog.record.errors import (
    COORDINATOR_LOADING,
    GROUP_NOT_EMPTY,
    NOT_COORDINATOR,
    RECORD_TOO_LARGE,
    STORAGE_FAILED,
    UNKNOWN_MEMBER,
    LogError,
)
from tests.broker.data_fakes import DataNode
from tests.controller.clock import settle
from tests.coordinator.calls import carry_out
from tests.coordinator.groups.test_kind import Harness

SESSION_MS = 9_000
DELAY_S = 0.31
"""The initial delay, and some."""
ANSWER_S = 2.0


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    node = DataNode()
    await node.metadata.create_topic(TOPIC, partitions=1)
    one = Harness(node)
    yield one
    await one.tasks.close()
    assert not one.fatal


def join_request(name: str, **fields: Any) -> JoinGroup:
    request = JoinGroup(
        "g",
        "consumer",
        (Protocol("range", b"metadata"),),
        SESSION_MS,
        SESSION_MS,
        new_member_id=name,
        requires_member_id=False,
    )
    return replace(request, **fields)


async def generation(harness: Harness, shard: GroupCoordinator, *names: str) -> list[Joined]:
    """New members of an empty group, the leader first."""
    held = [asyncio.ensure_future(carry_out(shard, join_request(name))) for name in names]
    await settle()
    assert not any(one.done() for one in held)
    await harness.clock.advance(DELAY_S)
    await harness.clock.advance(DELAY_S)
    joined = []
    for one in held:
        answer = await asyncio.wait_for(one, ANSWER_S)
        assert isinstance(answer, Joined)
        joined.append(answer)
    return joined


def sync_request(joined: Joined, **parts: bytes) -> SyncGroup:
    return SyncGroup(
        "g",
        joined.member_id,
        joined.generation,
        assignments=tuple(MemberAssignment(*part) for part in parts.items()),
    )


async def stable(harness: Harness, shard: GroupCoordinator) -> list[Joined]:
    """Leader `a` and `b` with their parts."""
    leader, follower = await generation(harness, shard, "a", "b")
    waiting = asyncio.ensure_future(carry_out(shard, sync_request(follower)))
    await settle()
    assert not waiting.done()
    answer = await carry_out(shard, sync_request(leader, a=b"A", b=b"B"))
    assert answer == Synced("consumer", "range", b"A")
    assert await asyncio.wait_for(waiting, ANSWER_S) == Synced("consumer", "range", b"B")
    assert not shard.state.classic._responses
    return [leader, follower]


async def refusal(call: Any) -> object:
    with pytest.raises(LogError) as refused:
        await asyncio.wait_for(call, ANSWER_S)
    return refused.value.entry


async def test_joins_and_syncs_are_held_until_the_group_has_an_answer(harness: Harness) -> None:
    shard = await harness.load()
    leader, follower = await stable(harness, shard)
    assert {member.member_id for member in leader.members} == {"a", "b"}
    assert not follower.members
    assert await carry_out(shard, ClassicHeartbeat("g", "b", 1)) == Done()


async def test_an_id_is_handed_out_first(harness: Harness) -> None:
    shard = await harness.load()
    answer = await carry_out(shard, join_request("a", requires_member_id=True))
    assert answer == MemberIdRequired("a")


async def test_no_member_hears_of_an_assignment_that_is_not_committed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await harness.load()
    leader, follower = await generation(harness, shard, "a", "b")
    waiting = asyncio.ensure_future(carry_out(shard, sync_request(follower)))
    await settle()

    async def fails(*_arguments: Any, **_named: Any) -> None:
        raise LogError(STORAGE_FAILED, "lost")

    monkeypatch.setattr(harness.partition.log, "append", fails)
    assert await refusal(carry_out(shard, sync_request(leader, a=b"A", b=b"B"))) is NOT_COORDINATOR
    assert await refusal(waiting) is NOT_COORDINATOR


async def test_a_stable_generation_is_in_the_log(harness: Harness) -> None:
    shard = await harness.load()
    await stable(harness, shard)
    before = await carry_out(shard, DescribeGroupRequest("g"))
    assert isinstance(before, DescribedGroup)
    assert [member.assignment for member in before.members] == [b"A", b"B"]
    shard.end(LogError(NOT_COORDINATOR))
    shard = await harness.load()
    assert await carry_out(shard, DescribeGroupRequest("g")) == before
    offsets = (OffsetToCommit("six", 0, 7),)
    await carry_out(shard, CommitOffsets("g", offsets, Committer("a", 1)))
    await harness.clock.advance(SESSION_MS / 1000 + 1)
    assert await refusal(carry_out(shard, ClassicHeartbeat("g", "a", 1))) is UNKNOWN_MEMBER


async def test_a_held_request_whose_client_went_away_leaves_nothing_behind(
    harness: Harness,
) -> None:
    shard = await harness.load()
    held = asyncio.ensure_future(carry_out(shard, join_request("a")))
    await settle()
    held.cancel()
    await settle()
    await harness.clock.advance(DELAY_S)
    assert not shard.state.classic._responses
    # It is a member until its session ends.
    await harness.clock.advance(2 * SESSION_MS / 1000 + 1)
    described = await carry_out(shard, DescribeGroupRequest("g"))
    assert isinstance(described, DescribedGroup)
    assert not described.members


async def test_a_generation_too_large_for_a_record_ends_with_an_error() -> None:
    """`max.message.bytes` is below the group's own bound."""
    node = DataNode()
    configs = {"max.message.bytes": "100000"}
    await node.metadata.create_topic(TOPIC, partitions=1, configs=configs)
    harness = Harness(node)
    shard = await harness.load()
    leader, follower = await generation(harness, shard, "a", "b")
    waiting = asyncio.ensure_future(carry_out(shard, sync_request(follower)))
    await settle()
    answer = carry_out(shard, sync_request(leader, a=bytes(100_000)))
    assert await refusal(answer) is RECORD_TOO_LARGE
    assert await refusal(waiting) is RECORD_TOO_LARGE
    assert shard.ended is None
    assert await refusal(carry_out(shard, ClassicHeartbeat("g", "b", 1))) is UNKNOWN_MEMBER
    await stable(harness, shard)
    await harness.tasks.close()


async def test_a_join_waits_for_the_end_of_a_deletion(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.coordinator.groups.shard.DELETED_OFFSETS_MAX", 2)
    shard = await harness.load()
    offsets = tuple(OffsetToCommit("six", number, 7) for number in range(9))
    await carry_out(shard, CommitOffsets("g", offsets))
    deletion = asyncio.ensure_future(carry_out(shard, DeleteGroupRequest("g")))
    await asyncio.sleep(0)
    assert await refusal(carry_out(shard, join_request("a"))) is COORDINATOR_LOADING
    assert await asyncio.wait_for(deletion, ANSWER_S) == Done()
    await stable(harness, shard)
    assert await refusal(carry_out(shard, DeleteGroupRequest("g"))) is GROUP_NOT_EMPTY
    leaving = tuple(LeavingMember(name) for name in "ab")
    await carry_out(shard, LeaveGroup("g", leaving))
    assert await carry_out(shard, DeleteGroupRequest("g")) == Done()
    assert not shard.state._ending
