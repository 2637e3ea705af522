"""The v2 convention has brokers, topics, produce, and reads without state.

Names, media types and shapes are those of the Confluent REST Proxy's API v2, as far as it has the
same operation. `GET …/records` is specific to raftlog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api.cluster import BrokerIds
from raftlog.api.common import INT64_MAX
from raftlog.broker.fetch import Fetched, Isolation, PartitionHandle, ReadProgress
from raftlog.broker.offsets import NamedOffset, named_offset, offset_at_time, offset_from_end
from raftlog.broker.produce import PartitionWrite
from raftlog.http.body import read_body
from raftlog.http.request import (
    Request,
    ServerContext,
    choice_parameter,
    integer_parameter,
    partition_parameter,
    whole_number,
)
from raftlog.http.responses import JSON, bytes_response, json_response, media_type, negotiate
from raftlog.http.routing import QueryParameter, Route
from raftlog.metadata.image import PartitionImage, TopicImage
from raftlog.record.errors import (
    BAD_REQUEST,
    FORBIDDEN,
    INVALID_BODY,
    NO_LEADER,
    OFFSET_OUT_OF_RANGE,
    STORAGE_FAILED,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    UNSUPPORTED_FORMAT,
    UNSUPPORTED_MEDIA_TYPE,
    LogError,
)
from raftlog.record.types import Offset, PartitionId
from raftlog.rest.json.produce_options import (
    IDEMPOTENT_QUERY,
    PRODUCE_ERRORS,
    idempotent_options,
    raise_if_nothing_written,
)
from raftlog.rest.json.records import (
    ProduceDocument,
    ProducedRecords,
    RecordDocument,
    RecordFormat,
    parse_produce_body,
)
from raftlog.rest.json.records_answer import RecordsAnswer

V2_MEDIA_TYPE: Final = "application/vnd.kafka.v2+json"
V2_OFFERED: Final = (V2_MEDIA_TYPE, "application/vnd.kafka+json", JSON)

# Topics and partitions


class ReplicaAnswer(msgspec.Struct, frozen=True):
    """One replica of a partition."""

    broker: int
    leader: bool
    in_sync: bool


class PartitionAnswer(msgspec.Struct, frozen=True):
    """One partition."""

    partition: int
    leader: int
    """Broker id, or -1 without a leader."""
    replicas: list[ReplicaAnswer]


class TopicAnswer(msgspec.Struct, frozen=True):
    """One topic."""

    name: str
    configs: Mapping[str, str]
    """Every config, with the value in force."""
    partitions: list[PartitionAnswer]


class OffsetsAnswer(msgspec.Struct, frozen=True):
    """The readable offsets of a partition."""

    beginning_offset: Offset
    """First offset that can be read."""
    end_offset: Offset
    """Offset after the last record that can be read, that of the next committed record."""


def _partition(image: PartitionImage) -> PartitionAnswer:
    replicas = [
        ReplicaAnswer(broker, broker == image.leader, broker in image.isr)
        for broker in image.replicas
    ]
    return PartitionAnswer(image.partition, image.leader, replicas)


def _topic(request: Request, context: ServerContext) -> TopicImage:
    return context.broker.admin.topic(request.principal, request.path_parameters["topic"])


async def list_brokers(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /brokers. Returns all ids, sorted."""
    answer = BrokerIds(sorted(context.broker.admin.brokers()))
    return json_response(answer, content_type=negotiate(request, V2_OFFERED))


