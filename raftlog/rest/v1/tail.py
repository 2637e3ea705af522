"""The /v1 tail streams the records of a topic, for people and small programs.

An endless response is sent as Server-Sent Events or as lines of JSON (NDJSON). An event's id is the
position of the reader. It holds `partition:offset` for every partition, separated by commas, and
each offset is that of the next record to read. If a client sends the id back as `Last-Event-ID`,
which browsers do automatically, the tail continues there and repeats nothing. Lines of JSON carry
partition and offset to the same end.

A record that does not fit the format is skipped, with an error event or line in its place (40601).
Any other failure is sent in the same way, and ends the tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api.records import TailError
from raftlog.broker.fetch import Isolation, PartitionHandle
from raftlog.broker.offsets import NamedOffset
from raftlog.http.request import Request, ServerContext, choice_parameter, whole_number
from raftlog.http.responses import negotiate, stream_response, write_pieces
from raftlog.http.routing import QueryParameter, Route
from raftlog.record.codec import Record
from raftlog.record.errors import (
    BAD_REQUEST,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_ID,
    UNSUPPORTED_FORMAT,
    LogError,
)
from raftlog.record.types import Offset, PartitionId
from raftlog.rest.json.records import BatchReader, RecordFormat, record_answer
from raftlog.rest.v1.offsets import partition_list
from raftlog.rest.v2.topics import (
    ISOLATION_QUERY,
    OFFSET_HELP,
    READ_ERRORS,
    isolation_parameter,
    parse_offset,
)

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
_OFFERED = (NDJSON, SSE, "application/jsonl")
TAIL_READ_BYTES: Final = 64 * 1024
"""Bytes read of one partition at a time. This node holds about as many for a slow reader."""
TAIL_PARTITIONS_MAX: Final = 256
"""Partitions of one tail, because an event's id names them all."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class TailPosition:
    """Progress of the tail in one partition."""

    partition: PartitionHandle
    number: PartitionId
    offset: Offset


class EventWriter:
    """Writes records as Server-Sent Events."""

    def __init__(self, positions: Sequence[TailPosition]) -> None:
        self._positions = positions
        self._before = self._after = ""
        self.idle = b": idle\n\n"

    def turn_to(self, position: TailPosition) -> None:
        """Set the partition of the next records. The other positions stay until the next call.

        An id names up to TAIL_PARTITIONS_MAX partitions. To build the whole id for each record
        would cost more than the record.
        """
        index = next(i for i, other in enumerate(self._positions) if other is position)
        others = [f"{other.number}:{other.offset}" for other in self._positions]
        self._before = "".join(f"{text}," for text in others[:index]) + f"{position.number}:"
        after = "".join(f",{text}" for text in others[index + 1 :])
        self._after = f"{after}@{position.partition.topic_id}"

    def record(self, document: bytes, position: TailPosition) -> bytes:
        """An event, with the position after it as its id."""
        return b"id: %b\ndata: %b\n\n" % (self._event_id(position), document)

    def error(self, document: bytes, position: TailPosition) -> bytes:
        """An error event."""
        return b"event: error\nid: %b\ndata: %b\n\n" % (self._event_id(position), document)

    def _event_id(self, position: TailPosition) -> bytes:
        return f"{self._before}{position.offset}{self._after}".encode()


class LineWriter:
    """Writes records as lines of JSON."""

    idle = b"\n"

    def turn_to(self, position: TailPosition) -> None:
        """Each line names its own partition."""

    def record(self, document: bytes, position: TailPosition) -> bytes:
        """A line."""
        return document + b"\n"

    def error(self, document: bytes, position: TailPosition) -> bytes:
        """A line, distinct from a record by its `error_code`."""
        return document + b"\n"


_Writer = EventWriter | LineWriter


