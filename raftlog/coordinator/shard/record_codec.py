"""Records of the internal topics to bytes and back.

A key or value of another release decodes to `UnknownRecord`, so that a shard can refuse to serve
instead of dropping state. Unknown *tagged* fields of a known version are skipped, and missing from
the key's next record. A writer tags only fields that older readers may ignore (KIP-482).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from raftlog.coordinator.shard.decision import CoordinatorRecord
from raftlog.coordinator.shard.records import (
    NO_TIMESTAMP,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerInstanceKey,
    ConsumerInstancePositionKey,
    ConsumerInstancePositionValue,
    ConsumerInstanceValue,
    GroupMetadataKey,
    GroupMetadataValue,
    Key,
    OffsetCommitKey,
    OffsetCommitValue,
    SinkEpochKey,
    SinkEpochValue,
    TransactionLogKey,
    TransactionLogValue,
    Value,
)
from raftlog.record.errors import MALFORMED_BATCH, UNSUPPORTED_FORMAT, LogError
from raftlog.record.types import Buffer
from raftlog.schema.codec import Codec, codec_of
from raftlog.schema.errors import DecodeError

RECORD_ELEMENTS_MAX: Final = 1 << 20
"""Array elements of one record, more than any record of 4 MiB can have. A partition takes at least
four bytes."""


class UnknownRecord(NamedTuple):
    """A record of a newer release, or of Kafka, with unknown effect on the state."""

    key_number: int
    value_version: int | None
    """None: a tombstone."""


class _Kind(NamedTuple):
    """A type of record."""

    number: int
    key_type: type[Key]
    value_type: type[Value]
    written_version: int
    """Version of new values. Every version of the type is read."""


_OFFSETS_KINDS: Final = (
    _Kind(1, OffsetCommitKey, OffsetCommitValue, 3),
    _Kind(2, GroupMetadataKey, GroupMetadataValue, 3),
    _Kind(3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0),
    _Kind(5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, 0),
    _Kind(
        6,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
        0,
    ),
    _Kind(7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, 0),
    _Kind(8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, 0),
    _Kind(16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, 0),
    _Kind(101, ConsumerInstanceKey, ConsumerInstanceValue, 0),
    _Kind(102, ConsumerInstancePositionKey, ConsumerInstancePositionValue, 0),
)
_TRANSACTION_KINDS: Final = (
    _Kind(0, TransactionLogKey, TransactionLogValue, 1),
    _Kind(100, SinkEpochKey, SinkEpochValue, 0),
)

_KINDS: Final = {kind.key_type: kind for kind in (*_OFFSETS_KINDS, *_TRANSACTION_KINDS)}

_Decoders: TypeAlias = tuple[Callable[[Buffer, int, int], Any], Callable[[Buffer, int, int], Any]]
DECODERS_MAX: Final = 128
"""Kept pairs of decoders, more than there are known keys and versions."""

NAMES_MAX: Final = 1_024
"""Kept names of `group_and_topic`. A log has many offsets of one group in a row."""

USUAL_OFFSET: Final = re.compile(rb"\x00\x04.{12}\x01.{8}\x01\x00\x10.{16}", re.DOTALL)
"""The value of nearly all offsets. Whatever matches is well-formed. It has version 4, offset and
leader epoch, no metadata, commit time, and one tagged field (0, of 16 bytes), the topic id."""

_VERSION: Final = struct.Struct(">h")
_unpack_version: Final = _VERSION.unpack_from


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value, or None as the value of a tombstone.

    Raises EncodeError for a value beyond the written version, which is a string over 32,767 bytes
    (flexible versions have no such limit), a number out of range, or an offset commit with an
    expire timestamp and a leader epoch or topic id (no version has both). Raises TypeError for a
    value of another key's type.
    """
    key, value = record
    kind = _KINDS[type(key)]
    key_bytes = _VERSION.pack(kind.number) + codec_of(kind.key_type, 0).encode(key)
    if value is None:
        return key_bytes, None
    if type(value) is not kind.value_type:
        raise TypeError(f"{type(value).__name__} is no value of a {type(key).__name__}")
    if type(value) is OffsetCommitValue:
        return key_bytes, encode_offset_value(value)
    version = kind.written_version
    return key_bytes, _VERSION.pack(version) + codec_of(kind.value_type, version).encode(value)


