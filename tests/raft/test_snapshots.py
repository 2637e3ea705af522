"""Snapshots of a member's own: when they are taken, what is trimmed, what a full disk means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from raftlog.raft.interface import MemberSettings
from raftlog.raft.journal_writer import JournalWriter
from raftlog.raft.log import RaftLog
from raftlog.raft.messages import Message, SnapshotChunk
from raftlog.raft.snapshots import SnapshotManager
from raftlog.raft.store import QuorumStore
from raftlog.world import DiskFullError
from tests.raft.machine import RecordingMachine
from tests.raft.stores import DIRECTORY, SNAPSHOT, VOTERS, opened
from tests.raft.test_snapshot_transfer import CHUNK, META, StubCore, chunks
from tests.simulation.world import World, run

SETTINGS = MemberSettings(
    snapshot_entries=10, snapshot_bytes=10**6, entries_kept=3, chunk_bytes=CHUNK
)


class Core(StubCore):
    """A core that has applied what the test says."""

    def __init__(self, log: RaftLog) -> None:
        super().__init__()
        self.log = log
        self.applied_index = log.first_index
        self.needing: set[int] = set()
        self.matching: dict[int, int] = {}

    def installed(self, index: int) -> None:
        self.applied_index = index
        self.installed_index = index

    def needs_snapshot(self, peer: int) -> bool:
        return peer in self.needing

    def match_index(self, peer: int) -> int | None:
        return self.matching.get(peer)


class House:
    """A keeper and what it keeps."""

    def __init__(self, world: World, settings: MemberSettings = SETTINGS) -> None:
        self.disk = world.disk(1)
        self.store = QuorumStore(self.disk, DIRECTORY)
        self.log = RaftLog(self.store.load(VOTERS))
        self.machine = RecordingMachine()
        self.core = Core(self.log)
        core: Any = self.core
        self.sent: list[tuple[int, Message]] = []
        self.failures: list[BaseException] = []
        self.jumps: list[int] = []
        self.durable = asyncio.Event()
        clock = world.clock(1)
        self.writer = JournalWriter(self.disk, self.store, self.log, clock, self.durable.set)
        self.keeper = SnapshotManager(
            core=core,
            log=self.log,
            store=self.store,
            disk=self.disk,
            clock=clock,
            settings=settings,
            state_machine=self.machine,
            writer=self.writer,
            send=lambda peer, message: self.sent.append((peer, message)),
            installed=self.jumps.append,
            failed=self.failures.append,
        )
        self.task = asyncio.get_running_loop().create_task(self.writer.run())
        self.snapshots = 0
        save = self.store.save_snapshot

        def counted(*arguments: Any) -> bool:
            self.snapshots += 1
            return save(*arguments)

        self.store.save_snapshot = counted  # type: ignore[method-assign,assignment]

    async def apply(self, count: int, command: bytes = b"x") -> None:
        """Have that many entries more applied, with a turn after each, as a member has it."""
        for _ in range(count):
            index = self.log.last_index + 1
            self.log.add(b"\x00" + command, index, 3)
            self.writer.wake()
            while self.log.durable_index < index:
                await self.durable.wait()
                self.durable.clear()
            if not self.machine.commands:
                # Entry 1 is the base; this machine counts from its first command.
                self.machine.commands.append((index - 1, b""))
            self.machine.apply(index, command)
            self.core.applied_index = index
            self.keeper.snapshot_if_due()

    async def rest(self, seconds: float = 1.0, turns: int = 50) -> None:
        for _ in range(turns):
            await asyncio.sleep(seconds / turns)
            self.keeper.snapshot_if_due()


def in_house(
    work: Callable[[House], Coroutine[Any, Any, None]], settings: MemberSettings = SETTINGS
) -> None:
    async def main(world: World) -> None:
        house = House(world, settings)
        await work(house)
        assert not house.failures
        await house.keeper.close()
        house.task.cancel()

    run(1, main)


def test_a_snapshot_is_taken_after_so_many_entries() -> None:
    async def work(house: House) -> None:
        await house.apply(8)
        await house.rest()
        assert house.snapshots == 0
        await house.apply(1)
        await house.rest()
        meta = house.store.snapshot
        assert meta is not None
        assert (meta.index, meta.term, meta.voters) == (10, 3, VOTERS)
        assert house.log.first_index == 10 - SETTINGS.entries_kept
        await house.apply(9)
        await house.rest()
        assert house.snapshots == 1
        await house.apply(1)
        await house.rest()
        assert house.snapshots == 2

    in_house(work)


def test_a_start_finds_the_snapshot_and_the_entries_behind_it() -> None:
    async def work(house: House) -> None:
        await house.apply(12)
        await house.rest()
        house.disk.crash(power=True)
        loaded = opened(house.disk)[1]
        assert loaded.snapshot is not None
        assert loaded.snapshot.index == 10
        assert (loaded.journal.base_index, loaded.journal.last_index) == (7, 13)

    in_house(work)


BYTES = replace(SETTINGS, snapshot_entries=10**9, snapshot_bytes=20_000, entries_kept=1_000)


def test_a_snapshot_is_taken_when_the_journal_has_grown() -> None:
    async def work(house: House) -> None:
        await house.apply(19, bytes(1000))
        assert house.snapshots == 0
        await house.apply(2, bytes(1000))
        await house.rest()
        assert house.snapshots == 1
        assert house.store.journal_bytes < 10_000, "what is kept behind it leaves room"

    in_house(work, BYTES)


def test_entries_that_are_kept_do_not_make_the_next_snapshot_due() -> None:
    async def work(house: House) -> None:
        await house.apply(60, bytes(1000))
        await house.rest(turns=500)
        taken = house.snapshots
        assert 2 <= taken <= 6
        await house.rest(turns=500)
        assert house.snapshots == taken, "the same state again and again"

    in_house(work, BYTES)


def test_what_is_not_applied_yet_makes_no_snapshot_due() -> None:
    async def work(house: House) -> None:
        await house.apply(21, bytes(1000))
        await house.rest()
        taken = house.snapshots
        for _ in range(40):
            house.log.add(b"\x00" + bytes(1000), house.log.last_index + 1, 3)
        house.writer.wake()
        house.core.applied_index = house.store.snapshot.index if house.store.snapshot else 0
        await house.rest()
        assert house.store.journal_bytes > BYTES.snapshot_bytes
        assert house.snapshots == taken

    in_house(work, BYTES)


def test_entries_as_long_as_all_that_may_be_kept_leave_the_journal_short() -> None:
    async def work(house: House) -> None:
        await house.apply(6, b"x" * 30_000)
        await house.rest()
        assert house.store.journal_bytes < 2 * 31_000

    in_house(work, BYTES)


def test_later_commands_are_not_in_a_snapshot_that_is_being_taken() -> None:
    async def work(house: House) -> None:
        await house.apply(9)
        await house.apply(1, b"later")
        await house.rest()
        found = house.store.read_snapshot()
        assert found is not None
        assert found[0].index == 10
        assert b"later" not in b"".join(found[1])

    in_house(work)


def test_without_room_a_snapshot_is_tried_again_after_as_many_entries() -> None:
    async def work(house: House) -> None:
        house.disk.fail_next("append", SNAPSHOT, DiskFullError)
        await house.apply(9)
        await house.rest()
        assert house.store.snapshot is None
        assert house.log.first_index == 1, "nothing is trimmed that no snapshot has"
        await house.apply(9)
        await house.rest()
        assert house.snapshots == 1
        await house.apply(1)
        await house.rest()
        assert house.store.snapshot is not None

    in_house(work)


@pytest.mark.parametrize("operation", ["sync", "rename"])
def test_any_other_failure_of_the_disk_ends_the_member(operation: str) -> None:
    async def work(house: House) -> None:
        house.disk.fail_next(operation, SNAPSHOT)
        await house.apply(9)
        await house.rest()
        assert [str(error) for error in house.failures] == [
            f"{operation} of {SNAPSHOT}.tmp failed, as ordered"
        ]
        house.failures.clear()

    in_house(work)


def test_an_exception_of_the_state_machine_ends_the_member() -> None:
    async def work(house: House) -> None:
        def broken() -> Any:
            raise RuntimeError("a defect in the state machine")

        house.machine.snapshot = broken  # type: ignore[method-assign]
        await house.apply(9)
        await house.rest()
        assert [type(error) for error in house.failures] == [RuntimeError]
        house.failures.clear()

    in_house(work)


def test_a_received_snapshot_takes_the_place_of_the_state() -> None:
    async def work(house: House) -> None:
        await house.apply(5)
        content = [b'[[19, "a"], [20, "b"]]']
        for each in chunks(META, content):
            await house.keeper.received(2, each)
        assert house.machine.values == [b"a", b"b"]
        assert house.core.applied_index == META.index
        assert house.jumps == [META.index]
        assert house.log.first_index == META.index
        await house.rest()
        assert not house.log.rewrite_due
        assert not house.keeper.is_installing
        house.disk.crash(power=True)
        loaded = opened(house.disk)[1]
        assert loaded.journal.base_index == META.index

    in_house(work)


def test_the_journal_is_rewritten_before_anything_else_is_said() -> None:
    async def work(house: House) -> None:
        for each in chunks(META, [b'[[20, "b"]]']):
            await house.keeper.received(2, each)
        assert house.log.lsn > house.log.durable_lsn
        await house.rest()
        assert house.log.lsn == house.log.durable_lsn

    in_house(work)


def test_no_snapshot_is_taken_while_one_is_installed() -> None:
    async def work(house: House) -> None:
        house.keeper.is_installing = True
        await house.apply(20)
        await house.rest()
        assert house.snapshots == 0
        house.keeper.is_installing = False

    in_house(work)


def test_a_peer_is_sent_the_snapshot_until_it_needs_it_no_more() -> None:
    async def work(house: House) -> None:
        await house.apply(9)
        await house.rest()
        house.core.needing = {2, 3}
        house.keeper.send_to(2)
        house.keeper.send_to(3)
        await house.rest(0.1)
        first = [peer for peer, message in house.sent if isinstance(message, SnapshotChunk)]
        assert sorted(first) == [2, 3]
        house.keeper.send_to(2)
        assert house.sent[-1][0] == 2
        heartbeat = house.sent[-1][1]
        assert isinstance(heartbeat, SnapshotChunk)
        assert not heartbeat.data
        house.keeper.stop_idle_senders()
        assert sorted(house.keeper._senders) == [2, 3]
        house.core.needing = {3}
        house.core.matching = {3: 10}
        house.keeper.stop_idle_senders()
        assert not house.keeper._senders, "one needs nothing, the other has it"
        house.sent.clear()
        await house.rest(3.0)
        assert not house.sent

    in_house(work)


def test_a_peer_that_is_gone_is_sent_nothing_more() -> None:
    async def work(house: House) -> None:
        await house.apply(9)
        await house.rest()
        house.keeper.send_to(2)
        await house.rest(0.1)
        house.keeper.stop_sending_to(2)
        house.keeper.stop_sending_to(2)
        house.sent.clear()
        await house.rest(3.0)
        assert not house.sent

    in_house(work)


def test_without_a_snapshot_there_is_nothing_to_send() -> None:
    async def work(house: House) -> None:
        house.keeper.send_to(2)
        await house.rest()
        assert not house.sent
        assert not house.keeper._senders

    in_house(work)


def test_closing_waits_for_a_snapshot_that_is_being_taken() -> None:
    async def work(house: House) -> None:
        await house.apply(9)
        assert house.store.snapshot is None
        await house.keeper.close()
        assert house.store.snapshot is not None

    in_house(work)