async def tail_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/topics/{topic}/tail."""
    content_type = negotiate(request, _OFFERED)
    record_format = RecordFormat(
        choice_parameter(request, "format", RecordFormat.JSON, tuple(RecordFormat))
    )
    isolation = isolation_parameter(request)
    positions = await _positions(request, context, isolation)
    for position in positions:
        # An offset out of range must be the response's status, so check it before the start.
        await position.partition.read(position.offset, max_bytes=1, isolation=isolation)
    writer = EventWriter(positions) if content_type == SSE else LineWriter()
    counters = context.broker.topics.topic(request.path_parameters["topic"])
    counters.fetch_requests += 1
    response = stream_response(request, content_type)
    await response.prepare(request)
    # The head goes out with the first bytes, so send some to start the reader's tail.
    await response.write(writer.idle)
    forwarder = _Forwarder(
        request, response, writer, context, record_format=record_format, isolation=isolation
    )
    try:
        while not context.broker.closing.is_set():
            sent = 0
            for position in positions:
                sent += await forwarder.forward(position)
            counters.bytes_out += sent
            if not sent:
                await forwarder.idle(positions)
    except LogError as error:
        counters.failed_fetch_requests += 1
        document = _encode(TailError(error.entry.code, error.message))
        writer.turn_to(positions[0])
        await response.write(writer.error(document, positions[0]))
    return response


class _Forwarder:
    """Sends stored records to the reader, as the response's lines or events."""

    def __init__(
        self,
        request: Request,
        response: web.StreamResponse,
        writer: _Writer,
        context: ServerContext,
        *,
        record_format: RecordFormat,
        isolation: Isolation,
    ) -> None:
        self._request = request
        self._response = response
        self._format = record_format
        self._isolation = isolation
        self._writer = writer
        self._context = context
        self._reader = BatchReader(request, context)

    async def idle(self, positions: Sequence[TailPosition]) -> None:
        """Wait for records. After `tail_idle_s` without any, filler detects a closed connection."""
        broker, idle_s = self._context.broker, self._context.limits.tail_idle_s
        begun_s = broker.clock.monotonic()
        await broker.fetch.wait(
            [(position.partition, position.offset) for position in positions],
            timeout_s=idle_s,
            isolation=self._isolation,
        )
        if broker.clock.monotonic() - begun_s >= idle_s:
            await self._response.write(self._writer.idle)

    async def forward(self, position: TailPosition) -> int:
        """Send the next records of one partition. Returns the number of bytes sent."""
        fetched = await position.partition.read(
            position.offset, max_bytes=TAIL_READ_BYTES, isolation=self._isolation
        )
        total = 0
        with self._reader.holding(fetched.data, position.offset, fetched.aborted) as batches:
            for batch in batches:
                if batch.header.next_offset <= position.offset:
                    continue
                async with aclosing(self._reader.groups(batch)) as groups:
                    async for group in groups:
                        total += await self._send(group, position)
        position.offset = max(position.offset, fetched.next_offset)
        return total

    async def _send(self, group: Sequence[Record], position: TailPosition) -> int:
        """Send a group of records. Its bytes are held until the reader has taken them."""
        before = position.offset
        piece = b"".join(self._documents(group, position))
        try:
            self._context.hold(self._request, len(piece))
        except LogError:
            # The record was not sent. The reader continues here when it resumes.
            position.offset = before
            raise
        try:
            await write_pieces(self._request, self._response, [piece])
        finally:
            self._context.free(self._request, len(piece))
        return len(piece)

    def _documents(self, group: Sequence[Record], position: TailPosition) -> Iterator[bytes]:
        """The encoded records from the position on. Advances the position."""
        topic, writer = position.partition.topic, self._writer
        writer.turn_to(position)
        for record in group:
            offset = Offset(record.offset)
            if offset < position.offset:
                continue
            position.offset = Offset(offset + 1)
            try:
                document = _encode(record_answer(record, topic, position.number, self._format))
            except LogError as error:
                refusal = TailError(error.entry.code, error.message, position.number, offset)
                yield writer.error(_encode(refusal), position)
            else:
                if b"\n" in document or b"\r" in document:
                    # In JSON these are only blanks between tokens. In the stream they end a line.
                    document = document.replace(b"\n", b" ").replace(b"\r", b" ")
                yield writer.record(document, position)


