"""`raftlog quorum describe|add-voter|remove-voter|transfer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec
from raftlog_client import QuorumInfo

from raftlog.cli import output
from raftlog.cli.groups import Lazy, LazyGroup
from raftlog.cli.options import format_option, servers_option
from raftlog.cli.session import run, unready_too

if TYPE_CHECKING:
    from collections.abc import Iterable

_NODE = click.IntRange(1, 2**31 - 1)


@click.command()
@servers_option
@format_option
def describe(servers: str, output_format: str) -> None:
    """Show leader, term and log, and every member with its lag.

    The reachable leader answers: only the leader knows the progress of the others. Without a leader
    any node shows its connections.
    """

    async def ask() -> QuorumInfo:
        async with unready_too(servers) as admin:
            return await admin.describe_quorum()

    found = run(servers, ask())
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

    async def change() -> None:
        async with unready_too(servers) as admin:
            await admin.add_voter(node)

    run(servers, change())
    _write_voter(node, output_format, is_voter=True)


@click.command("remove-voter")
@click.argument("node", type=_NODE)
@servers_option
@format_option
def remove_voter(node: int, servers: str, output_format: str) -> None:
    """Remove the vote of node NODE, alive or dead.

    A running node goes on as an observer, with all its partitions.
    """

    async def change() -> None:
        async with unready_too(servers) as admin:
            await admin.remove_voter(node)

    run(servers, change())
    _write_voter(node, output_format, is_voter=False)


@click.command()
@click.argument("node", type=_NODE, required=False)
@servers_option
@format_option
def transfer(node: int | None, servers: str, output_format: str) -> None:
    """Let voter NODE lead, or whichever other voter is furthest.

    The leader of the quorum is the active controller. Nothing stops meanwhile.
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
    },
    help="Show and change the metadata quorum: its voters and its leader.",
)
