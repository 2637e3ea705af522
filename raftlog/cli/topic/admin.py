"""`raftlog topic create|list|alter-config|add-partitions|trim-prefix|delete`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click
from raftlog_client import (
    Admin,
    Consumer,
    RaftlogClientError,
    ServerError,
    TopicDescription,
    TopicPartition,
)

from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.offsets import POSITION_HELP, Position, position_option, resolve
from raftlog.cli.common.options import (
    config_pairs,
    format_option,
    partition_numbers,
    servers_option,
)
from raftlog.cli.common.session import ask, explained, run
from raftlog.record.errors import TOPIC_EXISTS, UNKNOWN_TOPIC

_Result = TypeVar("_Result")

LARGE_TOPIC_PARTITIONS = 500
"""Smaller topics are served when their creation is answered, or right after."""
LEADERS_PATIENCE_S = 60.0
"""Time limit for the leaders of a new topic."""


@click.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", type=click.IntRange(1, 10_000), help="Partitions of each topic."
)
@click.option("-r", "--replicas", type=click.IntRange(1), help="Copies of each partition.")
@click.option(
    "-c", "--topic-config", "configs", multiple=True, metavar="NAME=VALUE", help="A setting."
)
@click.option("--if-not-exists", is_flag=True, help="A topic that exists already is no error.")
@servers_option
@format_option
def create(
    *,
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    servers: str,
    output_format: str,
) -> int:
    """Create topics. What is not given is the cluster's default.

    Each topic is created separately. The exit code is 0 if all are.

    \b
      raftlog topic create orders -p 6 -c retention.ms=86400000 -c cleanup.policy=compact
    """
    pairs = config_pairs(configs)

    async def create_one(admin: Admin, name: str) -> tuple[TopicDescription, bool]:
        try:
            topic = await admin.create_topic(
                name, partitions=partitions, replication_factor=replicas, configs=pairs
            )
        except ServerError as error:
            if not if_not_exists or error.code != TOPIC_EXISTS.code:
                raise
            return await admin.describe_topic(name), False
        try:
            await _wait_led(admin, topic)
        except asyncio.CancelledError:
            output.message(f"{name} is created; its partitions are still being opened")
            raise
        return topic, True

    outcomes = run(servers, _for_each(servers, names, create_one))
    if output_format == "json":
        output.write_json(
            [
                {**topic_document(outcome.result[0]), "created": outcome.result[1]}
                if outcome.result
                else {**outcome.error_document(), "created": False}
                for outcome in outcomes
            ]
        )
    for outcome in outcomes:
        if outcome.result and output_format != "json":
            topic, is_new = outcome.result
            verb = "created" if is_new else "exists already"
            count = output.counted(len(topic.partitions), "partition")
            output.message(f"{topic.name} {verb}: {count}")
        outcome.show_error(is_only=len(outcomes) == 1)
    return _exit_code(outcomes)


@click.command()
@servers_option
@format_option
def list_topics(servers: str, output_format: str) -> None:
    """List the topics with their numbers of partitions and replicas."""

    topics = sorted(
        ask(servers, lambda admin: admin.describe_topics()), key=lambda topic: topic.name
    )
    rows = [
        (
            topic.name,
            len(topic.partitions),
            max((len(partition.replicas) for partition in topic.partitions), default=0),
        )
        for topic in topics
    ]
    if output_format == "json":
        fields = ("name", "partitions", "replicas")
        output.write_json([dict(zip(fields, row, strict=True)) for row in rows])
    elif rows:
        output.write_table(("name", "partitions", "replicas"), rows)
    else:
        output.message("There are no topics yet; `raftlog topic create NAME` makes one.")


@click.command()
@click.argument("name", metavar="TOPIC")
@click.option(
    "-s", "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Set a setting to a value."
)
@click.option(
    "-d",
    "--delete",
    "unset",
    multiple=True,
    metavar="NAME",
    help="Return a setting to the default.",
)
@servers_option
@format_option
def alter_config(
    name: str, changes: tuple[str, ...], unset: tuple[str, ...], servers: str, output_format: str
) -> None:
    """Change a topic's settings, all or none of those given.

    \b
      raftlog topic alter-config orders --set retention.ms=3600000 --delete cleanup.policy
    """
    pairs = config_pairs(changes)
    if not pairs and not unset:
        raise click.UsageError("say what to change: --set NAME=VALUE or --delete NAME")

    ask(servers, lambda admin: admin.alter_configs(name, pairs, unset=unset))
    if output_format == "json":
        output.write_json({"name": name, "set": pairs, "deleted": list(unset)})
    else:
        output.message(f"{name}: {output.counted(len(pairs) + len(unset), 'setting')} changed")


@click.command()
@click.argument("name", metavar="TOPIC")
@click.option(
    "-n",
    "--num",
    type=click.IntRange(1, 10_000),
    required=True,
    help="Number of partitions to add.",
)
@servers_option
@format_option
def add_partitions(name: str, num: int, servers: str, output_format: str) -> None:
    """Give a topic more partitions. Keys may then map to other partitions than before."""

    async def add() -> int:
        async with Admin(bootstrap_servers=servers) as admin:
            total = len((await admin.describe_topic(name)).partitions) + num
            await admin.create_partitions(name, total)
            return total

    total = run(servers, add())
    if output_format == "json":
        output.write_json({"name": name, "partitions": total})
    else:
        output.message(f"{name} has {output.counted(total, 'partition')} now")


@click.command(epilog=f"Positions: {POSITION_HELP}")
@click.argument("name", metavar="TOPIC")
@position_option(
    "-o", "--offset", required=True, help="The first record to keep, as a position (see below)."
)
@click.option("-p", "--partitions", metavar="0,2-5", help="Only these partitions.")
@click.option("--no-confirm", is_flag=True, help="Do not prompt. Needed without a terminal.")
@servers_option
@format_option
def trim_prefix(
    *,
    name: str,
    offset: Position,
    partitions: str | None,
    no_confirm: bool,
    servers: str,
    output_format: str,
) -> None:
    """Delete the records of a topic before a position, for good.

    \b
      raftlog topic trim-prefix orders --offset @2026-01-01 --no-confirm
    """
    wanted = None if partitions is None else partition_numbers(partitions)
    output.confirm(
        f"Delete the records of {name} before {offset}?",
        no_confirm,
        danger="this deletes records for good",
    )

    async def trim() -> dict[TopicPartition, int]:
        async with (
            Admin(bootstrap_servers=servers) as admin,
            Consumer[bytes, bytes](bootstrap_servers=servers) as consumer,
        ):
            until = await resolve(admin, consumer, [name], wanted, offset)
            return await admin.delete_records(until)

    starts = run(servers, trim())
    rows = [(partition.partition, start) for partition, start in sorted(starts.items())]
    if output_format == "json":
        fields = ("partition", "beginning_offset")
        output.write_json(
            {"name": name, "partitions": [dict(zip(fields, row, strict=True)) for row in rows]}
        )
    else:
        output.write_table(("partition", "beginning"), rows)


@click.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="A topic that does not exist is no error.")
@servers_option
@format_option
def delete(names: tuple[str, ...], if_exists: bool, servers: str, output_format: str) -> int:
    """Delete topics with all their records, for good, without a prompt.

    Each topic is deleted separately. The exit code is 0 if all are.
    """

    async def delete_one(admin: Admin, name: str) -> bool:
        try:
            await admin.delete_topic(name)
        except ServerError as error:
            if not if_exists or error.code != UNKNOWN_TOPIC.code:
                raise
            return False
        return True

    outcomes = run(servers, _for_each(servers, names, delete_one))
    if output_format == "json":
        output.write_json(
            {
                "deleted": [outcome.name for outcome in outcomes if outcome.result],
                "failed": [
                    outcome.error_document() for outcome in outcomes if outcome.error is not None
                ],
            }
        )
    for outcome in outcomes:
        if outcome.result and output_format != "json":
            output.message(f"{outcome.name} deleted")
        outcome.show_error(is_only=len(outcomes) == 1)
    return _exit_code(outcomes)


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[_Result]):
    """The outcome of one of several topics of a command."""

    name: str
    result: _Result | None = None
    error: CommandError | None = None
    error_code: int | None = None
    """The node's code of the error, if a node responded."""

    def error_document(self) -> dict[str, Any]:
        assert self.error is not None
        return {"name": self.name, "error_code": self.error_code, "message": self.error.message}

    def show_error(self, *, is_only: bool) -> None:
        """Write the error, if any, to stderr, with its topic if there are others."""
        if self.error is None:
            return
        if is_only:
            self.error.show()
        else:
            output.message(f"raftlog: {self.name}: {self.error.message}")


