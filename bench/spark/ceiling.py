"""What Spark itself takes to read rows from Python: a source that has them ready, without a node.

No connector can be faster than this; what it leaves of the machine is what one may use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from raftlog_spark.worker_gc import spare_survivors

from bench.spark.running import PARTITIONS, spark, sum_of_lengths

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "bench-ceiling"
BATCH_BYTES: Final = 3 * 1024 * 1024
"""As much as raftlog's source hands over at once."""


class CeilingReader(DataSourceReader):
    """Gives the same rows again and again."""

    def __init__(self, record_bytes: int, count: int) -> None:
        self._record_bytes = record_bytes
        self._count = count

    def partitions(self) -> list[InputPartition]:
        """As many tasks as the topics under measurement have partitions."""
        ends = [self._count * number // PARTITIONS for number in range(PARTITIONS + 1)]
        return [InputPartition(end - start) for start, end in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """That many rows."""
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
        """Values alone, as the reads it is compared with."""
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `CeilingReader`."""
        return CeilingReader(int(self.options["bytes"]), int(self.options["count"]))


def read_ready(record_bytes: int, count: int) -> tuple[int, int]:
    """A batch query over rows that are ready: how many, and the sum of their lengths."""
    running = spark()
    running.dataSource.register(CeilingSource)
    frame = running.read.format(NAME).options(bytes=str(record_bytes), count=str(count))
    return sum_of_lengths(frame.load())
