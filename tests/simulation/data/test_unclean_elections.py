"""Unclean elections among several replicas: the longest log loses the fewest records."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)
CONFIGS = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


@pytest.mark.parametrize("longer_is_last", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_longest_log_leads_and_only_what_it_lacks_is_lost(
    seed: int, longer_is_last: bool
) -> None:
    async def test(data: DataWorld) -> None:
        controller = await data.nodes.until(data.nodes.controller)
        leader, one, two, *_ = data.nodes.others(controller)
        longer, shorter = (two, one) if longer_is_last else (one, two)
        await data.create("t", [[leader, one, two]], CONFIGS)
        await data.write(T, 3)
        await data.in_sync()
        data.nodes.kill(shorter)
        await data.isr(T, leader, longer)
        await data.write(T, 3)
        kept = data.replica(leader, T).log_end_offset  # type: ignore[union-attr]
        data.nodes.kill(longer)
        await data.isr(T, leader)
        await data.write(T, 3)
        # Both return, and cannot reach the leader: they stay behind, each where it was.
        for node_id in (shorter, longer):
            data.nodes.cut_off(node_id, [leader])
            data.nodes.start(node_id)
        await data.nodes.until(
            lambda: not any(data.nodes.is_fenced(each) for each in (shorter, longer))
        )
        assert data.row(T).isr == (leader,) and data.leader(T) == leader, data.describe()
        data.lose(T, kept)
        data.nodes.kill(leader)
        await data.led(T, longer)
        assert data.row(T).unclean_epoch == data.row(T).leader_epoch
        await data.write(T, 3)
        await asyncio.sleep(1.0)
        data.nodes.start(leader)

    simulate_data(test, seed, node_count=5)
