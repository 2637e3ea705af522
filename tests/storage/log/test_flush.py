from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

from raftlog.storage.log.flush import SYNCS_PER_ROUND_MAX, Flusher
from raftlog.world import DiskError, File, Sync
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk

T = TypeVar("T")


class PausedDisk(SimulatedDisk):
    """Holds all work back until released."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, work: Callable[[], T]) -> T:
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        await turn
        return await super().run(work)


class CountingLog:
    """A log to flush, which counts syncs."""

    def __init__(self, flusher: Flusher, *, fails: bool = False) -> None:
        self.flusher = flusher
        self.fails = fails
        self.dirty = False
        self.syncs = 0
        self.on_sync: Callable[[], None] = lambda: None
        self.ended: list[Exception | None] = []

    def write(self) -> None:
        self.dirty = True
        self.flusher.request(self.begin_sync, self.end_sync)

    def begin_sync(self) -> Sync | None:
        if not self.dirty:
            return None
        self.dirty = False
        return Sync(cast("File", self))

    def sync(self) -> None:
        """As its own file."""
        self.syncs += 1
        self.on_sync()
        if self.fails:
            raise DiskError("as ordered")

    def end_sync(self, error: Exception | None) -> None:
        self.ended.append(error)


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def test_requests_of_one_round_are_one_sync() -> None:
    flusher = Flusher(SimulatedDisk(), ManualClock())
    log = CountingLog(flusher)
    for _ in range(10):
        log.write()
    await settle()
    assert (log.syncs, log.ended) == (1, [None])
    assert flusher.syncs == 1


async def test_many_logs_are_shared_among_the_rounds_and_none_is_forgotten() -> None:
    disk = SimulatedDisk(yields=True)
    flusher = Flusher(disk, ManualClock(), rounds_max=3)
    logs = [CountingLog(flusher) for _ in range(3 * SYNCS_PER_ROUND_MAX + 5)]
    for log in logs:
        log.write()
    await settle()
    assert [log.syncs for log in logs] == [1] * len(logs)


async def test_the_error_of_one_log_is_its_own() -> None:
    flusher = Flusher(SimulatedDisk(), ManualClock(), rounds_max=1)
    good, bad, other = CountingLog(flusher), CountingLog(flusher, fails=True), CountingLog(flusher)
    for log in (good, bad, other):
        log.write()
    await settle()
    assert good.ended == other.ended == [None]
    assert [type(error) for error in bad.ended] == [DiskError]


async def test_a_machine_that_stops_is_an_error_for_all_who_wait() -> None:
    disk = SimulatedDisk()
    flusher = Flusher(disk, ManualClock())
    log = CountingLog(flusher)
    log.write()
    disk.stopped = True
    await settle()
    assert len(log.ended) == 1
    assert log.ended[0] is not None
    assert log.syncs == 0


async def test_an_idle_flusher_has_no_tasks() -> None:
    before = len(asyncio.all_tasks())
    flusher = Flusher(SimulatedDisk(), ManualClock())
    log = CountingLog(flusher)
    log.write()
    await settle()
    assert len(asyncio.all_tasks()) == before


async def test_the_oldest_sync_is_known_as_long_as_it_lasts() -> None:
    clock = ManualClock()
    disk = PausedDisk()
    flusher = Flusher(disk, clock, rounds_max=2)
    first, second = CountingLog(flusher), CountingLog(flusher)
    assert flusher.oldest_sync_at is None
    first_at = clock.monotonic()
    first.write()
    await settle()
    clock.advance(1.0)
    second_at = clock.monotonic()
    second.write()
    await settle()
    assert flusher.oldest_sync_at == first_at
    disk.waiting.popleft().set_result(None)
    await settle()
    assert (first.syncs, flusher.oldest_sync_at) == (1, second_at)
    disk.waiting.popleft().set_result(None)
    await settle()
    assert flusher.oldest_sync_at is None


async def test_each_sync_of_a_turn_lasts_as_long_as_it_takes_itself() -> None:
    clock = ManualClock()
    flusher = Flusher(SimulatedDisk(), clock, rounds_max=1)
    logs = [CountingLog(flusher) for _ in range(3)]
    ages: list[float] = []

    def take_a_while() -> None:
        clock.advance(2.0)
        assert flusher.oldest_sync_at is not None
        ages.append(clock.monotonic() - flusher.oldest_sync_at)

    for log in logs:
        log.on_sync = take_a_while
        log.write()
    await settle()
    assert ages == [2.0, 2.0, 2.0]
