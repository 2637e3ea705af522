"""`raftlog txn` lists, describes and aborts transactions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click
import msgspec
from raftlog_client import Admin, ServerError, TopicNotFoundError, TopicPartition

from raftlog.cli.common import output
from raftlog.cli.common.names import transactional_id_argument
from raftlog.cli.common.options import format_option, iso_time, servers_option
from raftlog.cli.common.session import ask, run
from raftlog.record.errors import UNKNOWN_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raftlog_client import PartitionOffsets, TransactionDescription

DESCRIBED_AT_ONCE: Final = 16
OFFSETS_PATIENCE_MS: Final = 2_000
"""Time limit for the offsets of partitions without a leader."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A partition whose readers of committed records wait for the end of a transaction."""

    topic: str
    partition: int
    last_stable_offset: int
    high_watermark: int
    waiting: int
    """Records, markers included, from the last stable offset on."""
    transactional_id: str | None
    """Transaction that holds the partition back. None if no coordinator knows an open transaction
    here."""
    state: str | None
    open_ms: int | None
    timeout_ms: int | None


@click.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only open transactions.")
@click.option(
    "--held-back", is_flag=True, help="The partitions held back, by which transaction, how long."
)
@click.option("-t", "--topic", "topics", multiple=True, metavar="NAME", help="With --held-back.")
@servers_option
@format_option
def list_transactions(
    *, only_open: bool, held_back: bool, topics: tuple[str, ...], servers: str, output_format: str
) -> None:
    """List transactional ids, those with the longest open transaction first.

    A hung producer shows by a long OPEN. A fenced producer has an older EPOCH than the shown EPOCH,
    which its successor has. --held-back shows each partition with a last stable offset behind its
    end, so that readers of committed records wait, and the transaction that holds it back.

    \b
      raftlog txn list --open
      raftlog txn list --held-back --topic orders
    """
    if topics and not held_back:
        raise click.UsageError("--topic goes with --held-back")
    if held_back and only_open:
        raise click.UsageError("--held-back shows open transactions only: drop --open")
    if held_back:
        _show_held_back(servers, topics, output_format)
        return

    found = ask(servers, lambda admin: admin.list_transactions())
    rows = sorted(
        (row for row in found.transactions if is_open(row.state) or not only_open),
        key=lambda row: (not is_open(row.state), -row.open_ms, row.transactional_id),
    )
    if output_format == "json":
        document = msgspec.structs.replace(found, transactions=rows)
        output.write_json(msgspec.to_builtins(document))
    elif rows:
        output.write_table(
            ("transactional id", "state", "open", "producer id", "epoch", "coordinator"),
            [
                (
                    row.transactional_id,
                    row.state,
                    duration(row.open_ms) if is_open(row.state) else None,
                    row.producer_id,
                    row.producer_epoch,
                    row.coordinator,
                )
                for row in rows
            ],
        )
    elif not found.incomplete:
        output.message(f"There are no {'open transactions' if only_open else 'transactional ids'}.")
    _report_incomplete(found.incomplete)


@click.command()
@transactional_id_argument
@servers_option
@format_option
def describe(transactional_id: str, servers: str, output_format: str) -> None:
    """Show the producer, the open transaction and the held-back partitions of an id."""

    async def find() -> tuple[TransactionDescription, dict[TopicPartition, PartitionOffsets]]:
        async with Admin(bootstrap_servers=servers) as admin:
            description = await admin.describe_transaction(transactional_id)
            return description, await _offsets(
                admin, {partition.topic for partition in description.partitions}
            )

    found, offsets = run(servers, find())
    rows = [
        (
            partition.topic,
            partition.partition,
            offsets.get(TopicPartition(partition.topic, partition.partition)),
        )
        for partition in found.partitions
    ]
    if output_format == "json":
        document = msgspec.to_builtins(found)
        document["partitions"] = [
            {
                "topic": topic,
                "partition": partition,
                "last_stable_offset": known and known.last_stable_offset,
                "high_watermark": known and known.high_watermark,
            }
            for topic, partition, known in rows
        ]
        output.write_json(document)
        return
    click.echo(
        f"{found.transactional_id}  (state {found.state}, producer id {found.producer_id}, "
        f"epoch {found.producer_epoch}, coordinator {found.coordinator})"
    )
    if is_open(found.state):
        click.echo(
            f"  open for {duration(found.open_ms)}, since {iso_time(found.started_ms)}; "
            f"{_fate(found)}"
        )
    elif found.last_update_ms >= 0:
        click.echo(f"  no open transaction; last update {iso_time(found.last_update_ms)}")
    if rows:
        click.echo()
        output.write_table(
            ("topic", "partition", "last stable", "end", "waiting"),
            [
                (
                    topic,
                    partition,
                    known and known.last_stable_offset,
                    known and known.high_watermark,
                    known and known.high_watermark - known.last_stable_offset,
                )
                for topic, partition, known in rows
            ],
        )


@click.command()
@transactional_id_argument
@click.option("--no-confirm", is_flag=True, help="Do not prompt. Needed without a terminal.")
@servers_option
@format_option
def abort(transactional_id: str, no_confirm: bool, servers: str, output_format: str) -> None:
    """Abort the open transaction of an id, and fence its producer.

    Its records are never seen by readers of committed records. A prepared transaction is also
    aborted. Make sure that its other participants do not commit.
    """
    output.confirm(
        f"Abort the open transaction of {transactional_id}, and fence its producer?",
        no_confirm,
        danger="this drops the records of a transaction for good",
    )

    ask(servers, lambda admin: admin.abort_transaction(transactional_id))
    if output_format == "json":
        output.write_json({"aborted": transactional_id})
    else:
        output.message(f"{transactional_id}: aborted; its producer is fenced")


