"""Planted bugs are found: the ten mistakes by a directed scenario and by random histories, and the
blind spots by random histories alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import pytest

from tests.simulation.data import ingredients
from tests.simulation.data import test_rows_deletions as deletions
from tests.simulation.data import test_rows_epochs as epochs
from tests.simulation.data import test_rows_network as network
from tests.simulation.data import test_rows_processes as processes
from tests.simulation.data import test_rows_storage as storage
from tests.simulation.data.histories import replay
from tests.simulation.data.planted_bugs import BLIND_SPOTS, MISTAKES, BlindSpot, Mistake
from tests.simulation.data.planted_runs import find


@dataclass(frozen=True)
class Finding:
    """The scenario that finds a mistake, and the message of the finding."""

    scenario: Callable[[], None]
    sign: str
    """A regular expression for the finding."""
    seed: int | None
    """Seed of a cheap random history that finds the mistake, or None if no early seed does."""


ELECTABLE: Final = "may be elected, and h"
FINDINGS: Final = {
    "acks before its disk": Finding(
        partial(storage.test_row_13_power_cut_of_all_nodes_sync, 0),
        ELECTABLE,
        seed=0,
    ),
    "acks before its followers": Finding(
        processes.test_row_03_a_paused_leader_is_fenced,
        ELECTABLE,
        seed=0,
    ),
    "truncates to the high watermark": Finding(
        epochs.test_row_09_kip_101_a_restart_before_the_high_watermark_spreads,
        ELECTABLE,
        seed=1,
    ),
    "fetches without epochs": Finding(
        # Two batches at one offset: time decides which rule finds it first.
        network.test_row_05_a_leader_alone_acknowledges_nothing,
        f"takes .* for committed|{ELECTABLE}",
        seed=2,
    ),
    "counts stale acks": Finding(
        epochs.test_row_08_kip_279_logs_converge_after_fast_failovers,
        ELECTABLE,
        seed=2,
    ),
    "acts on a proposed ISR": Finding(
        network.test_row_05_an_isr_change_counts_once_it_is_committed,
        ELECTABLE,
        seed=0,
    ),
    "re-enters the ISR too early": Finding(
        partial(processes.test_row_01_kill, "leader", False),
        ELECTABLE,
        seed=0,
    ),
    "trusts a restart after power loss": Finding(
        epochs.test_row_10_kip_966_the_last_replica_standing_loses_power,
        ELECTABLE,
        seed=3,
    ),
    # Such a leader commits nothing all the same: its followers refuse its epoch. But it accepts
    # writes that it must refuse, and reports old ends.
    "leads without asking": Finding(
        processes.test_row_03_a_paused_leader_is_fenced,
        "after its last touch with the quorum",
        seed=0,
    ),
    "goes on after a failed sync": Finding(
        partial(storage.test_row_17_what_could_not_be_synced_is_not_counted, "leader"),
        ELECTABLE,
        seed=None,
    ),
    "deletes what nobody names": Finding(
        deletions.test_row_16_what_the_metadata_does_not_name_is_kept,
        "what nobody names was deleted",
        seed=None,
    ),
    "forgets producers at failover": Finding(
        partial(processes.test_row_01_kill, "leader", False),
        "was forgotten",
        seed=0,
    ),
    "uses an epoch twice": Finding(
        partial(storage.test_row_13_power_cut_of_all_nodes_sync, 0),
        "has the leaders",
        seed=1,
    ),
}


def test_every_mistake_has_a_finding() -> None:
    assert {mistake.what for mistake in MISTAKES} == set(FINDINGS)
    assert {mistake.number for mistake in MISTAKES} == set(range(1, 11))


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_scenario_finds_the_mistake(mistake: Mistake) -> None:
    finding = FINDINGS[mistake.what]
    with mistake.planted(), pytest.raises(AssertionError, match=finding.sign):
        finding.scenario()


@pytest.mark.parametrize(
    "mistake", [each for each in MISTAKES if FINDINGS[each.what].seed is not None], ids=str
)
def test_the_recorded_seed_finds_the_mistake(mistake: Mistake) -> None:
    seed = FINDINGS[mistake.what].seed
    assert seed is not None
    # Without the mistake the history is sound: see test_histories.
    with mistake.planted(), pytest.raises(AssertionError):
        replay(seed)


@pytest.mark.parametrize("bug", BLIND_SPOTS, ids=str)
def test_the_recorded_seed_finds_the_blind_spot(bug: BlindSpot) -> None:
    # After a change of the histories another seed may find it: scripts/simulate planted NAME 0:200
    assert find(bug.name, bug.seed, ingredients.parse(bug.ingredients)) is not None
