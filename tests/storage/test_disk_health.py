"""When a disk counts as unwritable, and when as writable again."""

from __future__ import annotations

import pytest

from raftlog.storage.disk_health import (
    LOW_ROOM_BYTES,
    OBSERVE_INTERVAL_S,
    ROOM_AGAIN_BYTES,
    STALLED_SYNC_S,
    STEADY_S,
    DiskHealth,
    DiskTrouble,
)

ROOM = 1 << 30


class Watched:
    """A disk observed as often as by a node."""

    def __init__(self) -> None:
        self.watch = DiskHealth()
        self.now = 1000.0
        self.room_bytes = ROOM
        self.sync_at: float | None = None
        self.lacks_room = False

    def observe(self) -> bool:
        self.watch.observe(
            self.now,
            room_bytes=self.room_bytes,
            oldest_sync_at=self.sync_at,
            lacks_room=self.lacks_room,
        )
        return self.watch.can_write

    def passes(self, seconds: float) -> bool:
        """Let time pass, with observations; return the last result."""
        end = self.now + seconds
        while self.now < end:
            self.now += OBSERVE_INTERVAL_S
            self.observe()
        return self.watch.can_write


def test_a_disk_with_room_takes_writes_from_the_beginning() -> None:
    disk = Watched()
    assert disk.watch.can_write
    assert disk.observe()
    assert disk.watch.trouble is None


def test_a_full_disk_takes_none_at_once_and_until_it_has_had_room_for_a_while() -> None:
    disk = Watched()
    assert disk.observe()
    disk.room_bytes = LOW_ROOM_BYTES - 1
    assert not disk.passes(OBSERVE_INTERVAL_S)
    assert disk.watch.trouble is DiskTrouble.FULL
    disk.room_bytes = ROOM_AGAIN_BYTES
    assert not disk.passes(STEADY_S - OBSERVE_INTERVAL_S)
    assert disk.watch.trouble is None
    disk.room_bytes = LOW_ROOM_BYTES - 1
    disk.passes(OBSERVE_INTERVAL_S)
    disk.room_bytes = ROOM_AGAIN_BYTES
    assert not disk.passes(STEADY_S - OBSERVE_INTERVAL_S), "it counts from the last time"
    assert disk.passes(OBSERVE_INTERVAL_S)


def test_a_little_room_is_enough_for_a_disk_that_was_not_full_and_not_for_one_that_was() -> None:
    disk = Watched()
    disk.room_bytes = LOW_ROOM_BYTES
    assert disk.observe()
    disk.room_bytes -= 1
    disk.passes(OBSERVE_INTERVAL_S)
    disk.room_bytes = ROOM_AGAIN_BYTES - 1
    assert not disk.passes(2 * STEADY_S)


def test_what_others_find_full_is_full() -> None:
    disk = Watched()
    disk.lacks_room = True
    assert not disk.observe()
    assert disk.watch.trouble is DiskTrouble.FULL


def test_a_disk_hangs_once_one_sync_has_lasted_too_long() -> None:
    disk = Watched()
    disk.observe()
    disk.sync_at = disk.now
    assert disk.passes(STALLED_SYNC_S)
    assert not disk.passes(OBSERVE_INTERVAL_S)
    assert disk.watch.trouble is DiskTrouble.STALLED
    disk.sync_at = None
    assert not disk.passes(OBSERVE_INTERVAL_S)
    assert disk.watch.trouble is None
    assert disk.passes(STEADY_S)


def test_many_syncs_one_after_the_other_are_no_hang() -> None:
    disk = Watched()
    for _ in range(10):
        disk.sync_at = disk.now
        assert disk.passes(STALLED_SYNC_S / 2)


@pytest.mark.parametrize("pause_s", [STALLED_SYNC_S, 3600.0])
def test_a_pause_of_the_process_is_none_of_the_disk(pause_s: float) -> None:
    disk = Watched()
    disk.observe()
    disk.sync_at = disk.now
    disk.passes(1.0)
    disk.now += pause_s
    assert disk.observe()
