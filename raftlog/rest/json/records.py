"""JSON records are decoded from request bodies, and encoded into responses.

A JSON value is stored as the bytes of the request. Nothing is parsed into objects and written
again, so numbers of any size, key order and spacing stay. The checks require JSON (RFC 8259) in
UTF-8, with paired surrogate escapes and bounded nesting. Numbers may be larger than a double,
because they are kept and never interpreted.

A read checks a stored JSON value and puts its bytes into the response. If JSON is wanted, any other
value is an error that names its offset (40601).

The types that decode and encode JSON values hold raw bytes, which have no schema. The `…Document`
types describe them for OpenAPI.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.json import Decoder

from raftlog.api.common import EPOCH_MAX, INT32_MAX, INT64_MAX, Milliseconds, PartitionNumber
from raftlog.broker.limits import WorkTurns
from raftlog.broker.produce import StoredRecord
from raftlog.http.request import Request, ServerContext
from raftlog.record.batch import RecordBatch, iterate_batches
from raftlog.record.codec import Headers, Record, decode_groups, decompress_batch
from raftlog.record.compression import Compression
from raftlog.record.errors import BODY_TOO_LARGE, INVALID_BODY, UNSUPPORTED_FORMAT, LogError
from raftlog.record.isolation import readable_batches
from raftlog.record.types import AbortedTransaction, Buffer, Offset, PartitionId
from raftlog.rest.json.pieces import ArrayBody

JSON_NULL = b"null"


_RAW_NULL = msgspec.Raw(JSON_NULL)


class RecordFormat(StrEnum):
    """Format of keys and values in JSON."""

    JSON = "json"
    """JSON values. The stored bytes are JSON text."""
    BINARY = "binary"
    """Base64 strings of any bytes (RFC 4648, with padding)."""
    TEXT = "text"
    """Strings. The stored bytes are their UTF-8."""


class JsonHeader(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record header."""

    key: str
    value: bytes | None = None


class JsonRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record with key and value in JSON. A null stands for none."""

    value: msgspec.Raw
    key: msgspec.Raw = _RAW_NULL
    partition: PartitionNumber | None = None
    timestamp: Milliseconds | None = None
    headers: list[JsonHeader] | None = None


class BinaryRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record with key and value in base64. A null stands for none."""

    value: bytes | None
    key: bytes | None = None
    partition: PartitionNumber | None = None
    timestamp: Milliseconds | None = None
    headers: list[JsonHeader] | None = None


class TextRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record with key and value as text. A null stands for none."""

    value: str | None
    key: str | None = None
    partition: PartitionNumber | None = None
    timestamp: Milliseconds | None = None
    headers: list[JsonHeader] | None = None


class ProduceBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a produce request besides its records.

    The schema fields belong to other REST proxies. Only null is valid, because there is no schema
    registry.
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
        """Whether the body has options for the write."""
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


AnyRecord: TypeAlias = JsonRecord | BinaryRecord | TextRecord

_BODIES: Final[Mapping[RecordFormat, ArrayBody[Any, Any]]] = MappingProxyType(
    {
        RecordFormat.JSON: ArrayBody(
            "records", Decoder(JsonProduceBody), Decoder(list[JsonRecord])
        ),
        RecordFormat.BINARY: ArrayBody(
            "records", Decoder(BinaryProduceBody), Decoder(list[BinaryRecord])
        ),
        RecordFormat.TEXT: ArrayBody(
            "records", Decoder(TextProduceBody), Decoder(list[TextRecord])
        ),
    }
)
STORED_RECORD_BYTES = 256
"""Approximate bytes of memory of a small record, from its body to the append."""


class ProducedRecords:
    """The records of one produce request, collected from its body."""

    def __init__(self, now_ms: int, records_max: int, hold: Callable[[int], None]) -> None:
        self._now_ms = now_ms
        self._records_max = records_max
        self._hold = hold
        self.records: list[StoredRecord] = []
        self.partitions: list[int | None] = []

    def take(self, some: Sequence[AnyRecord]) -> None:
        """Add records. Raises LogError BODY_TOO_LARGE, and the errors of `hold`."""
        if len(self.records) + len(some) > self._records_max:
            raise LogError(
                BODY_TOO_LARGE, f"The request has more than {self._records_max} records."
            )
        self._hold(len(some) * STORED_RECORD_BYTES)
        self.records += stored_records(some, self._now_ms)
        self.partitions += [record.partition for record in some]


async def parse_produce_body(
    body: bytes,
    record_format: RecordFormat,
    produced: ProducedRecords,
    *,
    depth_max: int,
    turns: WorkTurns,
) -> ProduceBody:
    """Check and parse a produce request's body, and pass its records to `produced`.

    Returns its options. Raises LogError INVALID_BODY (naming the place), BODY_TOO_LARGE, and the
    errors of `produced`.
    """
    parsed = await _BODIES[record_format].parse(
        body, produced.take, depth_max=depth_max, turns=turns
    )
    if not produced.records:
        raise LogError(INVALID_BODY, "The body is not valid: there are no records.")
    assert isinstance(parsed, ProduceBody)
    return parsed


def stored_records(records: Sequence[AnyRecord], now_ms: int) -> list[StoredRecord]:
    """Return records of one format in their stored form.

    Records without a timestamp get `now_ms`.
    """
    stored: list[StoredRecord] = []
    add = stored.append
    for record in records:
        key: bytes | None
        value: bytes | None
        if isinstance(record, JsonRecord):
            key = None if record.key is _RAW_NULL else bytes(record.key)
            key = None if key == JSON_NULL else key
            value = bytes(record.value)
            value = None if value == JSON_NULL else value
        elif isinstance(record, BinaryRecord):
            key, value = record.key, record.value
        else:
            key = None if record.key is None else record.key.encode()
            value = None if record.value is None else record.value.encode()
        add(
            (
                now_ms if record.timestamp is None else record.timestamp,
                key,
                value,
                None if record.headers is None else stored_headers(record.headers),
            )
        )
    return stored


def stored_headers(headers: list[JsonHeader]) -> Headers:
    """Headers in the codec's form."""
    return [(header.key, header.value) for header in headers]


TimestampV3: TypeAlias = Annotated[datetime, Meta(tz=True)] | Milliseconds
"""RFC 3339, or milliseconds since the Unix epoch."""
EntryId: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-zA-Z_-]{1,80}$")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DATETIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which RFC 3339 has no form."""


class JsonData(msgspec.Struct, gc=False, tag_field="type", tag="JSON", forbid_unknown_fields=True):
    """Data that is a JSON value. A null stands for none."""

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
    """A record of a v3 produce request, with key or value or both, possibly null."""

    partition_id: PartitionNumber | None = None
    headers: list[HeaderV3] | None = None
    key: Data | msgspec.UnsetType | None = msgspec.UNSET
    value: Data | msgspec.UnsetType | None = msgspec.UNSET
    timestamp: TimestampV3 | None = None


