"""v2 read without state: GET /topics/{topic}/partitions/{partition}/records."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from aiohttp import web

from raftlog.http.context import ServerContext
from raftlog.http.request import (
    INT64_MAX,
    Request,
    choice_parameter,
    integer_parameter,
    partition_parameter,
    whole_number,
)
from raftlog.http.responses import JSON, bytes_response, negotiate
from raftlog.record.batch import iterate_batches
from raftlog.record.errors import BAD_REQUEST, LogError
from raftlog.record.types import Buffer, Offset, PartitionId
from raftlog.replication.partition import Fetched
from raftlog.rest.json_answers import RecordAnswer, decode_within_budget, record_answer
from raftlog.rest.json_records import RecordFormat
from raftlog.rest.waiting import wait_anywhere
from raftlog.routing.handle import PartitionHandle

HIGH_WATERMARK_HEADER = "X-Raftlog-High-Watermark"
NEXT_OFFSET_HEADER = "X-Raftlog-Next-Offset"
LOG_START_HEADER = "X-Raftlog-Log-Start-Offset"

LEADER = "leader"
ANY = "any"
REPLICAS = (LEADER, ANY)
"""Who may serve a read."""
MAX_BYTES_DEFAULT = 1024 * 1024
MAX_RECORDS_DEFAULT = 10_000
READ_STEP_BYTES = 256 * 1024
"""Batches are read and answered in steps of this size; other requests run between them."""

READ_MEDIA_TYPES = {
    "application/vnd.kafka.json.v2+json": RecordFormat.JSON,
    JSON: RecordFormat.JSON,
    "application/vnd.kafka.v2+json": RecordFormat.JSON,
    "application/vnd.kafka.binary.v2+json": RecordFormat.BINARY,
    "application/vnd.kafka.text.v2+json": RecordFormat.TEXT,
}
_OFFERED = tuple(READ_MEDIA_TYPES)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Poll:
    """What one request asks for."""

    topic: str
    partition: PartitionId
    offset: Offset
    end_offset: Offset | None
    max_bytes: int
    max_records: int
    timeout_s: float
    record_format: RecordFormat


async def read_records(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET …/records: records from an offset on; waits for the first for up to `timeout` ms."""
    content_type = negotiate(request, _OFFERED)
    near = choice_parameter(request, "replica", LEADER, REPLICAS) == ANY
    partition = context.services.partitions.find(
        request.path_parameters["topic"], partition_parameter(request), any_replica=near
    )
    counters = context.metrics.topic(partition.topic)
    counters.fetch_requests += 1
    try:
        poll = await _parse(request, context, partition, READ_MEDIA_TYPES[content_type])
        answer, seen = await _collect(request, context, partition, poll)
    except LogError:
        counters.failed_fetch_requests += 1
        raise
    body = answer.body()
    counters.bytes_out += len(body)
    headers = {
        HIGH_WATERMARK_HEADER: str(seen.high_watermark),
        NEXT_OFFSET_HEADER: str(answer.next_offset),
        LOG_START_HEADER: str(seen.log_start_offset),
    }
    return bytes_response(body, content_type, headers=headers)


async def _parse(
    request: Request,
    context: ServerContext,
    partition: PartitionHandle,
    record_format: RecordFormat,
) -> _Poll:
    limits = context.limits
    end_offset = integer_parameter(request, "end_offset", -1, minimum=0)
    timeout_ms = integer_parameter(request, "timeout", 0)
    return _Poll(
        topic=partition.topic,
        partition=partition.partition,
        offset=await start_offset(request, partition),
        end_offset=None if end_offset < 0 else Offset(end_offset),
        max_bytes=min(
            integer_parameter(request, "max_bytes", MAX_BYTES_DEFAULT, minimum=1),
            limits.response_bytes_max,
        ),
        max_records=min(
            integer_parameter(request, "max_records", MAX_RECORDS_DEFAULT, minimum=1),
            limits.records_per_request_max,
        ),
        timeout_s=min(timeout_ms, limits.long_poll_ms_max) / 1000,
        record_format=record_format,
    )


async def start_offset(request: Request, partition: PartitionHandle) -> Offset:
    """Where to read from: `offset` (a number, earliest, latest) or `timestamp` (ms)."""
    given = request.query_parameters
    if "timestamp" in given:
        if "offset" in given:
            raise LogError(BAD_REQUEST, "Give offset or timestamp, not both.")
        found = await partition.offset_for_timestamp(integer_parameter(request, "timestamp", 0))
        return (await partition.bounds())[1] if found is None else found[0]
    return await named_offset(given.get("offset", "earliest"), partition)


