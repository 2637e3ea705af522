"""Nodes that cannot reach each other (rows 4 and 5 of tests/simulation/data/FAULTS.md).

In network namespaces, which need root and `ip`; skipped without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bench.wires import NoWiresError, Wires
from tests.integration.faulted import NODES, Load, hurt
from tests.soak.cuts import Cuts
from tests.soak.nemesis import Nemesis


@pytest.fixture(scope="module")
def wires() -> Iterator[Wires]:
    """A network of their own for three nodes."""
    try:
        with Wires(len(NODES)) as found:
            yield found
    except NoWiresError as error:
        pytest.skip(f"no network namespaces: {error}")


@pytest.fixture(scope="module")
def cluster(wires: Wires, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three voters, each on a wire of its own, all ready."""
    directory = tmp_path_factory.mktemp("data") / "cluster"
    with Cluster(directory, len(NODES), places=wires.places) as processes:
        processes.start()
        yield processes


@pytest.fixture
def cuts(wires: Wires) -> Iterator[Cuts]:
    """Mended with the test."""
    found = Cuts(wires.places)
    yield found
    found.mend()


async def cut(load: Load, cuts: Cuts, *, is_deaf: bool) -> None:
    """Lose the leader's packets until other nodes lead; then mend."""
    (victim,) = await Nemesis.leader(load.nemesis)
    others = cuts.others(victim)
    cuts.lose([victim], others)
    if is_deaf:
        cuts.lose(others, [victim])
    try:
        await until_others_lead(load, victim)
        await load.progress()
    finally:
        cuts.mend()
    await load.whole()
    await load.progress()


async def until_others_lead(load: Load, victim: int) -> None:
    # The isolated node does not learn of the new leaders, so it must not be the one that answers.
    node = load.cluster.nodes.pop(victim)
    try:
        await load.until_led_without(victim)
    finally:
        load.cluster.nodes[victim] = node


def test_promise_7_a_leader_that_the_others_cannot_hear_or_reach_commits_nothing(
    cluster: Cluster, cuts: Cuts, tmp_path: Path
) -> None:
    """Clients reach the leader all the time. First it still receives from the others, then not."""

    async def act(load: Load) -> None:
        await cut(load, cuts, is_deaf=False)
        await cut(load, cuts, is_deaf=True)

    hurt(cluster, "cut-off", tmp_path, act)


@pytest.mark.full  # the simulator has this fault too
def test_a_node_without_network_costs_no_acknowledged_record(
    cluster: Cluster, wires: Wires, tmp_path: Path
) -> None:
    async def act(load: Load) -> None:
        (victim,) = await Nemesis.leader(load.nemesis)
        wires.cut(victim)
        try:
            await until_others_lead(load, victim)
            await load.progress()
        finally:
            wires.mend(victim)
        await load.whole()
        await load.progress()

    hurt(cluster, "unplugged", tmp_path, act)
