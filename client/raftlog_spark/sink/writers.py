"""The sink's driver side checks before a write, and ends a batch.

**Exactly once**, by two phases. Each attempt of a task writes in a separate transaction, prepares
it, and names it in its commit message. Then one call of the driver commits those of a batch, all or
nothing, and aborts what other attempts left. A batch of a stream is an epoch of its sink. A batch
that runs again after a restart is committed once, whatever its tasks were. A transaction that ended
before the commit fails the batch.

**At least once** (`deliveryGuarantee`), records are readable as soon as they are written, and
cannot be withdrawn. A failed attempt, a speculative attempt, an aborted batch, and a batch that
runs again leave duplicates. No row is reported as written before all in-sync replicas have
acknowledged it.
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

from raftlog_spark.errors import RaftlogSparkError, SinkRefused
from raftlog_spark.options import OptionsError, SinkOptions
from raftlog_spark.schema import SinkColumns
from raftlog_spark.sink.commit_message import CommitError, TaskCommit, check_complete, once_sink_id

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class BatchSink(DataSourceArrowWriter):
    """Writes one frame. Pickles to the executors."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        # Unlike that of any earlier write.
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of one task. All are acknowledged at return. Raises RaftlogSparkError if
        not all are. At least once, some may be written."""
        from raftlog_spark.sink.sink_task import current_tag, write_rows  # noqa: PLC0415  imports Arrow

        tag = current_tag(self._options.sink_id, write_id=self._write_id)
        return write_rows(self._options, self._columns, tag, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit a write after all tasks. Nothing is committed if this raises CommitError."""
        _commit(self._options, check_complete(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort a failed write. Never raises. Its remains end by their timeout."""
        sink_id = once_sink_id(self._options.sink_id, self._write_id)
        _abort(self._options, messages, "the write", sink_id)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes a stream's batches. Pickles to the executors."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of one task of one batch. All are acknowledged at return. Raises
        RaftlogSparkError if not all are. At least once, some may be written."""
        from raftlog_spark.sink.sink_task import current_tag, write_rows  # noqa: PLC0415  imports Arrow

        tag = current_tag(self._options.sink_id)
        return write_rows(self._options, self._columns, tag, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Commit a batch after all tasks. The batch may be committed again after a restart.

        Raises CommitError if a task has not ended, the messages are another batch's, or a
        transaction ended before. Then nothing is committed.
        """
        _commit(self._options, check_complete(messages, batch_id=batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Abort a failed batch. Never raises. Its remains end by their timeout, or with the next
        batch."""
        _abort(self._options, messages, f"batch {batchId}", None)


def _commit(options: SinkOptions, commits: Sequence[TaskCommit]) -> None:
    if not (options.is_exactly_once and commits):
        return
    from raftlog_spark.cluster import Cluster  # noqa: PLC0415  imports the client

    tag = commits[0].tag
    names = [commit.transactional_id for commit in commits if commit.transactional_id is not None]
    with Cluster(options.bootstrap_servers) as cluster:
        try:
            cluster.commit_sink(tag.sink_id, names, epoch=tag.epoch, owner=tag.owner)
        except SinkRefused as error:
            if error.is_unknown:
                raise CommitError(
                    f"The write may be committed, whole or not at all. {error}"
                ) from error
            remedy = "Give this query another sinkId, or none."
            if not error.is_owned:
                remedy = (
                    "A task's transaction has ended before: aborted by an operator, or after "
                    f"{options.transaction_timeout_ms} ms (transactionTimeoutMs). Run it again; a "
                    "stream does so when it is started again."
                )
            what = "The write" if tag.epoch is None else f"Batch {tag.epoch}"
            raise CommitError(
                f"{what} is not committed, and no part of it: {error} {remedy}"
            ) from error


def _abort(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    what: str,
    sink_id: str | None,
) -> None:
    """`sink_id`: if it is known without a message."""
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    if not options.is_exactly_once:
        _log.warning(
            "%s failed: %d records of %d tasks that had ended stay written, and perhaps some of "
            "the others; if it is run again, they are written again",
            what,
            sum(commit.records for commit in commits),
            len(commits),
        )
        return
    owner = ""
    if commits:
        sink_id, owner = commits[0].tag.sink_id, commits[0].tag.owner
    if sink_id is None:
        return
    from raftlog_spark.cluster import Cluster  # noqa: PLC0415  imports the client

    try:
        with Cluster(options.bootstrap_servers) as cluster:
            cluster.commit_sink(sink_id, (), epoch=None, owner=owner)
    except RaftlogSparkError as error:
        _log.warning(
            "%s failed, and its transactions could not be aborted: readers of the topics wait "
            "until their timeout (transactionTimeoutMs) is over, or the sink's next batch is "
            "committed: %s",
            what,
            error,
        )


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
