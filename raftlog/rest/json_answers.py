"""Records in JSON answers: from stored bytes to JSON, base64 or text, never mangled.

A stored value that is JSON is put into the answer as it is, after a check. One that is not, when
JSON was asked for, is an error that names its offset (40601).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from raftlog.http.context import ServerContext
from raftlog.record.batch import RecordBatch
from raftlog.record.codec import Record, decode
from raftlog.record.errors import UNSUPPORTED_FORMAT, LogError
from raftlog.record.types import Offset, PartitionId
from raftlog.rest.json_records import JSON_NULL, JsonHeader, RecordFormat

DECODED_RECORD_BYTES = 512
"""What a small record takes in memory while it is decoded and answered, about."""

_RAW_NULL = msgspec.Raw(JSON_NULL)
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


class RecordAnswer(msgspec.Struct, gc=False):
    """One record in an answer. Key and value are Raw, base64 (bytes) or text, by format."""

    topic: str
    key: msgspec.Raw | bytes | str | None
    value: msgspec.Raw | bytes | str | None
    partition: PartitionId
    offset: Offset
    timestamp: int | None
    """Milliseconds since the Unix epoch; null if the producer gave none."""
    headers: list[JsonHeader] | msgspec.UnsetType = msgspec.UNSET
    """Left out when there are none."""


def decode_within_budget(batch: RecordBatch, context: ServerContext) -> Sequence[Record]:
    """The records of a stored batch, if there is memory for all of them.

    A compressed batch of a megabyte can hold millions of empty records. LogError OVERLOADED if they
    do not fit now, UNSUPPORTED_FORMAT if they never will.
    """
    needed = batch.header.record_count * DECODED_RECORD_BYTES
    if needed > context.budget.bytes_max:
        raise LogError(
            UNSUPPORTED_FORMAT,
            f"The batch at offset {batch.header.base_offset} has {batch.header.record_count} "
            "records, too many to be answered one by one; /v1/fetch gives whole batches.",
        )
    # Taken only to see that it fits: decoding and what follows it never wait.
    context.budget.take(needed)
    context.budget.give(needed)
    return decode(batch, decompressed_bytes_max=context.limits.batch_decompressed_bytes_max)


def record_answer(
    record: Record, topic: str, partition: PartitionId, record_format: RecordFormat
) -> RecordAnswer:
    """A record as it is answered. Raises LogError UNSUPPORTED_FORMAT, naming its offset."""
    key: msgspec.Raw | bytes | str | None = record.key
    value: msgspec.Raw | bytes | str | None = record.value
    if record_format is not RecordFormat.BINARY:
        try:
            if record_format is RecordFormat.JSON:
                key, value = as_json(record.key), as_json(record.value)
            else:
                key = None if record.key is None else record.key.decode()
                value = None if record.value is None else record.value.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            wanted = "JSON" if record_format is RecordFormat.JSON else "UTF-8 text"
            raise LogError(
                UNSUPPORTED_FORMAT,
                f"The record at offset {record.offset} of {topic}-{partition} is not {wanted}; "
                "read it in binary format, or go on from the offset after it.",
            ) from None
    answer = RecordAnswer(topic, key, value, partition, Offset(record.offset), record.timestamp)
    if record.headers:
        answer.headers = [JsonHeader(name, content) for name, content in record.headers]
    return answer


def as_json(stored: bytes | None) -> msgspec.Raw:
    """Stored bytes as a JSON value. Raises DecodeError, UnicodeDecodeError or RecursionError."""
    if stored is None:
        return _RAW_NULL
    if not stored.isascii():
        stored.decode()
    return _check_json(stored)
