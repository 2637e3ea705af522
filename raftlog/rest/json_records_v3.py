"""Records in v3 produce requests, whose key and value each say their own format."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.api.common import Milliseconds, PartitionNumber
from raftlog.http.body import check_json_depth
from raftlog.record.errors import INVALID_BODY, LogError
from raftlog.rest.json_records import (
    JSON_NULL,
    StoredRecord,
    check_utf8,
)

TimestampV3: TypeAlias = Annotated[datetime, Meta(tz=True)] | Milliseconds
"""RFC 3339, or milliseconds since the Unix epoch."""
EntryId: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-zA-Z_-]{1,80}$")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DATETIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: where a date has no standard form any more."""


class JsonData(msgspec.Struct, gc=False, tag_field="type", tag="JSON", forbid_unknown_fields=True):
    """Data that is a JSON value; null is none."""

    data: msgspec.Raw = msgspec.Raw(JSON_NULL)


class BinaryData(
    msgspec.Struct, gc=False, tag_field="type", tag="BINARY", forbid_unknown_fields=True
):
    """Data in base64."""

    data: bytes | None = None


class StringData(
    msgspec.Struct, gc=False, tag_field="type", tag="STRING", forbid_unknown_fields=True
):
    """Data that is text."""

    data: str | None = None


Data: TypeAlias = JsonData | BinaryData | StringData


class HeaderV3(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record header."""

    name: str
    value: bytes | None = None


class RecordV3(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record of a v3 produce request. At least one of key and value is there, if only as null."""

    partition_id: PartitionNumber | None = None
    headers: list[HeaderV3] | None = None
    key: Data | msgspec.UnsetType | None = msgspec.UNSET
    value: Data | msgspec.UnsetType | None = msgspec.UNSET
    timestamp: TimestampV3 | None = None


class EntryV3(RecordV3, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A record of a batch, and how its answer is told from the others'."""

    id: EntryId


_decoder = msgspec.json.Decoder(RecordV3)


class DataSummary(msgspec.Struct, frozen=True):
    """What was stored of a key or value: its format, and its size in bytes."""

    type: str
    size: int


class MalformedJsonError(LogError):
    """Not JSON at all, so that it is not certain where it ends."""


def parse_record_v3(text: bytes, depth_max: int) -> RecordV3:
    """One record. Raises LogError INVALID_BODY; MalformedJsonError if it is not even JSON."""
    check_utf8(text)
    check_json_depth(text, depth_max)
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise LogError(INVALID_BODY, f"The record is not valid: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedJsonError(INVALID_BODY, f"The record is not JSON: {error}.") from None


def stored_record_v3(record: RecordV3, now_ms: int) -> StoredRecord:
    """The record as it is stored. Raises LogError INVALID_BODY: no key and value, before 1970."""
    if record.key is msgspec.UNSET and record.value is msgspec.UNSET:
        raise LogError(INVALID_BODY, "The record is not valid: it has neither key nor value.")
    timestamp = record.timestamp
    if timestamp is None:
        timestamp = now_ms
    elif isinstance(timestamp, datetime):
        timestamp = (timestamp - _EPOCH) // _MILLISECOND
        if timestamp < 0:
            raise LogError(INVALID_BODY, "The record is not valid: its timestamp is before 1970.")
    headers = None
    if record.headers is not None:
        headers = [(header.name, header.value) for header in record.headers]
    return timestamp, _stored(record.key), _stored(record.value), headers


def _stored(data: Data | msgspec.UnsetType | None) -> bytes | None:
    if data is None or data is msgspec.UNSET or data.data is None:
        return None
    if isinstance(data, JsonData):
        raw = bytes(data.data)
        return None if raw == JSON_NULL else raw
    return data.data.encode() if isinstance(data, StringData) else data.data


def data_summary(data: Data | msgspec.UnsetType | None, stored: bytes | None) -> DataSummary | None:
    """What a receipt says of a key or value that was given."""
    if data is None or data is msgspec.UNSET:
        return None
    return DataSummary(str(data.__struct_config__.tag), len(stored or b""))


def timestamp_text(timestamp_ms: int) -> str | None:
    """RFC 3339, or None for a time beyond what that can write."""
    if not 0 <= timestamp_ms <= _DATETIME_MS_MAX:
        return None
    text = (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
