"""The v3 produce routes take a stream of records or a batch.

They are POST /v3/clusters/{cluster_id}/topics/{topic}/records (a stream) and …/records:batch. The
stream is a sequence of JSON objects, one record each, with or without newlines between them. It may
have no end. Each record gets a receipt, in order, with its own `error_code` (200 if written).
Records that arrive together are written together. An invalid record fails only itself. Malformed
JSON ends the stream, because the start of the next record is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from raftlog.broker.produce import PartitionWrite, ProduceOptions, StoredRecord, content_bytes
from raftlog.http.body import BodyStream, read_body
from raftlog.http.json_check import check_body
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import (
    JSON,
    bytes_response,
    json_response,
    require_media_type,
    stream_response,
)
from raftlog.http.routing import Route
from raftlog.metadata.image import TopicImage
from raftlog.record.errors import (
    BODY_TOO_LARGE,
    INVALID_BODY,
    RECORD_TOO_LARGE,
    UNKNOWN_PARTITION,
    LogError,
)
from raftlog.rest.json import records as json_records
from raftlog.rest.json.pieces import ArrayBody, check_long_record
from raftlog.rest.json.produce_options import PRODUCE_ERRORS, QUERY, produce_options

SUCCESS = 200
"""`error_code` of a written record."""
MULTI_STATUS = 207
_OF_ONE_RECORD: Final = (UNKNOWN_PARTITION, RECORD_TOO_LARGE, INVALID_BODY)
"""Errors by which one record may fail others. No record of such a write was appended."""
ENTRIES_PER_TURN: Final = 512
"""Entries of a batch, or records of a stream, handled in one turn (3 ms)."""
BATCH_ENTRIES_MAX: Final = 10_000
"""Entries of one batch, because each has an object in the response. A stream has no such limit."""

_encode = msgspec.json.Encoder().encode


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one record, which is its place, or an error's code and message."""

    error_code: int
    message: str | None = None
    cluster_id: str | None = None
    topic_name: str | None = None
    partition_id: int | None = None
    offset: int | None = None
    timestamp: str | None = None
    key: json_records.DataSummary | None = None
    value: json_records.DataSummary | None = None


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries with an id each, decoded separately. An invalid entry fails only itself."""

    entries: list[msgspec.Raw]


class _EntryId(msgspec.Struct, gc=False):
    """The id of an entry whose record is not valid."""

    id: json_records.EntryId


_BATCH: Final = ArrayBody(
    "entries", msgspec.json.Decoder(BatchRequest), msgspec.json.Decoder(list[msgspec.Raw])
)
_entry_decoder = msgspec.json.Decoder(json_records.EntryV3)
_id_decoder = msgspec.json.Decoder(_EntryId)


class BatchSuccess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A written entry."""

    id: str
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str | None = None
    key: json_records.DataSummary | None = None
    value: json_records.DataSummary | None = None


class BatchFailure(msgspec.Struct, frozen=True):
    """An entry that was not written."""

    id: str
    error_code: int
    message: str


class BatchResponse(msgspec.Struct, frozen=True):
    """The outcomes of all entries."""

    successes: list[BatchSuccess]
    failures: list[BatchFailure]


@dataclass(frozen=True, slots=True)
class _Written:
    """The place and format of one written record."""

    partition: int
    offset: int
    timestamp_ms: int
    key: json_records.DataSummary | None
    value: json_records.DataSummary | None


_Outcome = _Written | LogError


