"""`scripts/bench`: run the benchmarks, print the table, write JSON and a plot."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click

from bench import footprint, latency, limits, quorum, rest, throughput
from bench.node import running_node
from bench.parts import PARTS, choose_parts
from bench.parts import run as run_parts
from bench.report import Options, Result, machine, plot, print_table, write_json
from bench.sources.curves import plot_curves
from raftlog.cluster.manifest import Flush

SUITES = (
    *("limits", "throughput", "latency", "rest", "footprint", "quorum"),
    *("cluster", "groups", "transactions", "state", "sources", "kafka", "spark"),
)
NOT_QUICK = {"groups", "transactions", "state", "sources", "kafka", "spark"}
QUICK_SCALE = 0.1
QUICK_TRIALS = 1
"""Enough to compare two trees."""


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice(SUITES))
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
    suites = suites or tuple(suite for suite in SUITES if not (quick and suite in NOT_QUICK))
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
        kafka_classpath=kafka_classpath,
    )
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, flush={flush}")
    results: list[Result] = []
    failed: list[str] = []
    for suite in suites:
        print(f"-- {suite} ({time.strftime('%H:%M:%S')})", flush=True)
        if suite == "limits":
            results += limits.run(runs=runs, scale=scale)
            continue
        if suite in PARTS:
            wanted = [part for part in PARTS[suite] if part in parts]
            found, failures = run_parts(suite, wanted, options)
            results += found
            failed += failures
            continue
        if suite in {"footprint", "quorum"}:
            module = {"footprint": footprint, "quorum": quorum}[suite]
            results += module.run(flush=flush, runs=runs, scale=scale)
            continue
        with running_node(flush) as node:
            loaded = {"throughput": throughput, "latency": latency, "rest": rest}[suite]
            results += loaded.run(node, runs=runs, scale=scale)
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
