"""The columns of source and sink: accepted, refused, and in Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from raftlog_spark.codec.records import arrow_schema
from raftlog_spark.schema import SchemaError, SinkColumns, columns_of, sink_columns, source_schema

from tests.spark.raw import ALL

HEADER = StructType().add("key", StringType()).add("value", BinaryType())
WHOLE = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)


def test_headers_are_a_column_when_asked_for() -> None:
    assert source_schema(include_headers=True) == ", ".join(
        f"{field.name} {field.dataType.simpleString()}" for field in WHOLE
    )
    assert "headers" not in source_schema(include_headers=False)


def test_a_query_may_ask_for_some_columns_in_its_order() -> None:
    asked = StructType([WHOLE["offset"], WHOLE["key"]])
    assert columns_of(asked) == ("offset", "key")


def test_arrow_batches_have_exactly_the_schema_that_spark_checks() -> None:
    assert arrow_schema(columns_of(WHOLE)) == to_arrow_schema(WHOLE, timezone="UTC")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("Offset", LongType()), "did you mean offset?"),
        (StructField("amount", LongType()), "parsed after load()"),
        (StructField("offset", IntegerType()), "offset is bigint, not int"),
        (StructField("value", StringType()), "value is binary, not string"),
        (StructField("timestamp", TimestampNTZType()), "not timestamp_ntz"),
        (StructField("topic", StringType(), nullable=False), "leave NOT NULL out"),
        (StructField("headers", ArrayType(HEADER, containsNull=False)), "headers is array"),
    ],
)
def test_what_topics_do_not_have_is_refused(field: StructField, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        columns_of(StructType([field]))
    assert words in str(caught.value)


def test_a_column_comes_once_and_one_at_least() -> None:
    with pytest.raises(SchemaError, match="twice"):
        columns_of(StructType([WHOLE["offset"], WHOLE["offset"]]))
    with pytest.raises(SchemaError, match="no column"):
        columns_of(StructType())


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


class TestArrowSchema:
    def test_it_is_what_spark_asks_for(self) -> None:
        assert arrow_schema(ALL) == to_arrow_schema(WHOLE, timezone="UTC")

    def test_it_has_the_columns_in_the_order_asked(self) -> None:
        assert arrow_schema(("offset", "key")).names == ["offset", "key"]
        assert arrow_schema(ALL).field("timestamp").type == pa.timestamp("us", tz="UTC")

    def test_there_is_no_other_column(self) -> None:
        with pytest.raises(KeyError):
            arrow_schema(("colour",))