async def produce_records(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST …/records. Returns a receipt for each record of the stream as soon as it is written."""
    require_media_type(request, (JSON,))
    options = produce_options(request, context.limits)
    topic = await context.broker.produce.topic(request.principal, request.path_parameters["topic"])
    response: web.StreamResponse | None = None
    count = 0
    async with BodyStream(
        request, context, object_bytes=json_records.STORED_RECORD_BYTES
    ) as stream:
        async for objects, error in stream:
            outcomes = await _produce_objects(objects, error, topic, options, context)
            if not outcomes:
                continue
            count += len(outcomes)
            stream.is_over = stream.is_over or isinstance(
                outcomes[-1], json_records.MalformedJsonError
            )
            if response is None and stream.is_over:
                if count == 1 and isinstance(outcomes[0], LogError):
                    # A lone record is a plain request, so its outcome is the status.
                    raise outcomes[0]
                return bytes_response(await _receipts(outcomes, topic, context), JSON)
            if response is None:
                response = stream_response(request, JSON)
                await response.prepare(request)
            await response.write(await _receipts(outcomes, topic, context))
    if response is None:
        raise LogError(INVALID_BODY, "The body is not valid: there is no record.")
    return response


async def produce_record_batch(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST …/records:batch. Writes the valid records, and returns an outcome for each."""
    require_media_type(request, (JSON,))
    options = produce_options(request, context.limits)
    topic = await context.broker.produce.topic(request.principal, request.path_parameters["topic"])
    parsed = await _read_batch(request, context)
    now_ms = context.broker.record_time_ms()
    outcomes: list[_Outcome | None] = []
    good: list[json_records.RecordV3] = []
    records: list[StoredRecord] = []
    for number, (_, entry) in enumerate(parsed):
        await _take_turn(number, context)
        try:
            if isinstance(entry, LogError):
                raise entry
            records.append(json_records.stored_record_v3(entry, now_ms))
        except LogError as error:
            outcomes.append(error.as_outcome())
        else:
            outcomes.append(None)
            good.append(entry)
    written = iter(await _write_all(good, records, topic, options, context))
    successes: list[BatchSuccess] = []
    failures: list[BatchFailure] = []
    cluster_id = context.broker.cluster_id
    for number, ((entry_id, _), refused) in enumerate(zip(parsed, outcomes, strict=True)):
        await _take_turn(number, context)
        outcome = next(written) if refused is None else refused
        if isinstance(outcome, LogError):
            failures.append(BatchFailure(entry_id, outcome.entry.code, outcome.message))
        else:
            successes.append(
                BatchSuccess(
                    id=entry_id,
                    cluster_id=cluster_id,
                    topic_name=topic.name,
                    partition_id=outcome.partition,
                    offset=outcome.offset,
                    timestamp=json_records.timestamp_text(outcome.timestamp_ms),
                    key=outcome.key,
                    value=outcome.value,
                )
            )
    return json_response(BatchResponse(successes, failures), status=MULTI_STATUS)


async def _take_turn(number: int, context: ServerContext) -> None:
    """Let the event loop have a turn after each stretch of entries or records."""
    if number % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1:
        await context.broker.turns.wait()


async def _read_batch(
    request: Request, context: ServerContext
) -> list[tuple[str, json_records.EntryV3 | LogError]]:
    """The id of each entry, with its record or its error.

    Raises LogError for a body without valid ids, because its entries cannot have separate outcomes.
    Raises INVALID_BODY and BODY_TOO_LARGE as `read_body` does.
    """
    entries_max = min(BATCH_ENTRIES_MAX, context.limits.records_per_request_max)
    entries: list[tuple[str, json_records.EntryV3 | LogError]] = []

    def take(some: Sequence[msgspec.Raw]) -> None:
        if len(entries) + len(some) > entries_max:
            raise LogError(BODY_TOO_LARGE, f"The request has more than {entries_max} records.")
        context.hold(request, len(some) * json_records.STORED_RECORD_BYTES)
        first = len(entries)
        entries.extend(_parse_entry(first + index, text) for index, text in enumerate(some))

    body = await read_body(request, context)
    depth_max, turns = context.limits.json_depth_max, context.broker.turns
    await _BATCH.parse(body, take, depth_max=depth_max, turns=turns)
    if not entries:
        raise LogError(INVALID_BODY, "The body is not valid: there are no entries.")
    if len({entry_id for entry_id, _ in entries}) != len(entries):
        raise LogError(INVALID_BODY, "The body is not valid: two entries have one id.")
    return entries


def _parse_entry(index: int, text: msgspec.Raw) -> tuple[str, json_records.EntryV3 | LogError]:
    try:
        entry = _entry_decoder.decode(text)
    except msgspec.ValidationError as error:
        try:
            entry_id = _id_decoder.decode(text).id
        except msgspec.ValidationError as no_id:
            raise LogError(
                INVALID_BODY, f"The body is not valid: entry {index}: {no_id}."
            ) from None
        return entry_id, LogError(INVALID_BODY, f"The entry is not valid: {error}.")
    return entry.id, entry


async def _produce_objects(
    objects: Sequence[bytes],
    stream_error: LogError | None,
    topic: TopicImage,
    options: ProduceOptions,
    context: ServerContext,
) -> list[_Outcome]:
    """Write the valid records among those that arrived. Returns an outcome for each, in order.

    Nothing after malformed JSON is parsed.
    """
    now_ms = context.broker.record_time_ms()
    outcomes: list[_Outcome | None] = []
    good: list[json_records.RecordV3] = []
    records: list[StoredRecord] = []
    for number, text in enumerate(objects):
        await _take_turn(number, context)
        try:
            await check_body(text, context.limits.json_depth_max, context.broker.turns)
            await check_long_record(text, context.broker.turns)
            record = json_records.parse_record_v3(text)
            stored = json_records.stored_record_v3(record, now_ms)
        except LogError as error:
            outcomes.append(error.as_outcome())
            if isinstance(error, json_records.MalformedJsonError):
                stream_error = None
                break
        else:
            outcomes.append(None)
            good.append(record)
            records.append(stored)
    written = iter(await _write_all(good, records, topic, options, context))
    answered = [next(written) if outcome is None else outcome for outcome in outcomes]
    if stream_error is not None:
        answered.append(json_records.MalformedJsonError(stream_error.entry, stream_error.message))
    return answered


async def _write_all(
    good: Sequence[json_records.RecordV3],
    records: Sequence[StoredRecord],
    topic: TopicImage,
    options: ProduceOptions,
    context: ServerContext,
) -> list[_Outcome]:
    """Write records together. If some are rejected, write the others together again.

    A partition gets at most two appends, however many records are rejected.
    """
    outcomes = await _write(good, records, topic, options, context)
    failed = [
        index
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, LogError) and outcome.entry in _OF_ONE_RECORD
    ]
    if not failed or len(outcomes) == 1:
        return outcomes
    unfit = await context.broker.produce.unfit(
        topic, [records[index] for index in failed], [good[index].partition_id for index in failed]
    )
    for place, error in unfit.items():
        outcomes[failed[place]] = error
    rest = [index for place, index in enumerate(failed) if place not in unfit]
    if unfit and rest:
        again = await _write(
            [good[index] for index in rest],
            [records[index] for index in rest],
            topic,
            options,
            context,
        )
        for index, outcome in zip(rest, again, strict=True):
            outcomes[index] = outcome
    return outcomes


