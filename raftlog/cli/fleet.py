"""`raftlog fleet plan|apply|status`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from raftlog_client import ConnectionLostError

from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.options import format_option
from raftlog.fleet import steps
from raftlog.fleet.errors import FleetError, SpecError, UnreachableError, has_cause
from raftlog.fleet.plan import kept_nodes
from raftlog.fleet.reconciler import open_fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from raftlog.fleet.reconciler import Report
    from raftlog.fleet.state import NodeState
    from raftlog.fleet.steps import Step

_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound="Callable[..., Any]")
PARTITIONS_LISTED_MAX = 10


def file_argument(command: _Command) -> _Command:
    """FILE is the fleet's file."""
    return click.argument(
        "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE"
    )(command)


def _lost_nodes(
    context: click.Context, parameter: click.Parameter, words: Sequence[str]
) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for word in words:
        cluster, slash, node = word.rpartition("/")
        if not (slash and cluster and node.isascii() and node.isdigit() and len(node) < 10):
            raise click.BadParameter(f"{word!r} is not CLUSTER/NODE, such as orders/3")
        found.setdefault(cluster, set()).add(int(node))
    return found


def replace_option(command: _Command) -> _Command:
    """`--replace` names nodes with a lost disk."""
    return click.option(
        "--replace",
        "lost",
        multiple=True,
        metavar="CLUSTER/NODE",
        callback=_lost_nodes,
        help="Node with a lost disk, to start on an empty disk. May be repeated.",
    )(command)


def prune_option(command: _Command) -> _Command:
    """`--prune` stops clusters that left the file."""
    return click.option(
        "--prune",
        is_flag=True,
        help="Stop clusters that are no longer in the file, and forget their logs. Data is kept.",
    )(command)


@click.command()
@file_argument
@replace_option
@prune_option
@format_option
def plan(file: Path, lost: dict[str, set[int]], prune: bool, output_format: str) -> int:
    """Show the steps that `apply` would take, and change nothing.

    The exit code is 0 if nothing is to do, else 1.
    """

    async def look() -> tuple[list[Report], tuple[Step, ...]]:
        async with open_fleet(file, output.message) as fleet:
            _require_clusters(lost, (spec.name for spec in fleet.spec.cluster))
            reports = await fleet.report(lost)
            for found in reports:
                if found.error is not None:
                    raise found.error
            return reports, await fleet.removals(prune=prune)

    reports, removals = _run(look())
    found = [*(step for report in reports for step in report.steps), *removals]
    problems = [f"{report.spec.name}: {text}" for report in reports for text in report.problems]
    if output_format == "json":
        output.write_json({"steps": msgspec.to_builtins(found), "problems": problems})
    else:
        for step in found:
            click.echo(steps.line(step))
        click.echo(f"{output.counted(len(found), 'step')} to do" if found else "nothing to do")
        _write_problems(problems)
    return ExitCode.FAILED if found or problems else ExitCode.OK


@click.command()
@file_argument
@replace_option
@prune_option
@format_option
def apply(file: Path, lost: dict[str, set[int]], prune: bool, output_format: str) -> None:
    """Make the clusters match FILE, one node at a time.

    The command may be repeated, and interrupted by Ctrl-C. The next run resumes. No data directory
    is deleted, and no topic. A node stops only once no partition falls below min.insync.replicas by
    that.
    """

    async def change() -> int:
        async with open_fleet(file, output.message) as fleet:
            _require_clusters(lost, (spec.name for spec in fleet.spec.cluster))
            return await fleet.apply(lost, prune=prune)

    try:
        count = _run(change())
    except CommandError as error:
        if error.code is not ExitCode.USAGE:
            error.hint = error.hint or f"`raftlog fleet apply {file}` goes on from here."
        raise
    if output_format == "json":
        output.write_json({"steps": count})
    else:
        output.message(f"all is as written, after {output.counted(count, 'step')}")


