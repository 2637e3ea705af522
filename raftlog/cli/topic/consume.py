"""`raftlog topic consume` prints the records of topics."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

import click
from raftlog_client import Admin, Consumer, TopicPartition

from raftlog.cli.common import output
from raftlog.cli.common.offsets import (
    EARLIEST,
    LATEST,
    POSITION_HELP,
    Anchor,
    Position,
    position_option,
    resolve,
)
from raftlog.cli.common.options import partition_numbers, servers_option
from raftlog.cli.common.session import run
from raftlog.cli.topic.template import (
    TEMPLATE_HELP,
    BytesRecord,
    Formatter,
    json_formatter,
    template_formatter,
    text_formatter,
)
from raftlog.record.errors import OFFSET_OUT_OF_RANGE, LogError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftlog.api.records import Isolation

POLL_TIMEOUT_MS = 500
RECORDS_PER_WRITE_MAX = 10_000
"""Records of one write. They bound the memory of the write, and the delay of Ctrl-C."""
COMMIT_INTERVAL_MS = 1_000
"""Milliseconds between two commits of a member, for the records that it has written."""
UNASSIGNED_S_MAX = 15.0
"""Seconds without partitions after which a member ends, unless it follows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The range of records to read."""

    servers: str
    topics: Sequence[str]
    partitions: Sequence[int] | None
    start: Position
    until: Position | None
    """Position to stop at, or None to follow the topic."""
    count_max: int | None
    formatter: Formatter
    isolation: Isolation
    group: str | None


@click.command(epilog=f"Positions: {POSITION_HELP}\n\nTemplates: {TEMPLATE_HELP}")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@position_option("-o", "--offset", "--from", "start", default="earliest", help="Where to start.")
@position_option("-u", "--until", help="Where to stop, before the present end.")
@click.option("-f", "--follow", is_flag=True, help="Do not stop at the end, but wait for more.")
@click.option("-n", "--count", type=click.IntRange(0), help="Stop after so many records.")
@click.option("-p", "--partition", "partitions", metavar="0,2-5", help="Only these partitions.")
@click.option("-g", "--group", help="Read as a member of this consumer group, and commit.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="Whether to leave out records of transactions that are open or aborted.",
)
@click.option(
    "--format",
    "output_format",
    default="text",
    metavar="text|json|TEMPLATE",
    help="text for values as lines, json for a record per line, or a template.",
)
@click.option("-k", "--print-key", is_flag=True, help="text: key and value.")
@click.option(
    "--key-separator", default="\t", show_default="tab", help="text: between key and value."
)
@servers_option
def consume(
    *,
    topics: tuple[str, ...],
    start: Position,
    until: Position | None,
    follow: bool,
    count: int | None,
    partitions: str | None,
    group: str | None,
    isolation: Isolation,
    output_format: str,
    print_key: bool,
    key_separator: str,
    servers: str,
) -> None:
    """Print the records of one or more topics.

    The output ends where the topic ends at the start of the command, so that pipes also end.
    --follow waits for new records, and so does starting at `latest`, where there is nothing yet.
    Records of one partition come in order. Those of several are mixed as they arrive.

    With --group the members of the group share the partitions. Each continues from the group's
    committed offset. --offset earliest or latest is for partitions without a committed offset.
    Offsets are committed after their records were written, so each record is printed at least once.

    \b
      raftlog topic consume orders | jq .total
      raftlog topic consume orders --follow --format '%d{iso} %k %v\\n'
      raftlog topic consume orders --offset @2026-01-01 --until @2026-01-02 --format json
      raftlog topic consume orders --from @-1h --count 100
      raftlog topic consume orders --offset -10 --partition 0
      raftlog topic consume orders --group billing --follow

    \b
    json prints topic, partition, offset, timestamp (ms), key, value and headers. Bytes that are not
    UTF-8 are base64 there, with "value_encoding":"base64" (or key_encoding) beside them.
    """
    if follow and until is not None:
        raise click.UsageError("--follow never stops, so it cannot be combined with --until")
    if group is not None:
        if until is not None or partitions is not None:
            raise click.UsageError("--group goes without --until and --partition")
        if start not in (EARLIEST, LATEST):
            raise click.UsageError(
                "--group begins at committed offsets (`raftlog group seek` sets them): --offset is "
                "earliest or latest then"
            )
    elif start == LATEST and until is None:
        follow = True
    plan = Plan(
        servers=servers,
        topics=list(dict.fromkeys(topics)),
        partitions=None if partitions is None else partition_numbers(partitions),
        start=start,
        until=None if follow else (until or LATEST),
        count_max=count,
        formatter=_formatter(output_format, print_key, key_separator),
        isolation=isolation,
        group=group,
    )
    run(servers, _consume(plan) if group is None else _consume_in_group(plan))


def _formatter(output_format: str, print_key: bool, key_separator: str) -> Formatter:
    if output_format == "text":
        return text_formatter(print_key=print_key, key_separator=key_separator.encode())
    if print_key:
        raise click.UsageError("--print-key is for --format text; json has the key, templates %k")
    if output_format == "json":
        return json_formatter
    if "%" not in output_format and "\\" not in output_format:
        raise click.BadParameter(
            f"{output_format!r} is neither text, json nor a template like '%k %v\\n'",
            param_hint="--format",
        )
    try:
        return template_formatter(output_format)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error


async def _consume(plan: Plan) -> None:
    async with (
        Admin(bootstrap_servers=plan.servers) as admin,
        Consumer[bytes | None, bytes | None](
            bootstrap_servers=plan.servers, auto_offset_reset="none", isolation=plan.isolation
        ) as consumer,
    ):
        where = (plan.topics, plan.partitions)
        isolation = plan.isolation
        starts = await resolve(admin, consumer, *where, plan.start, isolation=isolation)
        ends: dict[TopicPartition, int] | None = None
        if plan.until is not None:
            if plan.start.anchor is Anchor.OFFSET:
                _check_start(plan.start, await resolve(admin, consumer, *where, LATEST))
            # The end of an open transaction is not waited for.
            present = await resolve(admin, consumer, *where, LATEST, isolation=isolation)
            until = await resolve(admin, consumer, *where, plan.until, isolation=isolation)
            # Records that a partition does not have yet are not waited for.
            ends = {place: min(end, present[place]) for place, end in until.items()}
            starts = {place: start for place, start in starts.items() if start < ends[place]}
        consumer.assign(starts)
        for place, offset in starts.items():
            consumer.seek(place, offset)
        reading = _Reading(consumer, plan, ends)
        await reading.run(set(starts))


def _check_start(start: Position, ends: dict[TopicPartition, int]) -> None:
    """Check that the start is not beyond the end of all partitions.

    One partition may be shorter than another, but an offset beyond all of them is a mistake.
    """
    place, end = max(ends.items(), key=lambda item: item[1])
    if start.amount > end:
        where = f"{place.topic} partition {place.partition} ends at {end}"
        raise LogError(
            OFFSET_OUT_OF_RANGE, f"Offset {start.amount} is beyond every partition's end; {where}."
        )


async def _consume_in_group(plan: Plan) -> None:
    assert plan.group is not None
    async with (
        Admin(bootstrap_servers=plan.servers) as admin,
        Consumer[bytes | None, bytes | None](
            bootstrap_servers=plan.servers,
            client_id="raftlog-cli",
            group_id=plan.group,
            auto_commit_interval_ms=COMMIT_INTERVAL_MS,
            auto_offset_reset="earliest" if plan.start == EARLIEST else "latest",
            isolation=plan.isolation,
        ) as consumer,
    ):
        ends: dict[TopicPartition, int] | None = None
        if plan.until is not None:
            ends = await resolve(
                admin, consumer, plan.topics, None, LATEST, isolation=plan.isolation
            )
        await consumer.subscribe(plan.topics)
        left = plan.count_max
        unassigned_since_s = time.monotonic()
        while left != 0:
            fetched = await consumer.getmany(
                timeout_ms=POLL_TIMEOUT_MS,
                max_records=min(left or RECORDS_PER_WRITE_MAX, RECORDS_PER_WRITE_MAX),
            )
            for records in fetched.values():
                # All of them are written, as the next read commits them.
                sys.stdout.buffer.write(plan.formatter(records))
                left = None if left is None else left - len(records)
            if fetched:
                sys.stdout.buffer.flush()
            assigned = consumer.assignment()
            if assigned:
                unassigned_since_s = time.monotonic()
            if fetched or ends is None:
                continue
            if not assigned and time.monotonic() - unassigned_since_s > UNASSIGNED_S_MAX:
                output.message(f"raftlog: other members of {plan.group} have all partitions")
                return
            if assigned and all(
                [await consumer.position(place) >= ends.get(place, 0) for place in assigned]
            ):
                return


class _Reading:
    """The loop that polls, cuts off records past the end or the count, and writes."""

    def __init__(
        self,
        consumer: Consumer[bytes | None, bytes | None],
        plan: Plan,
        ends: dict[TopicPartition, int] | None,
    ) -> None:
        self._consumer = consumer
        self._formatter = plan.formatter
        self._ends = ends
        self._left = plan.count_max

    async def run(self, unfinished: set[TopicPartition]) -> None:
        """Read until every partition has reached its end, or the count is reached."""
        while unfinished and self._left != 0:
            fetched = await self._consumer.getmany(
                timeout_ms=POLL_TIMEOUT_MS, max_records=RECORDS_PER_WRITE_MAX
            )
            for place, records in fetched.items():
                self._write(self._wanted(place, records))
            if fetched:
                # The flush is only between polls, so a pipe's reader sees whole batches, and at
                # once.
                sys.stdout.buffer.flush()
            if self._ends is not None:
                await self._drop_finished(unfinished, fetched or None)

    def _wanted(
        self, place: TopicPartition, records: Sequence[BytesRecord]
    ) -> Sequence[BytesRecord]:
        if self._ends is not None and records[-1].offset >= self._ends[place]:
            cut = bisect_left(records, self._ends[place], key=attrgetter("offset"))
            records = records[:cut]
        if self._left is not None:
            records = list(islice(records, self._left))
            self._left -= len(records)
        return records

    def _write(self, records: Sequence[BytesRecord]) -> None:
        if records:
            sys.stdout.buffer.write(self._formatter(records))

    async def _drop_finished(
        self,
        unfinished: set[TopicPartition],
        fetched: dict[TopicPartition, list[BytesRecord]] | None,
    ) -> None:
        # The last offset before the end may hold no record (compacted, or a marker), so the
        # position decides and not the last record. Partitions without records are examined only
        # after a poll without any, since there may be thousands.
        assert self._ends is not None
        for place in list(unfinished if fetched is None else fetched):
            if await self._consumer.position(place) >= self._ends[place]:
                unfinished.discard(place)
                self._consumer.pause(place)
