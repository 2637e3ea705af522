from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.raft.log.journal import (
    JournalContent,
)
from raftlog.raft.log.store import BATCH_BYTES, ReceivedSnapshotError
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.record.errors import STORAGE_FAILED, LogError
from tests.raft.stores import (
    FOUR,
    JOURNAL,
    PIECES,
    SNAPSHOT,
    VOTERS,
    damaged_start,
    entry,
    files,
    opened,
    receive,
    reopened,
    restored,
    sent,
)
from tests.simulation.disk import SimulatedDisk


def test_snapshot_is_found_again() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 2)])
    meta = SnapshotMeta(3, 2, FOUR)
    assert store.save_snapshot(meta, iter(PIECES))
    assert store.snapshot == meta and restored(store) == (meta, PIECES)
    disk.crash(power=True)
    store, loaded = opened(disk)
    assert loaded.snapshot == store.snapshot == meta and restored(store) == (meta, PIECES)


def test_reader_stays_valid_when_the_snapshot_is_replaced() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 1)])
    store.save_snapshot(SnapshotMeta(2, 1, VOTERS), PIECES)
    reader = store.open_snapshot()
    assert reader is not None
    begun = reader.read(0, 20)
    store.save_snapshot(SnapshotMeta(3, 1, VOTERS), [b"other"])
    assert begun + reader.read(20, 10_000) == sent(SnapshotMeta(2, 1, VOTERS))


@pytest.mark.parametrize("chunk", [1, 13, 10_000])
def test_received_snapshot_is_put_in_place_and_marked(chunk: int) -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    for received in (False, True):
        # The sender may have received the snapshot: of no interest here.
        meta = SnapshotMeta(7 + received, 3, FOUR, received)
        expected = SnapshotMeta(7 + received, 3, FOUR, received=True)
        assert receive(store, sent(meta), chunk) == expected
        assert restored(store) == (expected, PIECES)
        store.rewrite(JournalContent(meta.index, 3, FOUR, 3, None, []))
    assert store.received_bytes == 0
    _, journal = reopened(disk)
    assert journal.base_index == 8


def test_broken_received_snapshot_is_dropped_and_may_come_again() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    before = files(disk)
    data = sent(SnapshotMeta(7, 3, FOUR))
    broken = [data[:-1], data + b"x", data[:20] + data[21:], b"", data[1:]]
    for bit in range(0, len(data) * 8, 5):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        broken.append(bytes(flipped))
    for bad in broken:
        with pytest.raises(ReceivedSnapshotError):
            receive(store, bad)
        assert files(disk) == before and store.snapshot is None
    assert receive(store, data) is not None


def test_received_snapshot_that_never_ends_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    before = files(disk)
    data = sent(SnapshotMeta(7, 3, FOUR))
    store.begin_received()
    store.append_received(data[:30])
    assert receive(store, data) is not None, "another begin starts over"
    store.begin_received()
    store.append_received(data[:30])
    store.cancel_received()
    store.cancel_received()
    assert files(disk).keys() == {JOURNAL, SNAPSHOT}
    monkeypatch.setattr("raftlog.raft.log.store.RECEIVED_BYTES_MAX", 10)
    store.begin_received()
    with pytest.raises(ReceivedSnapshotError, match="longer than 10"):
        store.append_received(data[:30])
    assert files(disk)[JOURNAL] == before[JOURNAL]
    assert files(disk).keys() == {JOURNAL, SNAPSHOT}


def test_snapshot_never_gives_way_to_an_older_one() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(index, 1) for index in range(2, 6)])
    newer = SnapshotMeta(9, 1, FOUR, received=True)

    def overtaken() -> Iterator[bytes]:
        # While one's own is being written, the leader's arrives and is put in place.
        yield b"old"
        assert receive(store, sent(newer)) == newer
        store.rewrite(JournalContent(9, 1, FOUR, 1, None, []))

    assert not store.save_snapshot(SnapshotMeta(4, 1, VOTERS), overtaken())
    assert restored(store) == (newer, PIECES)
    assert receive(store, sent(SnapshotMeta(9, 1, FOUR))) is None
    assert receive(store, sent(SnapshotMeta(5, 1, FOUR), [b"older"])) is None
    assert files(disk).keys() == {JOURNAL, SNAPSHOT}
    store, journal = reopened(disk)
    assert journal.base_index == 9 and restored(store) == (newer, PIECES)


def test_exception_of_the_encoder_leaves_nothing() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    before = files(disk)

    def failing() -> Iterator[bytes]:
        yield b"a" * BATCH_BYTES
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError):
        store.save_snapshot(SnapshotMeta(1, 0, VOTERS), failing())
    assert files(disk) == before


def test_damaged_snapshot_is_never_restored() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1)])
    store.save_snapshot(SnapshotMeta(2, 1, VOTERS), PIECES)
    size = len(disk.contents(SNAPSHOT))
    for bit in range(0, size * 8, 3):
        disk.flip_bit(SNAPSHOT, bit)
        with pytest.raises(LogError, match="snapshot is damaged") as raised:
            restored(store)
        assert raised.value.entry is STORAGE_FAILED
        assert "snapshot is damaged" in damaged_start(disk)
        disk.flip_bit(SNAPSHOT, bit)
    assert restored(store)[1] == PIECES
