"""Encodes keys and values to bytes and chooses a partition.

The serializers and deserializers here are for bytes, text and JSON. Any callable of the same shape
works. None never reaches a serializer, so a missing key and a tombstone's value stay None in both
directions.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any, Final, Protocol

import orjson
from murmurhash2 import murmurhash2

from raftlog.record.partitioner import MURMUR2_SEED, POSITIVE, partition_for_key
from raftlog_client.errors import RecordTooLargeError, SerializationError
from raftlog_client.produce.accumulator import RECORD_OVERHEAD_BYTES, TopicQueues
from raftlog_client.produce.delivery import PartitionQueue
from raftlog_client.types import Headers

HEADER_OVERHEAD_BYTES: Final = 4
_BYTES: Final = (bytes, bytearray, memoryview)


def bytes_serializer(value: bytes) -> bytes:
    """Return the bytes unchanged."""
    return value


def bytes_deserializer(data: bytes) -> bytes:
    """Return the bytes unchanged."""
    return data


def string_serializer(value: str) -> bytes:
    """Encode text as UTF-8."""
    return value.encode()


def string_deserializer(data: bytes) -> str:
    """Decode UTF-8 text."""
    return data.decode()


def json_serializer(value: Any) -> bytes:
    """Encode any object known to orjson (including dataclasses, datetimes and UUIDs) as JSON."""
    return orjson.dumps(value)


def json_deserializer(data: bytes) -> Any:
    """Decode JSON to plain Python objects."""
    return orjson.loads(data)


class Partitioner(Protocol):
    """Chooses a partition in [0, partition_count), or None for the producer's sticky choice.

    The sticky choice stays on one partition until its batch leaves, and then takes the next
    partition with a leader. Records without a key then travel in few, large batches.
    """

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partition_count: int
    ) -> int | None:
        """Return the partition for a record of these serialized bytes."""
        ...


def murmur2_partitioner(
    topic: str, key: bytes | None, value: bytes | None, partition_count: int
) -> int | None:
    """Return Kafka's default, murmur2 of the key, or the sticky choice without a key."""
    if key is None:
        return None
    return partition_for_key(key, partition_count)


def whole_timestamp_ms(timestamp_ms: Any) -> int:
    """Return the timestamp as an int. Raises SerializationError unless it is a whole number.

    A float is rejected, not rounded. It may well be `time.time()`, which counts seconds.
    """
    if not isinstance(timestamp_ms, bool):
        try:
            return index(timestamp_ms)
        except TypeError:
            pass
    raise SerializationError(
        f"timestamp_ms is {timestamp_ms!r:.80}, of type {type(timestamp_ms).__name__}: give whole "
        "milliseconds since 1970, as in int(time.time() * 1000)."
    )


class RecordEncoder:
    """Serializes one producer's records and chooses their partitions."""

    __slots__ = ("is_default", "key_serializer", "partitioner", "record_bytes_max",
                 "value_serializer")  # fmt: skip

    def __init__(
        self,
        *,
        key_serializer: Callable[[Any], bytes] | None,
        value_serializer: Callable[[Any], bytes] | None,
        partitioner: Partitioner,
        record_bytes_max: int,
    ) -> None:
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        self.partitioner = partitioner
        self.is_default = partitioner is murmur2_partitioner
        """Whether records without a key go to the sticky partition, without a call."""
        self.record_bytes_max = record_bytes_max

    def value(self, value: Any) -> bytes | None:
        """Return the value's bytes. Raises SerializationError, RecordTooLargeError."""
        if value.__class__ is bytes and self.value_serializer is None:
            return value
        return self._encode(value, self.value_serializer, "value")

    def key(self, key: Any) -> bytes | None:
        """Return the key's bytes. Raises SerializationError, RecordTooLargeError."""
        if key.__class__ is bytes and self.key_serializer is None:
            return key
        return self._encode(key, self.key_serializer, "key")

    def queue(
        self, topic: TopicQueues, partition: int | None, key: bytes | None, value: bytes | None
    ) -> PartitionQueue:
        """Return the record's partition. Raises TopicNotFoundError for an unknown partition."""
        if partition is not None:
            return topic.queue(partition)
        if self.is_default:
            if key is not None:
                # The default partitioner without the call, because this runs for every keyed
                # record.
                queues = topic.queues
                return queues[(murmurhash2(key, MURMUR2_SEED) & POSITIVE) % len(queues)]
        else:
            partition = self.partitioner(topic.name, key, value, len(topic.queues))
            if partition is not None:
                return topic.queue(partition)
        return topic.sticky if topic.sticky.open is not None else topic.next_sticky()

    def size(self, key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
        """Estimate the record's size in a batch. Raises RecordTooLargeError."""
        size = RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            for name, content in headers:
                size += len(name) + len(content or b"") + HEADER_OVERHEAD_BYTES
        if size > self.record_bytes_max:
            raise RecordTooLargeError(
                f"The record has {size} bytes; request_bytes_max is {self.record_bytes_max}."
            )
        return size

    def _encode(
        self, value: Any, serializer: Callable[[Any], bytes] | None, what: str
    ) -> bytes | None:
        if value is None:
            return None
        if serializer is not None:
            try:
                value = serializer(value)
            except Exception as error:
                raise SerializationError(f"The {what}_serializer failed: {error!r}") from error
        if not isinstance(value, _BYTES):
            raise SerializationError(
                f"The {what} is {type(value).__name__}, not bytes: give a {what}_serializer."
            )
        # A bytearray may change before the codec copies it. A record never does.
        return value if isinstance(value, bytes) else bytes(value)
