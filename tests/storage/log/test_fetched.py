"""A follower appends its leader's bytes unchanged and whole, or not at all."""

from __future__ import annotations

import pytest

from raftlog.record.errors import (
    CORRUPT_BATCH,
    DISK_FULL,
    MALFORMED_BATCH,
    NO_LEADER,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.header import parse_header
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.checkpoints.checkpoints import StartKind
from raftlog.storage.leader_epochs import EpochEntry
from raftlog.storage.log.appending import check_fetched
from raftlog.storage.log.core import disk_full
from raftlog.storage.log.log import Log
from raftlog.storage.types import LogConfig, LogState
from raftlog.world import DiskError, DiskFullError
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import EPOCH, all_bytes, batch, new_log, numbered, read_all, sent

TWO = batch([b"a", b"b"])
ONE = batch([b"c"])


def check(data: bytes, *, end: int = 0, last_epoch: int = 0, leader_epoch: int = 5) -> int:
    found = check_fetched(data, Offset(end), LeaderEpoch(last_epoch), LeaderEpoch(leader_epoch))
    return found.next_offset


def entries(log: Log) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in log.leader_epochs.entries]


def test_batches_that_follow_the_log_and_each_other_are_taken() -> None:
    assert check(sent(TWO, ONE, base_offset=7), end=7) == 10


@pytest.mark.parametrize(
    ("data", "end", "reason"),
    [
        (b"", 0, "no record batch"),
        (sent(TWO)[:-1], 0, "cut off"),
        (sent(TWO)[:60], 0, "60 bytes left"),
        (sent(TWO, base_offset=4), 5, "goes on at 5"),
        (sent(TWO) + sent(ONE, base_offset=1), 0, "goes on at 2"),
        (sent(TWO, epoch=2), 0, "epoch 2 after 3"),
        (sent(TWO, epoch=6), 0, "from a leader of epoch 5"),
        (sent(TWO, epoch=5) + sent(ONE, base_offset=2, epoch=4), 0, "epoch 4 after 5"),
        (sent(TWO, epoch=4)[:-1] + b"?", 0, "CRC"),
        (sent(TWO, epoch=4) + sent(ONE, base_offset=2, epoch=4)[:-1] + b"?", 0, "CRC"),
        (sent(TWO) + sent(ONE, base_offset=2**31), 0, "one segment"),
    ],
)
def test_anything_else_is_refused_whole(data: bytes, end: int, reason: str) -> None:
    with pytest.raises(LogError, match=reason) as caught:
        check(data, end=end, last_epoch=3 if "epoch" in reason or reason == "CRC" else 0)
    assert caught.value.entry is (CORRUPT_BATCH if reason == "CRC" else MALFORMED_BATCH)


async def test_a_follower_has_the_bytes_epochs_and_producers_of_its_leader() -> None:
    leader, follower = new_log(), new_log()
    written: list[bytes] = []
    leader.listeners.appended.append(lambda *reported: written.append(b"".join(reported[2])))
    for number, epoch in enumerate((1, 1, 3)):
        await leader.appender.append([numbered([b"a", b"b"], 2 * number)], LeaderEpoch(epoch))
    for data, epoch in zip(written, (1, 1, 3), strict=True):
        assert follower.appender.append_fetched_now(data, LeaderEpoch(epoch))
    assert await all_bytes(follower) == await all_bytes(leader)
    assert entries(follower) == entries(leader) == [(1, 0), (3, 4)]
    # The follower becomes the leader, and knows the producers.
    again = await follower.appender.append([numbered([b"a", b"b"], 2)], LeaderEpoch(4))
    assert [result.base_offset for result in again if result.duplicate] == [2]
    with pytest.raises(LogError, match="6 is next"):
        await follower.appender.append([numbered([b"z"], 8)], LeaderEpoch(4))


async def test_what_is_refused_leaves_no_trace() -> None:
    log = new_log()
    good = sent(TWO)
    with pytest.raises(LogError, match="CRC"):
        log.appender.append_fetched_now(good + sent(ONE, base_offset=2)[:-1] + b"?", EPOCH)
    assert (log.log_end_offset, log.size_bytes, entries(log)) == (0, 0, [])
    assert log.appender.append_fetched_now(good, EPOCH)