async def _for_each(
    servers: str, names: Sequence[str], act: Callable[[Admin, str], Awaitable[_Result]]
) -> list[_Outcome[_Result]]:
    """Do one thing to each topic, in order, whatever becomes of the others.

    After an error of the cluster instead of a topic, the rest is not tried, as each would wait as
    long.
    """
    outcomes: list[_Outcome[_Result]] = []
    async with Admin(bootstrap_servers=servers) as admin:
        for name in names:
            try:
                outcomes.append(_Outcome(name, await act(admin, name)))
            except RaftlogClientError as error:
                code = error.code if isinstance(error, ServerError) else None
                shown = explained(servers, error)
                outcomes.append(_Outcome(name, error=shown, error_code=code))
                if error.retriable or code is None:
                    break
    not_tried = CommandError("not tried", code=ExitCode.UNREACHABLE)
    return outcomes + [_Outcome(name, error=not_tried) for name in names[len(outcomes) :]]


def _exit_code(outcomes: Sequence[_Outcome[Any]]) -> int:
    """The code of all errors if they agree, else FAILED."""
    codes = {outcome.error.code for outcome in outcomes if outcome.error is not None}
    if not codes:
        return ExitCode.OK
    return codes.pop() if len(codes) == 1 else ExitCode.FAILED


async def _wait_led(admin: Admin, topic: TopicDescription) -> None:
    """Wait until the leaders of a large topic serve, and show the progress.

    The wait is bounded. The topic is created in any case, also after Ctrl-C.
    """
    count = len(topic.partitions)
    if count < LARGE_TOPIC_PARTITIONS:
        return
    deadline = time.monotonic() + LEADERS_PATIENCE_S
    while True:
        started = time.monotonic()
        try:
            states = await admin.describe_replicas(topic.name)
        except RaftlogClientError as error:
            # Silent nodes are no failure of the creation.
            if not error.retriable:
                raise
            states = {}
        led = sum(state.high_watermark is not None for state in states.values())
        if led == count:
            return
        progress = f"{topic.name}: creating: {led} of {count} partitions have a leader"
        if time.monotonic() > deadline:
            output.message(f"{progress}; `raftlog cluster health` tells when all have")
            return
        output.message(progress)
        # A response has all partitions, and the nodes have more urgent work.
        await asyncio.sleep(max(1.0, 5 * (time.monotonic() - started)))


def topic_document(topic: TopicDescription) -> dict[str, Any]:
    """A topic's metadata as JSON."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
            }
            for partition in topic.partitions
        ],
    }
