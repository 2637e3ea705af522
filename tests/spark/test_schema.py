from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from raftlog_spark.codec.columns import Columns, arrow_schema
from raftlog_spark.schema import SchemaError, columns_of, source_schema

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
    assert columns_of(asked) == Columns(("offset", "key"))


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
