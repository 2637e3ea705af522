"""`scripts/bench spark`: what users of raftlog's Spark source and sink see, part by part."""

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
    """The figures of these parts, and the parts that failed: the others are run all the same."""
    try:
        return run_parts("spark", PARTS, names, options)
    finally:
        stop()
