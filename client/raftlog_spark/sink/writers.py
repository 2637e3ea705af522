"""The sink's driver side: checks before a write, and the end of a batch.

A batch is written in two steps, so that transactions can make it exactly once when the log has
them: each attempt of a task writes on its own and reports its id and its writes in its commit
message; one call on the driver then commits the batch with the messages of all tasks.

**For now a batch is written at least once.** No row is reported as written before all in-sync
replicas have acknowledged it, so no row is lost. But records are readable as soon as they are
written, and cannot be withdrawn: a failed attempt, a speculative one, an aborted batch, and a batch
that runs again after a restart leave duplicates. `commit` only checks that every task has reported
its writes. For each row once, give rows a key and drop duplicates when reading.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from raftlog_spark.options import OptionsError, SinkOptions
from raftlog_spark.schema import SinkColumns
from raftlog_spark.sink.commit_message import TaskCommit, check_complete

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class BatchSink(DataSourceArrowWriter):
    """Writes one frame, at least once (see the module). Pickles to the executors."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        # Every unnamed write has an id of its own, unlike any earlier one.
        self._sink_id = options.sink_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of one task; all are acknowledged at return.

        Raises RaftlogSparkError: not all are; some may be written.
        """
        from raftlog_spark.sink.sink_task import current_tag, write_rows  # noqa: PLC0415  imports Arrow

        return write_rows(self._options, self._columns, current_tag(self._sink_id), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End a write after all tasks. Raises CommitError: a task has not ended."""
        check_complete(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the leftovers of a failed write."""
        _log_left_behind(messages, "the write")


class StreamSink(DataSourceStreamArrowWriter):
    """Writes a stream's batches, each at least once (see the module). Pickles to the executors."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of one task of one batch; all are acknowledged at return.

        Raises RaftlogSparkError: not all are; some may be written.
        """
        from raftlog_spark.sink.sink_task import current_tag, write_rows  # noqa: PLC0415  imports Arrow

        tag = current_tag(self._options.sink_id)
        return write_rows(self._options, self._columns, tag, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """End a batch after all tasks; the same batch may end again after a restart.

        Raises CommitError: a task has not ended, or the messages are another batch's.
        """
        check_complete(messages, batch_id=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Log the leftovers of a failed batch."""
        _log_left_behind(messages, f"batch {batchId}")


def require_append(*, overwrite: bool, is_stream: bool) -> None:
    """Raise OptionsError for a write that replaces the topic's content."""
    if not overwrite:
        return
    if is_stream:
        raise OptionsError(
            'a topic cannot be written in outputMode("complete"), which replaces the whole result '
            'with every batch: use outputMode("append"), for aggregates with a watermark'
        )
    raise OptionsError(
        'records can be appended to a topic, not put in the place of others: use mode("append")'
    )


def _log_left_behind(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    _log.warning(
        "%s failed: %d records of %d tasks that had ended stay written, and perhaps some of the "
        "others; if it is run again, they are written again",
        what,
        sum(commit.records for commit in commits),
        len(commits),
    )
