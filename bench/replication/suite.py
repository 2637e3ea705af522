"""Which benchmarks of the cluster there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.parts import Part, run_parts
from bench.replication import catch_up, gaps, lone, many, produce
from bench.replication.cluster import Options
from bench.report import Result

PARTS: Final[dict[str, Part]] = {
    "produce": produce.produce,
    "latency": lone.latency,
    "consume": produce.consume,
    "gap-kill": gaps.gap_kill,
    "gap-pause": gaps.gap_pause,
    "gap-cut": gaps.gap_cut,
    "gap-move": gaps.gap_move,
    "gap-rolling": gaps.gap_rolling,
    "catch-up": catch_up.catch_up,
    "partitions": many.partitions,
    "idle": many.idle,
}


def run(names: Sequence[str], options: Options) -> tuple[list[Result], list[str]]:
    """Run these parts; return the results, and the parts that failed."""
    return run_parts("cluster", PARTS, names, options)
