"""The nemesis: its faults, its healing, and detection of a planted mistake."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest

from tests.simulation.faults import FaultRates
from tests.simulation.sample import history, losses
from tests.simulation.world import World, run

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_cluster_survives_everything(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = await history(world)
        assert cluster.losses == []
        assert cluster.received > 0

    run(seed, main)


def test_a_cluster_that_tells_before_it_syncs_is_found_out_by_power_cuts_only() -> None:
    assert any(losses(seed, crash_per_s=1.0, power=1.0) for seed in range(10))
    assert not any(losses(seed, crash_per_s=1.0, power=0.0) for seed in range(10))


@pytest.mark.parametrize(
    ("rate", "word"),
    [
        ("crash_per_s", "ended"),
        ("partition_per_s", "block"),
        ("reset_per_s", "reset"),
        ("pause_per_s", "paused"),
        ("suspend_per_s", "suspended"),
        ("slow_link_per_s", "slow"),
        ("slow_disk_per_s", "slow"),
        ("stuck_disk_per_s", "stuck"),
        ("clock_jump_per_s", "jumps"),
        ("failed_sync_per_s", "fails its next sync"),
    ],
)
def test_each_rate_brings_its_fault_and_none_brings_none(rate: str, word: str) -> None:
    def lines(per_s: float) -> list[str]:
        words: list[str] = []

        async def main(world: World) -> None:
            trace = world.trace

            def watch(*parts: object) -> None:
                trace(*parts)
                if world.loop.is_running():
                    words.append(" ".join(map(str, parts)))

            world.trace = watch  # type: ignore[method-assign]
            none = {each.name: 0.0 for each in fields(FaultRates) if each.name.endswith("_per_s")}
            await history(world, **{**none, rate: per_s})

        try:
            run(1, main)
        except AssertionError:
            # The sample ends the run when a sync fails, as ordered here.
            assert rate == "failed_sync_per_s"
        return [line for line in words if word in line and "FaultRates" not in line]

    assert lines(2.0)
    assert not lines(0.0)


def test_rates_can_be_fixed_and_the_others_are_drawn() -> None:
    drawn = {FaultRates.draw(random.Random(seed), crash_per_s=9.0) for seed in range(50)}
    assert {rates.crash_per_s for rates in drawn} == {9.0}
    assert {rates.failed_sync_per_s for rates in drawn} == {0.0}
    assert len({rates.partition_per_s for rates in drawn}) > 1
