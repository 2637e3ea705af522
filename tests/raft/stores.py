"""Shared parts of the tests of the quorum's files."""

from __future__ import annotations

import pytest

from raftlog.raft.log.journal import (
    JournalContent,
    LogEntry,
    PendingRecord,
    VoteRecord,
)
from raftlog.raft.log.store import Loaded, QuorumStore
from raftlog.raft.snapshots.format import SnapshotMeta, encode_snapshot
from raftlog.raft.voters import Voter, parse_voters
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.world import Disk
from tests.simulation.disk import SimulatedDisk

DIRECTORY = "data/metadata"
JOURNAL = "data/metadata/journal"
SNAPSHOT = "data/metadata/snapshot"
VOTERS = parse_voters("1@a:1,2@b:2,3@c:3")
FOUR = VOTERS.add(Voter(4, "d", 4))
PIECES = [b"some", b"state", b"x" * 100]


def entry(index: int, term: int, command: bytes = b"\x00x") -> LogEntry:
    return command, index, term


def opened(disk: Disk) -> tuple[QuorumStore, Loaded]:
    store = QuorumStore(disk, DIRECTORY)
    return store, store.load(VOTERS)


def reopened(disk: SimulatedDisk, *, power: bool = True) -> tuple[QuorumStore, JournalContent]:
    disk.crash(power=power)
    store, loaded = opened(disk)
    return store, loaded.journal


def content(
    *entries: LogEntry, base: int = 1, base_term: int = 0, term: int = 0, vote: int | None = None
) -> JournalContent:
    return JournalContent(base, base_term, VOTERS, term, vote, list(entries))


def same(one: JournalContent, other: JournalContent) -> bool:
    return listed(one) == listed(other)


def listed(said: JournalContent) -> JournalContent:
    """A copy with lists, for comparisons."""
    return JournalContent(
        said.base_index, said.base_term, said.voters_at_base, said.term, said.vote,
        list(said.entries),
    )  # fmt: skip


def after(said: JournalContent, record: PendingRecord) -> JournalContent:
    entries, term, vote = list(said.entries), said.term, said.vote
    if isinstance(record, VoteRecord):
        term, vote = record.term, record.vote
    else:
        entries = [each for each in entries if each[1] < record[1]] + [record]
        if record[2] > term:
            term, vote = record[2], None
    return JournalContent(said.base_index, said.base_term, said.voters_at_base, term, vote, entries)


def sent(meta: SnapshotMeta, pieces: list[bytes] | None = None) -> bytes:
    """The bytes of another node's reader for its snapshot."""
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    disk.put(SNAPSHOT, b"".join(encode_snapshot(meta, PIECES if pieces is None else pieces)))
    store = QuorumStore(disk, DIRECTORY)
    store._load_snapshot()
    reader = store.open_snapshot()
    assert reader is not None and reader.meta == meta
    data = b""
    while chunk := reader.read(len(data), 7):
        data += chunk
    reader.close()
    assert len(data) == reader.size
    return data


def receive(store: QuorumStore, data: bytes, chunk: int = 50) -> SnapshotMeta | None:
    store.begin_received()
    for position in range(0, len(data), chunk):
        assert store.received_bytes == position
        store.append_received(data[position : position + chunk])
    return store.finish_received()


def restored(store: QuorumStore) -> tuple[SnapshotMeta, list[bytes]]:
    found = store.read_snapshot()
    assert found is not None
    return found[0], list(found[1])


def files(disk: SimulatedDisk) -> dict[str, bytes]:
    paths = [f"{DIRECTORY}/{name}" for name in disk.list_directory(DIRECTORY)]
    return {path: disk.contents(path) for path in paths}


def damaged_start(disk: SimulatedDisk) -> str:
    before = files(disk)
    with pytest.raises(LogError) as raised:
        opened(disk)
    assert raised.value.entry is STORAGE_FAILED
    assert files(disk) == before, "evidence must not be changed"
    return raised.value.message
