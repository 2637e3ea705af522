"""`scripts/bench`: run the benchmarks, print the table, write JSON and a plot."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from bench import footprint, latency, limits, quorum, rest, throughput
from bench.node import running_node
from bench.report import Result, machine, plot, print_table, write_json

SUITES = ("limits", "throughput", "latency", "rest", "footprint", "quorum")


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice(SUITES))
@click.option("--runs", default=3, show_default=True, help="Runs of each workload.")
@click.option("--scale", default=1.0, show_default=True, help="Size of the workloads.")
@click.option("--flush", default="sync", type=click.Choice(["sync", "async"]), show_default=True)
@click.option(
    "--output", default="bench/results", show_default=True, type=click.Path(path_type=Path)
)
def main(suites: tuple[str, ...], runs: int, scale: float, flush: str, output: Path) -> None:
    """Measure raftlog on this machine. All SUITES unless some are named."""
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, flush={flush}")
    results: list[Result] = []
    for suite in suites or SUITES:
        print(f"-- {suite}", flush=True)
        if suite == "limits":
            results += limits.run(runs=runs, scale=scale)
            continue
        if suite in {"footprint", "quorum"}:
            module = {"footprint": footprint, "quorum": quorum}[suite]
            results += module.run(flush=flush, runs=runs, scale=scale)
            continue
        with running_node(flush) as node:
            loaded = {"throughput": throughput, "latency": latency, "rest": rest}[suite]
            results += loaded.run(node, runs=runs, scale=scale)
    print_table(results)
    command = shlex.join(["scripts/bench", *sys.argv[1:]])
    write_json(output / "results.json", results, command, flush)
    plot(output / "results.png", results)
    print(f"\n{command}\nwritten: {output}/results.json, {output}/results.png")


if __name__ == "__main__":
    main()
