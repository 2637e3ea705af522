"""Snapshots on their way: every chunk may be lost, repeated, late, or of another stream."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from raftlog.raft.log.store import RECEIVED_SUFFIX, QuorumStore
from raftlog.raft.messages import Message, SnapshotAnswer, SnapshotChunk
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.raft.snapshots.transfer import CHUNK_RESEND_S, SnapshotReceiver, SnapshotSender
from raftlog.world import DiskError, DiskFullError
from tests.raft.stores import DIRECTORY, PIECES, SNAPSHOT, VOTERS, restored, sent
from tests.simulation.disk import SimulatedDisk
from tests.simulation.world import World, run

META = SnapshotMeta(20, 3, VOTERS)
OTHER = SnapshotMeta(30, 3, VOTERS)
LEADER, RIVAL = 1, 3
CHUNK = 50


class StubCore:
    """The core of a transfer; this member has no entries of the log."""

    def __init__(self) -> None:
        self.term = 3
        self.installed_index = 1
        self.covered: list[tuple[int, int]] = []

    def heard_leader(self, _peer: int, term: int) -> bool:
        return term >= self.term

    def covers(self, index: int, _term: int) -> int | None:
        return index if index <= self.installed_index else None

    def answer_covered(self, peer: int, index: int) -> None:
        self.covered.append((peer, index))


class Inbox:
    """A receiving member."""

    def __init__(self, *, yields: bool = False) -> None:
        self.disk = SimulatedDisk(yields=yields)
        self.disk.make_directory(DIRECTORY)
        self.store = QuorumStore(self.disk, DIRECTORY)
        self.store.load(VOTERS)
        self.core = StubCore()
        self.answers: list[tuple[int, SnapshotAnswer]] = []
        self.installed: list[SnapshotMeta] = []
        core: Any = self.core
        self.receiver = SnapshotReceiver(
            core=core, store=self.store, disk=self.disk, send=self.send, install=self.install
        )

    def send(self, peer: int, message: Message) -> None:
        assert isinstance(message, SnapshotAnswer)
        self.answers.append((peer, message))

    async def install(self, meta: SnapshotMeta) -> None:
        self.installed.append(meta)
        self.core.installed_index = meta.index

    async def take(self, chunk: SnapshotChunk, peer: int = LEADER) -> int:
        """The position in the answer; -1: covered."""
        before = len(self.answers)
        await self.receiver.received(peer, chunk)
        return self.answers[-1][1].position if len(self.answers) > before else -1


def chunks(meta: SnapshotMeta = META, pieces: list[bytes] | None = None) -> list[SnapshotChunk]:
    data = sent(meta, pieces)
    return [chunk(data, position, meta) for position in range(0, len(data), CHUNK)]


def chunk(data: bytes, position: int, meta: SnapshotMeta = META, term: int = 3) -> SnapshotChunk:
    part = data[position : position + CHUNK]
    return SnapshotChunk(term, meta.index, meta.term, position, len(data), part)


def heartbeat(meta: SnapshotMeta = META) -> SnapshotChunk:
    size = len(sent(meta))
    return SnapshotChunk(3, meta.index, meta.term, size, size, b"")


async def test_all_chunks_in_order_give_the_snapshot() -> None:
    inbox, all_chunks = Inbox(), chunks()
    for number, each in enumerate(all_chunks[:-1]):
        assert await inbox.take(each) == CHUNK * (number + 1)
    assert await inbox.take(all_chunks[-1]) == -1
    assert inbox.core.covered == [(LEADER, META.index)]
    assert [meta.index for meta in inbox.installed] == [META.index]
    assert restored(inbox.store)[1] == PIECES


@pytest.mark.parametrize("seed", range(20))
async def test_lost_repeated_and_late_chunks_do_no_harm(seed: int) -> None:
    chance, inbox, all_chunks = random.Random(seed), Inbox(), chunks()
    position = 0
    for _ in range(2_000):
        if inbox.installed:
            break
        due = all_chunks[position // CHUNK]
        late = chance.choice(all_chunks)
        answer = await inbox.take(chance.choice([due, late, heartbeat()]))
        if chance.random() < 0.5 and answer >= 0:
            position = min(answer, (len(all_chunks) - 1) * CHUNK)
    assert restored(inbox.store)[1] == PIECES


async def test_a_heartbeat_tells_how_far_it_is() -> None:
    inbox, all_chunks = Inbox(), chunks()
    assert await inbox.take(heartbeat()) == 0
    await inbox.take(all_chunks[0])
    assert await inbox.take(heartbeat()) == CHUNK


async def test_another_leaders_stream_begins_at_the_start() -> None:
    inbox, mine, theirs = Inbox(), chunks(), chunks(OTHER)
    await inbox.take(mine[0])
    assert await inbox.take(mine[1], RIVAL) == 0, "not to be mixed, even of the same snapshot"
    for each in theirs:
        await inbox.take(each, RIVAL)
    assert [meta.index for meta in inbox.installed] == [OTHER.index]
    assert restored(inbox.store)[0].index == OTHER.index


async def test_stale_leader_gets_the_newer_term_and_changes_nothing() -> None:
    inbox, data = Inbox(), sent(META)
    inbox.core.term = 4
    assert await inbox.take(chunk(data, 0)) == 0
    assert inbox.answers[-1][1].term == 4
    assert not inbox.disk.exists(SNAPSHOT + RECEIVED_SUFFIX)


async def test_what_is_here_already_is_not_received() -> None:
    inbox = Inbox()
    inbox.core.installed_index = META.index
    assert await inbox.take(chunks()[0]) == -1
    assert inbox.core.covered == [(LEADER, META.index)]
    assert not inbox.disk.exists(SNAPSHOT + RECEIVED_SUFFIX)


async def test_a_damaged_snapshot_is_dropped_and_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox()
    data = bytearray(sent(META))
    data[len(data) // 2] ^= 1
    answer = 0
    for position in range(0, len(data), CHUNK):
        answer = await inbox.take(chunk(bytes(data), position))
    assert answer == 0
    assert not inbox.installed
    assert "damaged" in caplog.text
    for each in chunks():
        await inbox.take(each)
    assert restored(inbox.store)[1] == PIECES


async def test_a_snapshot_longer_than_the_limit_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raftlog.raft.log.store.RECEIVED_BYTES_MAX", CHUNK)
    inbox, all_chunks = Inbox(), chunks()
    assert await inbox.take(all_chunks[0]) == CHUNK
    assert await inbox.take(all_chunks[1]) == 0, "begun anew, and the member lives"
    assert "longer than" in caplog.text
    assert not inbox.disk.exists(SNAPSHOT + RECEIVED_SUFFIX)


@pytest.mark.parametrize("at", [0, 1, 3])
async def test_without_room_the_same_is_asked_for_until_there_is_some(at: int) -> None:
    inbox, all_chunks = Inbox(), chunks()
    for each in all_chunks[:at]:
        await inbox.take(each)
    inbox.disk.capacity_bytes = inbox.disk.used_bytes()
    for _ in range(3):
        assert await inbox.take(all_chunks[at]) == at * CHUNK
    inbox.disk.capacity_bytes = None
    for each in all_chunks[at:]:
        await inbox.take(each)
    assert restored(inbox.store)[1] == PIECES


async def test_after_a_stream_that_had_no_room_to_begin_the_first_may_come_again() -> None:
    inbox, mine, theirs = Inbox(), chunks(), chunks(OTHER)
    await inbox.take(mine[0])
    inbox.disk.fail_next("append", RECEIVED_SUFFIX, DiskFullError)
    assert await inbox.take(theirs[0], RIVAL) == 0
    assert await inbox.take(mine[1]) == 0, "what had arrived is gone"
    for each in mine:
        await inbox.take(each)
    assert restored(inbox.store)[1] == PIECES


async def test_without_room_to_put_it_in_place_all_is_asked_for_again() -> None:
    inbox, all_chunks = Inbox(), chunks()
    for each in all_chunks[:-1]:
        await inbox.take(each)
    inbox.disk.fail_next("rename", RECEIVED_SUFFIX, DiskFullError)
    assert await inbox.take(all_chunks[-1]) == 0
    for each in all_chunks:
        await inbox.take(each)
    assert restored(inbox.store)[1] == PIECES


async def test_any_other_failure_of_the_disk_is_final() -> None:
    inbox, all_chunks = Inbox(), chunks()
    for each in all_chunks[:-1]:
        await inbox.take(each)
    inbox.disk.fail_next("sync", RECEIVED_SUFFIX)
    with pytest.raises(DiskError):
        await inbox.take(all_chunks[-1])
    assert not inbox.installed


async def test_chunks_that_come_during_a_write_are_only_answered() -> None:
    inbox, all_chunks = Inbox(yields=True), chunks()
    for number, each in enumerate(all_chunks):
        twice = (inbox.take(each), inbox.take(each), inbox.take(heartbeat()))
        await asyncio.gather(*twice)
        if not inbox.installed:
            assert inbox.store.received_bytes == CHUNK * (number + 1)
    assert restored(inbox.store)[1] == PIECES
    assert len(inbox.installed) == 1


class Outbound:
    """A sending member; its messages can be lost."""

    def __init__(self, world: World) -> None:
        self.disk = world.disk(1)
        self.store = QuorumStore(self.disk, DIRECTORY)
        self.store.load(VOTERS)
        self.store._last_index = META.index
        self.store.save_snapshot(META, PIECES)
        core: Any = StubCore()
        self.said: asyncio.Queue[SnapshotChunk] = asyncio.Queue()
        self.sender = SnapshotSender(
            2, core=core, store=self.store, disk=self.disk, clock=world.clock(1), send=self.send,
            chunk_bytes=CHUNK,
        )  # fmt: skip
        self.task = asyncio.get_running_loop().create_task(self.sender.run())

    def send(self, peer: int, message: Message) -> None:
        assert isinstance(message, SnapshotChunk)
        assert peer == 2
        self.said.put_nowait(message)

    async def next(self, seconds: float = 0.5) -> SnapshotChunk:
        async with asyncio.timeout(seconds):
            return await self.said.get()

    def answer(self, position: int, meta: SnapshotMeta = META) -> None:
        self.sender.received(SnapshotAnswer(3, meta.index, meta.term, position))


def test_the_sender_goes_on_from_each_answer_to_the_end() -> None:
    async def main(world: World) -> None:
        outbound, data = Outbound(world), b""
        while True:
            said = await outbound.next()
            assert said.position == len(data)
            data += said.data
            outbound.answer(len(data))
            if len(data) == said.size:
                break
        assert data == sent(META)
        await asyncio.sleep(3 * CHUNK_RESEND_S)
        assert outbound.said.empty(), "nothing is left to say"
        outbound.task.cancel()

    run(1, main)


def test_a_chunk_without_an_answer_is_sent_again() -> None:
    async def main(world: World) -> None:
        outbound = Outbound(world)
        first = await outbound.next()
        assert await outbound.next(1.5 * CHUNK_RESEND_S) == first
        outbound.answer(first.position)
        await asyncio.sleep(CHUNK_RESEND_S / 2)
        assert outbound.said.empty(), "the same position again answers a heartbeat"
        outbound.task.cancel()

    run(1, main)


def test_receiver_answers_its_position_even_the_start() -> None:
    async def main(world: World) -> None:
        outbound = Outbound(world)
        await outbound.next()
        outbound.answer(2 * CHUNK)
        assert (await outbound.next()).position == 2 * CHUNK
        outbound.answer(0)
        assert (await outbound.next()).position == 0
        outbound.answer(10**9)
        await asyncio.sleep(0.1)
        assert outbound.said.empty(), "there is nothing behind the end"
        outbound.answer(CHUNK, OTHER)
        await asyncio.sleep(0.1)
        assert outbound.said.empty(), "of another snapshot"
        outbound.task.cancel()

    run(1, main)


def test_a_heartbeat_has_no_data_and_disturbs_nothing() -> None:
    async def main(world: World) -> None:
        outbound = Outbound(world)
        assert outbound.sender.index is None or outbound.sender.index == META.index
        first = await outbound.next()
        outbound.sender.send_heartbeat()
        said = await outbound.next()
        assert (said.data, said.position) == (b"", first.size)
        assert outbound.sender.index == META.index
        outbound.task.cancel()

    run(1, main)


def test_a_snapshot_that_is_replaced_meanwhile_is_sent_to_its_end() -> None:
    async def main(world: World) -> None:
        outbound = Outbound(world)
        data = (await outbound.next()).data
        outbound.store._last_index = OTHER.index
        outbound.store.save_snapshot(OTHER, [b"newer"])
        while len(data) < len(sent(META)):
            outbound.answer(len(data))
            data += (await outbound.next()).data
        assert data == sent(META)
        outbound.task.cancel()

    run(1, main)