async def list_topics(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics. Returns all names, sorted."""
    names = [topic.name for topic in context.broker.admin.topics(request.principal)]
    return json_response(names, content_type=negotiate(request, V2_OFFERED))


async def describe_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics/{topic}."""
    topic = _topic(request, context)
    partitions = [_partition(row) for row in topic.partitions]
    answer = TopicAnswer(topic.name, _configs(request, context, topic.name), partitions)
    return json_response(answer, content_type=negotiate(request, V2_OFFERED))


def _configs(request: Request, context: ServerContext, topic: str) -> dict[str, str]:
    """Every config in force, or none without the right to describe the topic's configs."""
    try:
        _, described = context.broker.admin.describe_configs(request.principal, topic)
    except LogError as error:
        if error.entry is not FORBIDDEN:
            raise
        return {}
    return {config.entry.name: config.value for config in described}


async def list_partitions(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics/{topic}/partitions."""
    answer = [_partition(row) for row in _topic(request, context).partitions]
    return json_response(answer, content_type=negotiate(request, V2_OFFERED))


async def describe_partition(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics/{topic}/partitions/{partition}."""
    row = _topic(request, context).partition(partition_parameter(request))
    return json_response(_partition(row), content_type=negotiate(request, V2_OFFERED))


async def partition_offsets(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /topics/{topic}/partitions/{partition}/offsets."""
    bounds = await context.broker.offsets.bounds(
        request.principal, request.path_parameters["topic"], partition_parameter(request)
    )
    return json_response(OffsetsAnswer(*bounds), content_type=negotiate(request, V2_OFFERED))


# Produce

RECORD_MEDIA_TYPES: Final[Mapping[str, RecordFormat]] = MappingProxyType(
    {
        "application/vnd.kafka.json.v2+json": RecordFormat.JSON,
        "application/vnd.kafka.binary.v2+json": RecordFormat.BINARY,
        "application/vnd.kafka.text.v2+json": RecordFormat.TEXT,
        V2_MEDIA_TYPE: RecordFormat.JSON,
        JSON: RecordFormat.JSON,
    }
)
"""Format of a body's records, by its media type."""

FATAL: Final = 1
"""v2 error code of a record that would fail again."""
RETRIABLE: Final = 2
"""v2 error code of a record that may succeed if it is sent again."""


class OffsetAnswer(msgspec.Struct, frozen=True):
    """The place of one record, or its error."""

    partition: int
    offset: int | None
    error_code: int | None
    """Code 1 for a fatal error, 2 for a retriable error."""
    error: str | None


class ProduceAnswer(msgspec.Struct, frozen=True):
    """The response to a produce request. It has an entry per record, in the request's order."""

    offsets: list[OffsetAnswer]
    key_schema_id: None = None
    value_schema_id: None = None


async def produce_to_topic(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /topics/{topic}. The record, its key, or the node chooses the partition."""
    return await _produce(request, context, None)


async def produce_to_partition(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /topics/{topic}/partitions/{partition}. All records go to that partition."""
    return await _produce(request, context, partition_parameter(request))


async def _produce(
    request: Request, context: ServerContext, fixed: PartitionId | None
) -> web.StreamResponse:
    record_format = RECORD_MEDIA_TYPES.get(media_type(request))
    if record_format is None:
        raise LogError(
            UNSUPPORTED_MEDIA_TYPE,
            f"The Content-Type {media_type(request)[:100]!r} is not understood here; send "
            f"{', '.join(RECORD_MEDIA_TYPES)}.",
        )
    broker = context.broker
    topic = await broker.produce.topic(request.principal, request.path_parameters["topic"])
    body = await read_body(request, context)
    limits = context.limits
    produced = ProducedRecords(
        broker.record_time_ms(), limits.records_per_request_max, partial(context.hold, request)
    )
    parsed = await parse_produce_body(
        body, record_format, produced, depth_max=limits.json_depth_max, turns=broker.turns
    )
    options = idempotent_options(request, parsed, limits)
    if options.transactional_id is not None:
        broker.produce.authorize_transaction(request.principal, options.transactional_id)
    records, partitions = produced.records, produced.partitions
    if fixed is not None and any(number not in (None, fixed) for number in partitions):
        raise LogError(INVALID_BODY, f"The path says partition {fixed}, a record another.")
    has_none = partitions.count(None) == len(partitions)
    writes = await broker.produce.write(
        topic,
        records,
        None if has_none else partitions,
        options,
        size_bytes=len(body),
        partition=fixed,
    )
    raise_if_nothing_written(writes)
    return bytes_response(_answer(writes, len(records)), V2_MEDIA_TYPE)


def _answer(writes: Sequence[PartitionWrite], count: int) -> bytes:
    """Build the v2 response's JSON from text. An encoder would need an object per record."""
    ending = ',"error_code":null,"error":null}'
    if len(writes) == 1 and not isinstance(writes[0].outcome, LogError):
        start = f'{{"partition":{writes[0].number},"offset":'
        entries = start + f"{ending},{start}".join(map(str, writes[0].outcome)) + ending
    else:
        texts = [""] * count
        for write in writes:
            start = f'{{"partition":{write.number},"offset":'
            if isinstance(write.outcome, LogError):
                text = f"{start}null,{_v2_error(write.outcome)}}}"
                for index in write.indexes:
                    texts[index] = text
            else:
                for index, offset in zip(write.indexes, write.outcome, strict=True):
                    texts[index] = f"{start}{offset}{ending}"
        entries = ",".join(texts)
    return f'{{"offsets":[{entries}],"key_schema_id":null,"value_schema_id":null}}'.encode()


def _v2_error(error: LogError) -> str:
    code = RETRIABLE if error.entry.retriable else FATAL
    return f'"error_code":{code},"error":{msgspec.json.encode(error.message).decode()}'


# Reads

HIGH_WATERMARK_HEADER: Final = "X-Raftlog-High-Watermark"
NEXT_OFFSET_HEADER: Final = "X-Raftlog-Next-Offset"
LOG_START_HEADER: Final = "X-Raftlog-Log-Start-Offset"

LEADER: Final = "leader"
ANY: Final = "any"
REPLICAS: Final = (LEADER, ANY)
"""Replicas that may serve a read."""
READ_UNCOMMITTED: Final = "read_uncommitted"
ISOLATIONS: Final[Mapping[str, Isolation]] = MappingProxyType(
    {READ_UNCOMMITTED: Isolation.READ_UNCOMMITTED, "read_committed": Isolation.READ_COMMITTED}
)
ISOLATION_QUERY: Final = QueryParameter(
    "isolation",
    str,
    "read_uncommitted returns records of open and aborted transactions. read_committed returns "
    "neither, up to the last stable offset.",
    READ_UNCOMMITTED,
)
RESOLUTIONS_MAX: Final = 3
"""Most lookups of the end, the beginning or a time by one read. The log may be trimmed beyond the
offset before the read."""
OFFSET_HELP: Final = (
    "First offset, as a number, as earliest or latest, or as -N for the last N offsets up to the "
    "readable end (transaction markers and removed records also count)."
)
MAX_BYTES_DEFAULT: Final = 1024 * 1024
MAX_RECORDS_DEFAULT: Final = 10_000

READ_MEDIA_TYPES: Final[Mapping[str, RecordFormat]] = MappingProxyType(
    {
        "application/vnd.kafka.json.v2+json": RecordFormat.JSON,
        JSON: RecordFormat.JSON,
        "application/vnd.kafka.v2+json": RecordFormat.JSON,
        "application/vnd.kafka.binary.v2+json": RecordFormat.BINARY,
        "application/vnd.kafka.text.v2+json": RecordFormat.TEXT,
    }
)
_OFFERED: Final = tuple(READ_MEDIA_TYPES)


@dataclass(frozen=True, slots=True)
class _Poll:
    """The parameters of one read."""

    offset: Offset
    end_offset: Offset | None
    max_bytes: int
    max_records: int
    timeout_s: float
    isolation: Isolation


async def read_records(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET …/records. Returns records from an offset on.

    The read waits for the first record for up to `timeout` ms.
    """
    content_type = negotiate(request, _OFFERED)
    any_replica = choice_parameter(request, "replica", LEADER, REPLICAS) == ANY
    partition = context.broker.fetch.partition(
        request.principal,
        request.path_parameters["topic"],
        partition_parameter(request),
        any_replica=any_replica,
    )
    counters = context.broker.topics.topic(partition.topic)
    counters.fetch_requests += 1
    try:
        answer, last = await _read(request, context, partition, READ_MEDIA_TYPES[content_type])
    except LogError:
        counters.failed_fetch_requests += 1
        raise
    body = await answer.body()
    counters.bytes_out += len(body)
    headers = {
        HIGH_WATERMARK_HEADER: str(last.high_watermark),
        NEXT_OFFSET_HEADER: str(answer.progress.offset),
        LOG_START_HEADER: str(last.log_start_offset),
    }
    return bytes_response(body, content_type, headers=headers)


async def _read(
    request: Request,
    context: ServerContext,
    partition: PartitionHandle,
    record_format: RecordFormat,
) -> tuple[RecordsAnswer, Fetched]:
    """Read by the query. Returns the response, and the last chunk for its offsets."""
    resolutions_left = RESOLUTIONS_MAX
    while True:
        poll = await _parse(request, context, partition)
        answer = RecordsAnswer(
            request,
            context,
            partition,
            ReadProgress(poll.offset, poll.end_offset),
            record_format,
            records_max=poll.max_records,
            bytes_max=min(poll.max_bytes, context.limits.response_bytes_max),
        )
        resolutions_left -= 1
        try:
            last = await context.broker.fetch.read(
                partition,
                answer.progress,
                answer.take,
                max_bytes=poll.max_bytes,
                timeout_s=poll.timeout_s,
                isolation=poll.isolation,
            )
        except LogError as error:
            is_trimmed = error.entry is OFFSET_OUT_OF_RANGE and not _names_number(request)
            if not is_trimmed or not resolutions_left:
                raise
        else:
            return answer, last


async def _parse(request: Request, context: ServerContext, partition: PartitionHandle) -> _Poll:
    end_offset = integer_parameter(request, "end_offset", -1, minimum=0)
    timeout_ms = integer_parameter(request, "timeout", 0)
    isolation = isolation_parameter(request)
    return _Poll(
        offset=await start_offset(request, partition, isolation),
        end_offset=None if end_offset < 0 else Offset(end_offset),
        max_bytes=integer_parameter(request, "max_bytes", MAX_BYTES_DEFAULT, minimum=1),
        max_records=min(
            integer_parameter(request, "max_records", MAX_RECORDS_DEFAULT, minimum=1),
            context.limits.records_per_request_max,
        ),
        timeout_s=timeout_ms / 1000,
        isolation=isolation,
    )


def isolation_parameter(request: Request) -> Isolation:
    """The query's `isolation`. Raises LogError BAD_REQUEST."""
    return ISOLATIONS[choice_parameter(request, "isolation", READ_UNCOMMITTED, ISOLATIONS)]


async def start_offset(
    request: Request, partition: PartitionHandle, isolation: Isolation
) -> Offset:
    """The first offset to read, by `offset` (see `parse_offset`) or `timestamp` (ms)."""
    given = request.query_parameters
    if "timestamp" in given:
        if "offset" in given:
            raise LogError(BAD_REQUEST, "Give offset or timestamp, not both.")
        timestamp_ms = integer_parameter(request, "timestamp", 0)
        return await offset_at_time(timestamp_ms, partition, isolation)
    return await parse_offset(given.get("offset", NamedOffset.EARLIEST), partition, isolation)


async def parse_offset(text: str, partition: PartitionHandle, isolation: Isolation) -> Offset:
    """Parse an offset, which is a number, -N (the last N), earliest or latest.

    Raises LogError BAD_REQUEST.
    """
    if text in (NamedOffset.EARLIEST, NamedOffset.LATEST):
        return await named_offset(NamedOffset(text), partition, isolation)
    number = whole_number(text)
    if number is None or abs(number) > INT64_MAX:
        raise LogError(
            BAD_REQUEST,
            "offset must be a number, earliest, latest or -N (the last N offsets), not "
            f"{text[:40]!r}.",
        )
    if text.startswith("-"):
        return await offset_from_end(-number, partition, isolation)
    return Offset(number)


def _names_number(request: Request) -> bool:
    """Whether the query has the offset as a number, instead of a position to resolve."""
    return request.query_parameters.get("offset", "")[:1].isdigit()


_TOPIC: Final = "/topics/{topic}"
_PARTITION: Final = "/topics/{topic}/partitions/{partition}"

READ_ERRORS: Final = (UNKNOWN_TOPIC, UNKNOWN_PARTITION, NO_LEADER, STORAGE_FAILED)

_RECORDS_QUERY: Final = (
    QueryParameter("offset", str, OFFSET_HELP, "earliest"),
    QueryParameter("timestamp", int, "Begin at the first record that is not older (ms)."),
    QueryParameter("end_offset", int, "Stop before this offset."),
    QueryParameter("timeout", int, "Milliseconds to wait for the first record.", 0),
    QueryParameter(
        "max_bytes",
        int,
        "Approximate bytes to return. At least one record is returned.",
        MAX_BYTES_DEFAULT,
    ),
    QueryParameter("max_records", int, "Most records to return.", MAX_RECORDS_DEFAULT),
    QueryParameter(
        "replica",
        str,
        "leader or any. With any, this node may read its own replica, up to the high watermark "
        "that it knows.",
        LEADER,
    ),
    ISOLATION_QUERY,
)

_get = partial(
    Route, "GET", tag="topics", error_media_type=V2_MEDIA_TYPE, response_media_types=V2_OFFERED
)
_post = partial(
    Route,
    "POST",
    tag="records",
    error_media_type=V2_MEDIA_TYPE,
    query=IDEMPOTENT_QUERY,
    request_type=ProduceDocument,
    request_media_types=tuple(RECORD_MEDIA_TYPES),
    response_type=ProduceAnswer,
    response_media_types=(V2_MEDIA_TYPE,),
    errors=PRODUCE_ERRORS,
)

ROUTES: Final = (
    _get("/brokers", list_brokers, "Ids of all brokers.", response_type=BrokerIds),
    _get("/topics", list_topics, "Names of all topics.", response_type=list[str]),
    _get(
        _TOPIC,
        describe_topic,
        "One topic, with its partitions and replicas.",
        response_type=TopicAnswer,
        errors=(UNKNOWN_TOPIC,),
    ),
    _get(
        f"{_TOPIC}/partitions",
        list_partitions,
        "A topic's partitions.",
        response_type=list[PartitionAnswer],
        errors=(UNKNOWN_TOPIC,),
    ),
    _get(
        _PARTITION,
        describe_partition,
        "One partition, with its replicas.",
        response_type=PartitionAnswer,
        errors=(UNKNOWN_TOPIC, UNKNOWN_PARTITION),
    ),
    _get(
        f"{_PARTITION}/offsets",
        partition_offsets,
        "The readable offsets of a partition.",
        response_type=OffsetsAnswer,
        errors=READ_ERRORS,
    ),
    _post(_TOPIC, produce_to_topic, "Write records to a topic."),
    _post(_PARTITION, produce_to_partition, "Write records to one partition."),
    Route(
        "GET",
        f"{_PARTITION}/records",
        read_records,
        "Read records of a partition from an offset on: offset=-1 is the latest one. The headers "
        f"{HIGH_WATERMARK_HEADER}, {NEXT_OFFSET_HEADER} (where to go on) and {LOG_START_HEADER} "
        "come with them.",
        tag="records",
        error_media_type=V2_MEDIA_TYPE,
        query=_RECORDS_QUERY,
        response_type=list[RecordDocument],
        response_media_types=tuple(READ_MEDIA_TYPES),
        errors=(BAD_REQUEST, *READ_ERRORS, UNSUPPORTED_FORMAT, OFFSET_OUT_OF_RANGE),
        cancel_on_disconnect=True,
    ),
)
