"""The data source `raftlog` for Spark's Python Data Source API.

For every query, Spark creates the source in a separate process, only from the options, and calls
`schema` there. So options are checked there, where an error is easy to read. A query with its own
schema skips `schema`, so its options are checked when its reader is created.

Readers and writers are imported on use. Processes that only list sources or call `schema` start
without the client and Arrow, whose import takes longer than that work.

Spark's Python workers collect all generations after every task. With Spark, Arrow and numpy loaded,
a collection visits many objects that live as long as the process, and costs more than a small task
itself (DESIGN.md). So the survivors of such a collection are exempt from the next collections
(`gc.freeze`), again only after more modules have been imported. Exempt objects are still freed by
reference counting. Only their cycles are not, once for each freeze.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from raftlog_spark.options import sink_options, source_options
from raftlog_spark.schema import columns_of, source_schema

WORKERS_MODULE: Final = "pyspark.daemon"
"""The main module of the processes that Spark forks its workers from."""
OLDEST_GENERATION: Final = 2


class _Survivors:
    """A callback of the collector, see `gc.callbacks`."""

    def __init__(self) -> None:
        self._modules = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        modules = len(sys.modules)
        if phase == "stop" and info["generation"] == OLDEST_GENERATION and modules > self._modules:
            self._modules = modules
            gc.freeze()


def is_worker(module: str = WORKERS_MODULE) -> bool:
    """Whether this process runs that module of Spark's as its program."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == module


def spare_survivors() -> None:
    """Exempt the survivors of full collections from now on. Idempotent."""
    if not any(isinstance(callback, _Survivors) for callback in gc.callbacks):
        gc.callbacks.append(_Survivors())


NAME = "raftlog"
# Spark's process that offers filters to a reader. It runs only if pushdown is enabled.
_FILTER_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"

if is_worker():
    spare_survivors()


class RaftlogDataSource(DataSource):
    """Topics of a cluster, by `spark.read.format("raftlog")`, `spark.readStream`, and `write` and
    `writeStream` of frames.

    Options and columns are those of Spark's Kafka source and sink (`raftlog_spark.options`).
    Writes are exactly once (`raftlog_spark.sink.writers`).
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return NAME

    def schema(self) -> str:
        """All columns, headers only with `includeHeaders`. Raises OptionsError."""
        options = source_options(self.options)
        return source_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader for one batch query. Raises OptionsError, SchemaError."""
        from raftlog_spark.source.readers import BatchReader, FilteringBatchReader  # noqa: PLC0415

        options = source_options(self.options).for_mode("batch")
        columns = columns_of(schema)
        # Spark refuses a reader with `pushFilters` unless the session enables pushdown.
        takes_filters = _FILTER_WORKER in sys.modules or is_worker(_FILTER_WORKER)
        return (FilteringBatchReader if takes_filters else BatchReader)(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader for one streaming query. Raises OptionsError, SchemaError."""
        from raftlog_spark.source.readers import StreamReader  # noqa: PLC0415

        options = source_options(self.options).for_mode("stream")
        return StreamReader(options, columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer for one frame, all rows or none. Raises OptionsError, SchemaError."""
        from raftlog_spark.schema import sink_columns  # noqa: PLC0415
        from raftlog_spark.sink.writers import BatchSink, require_append  # noqa: PLC0415

        options = sink_options(self.options)
        require_append(overwrite=overwrite, is_stream=False)
        return BatchSink(options, sink_columns(schema, topic=options.topic))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer for a streaming query, every row once. Raises OptionsError, SchemaError."""
        from raftlog_spark.schema import sink_columns  # noqa: PLC0415
        from raftlog_spark.sink.writers import StreamSink, require_append  # noqa: PLC0415

        options = sink_options(self.options)
        require_append(overwrite=overwrite, is_stream=True)
        return StreamSink(options, sink_columns(schema, topic=options.topic))
