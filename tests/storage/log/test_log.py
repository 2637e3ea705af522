from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from raftlog.record.batch import RecordBatch, iterate_batches, iterate_headers, split_batches
from raftlog.record.errors import (
    DISK_FULL,
    ILLEGAL_STATE,
    INVALID_BODY,
    NO_LEADER,
    OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER_SEQUENCE,
    RECORD_TOO_LARGE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from raftlog.storage.checkpoints.checkpoints import StartKind
from raftlog.storage.log.core import COLD_READS_MAX, LOOKUPS_MAX
from raftlog.storage.log.log import Log
from raftlog.storage.types import FlushMode, LogConfig, LogState
from raftlog.world import DiskError, DiskFullError
from tests.record.batches import with_field
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import EPOCH, batch, new_log, numbered, read_all

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


def state_of(log: Log) -> tuple[object, ...]:
    """All state that must move together, or not at all."""
    segments = log.segments
    return (
        log.log_end_offset,
        log.flushed_offset,
        log.size_bytes,
        log.producers.to_bytes(Offset(0), now_ms=0),
        log.leader_epochs.to_bytes(),
        [len(segment.offset_index) for segment in segments.all],
        [len(segment.time_index) for segment in segments.all],
        [segment.max_timestamp_ms for segment in segments.all],
    )


async def test_offsets_follow_each_other_and_batches_come_back_as_they_were() -> None:
    log = new_log()
    first = await log.appender.append([batch([b"a", b"b"]), batch([b"c"])], EPOCH)
    second = await log.appender.append([batch([b"d"])], LeaderEpoch(4))
    assert [(result.base_offset, result.last_offset) for result in first + second] == [
        (0, 1),
        (2, 2),
        (3, 3),
    ]
    result = await log.reader.read(Offset(0), end=Offset(4), max_bytes=1 << 20)
    headers = [found.header for found in iterate_batches(result.data)]
    assert [header.base_offset for header in headers] == [0, 2, 3]
    assert [header.partition_leader_epoch for header in headers] == [1, 1, 4]
    assert await read_all(log) == [b"a", b"b", b"c", b"d"]


async def test_an_append_is_written_in_one_step_of_the_loop_and_synced_outside_of_it() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    append = log.appender.append([batch([b"a"])], EPOCH)
    with pytest.raises(StopIteration):
        append.send(None)
    assert log.log_end_offset == 1
    await log.flush()
    assert disk.slow_outside_run == []


async def test_a_full_disk_refuses_an_append_whole_and_takes_it_later() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    await log.appender.append([numbered([b"a"], 0)], EPOCH)
    before = state_of(log)
    disk.capacity_bytes = disk.used_bytes() + 10
    two = [numbered([b"b"], 1), numbered([b"c"], 2)]
    with pytest.raises(LogError) as refused:
        await log.appender.append(two, EPOCH)
    assert refused.value.entry is DISK_FULL
    assert (before[0], before[2:]) == (state_of(log)[0], state_of(log)[2:])
    assert await read_all(log) == [b"a"]
    disk.capacity_bytes = None
    results = await log.appender.append(two, EPOCH)
    assert [result.duplicate for result in results] == [False, False]
    assert await read_all(log) == [b"a", b"b", b"c"]


async def test_a_full_disk_refuses_a_roll_and_takes_it_later() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    value = b"x" * 250
    await log.appender.append([batch([value])], EPOCH)
    await log.flush()
    disk.capacity_bytes = disk.used_bytes() + 1000
    disk.fail_next("create", ".log", DiskFullError)
    with pytest.raises(LogError) as refused:
        await log.appender.append([batch([value])], EPOCH)
    assert refused.value.entry is DISK_FULL
    assert (len(log.segments), log.log_end_offset) == (1, 1)
    await log.appender.append([batch([value])], EPOCH)
    assert (len(log.segments), log.log_end_offset) == (2, 2)
    assert await read_all(log) == [value, value]


@pytest.mark.parametrize("failing", ["append", "sync"])
async def test_an_io_error_ends_the_log_for_good(failing: str) -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    reported: list[LogError] = []
    log.listeners.failed.append(reported.append)
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.flush()
    disk.fail_next(failing, ".log")
    with pytest.raises(LogError) as failed:
        await log.appender.append([batch([b"b"])], EPOCH)
        await log.flush()
    assert failed.value.entry is STORAGE_FAILED
    assert log.state is LogState.FAILED
    assert [error.entry for error in reported] == [STORAGE_FAILED]
    assert log.flushed_offset == 1
    for use in (
        lambda: log.appender.append([batch([b"c"])], EPOCH),
        lambda: log.reader.read(Offset(0), end=Offset(1), max_bytes=1),
        log.flush,
        log.operations.checkpoint,
        lambda: log.operations.truncate_to(Offset(0)),
        lambda: log.operations.delete_records_before(Offset(1)),
    ):
        with pytest.raises(LogError) as failed:
            await use()
        assert failed.value.entry is STORAGE_FAILED


async def test_a_failed_sync_is_never_tried_again() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    await log.appender.append([batch([b"a"])], EPOCH)
    disk.fail_next("sync", ".log")
    waiters = [asyncio.ensure_future(log.flush()) for _ in range(3)]
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(outcome, LogError) for outcome in outcomes)
    syncs = sum(disk.syncs.values())
    log.request_sync()
    log.configure(LogConfig())
    for _ in range(10):
        await asyncio.sleep(0)
    await log.close()
    assert sum(disk.syncs.values()) == syncs
    assert log.flushed_offset == 0


