"""Rot in more than one replica: a record with one good copy is readable again everywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from raftlog.record.errors import LogError
from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoint_file import CHECKPOINT_NAME
from raftlog.storage.log.derived_state import EPOCHS_NAME
from tests.simulation.data.data_world import DataWorld, NodeDiedError, Part, simulate_data

T = Part("t", 0)
REPAIRED_S = 60.0


async def unreadable(data: DataWorld, node_id: int) -> list[int]:
    """Committed offsets that a node's replica does not give."""
    replica = data.replica(node_id, T)
    assert replica is not None
    bad, offset = [], 0
    while offset < replica.high_watermark:
        start = Offset(offset)

        async def read(_core: object, start: Offset = start) -> int:
            fetched = await replica.read(start, max_bytes=300, any_replica=True)
            return int(fetched.next_offset)

        try:
            offset = max(await data.nodes.call(node_id, read), offset + 1)
        except (LogError, NodeDiedError):
            bad.append(offset)
            offset += 1
    return bad


async def all_readable(data: DataWorld) -> None:
    """Read every replica until each has every record: readers find the damage."""
    deadline = data.world.loop.now + REPAIRED_S
    bad: Mapping[int, list[int]] = {}
    while data.world.loop.now < deadline:
        bad = {node_id: await unreadable(data, node_id) for node_id in (1, 2, 3)}
        if not any(bad.values()):
            return
        await asyncio.sleep(1.0)
    raise AssertionError(f"unreadable by node: {bad}\n{data.describe()}")


def quarantined(data: DataWorld) -> list[str]:
    return [name for core in data.nodes.cores.values() for name in core.services.logs.quarantined()]


async def written(data: DataWorld, configs: Mapping[str, str] | None = None) -> None:
    await data.create("t", [[1, 2, 3]], configs)
    for _ in range(80):
        await data.write(T, 3)
    await data.in_sync()


def test_one_rotten_batch_in_each_replica_is_mended_where_it_is() -> None:
    async def test(data: DataWorld) -> None:
        await written(data)
        row = data.row(T)
        for node_id in (1, 2, 3):
            data.rot(node_id, T, segment=node_id)
        await all_readable(data)
        assert data.row(T).leader_epoch == row.leader_epoch, "the leader keeps the lead"
        assert set(data.row(T).isr) == {1, 2, 3}
        assert not [name for name in quarantined(data) if not name.endswith("-batches")]

    simulate_data(test)


def test_the_first_reader_of_a_damaged_batch_gets_its_records() -> None:
    async def test(data: DataWorld) -> None:
        await written(data)
        for node_id in (1, 2, 3):
            data.rot(node_id, T, segment=node_id)
        for node_id in (1, 2, 3):
            assert not await unreadable(data, node_id)

    simulate_data(test)


@pytest.mark.parametrize("seed", range(8))
def test_rot_in_many_places_of_two_replicas_is_mended_under_writes_and_crashes(seed: int) -> None:
    async def test(data: DataWorld) -> None:
        chance = random.Random(seed)
        await written(data)
        first, second = chance.sample((1, 2, 3), 2)
        count = len(data.paths(first, T))
        places = chance.sample(range(count), 6)
        for number, segment in enumerate(places):
            node_id = first if number % 2 else second
            if segment < len(data.paths(node_id, T)) - 1:
                data.rot(node_id, T, segment=segment, at=chance.uniform(0.1, 0.9))

        async def disturb() -> None:
            for _ in range(4):
                await data.write(T, 2)
                await asyncio.sleep(chance.uniform(0.1, 2.0))
            node_id = chance.choice((1, 2, 3))
            data.nodes.kill(node_id, power=chance.random() < 0.5)
            await asyncio.sleep(chance.uniform(0.1, 3.0))
            data.nodes.start(node_id)
            await data.nodes.ready()
            await data.in_sync()

        for node_id in (1, 2, 3):
            await unreadable(data, node_id)
        await disturb()
        await all_readable(data)

    simulate_data(test, seed)


