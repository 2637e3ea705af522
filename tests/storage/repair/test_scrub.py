"""Damage in unread data is found, reported once, at a bounded rate of reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.record.errors import OVERLOADED, STORAGE_FAILED, LogError
from raftlog.record.types import LeaderEpoch, Offset, PartitionId
from raftlog.storage.log.log import Log
from raftlog.storage.log.reader import LogReader
from raftlog.storage.manager import LogManager
from raftlog.storage.types import LogConfig, LogState, StorageSettings
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import PARTITION, TOPIC, Gate, batch, read_all, sent

CONFIG = LogConfig(segment_bytes=700, retention_ms=-1)
INTERVAL_S = 1000


class Node:
    """A node's logs, with hands on its clock."""

    def __init__(self, **settings: int) -> None:
        self.disk = SimulatedDisk()
        self.clock = ManualClock()
        self.settings = StorageSettings(scrub_interval_s=INTERVAL_S, **settings)
        self.reported: list[str] = []

    async def start(self) -> None:
        self.manager = await LogManager.open(self.disk, self.clock, self.settings)

    async def log(self, partition: int = 0, batches: int = 20) -> Log:
        log = await self.manager.open_replica(TOPIC, PartitionId(partition), CONFIG, create=True)
        log.listeners.damaged.append(self.reported.append)
        for number in range(batches):
            await log.appender.append(
                [batch([b"%d" % number + b"x" * 100])], LeaderEpoch(1 + number // 7)
            )
        await log.flush()
        return log

    async def tick(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.manager.tick()

    @property
    def scrubbed_bytes(self) -> int:
        return self.manager.totals().scrubbed_bytes


async def node_with_log(**settings: int) -> tuple[Node, Log]:
    node = Node(**settings)
    await node.start()
    return node, await node.log()


async def test_each_finished_segment_is_read_once_in_the_interval() -> None:
    node, log = await node_with_log()
    other = await node.log(1)
    cold = sum(s.size_bytes for one in (log, other) for s in one.segments.all[:-1])
    assert cold
    for _ in range(5):
        await node.tick(1)
    assert node.scrubbed_bytes == cold
    await node.tick(INTERVAL_S - 5)
    assert node.scrubbed_bytes == cold
    await node.tick(1)
    assert node.scrubbed_bytes == 2 * cold
    assert node.reported == []
    assert node.disk.slow_outside_run == []


async def test_the_rate_is_kept_whatever_the_pauses() -> None:
    node, log = await node_with_log(scrub_bytes_per_s=200)
    piece = max(segment.size_bytes for segment in log.segments.all)
    for ticks in range(1, 6):
        await node.tick(1)
        assert node.scrubbed_bytes <= ticks * 200 + piece
    before = node.scrubbed_bytes
    assert before >= 4 * 200
    await node.tick(600)
    assert node.scrubbed_bytes - before <= 200 + piece


async def test_it_can_be_turned_off() -> None:
    node, _ = await node_with_log(scrub_bytes_per_s=0)
    await node.tick(5)
    assert node.scrubbed_bytes == 0


@pytest.mark.parametrize("byte", [7, 10, 15, 16, 17, 30, 61, 100])
@pytest.mark.parametrize("batch_number", [0, 2])
async def test_any_flipped_bit_is_found_and_reported_once(byte: int, batch_number: int) -> None:
    node, log = await node_with_log()
    segment = log.segments.all[1]
    size = segment.size_bytes // 4
    node.disk.flip_bit(segment.path, 8 * (batch_number * size + byte))
    for _ in range(3):
        await node.tick(INTERVAL_S)
    assert len(node.reported) == 1
    assert segment.path in node.reported[0]
    assert log.damage_found == node.reported[0]
    assert log.state is LogState.ONLINE, "the owner decides"
    assert node.manager.totals().scrub_damage >= 3
    # Intact records stay served; the rest of the log was checked, too.
    assert (await log.reader.read(Offset(0), end=Offset(2), max_bytes=1)).next_offset == 1
    assert node.scrubbed_bytes > segment.size_bytes


async def test_a_part_that_cannot_be_read_and_a_segment_that_lost_its_end_are_damage() -> None:
    node, log = await node_with_log()
    node.disk.fail_next("read", log.segments.all[0].path)
    await node.tick(1)
    assert "cannot be read" in node.reported[0]
    node, log = await node_with_log()
    path = log.segments.all[1].path
    node.disk.put(path, node.disk.contents(path)[:-1])
    log.shared.files.forget(path)
    await node.tick(1)
    assert len(node.reported) == 1


async def test_a_segment_that_lost_its_last_batch_while_the_node_was_down_is_damage() -> None:
    """A start after a clean stop trusts the index, and scans nothing."""
    node, log = await node_with_log()
    segment = log.segments.all[1]
    path, size = segment.path, segment.size_bytes
    await node.manager.close()
    node.disk.put(path, node.disk.contents(path)[: size - size // 4])
    await node.start()
    log = await node.log(batches=0)
    assert log.state is LogState.ONLINE
    await node.tick(1)
    assert len(node.reported) == 1
    assert "are missing" in node.reported[0]


async def test_files_that_go_under_a_read_are_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    node, log = await node_with_log()
    node.clock.advance(1)
    gate = Gate(node.disk, "_read_piece", monkeypatch)
    ticking = asyncio.ensure_future(node.manager.tick())
    await gate.reached.wait()
    await log.operations.restart_at(Offset(0))
    gate.opened.set()
    await ticking
    assert node.reported == []


async def test_files_that_are_rearranged_meanwhile_are_no_damage() -> None:
    node, log = await node_with_log(scrub_bytes_per_s=150)
    await node.tick(1)
    assert 0 < node.scrubbed_bytes < log.size_bytes
    log.high_watermark = log.flushed_offset
    await log.operations.truncate_to(Offset(6))
    await node.tick(1)
    await log.appender.append([batch([b"z" * 400]), batch([b"z" * 400])], LeaderEpoch(9))
    await log.appender.append([batch([b"z" * 400])], LeaderEpoch(9))
    await log.operations.delete_records_before(Offset(5))
    for _ in range(20):
        await node.tick(1)
    await log.operations.restart_at(Offset(90))
    await log.appender.append_fetched(
        sent(batch([b"a" * 700]), base_offset=90, epoch=9), LeaderEpoch(9)
    )
    await log.appender.append_fetched(
        sent(batch([b"b" * 700]), base_offset=95, epoch=9), LeaderEpoch(9)
    )
    await node.tick(INTERVAL_S)
    for _ in range(20):
        await node.tick(1)
    assert node.reported == []


async def test_a_log_that_is_deleted_or_renewed_in_the_middle_is_left_alone() -> None:
    node, log = await node_with_log(scrub_bytes_per_s=150)
    other = await node.log(1)
    await node.tick(1)
    log.declare_damaged("elsewhere")
    await node.manager.renew_replica(TOPIC, PARTITION, CONFIG)
    await node.tick(1)
    await node.manager.delete_replica(TOPIC, PARTITION)
    for _ in range(40):
        await node.tick(1)
    assert node.scrubbed_bytes >= sum(s.size_bytes for s in other.segments.all[:-1])
    assert node.reported == []


async def test_damage_found_by_a_reader_is_reported_once() -> None:
    node, log = await node_with_log()
    path = log.segments.all[0].path
    node.disk.flip_bit(path, 8 * 80)
    for _ in range(2):
        with pytest.raises(LogError) as caught:
            await log.reader.read(Offset(0), end=Offset(1), max_bytes=1)
        assert caught.value.entry is STORAGE_FAILED
    await node.tick(1)
    assert len(node.reported) == 1
    log.declare_damaged(node.reported[0])
    assert log.state is LogState.DAMAGED


async def test_damage_that_went_with_a_restart_is_forgotten() -> None:
    _, log = await node_with_log()
    log.report_damage("a bit has flipped")
    await log.operations.restart_at(Offset(0))
    assert log.damage_found is None


async def test_a_read_error_of_a_reader_is_reported() -> None:
    node, log = await node_with_log(scrub_bytes_per_s=0)
    node.disk.cold = True
    node.disk.fail_next("read", ".log")
    with pytest.raises(LogError):
        await log.reader.read(Offset(0), end=Offset(1), max_bytes=1)
    assert len(node.reported) == 1
    assert len(await read_all(log)) == 20


async def test_nothing_is_reported_of_a_log_out_of_service() -> None:
    node, log = await node_with_log()
    log.declare_damaged("first")
    log.report_damage("second")
    assert node.reported == []


async def test_files_that_keep_changing_under_a_reader_are_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, log = await node_with_log(scrub_bytes_per_s=0)
    chunk = LogReader._chunk

    async def changing(self: LogReader, *arguments: Any) -> Any:
        log.segments.generation += 1
        return await chunk(self, *arguments)

    monkeypatch.setattr(LogReader, "_chunk", changing)
    with pytest.raises(LogError) as caught:
        await log.reader.read(Offset(0), end=Offset(1), max_bytes=1)
    assert caught.value.entry is OVERLOADED
    assert node.reported == []


async def test_a_wrong_epoch_of_a_deleted_record_is_no_damage_of_its_neighbours() -> None:
    """No history tells which epoch a deleted record has, so no repair could mend it."""
    node, log = await node_with_log()
    segment = log.segments.all[0]
    log.high_watermark = log.log_end_offset
    await log.operations.delete_records_before(Offset(2))
    await node.manager.close()
    await node.start()
    log = await node.log(batches=0)
    assert log.segments.all[0].path == segment.path
    assert log.leader_epochs.epoch_for(Offset(0)) is None
    # The leader epoch is no part of what the CRC covers.
    node.disk.flip_bit(segment.path, 8 * 15 + 1)
    for _ in range(5):
        await node.tick(INTERVAL_S)
    assert not node.reported
