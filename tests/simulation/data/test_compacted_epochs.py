"""Leader epochs whose records compaction has removed: replicas still agree where each began."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks
from raftlog.storage.compaction.rewrite import CompactionPass
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.simulation.data.keyed import COMPACTED, committed_records, compacting, lead, put

T = Part("t", 0)


async def until_compacted(data: DataWorld, node_id: int, offset: int) -> None:
    """Wait until that node's replica is compacted up to an offset."""

    def is_compacted() -> bool:
        replica = data.replica(node_id, T)
        return replica is not None and replica.log.compaction.first_dirty_offset > offset

    await data.nodes.until(is_compacted, 60.0)


async def overwrite(data: DataWorld, node_id: int) -> None:
    """Write newer values of the same keys, over several segments."""
    for number in range(60):
        await put(data, T, node_id, ("b", f"new-{number}"), (f"k{number % 3}", str(number)))


async def require_equal(data: DataWorld, *, repaired: int | None = None) -> None:
    """All replicas hold the same records at the offsets that two of them still have.

    No replica was put in quarantine, but for that of the node `repaired`.
    """
    await data.in_sync(T)
    at: dict[int, tuple[str, str | None]] = {}
    newest: list[dict[str, str | None]] = []
    for member in map(int, data.row(T).replicas):
        records = await committed_records(data, T, member)
        for offset, key, value in records:
            assert at.setdefault(offset, (key, value)) == (key, value), f"{offset} on {member}"
        newest.append({key: value for _, key, value in records})
    assert all(one == newest[0] for one in newest)
    damaged = [
        path
        for node_id in data.nodes.node_ids
        if node_id != repaired
        for path in data.world.disk(node_id).paths()
        if path.startswith("damaged/")
    ]
    assert not damaged
    # The final checks know no keys.
    data.parts.clear()
    data.history.clear()


async def run_to_a_leader_built_from_the_compacted_log(data: DataWorld) -> int:
    """Returns a node that is down, and whose last record is of an epoch compacted away since."""
    controller = await data.nodes.until(data.nodes.controller)
    one, two, three, four = data.nodes.others(controller)
    await data.create("t", [[one, two, three]], COMPACTED)
    for number in range(4):
        await put(data, T, one, (f"first-{number}", "x"))
    await lead(data, T, two)
    for number in range(2):
        await put(data, T, two, ("b", str(number)))
    await data.in_sync()
    # The high watermark is written down; then the third node is away for a while.
    await asyncio.sleep(3.0)
    data.nodes.kill(three)
    await data.isr(T, one, two)
    await lead(data, T, one)
    await overwrite(data, one)
    await until_compacted(data, one, 60)
    await data.reassign(T, [one, four, two, three])
    await data.isr(T, one, four, two)
    await lead(data, T, four)
    return three


def test_a_follower_of_a_compacted_epoch_comes_back() -> None:
    """A replica built from the compacted log leads, and knows where that epoch ended."""

    async def test(data: DataWorld) -> None:
        three = await run_to_a_leader_built_from_the_compacted_log(data)
        data.nodes.start(three)
        await data.isr(T, *map(int, data.row(T).replicas))
        await require_equal(data)

    with compacting():
        simulate_data(test, node_count=5)


def test_a_replica_is_fetched_again_where_version_0_3_compacted_an_epoch_away() -> None:
    """Its files are kept, and it leaves the ISR first, as before any repair."""

    async def test(data: DataWorld) -> None:
        three = await run_to_a_leader_built_from_the_compacted_log(data)
        data.nodes.start(three)
        await data.isr(T, *map(int, data.row(T).replicas))
        aside = [path for path in data.world.disk(three).paths() if path.startswith("damaged/")]
        assert aside
        await require_equal(data, repaired=three)

    begin = CompactionPass.__init__

    def begin_as_0_3(self: CompactionPass, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **{**named, "epoch_starts": frozenset()})

    with compacting(), mock.patch.object(CompactionPass, "__init__", begin_as_0_3):
        simulate_data(test, node_count=5)


def test_records_replaced_in_a_compacted_epoch_do_not_survive() -> None:
    """A deposed leader's lone records lie where compaction has removed those that replaced them."""

    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        one, two, three, four = data.nodes.others(controller)
        await data.create("t", [[one, two, three]], COMPACTED)
        for number in range(4):
            await put(data, T, one, (f"first-{number}", "x"))
        await data.in_sync()
        await asyncio.sleep(3.0)
        data.nodes.cut_off(one)
        for number in range(2):
            with pytest.raises((LogError, TimeoutError)):
                await put(data, T, one, (f"lone-{number}", "never committed"), acks=Acks.ALL)
        data.nodes.kill(one)
        data.world.network.heal()
        await data.led(T, two, three)
        leader = data.leader(T)
        assert leader is not None
        for number in range(2):
            await put(data, T, leader, ("b", str(number)))
        other = two if leader == three else three
        await lead(data, T, other)
        await overwrite(data, other)
        await until_compacted(data, other, 60)
        await data.reassign(T, [other, four, leader, one])
        await data.isr(T, other, four, leader)
        await lead(data, T, four)
        data.nodes.start(one)
        await data.isr(T, one, two, three, four)
        assert all(
            not key.startswith("lone") for _, key, _ in await committed_records(data, T, one)
        )
        await require_equal(data)

    with compacting():
        simulate_data(test, node_count=5)
