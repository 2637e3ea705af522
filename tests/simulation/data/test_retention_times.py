"""What retention may believe about time: no single clock, no unchecked file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from unittest import mock

import pytest

from raftlog.storage import manager
from raftlog.storage.types import StorageSettings
from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)
DAY_S = 86_400.0
PASSES_S = 10.0


@pytest.fixture(autouse=True)
def frequent_retention() -> Iterator[None]:
    often = partial(StorageSettings, retention_interval_ms=1_000)
    with mock.patch.object(manager, "StorageSettings", often):
        yield


def log_starts(data: DataWorld) -> list[int]:
    replicas = [data.replica(node_id, T) for node_id in (1, 2, 3)]
    return [-1 if one is None else int(one.log_start_offset) for one in replicas]


async def lead(data: DataWorld, node_id: int) -> None:
    controller = await data.nodes.until(data.nodes.controller)
    await data.nodes.call(
        controller,
        lambda core: core.services.metadata.operations.transfer_leader("t", 0, node_id),
    )
    await data.led(T, node_id)


@pytest.mark.parametrize("controls", [False, True])
def test_a_node_that_starts_with_its_clock_days_ahead_deletes_nothing(controls: bool) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], {"retention.ms": "86400000"})
        for _ in range(40):
            await data.write(T, 3)
        await data.in_sync()
        wrong = await data.nodes.until(data.nodes.controller) if controls else 2
        data.nodes.kill(wrong)
        data.world.clock(wrong).jump(2 * DAY_S)
        data.nodes.start(wrong)
        await data.in_sync()
        await asyncio.sleep(PASSES_S)
        await lead(data, wrong)
        await data.write(T)
        await asyncio.sleep(PASSES_S)
        assert log_starts(data) == [0, 0, 0]
        totals = data.nodes.cores[wrong].services.logs.totals()
        assert abs(totals.clock_skew_ms - 2 * DAY_S * 1000) < 10_000
        others = [data.nodes.cores[n].services.logs.totals() for n in {1, 2, 3} - {wrong}]
        assert all(abs(each.clock_skew_ms) < 10_000 for each in others)

    simulate_data(test)


def test_records_go_at_their_time_though_one_clock_stands_days_behind() -> None:
    """The replica with that clock keeps them by its own time, until its leader deletes them."""

    async def test(data: DataWorld) -> None:
        data.nodes.kill(3)
        data.world.clock(3).jump(-2 * DAY_S)
        data.nodes.start(3)
        await data.create("t", [[1, 2, 3]], {"retention.ms": "5000"})
        for _ in range(40):
            await data.write(T, 3)
        await data.in_sync()
        for node_id in (1, 2, 3):
            # All records have a fixed time of the past, by every clock but one.
            data.world.clock(node_id).jump(3600.0)
        await data.nodes.until(lambda: min(log_starts(data)) > 0, 120.0)
        # The final checks know of no records that have left by age.
        data.history.clear()
        data.parts.clear()

    simulate_data(test)