async def test_appends_that_arrive_during_a_sync_share_the_next_one() -> None:
    disk = SimulatedDisk(yields=True)
    log = new_log(disk)
    flushed: list[int] = []
    log.listeners.flushed.append(flushed.append)
    for number in range(100):
        await log.appender.append([batch([b"%d" % number])], EPOCH)
        await asyncio.sleep(0)
    await log.flush()
    assert log.flushed_offset == log.log_end_offset == flushed[-1] == 100
    assert flushed == sorted(set(flushed))
    assert sum(disk.syncs.values()) < 60


async def test_a_flush_covers_what_was_appended_before_it_and_ends_without_traffic() -> None:
    log = new_log(SimulatedDisk(yields=True), LogConfig(flush=FlushMode.ASYNC))
    await log.appender.append([batch([b"a", b"b"])], EPOCH)
    assert log.flushed_offset == 0
    await log.flush()
    assert log.flushed_offset == 2
    await asyncio.wait_for(log.flush(), 1)


async def test_an_async_log_syncs_early_once_much_is_unflushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.storage.log.core.UNFLUSHED_BYTES_MAX", 200)
    log = new_log(SimulatedDisk(), LogConfig(flush=FlushMode.ASYNC))
    for _ in range(5):
        await log.appender.append([batch([b"a"])], EPOCH)
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.flushed_offset == 5


async def test_concurrent_appends_keep_their_order_over_rolls() -> None:
    log = new_log(SimulatedDisk(yields=True), SMALL)
    appends = [log.appender.append([batch([b"%03d" % number])], EPOCH) for number in range(100)]
    results = await asyncio.gather(*appends)
    assert [result[0].base_offset for result in results] == list(range(100))
    assert len(log.segments) > 10
    assert await read_all(log) == [b"%03d" % number for number in range(100)]


async def test_an_append_does_not_overtake_one_that_was_just_let_in() -> None:
    log = new_log()
    await log.write_lock.acquire()
    first = asyncio.ensure_future(log.appender.append([batch([b"first"])], EPOCH))
    for _ in range(3):
        await asyncio.sleep(0)
    log.write_lock.release()
    # The lock is free, and the first append has been woken but has not run yet.
    second = log.appender.append([batch([b"second"])], EPOCH)
    assert second.send(None) is not None, "written at once"
    assert log.log_end_offset == 0
    await first
    second.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert await read_all(log) == [b"first", b"second"]


async def test_an_append_given_up_while_it_waits_does_not_break_those_behind_it() -> None:
    log = new_log(SimulatedDisk(yields=True), SMALL)
    await log.appender.append([batch([b"x" * 300])], EPOCH)
    tasks = [
        asyncio.ensure_future(log.appender.append([batch([b"y" * 90])], EPOCH)) for _ in range(9)
    ]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[4].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes) == 2
    offsets = [outcome[0].base_offset for outcome in outcomes if isinstance(outcome, list)]
    assert offsets == sorted(offsets)
    # Given up is not taken back: the outcome was unknown to the caller, not to the log.
    assert len(await read_all(log)) == log.log_end_offset == 10