async def _write(
    good: Sequence[json_records.RecordV3],
    records: Sequence[StoredRecord],
    topic: TopicImage,
    options: ProduceOptions,
    context: ServerContext,
) -> list[_Outcome]:
    """Write records together. Returns an outcome for each, in order."""
    if not good:
        return []
    partitions = [record.partition_id for record in good]
    try:
        writes = await context.broker.produce.write(
            topic, records, partitions, options, size_bytes=_size(records)
        )
    except LogError as error:
        return [error] * len(good)
    return _outcomes(good, records, writes)


def _size(records: Sequence[StoredRecord]) -> int:
    """Bytes of all keys, values and headers."""
    return sum(map(content_bytes, records))


def _outcomes(
    good: Sequence[json_records.RecordV3],
    records: Sequence[StoredRecord],
    writes: Sequence[PartitionWrite],
) -> list[_Outcome]:
    """One outcome for each record, in the request's order."""
    outcomes: dict[int, _Outcome] = {}
    for write in writes:
        if isinstance(write.outcome, LogError):
            outcomes.update(dict.fromkeys(write.indexes, write.outcome))
            continue
        for index, offset in zip(write.indexes, write.outcome, strict=True):
            timestamp_ms, key, value, _ = records[index]
            if write.log_append_time_ms >= 0:
                timestamp_ms = write.log_append_time_ms
            record = good[index]
            outcomes[index] = _Written(
                partition=write.number,
                offset=offset,
                timestamp_ms=timestamp_ms or 0,
                key=json_records.data_summary(record.key, key),
                value=json_records.data_summary(record.value, value),
            )
    return [outcomes[index] for index in range(len(good))]


async def _receipts(
    outcomes: Sequence[_Outcome], topic: TopicImage, context: ServerContext
) -> bytes:
    pieces: list[bytes] = []
    for start in range(0, len(outcomes), ENTRIES_PER_TURN):
        if start:
            await context.broker.turns.wait()
        some = outcomes[start : start + ENTRIES_PER_TURN]
        pieces += _receipt_lines(some, topic.name, context.broker.cluster_id)
    return b"".join(pieces)


def _receipt_lines(outcomes: Sequence[_Outcome], topic: str, cluster_id: str) -> Iterator[bytes]:
    for outcome in outcomes:
        if isinstance(outcome, LogError):
            yield _encode(Receipt(outcome.entry.code, outcome.message)) + b"\n"
            continue
        yield (
            _encode(
                Receipt(
                    error_code=SUCCESS,
                    message=None,
                    cluster_id=cluster_id,
                    topic_name=topic,
                    partition_id=outcome.partition,
                    offset=outcome.offset,
                    timestamp=json_records.timestamp_text(outcome.timestamp_ms),
                    key=outcome.key,
                    value=outcome.value,
                )
            )
            + b"\n"
        )


_TOPIC: Final = "/v3/clusters/{cluster}/topics/{topic}"

ROUTES: Final = (
    Route(
        "POST",
        f"{_TOPIC}/records",
        produce_records,
        "Write a stream of records, as JSON objects one after another. Each has a receipt with "
        "its own error_code (200 if written).",
        tag="records",
        query=QUERY,
        request_type=json_records.RecordDocumentV3,
        response_type=Receipt,
        errors=PRODUCE_ERRORS,
    ),
    Route(
        "POST",
        f"{_TOPIC}/records:batch",
        produce_record_batch,
        "Write records with an id each, and return an outcome for each. Valid records are written"
        " even if others fail. The status is 207 even if all fail.",
        tag="records",
        query=QUERY,
        request_type=json_records.BatchDocument,
        response_type=BatchResponse,
        status=MULTI_STATUS,
        errors=PRODUCE_ERRORS,
    ),
)
