"""Nodes killed, paused and restarted under load (rows 1 to 3 and 11 of
tests/simulation/data/FAULTS.md).

The long version, with random faults for minutes, is scripts/soak.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.cluster import Cluster
from tests.integration.faulted import NODES, Load, hurt
from tests.soak.nemesis import Nemesis

ALONE_S = 0.5
UNDER_WAY_MAX = 30
"""Sends of a tenth of a second; half a second would be 150."""


async def leader(load: Load) -> int:
    (found,) = await Nemesis.leader(load.nemesis)
    return found


def test_promise_1_a_killed_leader_and_then_all_killed_cost_no_acknowledged_record(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def act(load: Load) -> None:
        victim = await leader(load)
        cluster.kill(victim)
        await load.until_led_without(victim)
        await load.progress()
        await load.back(victim)
        cluster.kill(*NODES)
        await load.back(*NODES)

    hurt(cluster, "killed", tmp_path, act)


@pytest.mark.full  # the simulator has this fault too; test_replicated pauses a process
def test_promise_7_a_leader_that_was_paused_past_its_session_commits_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def act(load: Load) -> None:
        victim = await leader(load)
        cluster.pause(victim)
        try:
            await load.until_led_without(victim)
            await load.progress()
        finally:
            cluster.resume(victim)
        await load.whole()
        await load.progress()

    hurt(cluster, "paused-leader", tmp_path, act)


@pytest.mark.full  # restarts three nodes under load
def test_a_rolling_restart_is_no_error_to_the_client(cluster: Cluster, tmp_path: Path) -> None:
    async def act(load: Load) -> None:
        for node_id in NODES:
            await asyncio.to_thread(cluster.nodes[node_id].stop)
            await load.back(node_id)

    load = hurt(cluster, "rolled", tmp_path, act)
    errors = [error for error in load.account.errors if "client-" in error]
    assert errors == []


def test_promise_6_a_replica_that_is_alone_acknowledges_nothing_and_nothing_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def act(load: Load) -> None:
        _, *others = NODES
        cluster.kill(*others)
        # Sends under way may still be acknowledged.
        acknowledged = load.acknowledged
        await asyncio.sleep(ALONE_S)
        assert load.acknowledged - acknowledged <= UNDER_WAY_MAX
        await load.back(*others)

    hurt(cluster, "alone", tmp_path, act)