async def test_too_many_waiting_appends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.storage.log.appending.WRITERS_WAITING_MAX", 3)
    log = new_log(SimulatedDisk(yields=True), SMALL)
    await log.appender.append([batch([b"x" * 300])], EPOCH)
    outcomes = await asyncio.gather(
        *(log.appender.append([batch([b"y" * 200])], EPOCH) for _ in range(6)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, LogError) for outcome in outcomes) == 3
    assert log.log_end_offset == 4


async def test_a_repeated_batch_gets_its_first_offset_and_is_not_written_again() -> None:
    log = new_log()
    one = numbered([b"a", b"b"], 0)
    await log.appender.append([batch([b"-"])], EPOCH)
    first = await log.appender.append([one], EPOCH)
    size_bytes = log.size_bytes
    again = await log.appender.append([one], EPOCH)
    assert again[0].duplicate
    assert again[0].base_offset == first[0].base_offset == 1
    assert log.size_bytes == size_bytes
    with pytest.raises(LogError) as refused:
        await log.appender.append([numbered([b"d"], 5)], EPOCH)
    assert refused.value.entry is OUT_OF_ORDER_SEQUENCE


@pytest.mark.parametrize("start", list(StartKind))
async def test_repeats_are_known_after_a_restart(start: StartKind) -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    one = numbered([b"a"], 0)
    two = numbered([b"b"], 1)
    await log.appender.append([one], EPOCH)
    checkpoint = await log.operations.checkpoint()
    await log.appender.append([two], EPOCH)
    await log.flush()
    if start is StartKind.CLEAN:
        await log.close()
        checkpoint = log.current_checkpoint()
    disk.crash(power=start is StartKind.POWER_LOSS)
    log = new_log(disk, checkpoint=checkpoint, start=start)
    results = await log.appender.append([one, two], EPOCH)
    assert [(result.base_offset, result.duplicate) for result in results] == [(0, True), (1, True)]


async def test_what_must_be_refused_is_refused_with_nothing_written() -> None:
    log = new_log(config=LogConfig(max_message_bytes=200))
    await log.appender.append([batch([b"a"])], LeaderEpoch(5))
    before = state_of(log)
    with pytest.raises(LogError) as refused:
        await log.appender.append([batch([b"b"]), batch([b"c" * 300])], LeaderEpoch(5))
    assert refused.value.entry is RECORD_TOO_LARGE
    with pytest.raises(LogError) as refused:
        await log.appender.append([batch([b"b"])], LeaderEpoch(4))
    assert refused.value.entry is NO_LEADER
    log.shared.room_bytes = 0
    with pytest.raises(LogError) as refused:
        await log.appender.append([batch([b"b"])], LeaderEpoch(5))
    assert refused.value.entry is DISK_FULL
    assert (before[0], before[2:]) == (state_of(log)[0], state_of(log)[2:])


async def test_log_append_time_is_the_clusters_though_this_nodes_clock_is_behind() -> None:
    """Retention would take its records for a month old."""
    clock = ManualClock()
    right_ms = clock.now_ms
    clock.now_ms -= 30 * 86_400_000
    log = new_log(config=LogConfig(log_append_time=True), clock=clock)
    log.shared.cluster_clock.note_cluster_time(right_ms, right_ms)
    results = await log.appender.append([batch([b"a"])], EPOCH)
    assert results[0].log_append_time_ms == right_ms


async def test_log_append_time_is_the_brokers_and_is_returned() -> None:
    log = new_log(config=LogConfig(log_append_time=True))
    results = await log.appender.append([batch([b"a"], timestamp_ms=5)], EPOCH)
    now_ms = log.shared.clock.time_ms()
    assert results[0].log_append_time_ms == now_ms
    result = await log.reader.read(Offset(0), end=Offset(1), max_bytes=1)
    header = next(iter(iterate_batches(result.data))).header
    assert (header.max_timestamp_ms, header.is_log_append_time) == (now_ms, True)
    assert await log.reader.offset_for_timestamp(now_ms, end=Offset(1)) == (0, now_ms)
    assert await log.reader.offset_for_timestamp(now_ms + 1, end=Offset(1)) is None


