"""`scripts/soak`: see the package."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from os import environ
from pathlib import Path
from typing import Final

import click
import msgspec

from bench.cluster_processes import ClusterProcesses, NoLeaderError, Place
from bench.replication.cluster import Cluster, run_workload
from bench.replication.wires import NoWiresError, Wires
from bench.soak import verdict as verdicts
from bench.soak.faults import GROUPS, Fault
from bench.soak.run import Found, soak
from bench.soak.worker import Account

TOPICS: Final = {"alpha": 12, "beta": 8, "gamma": 4}
REST_TIMEOUT_S: Final = 1_800.0
"""For all that comes after the load."""
ANOMALIES_SHOWN_MAX: Final = 40
FAULTS_FILE: Final = "faults.json"
ACCOUNT_FILE: Final = "account.json"


def print_report(found: Found, seconds: float) -> None:
    """The run in a screenful."""
    verdict = found.verdict
    kinds = Counter(fault.kind for fault in found.faults)
    print(f"  sends         {verdict.acknowledged:,} acknowledged of {verdict.sends:,}", end="")
    print(f", {verdict.acknowledged / seconds:,.0f} a second" if seconds else "")
    print(f"  final reads   {verdict.records_read:,} records of all replicas")
    print(
        f"  faults        {len(found.faults)}; longest time without acknowledgement outside "
        f"of them: {verdict.calm_gap_s:.2f} s"
    )
    for kind, count in sorted(kinds.items()):
        resume_s = verdict.resume_s.get(kind)
        print(
            f"    {count:3} {kind}: longest gap of a partition {verdict.gap_s.get(kind, 0):.2f} s"
            + ("" if resume_s is None else f", {resume_s:.2f} s after the healing")
        )
    if found.account.errors:
        print("  clients were told (most often):")
        for error, count in Counter(found.account.errors).most_common(12):
            print(f"    {count:6} {error}")
    print(f"  anomalies     {len(found.anomalies)}")
    for anomaly in found.anomalies[:ANOMALIES_SHOWN_MAX]:
        print(f"ANOMALY {anomaly}")


@click.command()
@click.option("--minutes", default=5.0, show_default=True, help="Length of the load.")
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(3, 9))
@click.option(
    "--faults",
    default=",".join(GROUPS),
    show_default=True,
    help="Which kinds, in turn; empty: none.",
)
@click.option("--every", default=20.0, show_default=True, help="Seconds from fault to fault.")
@click.option("--rate", default=1_500.0, show_default=True, help="Records a second to aim at.")
@click.option("--writers", default=2, show_default=True, help="Processes with clients.")
@click.option("--seed", type=int, help="Of the faults.")
@click.option(
    "--output",
    default="bench/results/soak-data",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the history goes.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Judge the history in this directory again, and start nothing.",
)
def main(  # noqa: PLR0917 - click passes them by name
    minutes: float,
    nodes: int,
    faults: str,
    every: float,
    rate: float,
    writers: int,
    seed: int | None,
    output: Path,
    replay: Path | None,
) -> None:
    """Kill, pause, cut and restart the nodes of a real cluster under load; check what was seen."""
    if replay is not None:
        done = msgspec.json.decode((replay / FAULTS_FILE).read_bytes(), type=list[Fault])
        account = msgspec.json.decode((replay / ACCOUNT_FILE).read_bytes(), type=Account)
        verdict = verdicts.judge(replay, done)
        print_report(Found(account, done, verdict, verdict.anomalies), 0)
        sys.exit(1 if verdict.anomalies else 0)
    groups = [group for group in faults.split(",") if group]
    if unknown := set(groups) - set(GROUPS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(GROUPS)}")
    seed = random.randrange(2**32) if seed is None else seed
    print(
        f"scripts/soak --minutes {minutes:g} --nodes {nodes} --faults {','.join(groups)} "
        f"--every {every:g} --rate {rate:g} --writers {writers} --seed {seed}",
        flush=True,
    )
    history = output / time.strftime("%Y%m%d-%H%M%S")
    history.mkdir(parents=True)
    sys.exit(0 if _run(minutes, nodes, groups, every, rate, writers, seed, history) else 1)


def _run(  # noqa: PLR0917
    minutes: float,
    nodes: int,
    groups: list[str],
    every: float,
    rate: float,
    writers: int,
    seed: int,
    history: Path,
) -> bool:
    seconds = minutes * 60
    directory = Path(tempfile.mkdtemp(prefix="raftlog-soak-", dir=environ.get("BENCH_DIR")))
    with ExitStack() as stack:
        wires: Wires | None = None
        places: list[Place] = []
        if "cut" in groups:
            try:
                wires = stack.enter_context(Wires(nodes))
                places = wires.places
            except NoWiresError as error:
                print(f"  cut is left out: {error}")
                groups.remove("cut")
        processes = stack.enter_context(
            ClusterProcesses(directory / "data", nodes, flush="sync", places=places)
        )
        try:
            processes.start()
            processes.wait_quiet()
        except (NoLeaderError, RuntimeError) as error:
            print(f"the cluster did not start: {error}\n{processes.log_ends()}")
            return False
        found = run_workload(
            soak(
                Cluster(processes),
                TOPICS,
                history,
                groups=groups,
                seconds=seconds,
                every_s=every,
                rate=rate,
                writers=writers,
                seed=seed,
                wires=wires,
                say=lambda text: print(text, flush=True),
            ),
            seconds + REST_TIMEOUT_S,
        )
    (history / FAULTS_FILE).write_bytes(msgspec.json.encode(list(found.faults)))
    (history / ACCOUNT_FILE).write_bytes(msgspec.json.encode(found.account))
    print_report(found, seconds)
    print(f"  history       {history}: scripts/soak --replay {history}")
    if found.anomalies:
        print(f"data directories and logs are kept in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return not found.anomalies


if __name__ == "__main__":
    main()
