"""The wait of a user for a Spark session and its first query: `first`, run by run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.node import running_node
from bench.replication.cluster import Options
from bench.report import Result
from bench.spark.running import PARTITIONS, fill

RECORDS: Final = 10_000
RECORD_BYTES: Final = 100
TIMEOUT_S: Final = 300
ROOT: Final = Path(__file__).parents[2]
NAMES: Final = {
    "session": "spark: session start, imports included",
    "first": "spark: first query of a session",
    "second": "spark: second query of a session",
}


def start(options: Options) -> list[Result]:
    """From nothing to a session, and from there to the answer of a small query; and of another."""
    parameters = {"records": RECORDS, "partitions": PARTITIONS, "master": "local[*]"}
    results = {
        name: Result(title, "s", [], None, True, dict(parameters)) for name, title in NAMES.items()
    }
    with running_node(options.flush) as node:
        node.create_topic("small", PARTITIONS)
        fill(node.address, "small", RECORD_BYTES, RECORDS)
        for _ in range(options.runs):
            done = subprocess.run(
                [sys.executable, "-m", "bench.spark.first", node.address, "small"],
                cwd=ROOT,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(done.stderr.decode(errors="replace"))
            for name, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                results[name].runs.append(seconds)
    return list(results.values())