async def named_offset(text: str, partition: PartitionHandle) -> Offset:
    """The offset that `text` names: a number, earliest or latest. LogError BAD_REQUEST."""
    if text == "earliest":
        return (await partition.bounds())[0]
    if text == "latest":
        return (await partition.bounds())[1]
    number = whole_number(text)
    if number is None or not 0 <= number <= INT64_MAX:
        raise LogError(
            BAD_REQUEST, f"offset must be a number, earliest or latest, not {text[:40]!r}."
        )
    return Offset(number)


class _Answer:
    """The records answered so far, written out as JSON, and where to go on after them."""

    def __init__(self, poll: _Poll) -> None:
        self._poll = poll
        self._pieces: list[bytes] = []
        self.count = 0
        self.next_offset = poll.offset

    def take(self, data: Buffer, context: ServerContext) -> bool:
        """Add the records of whole batches; return whether a bound was reached.

        A record that cannot be given in the format is an error only if it is the first: what comes
        before it is answered, and the next poll meets it first.
        """
        answers: list[RecordAnswer] = []
        try:
            return self._take(data, answers, context)
        finally:
            # Written out at once: bytes are small beside the objects they come from.
            if answers:
                self._pieces.append(_encode(answers)[1:-1])
                self.count += len(answers)

    def _take(self, data: Buffer, answers: list[RecordAnswer], context: ServerContext) -> bool:
        poll = self._poll
        for batch in iterate_batches(data, check_crc=False):
            for record in decode_within_budget(batch, context):
                if record.offset < self.next_offset:
                    continue
                if poll.end_offset is not None and record.offset >= poll.end_offset:
                    self.next_offset = poll.end_offset
                    return True
                if self.count + len(answers) >= poll.max_records:
                    return True
                try:
                    answer = record_answer(record, poll.topic, poll.partition, poll.record_format)
                except LogError:
                    if self.count or answers:
                        return True
                    raise
                answers.append(answer)
                self.next_offset = Offset(record.offset + 1)
            # Compaction may have removed the last records, but not their offsets.
            self.skip_to(batch.header.next_offset)
        if self.count + len(answers) >= poll.max_records:
            return True
        return poll.end_offset is not None and self.next_offset >= poll.end_offset

    def skip_to(self, offset: Offset) -> None:
        """Go on at `offset`, but not beyond the end asked for."""
        end_offset = self._poll.end_offset
        offset = offset if end_offset is None else min(offset, end_offset)
        self.next_offset = max(self.next_offset, offset)

    def body(self) -> bytes:
        """The JSON array of all records."""
        return b"[%b]" % b",".join(self._pieces)


async def _collect(
    request: Request, context: ServerContext, partition: PartitionHandle, poll: _Poll
) -> tuple[_Answer, Fetched]:
    """Records until one of the bounds is reached, and the last look at the log."""
    clock = context.services.clock
    deadline = clock.monotonic() + poll.timeout_s
    answer = _Answer(poll)
    bytes_left = poll.max_bytes
    fetched: Fetched | None = None
    while True:
        offset = answer.next_offset
        limit = min(READ_STEP_BYTES, bytes_left)
        try:
            fetched = await partition.read(offset, max_bytes=limit, end_offset=poll.end_offset)
        except LogError:
            if fetched is None or not answer.count:
                raise
            # Records before a damaged place are as good as ever; the next poll meets it first.
            break
        if fetched.data:
            context.hold(request, len(fetched.data))
            bytes_left -= len(fetched.data)
            # A read gives one batch at least: only a full step may be followed by another.
            if answer.take(fetched.data, context) or bytes_left <= 0 or limit < READ_STEP_BYTES:
                break
            await asyncio.sleep(0)
        elif fetched.next_offset > offset:
            # What was there has been compacted away.
            answer.skip_to(fetched.next_offset)
        else:
            remaining_s = deadline - clock.monotonic()
            is_at_end = poll.end_offset is not None and offset >= poll.end_offset
            if answer.count or is_at_end or remaining_s <= 0 or context.closing.is_set():
                break
            await wait_anywhere(context, [(partition, offset)], timeout_s=remaining_s)
    return answer, fetched
