"""Who waits at a partition is woken once, in order, and costs nothing while it waits."""

from __future__ import annotations

import pytest

from raftlog.record.errors import OVERLOADED, LogError
from raftlog.record.types import Offset
from raftlog.replication import waiters
from raftlog.replication.waiters import FORGOTTEN_READERS_MAX, ReadWaiters


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
