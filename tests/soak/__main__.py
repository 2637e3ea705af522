"""`scripts/soak`: see the package."""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from os import environ
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import click
import uvloop

from bench.cluster import Cluster, NoLeaderError, Place, run_workload
from bench.wires import NoWiresError, Wires
from raftlog.cluster.errors import ClusterError
from tests.soak import chain, kafka, records, registers, state
from tests.soak.nemesis import (
    CHAIN_GROUPS,
    KAFKA_GROUPS,
    RECORD_GROUPS,
    REGISTER_GROUPS,
    STATE_GROUPS,
    endless_kinds,
)

Run = TypeVar("Run")

CHECK_TIMEOUT_S: Final = 1_800.0
"""For the end of a run: healing, final reads, checks."""

Workload = Literal["records", "registers", "chain", "kafka", "state"]


class Defaults(NamedTuple):
    """The options of a workload unless the caller gives others."""

    nodes: str
    rate: float
    groups: Mapping[str, Mapping[str, float]]


DEFAULTS: Final[dict[Workload, Defaults]] = {
    "records": Defaults("3", 1_500.0, RECORD_GROUPS),
    "registers": Defaults("3,5", 200.0, REGISTER_GROUPS),
    "chain": Defaults("3", 1_000.0, CHAIN_GROUPS),
    "kafka": Defaults("3", 500.0, KAFKA_GROUPS),
    "state": Defaults("3", 150.0, STATE_GROUPS),
}


class Options(NamedTuple):
    """The options of one run."""

    workload: Workload
    node_count: int
    groups: list[str]
    seconds: float
    every_s: float
    rate: float
    writers: int
    seed: int


@click.command()
@click.option(
    "--workload",
    type=click.Choice(list(DEFAULTS)),
    default="records",
    show_default=True,
    help="Records of topics, the cluster's settings as registers, a group that processes records "
    "exactly once, the producers and groups of Kafka's clients, or replicated states.",
)
@click.option("--minutes", default=5.0, show_default=True, help="Length of the load of each run.")
@click.option("--nodes", help="Cluster sizes, one run each. Default: 3; registers: 3,5.")
@click.option("--faults", help="Groups of faults, in turn. Default: all.")
@click.option(
    "--every", default=20.0, show_default=True, help="Seconds from fault to fault (not registers)."
)
@click.option(
    "--rate",
    type=float,
    help="Operations a second. Default: 1500; registers: 200; chain: 1000; kafka: 500; state: 150.",
)
@click.option("--writers", default=2, show_default=True, help="Processes with clients (records).")
@click.option("--seed", type=int, help="Of the faults, and of the clients of registers.")
@click.option(
    "--output",
    default="tests/soak/results",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory of the histories.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Check the history in this directory again, and start nothing.",
)
def main(  # noqa: PLR0917 - click passes them by name
    workload: Workload,
    minutes: float,
    nodes: str | None,
    faults: str | None,
    every: float,
    rate: float | None,
    writers: int,
    seed: int | None,
    output: Path,
    replay: Path | None,
) -> None:
    """Kill, pause, cut off and restart the nodes of a real cluster under load.

    The history of all clients is checked. Exit code 1: an anomaly was found.
    """
    if replay is not None:
        sys.exit(0 if _replay(replay) else 1)
    defaults = DEFAULTS[workload]
    given = ",".join(defaults.groups) if faults is None else faults
    groups = [group for group in given.split(",") if group]
    if unknown := set(groups) - set(defaults.groups):
        known = ", ".join(defaults.groups)
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: there are {known}")
    if not groups:
        raise click.BadParameter("no group of faults is named")
    nodes = nodes or defaults.nodes
    if not re.fullmatch(r"[3-9](,[3-9])*", nodes):
        raise click.BadParameter(
            f"{nodes}: cluster sizes are from 3 to 9, with commas between them"
        )
    rate = rate or defaults.rate
    seed = random.randrange(2**32) if seed is None else seed
    print(
        f"scripts/soak --workload {workload} --minutes {minutes:g} --nodes {nodes} "
        f"--faults {','.join(groups)} --every {every:g} --rate {rate:g} --writers {writers} "
        f"--seed {seed}",
        flush=True,
    )
    are_clean = []
    for count in nodes.split(","):
        options = Options(workload, int(count), groups, minutes * 60, every, rate, writers, seed)
        directory = output / f"{workload}-{count}-{time.strftime('%Y%m%d-%H%M%S')}"
        are_clean.append(_run(options, directory))
    sys.exit(0 if all(are_clean) else 1)


