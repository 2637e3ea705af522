"""Ready-made serializers and deserializers: bytes, text, JSON. Any callable of the shape will do.

None never reaches them: a missing key, and a tombstone's value, stay None in both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import orjson

Serializer: TypeAlias = Callable[[Any], bytes]
"""Turns a key or value into bytes; may raise anything, which reaches the caller chained."""
Deserializer: TypeAlias = Callable[[bytes], Any]
"""Turns the bytes of a key or value into an object; may raise anything."""


def bytes_serializer(value: bytes) -> bytes:
    """Bytes as they are."""
    return value


def bytes_deserializer(data: bytes) -> bytes:
    """Bytes as they are."""
    return data


def string_serializer(value: str) -> bytes:
    """Text as UTF-8."""
    return value.encode()


def string_deserializer(data: bytes) -> str:
    """UTF-8 as text."""
    return data.decode()


def json_serializer(value: Any) -> bytes:
    """Anything that orjson knows (dataclasses, datetimes and UUIDs too), as JSON."""
    return orjson.dumps(value)


def json_deserializer(data: bytes) -> Any:
    """JSON as plain Python objects."""
    return orjson.loads(data)
