"""Random histories of the replicated examples: the key-value store and the bank's ledger.

.venv/bin/python -m tests.simulation.replicated.histories 486       replays seed 486
.venv/bin/python -m tests.simulation.replicated.histories 0:5000    runs all, on all cores
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Final
from unittest.mock import patch

from raftlog_replicated import applier as applier_module
from raftlog_replicated.examples import table as table_module

from tests.simulation.loop import SimulatedLoop, still
from tests.simulation.replicated.service import Service
from tests.simulation.replicated.workloads import BankWorkload, KvWorkload
from tests.simulation.replicated.world import World
from tests.simulation.runner import main
from tests.verification.register_history import Outcome

DIGEST_EVERY: Final = 20
"""Commands from one digest to the next."""
CHUNK_BYTES: Final = 1
"""A chunk for each key: snapshots are long, for commands and faults between their chunks."""


@dataclass(frozen=True)
class Report:
    """Counts of a history."""

    seed: int
    workload: str
    digest: str
    commands: int
    acknowledged: int
    reads: int
    terms: int
    primaries: int
    snapshots: int
    starts: int


def replay(
    seed: int, *, plant: Callable[[Service], AbstractContextManager[None]] | None = None
) -> Report:
    """Run a history. Raises AssertionError with a violation. `plant` makes a mistake."""
    random = Random(seed)
    loop = SimulatedLoop()
    service = Service(random)
    is_split = seed % 4 == 3
    service.fences = not is_split
    workload = BankWorkload(random) if seed % 3 == 2 else KvWorkload(random)
    writes = random.choice([0.1, 0.5])
    world = World(seed, random, service, loop, workload, is_split=is_split, writes=writes)
    logging.disable(logging.ERROR)
    try:
        with (
            still(),
            patch.object(applier_module, "DIGEST_EVERY", DIGEST_EVERY),
            patch.object(table_module, "CHUNK_BYTES", CHUNK_BYTES),
            nullcontext() if plant is None else plant(service),
        ):
            loop.run(world.run())
    finally:
        logging.disable(logging.NOTSET)
        loop.close()
    trace = repr((world.sent, world.reads, service.all_records))
    return Report(
        seed,
        workload.name,
        sha256(trace.encode()).hexdigest()[:16],
        len(world.sent),
        sum(one.outcome is Outcome.OK for one in world.sent),
        len(world.reads),
        max(world.primaries, default=0),
        len(world.primaries),
        sum(value is not None for _, value in service.manifests),
        world.incarnations,
    )


def summary(reports: Sequence[Report]) -> str:
    """One line for many."""
    count = len(reports)
    return (
        f"{count} histories: {sum(one.commands for one in reports)} commands, "
        f"{sum(one.acknowledged for one in reports)} acknowledged, "
        f"{sum(one.reads for one in reports)} reads, "
        f"{sum(one.primaries for one in reports)} primaries, "
        f"{sum(one.snapshots for one in reports)} snapshots, "
        f"{sum(one.starts for one in reports)} starts"
    )


if __name__ == "__main__":
    sys.exit(main(replay, summary, sys.argv[1:]))
