"""`scripts/quorum-soak`: real processes, killed and paused, under clients whose history is checked.

Each run forms a cluster, has clients read and write registers (bench/register_workload.py) while a
nemesis kills and pauses nodes, lets it heal, reads every register by every node, and judges:

- the history of each register must be linearizable;
- the positions in the log that answers name must agree with time, values and each other;
- no term has two active leaders, no node ends by itself, and once all answer again after a fault
  there is an active leader within ten seconds.

The history stays on disk; `--replay FILE` judges one again. Exit code 1: an anomaly was found.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Final

import click

from bench.cluster_processes import ClusterProcesses, NoLeaderError
from bench.nemesis import Fault, Nemesis, Plan, Watch
from bench.register_workload import FIRST_VALUE, REGISTERS, RegisterClient
from tests.verification.register_checker import Verdict, check
from tests.verification.register_history import (
    HistoryWriter,
    Kind,
    Operation,
    Outcome,
    read_history,
)
from tests.verification.register_log_order import log_order_anomalies
from tests.verification.register_minimal import explain

CLIENTS: Final = 8
RATE: Final = 200.0
"""Operations a second that all clients together aim at."""
FINAL_READS_TIMEOUT_S: Final = 30.0
WINDOW_S: Final = 0.5
"""Available is a window of this length in which a write was acknowledged."""


@dataclass(slots=True)
class Soak:
    """What one run has seen."""

    node_count: int
    seconds: float
    history: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    elections: int = 0
    recovery_s: list[float] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)


async def soak(
    cluster: ClusterProcesses,
    seconds: float,
    history_file: Path,
    *,
    seed: int,
    clients: int = CLIENTS,
    rate: float = RATE,
    plan: Sequence[Plan] | None = None,
) -> Soak:
    """Hurt a cluster that has a leader for so long, and judge what its clients saw.

    With a plan, these faults are all there is, and the run ends after them at the latest.
    """
    found = Soak(len(cluster.nodes), seconds)
    writer = HistoryWriter(history_file)
    values = itertools.count(FIRST_VALUE)
    addresses = {node_id: node.address for node_id, node in cluster.nodes.items()}

    def record(operation: Operation) -> None:
        found.history.append(operation)
        writer.write(operation)

    workers = [
        RegisterClient(
            number,
            addresses,
            record,
            random.Random(f"{seed}-{number}"),
            lambda: next(values),
            process_step=clients + 1,
        )
        for number in range(clients)
    ]
    last = RegisterClient(clients, addresses, record, random.Random(seed), lambda: next(values))
    nemesis = Nemesis(cluster, random.Random(seed), plan)
    watch = Watch(addresses)
    stop, stop_watch = asyncio.Event(), asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch.run(stop_watch))
            for worker in workers:
                tasks.create_task(worker.run(rate / clients, stop))
            hurting = tasks.create_task(nemesis.run(stop))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(hurting)
            stop.set()
            await hurting
            found.anomalies += nemesis.anomalies or await _final_reads(last, cluster)
            stop_watch.set()
    finally:
        writer.close()
        last.close()
    found.faults = nemesis.faults
    found.elections = watch.elections
    found.recovery_s = nemesis.recovery_s
    found.anomalies += [*watch.anomalies(), *judge(found.history)]
    return found


async def _final_reads(client: RegisterClient, cluster: ClusterProcesses) -> list[str]:
    """Read every register by every node of a cluster that nobody hurts any more."""
    unread = [(key, node_id) for key in REGISTERS for node_id in cluster.nodes]
    deadline = time.monotonic() + FINAL_READS_TIMEOUT_S
    while unread and time.monotonic() < deadline:
        operation = await client.read(*unread[-1])
        if operation.outcome is Outcome.OK:
            unread.pop()
        else:
            await asyncio.sleep(0.1)
    if not unread:
        return []
    return [f"After the end, within {FINAL_READS_TIMEOUT_S} s, no answer to reads of {unread}"]


def judge(history: Sequence[Operation]) -> list[str]:
    """What is wrong with a history, in words. Whatever cannot be told counts as wrong."""
    reports = check(history)
    return [
        *(explain(report) for report in reports if report.verdict is not Verdict.LINEARIZABLE),
        *log_order_anomalies(history),
    ]


def availability(history: Sequence[Operation]) -> tuple[float, float]:
    """Share of windows with an acknowledged write, and the longest time without one, in seconds."""
    if not history:
        return 0.0, 0.0
    start_ns = min(operation.invoked_ns for operation in history)
    end_ns = max(operation.returned_ns for operation in history)
    writes_ns = sorted(
        operation.returned_ns
        for operation in history
        if operation.kind is Kind.WRITE and operation.outcome is Outcome.OK
    )
    window_ns = int(WINDOW_S * 1e9)
    windows = (end_ns - start_ns) // window_ns + 1
    served = len({(time_ns - start_ns) // window_ns for time_ns in writes_ns})
    times_ns = [start_ns, *writes_ns, end_ns]
    gap_ns = max(later - earlier for earlier, later in itertools.pairwise(times_ns))
    return served / windows, gap_ns / 1e9


def print_report(found: Soak) -> None:
    """The run in a few lines."""
    by_outcome = Counter(operation.outcome for operation in found.history)
    share, gap_s = availability(found.history)
    words = ", ".join(f"{by_outcome[outcome]:,} {outcome.value}" for outcome in Outcome)
    print(f"{found.node_count} nodes, {found.seconds / 60:.1f} minutes")
    print(f"  operations    {len(found.history):,}: {words}")
    print(f"  faults        {len(found.faults)}, elections seen {found.elections}")
    print(
        f"  availability  {share:.1%} of {WINDOW_S} s windows had a write acknowledged; "
        f"longest time without: {gap_s:.2f} s"
    )
    if found.recovery_s:
        median_s = statistics.median(found.recovery_s)
        print(
            f"  recovery      all answering to active leader: median {median_s:.2f} s, "
            f"longest {max(found.recovery_s):.2f} s"
        )
    print(f"  anomalies     {len(found.anomalies)}")
    for anomaly in found.anomalies:
        print(f"\nANOMALY {anomaly}")


def run(node_count: int, seconds: float, seed: int, output: Path) -> bool:
    """One run over a fresh cluster; whether nothing was wrong."""
    output.mkdir(parents=True, exist_ok=True)
    history_file = output / f"history-{node_count}-nodes.jsonl"
    directory = Path(tempfile.mkdtemp(prefix="raftlog-soak-", dir=environ.get("BENCH_DIR")))
    is_well = False
    try:
        with ClusterProcesses(directory, node_count) as cluster:
            try:
                cluster.start()
            except (NoLeaderError, RuntimeError) as error:
                print(f"the cluster did not start: {error}\n{cluster.log_ends()}")
                return False
            found = asyncio.run(soak(cluster, seconds, history_file, seed=seed))
        print_report(found)
        print(f"  history       {history_file}")
        is_well = not found.anomalies
    finally:
        if is_well:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"data directories and logs are kept in {directory}")
    return is_well


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="Length of each run.")
@click.option("--nodes", default="3,5", show_default=True, help="Cluster sizes, one run each.")
@click.option("--seed", type=int, help="Of the faults and the clients' choices.")
@click.option(
    "--output", default="bench/results/soak", show_default=True, type=click.Path(path_type=Path)
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Judge this history again, and start nothing.",
)
def main(minutes: float, nodes: str, seed: int | None, output: Path, replay: Path | None) -> None:
    """Kill and pause the nodes of real clusters, and check what their clients saw."""
    if replay is not None:
        history = list(read_history(replay))
        found = Soak(len({operation.node for operation in history}), 0.0, history)
        found.anomalies = judge(history)
        print_report(found)
        sys.exit(1 if found.anomalies else 0)
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}: scripts/quorum-soak --minutes {minutes:g} --nodes {nodes} --seed {seed}")
    results = [run(int(count), minutes * 60, seed, output) for count in nodes.split(",")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
