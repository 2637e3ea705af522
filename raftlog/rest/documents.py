"""Messages as OpenAPI describes them, where the types that decode and encode them cannot be.

Those hold JSON values as raw bytes, which has no schema: here they are anything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from raftlog.api.common import Milliseconds, PartitionNumber
from raftlog.rest.json_records import JsonHeader, ProduceBody
from raftlog.rest.json_records_v3 import BinaryData, EntryId, HeaderV3, StringData, TimestampV3


class ProducedRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A record to write. Key and value are JSON, base64 strings or strings, by content type."""

    value: Any
    """null is a tombstone."""
    key: Any = None
    partition: PartitionNumber | None = None
    timestamp: Milliseconds | None = None
    headers: list[JsonHeader] | None = None


class ProduceDocument(ProduceBody, kw_only=True, forbid_unknown_fields=True):
    """Records to write, and how."""

    records: list[ProducedRecord]


class RecordDocument(msgspec.Struct, omit_defaults=True):
    """A record that was read. Key and value are JSON, base64 strings or strings, by Accept."""

    topic: str
    key: Any
    value: Any
    partition: int
    offset: int
    timestamp: int | None
    headers: list[JsonHeader] | msgspec.UnsetType = msgspec.UNSET
    """Left out when there are none."""


class JsonDataDocument(msgspec.Struct, tag_field="type", tag="JSON", forbid_unknown_fields=True):
    """Data that is a JSON value; null is none."""

    data: Any = None


class RecordDocumentV3(msgspec.Struct, forbid_unknown_fields=True):
    """A record of a v3 produce request."""

    partition_id: PartitionNumber | None = None
    headers: list[HeaderV3] | None = None
    key: JsonDataDocument | BinaryData | StringData | None = None
    value: JsonDataDocument | BinaryData | StringData | None = None
    timestamp: TimestampV3 | None = None


class EntryDocument(RecordDocumentV3, kw_only=True, forbid_unknown_fields=True):
    """A record of a batch, and how its answer is told from the others'."""

    id: EntryId


class BatchDocument(msgspec.Struct, forbid_unknown_fields=True):
    """Records that are answered one by one, told apart by their ids."""

    entries: list[EntryDocument]