def _replay(directory: Path) -> bool:
    if (directory / registers.HISTORY_FILE).exists():
        found = registers.RegistersRun.replay(directory)
        registers.print_report(found)
        return not found.anomalies
    if (directory / chain.LOGS_FILE).exists():
        chain_run = chain.ChainRun.replay(directory)
        chain.print_report(chain_run)
        return not chain_run.anomalies
    if kafka.is_history(directory):
        kafka_run = kafka.KafkaRun.replay(directory)
        kafka.print_report(kafka_run)
        return not kafka_run.anomalies
    if (directory / state.HISTORY_FILE).exists():
        state_run = state.StateRun.replay(directory)
        state.print_report(state_run)
        return not state_run.anomalies
    run = records.RecordsRun.replay(directory)
    records.print_report(run, 0)
    return not run.anomalies


def _run(options: Options, history: Path) -> bool:
    """Run once over a fresh cluster; return whether no anomaly was found."""
    history.mkdir(parents=True)
    directory = Path(tempfile.mkdtemp(prefix="raftlog-soak-", dir=environ.get("BENCH_DIR")))
    print(f"{options.node_count} nodes, {options.seconds / 60:.1f} minutes", flush=True)
    with ExitStack() as stack:
        wires: Wires | None = None
        places: list[Place] = []
        groups = list(options.groups)
        if "cut" in groups:
            try:
                wires = stack.enter_context(Wires(options.node_count))
                places = wires.places
            except NoWiresError as error:
                print(f"  cut is left out: {error}")
                groups.remove("cut")
        processes = stack.enter_context(
            Cluster(
                directory / "data",
                options.node_count,
                places=places,
                kafka=options.workload == "kafka",
            )
        )
        try:
            processes.start()
            processes.wait_quiet()
        except (ClusterError, NoLeaderError, RuntimeError) as error:
            print(f"the cluster did not start: {error}\n{processes.log_ends()}")
            return False
        is_clean = _soak(processes, options._replace(groups=groups), history, wires)
    print(f"  history       {history}: scripts/soak --replay {history}")
    if is_clean:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"data directories and logs are kept in {directory}")
    return is_clean


def _soak(processes: Cluster, options: Options, history: Path, wires: Wires | None) -> bool:
    available = DEFAULTS[options.workload].groups
    groups = {group: available[group] for group in options.groups}
    kinds = endless_kinds(groups, random.Random(options.seed))
    if options.workload == "registers":
        found = uvloop.run(
            registers.soak(
                processes,
                history,
                kinds=kinds,
                seconds=options.seconds,
                rate=options.rate,
                seed=options.seed,
                log=_log,
            )
        )
        registers.print_report(found)
        return not found.anomalies
    if options.workload == "chain":
        chain_run = _struck(chain.soak, processes, options, history, kinds)
        chain_run.save(history)
        chain.print_report(chain_run)
        return not chain_run.anomalies
    if options.workload == "state":
        state_run = _struck(state.soak, processes, options, history, kinds)
        state.print_report(state_run)
        return not state_run.anomalies
    if options.workload == "kafka":
        kafka_run = _struck(kafka.soak, processes, options, history, kinds, wires=wires)
        kafka_run.save(history)
        kafka.print_report(kafka_run, options.seconds)
        return not kafka_run.anomalies
    run = _struck(
        records.soak, processes, options, history, kinds, wires=wires, writers=options.writers
    )
    run.save(history)
    records.print_report(run, options.seconds)
    return not run.anomalies


def _struck(
    soak: Callable[..., Coroutine[Any, Any, Run]],
    processes: Cluster,
    options: Options,
    history: Path,
    kinds: Iterator[str],
    **more: Any,
) -> Run:
    """Run a soak of clients outside of the quorum; `more`: options of this workload alone."""
    work = soak(
        processes,
        history,
        kinds=kinds,
        seconds=options.seconds,
        every_s=options.every_s,
        rate=options.rate,
        seed=options.seed,
        log=_log,
        **more,
    )
    return run_workload(work, options.seconds + CHECK_TIMEOUT_S)


def _log(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