async def test_no_record_is_taken_that_is_older_than_the_last_one() -> None:
    log = new_log()
    await log.appender.append_fetched(sent(TWO, epoch=3), LeaderEpoch(3))
    with pytest.raises(LogError, match="epoch 2 after 3"):
        log.appender.append_fetched_now(sent(ONE, base_offset=2, epoch=2), LeaderEpoch(4))


async def test_a_leaders_gap_is_written_down_before_it_is_taken() -> None:
    """Otherwise the next start takes the gap for damage."""
    disk = SimulatedDisk()
    log = new_log(disk)
    assert log.appender.append_fetched_now(sent(TWO), EPOCH)
    gap = sent(ONE, base_offset=7)
    assert not log.appender.append_fetched_now(gap, EPOCH)
    assert log.log_end_offset == 2
    published: list[int] = []

    async def publish() -> None:
        published.append(log.current_checkpoint().gaps_below)
        assert log.log_end_offset == 2

    log._publish = publish
    await log.appender.append_fetched(gap, EPOCH)
    assert published[0] > 7
    assert log.appender.append_fetched_now(sent(ONE, base_offset=20), EPOCH), (
        "near ones are noted with it"
    )
    assert len(published) == 1
    checkpoint = log.current_checkpoint()
    await log.flush()
    disk.crash(power=False)
    again = new_log(disk, checkpoint=checkpoint, start=StartKind.PROCESS_CRASH)
    assert again.state is LogState.ONLINE
    assert again.log_end_offset == 21


@pytest.mark.parametrize("kept", [1, 7, 8, 12, 30, 60, 62, 68])
async def test_a_write_behind_a_gap_that_a_crash_cut_short_is_no_damage(kept: int) -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    await log.appender.append_fetched(sent(TWO), EPOCH)
    await log.appender.append_fetched(sent(ONE, base_offset=7), EPOCH)
    checkpoint = log.current_checkpoint()
    await log.flush()
    size = log.size_bytes
    assert log.appender.append_fetched_now(sent(ONE, base_offset=12), EPOCH)
    disk.crash(power=False)
    with_tail = disk.contents("replica/00000000000000000000.log")
    disk.put("replica/00000000000000000000.log", with_tail[: size + kept])
    again = new_log(disk, checkpoint=checkpoint, start=StartKind.PROCESS_CRASH)
    assert again.state is LogState.ONLINE
    assert again.log_end_offset == 8


async def test_a_gap_that_could_not_be_written_down_is_not_taken() -> None:
    log = new_log()
    await log.appender.append_fetched(sent(TWO), EPOCH)
    gap = sent(ONE, base_offset=7)

    async def full() -> None:
        raise DiskFullError("no room")

    publish, log._publish = log._publish, full
    for _ in range(2):
        with pytest.raises(LogError) as caught:
            await log.appender.append_fetched(gap, EPOCH)
        assert caught.value.entry is DISK_FULL
        assert not log.appender.append_fetched_now(gap, EPOCH)
    log._publish = publish
    await log.appender.append_fetched(gap, EPOCH)
    assert log.log_end_offset == 8


async def test_segments_are_begun_when_they_are_full_and_order_is_kept() -> None:
    log = new_log(config=LogConfig(segment_bytes=200))
    big = batch([b"x" * 120])
    assert log.appender.append_fetched_now(sent(big), EPOCH)
    assert not log.appender.append_fetched_now(sent(big, base_offset=1), EPOCH)
    await log.appender.append_fetched(sent(big, base_offset=1), EPOCH)
    await log.appender.append_fetched(sent(big, base_offset=2), EPOCH)
    assert len(log.segments) == 3
    assert len(await read_all(log)) == 3


async def test_a_full_disk_refuses_and_a_failed_write_ends_the_log() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    disk.fail_next("append", ".log", DiskFullError)
    with pytest.raises(LogError, match=disk_full("replica").message):
        log.appender.append_fetched_now(sent(TWO), EPOCH)
    assert log.appender.append_fetched_now(sent(TWO), EPOCH)
    log.shared.room_bytes = 10
    with pytest.raises(LogError) as caught:
        await log.appender.append_fetched(sent(ONE, base_offset=2), EPOCH)
    assert caught.value.entry is DISK_FULL
    log.shared.room_bytes = 1 << 30
    disk.fail_next("append", ".log", DiskError)
    with pytest.raises(LogError) as caught:
        log.appender.append_fetched_now(sent(ONE, base_offset=2), EPOCH)
    assert caught.value.entry is STORAGE_FAILED
    assert log.state is LogState.FAILED


