"""`scripts/trial-kafka`: see the package."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from os import environ
from pathlib import Path
from typing import Final

import click

from bench.cluster import NoLeaderError
from raftlog.cluster.errors import ClusterError
from tests.judges import jars
from tests.judges.catalog import JUDGES, Judge, Result, run
from tests.judges.jars import UnavailableError
from tests.judges.trial import LONG, Effort, trial

FAILED: Final = 1
SKIPPED: Final = 3


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice([one.name for one in JUDGES]), help="Only these."
)
@click.option(
    "--records", default=LONG.records, show_default=True, help="Records of each judge, at least."
)
@click.option(
    "--kills", default=LONG.kills, show_default=True, help="Kills of nodes under long judges."
)
def main(only: tuple[str, ...], records: int, kills: int) -> None:
    """Run programs that others wrote against a cluster of three nodes, and print a table.

    Exit code 1: a judge failed. 3: none failed, but some were skipped.
    """
    for name in ("aiokafka", "kafka"):
        # Lost connections are no news while nodes are killed.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        jars.resolve()
    except UnavailableError as reason:
        print(f"Java's judges are skipped: {reason}", flush=True)
    judges = [one for one in JUDGES if not only or one.name in only]
    root = Path(tempfile.mkdtemp(prefix="raftlog-trial-", dir=environ.get("BENCH_DIR")))
    results = _run(judges, root, Effort(records, kills))
    _print_table(results)
    if any(one.verdict == "failed" for one in results):
        print(f"data directories, logs and outputs are kept in {root}")
        sys.exit(FAILED)
    shutil.rmtree(root, ignore_errors=True)
    sys.exit(SKIPPED if any(one.verdict == "skipped" for one in results) else 0)


def _run(judges: list[Judge], root: Path, effort: Effort) -> list[Result]:
    results: list[Result] = []
    try:
        with trial(root, effort) as running:
            for number, judge in enumerate(judges, start=1):
                print(f"{number}/{len(judges)} {judge.client} ...", flush=True)
                result = run(judge, running)
                print(f"    {result.verdict} in {result.seconds:.0f} s: {result.text}", flush=True)
                results.append(result)
    except (ClusterError, NoLeaderError, RuntimeError) as error:
        sys.exit(f"the cluster did not start, or a node died by itself: {error}; see {root}")
    return results


def _print_table(results: list[Result]) -> None:
    width = max(len(one.judge.client) for one in results)
    print(f"\n{'judge':{width}}  {'result':7}  {'s':>5}")
    for one in results:
        line = one.text.splitlines()[0]
        print(f"{one.judge.client:{width}}  {one.verdict:7}  {one.seconds:5.0f}  {line}")
    verdicts = [one.verdict for one in results]
    print(", ".join(f"{verdicts.count(one)} {one}" for one in ("passed", "failed", "skipped")))


if __name__ == "__main__":
    main()
