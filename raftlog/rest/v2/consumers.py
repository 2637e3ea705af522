"""Consumer instances of the v2 convention subscribe, assign, seek, read and commit.

Names and shapes are the Confluent REST Proxy's, as Karapace and Redpanda also have them. Where the
three contradict each other, docs/decisions/rest-consumers.md names the rule.
"""

from __future__ import annotations

from datetime import UTC
from http import HTTPStatus
from typing import Final, TypeVar
from unicodedata import category
from urllib.parse import quote

import msgspec
from aiohttp import web

from raftlog.api.common import Empty
from raftlog.broker.consumer_instances import OffsetToCommit
from raftlog.broker.offsets import NamedOffset
from raftlog.broker.shared import ListenedService
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext, integer_parameter, own_url
from raftlog.http.responses import (
    bytes_response,
    empty_response,
    error_response,
    json_response,
    negotiate,
)
from raftlog.http.routing import Handler, QueryParameter, Route
from raftlog.http.settings import ServerLimits
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry, LogError, quoted
from raftlog.rest.json.records import RecordDocument, RecordFormat
from raftlog.rest.v2 import consumer_shapes as shapes
from raftlog.rest.v2.consumer_options import ConsumerInstanceRequest, instance_options
from raftlog.rest.v2.instance_reads import InstanceRead, ReadBounds
from raftlog.rest.v2.leader_reads import LeaderSource
from raftlog.rest.v2.topics import (
    ISOLATION_QUERY,
    MAX_BYTES_DEFAULT,
    MAX_RECORDS_DEFAULT,
    V2_MEDIA_TYPE,
    V2_OFFERED,
    isolation_parameter,
)

T = TypeVar("T")

BODY_MEDIA_TYPES: Final = (
    *V2_OFFERED,
    "application/vnd.kafka.json.v2+json",
    "application/vnd.kafka.binary.v2+json",
    "application/vnd.kafka.text.v2+json",
    "application/vnd.kafka.avro.v2+json",
)
"""Clients send the type of the records with every request."""
RECORDS_OFFERED: Final = {
    kind.value: (f"application/vnd.kafka.{kind}.v2+json", *V2_OFFERED) for kind in RecordFormat
}
"""Media types of records by format. Some leave the format to the instance."""
NAME_CHARACTERS_MAX: Final = 255

_create_decoder = msgspec.json.Decoder(ConsumerInstanceRequest)
_subscription_decoder = msgspec.json.Decoder(shapes.Subscription)
partitions_decoder = msgspec.json.Decoder(shapes.Partitions)
positions_decoder = msgspec.json.Decoder(shapes.Positions)
_commit_decoder = msgspec.json.Decoder(shapes.OffsetsToCommit)


def _check_name(noun: str, name: str) -> str:
    """The name itself. Raises LogError BAD_REQUEST for control characters, which logs show."""
    if any(category(character) == "Cc" for character in name):
        raise LogError(errors.BAD_REQUEST, f"The {noun} {quoted(name)} has control characters.")
    return name


def _group(request: Request) -> str:
    return _check_name("group", request.path_parameters["group"])


def instance_of(request: Request) -> tuple[str, str]:
    """Group and instance of the path. Raises LogError BAD_REQUEST for control characters."""
    return _group(request), _check_name("instance", request.path_parameters["instance"])


async def _body(
    request: Request, context: ServerContext[ListenedService], decoder: msgspec.json.Decoder[T]
) -> T | None:
    """The body, or None without a body. Raises LogError."""
    if not request.body_exists:
        return None
    if "Content-Type" not in request.headers:
        raise LogError(
            errors.UNSUPPORTED_MEDIA_TYPE, f"The body has no Content-Type; send {V2_MEDIA_TYPE}."
        )
    return await read_json(request, context, decoder, BODY_MEDIA_TYPES)


async def required_body(
    request: Request, context: ServerContext[ListenedService], decoder: msgspec.json.Decoder[T]
) -> T:
    """The body. Raises LogError INVALID_BODY if there is none, and the body reader's errors."""
    found = await _body(request, context, decoder)
    if found is None:
        raise LogError(errors.INVALID_BODY, "The request has no body.")
    return found


# The instance


