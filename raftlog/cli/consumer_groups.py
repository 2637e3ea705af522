"""`raftlog group list|describe|seek|offset-delete|delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import click
import msgspec
from raftlog_client import TopicPartition

from raftlog.cli.cluster.moves import place_of
from raftlog.cli.common import output
from raftlog.cli.common.errors import ExitCode
from raftlog.cli.common.names import group_argument
from raftlog.cli.common.offsets import EARLIEST, LATEST, Anchor, Position, position_option
from raftlog.cli.common.options import format_option, servers_option
from raftlog.cli.common.session import ask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from raftlog.api.groups import (
        AssignedPartitions,
        GroupDescription,
        GroupMember,
    )

_PLACES = "TOPIC[/PARTITION]"
UNKNOWN = -1
"""An offset that is not known, or that was never committed."""


class _Target(TypedDict, total=False):
    """The target of a seek, as the client takes it."""

    to: Literal["earliest", "latest"]
    to_offset: int
    to_timestamp_ms: int
    shift_by: int
    like_group: str


@click.command("list")
@servers_option
@format_option
def list_groups(servers: str, output_format: str) -> None:
    """List the consumer groups with kind, state and coordinator."""

    found = ask(servers, lambda admin: admin.list_groups())
    if output_format == "json":
        output.write_json(msgspec.to_builtins(found))
    elif found.groups:
        output.write_table(
            ("group", "kind", "state", "members", "coordinator"),
            [
                (group.group, group.kind, group.state, group.members, group.coordinator)
                for group in found.groups
            ],
        )
    elif not found.incomplete:
        output.message("There are no groups yet; a consumer with a group id makes one.")
    for reason in found.incomplete:
        output.message(f"raftlog: the list is incomplete: {reason}")


@click.command()
@group_argument
@servers_option
@format_option
def describe(group: str, servers: str, output_format: str) -> None:
    """Show a group with offsets, lag and owner of each partition, and its members.

    OFFSET is the next record that the group reads. LAG is how many are left to the end. "-" is not
    known, or never committed.
    """

    found = ask(servers, lambda admin: admin.describe_group(group))
    if output_format == "json":
        output.write_json({**msgspec.to_builtins(found), "lag": _total_lag(found)})
        return
    facts = [f"kind {found.kind}", f"state {found.state}", f"epoch {found.epoch}"]
    facts += [f"assignor {found.assignor}"] if found.assignor else []
    facts += [f"coordinator {found.coordinator}", f"lag {_total_lag(found):,}"]
    click.echo(f"{found.group}  ({', '.join(facts)})")
    if found.offsets:
        clients = {member.member_id: member.client_id for member in found.members}
        click.echo()
        output.write_table(
            ("topic", "partition", "offset", "end", "lag", "member", "client"),
            [
                (
                    offset.topic,
                    offset.partition,
                    _known(offset.offset),
                    _known(offset.end_offset),
                    _known(offset.lag),
                    offset.member_id,
                    clients.get(offset.member_id or ""),
                )
                for offset in found.offsets
            ],
        )
    if found.members:
        click.echo()
        output.write_table(
            ("member", "instance", "client", "host", "epoch", "state", "partitions", "subscribes"),
            [_member_row(member) for member in found.members],
        )


@click.command()
@group_argument
@click.argument("places", metavar=f"[{_PLACES}]...", nargs=-1)
@position_option(
    "--to", "position", help="earliest, latest, an offset, or the first record from @TIME on."
)
@click.option("--shift", type=int, metavar="N", help="N records ahead, or back with -N.")
@click.option("--like", "like_group", metavar="GROUP", help="Group with the offsets to copy.")
@click.option("-n", "--dry-run", is_flag=True, help="Only print the table of changes.")
@servers_option
@format_option
def seek(
    *,
    group: str,
    places: tuple[str, ...],
    position: Position | None,
    shift: int | None,
    like_group: str | None,
    dry_run: bool,
    servers: str,
    output_format: str,
) -> int:
    """Set the committed offsets of a group without members.

    The seek covers the topics and partitions that are named, or all that the group has committed.
    Offsets stay within the partition. The table shows them before and after.

    \b
      raftlog group seek billing --to earliest --dry-run
      raftlog group seek billing orders --to @2026-01-31T10:00
      raftlog group seek billing orders/0 orders/3 --shift -100
    """
    target = _target(position, shift, like_group)
    topics = None if not places else [_topic_or_place(word) for word in places]

    found = ask(
        servers, lambda admin: admin.reset_offsets(group, topics, validate_only=dry_run, **target)
    )
    failed = [row for row in found.partitions if row.error_code]
    if output_format == "json":
        output.write_json(msgspec.to_builtins(found))
    else:
        if found.partitions:
            output.write_table(
                ("topic", "partition", "before", "offset", "error"),
                [
                    (row.topic, row.partition, _known(row.before), _known(row.offset), row.message)
                    for row in found.partitions
                ],
            )
        moved = output.counted(len(found.partitions) - len(failed), "offset")
        output.message(f"{moved} would be set; nothing is" if dry_run else f"{moved} set")
    return ExitCode.FAILED if failed else ExitCode.OK


@click.command("offset-delete")
@group_argument
@click.argument("places", metavar=f"{_PLACES}...", nargs=-1, required=True)
@servers_option
@format_option
def offset_delete(group: str, places: tuple[str, ...], servers: str, output_format: str) -> None:
    """Forget committed offsets of topics, or partitions, that no member subscribes to.

    \b
      raftlog group offset-delete billing orders payments/3
    """
    topics = [_topic_or_place(word) for word in places]

    ask(servers, lambda admin: admin.delete_offsets(group, topics))
    if output_format == "json":
        output.write_json({"group": group, "deleted": list(places)})
    else:
        output.message(f"{group} has no offsets of {', '.join(places)} any more")


@click.command()
@group_argument
@servers_option
@format_option
def delete(group: str, servers: str, output_format: str) -> None:
    """Delete a group without members, with its committed offsets, without a prompt."""

    ask(servers, lambda admin: admin.delete_group(group))
    if output_format == "json":
        output.write_json({"deleted": [group]})
    else:
        output.message(f"{group} deleted")


def _target(position: Position | None, shift: int | None, like_group: str | None) -> _Target:
    """The one target of a seek. Raises UsageError."""
    if sum(each is not None for each in (position, shift, like_group)) != 1:
        raise click.UsageError("say where to: one of --to, --shift and --like")
    if shift is not None:
        return {"shift_by": shift}
    if like_group is not None:
        return {"like_group": like_group}
    assert position is not None
    if position in (EARLIEST, LATEST):
        return {"to": "earliest" if position == EARLIEST else "latest"}
    if position.anchor is Anchor.OFFSET:
        return {"to_offset": position.amount}
    if position.anchor is Anchor.TIME:
        return {"to_timestamp_ms": max(position.amount, 0)}
    raise click.UsageError("--to takes no +N or -N: --shift moves from the committed offsets")


def _topic_or_place(word: str) -> str | TopicPartition:
    return place_of(word) if "/" in word else word


def _known(offset: int) -> int | None:
    return None if offset == UNKNOWN else offset


def _total_lag(group: GroupDescription) -> int:
    """The records left to read, in the partitions whose lag is known."""
    return sum(max(offset.lag, 0) for offset in group.offsets)


def _member_row(member: GroupMember) -> tuple[object, ...]:
    subscription = [*member.topics, *([f"/{member.pattern}/"] if member.pattern else [])]
    owned, goal = _count(member.assignment), _count(member.target)
    return (
        member.member_id,
        member.instance_id,
        member.client_id,
        member.host,
        member.member_epoch,
        member.state,
        # Unequal while the group rebalances.
        str(owned) if owned == goal else f"{owned} of {goal}",
        ",".join(subscription) or None,
    )


def _count(assigned: Sequence[AssignedPartitions]) -> int:
    return sum(len(topic.partitions) for topic in assigned)