class EntryV3(RecordV3, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A record of a batch, with the id of its outcome."""

    id: EntryId


_decoder = msgspec.json.Decoder(RecordV3)


class DataSummary(msgspec.Struct, frozen=True):
    """Format and stored size in bytes of a key or value."""

    type: str
    size: int


class MalformedJsonError(LogError):
    """The text is not JSON at all, hence without a known end."""


def parse_record_v3(text: bytes) -> RecordV3:
    """Parse one record of checked text. Raises LogError INVALID_BODY.

    Raises MalformedJsonError if the text is not JSON.
    """
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise LogError(INVALID_BODY, f"The record is not valid: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedJsonError(INVALID_BODY, f"The record is not JSON: {error}.") from None


def stored_record_v3(record: RecordV3, now_ms: int) -> StoredRecord:
    """The record to store. Raises LogError INVALID_BODY without key and value, and before 1970."""
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
    """The receipt's summary of a key or value, or None without it."""
    if data is None or data is msgspec.UNSET:
        return None
    return DataSummary(str(data.__struct_config__.tag), len(stored or b""))


def timestamp_text(timestamp_ms: int) -> str | None:
    """RFC 3339, or None for a time that has no such form."""
    if not 0 <= timestamp_ms <= _DATETIME_MS_MAX:
        return None
    text = (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


GROUP_BYTES: Final = 128 * 1024
"""Approximate bytes of a batch decoded and written out in one turn (5 ms)."""
ESCAPES_MAX: Final = 1024 * 1024
"""Characters of one text that may need escapes in JSON (15 ms)."""
_ESCAPED: Final = bytes((*range(32), 34, 92, 127))
ANSWERED_RECORD_BYTES: Final = 64
"""Work of a record besides its bytes, in bytes."""

_check_json = msgspec.json.Decoder(msgspec.Raw).decode


class RecordAnswer(msgspec.Struct, gc=False):
    """One record in a response. Key and value are Raw, base64 (bytes) or text, by format."""

    topic: str
    key: msgspec.Raw | bytes | str | None
    value: msgspec.Raw | bytes | str | None
    partition: PartitionId
    offset: Offset
    timestamp: int | None
    """Milliseconds since the Unix epoch, or null if the producer gave none."""
    headers: list[JsonHeader] | msgspec.UnsetType = msgspec.UNSET
    """Left out when there are none."""


class BatchReader:
    """Decodes stored batches for one response, group by group, in bounded memory and time."""

    def __init__(self, request: Request, context: ServerContext) -> None:
        self._request = request
        self._context = context
        self._work_bytes = 0

    @contextmanager
    def holding(
        self, data: Buffer, offset: Offset, aborted: Sequence[AbortedTransaction] = ()
    ) -> Iterator[Iterator[RecordBatch]]:
        """Count batches read from `offset` on as bytes in flight, while the response is written.

        Markers and the batches of `aborted` transactions are left out. Many requests may wait for a
        thread, for a turn, or for a slow reader. Raises the errors of `hold`.
        """
        size_bytes = len(data)
        self.hold(size_bytes, offset)
        try:
            yield readable_batches(iterate_batches(data, check_crc=False), aborted)
        finally:
            self._context.free(self._request, size_bytes)

    def hold(self, size_bytes: int, offset: Offset) -> None:
        """Count more bytes for the response. Raises LogError OVERLOADED, QUOTA_EXCEEDED.

        Raises UNSUPPORTED_FORMAT if the response exceeds the most that a client may hold, because a
        retry would also fail.
        """
        per_client_max = self._context.broker.bytes_in_flight.per_client_max
        needed_bytes = self._request.bytes_held + size_bytes
        if needed_bytes > per_client_max:
            raise LogError(
                UNSUPPORTED_FORMAT,
                f"The record at offset {offset} takes {needed_bytes} bytes with its batch in this "
                f"format. One client may hold {per_client_max}. Read it with POST /v1/fetch.",
            )
        self._context.hold(self._request, size_bytes)

    async def groups(self, batch: RecordBatch) -> AsyncGenerator[list[Record], None]:
        """Yield the records of a batch in groups. Each is written out before the next.

        Other requests run between groups. A decompressed batch counts as bytes in flight, as its
        stored bytes do within `holding`. Raises LogError RECORD_TOO_LARGE, MALFORMED_BATCH, and the
        errors of `hold`.
        """
        context = self._context
        decompressed = partial(
            decompress_batch,
            batch,
            decompressed_bytes_max=context.limits.batch_decompressed_bytes_max,
        )
        held = 0
        try:
            if batch.header.compression is not Compression.NONE:
                plain = await context.broker.decompression.run(decompressed)
                self.hold(len(plain), batch.header.base_offset)
                held = len(plain)
            else:
                plain = decompressed()
            if len(plain) > GROUP_BYTES:
                await context.broker.turns.wait()
            for group, size in decode_groups(batch, plain, group_bytes=GROUP_BYTES):
                yield group
                self._work_bytes += size + len(group) * ANSWERED_RECORD_BYTES
                if self._work_bytes >= GROUP_BYTES:
                    self._work_bytes = 0
                    await context.broker.turns.wait()
        finally:
            context.free(self._request, held)


def record_answer(
    record: Record, topic: str, partition: PartitionId, record_format: RecordFormat
) -> RecordAnswer:
    """Shape a record for its response. Raises LogError UNSUPPORTED_FORMAT, naming its offset."""
    key: msgspec.Raw | bytes | str | None = record.key
    value: msgspec.Raw | bytes | str | None = record.value
    if record_format is not RecordFormat.BINARY:
        try:
            if record_format is RecordFormat.JSON:
                key, value = as_json(record.key), as_json(record.value)
            else:
                key = None if record.key is None else record.key.decode()
                value = None if record.value is None else record.value.decode()
                _check_escapes(record.value or b"")
                _check_escapes(record.key or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            wanted = "JSON" if record_format is RecordFormat.JSON else "UTF-8 text"
            raise LogError(
                UNSUPPORTED_FORMAT,
                f"The record at offset {record.offset} of {topic}-{partition} is not {wanted}; "
                "read it in binary format, or go on from the offset after it.",
            ) from None
    answer = RecordAnswer(
        topic=topic,
        key=key,
        value=value,
        partition=partition,
        offset=Offset(record.offset),
        timestamp=record.timestamp,
    )
    if record.headers:
        answer.headers = [JsonHeader(name, content) for name, content in record.headers]
    return answer


def _check_escapes(text: bytes) -> None:
    """Raise UnicodeDecodeError for a long text of mostly control characters.

    Each needs an escape in JSON, at six times its size. For 15 MiB of zeros, that would take 0.2 s.
    """
    if len(text) > ESCAPES_MAX and len(text) - len(text.translate(None, _ESCAPED)) > ESCAPES_MAX:
        raise UnicodeDecodeError("utf-8", text, 0, 1, "too many control characters")


def as_json(stored: bytes | None) -> msgspec.Raw:
    """Stored bytes as a JSON value. Raises DecodeError, UnicodeDecodeError or RecursionError."""
    if stored is None:
        return _RAW_NULL
    if not stored.isascii():
        stored.decode()
    return _check_json(stored)


class ProducedRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A record to write. Key and value are JSON, base64 strings or strings, by content type."""

    value: Any
    """A null is a tombstone."""
    key: Any = None
    partition: PartitionNumber | None = None
    timestamp: Milliseconds | None = None
    headers: list[JsonHeader] | None = None


class ProduceDocument(ProduceBody, kw_only=True, forbid_unknown_fields=True):
    """Records to write, and how."""

    records: list[ProducedRecord]


class RecordDocument(msgspec.Struct, omit_defaults=True):
    """A record of a response. Key and value are JSON, base64 strings or strings, by Accept."""

    topic: str
    key: Any
    value: Any
    partition: int
    offset: int
    timestamp: int | None
    headers: list[JsonHeader] | msgspec.UnsetType = msgspec.UNSET
    """Left out when there are none."""


class JsonDataDocument(msgspec.Struct, tag_field="type", tag="JSON", forbid_unknown_fields=True):
    """Data that is a JSON value. A null stands for none."""

    data: Any = None


class RecordDocumentV3(msgspec.Struct, forbid_unknown_fields=True):
    """A record of a v3 produce request."""

    partition_id: PartitionNumber | None = None
    headers: list[HeaderV3] | None = None
    key: JsonDataDocument | BinaryData | StringData | None = None
    value: JsonDataDocument | BinaryData | StringData | None = None
    timestamp: TimestampV3 | None = None


class EntryDocument(RecordDocumentV3, kw_only=True, forbid_unknown_fields=True):
    """A record of a batch, with the id of its outcome."""

    id: EntryId


class BatchDocument(msgspec.Struct, forbid_unknown_fields=True):
    """Records with an id for each. Each record has its own outcome."""

    entries: list[EntryDocument]