@click.command()
@file_argument
@format_option
def status(file: Path, output_format: str) -> int:
    """Show the clusters of FILE and their nodes.

    The exit code is 0 only if all is as written. Then each node runs the right version and settings
    and is ready, and no partition is below min.insync.replicas.
    """

    async def look() -> tuple[list[Report], tuple[Step, ...]]:
        async with open_fleet(file, output.message) as fleet:
            reports = await fleet.report()
            home = next((r for r in reports if r.spec.name == fleet.spec.fleet.home), None)
            is_listed = home is None or home.error is None
            return reports, await fleet.removals(prune=False) if is_listed else ()

    reports, removals = _run(look())
    is_whole = all(report.is_as_written for report in reports) and not removals
    if output_format == "json":
        clusters = [_document(report) for report in reports]
        output.write_json({"as_written": is_whole, "clusters": clusters})
    else:
        _show(reports)
        for step in removals:
            output.message(f"to do: {steps.line(step).strip()}")
    return ExitCode.OK if is_whole else ExitCode.FAILED


def _require_clusters(lost: dict[str, set[int]], names: Iterable[str]) -> None:
    unknown = sorted(lost.keys() - set(names))
    if unknown:
        raise SpecError(f"--replace: there is no cluster {unknown[0]} in the file")


def _run(main: Coroutine[Any, Any, _Result]) -> _Result:
    try:
        return asyncio.run(main)
    except FleetError as error:
        code = ExitCode.FAILED
        if isinstance(error, SpecError):
            code = ExitCode.USAGE
        elif has_cause(error, UnreachableError | ConnectionLostError):
            # A later run may succeed.
            code = ExitCode.UNREACHABLE
        raise CommandError(str(error), hint=error.hint, code=code) from error


def _document(report: Report) -> dict[str, Any]:
    state = report.state
    nodes = [] if state is None else [_node_document(report, node) for node in state.nodes]
    return {
        "name": report.spec.name,
        "as_written": report.is_as_written,
        "error": None if report.error is None else str(report.error),
        "cluster_id": None if state is None else state.cluster_id,
        "controller_id": None if state is None else state.controller_id,
        "servers": "" if state is None else ",".join(node.address for node in state.nodes),
        "nodes": nodes,
        "under_min_isr": []
        if state is None
        else [str(partition) for partition in state.under_min_isr],
        "problems": report.problems,
        "steps": msgspec.to_builtins(report.steps),
    }


def _node_document(report: Report, node: NodeState) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "address": node.address,
        "ready": node.is_ready,
        "why": node.why,
        "version": node.version,
        "wanted_version": report.spec.version,
        "has_settings": node.has_settings,
        "voter": node.is_voter,
        "leaves": _leaves(report, node),
    }


def _leaves(report: Report, node: NodeState) -> bool:
    return report.state is not None and node not in kept_nodes(report.spec, report.state)


def _show(reports: Sequence[Report]) -> None:
    rows: list[tuple[object, ...]] = []
    for report in reports:
        state = report.state
        if state is None or not state.nodes:
            rows.append((report.spec.name, None, None, "no", None, None, None, None))
            continue
        rows += [
            (
                report.spec.name,
                node.node_id,
                node.address,
                "yes" if node.is_ready else "no",
                node.version,
                report.spec.version,
                "old" if not node.has_settings else "as written",
                "controller"
                if node.node_id == state.controller_id
                else "voter"
                if node.is_voter
                else "observer",
            )
            for node in state.nodes
        ]
    columns = ("cluster", "node", "address", "ready", "version", "wanted", "settings", "role")
    output.write_table(columns, rows)
    sys.stdout.flush()
    for report in reports:
        _write_problems(_notes(report))


def _notes(report: Report) -> Iterable[str]:
    name = report.spec.name
    if report.error is not None:
        yield str(report.error)
    if report.state is not None:
        for node in report.state.nodes:
            if node.why is not None:
                yield f"{name}: node {node.node_id} is not ready: {node.why}"
        under = [str(partition) for partition in report.state.under_min_isr]
        if under:
            more = ", …" if len(under) > PARTITIONS_LISTED_MAX else ""
            yield (
                f"{name}: below min.insync.replicas: "
                f"{', '.join(under[:PARTITIONS_LISTED_MAX])}{more}"
            )
    yield from (f"{name}: {problem}" for problem in report.problems)
    if report.steps:
        yield f"{name}: {output.counted(len(report.steps), 'step')} to do: `raftlog fleet plan`"


def _write_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        output.message(problem)
