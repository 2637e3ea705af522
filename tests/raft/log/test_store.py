from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.raft.log.journal import (
    RECORD_OVERHEAD,
    JournalContent,
    VoteRecord,
    encode_pending,
)
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.snapshots.format import SnapshotMeta, encode_snapshot
from raftlog.record.errors import LogError
from raftlog.world import DiskError, DiskFullError
from raftlog.world.real_disk import FileSystemDisk
from tests.raft.stores import (
    DIRECTORY,
    FOUR,
    JOURNAL,
    PIECES,
    SNAPSHOT,
    VOTERS,
    after,
    content,
    damaged_start,
    entry,
    files,
    opened,
    receive,
    reopened,
    same,
    sent,
)
from tests.simulation.disk import MachineStoppedError, SimulatedDisk

# The journal


def test_first_start_makes_a_journal_with_the_initial_voters() -> None:
    disk = SimulatedDisk()
    store, loaded = opened(disk)
    assert loaded.snapshot is None and same(loaded.journal, content())
    assert store.read_snapshot() is None and store.open_snapshot() is None
    store.close()
    disk.crash(power=True)
    store = QuorumStore(disk, DIRECTORY)
    assert store.load(FOUR).journal.voters_at_base == VOTERS, "only the first start's count"


def test_what_was_written_is_found_again() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([VoteRecord(1, 2), entry(2, 1), entry(3, 1), entry(4, 1)])
    store.write([entry(3, 2, b"\x00new"), VoteRecord(4, None)])
    store.write([])
    _, journal = reopened(disk)
    assert same(journal, content(entry(2, 1), entry(3, 2, b"\x00new"), term=4))


def test_every_write_is_synced_once() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    before = disk.syncs[JOURNAL]
    store.write([entry(index, 1) for index in range(2, 100)])
    assert disk.syncs[JOURNAL] == before + 1


def test_rewrite_moves_the_base() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 1), entry(4, 1)])
    store.save_snapshot(SnapshotMeta(3, 1, FOUR), PIECES)
    shorter = JournalContent(3, 1, FOUR, 2, 1, [entry(4, 1)])
    before = store.journal_bytes
    store.rewrite(shorter)
    assert store.journal_bytes < before
    store.write([entry(5, 2)])
    _, journal = reopened(disk)
    assert same(journal, after(shorter, entry(5, 2)))


def test_rewrite_that_would_lose_entries_stops() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 1)])
    with pytest.raises(AssertionError, match="entries would be lost"):
        store.rewrite(content(entry(3, 1), base=2, base_term=1, term=1))
    store.save_snapshot(SnapshotMeta(3, 1, VOTERS), PIECES)
    with pytest.raises(AssertionError):
        store.rewrite(content(entry(2, 1), term=1))
    with pytest.raises(AssertionError, match="not durable"):
        store.save_snapshot(SnapshotMeta(4, 1, VOTERS), PIECES)
    with pytest.raises(AssertionError, match="gap"):
        store.write([entry(5, 1)])


def test_no_flipped_bit_is_taken_for_a_crash() -> None:
    source = SimulatedDisk()
    store, _ = opened(source)
    store.write([VoteRecord(1, 2), entry(2, 1)])
    store.write([entry(2, 2, b"\x00y")])
    whole = source.contents(JOURNAL)
    stopped = 0
    for bit in range(len(whole) * 8):
        disk = SimulatedDisk()
        disk.make_directory(DIRECTORY)
        disk.put(JOURNAL, whole)
        disk.flip_bit(JOURNAL, bit)
        try:
            _, loaded = opened(disk)
        except LogError:
            stopped += 1
        else:
            assert same(loaded.journal, content(entry(2, 2, b"\x00y"), term=2))
    assert stopped == (len(whole) - RECORD_OVERHEAD) * 8, "all but the last mark"


