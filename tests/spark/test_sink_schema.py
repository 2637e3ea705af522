"""Which columns of a frame are written, and what is said about the others."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)
from raftlog_spark.schema import SchemaError
from raftlog_spark.sink.sink_schema import SinkColumns, sink_columns

TEXT, BYTES, INT = StringType(), BinaryType(), IntegerType()
Fields = list[tuple[str, DataType]]


def struct(fields: Fields) -> StructType:
    made = StructType()
    for name, kind in fields:
        made = made.add(name, kind)
    return made


def headers(*fields: tuple[str, DataType]) -> ArrayType:
    return ArrayType(struct(list(fields)))


HEADERS = headers(("key", TEXT), ("value", BYTES))


def columns(fields: Fields, topic: str | None = "t") -> SinkColumns:
    return sink_columns(struct(fields), topic=topic)


def test_columns_are_found_in_any_order_and_case() -> None:
    fields: Fields = [
        ("PARTITION", INT),
        ("topic", TEXT),
        ("headers", HEADERS),
        ("Key", TEXT),
        ("value", BYTES),
    ]
    assert columns(fields, None) == SinkColumns(value=4, key=3, headers=2, topic=1, partition=0)
    assert columns([("value", TEXT)]) == SinkColumns(value=0)


def test_the_option_overrides_the_column_topic() -> None:
    assert columns([("value", TEXT), ("topic", TEXT)], "t").topic is None


def test_what_was_read_can_be_written() -> None:
    fields: Fields = [
        ("key", BYTES),
        ("value", BYTES),
        ("topic", TEXT),
        ("partition", INT),
        ("offset", LongType()),
        ("timestamp", TimestampType()),
        ("timestampType", INT),
        ("headers", HEADERS),
    ]
    expected = SinkColumns(value=1, key=0, headers=7, topic=2, partition=3)
    assert columns(fields, None) == expected


@pytest.mark.parametrize("kind", [ByteType(), ShortType(), INT, LongType()], ids=str)
def test_a_partition_is_a_whole_number(kind: DataType) -> None:
    assert columns([("value", TEXT), ("partition", kind)]).partition == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("key", TEXT)], "no column value.*to_json"),
        ([("value", TEXT), ("val", TEXT)], "no column 'val': did you mean value"),
        ([("value", TEXT), ("carrier", TEXT)], "no column 'carrier'.*drop"),
        ([("value", INT)], "column value must be binary or string, not int: .*to_json"),
        ([("value", struct([("a", INT)]))], "must be binary or string, not struct<a:int>"),
        ([("value", TEXT), ("key", INT)], "column key must be binary or string"),
        ([("value", TEXT), ("partition", TEXT)], "partition must be int, not string: cast"),
        ([("value", TEXT), ("topic", BYTES)], "column topic must be string"),
        ([("value", TEXT), ("VALUE", TEXT)], "column value is there twice"),
        ([("value", TEXT), ("headers", TEXT)], "headers must be array<struct"),
        ([("value", TEXT), ("headers", ArrayType(TEXT))], "headers must be array<struct"),
        ([("value", TEXT), ("headers", MapType(TEXT, BYTES))], "headers must be array<struct"),
        ([("value", TEXT), ("headers", headers(("key", TEXT)))], "headers must be"),
        ([("value", TEXT), ("headers", headers(("key", TEXT), ("v", BYTES)))], "headers must be"),
        ([("value", TEXT), ("headers", headers(("key", TEXT), ("value", INT)))], "headers must be"),
    ],
)
def test_mistakes_are_told(fields: Fields, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        columns(fields)


def test_rows_must_say_a_topic_if_no_option_does() -> None:
    with pytest.raises(SchemaError, match="which topic"):
        columns([("value", TEXT)], None)
