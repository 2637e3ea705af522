"""Deleted keys stay deleted on replicas that have missed the tombstones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final
from unittest import mock

from raftlog.replication.leader import role as leader_role
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.simulation.data.keyed import COMPACTED, committed_records, compacting, lead, put

T: Final = Part("t", 0)
CONFIGS: Final = {**COMPACTED, "segment.bytes": "400", "delete.retention.ms": "1000"}
KEY: Final = "deleted"


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Compact often, and hardly wait for a follower that is away."""
    with compacting(), mock.patch.object(leader_role, "CATCH_UP_S", 1.0):
        yield


async def values_of(data: DataWorld, node_id: int, wanted: str = KEY) -> list[str | None]:
    """The key's values on a replica; None for a tombstone."""
    records = await committed_records(data, T, node_id)
    return [value for _, key, value in records if key == wanted]


async def until_forgotten(data: DataWorld, *node_ids: int) -> None:
    """Write other keys until those replicas have no record of the deleted key."""
    for number in range(80):
        if not [value for node_id in node_ids for value in await values_of(data, node_id)]:
            return
        leader = data.leader(T)
        assert leader is not None
        await put(data, T, leader, (f"k{number % 3}", str(number)))
        await asyncio.sleep(0.3)
    raise AssertionError("the tombstone stays")


async def deleted_while_one_is_away(data: DataWorld) -> tuple[int, int, int, int]:
    """Two replicas have forgotten a deleted key; the third replica is down, and has its value.

    Returns the leader, the other two in this order, and a node without a replica.
    """
    controller = await data.nodes.until(data.nodes.controller)
    one, two, three, four = data.nodes.others(controller)
    await data.create("t", [[one, two, three]], CONFIGS)
    await put(data, T, one, (KEY, "old"), ("kept", "x"))
    await data.in_sync(T)
    # The high watermark is written down.
    await asyncio.sleep(3.0)
    data.nodes.kill(three)
    await data.isr(T, one, two)
    await put(data, T, one, (KEY, None))
    await until_forgotten(data, one, two)
    return one, two, three, four


async def require_gone(data: DataWorld) -> None:
    """No replica has the deleted key, and all have the kept one."""
    await data.in_sync(T)
    for member in map(int, data.row(T).replicas):
        assert await values_of(data, member) == [], f"the deleted key is back on {member}"
        assert await values_of(data, member, "kept") == ["x"], f"a value is lost on {member}"
    # The final checks know no keys.
    data.parts.clear()
    data.history.clear()


def test_a_follower_that_missed_a_tombstone_loses_the_deleted_key() -> None:
    async def test(data: DataWorld) -> None:
        _, _, three, _ = await deleted_while_one_is_away(data)
        data.nodes.start(three)
        await data.isr(T, *map(int, data.row(T).replicas))
        await require_gone(data)

    with forgetting():
        simulate_data(test, node_count=5)


def test_a_leader_built_from_a_log_without_the_tombstone_knows_that_it_is_gone() -> None:
    """A new replica: no compaction of its own has removed a tombstone."""

    async def test(data: DataWorld) -> None:
        one, two, three, four = await deleted_while_one_is_away(data)
        await data.reassign(T, [one, four, two, three])
        await data.isr(T, one, four, two)
        await lead(data, T, four)
        data.nodes.start(three)
        await data.isr(T, *map(int, data.row(T).replicas))
        await require_gone(data)

    with forgetting():
        simulate_data(test, node_count=5)
