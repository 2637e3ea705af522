"""Nodes that cannot reach each other (rows 4 and 5 of the design's fault matrix).

In network namespaces, which need root and `ip`; skipped without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster_processes import ClusterProcesses
from bench.replication.wires import NoWiresError, Wires
from bench.soak.cuts import Cuts
from bench.soak.faults import Nemesis
from tests.integration.faulted import NODES, Load, cuts_of, hurt


@pytest.fixture(scope="module")
def wires() -> Iterator[Wires]:
    """A network of their own for three nodes."""
    try:
        with Wires(len(NODES)) as found:
            yield found
    except NoWiresError as error:
        pytest.skip(f"no network namespaces: {error}")


@pytest.fixture(scope="module")
def cluster(wires: Wires, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three voters, each on a wire of its own, all ready."""
    directory = tmp_path_factory.mktemp("data") / "cluster"
    with ClusterProcesses(directory, len(NODES), places=wires.places) as processes:
        processes.start()
        yield processes


@pytest.fixture
def cuts(wires: Wires) -> Iterator[Cuts]:
    """Mended with the test."""
    found = cuts_of(wires.places)
    yield found
    found.mend()


async def cut(load: Load, cuts: Cuts, *, is_deaf: bool) -> None:
    """Others lead while the leader's words are lost; then it comes back."""
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
    # Whoever is asked first may be the one that is cut off, and does not know.
    node = load.processes.nodes.pop(victim)
    try:
        await load.until_led_without(victim)
    finally:
        load.processes.nodes[victim] = node


def test_promise_7_a_leader_that_the_others_cannot_hear_or_reach_commits_nothing(
    cluster: ClusterProcesses, cuts: Cuts, tmp_path: Path
) -> None:
    """Its clients reach it all the time. First it hears the others still, then it does not."""

    async def act(load: Load) -> None:
        await cut(load, cuts, is_deaf=False)
        await cut(load, cuts, is_deaf=True)

    hurt(cluster, "cut-off", tmp_path, act)


def test_a_node_without_network_costs_no_acknowledged_record(
    cluster: ClusterProcesses, wires: Wires, tmp_path: Path
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
