"""`scripts/bench`: run the benchmarks, print the table, write JSON and a plot."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import click

from bench import footprint, limits, loads, quorum, rest
from bench.coordination import groups, takeover, transactions
from bench.kafka import beside
from bench.kafka import lone as kafka_lone
from bench.kafka import suite as kafka_clients
from bench.replication import catch_up, gaps, many, produce
from bench.report import Options, Result, machine, plot, print_table, write_json
from bench.sources import claims, linger, promises
from bench.sources.curves import plot_curves
from bench.spark import latency, peer, reading, running, starting, writing
from bench.state import key_values, primaries, replicas
from raftlog.cluster.manifest import Flush

Part = Callable[[Options], list[Result]]

PARTS: Final[dict[str, dict[str, Part]]] = {
    "limits": {"limits": limits.run},
    "throughput": {"one-node-throughput": loads.throughput},
    "latency": {"one-node-latency": loads.latency},
    "rest": {"rest": rest.run},
    "footprint": {"start-and-idle": footprint.start_and_idle, "backlog": footprint.backlog},
    "quorum": {
        "quorum-commits": quorum.commits,
        "failover": quorum.failovers,
        "quorum-idle": quorum.idle,
        "metadata": quorum.much_metadata,
    },
    "cluster": {
        "produce": produce.produce,
        "latency": produce.latency,
        "consume": produce.consume,
        "gap-kill": gaps.gap_kill,
        "gap-pause": gaps.gap_pause,
        "gap-cut": gaps.gap_cut,
        "gap-move": gaps.gap_move,
        "catch-up": catch_up.catch_up,
        "partitions": many.partitions,
        "idle": many.idle,
    },
    "groups": {
        "rebalance": groups.rebalance,
        "member-kill": groups.member_kill,
        "members-idle": groups.members_idle,
        "million-offsets": takeover.million_offsets,
        "commits": groups.commits,
        "in-group": groups.consume_in_group,
        "coordinator-kill": takeover.groups_killed,
    },
    "transactions": {
        "small": transactions.small,
        "throughput": transactions.throughput,
        "idempotence": transactions.idempotence,
        "exactly-once": transactions.exactly_once,
        "txn-coordinator-kill": takeover.transactions_killed,
    },
    "state": {
        "in-process": key_values.in_process,
        "over-http": key_values.over_http,
        "primary-killed": primaries.killed,
        "primary-paused": primaries.paused,
        "handed-over": primaries.handed_over,
        "lag": replicas.lag,
        "stopped": replicas.stopped,
        "replicas": replicas.many_replicas,
        "new-replica": replicas.new_replica,
    },
    "sources": {
        "claim-replicas": claims.claim_replicas,
        "claim-payloads": claims.claim_payloads,
        "claim-batches": claims.claim_batches,
        "claim-pauses": claims.claim_pauses,
        "claim-promises": promises.claim_promises,
        "claim-linger": linger.claim_linger,
    },
    "kafka": {
        "clients-produce": partial(kafka_clients.measure, "produce"),
        "clients-consume": partial(kafka_clients.measure, "consume"),
        "kafka-lone": kafka_lone.lone_requests,
        "kafka-leader-kill": beside.leader_kill,
        "kafka-idle": kafka_lone.idle,
        "beside-lone": beside.one_at_a_time,
        "beside-memory": beside.memory,
    },
    "spark": {
        "start": starting.start,
        "batch": reading.batch,
        "stream": reading.stream,
        "write": writing.write,
        "micro-batch": latency.micro_batch,
        "peer": peer.peer,
    },
}
"""Parts of the suites, by suite and name."""
NOT_QUICK = {"groups", "transactions", "state", "sources", "kafka", "spark"}
QUICK_SCALE = 0.1
QUICK_TRIALS = 1
"""Enough to compare two trees."""


def choose_parts(names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """The chosen ones of `parts`: by full name or prefix; all if no name is given.

    Raises ValueError: a name matches no part.
    """
    for name in names:
        if not any(part.startswith(name) for part in parts):
            raise ValueError(f"{name!r} is none of {', '.join(parts)}")
    return [part for part in parts if not names or any(part.startswith(name) for name in names)]


def run_parts(suite: str, names: Sequence[str], options: Options) -> tuple[list[Result], list[str]]:
    """Run these parts of a suite; return the results, and the parts that failed."""
    results: list[Result] = []
    failed: list[str] = []
    with _terminable():
        try:
            for name in names:
                load = os.getloadavg()[0]
                now = time.strftime("%H:%M:%S")
                print(f"-- {suite}: {name} ({now}, load average {load:.1f})", flush=True)
                try:
                    found = PARTS[suite][name](options)
                except Exception:  # reported in full, and by the exit code
                    traceback.print_exc()
                    failed.append(name)
                    continue
                for result in found:
                    result.details["load average before"] = load
                results += found
        finally:
            if suite == "spark":
                running.stop()
    return results, failed


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that all nodes end with the program."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--runs", default=3, show_default=True, help="Runs of each workload.")
@click.option("--scale", default=1.0, show_default=True, help="Size of the workloads.")
@click.option("--flush", default="sync", type=click.Choice(["sync", "async"]), show_default=True)
@click.option(
    "--only",
    multiple=True,
    help="Part of a suite, or a prefix of parts; "
    + "; ".join(f"{suite}: {', '.join(parts)}" for suite, parts in PARTS.items())
    + ".",
)
@click.option(
    "--trials",
    default=30,
    show_default=True,
    help="Of each fault, in `cluster`, `groups`, `transactions` and `state`.",
)
@click.option(
    "--gb",
    default=1.0,
    show_default=True,
    help="Gigabytes that a follower misses, in `cluster`, or a new replica restores, in `state`.",
)
@click.option(
    "--kafka-classpath",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the classpath of Apache Kafka (kafka_2.13 and kafka-tools, as "
    "`mvn dependency:build-classpath` writes it): `kafka` measures it beside.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="One short run, in four minutes, to compare two trees; of all suites but groups, "
    "transactions, state, sources, kafka and spark, unless they are named.",
)
@click.option(
    "--output", default="bench/results", show_default=True, type=click.Path(path_type=Path)
)
def main(  # noqa: PLR0917 - click passes them by name
    suites: tuple[str, ...],
    runs: int,
    scale: float,
    flush: Flush,
    only: tuple[str, ...],
    trials: int,
    gb: float,
    kafka_classpath: Path | None,
    quick: bool,
    output: Path,
) -> None:
    """Measure raftlog on this machine. All SUITES unless some are named."""
    if quick:
        runs, scale = 1, scale * QUICK_SCALE
        trials, gb = min(trials, QUICK_TRIALS), gb * QUICK_SCALE
    suites = suites or tuple(suite for suite in PARTS if not (quick and suite in NOT_QUICK))
    try:
        own = [parts for suite, parts in PARTS.items() if suite in suites]
        parts = choose_parts(only, [part for each in own for part in each])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--only") from None
    options = Options(
        flush=flush,
        runs=runs,
        scale=scale,
        trials=trials,
        gigabytes=gb,
        kafka_classpath=None if kafka_classpath is None else kafka_classpath.read_text().strip(),
    )
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, flush={flush}")
    results: list[Result] = []
    failed: list[str] = []
    for suite in suites:
        wanted = [part for part in PARTS[suite] if part in parts]
        found, failures = run_parts(suite, wanted, options)
        results += found
        failed += failures
    command = shlex.join(["scripts/bench", *sys.argv[1:]])
    if results:
        print_table(results)
        write_json(output / "results.json", results, command, flush)
        print(f"\n{command}\nwritten: {output}/results.json")
        if plot(output / "results.png", results):
            print(f"written: {output}/results.png")
        if plot_curves(output / "curves.png", results):
            print(f"written: {output}/curves.png")
    if failed:
        raise click.ClickException(f"these failed, see above: {', '.join(failed)}")


if __name__ == "__main__":
    main()
