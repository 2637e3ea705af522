from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from raftlog.record.errors import DISK_FULL, ILLEGAL_STATE, STORAGE_FAILED, UNKNOWN_TOPIC, LogError
from raftlog.record.types import Offset, PartitionId, TopicId
from raftlog.storage.checkpoints.checkpoint_file import (
    CHECKPOINT_NAME,
    STARTED_NAME,
    UNREADABLE_NAME,
)
from raftlog.storage.checkpoints.checkpoints import NodeCheckpoint, decode_checkpoint
from raftlog.storage.compaction.rewrite import CompactionPass
from raftlog.storage.log.log import Log
from raftlog.storage.log.reader import LogReader
from raftlog.storage.manager import LogManager
from raftlog.storage.segments.scan import scan
from raftlog.storage.types import FlushMode, LogConfig, LogState, ReadResult, StorageSettings
from raftlog.world import DiskError, DiskFullError
from raftlog.world.real_disk import FileSystemDisk
from raftlog.world.time import SystemClock
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import EPOCH, PARTITION, TOPIC, batch, read_all

CONFIG = LogConfig(segment_bytes=2000)

DAY_MS = 86_400_000


class Node:
    """A manager on a simulated disk, with hands on its clock."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = ManualClock()
        self.settings = StorageSettings(recovery_bytes_max=500)
        self.failures: list[str] = []

    async def start(self) -> LogManager:
        return await LogManager.open(
            self.disk, self.clock, self.settings, on_failed=self.failures.append
        )

    async def start_with_log(self, config: LogConfig = CONFIG) -> tuple[LogManager, Log]:
        manager = await self.start()
        return manager, await manager.open_replica(TOPIC, PARTITION, config, create=True)

    def checkpoint(self) -> NodeCheckpoint:
        found = decode_checkpoint(self.disk.contents(CHECKPOINT_NAME))
        assert isinstance(found, NodeCheckpoint)
        return found


async def test_logs_are_found_again_after_a_clean_stop_without_a_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    log.high_watermark = Offset(1)
    await manager.close()
    assert node.checkpoint().clean_shutdown
    node.disk.crash(power=True)
    monkeypatch.setattr("raftlog.storage.log.opening.scan", None)
    manager, log = await node.start_with_log()
    assert await read_all(log) == [b"a"]
    assert log.high_watermark == 1


async def test_the_clean_marker_is_taken_away_before_anything_else_is_done() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    await manager.close()
    node.disk.crash(power=False)
    await node.start()
    node.disk.crash(power=True)
    assert not node.checkpoint().clean_shutdown


async def test_a_crash_after_the_marker_is_gone_is_an_unclean_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    await manager.close()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"b"])], EPOCH)
    await log.flush()
    node.disk.crash(power=True)
    manager, log = await node.start_with_log()
    assert await read_all(log) == [b"a", b"b"]
    assert log.log_end_offset == 2


async def test_a_replica_not_opened_for_a_whole_run_keeps_its_unclean_state() -> None:
    node = Node()
    manager, _ = await node.start_with_log()
    other = await manager.open_replica(TOPIC, PartitionId(1), CONFIG, create=True)
    await other.appender.append([batch([b"other"])], EPOCH)
    await other.flush()
    await other.appender.append([batch([b"unsynced"])], EPOCH)
    node.disk.crash(power=True)
    manager, _ = await node.start_with_log()
    assert manager.strays() == [f"{TOPIC}/1"]
    await manager.close()
    manager = await node.start()
    other = await manager.open_replica(TOPIC, PartitionId(1), CONFIG, create=False)
    assert other.state is LogState.ONLINE
    assert (await read_all(other))[0] == b"other"
    assert other.flushed_offset == other.log_end_offset


async def test_strays_are_reported_and_never_deleted() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    await manager.close()
    for _ in range(3):
        manager = await node.start()
        assert manager.strays() == [f"{TOPIC}/0"]
        await manager.start()
        await manager.tick()
        await manager.close()
    manager, log = await node.start_with_log()
    assert manager.strays() == []
    assert await read_all(log) == [b"a"]


async def test_a_missing_replica_is_not_created_again_without_a_request() -> None:
    node = Node()
    manager = await node.start()
    with pytest.raises(LogError) as refused:
        await manager.open_replica(TOPIC, PARTITION, CONFIG, create=False)
    assert refused.value.entry is STORAGE_FAILED
    assert manager.logs() == {}


async def test_a_new_replica_survives_a_power_cut_right_after_its_making() -> None:
    node = Node()
    await node.start_with_log()
    node.disk.crash(power=True)
    manager = await node.start()
    log = await manager.open_replica(TOPIC, PARTITION, CONFIG, create=False)
    assert log.state is LogState.ONLINE


async def test_a_replica_asked_for_many_times_at_once_is_opened_once() -> None:
    node = Node(SimulatedDisk(yields=True))
    manager = await node.start()
    logs = await asyncio.gather(
        *(manager.open_replica(TOPIC, PARTITION, CONFIG, create=True) for _ in range(5))
    )
    assert len(set(map(id, logs))) == 1
    assert await manager.open_replica(TOPIC, PARTITION, CONFIG, create=True) is logs[0]


async def test_an_unreadable_checkpoint_file_is_kept_and_all_is_scanned() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    for number in range(100):
        await log.appender.append([batch([b"%d" % number])], EPOCH)
    await manager.close()
    content = bytearray(node.disk.contents(CHECKPOINT_NAME))
    content[len(content) // 2] ^= 4
    node.disk.put(CHECKPOINT_NAME, bytes(content))
    manager, log = await node.start_with_log()
    assert len(await read_all(log)) == 100
    assert node.disk.contents(UNREADABLE_NAME) == content


MARKS = f"replicas/{TOPIC}/{PARTITION}/replica-marks"


def damage(node: Node, path: str) -> None:
    content = bytearray(node.disk.contents(path))
    content[len(content) // 2] ^= 4
    node.disk.put(path, bytes(content))


async def begun_at_40(node: Node) -> Log:
    manager, log = await node.start_with_log()
    for number in range(100):
        await log.appender.append([batch([b"%d" % number])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    assert await log.operations.delete_records_before(Offset(40)) == 40
    await manager.close()
    return log


async def test_deleted_records_stay_deleted_without_a_readable_checkpoint() -> None:
    node = Node()
    await begun_at_40(node)
    damage(node, CHECKPOINT_NAME)
    _, log = await node.start_with_log()
    assert (log.state, log.log_start_offset) == (LogState.ONLINE, 40)
    assert await read_all(log) == [b"%d" % number for number in range(40, 100)]


async def test_without_checkpoint_and_marks_a_log_is_damaged_and_not_guessed() -> None:
    node = Node()
    await begun_at_40(node)
    damage(node, CHECKPOINT_NAME)
    damage(node, MARKS)
    _, log = await node.start_with_log()
    assert log.state is LogState.DAMAGED
    assert node.disk.exists(MARKS)


async def test_damaged_marks_do_not_matter_beside_a_readable_checkpoint() -> None:
    node = Node()
    await begun_at_40(node)
    damage(node, MARKS)
    _, log = await node.start_with_log()
    assert (log.state, log.log_start_offset) == (LogState.ONLINE, 40)


@pytest.mark.parametrize("found", ["in service", "at a start"])
async def test_known_damage_is_not_forgotten_with_the_checkpoint(found: str) -> None:
    node = Node()
    manager, log = await node.start_with_log()
    for number in range(100):
        await log.appender.append([batch([b"%d" % number])], EPOCH)
    if found == "in service":
        log.declare_damaged("records are missing")
    await manager.close()
    if found == "at a start":
        newest = log.segments.active.path
        node.disk.put(newest, b"")
        assert (await node.start_with_log())[1].state is LogState.DAMAGED
    damage(node, CHECKPOINT_NAME)
    _, log = await node.start_with_log()
    assert log.state is LogState.DAMAGED


async def test_a_replaced_replica_does_not_inherit_damage() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    log.declare_damaged("records are missing")
    await manager.renew_replica(TOPIC, PARTITION, CONFIG)
    await manager.close()
    damage(node, CHECKPOINT_NAME)
    _, log = await node.start_with_log()
    assert log.state is LogState.ONLINE


async def test_a_deleted_topic_is_gone_at_once_and_removed_in_steps() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    for number in range(100):
        await log.appender.append([batch([b"%d" % number])], EPOCH)
    await log.flush()
    waiting = asyncio.ensure_future(log.appender.append([batch([b"x"])], EPOCH))
    await waiting
    await manager.delete_topic(TOPIC)
    with pytest.raises(LogError) as refused:
        await log.appender.append([batch([b"x"])], EPOCH)
    assert refused.value.entry is UNKNOWN_TOPIC
    assert manager.logs() == {}
    assert node.checkpoint().replicas == {}
    assert node.disk.list_directory(f"deleted/{TOPIC}") == ["0"]
    for _ in range(20):
        await manager.tick()
    assert node.disk.list_directory("deleted") == []
    await manager.delete_topic(TOPIC)


async def test_deleting_a_topic_makes_room_on_a_full_disk() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.flush()
    node.disk.capacity_bytes = node.disk.used_bytes()
    await manager.delete_topic(TOPIC)
    await manager.tick()
    assert node.disk.list_directory("deleted") == []
    node.disk.capacity_bytes = None
    node.clock.advance(60)
    await manager.tick()
    assert node.checkpoint().replicas == {}


async def test_a_topic_deletion_that_was_interrupted_goes_on_at_the_next_start() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.flush()
    await manager.delete_topic(TOPIC)
    node.disk.crash(power=True)
    manager = await node.start()
    assert manager.strays() == []
    await manager.start()
    await manager.tick()
    await manager.close()
    assert node.disk.list_directory("deleted") == []


async def test_ticks_advance_the_recovery_point_and_write_it_down() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    for number in range(10):
        await log.appender.append([batch([b"%d" % number, b"x" * 100])], EPOCH)
    await log.flush()
    assert log.recovery.recovery_point == 0
    node.clock.advance(2)
    await manager.tick()
    assert log.recovery.recovery_point == log.log_end_offset == 20
    checkpoint = node.checkpoint().replicas[f"{TOPIC}/0"]
    assert (checkpoint.recovery_point, checkpoint.flushed_offset) == (20, 20)
    writes = node.disk.operations["rename"]
    node.clock.advance(5)
    await manager.tick()
    assert node.disk.operations["rename"] == writes, "an idle node has nothing to write down"


async def test_ticks_sync_async_logs_once_their_interval_is_over() -> None:
    node = Node()
    manager, log = await node.start_with_log(LogConfig(flush=FlushMode.ASYNC))
    await log.appender.append([batch([b"a"])], EPOCH)
    await manager.tick()
    assert log.flushed_offset == 0
    node.clock.advance(1.1)
    await manager.tick()
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.flushed_offset == 1


async def test_appends_leave_a_reserve_of_the_disk() -> None:
    node = Node(SimulatedDisk(capacity_bytes=5 << 20))
    node.settings = StorageSettings(reserve_bytes=4 << 20)
    manager, log = await node.start_with_log(LogConfig())
    with pytest.raises(LogError):
        while True:
            await log.appender.append([batch([b"x" * 100_000])], EPOCH)
            await manager.tick()
    assert node.disk.free_bytes() > 3 << 20
    node.disk.capacity_bytes = None
    await manager.tick()
    await log.appender.append([batch([b"x"])], EPOCH)


async def test_reserve_and_scrub_rate_change_while_the_node_runs() -> None:
    node = Node(SimulatedDisk(capacity_bytes=16 << 20))
    manager, log = await node.start_with_log(LogConfig())
    await manager.tick()
    room = manager.room_bytes
    manager.limit(reserve_bytes=16 << 20, scrub_bytes_per_s=0)
    assert manager.room_bytes == room - (12 << 20)
    with pytest.raises(LogError):
        await log.appender.append([batch([b"x" * 100_000])], EPOCH)
    manager.limit(reserve_bytes=4 << 20, scrub_bytes_per_s=8 << 20)
    await log.appender.append([batch([b"x"])], EPOCH)


@pytest.mark.parametrize("clean", [False, True])
async def test_a_node_starts_and_serves_reads_on_a_full_disk(clean: bool) -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.flush()
    if clean:
        await manager.close()
    node.disk.crash(power=False)
    node.disk.capacity_bytes = node.disk.used_bytes()
    manager, log = await node.start_with_log()
    assert await read_all(log) == [b"a"]
    with pytest.raises(LogError) as refused:
        await log.appender.append([batch([b"b"])], EPOCH)
    assert refused.value.entry is DISK_FULL
    with pytest.raises(LogError) as refused:
        await manager.open_replica(TOPIC, PartitionId(1), CONFIG, create=True)
    assert refused.value.entry is DISK_FULL
    node.disk.crash(power=True)
    assert node.disk.exists(STARTED_NAME)
    node.disk.capacity_bytes = None
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"b"])], EPOCH)
    assert await read_all(log) == [b"a", b"b"]
    assert not node.disk.exists(STARTED_NAME)
    log = await manager.open_replica(TOPIC, PartitionId(1), CONFIG, create=True)
    assert log.state is LogState.ONLINE


async def test_a_full_disk_delays_checkpoints_and_nothing_else() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"x" * 600])], EPOCH)
    await log.flush()
    node.disk.fail_next("append", ".tmp", DiskFullError)
    node.clock.advance(2)
    await manager.tick()
    assert log.state is LogState.ONLINE
    node.clock.advance(2)
    await manager.tick()
    assert log.recovery.recovery_point == 1


async def test_a_failing_checkpoint_file_ends_maintenance_and_is_reported() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await manager.start()
    await log.appender.append([batch([b"x"])], EPOCH)
    await log.flush()
    node.disk.fail_next("sync", CHECKPOINT_NAME, DiskError)
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(node.failures) == 1
    assert CHECKPOINT_NAME in node.failures[0]
    with pytest.raises(DiskError):
        await manager.close()


async def test_it_is_reported_though_an_opening_replica_has_met_it_and_no_log_changes() -> None:
    # Otherwise the node would live on without ever opening a replica (data 206619).
    node = Node()
    manager = await node.start()
    await manager.start()
    node.disk.fail_next("rename", CHECKPOINT_NAME, DiskError)
    with pytest.raises(LogError):
        await manager.open_replica(TOPIC, PartitionId(1), CONFIG, create=True)
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(node.failures) == 1
    with pytest.raises(DiskError):
        await manager.close()


async def test_a_failed_log_leaves_the_others_alone_and_is_scanned_at_the_next_start() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    other = await manager.open_replica(TOPIC, PartitionId(1), CONFIG, create=True)
    await log.appender.append([batch([b"a"])], EPOCH)
    await log.flush()
    node.disk.fail_next("sync", "/0/")
    await asyncio.gather(
        log.appender.append([batch([b"b"])], EPOCH), other.appender.append([batch([b"c"])], EPOCH)
    )
    await other.flush()
    assert (log.state, other.state) == (LogState.FAILED, LogState.ONLINE)
    assert manager.totals().failed == 1
    await manager.close()
    node.disk.crash(power=True)
    manager, log = await node.start_with_log()
    assert await read_all(log) == [b"a"]


async def test_a_stopping_manager_opens_nothing_more() -> None:
    node = Node()
    manager = await node.start()
    await manager.close()
    with pytest.raises(LogError) as refused:
        await manager.open_replica(TOPIC, PARTITION, CONFIG, create=True)
    assert refused.value.entry is ILLEGAL_STATE


async def test_many_logs_work_on_a_real_disk(tmp_path: Path) -> None:
    disk = FileSystemDisk(tmp_path)
    clock = SystemClock()
    manager = await LogManager.open(disk, clock)
    topics = [TopicId(f"{number:032x}") for number in range(20)]
    logs = await asyncio.gather(
        *(manager.open_replica(topic, PARTITION, CONFIG, create=True) for topic in topics)
    )
    await manager.start()
    for number in range(10):
        one = batch([b"%d" % number, b"x" * 300])
        await asyncio.gather(*(log.appender.append([one], EPOCH) for log in logs))
    await asyncio.gather(*(log.flush() for log in logs))
    await manager.close()
    disk.close()
    disk = FileSystemDisk(tmp_path)
    manager = await LogManager.open(disk, clock)
    for topic in topics:
        log = await manager.open_replica(topic, PARTITION, CONFIG, create=False)
        assert len(await read_all(log)) == 20
    totals = manager.totals()
    assert (totals.replicas, totals.segments) == (20, 40)
    await manager.close()
    disk.close()


STRAYS = (
    ".DS_Store",
    "lost+found/",
    "replicas/.DS_Store",
    "replicas/.Trash-0/files/",
    f"replicas/{TOPIC}/.DS_Store",
    f"replicas/{TOPIC}/0/.DS_Store",
    f"replicas/{TOPIC}/0/lost+found/",
    f"replicas/{TOPIC}/0/{'9' * 20}.log",
    f"replicas/{TOPIC}/0/{'9' * 20}.index",
    f"replicas/{TOPIC}/0/{'9' * 20}.snapshot",
    f"replicas/{TOPIC}/0/{'٣' * 20}.log",
    f"replicas/{TOPIC}/0/{'0' * 20}-{'9' * 20}.swap",
    f"replicas/{TOPIC}/0/{'0' * 20}.log~",
    "deleted/.DS_Store",
    "damaged/.DS_Store",
)
"""What file managers, backups and mkfs leave behind."""


@pytest.mark.parametrize("stray", STRAYS)
async def test_a_stray_file_stops_no_start(tmp_path: Path, stray: str) -> None:
    for is_first in (True, False):
        disk = FileSystemDisk(tmp_path)
        manager = await LogManager.open(disk, SystemClock())
        log = await manager.open_replica(TOPIC, PARTITION, CONFIG, create=is_first)
        await manager.start()
        if is_first:
            await log.appender.append([batch([b"a"])], EPOCH)
        assert (log.state, await read_all(log)) == (LogState.ONLINE, [b"a"])
        await manager.tick()
        await manager.close()
        disk.close()
        assert is_first or stray.startswith("deleted/") or (tmp_path / stray).exists()
        (tmp_path / stray).parent.mkdir(parents=True, exist_ok=True)
        if stray.endswith("/"):
            (tmp_path / stray).mkdir(exist_ok=True)
        else:
            (tmp_path / stray).touch()


async def test_neither_ticks_nor_deletions_wait_for_a_compaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    manager, log = await node.start_with_log(
        LogConfig(segment_bytes=400, cleanup_policy=frozenset({"compact"}))
    )
    for number in range(20):
        await log.appender.append([batch([b"%d" % number], keys=[b"a"])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    gate = asyncio.Event()
    read = LogReader.read_raw

    async def slowly(self: LogReader, start: Offset, *, end: Offset, max_bytes: int) -> ReadResult:
        await gate.wait()
        return await read(self, start, end=end, max_bytes=max_bytes)

    monkeypatch.setattr(LogReader, "read_raw", slowly)
    compaction = asyncio.ensure_future(log.compact(node.clock.time_ms()))
    await asyncio.sleep(0)
    segments = len(log.segments)
    node.clock.advance(100)
    await asyncio.wait_for(manager.tick(), 5)
    assert await asyncio.wait_for(log.operations.delete_records_before(Offset(10)), 5) == 10
    assert node.checkpoint().replicas[f"{TOPIC}/0"].log_start_offset == 10
    assert not compaction.done()
    gate.set()
    await compaction
    assert await log.operations.apply_retention(node.clock.time_ms()) > 0
    assert len(log.segments) < segments
    await manager.close()


async def test_the_snapshot_that_the_checkpoint_file_names_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    manager, log = await node.start_with_log()
    await log.appender.append([batch([b"a"])], EPOCH)
    node.clock.advance(11)
    await manager.tick()
    named = node.checkpoint().replicas[f"{TOPIC}/0"].recovery_point
    assert named == 1
    for _ in range(6):
        await log.appender.append([batch([b"b"])], EPOCH)
        await log.operations.checkpoint()
    node.disk.crash(power=True)
    scanned: list[int] = []
    monkeypatch.setattr(
        "raftlog.storage.log.opening.scan",
        lambda file, position, *rest: scanned.append(position) or scan(file, position, *rest),
    )
    manager, log = await node.start_with_log()
    assert log.log_end_offset == 7
    assert scanned == [batch([b"a"]).header.size_bytes]


async def test_snapshots_that_the_checkpoint_file_has_passed_go() -> None:
    node = Node()
    manager, log = await node.start_with_log()
    for _ in range(20):
        await log.appender.append([batch([b"b"])], EPOCH)
        node.clock.advance(11)
        await manager.tick()
    names = node.disk.list_directory(f"replicas/{TOPIC}/0")
    assert len([name for name in names if name.endswith(".snapshot")]) <= 3


async def test_maintenance_goes_on_until_all_of_a_log_is_compacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "raftlog.storage.compaction.run.CompactionPass", partial(CompactionPass, keys_max=5)
    )
    node = Node()
    manager, log = await node.start_with_log(
        LogConfig(
            segment_bytes=400,
            cleanup_policy=frozenset({"compact"}),
            min_cleanable_dirty_ratio=0.9,
        )
    )
    for number in range(60):
        await log.appender.append([batch([b"x"], keys=[b"%d" % (number % 30)])], EPOCH)
    await log.flush()
    log.high_watermark = log.flushed_offset
    await manager.tick()
    for _ in range(1000):
        await asyncio.sleep(0)
    end_offset = log.segments.active.base_offset
    assert log.current_checkpoint().compaction.first_dirty_offset == end_offset
    await manager.close()


async def test_a_start_dates_no_segment_by_a_clock_behind_the_clusters() -> None:
    """A start finds a segment without a date, before it knows the cluster time."""
    disk, clock = SimulatedDisk(), ManualClock()
    true_ms = clock.now_ms
    clock.now_ms -= 14 * DAY_MS
    for count in (1, 2):
        manager = await LogManager.open(disk, clock)
        manager.cluster_clock.follow_cluster_time()
        log = await manager.open_replica(TOPIC, PARTITION, LogConfig(), create=count == 1)
        await log.appender.append([batch([b"a"])], EPOCH)
        await manager.tick()
        assert log.segments.all[0].first_append_ms is None
        if count == 1:
            await manager.close()
    manager.cluster_clock.note_cluster_time(true_ms, true_ms)
    (info,) = log.operations.segment_infos()
    assert info.created_ms == true_ms
    await manager.close()


async def test_segments_are_not_dated_by_a_clock_behind_the_clusters() -> None:
    """Once the clock is right, a segment dated two weeks before would look old (seed 46)."""
    disk, clock = SimulatedDisk(), ManualClock()
    true_ms = clock.now_ms
    clock.now_ms -= 14 * DAY_MS
    manager = await LogManager.open(disk, clock)
    manager.cluster_clock.follow_cluster_time()
    log = await manager.open_replica(
        TOPIC, PARTITION, LogConfig(segment_bytes=100, retention_ms=DAY_MS), create=True
    )
    soon_ms = true_ms + 60_000
    await log.appender.append([batch([b"a" * 60], timestamp_ms=soon_ms)], EPOCH)
    await manager.tick()
    assert log.segments.all[0].first_append_ms is None, "no cluster time yet"
    # Of two clocks, the lower one is the wrong one.
    manager.cluster_clock.note_cluster_time(clock.now_ms, true_ms)
    await manager.tick()
    await log.appender.append([batch([b"b" * 60], timestamp_ms=soon_ms)], EPOCH)
    assert log.segments.all[1].first_append_ms == true_ms
    await log.flush()
    log.high_watermark = log.flushed_offset
    assert await log.operations.apply_retention(true_ms) == 0
    assert log.segments.all[0].first_append_ms == true_ms
    await manager.close()