def test_a_leader_waits_for_the_only_good_copy() -> None:
    async def test(data: DataWorld) -> None:
        await written(data)
        leader = data.leader(T)
        assert leader is not None
        other, keeper = [node_id for node_id in (1, 2, 3) if node_id != leader]
        data.nodes.kill(keeper)
        await data.isr(T, leader, other)
        for node_id in (leader, other):
            data.rot(node_id, T, segment=1)
        assert await unreadable(data, leader)
        await asyncio.sleep(20.0)
        assert set(data.row(T).isr) == {leader, other}, "no replica is given up meanwhile"
        data.nodes.start(keeper)
        await data.nodes.ready()
        await all_readable(data)

    simulate_data(test)


def test_batches_set_aside_by_two_starts_mend_the_third_replica() -> None:
    """Each replica rots in another batch. Two logs are replaced at a start (200245)."""

    async def test(data: DataWorld) -> None:
        await written(data)
        leader = data.leader(T)
        assert leader is not None
        others = [node_id for node_id in (1, 2, 3) if node_id != leader]
        for number, node_id in enumerate((leader, *others)):
            data.rot(node_id, T, segment=number)

        async def restart_and_replace(node_id: int, count: int) -> None:
            data.nodes.kill(node_id)
            # Without the file all logs are scanned.
            data.world.disk(node_id).remove(CHECKPOINT_NAME)
            data.nodes.start(node_id)
            await data.nodes.until(lambda: len(quarantined(data)) == count)

        for count, node_id in enumerate(others, 1):
            await restart_and_replace(node_id, count)
        await data.nodes.ready()
        await all_readable(data)

    simulate_data(test)


@pytest.mark.parametrize("lost", [CHECKPOINT_NAME, EPOCHS_NAME])
def test_the_last_replica_found_damaged_at_its_start_is_mended(lost: str) -> None:
    """Each replica rots in another batch, and no node finds that before its restart (205207).

    Two replicas leave the ISR and are replaced; the third may not leave.
    """

    async def test(data: DataWorld) -> None:
        await written(data)
        for node_id in (1, 2, 3):
            data.rot(node_id, T, segment=node_id)
        for node_id in (1, 2, 3):
            data.nodes.kill(node_id)
            disk = data.world.disk(node_id)
            # Without the file all segments are scanned.
            for path in disk.paths():
                if path.endswith(lost):
                    disk.remove(path)
        data.nodes.start_all()
        await data.nodes.ready()
        await data.in_sync(T)
        await all_readable(data)
        assert len([name for name in quarantined(data) if not name.endswith("-batches")]) == 2

    simulate_data(test)


@pytest.mark.parametrize("seed", range(8))
def test_rot_found_by_the_starts_of_all_replicas_is_mended_under_crashes(seed: int) -> None:
    """Each segment rots in one replica, so that every batch keeps two good copies."""

    async def test(data: DataWorld) -> None:
        chance = random.Random(seed)
        await written(data)
        places = chance.sample(range(len(data.paths(1, T)) - 1), 6)
        for number, segment in enumerate(places):
            data.rot(1 + number % 3, T, segment=segment, at=chance.uniform(0.1, 0.9))
        lost = chance.choice((CHECKPOINT_NAME, EPOCHS_NAME))
        for node_id in (1, 2, 3):
            data.nodes.kill(node_id, power=chance.random() < 0.5)
            disk = data.world.disk(node_id)
            for path in disk.paths():
                if path.endswith(lost):
                    disk.remove(path)
        for node_id in chance.sample((1, 2, 3), 3):
            data.nodes.start(node_id)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
        for _ in range(chance.randrange(4)):
            node_id = chance.choice((1, 2, 3))
            data.nodes.kill(node_id, power=chance.random() < 0.5)
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            data.nodes.start(node_id)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
        await data.nodes.ready()
        await data.in_sync(T)
        await all_readable(data)

    simulate_data(test, seed)
