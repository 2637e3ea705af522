"""Long polls: what ends them is what has been committed."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import NOT_READY, LogError
from raftlog.record.types import Offset
from raftlog.replication import committed_bytes
from raftlog.replication.committed_bytes import CommittedBytes
from raftlog.replication.partition import Acks
from raftlog.replication.waiting import wait_for_data
from tests.replication.pair import Node, ack, attach, nodes, one, row, send


async def cluster() -> tuple[Node, Node]:
    leader, follower = nodes(1, 2)
    await leader.open(row(1, 1))
    await follower.open(row(1, 1))
    return leader, follower


def poll(node: Node, offset: int, *, min_bytes: int, timeout_s: float = 60) -> asyncio.Task[None]:
    wants = [(node.partition, Offset(offset))]
    return asyncio.create_task(wait_for_data(wants, min_bytes=min_bytes, timeout_s=timeout_s))


async def is_over(polling: asyncio.Task[None]) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return polling.done()


@pytest.mark.parametrize("min_bytes", [0, 1, 50])
async def test_a_reader_that_comes_between_the_append_and_its_commit_is_woken(
    min_bytes: int,
) -> None:
    leader, follower = await cluster()
    feed = attach(leader, follower)
    await leader.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
    await leader.partition.log.flush()
    polling = poll(leader, 0, min_bytes=min_bytes)
    following = poll(follower, 0, min_bytes=min_bytes)
    await send(leader, follower)
    assert not await is_over(polling)
    ack(leader, follower, feed)
    assert await is_over(polling)
    assert not await is_over(following)
    follower.partition.learned(
        leader_epoch=leader.partition.leader_epoch,
        high_watermark=leader.partition.high_watermark,
        log_start_offset=Offset(0),
    )
    assert await is_over(following)


async def test_min_bytes_counts_what_is_committed_only() -> None:
    leader, follower = await cluster()
    feed = attach(leader, follower)
    polling = poll(leader, 0, min_bytes=150)
    await leader.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
    await send(leader, follower)
    await leader.partition.append(one(b"x" * 1000), acks=Acks.LEADER, timeout_s=60)
    await leader.partition.log.flush()
    ack(leader, follower, feed)
    assert leader.partition.high_watermark == 1
    assert not await is_over(polling)
    await send(leader, follower)
    ack(leader, follower, feed)
    assert await is_over(polling)


@pytest.mark.parametrize("min_bytes", [1, 1000])
async def test_a_partition_that_has_nothing_to_tell_any_more_ends_the_wait(min_bytes: int) -> None:
    leader, _ = await cluster()
    polling = poll(leader, 0, min_bytes=min_bytes)
    assert not await is_over(polling)
    leader.partition.close(LogError(NOT_READY, "stopping"))
    assert await is_over(polling)
    assert await is_over(poll(leader, 0, min_bytes=min_bytes))


async def test_the_time_is_up() -> None:
    leader, _ = await cluster()
    async with asyncio.timeout(30):
        await poll(leader, 0, min_bytes=1, timeout_s=0.001)


def test_bytes_count_once_their_end_is_committed() -> None:
    counted = CommittedBytes()
    counted.appended(Offset(3), 100)
    counted.appended(Offset(5), 10)
    counted.committed(Offset(4))
    assert counted.total == 100
    counted.cut(Offset(3))
    counted.appended(Offset(9), 1)
    counted.committed(Offset(9))
    assert counted.total == 101


def test_many_appends_take_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_bytes, "UNCOMMITTED_MAX", 4)
    counted = CommittedBytes()
    for end in range(1, 101):
        counted.appended(Offset(end), 1)
    assert len(counted._uncommitted) == 4
    counted.committed(Offset(100))
    assert counted.total == 100