async def create(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /consumers/{group}."""
    group = _group(request)
    try:
        content_type = negotiate(request, V2_OFFERED)
    except LogError as error:
        # A client that accepts a records type here gets a type that every client knows.
        return error_response(error.entry, error.message)
    body = await _body(request, context, _create_decoder) or ConsumerInstanceRequest()
    if body.name is not None and not 1 <= len(body.name) <= NAME_CHARACTERS_MAX:
        raise LogError(
            errors.INVALID_CONSUMER_CONFIG,
            f"Invalid consumer configuration: a name has 1 to {NAME_CHARACTERS_MAX} characters.",
        )
    _check_name("instance", body.name or "")
    name = await context.broker.consumer_instances.create(
        request.principal, group, body.name, instance_options(body)
    )
    path = f"/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}"
    answer = shapes.Created(name, own_url(request, context) + path)
    return json_response(answer, content_type=content_type)


async def delete(request: Request, context: ServerContext) -> web.StreamResponse:
    """DELETE /consumers/{group}/instances/{instance}."""
    await context.broker.consumer_instances.delete(request.principal, *instance_of(request))
    return empty_response()


async def subscribe(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST …/subscription."""
    group, instance = instance_of(request)
    body = await required_body(request, context, _subscription_decoder)
    topics = [_check_name("topic", topic) for topic in body.topics or ()]
    if not topics and body.topic_pattern is None:
        raise LogError(errors.INVALID_BODY, "The body has neither topics nor a topic_pattern.")
    await context.broker.consumer_instances.subscribe(
        request.principal,
        group,
        instance,
        topics=topics,
        pattern=body.topic_pattern,
        client_host=request.remote or "",
    )
    return empty_response()


async def subscription(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET …/subscription."""
    content_type = negotiate(request, BODY_MEDIA_TYPES)
    view = await context.broker.consumer_instances.describe(
        request.principal, *instance_of(request)
    )
    return json_response(shapes.Subscribed(list(view.topics)), content_type=content_type)


async def unsubscribe(request: Request, context: ServerContext) -> web.StreamResponse:
    """DELETE …/subscription."""
    await context.broker.consumer_instances.subscribe(request.principal, *instance_of(request))
    return empty_response()


async def assign(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST …/assignments."""
    group, instance = instance_of(request)
    body = await required_body(request, context, partitions_decoder)
    await context.broker.consumer_instances.assign(
        request.principal, group, instance, places_of(body)
    )
    return empty_response()


async def assignments(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET …/assignments."""
    content_type = negotiate(request, BODY_MEDIA_TYPES)
    view = await context.broker.consumer_instances.describe(
        request.principal, *instance_of(request)
    )
    answer = shapes.Partitions([shapes.PartitionName(*place) for place in view.partitions])
    return json_response(answer, content_type=content_type)


def places_of(body: shapes.Partitions) -> list[tuple[str, int]]:
    """Topics and partition numbers of a body. LogError BAD_REQUEST for control characters."""
    return [(_check_name("topic", row.topic), row.partition) for row in body.partitions]


# Positions, records, offsets


async def seek(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST …/positions."""
    group, instance = instance_of(request)
    body = await required_body(request, context, positions_decoder)
    await context.broker.consumer_instances.seek(
        request.principal,
        group,
        instance,
        offsets={(row.topic, row.partition): row.offset for row in body.offsets},
        times_ms={(row.topic, row.partition): time_ms_of(row) for row in body.timestamps},
    )
    return empty_response()


def time_ms_of(row: shapes.PositionTime) -> int:
    """The time of a body's row, in milliseconds since the Unix epoch."""
    time = row.timestamp
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(int(time.timestamp() * 1000), 0)


def _seek_to(target: NamedOffset) -> Handler:
    async def handler(request: Request, context: ServerContext) -> web.StreamResponse:
        group, instance = instance_of(request)
        body = await required_body(request, context, partitions_decoder)
        await context.broker.consumer_instances.seek_to(
            request.principal, group, instance, places_of(body), target
        )
        return empty_response()

    return handler


async def read_records(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET …/records. Returns records from the positions on, after a wait for the first."""
    instance_of(request)
    bounds = read_bounds(request, context.limits)
    source = LeaderSource(request, context, bounds)
    read = InstanceRead(context, source, accepted_media_types(request), bounds)
    body, content_type = await read.run()
    return bytes_response(body, content_type)


def read_bounds(request: Request, limits: ServerLimits) -> ReadBounds:
    """The bounds of a read, by the query and the limits. Raises LogError BAD_REQUEST."""
    timeout_ms = integer_parameter(request, "timeout", -1)
    return ReadBounds(
        timeout_s=None if timeout_ms < 0 else timeout_ms / 1000,
        bytes_max=integer_parameter(request, "max_bytes", MAX_BYTES_DEFAULT, minimum=1),
        records_max=min(MAX_RECORDS_DEFAULT, limits.records_per_request_max),
        isolation=isolation_parameter(request),
    )


def accepted_media_types(request: Request) -> dict[str, str]:
    """The response's media type, by the formats that the Accept header allows."""
    found: dict[str, str] = {}
    refusal: LogError | None = None
    for kind, offered in RECORDS_OFFERED.items():
        try:
            found[kind] = negotiate(request, offered)
        except LogError as error:
            refusal = error
    if not found and refusal is not None:
        raise refusal
    return found


async def commit(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST …/offsets."""
    group, instance = instance_of(request)
    content_type = negotiate(request, BODY_MEDIA_TYPES)
    body = await _body(request, context, _commit_decoder) or shapes.OffsetsToCommit()
    if body.offsets is not None and body.partitions is not None:
        raise LogError(errors.INVALID_BODY, "Give offsets or partitions, not both.")
    offsets: list[OffsetToCommit] | None = None
    if body.offsets is not None:
        offsets = [
            OffsetToCommit(row.topic, row.partition, _next(row), metadata=row.metadata or "")
            for row in body.offsets
        ]
    elif body.partitions is not None:
        offsets = [
            OffsetToCommit(row.topic, row.partition, row.offset, metadata=row.metadata or "")
            for row in body.partitions
        ]
    await context.broker.consumer_instances.commit(request.principal, group, instance, offsets)
    return json_response(Empty(), content_type=content_type)


def _next(row: shapes.ReadOffset) -> int:
    """The next offset to read. Raises LogError INVALID_BODY unless exactly one field is given."""
    if (row.offset is None) == (row.next_offset is None):
        raise LogError(
            errors.INVALID_BODY,
            f"The body is not valid: {row.topic}-{row.partition} needs either offset or "
            "next_offset.",
        )
    return (row.next_offset or 0) if row.offset is None else row.offset + 1


async def committed(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET …/offsets. The body names partitions. Without a body, all of the instance are meant."""
    group, instance = instance_of(request)
    content_type = negotiate(request, BODY_MEDIA_TYPES)
    body = await _body(request, context, partitions_decoder)
    found = await context.broker.consumer_instances.committed(
        request.principal, group, instance, None if body is None else places_of(body)
    )
    answer = shapes.CommittedOffsets(
        [
            shapes.CommittedOffset(row.topic, row.partition, row.offset, row.metadata)
            for row in found
        ]
    )
    return json_response(answer, content_type=content_type)


_GROUP: Final = "/consumers/{group}"
_INSTANCE: Final = f"{_GROUP}/instances/{{instance}}"
_ERRORS: Final = (errors.INVALID_GROUP, errors.COORDINATOR_LOADING, errors.NOT_COORDINATOR)
_CHANGE_ERRORS: Final = (errors.RETRIABLE,)


def _route(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    *failures: ErrorEntry,
    body: object = None,
    body_required: bool = True,
    answer: object = None,
) -> Route:
    found = [errors.UNKNOWN_INSTANCE] if "{instance}" in path else []
    if method != "GET":
        found += _CHANGE_ERRORS
    return Route(
        method,
        path,
        handler,
        summary,
        tag="consumer instances",
        error_media_type=V2_MEDIA_TYPE,
        request_type=body,
        request_media_types=BODY_MEDIA_TYPES,
        body_required=body_required,
        response_type=answer,
        response_media_types=BODY_MEDIA_TYPES,
        status=HTTPStatus.NO_CONTENT if answer is None else HTTPStatus.OK,
        errors=(*found, *failures, *_ERRORS),
        ignores_empty=True,
    )


ROUTES: Final = (
    _route(
        "POST",
        _GROUP,
        create,
        "Create a consumer instance. It lives in the cluster, and every node serves it.",
        errors.INSTANCE_EXISTS,
        errors.TOO_MANY_INSTANCES,
        errors.INVALID_CONSUMER_CONFIG,
        errors.UNSUPPORTED_FORMAT,
        body=ConsumerInstanceRequest,
        body_required=False,
        answer=shapes.Created,
    ),
    _route("DELETE", _INSTANCE, delete, "End a consumer instance"),
    _route(
        "POST",
        f"{_INSTANCE}/subscription",
        subscribe,
        "Subscribe to topics by name, or by a pattern. The group shares their partitions",
        errors.ILLEGAL_STATE,
        errors.INVALID_PATTERN,
        errors.GROUP_FULL,
        errors.TOO_MANY_GROUPS,
        body=shapes.Subscription,
    ),
    _route(
        "GET",
        f"{_INSTANCE}/subscription",
        subscription,
        "The subscribed topics",
        errors.UNSUPPORTED_FORMAT,
        answer=shapes.Subscribed,
    ),
    _route("DELETE", f"{_INSTANCE}/subscription", unsubscribe, "End subscription or assignment"),
    _route(
        "POST",
        f"{_INSTANCE}/assignments",
        assign,
        "Read these partitions, whatever other instances of the group read",
        errors.ILLEGAL_STATE,
        errors.UNKNOWN_TOPIC,
        errors.UNKNOWN_PARTITION,
        body=shapes.Partitions,
    ),
    _route(
        "GET",
        f"{_INSTANCE}/assignments",
        assignments,
        "The partitions that the instance reads",
        errors.UNSUPPORTED_FORMAT,
        answer=shapes.Partitions,
    ),
    _route(
        "POST",
        f"{_INSTANCE}/positions",
        seek,
        "Continue at these offsets, or at the first records of these times",
        errors.ILLEGAL_STATE,
        errors.NO_LEADER,
        errors.STORAGE_FAILED,
        body=shapes.Positions,
    ),
    _route(
        "POST",
        f"{_INSTANCE}/positions/beginning",
        _seek_to(NamedOffset.EARLIEST),
        "Continue at the first records",
        errors.ILLEGAL_STATE,
        errors.NO_LEADER,
        errors.STORAGE_FAILED,
        body=shapes.Partitions,
    ),
    _route(
        "POST",
        f"{_INSTANCE}/positions/end",
        _seek_to(NamedOffset.LATEST),
        "Continue at the end",
        errors.ILLEGAL_STATE,
        errors.NO_LEADER,
        errors.STORAGE_FAILED,
        body=shapes.Partitions,
    ),
    Route(
        "GET",
        f"{_INSTANCE}/records",
        read_records,
        "Read the next records, in the instance's format. A commit or a later read commits their "
        "offsets.",
        tag="consumer instances",
        error_media_type=V2_MEDIA_TYPE,
        query=(
            QueryParameter(
                "timeout",
                int,
                "Milliseconds to wait for records. The default is the instance's "
                "consumer.request.timeout.ms.",
            ),
            QueryParameter(
                "max_bytes",
                int,
                "Approximate bytes to return. At least one record is returned.",
                MAX_BYTES_DEFAULT,
            ),
            ISOLATION_QUERY,
        ),
        response_type=list[RecordDocument],
        response_media_types=tuple(
            dict.fromkeys(
                media_type for offered in RECORDS_OFFERED.values() for media_type in offered
            )
        ),
        errors=(
            errors.UNKNOWN_INSTANCE,
            errors.UNKNOWN_TOPIC,
            errors.UNSUPPORTED_FORMAT,
            errors.ILLEGAL_STATE,
            errors.UNREADABLE_RECORD,
            errors.NO_LEADER,
            errors.STORAGE_FAILED,
            *_ERRORS,
        ),
        cancel_on_disconnect=True,
        ignores_empty=True,
    ),
    _route(
        "POST",
        f"{_INSTANCE}/offsets",
        commit,
        "Commit these offsets, or those of all records read. `offsets` name consumed records, "
        "`partitions` the next records to read.",
        errors.UNKNOWN_TOPIC,
        errors.UNKNOWN_PARTITION,
        errors.UNKNOWN_MEMBER,
        errors.TOO_MANY_GROUPS,
        errors.OFFSET_METADATA_TOO_LARGE,
        errors.UNSUPPORTED_FORMAT,
        body=shapes.OffsetsToCommit,
        body_required=False,
        answer=Empty,
    ),
    _route(
        "GET",
        f"{_INSTANCE}/offsets",
        committed,
        "Committed offsets of the group, of the partitions in the body, or of the instance's",
        errors.UNSUPPORTED_FORMAT,
        body=shapes.Partitions,
        body_required=False,
        answer=shapes.CommittedOffsets,
    ),
)
