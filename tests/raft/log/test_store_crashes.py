"""Lives with an end in the middle of any step, on the simulated disk."""

from __future__ import annotations

import random

import pytest

from raftlog.raft.log.journal import (
    JournalContent,
    PendingRecord,
    VoteRecord,
)
from raftlog.raft.log.store import Loaded, QuorumStore
from raftlog.raft.snapshots.format import SnapshotMeta, encode_snapshot
from tests.raft.stores import (
    DIRECTORY,
    FOUR,
    PIECES,
    SNAPSHOT,
    VOTERS,
    after,
    content,
    entry,
    opened,
    receive,
    reopened,
    restored,
    same,
    sent,
)
from tests.simulation.disk import MachineStoppedError, SimulatedDisk

SEEDS = 8


class Life:
    """A member's life on the disk, and its possible contents after an end in any step."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.said = content()
        self.possible = [content()]
        self.snapshots: list[SnapshotMeta | None] = [None]
        self.store = QuorumStore(disk, DIRECTORY)

    def live(self) -> None:
        self.load()
        self.write(VoteRecord(1, 1), entry(2, 1), entry(3, 1), entry(4, 1))
        self.write(entry(3, 2, b"\x00" * 90), VoteRecord(3, 2), entry(4, 3))
        self.save(SnapshotMeta(3, 2, VOTERS))
        self.rewrite(2)
        self.write(entry(5, 3))
        self.save(SnapshotMeta(5, 3, VOTERS))
        self.rewrite(5)
        self.write(entry(6, 3), entry(7, 3))
        # A snapshot going on from entry 6, then one in conflict with entry 7, then one ahead.
        self.receive(SnapshotMeta(6, 3, VOTERS, received=True))
        self.receive(SnapshotMeta(7, 4, VOTERS, received=True))
        self.rewrite(7)
        self.write(VoteRecord(5, None), VoteRecord(5, 3))
        self.receive(SnapshotMeta(20, 4, VOTERS, received=True))
        self.rewrite(20)
        self.write(entry(21, 6, b"\x00" * 200))
        self.store.close()
        self.store = QuorumStore(self.disk, DIRECTORY)
        self.load()
        self.save(SnapshotMeta(21, 6, VOTERS))
        self.write(entry(22, 6))
        self.store.close()

    def load(self) -> None:
        self.check(self.store.load(VOTERS))

    def check(self, loaded: Loaded) -> None:
        assert loaded.snapshot in self.snapshots
        found = [each for each in self.possible if same(each, loaded.journal)]
        assert found, f"{loaded.journal} is none of {self.possible}"
        self.snapshots, self.possible, self.said = [loaded.snapshot], found[:1], found[0]

    def write(self, *records: PendingRecord) -> None:
        self.possible = [self.said]
        for record in records:
            self.possible.append(after(self.possible[-1], record))
        self.store.write(records)
        self.done()

    def rewrite(self, base: int) -> None:
        said = self.said
        entries = [each for each in said.entries if each[1] > base]
        self.possible.append(
            JournalContent(base, said.term_at(base), VOTERS, said.term, said.vote, entries)
        )
        self.store.rewrite(self.possible[-1])
        self.done()

    def save(self, meta: SnapshotMeta) -> None:
        self.snapshots.append(meta)
        assert self.store.save_snapshot(meta, PIECES)
        self.done()

    def receive(self, meta: SnapshotMeta) -> None:
        self.snapshots.append(meta)
        said = self.said
        if meta.index > said.last_index or said.term_at(meta.index) != meta.term:
            vote = said.vote if said.term >= meta.term else None
            term = max(said.term, meta.term)
            self.possible.append(JournalContent(meta.index, meta.term, VOTERS, term, vote, []))
        assert receive(self.store, sent(meta), 100) == meta
        self.done()

    def done(self) -> None:
        self.possible, self.snapshots = self.possible[-1:], self.snapshots[-1:]
        self.said = self.possible[0]


@pytest.mark.parametrize("power", [True, False])
def test_no_crash_loses_what_was_durable_or_keeps_from_starting(power: bool) -> None:
    for seed in range(SEEDS):
        steps, is_over = 0, False
        while not is_over:
            steps += 1
            disk = SimulatedDisk(seed * 1000 + steps)
            life = Life(disk)
            disk.crash_in(steps)
            try:
                life.live()
                is_over = True
            except MachineStoppedError:
                pass
            except BaseException as error:
                error.add_note(f"seed {seed}, stopped at step {steps}")
                raise
            try:
                start_until_it_works(life, random.Random(steps), power=power)
            except BaseException as error:
                error.add_note(f"seed {seed}, stopped at step {steps}, then started")
                raise
        assert steps > 90, "the life is too short"


def start_until_it_works(life: Life, dice: random.Random, *, power: bool) -> None:
    """Starts with a crash, then one without, then a write and a last start."""
    disk = life.disk
    for _ in range(3):
        disk.crash(power=power)
        disk.crash_in(dice.randint(1, 8))
        try:
            life.store = QuorumStore(disk, DIRECTORY)
            life.load()
        except MachineStoppedError:
            continue
        break
    disk.crash(power=power)
    life.store = QuorumStore(disk, DIRECTORY)
    life.load()
    if life.store.snapshot is not None:
        assert restored(life.store) == (life.store.snapshot, PIECES)
    life.write(VoteRecord(life.said.term + 1, 1), entry(life.said.last_index + 1, life.said.term))
    disk.crash(power=True)
    life.store = QuorumStore(disk, DIRECTORY)
    life.load()


def test_start_builds_on_no_name_that_is_not_durable() -> None:
    # The process died after the snapshot's rename and before the directory's sync; the next start
    # goes on from that snapshot, and then the power goes.
    received = b"".join(encode_snapshot(SnapshotMeta(9, 2, FOUR, received=True), PIECES))
    for seed in range(10):
        for steps in range(1, 9):
            disk = SimulatedDisk(seed)
            store, _ = opened(disk)
            store.write([entry(2, 1)])
            store.close()
            file = disk.open("data/metadata/snapshot.received", create=True)
            file.append([received])
            file.sync()
            disk.rename("data/metadata/snapshot.received", SNAPSHOT)
            disk.crash(power=False)
            disk.crash_in(steps)
            last_index = 9
            try:
                store, loaded = opened(disk)
                assert loaded.journal.base_index == 9
                store.write([entry(10, 2)])
                last_index = 10
            except MachineStoppedError:
                pass
            _, journal = reopened(disk)
            assert journal.last_index in ((2, 9, 10) if last_index == 9 else (10,))
