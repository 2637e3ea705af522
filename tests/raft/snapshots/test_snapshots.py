"""A member's own snapshots: their times, trims, and a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from raftlog.raft.interface import MemberSettings
from raftlog.raft.log.journal_writer import JournalWriter
from raftlog.raft.log.log import RaftLog
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.messages import Message, SnapshotChunk
from raftlog.raft.snapshots.snapshots import SnapshotManager
from raftlog.world import DiskFullError
from tests.raft.machine import RecordingMachine
from tests.raft.snapshots.test_transfer import CHUNK, META, StubCore, chunks
from tests.raft.stores import DIRECTORY, SNAPSHOT, VOTERS, opened
from tests.simulation.world import World, run

SETTINGS = MemberSettings(
    snapshot_entries=10, snapshot_bytes=10**6, entries_kept=3, chunk_bytes=CHUNK
)


class Core(StubCore):
    """A core with applied entries chosen by the test."""

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
    """A snapshot manager and its surroundings."""

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
        self.manager = SnapshotManager(
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
        """Apply `count` more entries, with a turn after each, as a member does."""
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
            self.manager.snapshot_if_due()

    async def rest(self, seconds: float = 1.0, turns: int = 50) -> None:
        for _ in range(turns):
            await asyncio.sleep(seconds / turns)
            self.manager.snapshot_if_due()


def in_house(
    work: Callable[[House], Coroutine[Any, Any, None]], settings: MemberSettings = SETTINGS
) -> None:
    async def main(world: World) -> None:
        harness = House(world, settings)
        await work(harness)
        assert not harness.failures
        await harness.manager.close()
        harness.task.cancel()

    run(1, main)


def test_a_snapshot_is_taken_after_so_many_entries() -> None:
    async def work(harness: House) -> None:
        await harness.apply(8)
        await harness.rest()
        assert harness.snapshots == 0
        await harness.apply(1)
        await harness.rest()
        meta = harness.store.snapshot
        assert meta is not None
        assert (meta.index, meta.term, meta.voters) == (10, 3, VOTERS)
        assert harness.log.first_index == 10 - SETTINGS.entries_kept
        await harness.apply(9)
        await harness.rest()
        assert harness.snapshots == 1
        await harness.apply(1)
        await harness.rest()
        assert harness.snapshots == 2

    in_house(work)


def test_a_start_finds_the_snapshot_and_the_entries_behind_it() -> None:
    async def work(harness: House) -> None:
        await harness.apply(12)
        await harness.rest()
        harness.disk.crash(power=True)
        loaded = opened(harness.disk)[1]
        assert loaded.snapshot is not None
        assert loaded.snapshot.index == 10
        assert (loaded.journal.base_index, loaded.journal.last_index) == (7, 13)

    in_house(work)


BYTES = replace(SETTINGS, snapshot_entries=10**9, snapshot_bytes=20_000, entries_kept=1_000)


def test_a_snapshot_is_taken_when_the_journal_has_grown() -> None:
    async def work(harness: House) -> None:
        await harness.apply(19, bytes(1000))
        assert harness.snapshots == 0
        await harness.apply(2, bytes(1000))
        await harness.rest()
        assert harness.snapshots == 1
        assert harness.store.journal_bytes < 10_000, "what is kept behind it leaves room"

    in_house(work, BYTES)


def test_entries_that_are_kept_do_not_make_the_next_snapshot_due() -> None:
    async def work(harness: House) -> None:
        await harness.apply(60, bytes(1000))
        await harness.rest(turns=500)
        taken = harness.snapshots
        assert 2 <= taken <= 6
        await harness.rest(turns=500)
        assert harness.snapshots == taken, "the same state again and again"

    in_house(work, BYTES)


def test_what_is_not_applied_yet_makes_no_snapshot_due() -> None:
    async def work(harness: House) -> None:
        await harness.apply(21, bytes(1000))
        await harness.rest()
        taken = harness.snapshots
        for _ in range(40):
            harness.log.add(b"\x00" + bytes(1000), harness.log.last_index + 1, 3)
        harness.writer.wake()
        harness.core.applied_index = harness.store.snapshot.index if harness.store.snapshot else 0
        await harness.rest()
        assert harness.store.journal_bytes > BYTES.snapshot_bytes
        assert harness.snapshots == taken

    in_house(work, BYTES)


def test_entries_as_long_as_all_that_may_be_kept_leave_the_journal_short() -> None:
    async def work(harness: House) -> None:
        await harness.apply(6, b"x" * 30_000)
        await harness.rest()
        assert harness.store.journal_bytes < 2 * 31_000

    in_house(work, BYTES)


def test_later_commands_are_not_in_a_snapshot_that_is_being_taken() -> None:
    async def work(harness: House) -> None:
        await harness.apply(9)
        await harness.apply(1, b"later")
        await harness.rest()
        found = harness.store.read_snapshot()
        assert found is not None
        assert found[0].index == 10
        assert b"later" not in b"".join(found[1])

    in_house(work)


def test_without_room_a_snapshot_is_tried_again_after_as_many_entries() -> None:
    async def work(harness: House) -> None:
        harness.disk.fail_next("append", SNAPSHOT, DiskFullError)
        await harness.apply(9)
        await harness.rest()
        assert harness.store.snapshot is None
        assert harness.log.first_index == 1, "nothing is trimmed that no snapshot has"
        await harness.apply(9)
        await harness.rest()
        assert harness.snapshots == 1
        await harness.apply(1)
        await harness.rest()
        assert harness.store.snapshot is not None

    in_house(work)


@pytest.mark.parametrize("operation", ["sync", "rename"])
def test_any_other_failure_of_the_disk_ends_the_member(operation: str) -> None:
    async def work(harness: House) -> None:
        harness.disk.fail_next(operation, SNAPSHOT)
        await harness.apply(9)
        await harness.rest()
        assert [str(error) for error in harness.failures] == [
            f"{operation} of {SNAPSHOT}.tmp failed, as ordered"
        ]
        harness.failures.clear()

    in_house(work)


def test_an_exception_of_the_state_machine_ends_the_member() -> None:
    async def work(harness: House) -> None:
        def broken() -> Any:
            raise RuntimeError("a defect in the state machine")

        harness.machine.snapshot = broken  # type: ignore[method-assign]
        await harness.apply(9)
        await harness.rest()
        assert [type(error) for error in harness.failures] == [RuntimeError]
        harness.failures.clear()

    in_house(work)


def test_a_received_snapshot_takes_the_place_of_the_state() -> None:
    async def work(harness: House) -> None:
        await harness.apply(5)
        content = [b'[[19, "a"], [20, "b"]]']
        for each in chunks(META, content):
            await harness.manager.received(2, each)
        assert harness.machine.values == [b"a", b"b"]
        assert harness.core.applied_index == META.index
        assert harness.jumps == [META.index]
        assert harness.log.first_index == META.index
        await harness.rest()
        assert not harness.log.rewrite_due
        assert not harness.manager.is_installing
        harness.disk.crash(power=True)
        loaded = opened(harness.disk)[1]
        assert loaded.journal.base_index == META.index

    in_house(work)


def test_the_journal_is_rewritten_before_anything_else_is_said() -> None:
    async def work(harness: House) -> None:
        for each in chunks(META, [b'[[20, "b"]]']):
            await harness.manager.received(2, each)
        assert harness.log.lsn > harness.log.durable_lsn
        await harness.rest()
        assert harness.log.lsn == harness.log.durable_lsn

    in_house(work)


def test_no_snapshot_is_taken_while_one_is_installed() -> None:
    async def work(harness: House) -> None:
        harness.manager.is_installing = True
        await harness.apply(20)
        await harness.rest()
        assert harness.snapshots == 0
        harness.manager.is_installing = False

    in_house(work)


def test_a_peer_is_sent_the_snapshot_until_it_needs_it_no_more() -> None:
    async def work(harness: House) -> None:
        await harness.apply(9)
        await harness.rest()
        harness.core.needing = {2, 3}
        harness.manager.send_to(2)
        harness.manager.send_to(3)
        await harness.rest(0.1)
        first = [peer for peer, message in harness.sent if isinstance(message, SnapshotChunk)]
        assert sorted(first) == [2, 3]
        harness.manager.send_to(2)
        assert harness.sent[-1][0] == 2
        heartbeat = harness.sent[-1][1]
        assert isinstance(heartbeat, SnapshotChunk)
        assert not heartbeat.data
        harness.manager.stop_idle_senders()
        assert sorted(harness.manager._senders) == [2, 3]
        harness.core.needing = {3}
        harness.core.matching = {3: 10}
        harness.manager.stop_idle_senders()
        assert not harness.manager._senders, "one needs nothing, the other has it"
        harness.sent.clear()
        await harness.rest(3.0)
        assert not harness.sent

    in_house(work)


def test_a_peer_that_is_gone_is_sent_nothing_more() -> None:
    async def work(harness: House) -> None:
        await harness.apply(9)
        await harness.rest()
        harness.manager.send_to(2)
        await harness.rest(0.1)
        harness.manager.stop_sending_to(2)
        harness.manager.stop_sending_to(2)
        harness.sent.clear()
        await harness.rest(3.0)
        assert not harness.sent

    in_house(work)


def test_without_a_snapshot_there_is_nothing_to_send() -> None:
    async def work(harness: House) -> None:
        harness.manager.send_to(2)
        await harness.rest()
        assert not harness.sent
        assert not harness.manager._senders

    in_house(work)


def test_closing_waits_for_a_snapshot_that_is_being_taken() -> None:
    async def work(harness: House) -> None:
        await harness.apply(9)
        assert harness.store.snapshot is None
        await harness.manager.close()
        assert harness.store.snapshot is not None

    in_house(work)
