"""Records in JSON requests: from the body to the timestamps, keys, values and headers to store.

A json value is stored as the very bytes its writer sent. Nothing is parsed into objects and written
again, so numbers of any size, key order and spacing stay as they were; what is checked is that the
bytes are JSON (RFC 8259), in UTF-8, with paired surrogate escapes, and not too deep. Numbers may be
larger than a double: they are kept, not interpreted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.api.common import EPOCH_MAX, INT32_MAX, INT64_MAX, Milliseconds, PartitionNumber
from raftlog.http.body import check_json_depth
from raftlog.record.codec import Headers
from raftlog.record.errors import BODY_TOO_LARGE, INVALID_BODY, LogError

JSON_NULL = b"null"


StoredRecord: TypeAlias = tuple[int, bytes | None, bytes | None, Headers | None]
"""Timestamp (ms), key, value, headers, as the codec takes them."""

_RAW_NULL = msgspec.Raw(JSON_NULL)


class RecordFormat(StrEnum):
    """How keys and values stand in JSON."""

    JSON = "json"
    """As JSON values; the stored bytes are JSON text."""
    BINARY = "binary"
    """As base64 strings of any bytes (RFC 4648, with padding)."""
    TEXT = "text"
    """As strings; the stored bytes are their UTF-8."""


class JsonHeader(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record header."""

    key: str
    value: bytes | None = None


class JsonRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record whose key and value are JSON; null is none."""

    value: msgspec.Raw
    key: msgspec.Raw = _RAW_NULL
    partition: PartitionNumber | None = None
    timestamp: Milliseconds | None = None
    headers: list[JsonHeader] | None = None


class BinaryRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record whose key and value are base64; null is none."""

    value: bytes | None
    key: bytes | None = None
    partition: PartitionNumber | None = None
    timestamp: Milliseconds | None = None
    headers: list[JsonHeader] | None = None


class TextRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record whose key and value are text; null is none."""

    value: str | None
    key: str | None = None
    partition: PartitionNumber | None = None
    timestamp: Milliseconds | None = None
    headers: list[JsonHeader] | None = None


class ProduceBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a produce request says besides its records.

    The schema fields belong to the field's REST proxies; there is no schema registry here, so only
    null is taken for them.
    """

    acks: int | str | None = None
    timeout: Milliseconds | None = None
    producer_id: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    producer_epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)] | None = None
    sequence: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    key_schema: None = None
    key_schema_id: None = None
    value_schema: None = None
    value_schema_id: None = None

    def has_options(self) -> bool:
        """Whether the body says how its records are to be written."""
        return not (
            self.acks is None
            and self.timeout is None
            and self.producer_id is None
            and self.producer_epoch is None
            and self.sequence is None
        )


class JsonProduceBody(ProduceBody, kw_only=True):
    """A produce request in json format."""

    records: list[JsonRecord]


class BinaryProduceBody(ProduceBody, kw_only=True):
    """A produce request in binary format."""

    records: list[BinaryRecord]


class TextProduceBody(ProduceBody, kw_only=True):
    """A produce request in text format."""

    records: list[TextRecord]


AnyProduceBody: TypeAlias = JsonProduceBody | BinaryProduceBody | TextProduceBody

_DECODERS: dict[RecordFormat, msgspec.json.Decoder[AnyProduceBody]] = {
    RecordFormat.JSON: msgspec.json.Decoder(JsonProduceBody),
    RecordFormat.BINARY: msgspec.json.Decoder(BinaryProduceBody),
    RecordFormat.TEXT: msgspec.json.Decoder(TextProduceBody),
}


def check_utf8(body: bytes) -> None:
    """LogError INVALID_BODY if the body is not UTF-8, which the parser skips in what it keeps."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise LogError(INVALID_BODY, f"The body is not UTF-8: {error}.") from None


def parse_produce_body(
    body: bytes, record_format: RecordFormat, *, depth_max: int, records_max: int
) -> AnyProduceBody:
    """Read and check a produce request's body as a whole.

    Raises LogError: INVALID_BODY (saying where), BODY_TOO_LARGE (too many records).
    """
    check_utf8(body)
    check_json_depth(body, depth_max)
    try:
        parsed = _DECODERS[record_format].decode(body)
    except msgspec.ValidationError as error:
        raise LogError(INVALID_BODY, f"The body is not valid: {error}.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise LogError(INVALID_BODY, f"The body is not JSON: {error}.") from None
    count = len(parsed.records)
    if count == 0:
        raise LogError(INVALID_BODY, "The body is not valid: there are no records.")
    if count > records_max:
        raise LogError(BODY_TOO_LARGE, f"The request has {count} records; {records_max} may be.")
    return parsed


def stored_records(body: AnyProduceBody, now_ms: int) -> list[StoredRecord]:
    """The records as they are stored; those without a timestamp get `now_ms`."""
    if isinstance(body, JsonProduceBody):
        return [
            (
                now_ms if record.timestamp is None else record.timestamp,
                None if record.key is _RAW_NULL or (key := bytes(record.key)) == JSON_NULL else key,
                None if (value := bytes(record.value)) == JSON_NULL else value,
                None if record.headers is None else stored_headers(record.headers),
            )
            for record in body.records
        ]
    if isinstance(body, BinaryProduceBody):
        return [
            (
                now_ms if record.timestamp is None else record.timestamp,
                record.key,
                record.value,
                None if record.headers is None else stored_headers(record.headers),
            )
            for record in body.records
        ]
    return [
        (
            now_ms if record.timestamp is None else record.timestamp,
            None if record.key is None else record.key.encode(),
            None if record.value is None else record.value.encode(),
            None if record.headers is None else stored_headers(record.headers),
        )
        for record in body.records
    ]


def stored_headers(headers: list[JsonHeader]) -> Headers:
    """Headers as the codec takes them."""
    return [(header.key, header.value) for header in headers]
