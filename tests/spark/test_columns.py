from __future__ import annotations

import pyarrow as pa
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
    TimestampType,
)
from raftlog_spark.codec.columns import Columns, arrow_schema

from tests.spark.raw import ALL

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
KAFKA_SOURCE = StructType(
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


class TestArrowSchema:
    def test_it_is_what_spark_asks_for(self) -> None:
        assert arrow_schema(ALL) == to_arrow_schema(KAFKA_SOURCE, timezone="UTC")

    def test_it_has_the_columns_in_the_order_asked(self) -> None:
        assert arrow_schema(Columns(("offset", "key"))).names == ["offset", "key"]
        assert arrow_schema(ALL).field("timestamp").type == pa.timestamp("us", tz="UTC")

    def test_there_is_no_other_column(self) -> None:
        with pytest.raises(KeyError):
            arrow_schema(Columns(("colour",)))
