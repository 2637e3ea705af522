"""The wait of a user for a Spark session and its first query: `first`, run by run."""

from __future__ import annotations

import json
import sys
from typing import Final

from bench.node import output_of, running_node
from bench.report import Options, Result
from bench.spark.running import PARTITIONS, fill

RECORDS: Final = 10_000
RECORD_BYTES: Final = 100
TIMEOUT_S: Final = 300
NAMES: Final = {
    "session": "spark: session start, imports included",
    "first": "spark: first query of a session",
    "second": "spark: second query of a session",
}
ALONE: Final = {
    "first": "spark alone: first query of a session, rows ready",
    "second": "spark alone: second query of a session, rows ready",
}


def start(options: Options) -> list[Result]:
    """From nothing to a session, and from there to the answer of a small query; and of another.

    Beside it, the same of Spark alone, with a source in Python that has its rows ready.
    """
    parameters = {"records": RECORDS, "partitions": PARTITIONS, "master": "local[*]"}
    found = [
        {name: Result(title, "s", parameters=dict(parameters)) for name, title in each.items()}
        for each in (NAMES, ALONE)
    ]
    with running_node(options.flush) as node:
        node.create_topic("small", PARTITIONS)
        fill(node.address, "small", RECORD_BYTES, RECORDS)
        for _ in range(options.runs):
            for results, arguments in zip(found, ([node.address, "small"], ["alone"]), strict=True):
                taken = _seconds(arguments)
                for name, result in results.items():
                    result.runs.append(taken[name])
    for result in (*found[0].values(), *found[1].values()):
        print(f"   {result.name}: {result.median:.1f} s {result.runs}", flush=True)
    return [*found[0].values(), *found[1].values()]


def _seconds(arguments: list[str]) -> dict[str, float]:
    output = output_of([sys.executable, "-m", "bench.spark.first", *arguments], TIMEOUT_S)
    taken: dict[str, float] = json.loads(output.splitlines()[-1])
    return taken