def decode_offsets_record(key: Buffer, value: Buffer | None) -> CoordinatorRecord | UnknownRecord:
    """A record of `__consumer_offsets`. Raises DecodeError for malformed bytes."""
    return _decode(_offsets_decoders, key, value)


def encode_offset_value(value: OffsetCommitValue) -> bytes:
    """The value of a committed offset's record. Raises EncodeError as `encode_record`."""
    version = _offset_commit_version(value)
    return _VERSION.pack(version) + codec_of(OffsetCommitValue, version).encode(value)


def decode_offset_value(data: bytes) -> OffsetCommitValue:
    """The other way round. Raises DecodeError."""
    (version,) = _unpack_version(data)
    decode = codec_of(OffsetCommitValue, version).decode
    return decode(data, _VERSION.size, RECORD_ELEMENTS_MAX)


@lru_cache(maxsize=NAMES_MAX)
def group_and_topic(prefix: bytes) -> tuple[str, str] | None:
    """The names in an offset's key without its last four bytes. None for another key.

    Any four bytes make it a whole key.
    """
    try:
        (number,) = _unpack_version(prefix)
        if number != _KINDS[OffsetCommitKey].number:
            return None
        key = codec_of(OffsetCommitKey, 0).decode(
            prefix + bytes(4), _VERSION.size, RECORD_ELEMENTS_MAX
        )
    except (struct.error, DecodeError):
        return None
    return key.group, key.topic


def decode_transaction_record(
    key: Buffer, value: Buffer | None
) -> CoordinatorRecord | UnknownRecord:
    """A record of `__transaction_state`. Raises DecodeError for malformed bytes."""
    return _decode(_transaction_decoders, key, value)


def known_record(
    topic: str,
    decode: Callable[[Buffer, Buffer | None], CoordinatorRecord | UnknownRecord],
    key: bytes,
    value: bytes | None,
) -> CoordinatorRecord:
    """A record that this release knows. Raises LogError MALFORMED_BATCH or UNSUPPORTED_FORMAT."""
    try:
        record = decode(key, value)
    except DecodeError as error:
        raise LogError(MALFORMED_BATCH, f"A record of {topic} is malformed: {error}") from error
    if isinstance(record, UnknownRecord):
        raise LogError(
            UNSUPPORTED_FORMAT,
            f"{topic} has a record of key {record.key_number} in version {record.value_version}, "
            "which this release does not know: upgrade this node, or have a newer one lead the "
            "partition.",
        )
    return record


def _decode(
    decoders_of: Callable[[int, int | None], _Decoders | None], key: Buffer, value: Buffer | None
) -> CoordinatorRecord | UnknownRecord:
    try:
        (number,) = _unpack_version(key)
        version = None if value is None else _unpack_version(value)[0]
    except struct.error:
        raise DecodeError("a key or value ends before its version") from None
    decoders = decoders_of(number, version)
    if decoders is None:
        return UnknownRecord(number, version)
    decode_key, decode_value = decoders
    return CoordinatorRecord(
        decode_key(key, 2, RECORD_ELEMENTS_MAX),
        None if value is None else decode_value(value, 2, RECORD_ELEMENTS_MAX),
    )


@lru_cache(maxsize=DECODERS_MAX)
def _offsets_decoders(number: int, version: int | None) -> _Decoders | None:
    return _find_decoders(_OFFSETS_KINDS, number, version)


@lru_cache(maxsize=DECODERS_MAX)
def _transaction_decoders(number: int, version: int | None) -> _Decoders | None:
    return _find_decoders(_TRANSACTION_KINDS, number, version)


def _find_decoders(kinds: tuple[_Kind, ...], number: int, version: int | None) -> _Decoders | None:
    """The decoders of key and value, or None for an unknown key or version."""
    for kind in kinds:
        if kind.number == number:
            if version is None:
                version = kind.written_version
            if version not in kind.value_type.VERSIONS:
                return None
            key_codec: Codec[Any] = codec_of(kind.key_type, 0)
            value_codec: Codec[Any] = codec_of(kind.value_type, version)
            return key_codec.decode, value_codec.decode
    return None


def _offset_commit_version(value: OffsetCommitValue) -> int:
    """The oldest version for the value that Kafka 4 writes itself."""
    if value.topic_id is not None:
        return 4
    return 3 if value.expire_timestamp_ms == NO_TIMESTAMP else 1
