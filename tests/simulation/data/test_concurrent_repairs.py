"""Damaged members that leave the ISR at the same moment: the last one stays."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.metadata.image import NO_LEADER_ID
from raftlog.record.errors import LogError
from raftlog.record.types import Offset
from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)


async def read_all(data: DataWorld, node_id: int) -> None:
    """Read the replica from its start, so that the node finds its damage."""
    replica = data.replica(node_id, T)
    assert replica is not None
    offset = Offset(0)
    while offset < replica.high_watermark:
        try:
            found = await data.nodes.call(
                node_id,
                lambda _, at=offset: replica.read(at, max_bytes=500, any_replica=True),  # type: ignore[misc]
            )
        except LogError:
            return
        offset = max(found.next_offset, Offset(offset + 1))


@pytest.mark.parametrize("damaged_count", [2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_last_of_several_damaged_members_stays_eligible(damaged_count: int, seed: int) -> None:
    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        members = data.nodes.others(controller)[:3]
        await data.create("t", [members])
        for _ in range(60):
            await data.write(T, 3)
        await data.in_sync()
        damaged, absent = members[:damaged_count], members[damaged_count:]
        for node_id in absent:
            data.nodes.kill(node_id)
        await data.isr(T, *damaged)
        for number, node_id in enumerate(damaged):
            data.rot(node_id, T, segment=1 + number)
        await asyncio.gather(*(read_all(data, node_id) for node_id in damaged))
        await asyncio.sleep(10.0)
        row = data.row(T)
        assert row.leader != NO_LEADER_ID, f"no replica may lead any more: {row}"
        # Whether the rotten batches are mended from the other copies is not judged here.
        data.parts.clear()
        data.history.clear()

    simulate_data(test, seed, node_count=5)
