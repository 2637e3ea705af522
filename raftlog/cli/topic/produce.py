"""`raftlog topic produce` writes records from stdin or files, in constant memory."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import click
from raftlog_client import Producer, RaftlogClientError, SendManyError, SendSummary

from raftlog.cli.common import output
from raftlog.cli.common.errors import CommandError, ExitCode
from raftlog.cli.common.options import (
    acks_option,
    acks_value,
    compression_option,
    format_option,
    servers_option,
)
from raftlog.cli.common.output import MEGABYTE, Transfer
from raftlog.cli.common.session import explained, run
from raftlog.cli.topic.inputs import STDIN, Feed, closing_source
from raftlog.cli.topic.records import (
    REQUEST_BYTES_MAX,
    BadLineError,
    CsvLines,
    CsvParser,
    RecordOptions,
    RecordReader,
    envelope_parser,
    json_parser,
    text_parser,
)

SKIPPED_REPORTED_MAX = 10
"""Bad lines with a message each. The rest are only counted."""


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option(
    "-i",
    "--input",
    "input_format",
    type=click.Choice(["lines", "ndjson", "csv"]),
    default="lines",
    help="What the input is made of.",
)
@click.option("-k", "--key", help="Key of every record without a key.")
@click.option("--key-separator", metavar="TEXT", help="lines: the key stands before this.")
@click.option("--key-field", metavar="NAME", help="ndjson, csv: field that holds the key.")
@click.option(
    "--timestamp-field",
    metavar="NAME",
    help="ndjson, csv: field that holds the time, in ms since 1970 or as ISO-8601.",
)
@click.option("--envelope", is_flag=True, help="ndjson: each line is a whole record.")
@click.option("--delimiter", default=",", help="csv: between fields.")
@click.option("--infer-types", is_flag=True, help="csv: numbers, true, false, empty → JSON types.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header.")
@click.option("-Z", "--tombstone", is_flag=True, help="An empty value deletes its key (null).")
@click.option("-p", "--partition", type=click.IntRange(0), help="Write to this partition.")
@click.option("--skip-bad", is_flag=True, help="Count lines that are no records, and continue.")
@acks_option("Replicas that acknowledge a record (all in sync, the leader, or none).")
@compression_option("Of each batch.")
@click.option(
    "--batch-bytes",
    type=click.IntRange(1_024, REQUEST_BYTES_MAX),
    default=512 * 1024,
    help="Largest batch.",
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(0, 60_000),
    default=5,
    help="How long a batch may wait for more records.",
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Write the whole input in one transaction, of which all or nothing is seen.",
)
@click.option(
    "--transaction-timeout-ms",
    type=click.IntRange(1, 2**31 - 1),
    default=60_000,
    help="A transaction that takes longer is aborted.",
)
@servers_option
@format_option
def produce(
    *,
    topic: str,
    files: tuple[str, ...],
    acks: str,
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"],
    batch_bytes: int,
    linger_ms: float,
    transactional_id: str | None,
    transaction_timeout_ms: int,
    servers: str,
    output_format: str,
    **input_options: Any,
) -> int:
    """Write records to a topic, from FILEs or from stdin (also `-`).

    \b
    lines   each line is a value, or with --key-separator a key and a value
    ndjson  each line is a JSON value, kept byte for byte, or with --envelope a record:
            {"key":…, "value":…, "headers":[{"key":…,"value":…}], "timestamp":…}
            (what `raftlog topic consume --format json` prints)
    csv     the first row names the fields, and each further row becomes a JSON object

    A bad line ends the run. The records before it are written, none after it, and the message names
    it. Records with equal keys go to one partition, in the order of the input.

    With --transactional-id a bad line, a failure or Ctrl-C aborts the transaction, and readers of
    committed records see none of the input. An earlier producer of the id is fenced.

    \b
      tail -F app.log | raftlog topic produce logs
      raftlog topic produce orders orders.csv -i csv --key-field id --timestamp-field created
      raftlog topic consume a --format json | raftlog topic produce b -i ndjson --envelope
    """
    _check_usage(**input_options)
    if transactional_id is not None and acks != "all":
        raise click.UsageError("--transactional-id needs --acks all")
    reader = _reader(**input_options)
    producer = Producer(
        bootstrap_servers=servers,
        acks=acks_value(acks),
        compression=compression,
        batch_bytes_max=batch_bytes,
        request_bytes_max=REQUEST_BYTES_MAX,
        linger_ms=linger_ms,
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
    )
    paths = files or (STDIN,)
    as_json = output_format == "json"
    send = _send_all if transactional_id is None else _send_in_transaction
    return run(
        servers, _produce(topic, paths, reader, producer, send, servers=servers, as_json=as_json)
    )


def _reader(
    *,
    input_format: str,
    key: str | None,
    key_separator: str | None,
    key_field: str | None,
    timestamp_field: str | None,
    envelope: bool,
    delimiter: str,
    infer_types: bool,
    headers: tuple[str, ...],
    tombstone: bool,
    partition: int | None,
    skip_bad: bool,
) -> Callable[[], RecordReader]:
    """Return a function that makes the reader of a file."""
    options = RecordOptions(
        partition=partition,
        key=None if key is None else key.encode(),
        headers=_headers(headers),
        tombstone_for_empty=tombstone,
        key_field=key_field,
        timestamp_field=timestamp_field,
    )

    def reader() -> RecordReader:
        if input_format == "csv":
            csv_parser = CsvParser(options, delimiter=delimiter, infer_types=infer_types)
            return RecordReader(csv_parser.parse, skip_bad=skip_bad, csv_lines=CsvLines())
        if input_format == "ndjson":
            parser = envelope_parser(options) if envelope else json_parser(options)
        else:
            parser = text_parser(options, None if key_separator is None else key_separator.encode())
        return RecordReader(parser, skip_bad=skip_bad)

    return reader


async def _send_all(producer: Producer, topic: str, feed: Feed) -> SendSummary:
    return await producer.send_many(topic, feed.records())


class _IncompleteInputError(Exception):
    """The input ended before its end, so its transaction must not be committed."""


def _check_complete(feed: Feed) -> None:
    if feed.error is not None or feed.is_stopped:
        raise _IncompleteInputError


async def _send_in_transaction(producer: Producer, topic: str, feed: Feed) -> SendSummary:
    """Send the whole input in one transaction. Nothing is sent of an input that is cut short."""
    try:
        async with producer.transaction():
            summary = await producer.send_many(topic, feed.records())
            _check_complete(feed)
    except _IncompleteInputError:
        return SendSummary()
    except SendManyError as error:
        # All of them are aborted, also the acknowledged records.
        raise SendManyError(
            str(error),
            summary=SendSummary(),
            failed_count=error.failed_count + error.summary.count,
            outcome_unknown=False,
        ) from error.__cause__
    return summary


async def _produce(
    topic: str,
    paths: Sequence[str],
    reader: Callable[[], RecordReader],
    producer: Producer,
    send: Callable[[Producer, str, Feed], Awaitable[SendSummary]],
    *,
    servers: str,
    as_json: bool,
) -> int:
    failure: SendManyError | None = None
    with ExitStack() as stack:
        sources = [stack.enter_context(closing_source(path)) for path in paths]
        sizes = [source.size_bytes for source in sources if source.size_bytes is not None]
        transfer = stack.enter_context(
            Transfer(
                topic,
                total_bytes=sum(sizes) if len(sizes) == len(sources) else None,
                # A bar would disturb typed input.
                is_shown=not any(source.is_terminal for source in sources),
            )
        )
        feed = Feed(sources, reader, transfer, on_skipped=_report_skipped)
        stack.enter_context(_ends_on_interrupt(feed))
        async with producer:
            try:
                summary = await send(producer, topic, feed)
            except SendManyError as error:
                failure, summary = error, error.summary
    _report(topic, summary, feed, as_json)
    if failure is not None:
        raise _send_failure(servers, failure)
    if feed.error is not None:
        hint = (
            "The transaction is aborted: nothing is written. Mend the line, or use --skip-bad."
            if send is _send_in_transaction
            else f"What stands before it is written ({output.counted(summary.count, 'record')}). "
            "Mend the line and go on from it, or use --skip-bad."
        )
        raise CommandError(str(feed.error), hint=hint, code=ExitCode.USAGE)
    return ExitCode.INTERRUPTED if feed.is_stopped else ExitCode.OK


def _report_skipped(error: BadLineError, count: int) -> None:
    if count <= SKIPPED_REPORTED_MAX:
        output.message(f"raftlog: skipped {error}")
    elif count == SKIPPED_REPORTED_MAX + 1:
        output.message("raftlog: further lines that are skipped are only counted")


@contextmanager
def _ends_on_interrupt(feed: Feed) -> Iterator[None]:
    """End the input at the first Ctrl-C, and abort at the second.

    The lines read before the first are still sent.
    """
    loop = asyncio.get_running_loop()

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        feed.stop()

    # The loop's handler wakes the loop, but runs in a later turn. Ctrl-C also ends the program
    # before a pipe, and the end of its unfinished output must not come first.
    loop.add_signal_handler(signal.SIGINT, feed.stop)
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _report(topic: str, summary: SendSummary, feed: Feed, as_json: bool) -> None:
    seconds = feed.transfer.seconds
    if as_json:
        output.write_json(
            {
                "topic": topic,
                "records": summary.count,
                "skipped": feed.skipped,
                "bytes_read": feed.transfer.bytes,
                "seconds": round(seconds, 3),
                "partitions": [
                    {
                        "partition": place.partition,
                        "records": written.count,
                        "first_offset": written.first_offset,
                        "last_offset": written.last_offset,
                    }
                    for place, written in sorted(summary.partitions.items())
                ],
            }
        )
        return
    rate = feed.transfer.bytes / MEGABYTE / max(seconds, 0.001)
    skipped = f", {output.counted(feed.skipped, 'line')} skipped" if feed.skipped else ""
    speed = f"in {seconds:.1f} s ({rate:.1f} MB/s)"
    output.message(f"{output.counted(summary.count, 'record')} written to {topic} {speed}{skipped}")


def _send_failure(servers: str, failure: SendManyError) -> CommandError:
    cause = failure.__cause__
    known = explained(servers, cause if isinstance(cause, RaftlogClientError) else failure)
    fate = "may or may not be" if failure.outcome_unknown else "are not"
    counts = f"{failure.summary.count:,} records are written, {failure.failed_count:,} {fate}"
    return CommandError(f"{known.message}; {counts}", hint=known.hint, code=known.code)


def _headers(words: Sequence[str]) -> tuple[tuple[str, bytes | None], ...]:
    headers: list[tuple[str, bytes | None]] = []
    for word in words:
        name, separator, value = word.partition("=")
        if not (separator and name):
            raise click.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--header")
        headers.append((name, value.encode()))
    return tuple(headers)


def _check_usage(
    *,
    input_format: str,
    key_separator: str | None,
    key_field: str | None,
    timestamp_field: str | None,
    envelope: bool,
    delimiter: str,
    infer_types: bool,
    **_others: Any,
) -> None:
    """Reject options of the input that are ignored, exclude each other or are invalid."""
    options_of: dict[str, dict[str, object]] = {
        "lines": {"--key-separator": key_separator},
        "fields": {"--key-field": key_field, "--timestamp-field": timestamp_field},
        "ndjson": {"--envelope": envelope},
        "csv": {"--infer-types": infer_types, "--delimiter": delimiter != ","},
    }
    allowed = {"lines": ("lines",), "ndjson": ("ndjson", "fields"), "csv": ("csv", "fields")}
    for group, options in options_of.items():
        for flag, value in options.items():
            if value and group not in allowed[input_format]:
                formats = " or ".join(name for name, groups in allowed.items() if group in groups)
                raise click.UsageError(f"{flag} is for --input {formats}")
    if envelope and (key_field or timestamp_field):
        raise click.UsageError("an --envelope has its own key and timestamp: drop the --…-field")
    if key_separator == "" or len(delimiter) != 1:
        raise click.UsageError("a separator cannot be empty, and a csv delimiter is one character")
