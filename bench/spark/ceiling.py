"""The cost of Spark itself for rows from Python: a source with ready rows, without a node.

No connector can be faster; the rest of the machine's time is left for a connector.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from raftlog_spark.data_source import spare_survivors

from bench.spark.running import PARTITIONS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "bench-ceiling"
BATCH_BYTES: Final = 3 * 1024 * 1024
"""As much as raftlog's source hands over at once."""


class CeilingReader(DataSourceReader):
    """Yields the same rows again and again."""

    def __init__(self, record_bytes: int, count: int) -> None:
        self._record_bytes = record_bytes
        self._count = count

    def partitions(self) -> list[InputPartition]:
        """As many tasks as the topics under measurement have partitions."""
        ends = [self._count * number // PARTITIONS for number in range(PARTITIONS + 1)]
        return [InputPartition(end - start) for start, end in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        import pyarrow as pa  # noqa: PLC0415 - on workers only

        spare_survivors()
        rows = BATCH_BYTES // self._record_bytes
        values = [os.urandom(self._record_bytes) for _ in range(rows)]
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])
        left = int(partition.value)
        while left:
            yield batch[:left]
            left -= min(left, rows)


class CeilingSource(DataSource):
    """Options: `bytes` of a value, and `count` of rows."""

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return NAME

    def schema(self) -> str:
        """The column of values alone, as in the reads under comparison."""
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `CeilingReader`."""
        return CeilingReader(int(self.options["bytes"]), int(self.options["count"]))


def ready_rows(spark: SparkSession, record_bytes: int, count: int) -> DataFrame:
    """Rows of the source."""
    spark.dataSource.register(CeilingSource)
    return spark.read.format(NAME).options(bytes=str(record_bytes), count=str(count)).load()