async def _positions(
    request: Request, context: ServerContext, isolation: Isolation
) -> list[TailPosition]:
    """The start positions, by `partition` and `offset` of the query, or by Last-Event-ID."""
    parameters = request.query_parameters
    chosen = parameters.get("partition")
    numbers = None if chosen is None else partition_list(chosen)
    _check_count(numbers or ())
    partitions = context.broker.fetch.partitions(
        request.principal, request.path_parameters["topic"], numbers
    )
    _check_count(partitions)
    seen = request.headers.get("Last-Event-ID") or parameters.get("last_event_id") or ""
    if seen:
        seen, _, topic_id = seen.partition("@")
        present = partitions[0].topic_id
        if topic_id not in {"", present}:
            raise LogError(
                UNKNOWN_TOPIC_ID,
                f"The id of the event is of another topic of that name, {topic_id[:40]}; this one "
                f"is {present}. Begin without an id.",
            )
        resumed = parse_event_id(seen)
        # A partition that the id does not name was added later, so all its records are new.
        return [
            TailPosition(partition, partition.partition, resumed[partition.partition])
            if partition.partition in resumed
            else TailPosition(partition, partition.partition, (await partition.bounds())[0])
            for partition in partitions
        ]
    start = parameters.get("offset", NamedOffset.LATEST)
    return [
        TailPosition(
            partition, partition.partition, await parse_offset(start, partition, isolation)
        )
        for partition in partitions
    ]


def _check_count(partitions: Sized) -> None:
    if len(partitions) > TAIL_PARTITIONS_MAX:
        raise LogError(
            BAD_REQUEST,
            f"One tail can follow {TAIL_PARTITIONS_MAX} partitions, not {len(partitions)}: name "
            "some by partition=0,1,2.",
        )


def parse_event_id(text: str) -> dict[PartitionId, Offset]:
    """Parse the offsets of an event's id, by partition.

    Raises LogError BAD_REQUEST for any other text.
    """
    offsets: dict[PartitionId, Offset] = {}
    for part in text.split(",", TAIL_PARTITIONS_MAX):
        number, _, offset = part.partition(":")
        partition, position = whole_number(number), whole_number(offset)
        if (
            partition is None
            or position is None
            or not 0 <= partition < 2**31
            or not 0 <= position < 2**63
        ):
            raise LogError(BAD_REQUEST, f"{text[:40]!r} is not the id of an event of a tail.")
        offsets[PartitionId(partition)] = Offset(position)
    return offsets


ROUTES: Final = (
    Route(
        "GET",
        "/v1/topics/{topic}/tail",
        tail_topic,
        "A topic's records as they arrive, without end, as Server-Sent Events or lines of JSON. "
        "An event's id, sent back as Last-Event-ID, continues after it.",
        tag="records",
        query=(
            QueryParameter("partition", str, "Partition numbers, such as 0,2. The default is all."),
            QueryParameter("offset", str, OFFSET_HELP, "latest"),
            QueryParameter("format", str, "json, binary (base64) or text.", "json"),
            ISOLATION_QUERY,
            QueryParameter(
                "last_event_id", str, ("Position to continue from, as in the header Last-Event-ID.")
            ),
        ),
        response_media_types=(SSE, NDJSON),
        errors=(
            BAD_REQUEST,
            *READ_ERRORS,
            UNKNOWN_TOPIC_ID,
            UNSUPPORTED_FORMAT,
            OFFSET_OUT_OF_RANGE,
        ),
        streams=True,
        cancel_on_disconnect=True,
    ),
)
