"""The columns of a topic as Spark sees them, and which of them a query asks for.

They are those of Spark's Kafka source. Spark hands a Python source no list of the columns that a
query uses, so a caller who wants few of them says so with `.schema("offset long")`: that is a
projection, and what it leaves out is neither decoded nor copied.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from raftlog_spark.errors import RaftlogSparkError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from raftlog_spark.codec.columns import Columns

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
    """The schema given to `.schema(...)` has a column that topics lack, or of another type."""


def source_schema(*, include_headers: bool) -> str:
    """The schema of a query without one of its own, as DDL; every column is nullable."""
    names = tuple(_DDL) if include_headers else _WITHOUT_HEADERS
    return ", ".join(f"{name} {_DDL[name]}" for name in names)


def columns_of(schema: StructType) -> Columns:
    """The columns that a query's schema asks for, in its order.

    Raises SchemaError: a column that topics lack, twice the same, another type, or not nullable.
    """
    from raftlog_spark.codec.columns import Columns  # noqa: PLC0415  imports Arrow

    names: list[str] = []
    for field in schema.fields:
        if field.name not in _DDL:
            near = difflib.get_close_matches(field.name.lower(), [n.lower() for n in _DDL], n=1)
            spelt = {name.lower(): name for name in _DDL}
            hint = f"did you mean {spelt[near[0]]}? " if near else ""
            raise SchemaError(
                f"topics have no column {field.name!r}: {hint}they have {', '.join(_DDL)}. "
                "What is inside value is parsed after load(), with from_json or the like"
            )
        if field.name in names:
            raise SchemaError(f"column {field.name} is asked for twice")
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
    return Columns(tuple(names))


def _data_type(name: str) -> DataType:
    """The column's exact type, with all inside it nullable."""
    from pyspark.sql import types  # noqa: PLC0415  not needed to describe, only to check

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    return {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
    }.get(_DDL[name], types.ArrayType(header))
