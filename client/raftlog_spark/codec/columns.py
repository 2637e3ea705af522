"""The columns of a raftlog topic in Spark: names and types of Spark's Kafka source.

Every column is nullable, as there, and as in a schema that a user writes (`"offset long"`): Spark
takes a RecordBatch only if its Arrow schema equals the one asked for, nullability included.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}
"""Type of each column. `headers` is null for a record without any."""


class Columns(NamedTuple):
    """The columns that are asked for, in the order of the asked schema."""

    names: tuple[str, ...]


def arrow_schema(columns: Columns) -> pa.Schema:
    """What Spark expects of a RecordBatch with these columns. Raises KeyError for any other."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns.names])