def _show_held_back(servers: str, topics: Sequence[str], output_format: str) -> None:
    async def find() -> tuple[list[HeldBack], list[str]]:
        async with Admin(bootstrap_servers=servers) as admin:
            listed = await admin.list_transactions()
            wanted = list(dict.fromkeys(topics)) or await admin.list_topics()
            # The transactions are first, so that a transaction which has ended by now holds nothing
            # back.
            descriptions = await _describe(
                admin,
                [
                    transaction.transactional_id
                    for transaction in listed.transactions
                    if is_open(transaction.state)
                ],
            )
            offsets = await admin.offsets(wanted, at_hand_after_ms=OFFSETS_PATIENCE_MS)
            return held_back_rows(descriptions, offsets), listed.incomplete

    rows, incomplete = run(servers, find())
    if output_format == "json":
        output.write_json({"partitions": msgspec.to_builtins(rows), "incomplete": incomplete})
    elif rows:
        output.write_table(
            (
                *("topic", "partition", "last stable", "end", "waiting"),
                *("transactional id", "state", "open", "timeout"),
            ),
            [
                (
                    row.topic,
                    row.partition,
                    row.last_stable_offset,
                    row.high_watermark,
                    row.waiting,
                    row.transactional_id or "unknown",
                    row.state,
                    None if row.open_ms is None else duration(row.open_ms),
                    None if row.timeout_ms is None else duration(row.timeout_ms),
                )
                for row in rows
            ],
        )
        output.message("`raftlog txn abort ID` ends one, and fences its producer")
    else:
        output.message("No transaction holds a partition back.")
    _report_incomplete(incomplete)


def held_back_rows(
    descriptions: Iterable[TransactionDescription], offsets: dict[TopicPartition, PartitionOffsets]
) -> list[HeldBack]:
    """The partitions that open transactions hold back, longest open first.

    A partition with several open transactions has a row for each. A partition that is held back
    without a transaction of any coordinator also has a row. Its transaction has just ended, or
    hangs.
    """
    open_at: dict[TopicPartition, list[TransactionDescription]] = {}
    for description in descriptions:
        for partition in description.partitions:
            open_at.setdefault(TopicPartition(partition.topic, partition.partition), []).append(
                description
            )
    rows: list[HeldBack] = []
    for place, known in offsets.items():
        waiting = known.high_watermark - known.last_stable_offset
        if waiting <= 0:
            continue
        row = HeldBack(
            topic=place.topic,
            partition=place.partition,
            last_stable_offset=known.last_stable_offset,
            high_watermark=known.high_watermark,
            waiting=waiting,
            transactional_id=None,
            state=None,
            open_ms=None,
            timeout_ms=None,
        )
        rows += [
            replace(
                row,
                transactional_id=transaction.transactional_id,
                state=transaction.state,
                open_ms=transaction.open_ms,
                timeout_ms=transaction.timeout_ms,
            )
            for transaction in open_at.get(place, ())
        ] or [row]
    return sorted(rows, key=lambda row: (-(row.open_ms or 0), row.topic, row.partition))


async def _describe(admin: Admin, ids: Sequence[str]) -> list[TransactionDescription]:
    """Describe transactions, some at once. Forgotten transactions are left out."""

    async def one(transactional_id: str) -> TransactionDescription | None:
        try:
            return await admin.describe_transaction(transactional_id)
        except ServerError as error:
            if error.entry is not UNKNOWN_TRANSACTION:
                raise
            return None

    found: list[TransactionDescription] = []
    for start in range(0, len(ids), DESCRIBED_AT_ONCE):
        answers = await asyncio.gather(*map(one, ids[start : start + DESCRIBED_AT_ONCE]))
        found += [answer for answer in answers if answer is not None]
    return found


async def _offsets(admin: Admin, topics: set[str]) -> dict[TopicPartition, PartitionOffsets]:
    """The offsets of these topics. A topic that was just deleted is left out."""
    found: dict[TopicPartition, PartitionOffsets] = {}
    for topic in sorted(topics):
        try:
            found |= await admin.offsets([topic], at_hand_after_ms=OFFSETS_PATIENCE_MS)
        except TopicNotFoundError:
            continue
    return found


def is_open(state: str) -> bool:
    """Whether a transaction in this state holds partitions back."""
    return state in {"ongoing", "prepared", "prepare-commit", "prepare-abort"}


def duration(ms: int) -> str:
    """`1.234s`, `2m05s`, `3h20m`."""
    seconds, rest_ms = divmod(max(ms, 0), 1000)
    if seconds < 60:
        return f"{seconds}.{rest_ms:03d}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def _fate(found: TransactionDescription) -> str:
    if found.state == "ongoing":
        return f"aborted after {duration(found.timeout_ms)} without an end"
    if found.state == "prepared":
        return "prepared: it waits for its commit or abort"
    return "decided: its markers are being written"


def _report_incomplete(reasons: Sequence[str]) -> None:
    for reason in reasons:
        output.message(f"raftlog: the list is incomplete: {reason}")
