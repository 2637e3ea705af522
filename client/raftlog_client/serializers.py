"""Ready-made serializers and deserializers: bytes, text, JSON. Any callable of the shape will do.

None never reaches them: a missing key, and a tombstone's value, stay None in both directions.

Which partition a record goes to, when its sender does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import orjson

from raftlog.record.partitioner import partition_for_key

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


class Partitioner(Protocol):
    """Chooses a partition in [0, partition_count), or None: the producer's sticky choice.

    The sticky choice stays on one partition until its batch is on its way, and then takes the next
    partition that has a leader, so that records without a key travel in few, large batches.
    """

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partition_count: int
    ) -> int | None:
        """The partition for a record of these serialized bytes."""
        ...


def murmur2_partitioner(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    partition_count: int,
) -> int | None:
    """Kafka's default: murmur2 of the key; sticky for records without one."""
    if key is None:
        return None
    return partition_for_key(key, partition_count)