def test_torn_tail_is_left_out_and_written_over() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1)])
    disk.put(JOURNAL, disk.contents(JOURNAL) + b"RLJ2 and the like")
    store, journal = reopened(disk)
    assert same(journal, content(entry(2, 1), term=1))
    store.write([entry(3, 1)])
    _, journal = reopened(disk)
    assert journal.last_index == 3


# Failures of the disk


def test_failed_sync_is_final() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    disk.fail_next("sync", JOURNAL)
    with pytest.raises(DiskError):
        store.write([entry(2, 1)])
    syncs = disk.syncs[JOURNAL]
    with pytest.raises(DiskError, match="not used any more"):
        store.write([entry(2, 1)])
    with pytest.raises(DiskError, match="not used any more"):
        store.rewrite(content())
    assert disk.syncs[JOURNAL] == syncs, "a failed sync must not be tried again"


@pytest.mark.parametrize("operation", ["append", "create", "rename", "sync_directory", "sync"])
def test_failed_rewrite_is_final(operation: str) -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1)])
    disk.fail_next(operation, "metadata")
    with pytest.raises(DiskError):
        store.rewrite(content(entry(2, 1), term=1))
    with pytest.raises(DiskError, match="not used any more"):
        store.write([entry(3, 1)])
    _, journal = reopened(disk)
    assert same(journal, content(entry(2, 1), term=1))


def test_records_of_a_failed_sync_are_not_trusted_from_the_cache() -> None:
    # The kernel counts the pages of a failed sync as clean: reading and syncing these again after a
    # restart succeeds, and a power cut then loses all the same.
    disk = SimulatedDisk()
    store, _ = opened(disk)
    disk.fail_next("sync", JOURNAL)
    with pytest.raises(DiskError):
        store.write([VoteRecord(1, 2), entry(2, 1)])
    store, seen = reopened(disk, power=False)
    store.write([VoteRecord(2, 3)])
    _, journal = reopened(disk, power=True)
    assert same(journal, after(seen, VoteRecord(2, 3)))


def test_full_disk_refuses_and_changes_nothing() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 1)])
    store.save_snapshot(SnapshotMeta(2, 1, VOTERS), [b"old"])
    data = sent(SnapshotMeta(9, 1, VOTERS))
    disk.capacity_bytes = disk.used_bytes()
    before = files(disk)
    refused: list[Callable[[], object]] = [
        lambda: store.write([entry(4, 1)]),
        lambda: store.rewrite(content(entry(3, 1), base=2, base_term=1, term=1)),
        lambda: store.save_snapshot(SnapshotMeta(3, 1, VOTERS), PIECES),
        lambda: receive(store, data),
    ]
    for work in refused:
        with pytest.raises(DiskFullError):
            work()
    assert files(disk) == before and store.received_bytes == 0
    disk.capacity_bytes = None
    store.write([entry(4, 1)])
    _, journal = reopened(disk)
    assert same(journal, content(entry(2, 1), entry(3, 1), entry(4, 1), term=1))


def test_received_snapshot_goes_on_once_there_is_room() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    meta = SnapshotMeta(9, 1, VOTERS, received=True)
    data = sent(meta)
    store.begin_received()
    store.append_received(data[:40])
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(DiskFullError):
        store.append_received(data[40:])
    assert store.received_bytes == 40
    disk.capacity_bytes = None
    store.append_received(data[40:])
    disk.fail_next("rename", SNAPSHOT, DiskFullError)
    with pytest.raises(DiskFullError):
        store.finish_received()
    assert files(disk).keys() == {JOURNAL} and store.snapshot is None
    assert receive(store, data) == meta


def test_no_room_for_the_new_name_changes_nothing() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1)])
    before = files(disk)
    disk.fail_next("rename", JOURNAL, DiskFullError)
    with pytest.raises(DiskFullError):
        store.rewrite(content(entry(2, 1), term=1))
    assert files(disk) == before
    store.write([entry(3, 1)])


