"""The sink's driver side: what is checked before, and what a batch's end means.

A batch is written in two steps, so that transactions can make it exactly once when the log has
them: each attempt of a task writes on its own and tells in its commit message who it is and what
it wrote; one call on the driver then commits the batch with the messages of all tasks.

**For now a batch is written at least once.** Nothing is ever reported as written before all in-sync
replicas have acknowledged it, so no row is lost. But records can be read as soon as they are
written, and nothing takes them back: an attempt that fails, a speculative one, a batch that is
aborted, and a batch that runs again after a restart leave records that come twice. `commit` only
makes sure that every task has said what it wrote. Whoever must have each row once gives it a key
and drops duplicates when reading.
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
        # Every write without a name is one of its own: none may be taken for the one before.
        self._sink_id = options.sink_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Writes the rows of one task; all are acknowledged when this returns.

        Raises RaftlogSparkError: not all are; some may be written.
        """
        from raftlog_spark.sink.sink_task import current_tag, write_rows  # noqa: PLC0415  imports Arrow

        return write_rows(self._options, self._columns, current_tag(self._sink_id), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Ends a write that every task has ended. Raises CommitError: not all have."""
        check_complete(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Says what a write that failed leaves behind."""
        _log_left_behind(messages, "the write")


class StreamSink(DataSourceStreamArrowWriter):
    """Writes a stream's batches, each at least once (see the module). Pickles to the executors."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Writes the rows of one task of one batch; all are acknowledged when this returns.

        Raises RaftlogSparkError: not all are; some may be written.
        """
        from raftlog_spark.sink.sink_task import current_tag, write_rows  # noqa: PLC0415  imports Arrow

        tag = current_tag(self._options.sink_id)
        return write_rows(self._options, self._columns, tag, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Ends a batch that every task has ended; the same batch may end again after a restart.

        Raises CommitError: not all have, or the messages are another batch's.
        """
        check_complete(messages, batch_id=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Says what a batch that failed leaves behind."""
        _log_left_behind(messages, f"batch {batchId}")


def require_append(*, overwrite: bool, is_stream: bool) -> None:
    """Raises OptionsError if what is in the topic is to be replaced."""
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