async def test_the_leaders_limit_for_messages_is_not_asked_again() -> None:
    log = new_log(config=LogConfig(max_message_bytes=10))
    assert log.appender.append_fetched_now(sent(TWO), EPOCH)


async def test_a_batch_that_holds_the_log_start_is_taken_whole_by_an_empty_log() -> None:
    """delete-records can put a leader's log start into the middle of a batch."""
    disk = SimulatedDisk()
    log = new_log(disk)
    await log.appender.append_fetched(sent(TWO), EPOCH)
    await log.operations.restart_at(Offset(15))
    around = sent(batch([b"%d" % n for n in range(10, 20)]), base_offset=10)
    assert not log.appender.append_fetched_now(around, EPOCH)
    await log.appender.append_fetched(around, EPOCH)
    assert (log.log_start_offset, log.log_end_offset) == (15, 20)
    assert await read_all(log) == [b"%d" % n for n in range(15, 20)]
    await log.flush()
    checkpoint = await log.operations.checkpoint()
    disk.crash(power=True)
    again = new_log(disk, checkpoint=checkpoint, start=StartKind.POWER_LOSS)
    assert (again.log_start_offset, again.log_end_offset) == (15, 20)
    # Only where the log is empty: elsewhere the restart would remove records.
    with pytest.raises(LogError, match="goes on at 20"):
        await again.appender.append_fetched(sent(TWO, base_offset=19), EPOCH)


async def test_an_epoch_that_began_here_and_wrote_nothing_gives_way_to_the_leaders_records() -> (
    None
):
    """Leader of epoch 4 fails; this one leads in 5, writes nothing; the first one leads again."""
    log = new_log()
    await log.appender.append_fetched(sent(TWO, epoch=3), LeaderEpoch(3))
    log.appender.become_leader(LeaderEpoch(5))
    assert entries(log) == [(3, 0), (5, 2)]
    assert log.last_epoch == 3
    assert log.appender.append_fetched_now(sent(ONE, base_offset=2, epoch=4), LeaderEpoch(6))
    assert entries(log) == [(3, 0), (4, 2)]
    assert log.last_epoch == 4


async def test_a_leader_begins_its_epoch_before_its_first_append() -> None:
    log = new_log()
    await log.appender.append([TWO], LeaderEpoch(1))
    log.appender.become_leader(LeaderEpoch(4))
    assert log.leader_epochs.latest == EpochEntry(LeaderEpoch(4), Offset(2))
    with pytest.raises(LogError) as caught:
        log.appender.become_leader(LeaderEpoch(3))
    assert caught.value.entry is NO_LEADER
    log.appender.become_leader(LeaderEpoch(4))
    await log.appender.append([ONE], LeaderEpoch(4))
    assert entries(log) == [(1, 0), (4, 2)]


async def test_the_guard_is_asked_each_time_an_append_is_tried() -> None:
    log = new_log(config=LogConfig(segment_bytes=200))
    calls: list[int] = []

    def guard() -> None:
        calls.append(len(log.segments))
        if len(calls) == 7:
            raise LogError(DISK_FULL, "not any more")

    big = batch([b"x" * 120])
    await log.appender.append([big], EPOCH, guard=guard)
    await log.appender.append([big], EPOCH, guard=guard)
    assert calls == [1, 1, 1, 2]
    with pytest.raises(LogError, match="not any more"):
        await log.appender.append([big], EPOCH, guard=guard)
    assert log.log_end_offset == 2


async def test_listeners_get_appends_as_written() -> None:
    log = new_log()
    reported: list[tuple[int, int, bytes, int]] = []
    log.listeners.appended.append(
        lambda base, end, parts, size: reported.append((base, end, b"".join(parts), size))
    )
    await log.appender.append([TWO, ONE], EPOCH)
    await log.appender.append([numbered([b"n"], 0)], EPOCH)
    await log.appender.append([numbered([b"n"], 0), numbered([b"m"], 1)], EPOCH)
    await log.appender.append([numbered([b"n"], 0)], EPOCH)
    assert [(base, end) for base, end, _, _ in reported] == [(0, 3), (3, 4), (4, 5)]
    assert b"".join(data for _, _, data, _ in reported) == await all_bytes(log)
    assert all(len(data) == size for _, _, data, size in reported)
    assert parse_header(reported[2][2]).base_offset == 4
    log.appender.append_fetched_now(sent(ONE, base_offset=5), EPOCH)
    assert len(reported) == 3