def test_no_room_for_a_mark_is_no_failure() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    size = len(encode_pending(entry(2, 1), position=0, synced=0, last_index=1))
    disk.capacity_bytes = disk.used_bytes() + size
    store.write([entry(2, 1)])
    disk.capacity_bytes = None
    store.write([entry(3, 1)])
    _, journal = reopened(disk)
    assert journal.last_index == 3


def test_start_on_a_full_disk_shows_what_is_durable_and_writes_once_there_is_room() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        store, _ = opened(disk)
        store.write([entry(2, 1)])
        disk.crash_in(2)  # the record is written; the machine stops in the sync
        with pytest.raises(MachineStoppedError):
            store.write([VoteRecord(5, 3)])
        disk.crash(power=False)
        # A torn tail as well.
        disk.open(JOURNAL).append([b"RLJ2"])
        disk.capacity_bytes = disk.used_bytes()
        store, loaded = opened(disk)
        assert (loaded.journal.term, loaded.journal.vote) == (5, 3)
        with pytest.raises(DiskFullError):
            store.write([entry(3, 5)])
        store, journal = reopened(disk)
        assert same(journal, loaded.journal)
        disk.capacity_bytes = None
        store.write([entry(3, 5)])
        _, journal = reopened(disk)
        assert same(journal, after(loaded.journal, entry(3, 5)))


def test_snapshot_may_be_taken_after_a_start_without_room_to_rewrite_the_journal() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 1)])
    disk.fail_next("append", JOURNAL, DiskFullError)
    store, loaded = opened(disk)
    meta = SnapshotMeta(3, 1, VOTERS)
    assert store.save_snapshot(meta, PIECES)
    store, journal = reopened(disk)
    assert store.snapshot is not None and store.snapshot.index == 3
    assert same(journal, loaded.journal)


def test_first_start_needs_a_working_disk() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    with pytest.raises(DiskFullError):
        opened(disk)
    disk.capacity_bytes = None
    disk.fail_next("sync", JOURNAL)
    with pytest.raises(DiskError):
        opened(disk)
    _, loaded = opened(disk)
    assert same(loaded.journal, content())


# A snapshot beside the journal


def test_start_goes_on_from_a_received_snapshot_that_is_ahead_of_the_journal() -> None:
    for term, vote in [(2, None), (3, 2), (5, 2)]:
        disk = SimulatedDisk()
        store, _ = opened(disk)
        store.write([entry(2, 1), VoteRecord(term, 2)])
        receive(store, sent(SnapshotMeta(7, 3, FOUR)))
        store, journal = reopened(disk)
        assert journal == JournalContent(7, 3, FOUR, max(term, 3), vote, ())
        store.write([entry(8, 5)])
        _, journal = reopened(disk)
        assert (journal.base_index, journal.last_index) == (7, 8)


def test_journal_goes_on_until_it_is_reset_to_a_received_snapshot() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 1), entry(4, 1)])
    store.save_snapshot(SnapshotMeta(3, 1, VOTERS), PIECES)
    receive(store, sent(SnapshotMeta(7, 3, FOUR)))
    # A trim under way, and a vote.
    store.rewrite(content(entry(4, 1), base=3, base_term=1, term=1))
    store.write([VoteRecord(4, 2)])
    _, journal = reopened(disk)
    assert same(journal, JournalContent(7, 3, FOUR, 4, 2, []))


def test_start_drops_entries_that_a_received_snapshot_contradicts() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 2), entry(4, 2)])
    receive(store, sent(SnapshotMeta(3, 3, FOUR)))
    _, journal = reopened(disk)
    assert same(journal, JournalContent(3, 3, FOUR, 3, None, []))


def test_start_keeps_entries_that_follow_a_received_snapshot() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 2), entry(4, 2)])
    receive(store, sent(SnapshotMeta(3, 2, VOTERS)))
    _, journal = reopened(disk)
    assert same(journal, content(entry(2, 1), entry(3, 2), entry(4, 2), term=2))


