"""Power cuts with flush=async and one replica: an only copy that may lack records waits."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)
ASYNC = {"flush": "async"}


async def accept_loss(data: DataWorld) -> None:
    """As an operator: elect the replica although records may be missing."""
    controller = await data.nodes.until(data.nodes.controller)
    data.lose(T, 0)
    await data.nodes.call(
        controller,
        lambda core: core.services.metadata.operations.transfer_leader("t", 0, None, unclean=True),
    )
    await data.led(T)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("node_count", [1, 3])
def test_an_only_replica_stays_offline_until_an_operator_accepts_the_loss(
    seed: int, node_count: int
) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1]], ASYNC, small_segments=False)
        for _ in range(5):
            await data.write(T, 2)
        data.cut_power(1)
        data.nodes.start(1)
        await data.nodes.until(lambda: data.nodes.is_ready(1))
        await asyncio.sleep(3.0)
        assert data.leader(T) is None, data.describe()
        # A second start forgets nothing, nor does it report the loss once more.
        data.nodes.kill(1)
        data.nodes.start(1)
        await data.nodes.until(lambda: data.nodes.is_ready(1))
        await asyncio.sleep(1.0)
        assert data.leader(T) is None, data.describe()
        await accept_loss(data)
        assert data.row(T).unclean_epoch == data.row(T).leader_epoch
        await data.write(T, 2)
        data.nodes.kill(1)
        data.nodes.start(1)
        await data.led(T, 1)

    simulate_data(test, seed, node_count=node_count)


def test_an_only_replica_leads_at_once_after_a_crash_of_its_process() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1]], ASYNC)
        await data.write(T, 5)
        data.nodes.kill(1)
        data.nodes.start(1)
        await data.led(T, 1)
        assert data.replica(1, T).log_end_offset >= 5  # type: ignore[union-attr]
        assert data.row(T).unclean_epoch < data.row(T).leader_epoch

    simulate_data(test, node_count=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("replicas", [[1], [1, 2, 3]])
def test_a_partition_without_writes_for_a_while_loses_nothing_and_leads_at_once(
    seed: int, replicas: list[int]
) -> None:
    """It was synced, and its checkpoint says so: no operator is needed after a power cut of all."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [replicas], ASYNC, small_segments=False)
        for _ in range(2):
            for _ in range(5):
                await data.write(T, 2)
            await data.in_sync()
            end = data.replica(1, T).log_end_offset  # type: ignore[union-attr]
            await asyncio.sleep(30.0)
            data.cut_power(*data.nodes.node_ids)
            for node_id in data.nodes.node_ids:
                data.nodes.start(node_id)
            leader = await data.led(T)
            assert data.replica(leader, T).log_end_offset == end  # type: ignore[union-attr]
            assert data.row(T).unclean_epoch < data.row(T).leader_epoch

    simulate_data(test, seed, node_count=3)


def test_where_the_topic_allows_unclean_elections_no_operator_is_needed() -> None:
    async def test(data: DataWorld) -> None:
        configs = ASYNC | {"unclean.leader.election.enable": "true"}
        await data.create("t", [[1]], configs, small_segments=False)
        await data.write(T, 5)
        data.lose(T, 0)
        data.cut_power(1)
        data.nodes.start(1)
        await data.led(T, 1)
        # The metadata has recorded the loss.
        assert data.row(T).unclean_epoch == data.row(T).leader_epoch

    simulate_data(test, node_count=1)
