"""The columns of source and sink, checked without Arrow.

A query's columns are those of Spark's Kafka source. Spark gives a Python source no list of the
columns that a query uses, so a caller selects columns by `.schema("offset long")`. The other
columns are neither decoded nor copied.

A frame's columns are those of Spark's Kafka sink, checked when the write is planned. Columns of the
source only (offset, timestamp and its type) are ignored, as there, so that a frame of read records
can be written. Any other column is an error, since its values would be lost.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

from raftlog_spark.errors import RaftlogSparkError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_DDL = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
_WITHOUT_HEADERS = tuple(name for name in _DDL if name != "headers")


class SchemaError(RaftlogSparkError):
    """A column is unknown, missing, duplicate or of another type."""


def source_schema(*, include_headers: bool) -> str:
    """The schema of a query without its own, as DDL. Every column is nullable."""
    names = tuple(_DDL) if include_headers else _WITHOUT_HEADERS
    return ", ".join(f"{name} {_DDL[name]}" for name in names)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a query's schema, in its order. Raises SchemaError for an unknown or duplicate
    column, another type, or NOT NULL."""
    names: list[str] = []
    for field in schema.fields:
        if field.name not in _DDL:
            near = difflib.get_close_matches(field.name.lower(), [n.lower() for n in _DDL], n=1)
            spellings = {name.lower(): name for name in _DDL}
            hint = f"did you mean {spellings[near[0]]}? " if near else ""
            raise SchemaError(
                f"topics have no column {field.name!r}: {hint}they have {', '.join(_DDL)}. "
                "What is inside value is parsed after load(), with from_json or the like"
            )
        if field.name in names:
            raise SchemaError(f"column {field.name} is named twice")
        if field.dataType != _data_type(field.name):
            raise SchemaError(
                f"column {field.name} is {_DDL[field.name]}, not {field.dataType.simpleString()}: "
                "leave .schema() out, or give that type and cast after load()"
            )
        if not field.nullable:
            raise SchemaError(f"column {field.name} is nullable: leave NOT NULL out")
        names.append(field.name)
    if not names:
        raise SchemaError("the schema has no column: ask for one at least, such as offset bigint")
    return tuple(names)


def _data_type(name: str) -> DataType:
    """The column's exact type, with all nested fields nullable."""
    from pyspark.sql import types  # noqa: PLC0415  not needed to describe, only to check

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    return {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
    }.get(_DDL[name], types.ArrayType(header))


WRITTEN = ("value", "key", "headers", "topic", "partition")
LEFT_OUT = ("offset", "timestamp", "timestamptype")

_TYPES = {
    "value": "binary or string",
    "key": "binary or string",
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "partition": "int",
}


class SinkColumns(NamedTuple):
    """Positions of the columns in the frame. None if absent. `topic` is also None if the option of
    that name overrides the column."""

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None


def sink_columns(schema: StructType, *, topic: str | None) -> SinkColumns:
    """The columns of a frame to write. `topic` is the option of that name.

    Names are compared without case, as Spark does. Raises SchemaError if a column is missing,
    unknown, duplicate, or of another type.
    """
    found: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        name = field.name.lower()
        if name in LEFT_OUT:
            continue
        if name not in WRITTEN:
            raise SchemaError(_unknown(field.name))
        if name in found:
            raise SchemaError(f"column {name} is there twice: drop one")
        if not _fits(name, field.dataType):
            raise SchemaError(
                f"column {name} must be {_TYPES[name]}, not {field.dataType.simpleString()}: "
                + _advice(name)
            )
        found[name] = place
    if "value" not in found:
        raise SchemaError(
            "there is no column value, the content of records: make one, as in "
            'df.selectExpr("to_json(struct(*)) AS value")'
        )
    if topic is not None:
        found.pop("topic", None)
    elif "topic" not in found:
        raise SchemaError(
            'it is not said which topic to write to: give .option("topic", ...), or a column topic'
        )
    return SinkColumns(**found)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), WRITTEN, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"records have no column {name!r}: {hint}they have {', '.join(WRITTEN)}. Put what is to be "
        "written into value, with to_json(struct(...)) or the like, and drop the rest"
    )


def _advice(name: str) -> str:
    match name:
        case "value" | "key":
            return "cast it, or make JSON of it with to_json"
        case "headers":
            return "make it with array(struct(... AS key, ... AS value))"
        case _:
            return "cast it"


def _fits(name: str, kind: DataType) -> bool:
    from pyspark.sql import types  # noqa: PLC0415  with the planning process, not with this module

    text = types.StringType
    either = (types.StringType, types.BinaryType)
    match name:
        case "value" | "key":
            return isinstance(kind, either)
        case "topic":
            return isinstance(kind, text)
        case "partition":
            return isinstance(kind, types.IntegralType)
        case _:
            if not isinstance(kind, types.ArrayType):
                return False
            header = kind.elementType
            if not isinstance(header, types.StructType):
                return False
            fields = {field.name: field.dataType for field in header.fields}
            return (
                len(header.fields) == 2
                and fields.keys() == {"key", "value"}
                and isinstance(fields["key"], text)
                and isinstance(fields["value"], either)
            )
