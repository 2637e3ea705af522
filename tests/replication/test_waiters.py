"""Waiters of a partition wake once, in order, and cost nothing meanwhile.

Long polls end with committed records only.
"""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import NOT_READY, OVERLOADED, LogError
from raftlog.record.types import Offset
from raftlog.replication import waiters
from raftlog.replication.partition import Acks, wait_for_data
from raftlog.replication.waiters import (
    FORGOTTEN_READERS_MAX,
    CommittedBytes,
    ReadWaiters,
)
from tests.replication.pair import Node, ack, attach, nodes, one, row, send


class Readers(ReadWaiters):
    def __init__(self) -> None:
        super().__init__("t-0")
        self.woken: list[int] = []

    def wait(self, offset: int) -> int:
        return self.add(Offset(offset), lambda: self.woken.append(offset))


def test_readers_are_woken_once_what_they_wait_for_is_committed() -> None:
    readers = Readers()
    for offset in (5, 1, 9, 3):
        readers.wait(offset)
    readers.committed(Offset(5))
    assert readers.woken == [1, 3]
    readers.committed(Offset(6))
    readers.committed(Offset(6))
    assert readers.woken == [1, 3, 5]
    readers.wake_all()
    assert readers.woken == [1, 3, 5, 9]
    readers.wake_all()
    readers.committed(Offset(99))
    assert readers.woken == [1, 3, 5, 9]


def test_who_is_forgotten_by_anothers_waking_is_not_woken() -> None:
    readers = Readers()
    handles: list[int] = []

    def first() -> None:
        readers.woken.append(1)
        readers.remove(handles[0])

    readers.add(Offset(1), first)
    handles.append(readers.wait(2))
    readers.committed(Offset(3))
    assert readers.woken == [1]


def test_one_that_waits_again_when_it_is_woken_waits() -> None:
    readers = Readers()

    def again() -> None:
        readers.wait(1)

    readers.add(Offset(1), again)
    readers.committed(Offset(3))
    assert (readers.woken, len(readers)) == ([], 1)
    readers.committed(Offset(3))
    assert readers.woken == [1]


def test_a_high_watermark_that_moves_looks_only_at_who_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers = Readers()
    for _ in range(1000):
        readers.wait(100)
    taken = 0
    heappop = waiters.heapq.heappop

    def counted(heap: list[tuple[Offset, int]]) -> tuple[Offset, int]:
        nonlocal taken
        taken += 1
        return heappop(heap)

    monkeypatch.setattr(waiters.heapq, "heappop", counted)
    readers._wakes = NoScan(readers._wakes)
    for end in range(100):
        readers.committed(Offset(end))
    assert taken == 0
    readers.committed(Offset(101))
    assert taken == 1000


class NoScan(dict[int, object]):
    def items(self) -> object:  # type: ignore[override]
        raise AssertionError("all readers are looked at")

    values = keys = __iter__ = items  # type: ignore[assignment]


def test_readers_that_have_left_are_not_kept() -> None:
    readers = Readers()
    staying = readers.wait(7)
    for _ in range(10_000):
        readers.remove(readers.wait(5))
    assert len(readers._heap) <= 2 + FORGOTTEN_READERS_MAX + 1
    readers.remove(staying)
    readers.remove(staying)
    readers.committed(Offset(9))
    assert readers.woken == []


def test_too_many_readers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "READ_WAITERS_MAX", 2)
    readers = Readers()
    readers.wait(1)
    readers.wait(1)
    with pytest.raises(LogError) as refused:
        readers.wait(1)
    assert refused.value.entry is OVERLOADED


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
    follower.partition.follower_role.update_watermarks(
        leader_epoch=leader.partition.image.leader_epoch,
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
    monkeypatch.setattr(waiters, "UNCOMMITTED_MAX", 4)
    counted = CommittedBytes()
    for end in range(1, 101):
        counted.appended(Offset(end), 1)
    assert len(counted._uncommitted) == 4
    counted.committed(Offset(100))
    assert counted.total == 100