@pytest.mark.parametrize("cold", [False, True])
async def test_reads_give_whole_batches_up_to_their_limits(cold: bool) -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for number in range(12):
        await log.appender.append([batch([b"%d" % number, b"x" * 40])], EPOCH)
    disk.cold = cold
    for start in range(24):
        result = await log.reader.read(Offset(start), end=Offset(24), max_bytes=1)
        assert result.next_offset == start // 2 * 2 + 2
    result = await log.reader.read(Offset(3), end=Offset(4), max_bytes=1 << 20)
    assert result.next_offset == 4
    result = await log.reader.read(Offset(3), end=Offset(5), max_bytes=1 << 20)
    assert result.next_offset == 6
    assert (await log.reader.read(Offset(5), end=Offset(5), max_bytes=1)).data == b""
    assert (await log.reader.read(Offset(24), end=Offset(99), max_bytes=1)).next_offset == 24
    for outside in (-1, 25):
        with pytest.raises(LogError) as refused:
            await log.reader.read(Offset(outside), end=Offset(24), max_bytes=1)
        assert refused.value.entry is OFFSET_OUT_OF_RANGE
        assert "0 to 24" in refused.value.message
    assert disk.slow_outside_run == []


async def test_large_batches_in_a_row_are_not_each_read_twice() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    for number in range(8):
        await log.appender.append([batch([bytes(40_000 + 10 * number)])], leader_epoch=EPOCH)
    for _ in range(16):
        await log.appender.append([batch([bytes(2_000)])], leader_epoch=EPOCH)
    disk.cold = True
    before = disk.operations["read"]
    offset = Offset(0)
    while offset < 8:
        result = await log.reader.read(offset, end=log.log_end_offset, max_bytes=20_000)
        assert result.next_offset == offset + 1
        offset = result.next_offset
    assert disk.operations["read"] - before <= 8 + 2
    # Small batches again: no more bytes than requested.
    while offset < 24:
        result = await log.reader.read(offset, end=log.log_end_offset, max_bytes=20_000)
        assert len(result.data) <= 20_000
        offset = result.next_offset


async def test_a_batch_larger_than_the_read_limit_is_read_all_the_same() -> None:
    log = new_log(config=LogConfig(max_message_bytes=1 << 20))
    value = b"v" * 500_000
    await log.appender.append([batch([b"a"]), batch([value]), batch([b"b"])], EPOCH)
    assert await read_all(log, max_bytes=1) == [b"a", value, b"b"]


