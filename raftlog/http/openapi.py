"""/openapi.json describes the route table and the messages' types in OpenAPI 3.1.

Nothing is described twice. Paths, parameters, statuses and errors come from the routes, schemas
from the types that handlers decode and encode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

import raftlog
from raftlog.api.common import ErrorBody
from raftlog.broker.shared import ListenedService
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import JSON, bytes_response
from raftlog.http.routing import Route
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry

ANY_REQUEST: Final = (
    errors.BAD_REQUEST,
    errors.ORIGIN_NOT_ALLOWED,
    errors.HOST_NOT_ALLOWED,
    errors.QUOTA_EXCEEDED,
    errors.HEADERS_TOO_LARGE,
)
ANY_REQUEST_OF_A_NODE: Final = (
    errors.FORBIDDEN,
    errors.INTERNAL,
    errors.NOT_READY,
    errors.OVERLOADED,
)
ANY_BODY: Final = (
    errors.INVALID_BODY,
    errors.BODY_TOO_LARGE,
    errors.REQUEST_TIMEOUT,
    errors.UNSUPPORTED_MEDIA_TYPE,
)

PATH_PARAMETERS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "topic": ({"type": "string", "minLength": 1}, "Name of a topic."),
    "partition": (
        {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        "Number of a partition of the topic, from 0.",
    ),
    "cluster": ({"type": "string", "minLength": 1}, "Id of the cluster, or -."),
    "broker": ({"type": "integer", "minimum": 0}, "Number of a broker."),
    "node": ({"type": "integer", "minimum": 1}, "Number of a node."),
    "group": ({"type": "string", "minLength": 1, "maxLength": 255}, "Id of a consumer group."),
    "instance": (
        {"type": "string", "minLength": 1, "maxLength": 255},
        "Name of a consumer instance of the group.",
    ),
    "consumer": ({"type": "string", "minLength": 1, "maxLength": 255}, "Id of a group's member."),
    "config": ({"type": "string", "minLength": 1}, "Name of a config."),
    "id": ({"type": "string", "minLength": 1, "maxLength": 255}, "A transactional id."),
    "sink": ({"type": "string", "minLength": 1, "maxLength": 200}, "Id of a sink."),
    "epoch": ({"type": "integer", "minimum": 0}, "Number of an epoch of the sink."),
}

REF_TEMPLATE: Final = "#/components/schemas/{name}"
_NAME_IN_BRACES = re.compile(r"\{([a-z_]+)\}")


def route(routes: Sequence[Route]) -> Route:
    """The route of the description of `routes` and of itself."""
    document: list[bytes] = []

    async def openapi(
        _request: Request, _context: ServerContext[ListenedService]
    ) -> web.StreamResponse:
        if not document:
            # The first request builds it, because most nodes never need these milliseconds.
            document.append(msgspec.json.encode(describe((*routes, own))))
        return bytes_response(document[0], JSON)

    own = Route(
        "GET",
        "/openapi.json",
        openapi,
        "This description",
        tag="node",
        response_type=dict[str, Any],
        serves_always=True,
    )
    return own


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of a route table."""
    table = list(routes)
    types: list[Any] = [ErrorBody]
    for item in table:
        types += [item.request_type, *_alternatives(item.response_type)]
        types += [parameter.type for parameter in item.query]
    distinct = [kind for kind in types if kind is not None]
    schemas, components = msgspec.json.schema_components(distinct, ref_template=REF_TEMPLATE)
    schema_of = {_key(kind): schema for kind, schema in zip(distinct, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for item in table:
        operation = _operation(item, schema_of)
        paths.setdefault(item.path, {})[item.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "raftlog",
            "version": raftlog.__version__,
            "description": "A durable, ordered log service over HTTP.",
        },
        "paths": paths,
        "components": {"schemas": components},
        "tags": [{"name": name} for name in sorted({item.tag for item in table})],
    }


def _operation(item: Route, schema_of: dict[object, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": item.summary,
        "operationId": _operation_id(item),
        "tags": [item.tag],
        "parameters": [_path_parameter(name) for name in _NAME_IN_BRACES.findall(item.path)],
        "responses": {str(item.status): _success(item, schema_of)},
    }
    for parameter in item.query:
        schema = dict(schema_of[_key(parameter.type)])
        if parameter.default is not None:
            schema["default"] = parameter.default
        operation["parameters"].append(
            {
                "name": parameter.name,
                "in": "query",
                "description": parameter.description,
                "required": False,
                "schema": schema,
            }
        )
    failures = [*ANY_REQUEST, *item.errors]
    if not item.serves_always:
        failures += ANY_REQUEST_OF_A_NODE
    if item.request_type is not None:
        failures += ANY_BODY
        schema = schema_of[_key(item.request_type)]
        operation["requestBody"] = {
            "required": item.body_required,
            "content": {name: _content(name, schema) for name in item.request_media_types},
        }
    operation["responses"] |= _responses(failures, item.error_media_type)
    return operation


def _success(item: Route, schema_of: dict[object, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Success."}
    if item.status != 204:
        schemas = [schema_of[_key(kind)] for kind in _alternatives(item.response_type)]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else {}
        answer["content"] = {name: _content(name, schema) for name in item.response_media_types}
    return answer


def _alternatives(kind: object) -> tuple[object, ...]:
    """The types of a body, which are none, one type, or those of a tuple."""
    if kind is None:
        return ()
    return kind if isinstance(kind, tuple) else (kind,)


def _content(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"schema": schema} if "json" in media_type else {}


def _responses(entries: Iterable[ErrorEntry], media_type: str) -> dict[str, Any]:
    """The responses by status. Each description lists its codes."""
    by_status: dict[int, dict[int, ErrorEntry]] = {}
    for entry in entries:
        by_status.setdefault(entry.http_status, {})[entry.code] = entry
    content = {media_type: {"schema": {"$ref": REF_TEMPLATE.format(name=ErrorBody.__name__)}}}
    return {
        str(status): {
            "description": " ".join(f"{code}: {found[code].message}" for code in sorted(found)),
            "content": content,
        }
        for status, found in sorted(by_status.items())
    }


def _path_parameter(name: str) -> dict[str, Any]:
    schema, description = PATH_PARAMETERS[name]
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
    }


def _operation_id(item: Route) -> str:
    words = re.findall(r"[A-Za-z0-9]+", item.path)
    return "_".join([item.method.lower(), *words])


def _key(kind: object) -> object:
    """A key of a type. An annotated type is unhashable if its metadata is."""
    try:
        hash(kind)
    except TypeError:
        return repr(kind)
    return kind
