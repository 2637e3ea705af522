"""`raftlog cluster up|down|status|add-node|replace-node|stop-node|start-node`: on this machine."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from raftlog.api.manager import (
    AddNode,
    AwaitReady,
    ControlRequest,
    GetStatus,
    ReplaceNode,
    StartNode,
    StopNode,
)
from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.options import format_option
from raftlog.cluster import commands, manifest
from raftlog.cluster.errors import AlreadyManagedError, ClusterError
from raftlog.cluster.layout import Layout, manager_pid
from raftlog.cluster.manifest import Plan
from raftlog.cluster.service import ManagerService

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from raftlog.api.manager import ClusterStatus

_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound="Callable[..., Any]")
_NODE = click.IntRange(1, 2**31 - 1)
FILE_FLAG = "--config"


def directory_option(command: _Command) -> _Command:
    """`--dir`: the directory of a local cluster."""
    return click.option(
        "-d",
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="The cluster's directory.",
    )(command)


@click.command()
@directory_option
@click.option(
    "-n",
    "--nodes",
    type=click.IntRange(1, manifest.NODES_MAX),
    help=f"Number of nodes of a new cluster.  [default: {manifest.NODES_DEFAULT}]",
)
@click.option(
    "--base-port",
    type=click.IntRange(0, 65_535),
    help="The first node's port. The others follow. 0 for free ports.  "
    f"[default: {manifest.BASE_PORT_DEFAULT}]",
)
@click.option(
    "--kafka/--no-kafka",
    "kafka",
    default=None,
    help="Whether each node has a listener for Kafka clients.  [default: kafka]",
)
@click.option(
    "--kafka-base-port",
    type=click.IntRange(0, 65_535),
    help="The first node's Kafka port. The others follow. 0 for free ports.  [default: "
    f"{manifest.default_kafka_base_port(manifest.BASE_PORT_DEFAULT)}, or --base-port + "
    f"{manifest.KAFKA_PORT_OFFSET}]",
)
@click.option("--host", help=f"Host of the nodes' listeners.  [default: {manifest.HOST_DEFAULT}]")
@click.option(
    "--flush", type=click.Choice(["sync", "async"]), help="What acks=all waits for. [default: sync]"
)
@click.option("--detach", is_flag=True, help="Return once it serves, and let it run.")
@click.argument("settings", nargs=-1, type=click.UNPROCESSED)
@format_option
def up(
    *,
    directory: Path,
    nodes: int | None,
    base_port: int | None,
    kafka: bool | None,
    kafka_base_port: int | None,
    host: str | None,
    flush: manifest.Flush | None,
    detach: bool,
    settings: tuple[str, ...],
    output_format: str,
) -> None:
    """Run a cluster on this machine, and restart nodes that die.

    The command stays until Ctrl-C, which stops the nodes in order. With --detach it returns once
    the cluster serves. The directory holds everything. A later `up` on it starts the same cluster
    again, and needs nothing but --dir. SETTINGS, after --, are those of `raftlog serve`, for every
    node.

    \b
      raftlog cluster up --dir /tmp/three
      eval "$(raftlog cluster up --dir /tmp/three --detach)"
      raftlog cluster up --dir /tmp/three --nodes 5 --base-port 9000 -- --log-level warning
    """
    plan = Plan(
        nodes=nodes,
        base_port=base_port,
        host=host,
        flush=flush,
        arguments=_absolute(settings) if settings else None,
        kafka=kafka,
        kafka_base_port=kafka_base_port,
    )
    layout = Layout.at(directory)

    def write_ready(status: ClusterStatus) -> None:
        _write_ready(status, output_format)

    async def start() -> None:
        plan.check()
        if manager_pid(layout) is not None:
            write_ready(await _join(layout, plan))
        elif detach:
            write_ready(await commands.start_detached(layout, plan, output.message))
            output.message(
                f"it runs in the background; `raftlog cluster down --dir {_quoted(directory)}` "
                "stops it"
            )
        else:
            try:
                await ManagerService(directory, plan, output.message).run(write_ready)
            except AlreadyManagedError:
                write_ready(await _join(layout, plan))

    try:
        _run(start())
    except KeyboardInterrupt:
        output.message("the cluster goes on starting in the background")
        raise


async def _join(layout: Layout, plan: Plan) -> ClusterStatus:
    """The status of a running cluster, once it serves."""
    known = layout.require_manifest()
    is_other = manifest.revised(known, plan) != known or manifest.needs_kafka_ports(known, plan)
    pid = manager_pid(layout)
    document = await commands.request(layout, AwaitReady(), output.message)
    output.message(f"the cluster runs already (manager: process {pid})")
    if is_other:
        output.message("other settings count from its next start: `raftlog cluster down`, then up")
    return commands.status_from(document)


@click.command()
@directory_option
@format_option
def down(directory: Path, output_format: str) -> None:
    """Stop a cluster that `up` started, node after node. Its data stays.

    A cluster that does not run is no error.
    """
    stopped = _run(commands.stop(Layout.at(directory), output.message))
    if output_format == "json":
        output.write_json({"stopped": stopped})
    else:
        output.message("the cluster is stopped" if stopped else "the cluster was not running")


@click.command()
@directory_option
@format_option
def status(directory: Path, output_format: str) -> int:
    """Show the processes of a cluster that `up` started.

    The exit code is 0 if all of them are ready, else 1, also for a stopped cluster.
    """
    layout = Layout.at(directory)

    async def look() -> ClusterStatus:
        if manager_pid(layout) is None:
            return commands.status_unmanaged(layout)
        document = await commands.request(layout, GetStatus(), output.message)
        return commands.status_from(document)

    found = _run(look())
    if output_format == "json":
        output.write_json({"whole": found.is_whole, **msgspec.to_builtins(found)})
    else:
        _show(found)
    return ExitCode.OK if found.is_whole else ExitCode.FAILED


@click.command("add-node")
@click.option("--voter", is_flag=True, help="Give it a vote in the metadata quorum.")
@directory_option
@format_option
def add_node(directory: Path, voter: bool, output_format: str) -> None:
    """Add an empty node, with the next id and port, and wait until it serves.

    New topics use it at once. `raftlog cluster reassign` gives it replicas of others.
    """
    _change_nodes(directory, AddNode(voter), output_format)


@click.command("replace-node")
@click.argument("node", type=_NODE)
@directory_option
@format_option
def replace_node(node: int, directory: Path, output_format: str) -> None:
    """Replace the lost or damaged data directory of node NODE by an empty directory.

    NODE stops, and starts again in the place of the lost node, with its number, its vote and copies
    of its replicas. The rest of its data directory is moved away, never deleted.
    """
    _change_nodes(directory, ReplaceNode(node), output_format)


@click.command("stop-node")
@click.argument("node", type=_NODE)
@click.option("--forget", is_flag=True, help="Stop it for good, so that `up` no longer starts it.")
@directory_option
@format_option
def stop_node(node: int, forget: bool, directory: Path, output_format: str) -> None:
    """Stop node NODE, until `start-node`. Other nodes take over its leaderships.

    --forget is for a decommissioned node. Its data directory is moved away, not deleted. `raftlog
    cluster remove-node` unregisters the node.
    """
    _send_request(directory, StopNode(node, forget))
    _write_node(node, output_format, is_running=False)


@click.command("start-node")
@click.argument("node", type=_NODE)
@directory_option
@format_option
def start_node(node: int, directory: Path, output_format: str) -> None:
    """Start the stopped node NODE, and wait until it is ready."""
    _send_request(directory, StartNode(node))
    _write_node(node, output_format, is_running=True)


def _change_nodes(directory: Path, change: ControlRequest, output_format: str) -> None:
    node_id = _send_request(directory, change)
    servers = ",".join(Layout.at(directory).require_manifest().addresses)
    if output_format == "json":
        output.write_json({"node_id": node_id, "servers": servers})
    else:
        click.echo(_export(servers))


def _write_node(node: int, output_format: str, *, is_running: bool) -> None:
    if output_format == "json":
        output.write_json({"node_id": node, "is_running": is_running})
    else:
        output.message(f"node {node} {'is ready' if is_running else 'is stopped'}")


def _send_request(directory: Path, request: ControlRequest) -> Any:
    return _run(commands.request(Layout.at(directory), request, output.message))


def _run(main: Coroutine[Any, Any, _Result]) -> _Result:
    try:
        return asyncio.run(main)
    except ClusterError as error:
        raise CommandError(str(error), hint=error.hint) from error


def _write_ready(found: ClusterStatus, output_format: str) -> None:
    if output_format == "json":
        output.write_json({"whole": found.is_whole, **msgspec.to_builtins(found)})
    else:
        for node in found.nodes:
            output.message(
                f"node {node.node_id} serves at http://{node.address}{_and_kafka(node.kafka)}"
                if node.ready
                else f"node {node.node_id} at {node.address}: {node.state}, not ready"
            )
        click.echo(_export(found.servers))
    # A reader of the pipe needs the line now, not at the end of the cluster.
    sys.stdout.flush()


def _show(found: ClusterStatus) -> None:
    manager = "nobody" if found.manager_pid is None else f"process {found.manager_pid}"
    controller = "none" if found.controller_id is None else f"node {found.controller_id}"
    click.echo(f"{found.directory}: managed by {manager}, controller {controller}")
    output.write_table(
        ("node", "address", "kafka", "state", "ready", "process", "restarts", "last end"),
        [
            (
                node.node_id,
                node.address,
                node.kafka,
                node.state,
                "yes" if node.ready else "no",
                node.pid,
                node.restarts,
                node.last_end,
            )
            for node in found.nodes
        ],
    )
    for node in found.nodes:
        if node.why is not None and node.state not in ("stopped", "unmanaged"):
            output.message(f"node {node.node_id}: {node.why}; its log is {node.log}")
    if found.manager_pid is None:
        output.message(f"`raftlog cluster up --dir {_quoted(Path(found.directory))}` starts it")


def _and_kafka(address: str | None) -> str:
    return "" if address is None else f", and Kafka clients at {address}"


def _export(servers: str) -> str:
    return f"export RAFTLOG_SERVERS={shlex.quote(servers)}"


def _quoted(directory: Path) -> str:
    return shlex.quote(str(directory))


def _absolute(settings: tuple[str, ...]) -> tuple[str, ...]:
    """The settings with an absolute path of a settings file, since `up` may run elsewhere."""
    words = list(settings)
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == FILE_FLAG and equals:
            words[index] = f"{name}={Path(value).absolute()}"
        elif name == FILE_FLAG and index + 1 < len(words):
            words[index + 1] = str(Path(words[index + 1]).absolute())
    return tuple(words)
