"""Writes encoded batches, stamped, in order, several in flight, in bounded memory."""

from __future__ import annotations

from asyncio import Future
from types import TracebackType
from typing import Final, NamedTuple, Self

from raftlog_client import Producer, Transaction
from raftlog_client.errors import RaftlogClientError, SerializationError
from raftlog_client.produce.raw_batch import RawBatchBuilder

from raftlog_spark.background import Background
from raftlog_spark.errors import RaftlogSparkError, spark_error, write_failure

ABORT_TIMEOUT_MS: Final = 5_000


class Written(NamedTuple):
    """Acknowledged by all in-sync replicas, since the writer was made."""

    batches: int
    records: int
    size_bytes: int


class BatchWriter:
    """Writes under a separate producer id. A context manager, which closes the writer on leaving,
    or
    aborts it after an error. Not for several threads at once.

    The writer's own retries never write a batch twice. After a failed batch, `write` accepts no
    more.
    """

    def __init__(
        self,
        background: Background,
        producer: Producer,
        topic: str | None,
        transaction: Transaction | None = None,
    ) -> None:
        """The writer owns `producer` from now on, and the transaction that it has begun. `topic`:
        the default of `write`."""
        self.topic = topic
        self._transaction = transaction
        self._background = background
        self._producer = producer
        self._batches = self._records = self._size_bytes = 0
        self._failure: tuple[RaftlogClientError, str] | None = None
        """The first failure, and its topic."""
        self._is_closed = False

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic. Raises TopicGone, ClusterUnavailable."""
        self._require_open()
        what = f"looking up {topic!r}"
        try:
            return len(self._background.run(self._producer.partitions_for(topic), what))
        except RaftlogClientError as error:
            raise spark_error(error, what=what, topic=topic) from error

    def write(
        self, partition: int, data: bytearray, records: int, *, topic: str | None = None
    ) -> None:
        """Send one whole batch (format v2) of so many records, after all earlier batches.

        `topic`: overrides the writer's own. `data` is changed (producer id, sequence, CRC) and must
        not be touched afterwards. Returns when there is room, not when the batch is written. Raises
        WriteFailed for this or an earlier batch, ValueError if `data` is not one batch.
        """
        topic = topic or self.topic
        if topic is None:
            raise ValueError("No topic is given, and the writer has none of its own.")
        self._require_open()
        self._check()
        try:
            held = RawBatchBuilder(data).record_count
        except SerializationError as error:
            raise ValueError(str(error)) from error
        if held != records:
            raise ValueError(f"The batch holds {held} records, not {records}.")
        try:
            self._background.run(
                self._send(topic, partition, data, records), f"writing to {topic!r}"
            )
        except RaftlogClientError as error:
            raise write_failure(error, topic) from error

    def flush(self) -> Written:
        """Wait until all batches are acknowledged. Returns the totals. Raises WriteFailed with the
        first failure, once no batch is in flight."""
        self._require_open()
        try:
            self._background.run(self._producer.flush(), "writing what is buffered")
        except RaftlogClientError as error:
            raise write_failure(error, self.topic or "all topics") from error
        self._check()
        return Written(self._batches, self._records, self._size_bytes)

    def prepare(self) -> None:
        """Prepare the transaction, with all batches. It outlives the writer, until committed.
        Raises WriteFailed if it is not prepared."""
        self._require_open()
        assert self._transaction is not None
        try:
            self._background.run(self._transaction.prepare(), "preparing the transaction")
        except RaftlogClientError as error:
            raise write_failure(error, self.topic or "all topics") from error

    def close(self) -> Written:
        """Flush, and free all resources. Raises WriteFailed, after which the writer is also closed.
        Idempotent."""
        if self._is_closed:
            return Written(self._batches, self._records, self._size_bytes)
        try:
            return self.flush()
        finally:
            self.abort()

    def abort(self) -> None:
        """Send no more batches, and abort a transaction that is not prepared. Without a
        transaction, batches in flight may be written. Acknowledged batches are."""
        if not self._is_closed:
            self._is_closed = True
            timeout_ms = 0 if self._transaction is None else ABORT_TIMEOUT_MS
            self._background.run(self._producer.close(timeout_ms=timeout_ms), "closing the writer")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    async def _send(self, topic: str, partition: int, data: bytearray, records: int) -> None:
        size = len(data)
        future = await self._producer.send_batch(topic, partition, data)

        def settled(done: Future[int]) -> None:
            error = done.exception()
            if error is None:
                self._batches += 1
                self._records += records
                self._size_bytes += size
            elif self._failure is None:
                assert isinstance(error, RaftlogClientError)
                self._failure = error, topic

        future.add_done_callback(settled)

    def _check(self) -> None:
        if self._failure is not None:
            error, topic = self._failure
            raise write_failure(error, topic) from error

    def _require_open(self) -> None:
        if self._is_closed:
            raise RaftlogSparkError("The writer is closed.")
