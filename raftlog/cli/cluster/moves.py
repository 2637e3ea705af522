"""`raftlog cluster transfer-leadership|reassign|maintenance|decommission`."""

from __future__ import annotations

from asyncio import gather, sleep
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import msgspec
from raftlog_client import Admin, RaftlogClientError, ServerError, TopicPartition

from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.options import format_option, partition_numbers, servers_option
from raftlog.cli.common.session import ask, explained, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftlog.api.cluster import DecommissionProgress, ReassignmentList

_NODE = click.IntRange(1, 2**31 - 1)
ELECTIONS_AT_ONCE = 16
POLL_S = 0.5
MOVES_MAX = 10_000
"""Partitions in one command, more than a person would name."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """The outcome of a transfer of leaderships."""

    moved: list[str]
    """`topic/partition`s."""
    unmoved: dict[str, str]
    """Reasons of unmoved partitions, by `topic/partition`."""


@click.command("transfer-leadership")
@click.option("-t", "--topic", metavar="NAME", help="Only this topic.")
@click.option("-p", "--partition", "partitions", metavar="0,2-5", help="Only these partitions.")
@click.option("--to", "node", type=_NODE, help="The replica that is to lead.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Also a replica that is not in sync, without --to that with the longest log: committed "
    "records may be lost.",
)
@click.option("--no-confirm", is_flag=True, help="Do not prompt before --unclean.")
@servers_option
@format_option
def transfer_leadership(
    *,
    topic: str | None,
    partitions: str | None,
    node: int | None,
    unclean: bool,
    no_confirm: bool,
    servers: str,
    output_format: str,
) -> int:
    """Transfer leadership to other replicas of partitions.

    The leader becomes the node of --to. Without --to, it becomes the preferred replica of each
    partition (of --topic, or of all topics), or, for the partitions of --partition, the best other
    replica. Only a replica in sync can take over, so no record is lost, and writes pause for a
    moment. Partitions with that leader already stay unchanged. (`raftlog quorum transfer` transfers
    the quorum's leadership.)

    \b
      raftlog cluster transfer-leadership
      raftlog cluster transfer-leadership --topic orders --partition 3 --to 2
    """
    if partitions is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    if node is not None and topic is None:
        raise click.UsageError("--to needs --topic; `maintenance` empties a whole node of leaders")
    if unclean:
        if partitions is None:
            raise click.UsageError("--unclean needs --topic and --partition")
        output.confirm(
            "Records that the new leader lacks are lost for good. Go on?",
            no_confirm,
            danger="this may lose records for good",
        )
    wanted = None if partitions is None else partition_numbers(partitions)
    done = run(servers, _transfer(servers, topic, wanted, node, unclean=unclean))
    if output_format == "json":
        output.write_json(msgspec.to_builtins(done))
    else:
        for place, why in done.unmoved.items():
            output.message(f"{place}: {why}")
        output.message(f"{output.counted(len(done.moved), 'partition')} moved")
    return ExitCode.FAILED if done.unmoved else ExitCode.OK


async def _transfer(
    servers: str,
    topic: str | None,
    wanted: Sequence[int] | None,
    node: int | None,
    *,
    unclean: bool,
) -> Transfers:
    async with Admin(bootstrap_servers=servers) as admin:
        topics = await admin.describe_topics(None if topic is None else [topic])
        found = [info for each in topics for info in each.partitions]
        missing = set(wanted or ()) - {info.partition for info in found}
        if missing:
            raise CommandError(
                f"{topic} has no partition {min(missing)}",
                hint=f"`raftlog topic describe {topic}` shows its partitions.",
                code=ExitCode.NOT_FOUND,
            )
        chosen = [
            # A partition named without --to moves to the best other replica.
            (info, node if wanted is not None else node or info.replicas[0])
            for info in found
            if wanted is None or info.partition in wanted
        ]
        moved: list[str] = []
        # For these the cluster would wait until a leader is elected.
        unmoved = {
            f"{info.topic}/{info.partition}": "it has no leader; `raftlog cluster health` says why"
            for info, _ in chosen
            if info.leader is None and not unclean
        }
        to_move = [
            (info, goal)
            for info, goal in chosen
            if info.leader != (goal or 0) and (unclean or info.leader is not None)
        ]
        for start in range(0, len(to_move), ELECTIONS_AT_ONCE):
            group = to_move[start : start + ELECTIONS_AT_ONCE]
            outcomes = await gather(
                *(
                    admin.elect_leader(info.topic, info.partition, goal, unclean=unclean)
                    for info, goal in group
                ),
                return_exceptions=True,
            )
            for (info, _), outcome in zip(group, outcomes, strict=True):
                place = f"{info.topic}/{info.partition}"
                if outcome is None:
                    moved.append(place)
                elif isinstance(outcome, ServerError):
                    unmoved[place] = explained(servers, outcome).message
                else:
                    raise outcome
        return Transfers(moved, unmoved)


@click.command()
@click.argument("moves", metavar="[TOPIC/PARTITION=NODE,NODE…]...", nargs=-1)
@click.option("--cancel", is_flag=True, help="Leave these (TOPIC/PARTITION) where they were.")
@click.option("--wait", is_flag=True, help="Return when no move is under way.")
@servers_option
@format_option
def reassign(
    moves: tuple[str, ...], cancel: bool, wait: bool, servers: str, output_format: str
) -> None:
    """Move partitions to other nodes, the preferred leader first. Show the moves under way.

    Records are copied in the background, at a bounded rate. The old replicas stay until all new
    replicas are in sync. Without MOVES, the command only shows the moves.

    \b
      raftlog cluster reassign orders/0=2,3,4 orders/1=3,4,2 --wait
      raftlog cluster reassign --cancel orders/0
      raftlog cluster reassign
    """
    if len(moves) > MOVES_MAX:
        raise click.UsageError(f"more than {MOVES_MAX} partitions")
    if cancel and not moves:
        raise click.UsageError("--cancel needs the partitions, as TOPIC/PARTITION")
    places = [place_of(word) for word in moves] if cancel else []
    targets = {} if cancel else targets_of(moves)

    async def change() -> ReassignmentList:
        async with Admin(bootstrap_servers=servers) as admin:
            if targets:
                await admin.reassign(targets)
            for place in places:
                await admin.cancel_reassignment(place.topic, place.partition)
            found = await admin.describe_reassignments()
            while found.total and wait:
                await sleep(POLL_S)
                try:
                    found = await admin.describe_reassignments()
                except RaftlogClientError as error:
                    # A move may take hours, in which the responding node may well die.
                    if not error.retriable:
                        raise
            return found

    found = run(servers, change())
    if output_format == "json":
        output.write_json(msgspec.to_builtins(found))
    elif found.total:
        output.write_table(
            ("topic", "partition", "replicas", "in sync", "adding", "removing"),
            [
                (
                    move.topic,
                    move.partition,
                    _numbers(move.replicas),
                    _numbers(move.isr),
                    _numbers(move.adding),
                    _numbers(move.removing),
                )
                for move in found.reassignments
            ],
        )
        if found.total > len(found.reassignments):
            output.message(f"… of {found.total:,}")
    else:
        output.message("nothing is being moved")


@click.command()
@click.argument("node", type=_NODE)
@click.argument("state", type=click.Choice(["enable", "disable"]))
@servers_option
@format_option
def maintenance(node: int, state: str, servers: str, output_format: str) -> None:
    """Relieve node NODE of its leaderships, until `disable`.

    The node keeps its replicas, and may be stopped and started during maintenance.
    """
    is_enabled = state == "enable"

    ask(servers, lambda admin: admin.set_maintenance(node, enabled=is_enabled))
    if output_format == "json":
        output.write_json({"node_id": node, "maintenance": is_enabled})
    elif is_enabled:
        output.message(
            f"node {node} is in maintenance: others take over what it leads; "
            f"`raftlog cluster maintenance {node} disable` ends it"
        )
    else:
        output.message(f"node {node} is not in maintenance any more, and may lead again")


@click.command()
@click.argument("node", type=_NODE)
@click.option("--cancel", is_flag=True, help="Let it keep what it still holds.")
@click.option("--wait", is_flag=True, help="Return when it holds no replica.")
@servers_option
@format_option
def decommission(node: int, cancel: bool, wait: bool, servers: str, output_format: str) -> None:
    """Move all replicas of node NODE to others, and place no more there.

    The move continues under every controller. With no replica left the node may be stopped and
    unregistered (`raftlog cluster remove-node`). A repeat of the command shows the progress.
    """
    if cancel and wait:
        raise click.UsageError("--cancel and --wait do not go together")

    async def change() -> DecommissionProgress:
        async with Admin(bootstrap_servers=servers) as admin:
            if cancel:
                await admin.cancel_decommission(node)
                return await admin.describe_decommission(node)
            await admin.decommission_node(node)
            left: int | None = None
            while True:
                progress = await _progress(admin, node)
                if progress is not None and (progress.partitions_left == 0 or not wait):
                    return progress
                if progress is not None and progress.partitions_left != left:
                    left = progress.partitions_left
                    output.message(f"{output.counted(left, 'replica')} left to move")
                await sleep(POLL_S)

    found = run(servers, change())
    if output_format == "json":
        output.write_json(msgspec.to_builtins(found))
    elif cancel:
        output.message(
            f"node {node} keeps what it still holds: "
            f"{output.counted(found.partitions_left, 'replica')}"
        )
    elif found.partitions_left:
        output.message(
            f"{output.counted(found.partitions_left, 'replica')} of node {node} left to move, "
            f"{found.partitions_moving} on their way; with --wait this command waits for all"
        )
    else:
        output.message(
            f"node {node} holds nothing any more: stop it, take its vote if it has one "
            f"(`raftlog quorum remove-voter {node}`), then `raftlog cluster remove-node {node}`"
        )


async def _progress(admin: Admin, node: int) -> DecommissionProgress | None:
    """The progress, or None while unknown."""
    try:
        return await admin.describe_decommission(node)
    except RaftlogClientError as error:
        # A decommission may take hours, in which a controller may well die.
        if not error.retriable:
            raise
        return None


def targets_of(words: Sequence[str]) -> dict[TopicPartition, list[int]]:
    """Parse `topic/partition=1,2,3` words. A partition given twice is a mistake."""
    targets: dict[TopicPartition, list[int]] = {}
    for word in words:
        place_word, equals, nodes_word = word.partition("=")
        numbers = nodes_word.split(",")
        if not equals or not all(part.isascii() and part.isdigit() for part in numbers):
            raise click.BadParameter(f"{word!r} is not TOPIC/PARTITION=NODE,NODE,…")
        place = place_of(place_word)
        nodes = [int(part) for part in numbers]
        if place in targets or len(set(nodes)) != len(nodes):
            raise click.BadParameter(f"{word!r} says something twice")
        targets[place] = nodes
    return targets


def place_of(word: str) -> TopicPartition:
    """`topic/partition`."""
    topic, slash, number = word.rpartition("/")
    if not (slash and topic and number.isascii() and number.isdigit() and len(number) < 10):
        raise click.BadParameter(f"{word!r} is not TOPIC/PARTITION")
    return TopicPartition(topic, int(number))


def _numbers(numbers: Sequence[int]) -> str | None:
    return ",".join(map(str, numbers)) or None