def test_start_on_a_full_disk_goes_on_from_a_received_snapshot_all_the_same() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1)])
    receive(store, sent(SnapshotMeta(7, 3, FOUR)))
    disk.capacity_bytes = disk.used_bytes()
    store, journal = reopened(disk)
    assert same(journal, JournalContent(7, 3, FOUR, 3, None, []))
    with pytest.raises(DiskFullError):
        store.write([entry(8, 3)])
    disk.capacity_bytes = None
    store.write([entry(8, 3)])
    _, journal = reopened(disk)
    assert (journal.base_index, journal.last_index) == (7, 8)


def test_start_removes_unfinished_files() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.close()
    for name in ("journal.tmp", "snapshot.tmp", "snapshot.received"):
        disk.put(f"{DIRECTORY}/{name}", b"half")
    opened(disk)
    assert files(disk).keys() == {JOURNAL}


# Files that do not fit


def test_lost_parts_stop() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk)
    store.write([entry(2, 1), entry(3, 1), entry(4, 1)])
    early = disk.contents(JOURNAL)
    store.save_snapshot(SnapshotMeta(3, 1, VOTERS), PIECES)
    store.rewrite(content(entry(4, 1), base=3, base_term=1, term=1))
    store.close()
    journal, snapshot = disk.contents(JOURNAL), disk.contents(SNAPSHOT)

    disk.put(JOURNAL, b"")
    assert "no valid header" in damaged_start(disk)
    disk.remove(JOURNAL)
    assert "is missing" in damaged_start(disk)
    disk.put(JOURNAL, journal)
    disk.remove(SNAPSHOT)
    assert "begins after entry 3, but the snapshot ends with entry 1" in damaged_start(disk)

    def put_snapshot(meta: SnapshotMeta) -> None:
        disk.put(SNAPSHOT, b"".join(encode_snapshot(meta, PIECES)))

    put_snapshot(SnapshotMeta(2, 1, VOTERS))
    assert "begins after entry 3" in damaged_start(disk)
    put_snapshot(SnapshotMeta(5, 1, VOTERS))
    assert "ends with entry 4, but the snapshot has entry 5" in damaged_start(disk)
    for received in (False, True):
        # The base was the snapshot's entry: a contradiction means a mix of two clusters.
        put_snapshot(SnapshotMeta(3, 9, VOTERS, received))
        assert "another entry 3" in damaged_start(disk)
    disk.put(JOURNAL, early)
    put_snapshot(SnapshotMeta(3, 9, VOTERS))
    assert "another entry 3" in damaged_start(disk)

    disk.put(JOURNAL, journal)
    disk.put(SNAPSHOT, snapshot)
    _, loaded = opened(disk)
    assert same(loaded.journal, content(entry(4, 1), base=3, base_term=1, term=1))


# On a real disk


def test_store_works_on_a_real_disk(tmp_path: Path) -> None:
    disk = FileSystemDisk(tmp_path)
    store, _ = opened(disk)
    store.write([VoteRecord(1, 1), *(entry(index, 1) for index in range(2, 5000))])
    store.write([entry(5000 + number, 1, bytes(100_000)) for number in range(30)])
    pieces = [bytes((number,)) * 300_000 for number in range(10)]
    meta = SnapshotMeta(4000, 1, VOTERS)
    store.save_snapshot(meta, pieces)
    assert store.free_bytes() > 0
    store.close()
    store, loaded = opened(disk)
    assert (loaded.snapshot, loaded.journal.last_index, loaded.journal.vote) == (meta, 5029, 1)
    found, again = store.read_snapshot() or (None, iter(()))
    assert found == meta and list(again) == pieces
    reader = store.open_snapshot()
    assert reader is not None
    data = reader.read(0, reader.size)
    reader.close()
    store.close()
    (tmp_path / JOURNAL).unlink()
    (tmp_path / SNAPSHOT).unlink()
    store, _ = opened(disk)
    assert receive(store, data, 65_536) == SnapshotMeta(4000, 1, VOTERS, received=True)
    store.close()
    _, loaded = opened(disk)
    assert loaded.journal.base_index == 4000
    disk.close()
