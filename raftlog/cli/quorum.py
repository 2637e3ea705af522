"""`raftlog quorum describe|add-voter|remove-voter|transfer|recover`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from raftlog_client import QuorumInfo

from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError
from raftlog.cli.common.options import format_option, servers_option
from raftlog.cli.common.session import ask, run, unready_too
from raftlog.cli.groups import Lazy, LazyGroup
from raftlog.record.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Iterable

_NODE = click.IntRange(1, 2**31 - 1)


@click.command()
@servers_option
@format_option
def describe(servers: str, output_format: str) -> None:
    """Show leader, term and log, and every member with its lag.

    The reachable leader responds, as only the leader knows the progress of the others. Without a
    leader any node shows its connections.
    """

    found = ask(servers, lambda admin: admin.describe_quorum(), unready=True)
    if output_format == "json":
        output.write_json(msgspec.to_builtins(found))
        return
    for line in _lines(found):
        click.echo(line)
    output.write_table(
        ("node", "host", "port", "role", "connected", "match", "lag", "heard ms", "directory"),
        [
            (
                member.node_id,
                member.host,
                member.port,
                "leader" if member.is_leader else role,
                "yes" if member.connected else "no",
                member.match_index,
                member.lag,
                member.last_heard_ms,
                member.directory_id,
            )
            for role, members in (("voter", found.voters), ("observer", found.observers))
            for member in members
        ],
    )


@click.command("add-voter")
@click.argument("node", type=_NODE)
@servers_option
@format_option
def add_voter(node: int, servers: str, output_format: str) -> None:
    """Give node NODE a vote.

    The node must have joined (`raftlog serve --join`) and be connected. Votes change one at a time.
    """

    ask(servers, lambda admin: admin.add_voter(node), unready=True)
    _write_voter(node, output_format, is_voter=True)


@click.command("remove-voter")
@click.argument("node", type=_NODE)
@servers_option
@format_option
def remove_voter(node: int, servers: str, output_format: str) -> None:
    """Remove the vote of node NODE, alive or dead.

    A running node stays as an observer, with all its partitions.
    """

    ask(servers, lambda admin: admin.remove_voter(node), unready=True)
    _write_voter(node, output_format, is_voter=False)


@click.command()
@click.argument("node", type=_NODE, required=False)
@servers_option
@format_option
def transfer(node: int | None, servers: str, output_format: str) -> None:
    """Transfer leadership to voter NODE, or to the voter with the newest log.

    The leader of the quorum is the active controller. Nothing stops during the transfer.
    """

    async def change() -> int | None:
        async with unready_too(servers) as admin:
            await admin.transfer_leadership(node)
            return node or (await admin.describe_quorum()).leader_id

    leader_id = run(servers, change())
    if output_format == "json":
        output.write_json({"leader_id": leader_id})
    else:
        output.message(f"node {leader_id} leads" if leader_id else "another node leads")


@click.command()
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Data directory of a surviving node, which is stopped.",
)
@click.option("--show", is_flag=True, help="Only print the state of its log.")
@click.option("--no-confirm", is_flag=True, help="Do not prompt. Needed without a terminal.")
@format_option
def recover(data_dir: Path, show: bool, no_confirm: bool, output_format: str) -> None:
    """Make a stopped node the only voter, after the loss of a majority for good.

    Of several survivors use the node with the newest log, which has the greatest last term, then
    the greatest last index (--show prints them). Metadata that the lost majority committed without
    this node (topics, leaders, in-sync sets) is
    gone. Then start the node, and add each lost node again by `raftlog serve --replace N --join …`
    on an empty data directory. Never start a lost node from its old directory again, as together
    the lost nodes would be a second cluster.
    """
    # The import is here, so that no other command pays for the node.
    from raftlog.node.directory import IdentityError  # noqa: PLC0415
    from raftlog.node.quorum_recovery import describe_survivor, make_sole_voter  # noqa: PLC0415
    from raftlog.world import DiskError  # noqa: PLC0415
    from raftlog.world.real_disk import FileSystemDisk  # noqa: PLC0415

    try:
        disk = FileSystemDisk(data_dir)
        try:
            found = describe_survivor(disk)
            if not show:
                output.confirm(
                    f"Make node {found.node_id} the only voter, instead of "
                    f"{', '.join(map(str, sorted(found.voters.ids)))}?",
                    no_confirm,
                    danger="this gives up what only the other voters have",
                )
                make_sole_voter(disk)
        finally:
            disk.close()
    except (DiskError, IdentityError, LogError) as error:
        raise CommandError(str(error)) from error
    if output_format == "json":
        output.write_json(msgspec.to_builtins(found))
        return
    voters = ", ".join(map(str, sorted(found.voters.ids)))
    click.echo(
        f"node {found.node_id}: last term {found.last_term}, last index {found.last_index}, "
        f"voters {voters}"
    )
    if not show:
        output.message(
            f"node {found.node_id} is the only voter: start it, then replace the lost nodes"
        )


def _write_voter(node: int, output_format: str, *, is_voter: bool) -> None:
    if output_format == "json":
        output.write_json({"node_id": node, "is_voter": is_voter})
    else:
        output.message(f"node {node} has {'a' if is_voter else 'no'} vote now")


def _lines(found: QuorumInfo) -> Iterable[str]:
    yield f"cluster {found.cluster_id}, term {found.term}, as node {found.node_id} sees it"
    if found.leader_id is None:
        reached = sum(member.connected for member in found.voters)
        majority = len(found.voters) // 2 + 1
        yield (
            f"no leader: node {found.node_id} reaches {reached} of {len(found.voters)} voters, "
            f"{majority} are needed"
        )
    else:
        yield f"leader {found.leader_id}"
    yield (
        f"log: last entry {found.last_index}, committed {found.commit_index}, "
        f"applied {found.applied_index}"
    )
    for warning in found.warnings:
        yield f"warning: {warning}"


quorum = LazyGroup(
    "quorum",
    subcommands={
        "describe": Lazy(__name__, "describe", "Show leader, members and their lag."),
        "add-voter": Lazy(__name__, "add_voter", "Give a node a vote."),
        "remove-voter": Lazy(__name__, "remove_voter", "Take a node's vote."),
        "transfer": Lazy(__name__, "transfer", "Let another voter lead."),
        "recover": Lazy(__name__, "recover", "Make a survivor the only voter: a majority is lost."),
    },
    help="Show and change the voters and the leader of the metadata quorum.",
)
