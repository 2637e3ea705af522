"""v2 produce: POST /topics/{topic} and /topics/{topic}/partitions/{partition}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import web

from raftlog.http.body import read_body
from raftlog.http.context import ServerContext
from raftlog.http.request import Request, partition_parameter
from raftlog.http.responses import JSON, bytes_response, media_type
from raftlog.record.errors import INVALID_BODY, UNSUPPORTED_MEDIA_TYPE, LogError
from raftlog.record.types import PartitionId
from raftlog.rest.append import (
    PartitionWrite,
    assign,
    count_produced,
    plan,
    raise_if_nothing_written,
    topic_for_produce,
    write,
)
from raftlog.rest.json_records import RecordFormat, parse_produce_body, stored_records
from raftlog.rest.produce_options import idempotent_options

V2_MEDIA_TYPE = "application/vnd.kafka.v2+json"
RECORD_MEDIA_TYPES = {
    "application/vnd.kafka.json.v2+json": RecordFormat.JSON,
    "application/vnd.kafka.binary.v2+json": RecordFormat.BINARY,
    "application/vnd.kafka.text.v2+json": RecordFormat.TEXT,
    V2_MEDIA_TYPE: RecordFormat.JSON,
    JSON: RecordFormat.JSON,
}
"""What a body's media type says of the records in it."""

FATAL = 1
"""v2 error code of a record that will fail again if it is sent again."""
RETRIABLE = 2
"""v2 error code of a record that may succeed if it is sent again."""


class OffsetAnswer(msgspec.Struct, frozen=True):
    """Where one record went, or why it did not."""

    partition: int
    offset: int | None
    error_code: int | None
    """1: fatal, 2: retriable."""
    error: str | None


class ProduceAnswer(msgspec.Struct, frozen=True):
    """The answer to a produce request: one entry for each record, in the request's order."""

    offsets: list[OffsetAnswer]
    key_schema_id: None = None
    value_schema_id: None = None


async def produce_to_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /topics/{topic}: each record says its partition, or its key or the node chooses one."""
    return await _produce(request, context, None)


async def produce_to_partition(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /topics/{topic}/partitions/{partition}: all records go to that partition."""
    return await _produce(request, context, partition_parameter(request))


async def _produce(
    request: Request, context: ServerContext, fixed: PartitionId | None
) -> web.StreamResponse:
    record_format = RECORD_MEDIA_TYPES.get(media_type(request))
    if record_format is None:
        raise LogError(
            UNSUPPORTED_MEDIA_TYPE,
            f"The content type {media_type(request)[:100]!r} is not understood here; send "
            f"{', '.join(RECORD_MEDIA_TYPES)}.",
        )
    topic = await topic_for_produce(request.path_parameters["topic"], context)
    body = await read_body(request, context)
    limits = context.limits
    parsed = parse_produce_body(
        body,
        record_format,
        depth_max=limits.json_depth_max,
        records_max=limits.records_per_request_max,
    )
    options = idempotent_options(request, parsed, limits)
    records = stored_records(parsed, context.services.clock.time_ms())
    asked = [record.partition for record in parsed.records]
    groups: Mapping[int, Sequence[int]]
    if fixed is None:
        nobody_asks = asked.count(None) == len(asked)
        groups = assign(topic, records, None if nobody_asks else asked, options)
    else:
        if any(number not in (None, fixed) for number in asked):
            raise LogError(INVALID_BODY, f"The path says partition {fixed}, a record another.")
        groups = {fixed: range(len(records))}
    writes = plan(topic, records, groups, options, context, size_bytes=len(body))
    await write(writes, options)
    count_produced(context, topic.name, writes, len(body))
    raise_if_nothing_written(writes)
    return bytes_response(_answer(writes, len(records)), V2_MEDIA_TYPE)


def _answer(writes: Sequence[PartitionWrite], count: int) -> bytes:
    """The v2 answer's JSON, put together from text: an encoder would need an object per record."""
    ending = ',"error_code":null,"error":null}'
    if len(writes) == 1 and not isinstance(writes[0].outcome, LogError):
        start = f'{{"partition":{writes[0].number},"offset":'
        entries = start + f"{ending},{start}".join(map(str, writes[0].outcome)) + ending
    else:
        texts = [""] * count
        for one in writes:
            start = f'{{"partition":{one.number},"offset":'
            if isinstance(one.outcome, LogError):
                text = f"{start}null,{_v2_error(one.outcome)}}}"
                for index in one.indexes:
                    texts[index] = text
            else:
                for index, offset in zip(one.indexes, one.outcome, strict=True):
                    texts[index] = f"{start}{offset}{ending}"
        entries = ",".join(texts)
    return f'{{"offsets":[{entries}],"key_schema_id":null,"value_schema_id":null}}'.encode()


def _v2_error(error: LogError) -> str:
    code = RETRIABLE if error.entry.retriable else FATAL
    return f'"error_code":{code},"error":{msgspec.json.encode(error.message).decode()}'