async def test_a_wrong_index_costs_time_but_gives_right_answers() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for number in range(40):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.close()
    checkpoint = log.current_checkpoint()
    for name in disk.list_directory("replica"):
        if name.endswith(".index"):
            content = disk.contents(f"replica/{name}")
            disk.put(f"replica/{name}", content[:4] + b"\0\0\1\7" * (len(content) // 4 - 1))
    log = new_log(disk, SMALL, checkpoint=checkpoint)
    for start in range(39, -1, -1):
        result = await log.reader.read(Offset(start), end=Offset(40), max_bytes=1)
        assert next(iter(iterate_batches(result.data))).header.base_offset == start


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("damage", ["removed", "emptied", "changed"])
async def test_derived_files_that_are_lost_are_found_again(suffix: str, damage: str) -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for number in range(20):
        one = numbered([b"%02d" % number], number, timestamp_ms=number)
        await log.appender.append([one], EPOCH)
    await log.close()
    checkpoint = log.current_checkpoint()
    for name in disk.list_directory("replica"):
        path = f"replica/{name}"
        if name.endswith(suffix):
            if damage == "removed":
                disk.remove(path)
            elif damage == "emptied":
                disk.put(path, b"")
            else:
                content = bytearray(disk.contents(path))
                content[-1] ^= 0x55
                disk.put(path, bytes(content))
    log = new_log(disk, SMALL, checkpoint=checkpoint)
    assert log.state is LogState.ONLINE
    assert len(await read_all(log)) == 20
    again = await log.appender.append([numbered([b"19"], 19)], EPOCH)
    assert again[0].duplicate
    latest = log.leader_epochs.latest
    assert latest is not None
    assert latest.epoch == EPOCH
    assert await log.reader.offset_for_timestamp(15, end=Offset(20)) == (15, 15)


async def test_a_missing_segment_is_damage() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for number in range(40):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.close()
    names = [name for name in disk.list_directory("replica") if name.endswith(".log")]
    for missing in (names[0], names[len(names) // 2], names[-1]):
        path = f"replica/{missing}"
        content = disk.contents(path)
        disk.remove(path)
        for start in StartKind:
            damaged = new_log(disk, SMALL, checkpoint=log.current_checkpoint(), start=start)
            assert damaged.state is LogState.DAMAGED
        disk.put(path, content)
    assert new_log(disk, SMALL, checkpoint=log.current_checkpoint()).state is LogState.ONLINE


async def test_truncation_forgets_records_epochs_and_producers() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for number in range(30):
        one = numbered([b"%02d" % number], number, timestamp_ms=number)
        await log.appender.append([one], LeaderEpoch(1 + number // 10))
    await log.operations.truncate_to(Offset(15))
    assert (log.log_end_offset, log.flushed_offset) == (15, 15)
    latest = log.leader_epochs.latest
    assert latest is not None
    assert (latest.epoch, latest.start_offset) == (2, 10)
    assert await log.reader.offset_for_timestamp(15, end=Offset(30)) is None
    results = await log.appender.append(
        [
            numbered([b"14"], 14),
            numbered([b"xx"], 15),
        ],
        LeaderEpoch(7),
    )
    assert [(result.base_offset, result.duplicate) for result in results] == [
        (14, True),
        (15, False),
    ]
    assert await read_all(log) == [*(b"%02d" % number for number in range(15)), b"xx"]
    await log.operations.truncate_to(Offset(99))
    assert log.log_end_offset == 16


async def test_a_read_across_a_truncation_gives_old_or_new_but_nothing_false() -> None:
    disk = SimulatedDisk(yields=True)
    log = new_log(disk, SMALL)
    for number in range(30):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.flush()
    disk.cold = True
    reads = [
        asyncio.ensure_future(log.reader.read(Offset(start), end=Offset(30), max_bytes=1))
        for start in range(30)
    ]
    await asyncio.sleep(0)
    await log.operations.truncate_to(Offset(12))
    outcomes = await asyncio.gather(*reads, return_exceptions=True)
    for outcome in outcomes[:12]:
        assert not isinstance(outcome, BaseException)
    assert log.damaged_ranges == {}


async def test_a_closed_log_refuses_and_can_be_closed_again() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.close()
    await log.close()
    assert log.state is LogState.CLOSED
    with pytest.raises(LogError) as refused:
        await log.appender.append([batch([b"b"])], EPOCH)
    assert refused.value.entry is ILLEGAL_STATE
    again = new_log(disk, checkpoint=log.current_checkpoint())
    assert (again.log_end_offset, again.recovery.recovery_point) == (1, 1)


async def test_a_clean_start_reads_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for number in range(40):
        await log.appender.append([batch([b"%02d" % number])], EPOCH)
    await log.close()

    def refuse(*_: object) -> None:
        raise AssertionError("scanned after a clean stop")

    monkeypatch.setattr("raftlog.storage.log.opening.scan", refuse)
    again = new_log(disk, SMALL, checkpoint=log.current_checkpoint())
    assert again.log_end_offset == 40
    assert len(await read_all(again)) == 40


async def test_a_read_error_of_the_disk_is_reported_and_leaves_the_log_online() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    await log.appender.append([batch([b"a"])], EPOCH)
    disk.cold = True
    disk.fail_next("read", ".log", DiskError)
    with pytest.raises(LogError) as failed:
        await log.reader.read(Offset(0), end=Offset(1), max_bytes=1)
    assert failed.value.entry is STORAGE_FAILED
    assert log.state is LogState.ONLINE
    assert await read_all(log) == [b"a"]


async def test_a_changed_leader_epoch_is_not_served() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    await log.appender.append([batch([b"a"])], EPOCH)
    disk.flip_bit(f"replica/{0:020d}.log", 15 * 8)
    with pytest.raises(LogError) as failed:
        await log.reader.read(Offset(0), end=Offset(1), max_bytes=1)
    assert failed.value.entry is STORAGE_FAILED
    assert "leader epoch" in failed.value.message


async def test_names_that_a_crashed_process_left_in_memory_are_made_durable_at_the_start() -> None:
    for seed in range(10):
        disk = SimulatedDisk(seed)
        disk.make_directory("replica")
        disk.sync_directory("")
        disk.open(f"replica/{0:020d}.log", create=True)
        disk.crash(power=False)
        log = new_log(disk, start=StartKind.PROCESS_CRASH)
        await log.appender.append([batch([b"a"])], EPOCH)
        await log.flush()
        disk.crash(power=True)
        log = new_log(disk, checkpoint=log.current_checkpoint(), start=StartKind.POWER_LOSS)
        assert await read_all(log) == [b"a"]


async def test_lookups_by_time_leave_cold_reads_to_the_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = new_log(SimulatedDisk(), SMALL)
    for number in range(40):
        await log.appender.append(
            [numbered([b"%02d" % number], number, timestamp_ms=number)], EPOCH
        )
    await log.flush()
    run, running, peak = log.shared.disk.run, 0, 0

    async def counted(work: Any) -> Any:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return await run(work)
        finally:
            running -= 1

    monkeypatch.setattr(log.shared.disk, "run", counted)
    lookups = [log.reader.offset_for_timestamp(n, end=Offset(40)) for n in range(1, 20)]
    assert await asyncio.gather(*lookups) == [(n, n) for n in range(1, 20)]
    assert peak == LOOKUPS_MAX < COLD_READS_MAX


async def test_checks_of_keys_outside_the_loop_keep_the_order_of_appends() -> None:
    log = new_log(
        config=LogConfig(cleanup_policy=frozenset({"compact"}), max_message_bytes=1 << 24)
    )

    def keyed(count: int, sequence: int) -> RecordBatch:
        return batch(
            [b"v"] * count,
            keys=[b"k"] * count,
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            sequence=sequence,
        )

    large = 50_000
    appends = [
        log.appender.append([keyed(large, 0)], EPOCH),
        log.appender.append([keyed(1, large)], EPOCH),
        log.appender.append([batch([b"keyless"] * large)], EPOCH),
        log.appender.append([keyed(large, large + 1)], EPOCH),
        log.appender.append([batch([b"keyless"])], EPOCH),
        log.appender.append([keyed(1, 2 * large + 1)], EPOCH),
    ]
    results = await asyncio.gather(*appends, return_exceptions=True)
    starts = [each[0].base_offset for each in results if isinstance(each, list)]
    assert starts == [0, large, large + 1, 2 * large + 1]
    refused = [each for each in results if isinstance(each, LogError)]
    assert [each.entry for each in refused] == [INVALID_BODY] * 2


async def test_a_missing_max_timestamp_is_computed_in_the_order_of_appends() -> None:
    log = new_log(config=LogConfig(max_message_bytes=1 << 24))

    def lacking(count: int, timestamp_ms: int) -> RecordBatch:
        data = bytes(batch([b"v"] * count, timestamp_ms=timestamp_ms).data)
        [only] = split_batches(with_field(data, 35, ">q", -1), max_message_bytes=1 << 24)
        return only

    large = 50_000
    appends = [
        log.appender.append([lacking(large, 1000)], EPOCH),
        log.appender.append([batch([b"v"], timestamp_ms=90_000)], EPOCH),
        log.appender.append([lacking(3, 100_000)], EPOCH),
    ]
    results = await asyncio.gather(*appends)
    assert [each[0].base_offset for each in results] == [0, large, large + 1]
    assert (await log.appender.append([lacking(2, 200_000)], EPOCH))[0].base_offset == large + 4
    end = log.log_end_offset
    for timestamp_ms, offset in ((50_999, 49_999), (90_000, large), (200_001, large + 5)):
        found = await log.reader.offset_for_timestamp(timestamp_ms, end=end)
        assert found == (offset, timestamp_ms)
    read = await log.reader.read(Offset(0), end=end, max_bytes=1 << 24)
    assert [header.max_timestamp_ms for _, header in iterate_headers(read.data)] == [
        50_999,
        90_000,
        100_002,
        200_001,
    ]


async def test_appends_keep_their_order_when_a_topic_stops_compacting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The keys of the first are being checked in a thread when the second arrives."""
    log = new_log(
        config=LogConfig(cleanup_policy=frozenset({"compact"}), max_message_bytes=1 << 24)
    )
    checked = asyncio.Event()
    run = log.shared.disk.run

    async def slow(work: Callable[[], Any]) -> Any:
        await checked.wait()
        return await run(work)

    monkeypatch.setattr(log.shared.disk, "run", slow)
    large = 50_000
    first = asyncio.create_task(
        log.appender.append([batch([b"v"] * large, keys=[b"k"] * large)], EPOCH)
    )
    await asyncio.sleep(0)
    log.configure(LogConfig(max_message_bytes=1 << 24))
    second = asyncio.create_task(log.appender.append([batch([b"keyless"])], EPOCH))
    await asyncio.sleep(0)
    checked.set()
    assert [(await one)[0].base_offset for one in (first, second)] == [0, large]
