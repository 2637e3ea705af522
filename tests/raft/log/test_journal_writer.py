"""The journal's writer, over a simulated disk in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raftlog.raft.log.journal_writer import FULL_DISK_RETRY_S, TRIM_WAITS_MAX, JournalWriter
from raftlog.raft.log.log import RaftLog
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.world import DiskError, DiskFullError
from tests.raft.stores import DIRECTORY, JOURNAL, PIECES, VOTERS, opened
from tests.simulation.world import World, run


class Bench:
    """A log, its store and its writer, at work."""

    def __init__(self, world: World) -> None:
        self.disk = world.disk(1)
        self.store = QuorumStore(self.disk, DIRECTORY)
        self.log = RaftLog(self.store.load(VOTERS))
        self.told: list[tuple[int, int]] = []
        """(lsn, durable lsn) at each notification of durability."""
        self.was_told = asyncio.Event()
        self.writes: list[int] = []
        """Records of each write begun."""
        self.under_way = 0
        self.writer = JournalWriter(self.disk, self.store, self.log, world.clock(1), self.durable)
        self._watch("write")
        self._watch("rewrite")
        self.task = asyncio.get_running_loop().create_task(self.writer.run())

    def _watch(self, name: str) -> None:
        work = getattr(self.store, name)

        def watched(what: Any) -> None:
            assert self.under_way == 0, "two at once"
            self.under_way += 1
            self.writes.append(len(what) if name == "write" else -1)
            try:
                work(what)
            finally:
                self.under_way -= 1

        setattr(self.store, name, watched)

    def durable(self) -> None:
        self.told.append((self.log.lsn, self.log.durable_lsn))
        self.was_told.set()

    def add(self, command: bytes = b"\x00x") -> None:
        self.log.add(command, self.log.last_index + 1, 1)
        self.writer.wake()

    async def all_durable(self) -> None:
        while self.log.durable_lsn < self.log.lsn:
            assert not self.task.done()
            await asyncio.sleep(0.0001)


def on_bench(work: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main(world: World) -> None:
        bench = Bench(world)
        await work(bench)
        bench.task.cancel()

    run(1, main)


def test_added_records_become_durable_and_are_notified() -> None:
    async def work(bench: Bench) -> None:
        bench.add(b"\x00mine")
        await bench.all_durable()
        assert bench.told == [(1, 1)]
        assert bench.log.durable_index == 2
        bench.disk.crash(power=True)
        assert opened(bench.disk)[1].journal.entries[0][0] == b"\x00mine"

    on_bench(work)


def test_one_sync_serves_all_that_came_during_the_last_one() -> None:
    async def work(bench: Bench) -> None:
        bench.add()
        await asyncio.sleep(0)
        for _ in range(9):
            bench.add()
        await bench.all_durable()
        assert bench.writes == [1, 9]
        assert bench.writer.sync_times.count == 2
        times = bench.writer.sync_times
        assert 0 < times.seconds_max <= times.seconds_sum <= 2 * times.seconds_max

    on_bench(work)


def test_only_what_was_handed_over_counts_as_durable() -> None:
    async def work(bench: Bench) -> None:
        bench.add()
        await asyncio.sleep(0)
        bench.add()
        await bench.was_told.wait()
        assert bench.told[0] == (2, 1)
        await bench.all_durable()

    on_bench(work)


def test_a_full_disk_is_tried_again_until_there_is_room() -> None:
    async def work(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        bench.disk.capacity_bytes = bench.disk.used_bytes()
        bench.add()
        begun = loop.time()
        await asyncio.sleep(3.3 * FULL_DISK_RETRY_S)
        assert [bench.writer.is_full, bench.log.durable_lsn] == [True, 0]
        assert 3 <= len(bench.writes) <= 5, "neither given up nor without a pause"
        bench.disk.capacity_bytes = None
        await bench.all_durable()
        assert loop.time() - begun < 5 * FULL_DISK_RETRY_S
        assert not bench.writer.is_full
        assert bench.writer.sync_times.count == 1, "attempts that did not sync are no syncs"

    on_bench(work)


def test_what_comes_while_the_disk_is_full_is_written_too() -> None:
    async def work(bench: Bench) -> None:
        bench.disk.fail_next("append", JOURNAL, DiskFullError)
        bench.add()
        await asyncio.sleep(FULL_DISK_RETRY_S / 2)
        bench.add()
        await bench.all_durable()
        assert bench.writes == [1, 2]
        bench.disk.crash(power=True)
        assert len(opened(bench.disk)[1].journal.entries) == 2

    on_bench(work)


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_any_other_failure_is_final(operation: str) -> None:
    async def work(bench: Bench) -> None:
        bench.disk.fail_next(operation, JOURNAL)
        bench.add()
        with pytest.raises(DiskError, match="as ordered"):
            await bench.task
        assert bench.log.durable_lsn == 0
        assert not bench.told

    on_bench(work)


def test_finish_writes_all_and_returns() -> None:
    async def work(bench: Bench) -> None:
        bench.add()
        bench.add()
        bench.writer.finish()
        await bench.task
        assert bench.log.durable_lsn == 2

    on_bench(work)


def test_finish_with_nothing_to_write_returns() -> None:
    async def work(bench: Bench) -> None:
        await asyncio.sleep(0.1)
        bench.writer.finish()
        await bench.task
        assert not bench.writes

    on_bench(work)


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_finish_does_not_wait_for_room_on_a_full_disk(seconds: float) -> None:
    async def work(bench: Bench) -> None:
        bench.disk.capacity_bytes = bench.disk.used_bytes()
        bench.add()
        await asyncio.sleep(seconds)
        bench.writer.finish()
        await asyncio.wait_for(bench.task, 2 * FULL_DISK_RETRY_S)
        assert bench.log.durable_lsn == 0

    on_bench(work)


def prepared_for_trim(bench: Bench) -> None:
    meta = SnapshotMeta(3, 1, VOTERS)
    bench.store.save_snapshot(meta, PIECES)
    bench.log.trim(3)


def test_a_trim_replaces_the_journal_by_a_shorter_one() -> None:
    async def work(bench: Bench) -> None:
        for _ in range(4):
            bench.add(b"\x00" + bytes(500))
        await bench.all_durable()
        before = bench.store.journal_bytes
        prepared_for_trim(bench)
        bench.writer.trim()
        await asyncio.sleep(0.1)
        assert bench.writes[-1] == -1
        assert bench.store.journal_bytes < before - 900
        bench.disk.crash(power=True)
        content = opened(bench.disk)[1].journal
        assert (content.base_index, content.last_index) == (3, 5)

    on_bench(work)


def test_what_is_pending_goes_before_a_trim() -> None:
    async def work(bench: Bench) -> None:
        for _ in range(3):
            bench.add()
        await bench.all_durable()
        prepared_for_trim(bench)
        bench.add()
        bench.writer.trim()
        await asyncio.sleep(0.1)
        assert bench.writes == [3, 1, -1]
        bench.disk.crash(power=True)
        assert opened(bench.disk)[1].journal.last_index == 5

    on_bench(work)


def test_trim_without_room_does_not_block_writes() -> None:
    async def work(bench: Bench) -> None:
        for _ in range(3):
            bench.add()
        await bench.all_durable()
        prepared_for_trim(bench)
        bench.disk.fail_next("append", JOURNAL + ".tmp", DiskFullError)
        bench.writer.trim()
        await asyncio.sleep(FULL_DISK_RETRY_S / 2)
        bench.add()
        await bench.all_durable()
        await asyncio.sleep(2 * FULL_DISK_RETRY_S)
        assert bench.writes == [3, -1, 1, -1]

    on_bench(work)


def test_a_log_that_was_reset_is_rewritten_first() -> None:
    async def work(bench: Bench) -> None:
        bench.add()
        await bench.all_durable()
        meta = SnapshotMeta(9, 2, VOTERS, received=True)
        bench.store._snapshot_meta = meta
        bench.log.reset(9, 2, VOTERS)
        bench.log.add(b"\x00after", 10, 2)
        bench.writer.wake()
        await bench.all_durable()
        assert bench.writes == [1, -1], "the entry went with it"
        assert bench.log.durable_index == 10

    on_bench(work)


async def begin_constant_load(bench: Bench) -> None:
    """From the next entry on, as by clients with one request after another."""
    for _ in range(3):
        bench.add()
    await bench.all_durable()
    prepared_for_trim(bench)

    def more() -> None:
        bench.durable()
        bench.add()

    bench.writer._on_durable = more


def test_under_constant_load_the_journal_is_trimmed_all_the_same() -> None:
    async def work(bench: Bench) -> None:
        await begin_constant_load(bench)
        bench.add()
        bench.writer.trim()
        await asyncio.sleep(1.0)
        assert 1 <= bench.writes.index(-1) <= TRIM_WAITS_MAX + 2
        bench.writer._on_durable = bench.durable
        await bench.all_durable()
        assert bench.writes.count(-1) == 1
        last_index = bench.log.last_index
        bench.disk.crash(power=True)
        content = opened(bench.disk)[1].journal
        assert (content.base_index, content.last_index) == (3, last_index)

    on_bench(work)


def test_under_constant_load_a_trim_without_room_does_not_stop_the_writing() -> None:
    async def work(bench: Bench) -> None:
        await begin_constant_load(bench)
        bench.disk.fail_next("append", JOURNAL + ".tmp", DiskFullError)
        bench.add()
        bench.writer.trim()
        await asyncio.sleep(2.0)
        first = bench.writes.index(-1)
        assert bench.writes[first + 1] > 0, "after a pause, what waits goes first"
        assert bench.writes.count(-1) == 2

    on_bench(work)
