"""`scripts/bench spark`: Spark's source and sink as users see them, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.parts import Part, run_parts
from bench.replication.cluster import Options
from bench.report import Result
from bench.spark import latency, reading, starting, writing
from bench.spark.running import stop

PARTS: Final[dict[str, Part]] = {
    "start": starting.start,
    "batch": reading.batch,
    "stream": reading.stream,
    "write": writing.write,
    "micro-batch": latency.micro_batch,
}


def run(names: Sequence[str], options: Options) -> tuple[list[Result], list[str]]:
    """Run these parts; return the results, and the parts that failed."""
    try:
        return run_parts("spark", PARTS, names, options)
    finally:
        stop()
