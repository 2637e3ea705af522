"""The producer sends records in batches and reports every record's outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from time import time
from typing import Any, Final, Generic, Literal

from typing_extensions import TypeVar

from raftlog.api.transactions import TRANSACTION_TIMEOUT_MS_DEFAULT
from raftlog.record.errors import LogError
from raftlog_client.errors import (
    ClientClosedError,
    DeliveryTimeoutError,
    IllegalStateError,
    RaftlogClientError,
    server_error,
)
from raftlog_client.metadata import BOOTSTRAP_TIMEOUT_MS, ClusterClient
from raftlog_client.produce.accumulator import (
    FUTURE_BYTES,
    LOOK_INTERVAL_S,
    Accumulator,
    ProducerSettings,
    StallReporter,
    TopicQueues,
)
from raftlog_client.produce.batches import RawBatchBuilder
from raftlog_client.produce.bulk_send import BulkSend
from raftlog_client.produce.record_encoder import (
    Partitioner,
    RecordEncoder,
    murmur2_partitioner,
    whole_timestamp_ms,
)
from raftlog_client.produce.sender import Sender
from raftlog_client.transactions.fencing import Fencing
from raftlog_client.transactions.state import State
from raftlog_client.transactions.transactions import Transaction, Transactions
from raftlog_client.types import Headers, RecordMetadata, SendSummary, require_at_least

KeyIn = TypeVar("KeyIn", default=bytes)
ValueIn = TypeVar("ValueIn", default=bytes)

CLOSE_TIMEOUT_MS: Final = 10_000


class _Lookup:
    """A lookup of a topic under way, and the calls waiting in line."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.calls = 0


class Producer(ClusterClient, Generic[KeyIn, ValueIn]):
    """Writes records to topics. An async context manager.

    `send` gathers records into batches and returns futures. `send_many` is for bulk work. Several
    tasks may use one producer. Order is kept per partition, in the order of the calls.

    Meaning of the settings:

    - `acks`: durability of an acknowledgement. "all" (or -1) is every in-sync replica, 1 is the
      leader, 0 promises nothing.
    - `linger_ms`: how long an open batch may wait for more records. With 0 the batch leaves at the
      end of the present turn of the event loop, or after the response to the request before.
    - `batch_bytes_max`: size at which a batch is closed, before compression. The topic's
      `max.message.bytes` must allow it.
    - `buffer_bytes_max`: memory for records without acknowledgement. When full, `send` waits, and
      after `delivery_timeout_ms` raises BufferFullError.
    - `request_bytes_max`: size up to which batches of many partitions share a request.
    - `in_flight_requests_max`: requests under way to one node at once.
    - `bootstrap_timeout_ms`: how long `start` tries nodes that never respond. Once a node has
      responded, `request_timeout_ms` applies.
    - `delivery_timeout_ms`: from `send` to the final outcome of a record, all retries included.
    - `idempotent`: nodes recognise retries and never write them twice. Without it, or with acks=0,
      a request with unknown outcome fails instead of being repeated.
    - `transactional_id`: makes every record part of a transaction, see `transaction`. Only one
      producer has it at a time. `start` fences the previous producer. Implies acks="all" and
      `idempotent`.
    - `fencing_id`: a producer id that is kept, without transactions. `start` takes its next epoch.
      From this producer's first record in a partition, the partition rejects the previous producer.
      After a failed batch, every further `send` raises ProducerBrokenError, or FencedError once
      another producer has taken over. Implies the same settings as `transactional_id`, and excludes
      it.
    - `transaction_timeout_ms`: the coordinator aborts a transaction that is open for longer.
    - `keeps_prepared`: `start` keeps a prepared transaction of an earlier process, to be committed
      or aborted (`prepared_transaction`), instead of aborting it.
    - `key_serializer`, `value_serializer`: from keys and values to bytes. None stays None.
    - `partitioner`: for records sent without a partition.

    Raises ValueError for a setting out of bounds.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:8082",
        client_id: str = "raftlog-client",
        acks: Literal["all", -1, 0, 1] = "all",
        linger_ms: float = 0,
        batch_bytes_max: int = 512 * 1024,
        buffer_bytes_max: int = 32 * 1024 * 1024,
        request_bytes_max: int = 4 * 1024 * 1024,
        in_flight_requests_max: int = 5,
        compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
        delivery_timeout_ms: float = 60_000,
        request_timeout_ms: float = 15_000,
        bootstrap_timeout_ms: float = BOOTSTRAP_TIMEOUT_MS,
        retry_backoff_ms: float = 20,
        retry_backoff_max_ms: float = 250,
        metadata_max_age_ms: float = 300_000,
        idempotent: bool = True,
        transactional_id: str | None = None,
        fencing_id: str | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS_DEFAULT,
        keeps_prepared: bool = False,
        key_serializer: Callable[[KeyIn], bytes] | None = None,
        value_serializer: Callable[[ValueIn], bytes] | None = None,
        partitioner: Partitioner = murmur2_partitioner,
    ) -> None:
        settings = ProducerSettings(
            acks=acks,
            idempotent=idempotent,
            compression=compression,
            linger_ms=linger_ms,
            batch_bytes_max=batch_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
            request_bytes_max=request_bytes_max,
            in_flight_requests_max=in_flight_requests_max,
            request_timeout_ms=request_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            transactional_id=transactional_id,
            fencing_id=fencing_id,
            transaction_timeout_ms=transaction_timeout_ms,
            keeps_prepared=keeps_prepared,
        )
        require_at_least(1, metadata_max_age_ms=metadata_max_age_ms)
        super().__init__(
            bootstrap_servers,
            client_id,
            request_timeout_ms=request_timeout_ms,
            bootstrap_timeout_ms=bootstrap_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        )
        self._encoder = RecordEncoder(
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
            record_bytes_max=request_bytes_max,
        )
        self._sender = Sender(self._transport, self._metadata, settings)
        on_failure = self._identify(settings)
        self._accumulator = Accumulator(
            settings, on_ready=self._sender.ready, on_failure=on_failure
        )
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._topics = self._sender.topics
        self._lookups: dict[str, _Lookup] = {}
        """Lookups with calls waiting, or until a moment ago."""
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The producer's event loop, or None before `start` and after `close`."""

    def _identify(self, settings: ProducerSettings) -> Callable[[RaftlogClientError], None] | None:
        """Set up the producer's id. Returns the call for each batch that is given up."""
        self._transactions: Transactions | None = None
        self._fencing: Fencing | None = None
        self._check_write: Callable[[], None] | None = None
        """Raises unless records may be sent. None only outside `start` and `close`."""
        if settings.transactional_id is not None:
            self._transactions = Transactions(
                settings.transactional_id,
                self._metadata,
                self._sender,
                self._drain,
                settings=settings,
            )
            self._check_write = self._transactions.state.check_write
            return self._transactions.batch_failed
        if settings.fencing_id is not None:
            self._fencing = Fencing(settings.fencing_id, self._metadata, self._sender)
            self._check_write = self._fencing.check_write
            return self._fencing.batch_failed
        return None

    async def start(self) -> None:
        """Connect to the cluster. Raises RaftlogClientError if no node responds."""
        if self._loop is not None:
            return
        self._transport.start()
        try:
            await self._metadata.refresh(())
            await self._sender.start()
            if self._transactions is not None:
                await self._transactions.start()
            if self._fencing is not None:
                await self._fencing.start()
        except BaseException:
            await self._disconnect()
            raise
        self._loop = asyncio.get_running_loop()
        self._tasks = (
            asyncio.ensure_future(self._keep_fresh()),
            asyncio.ensure_future(self._report_stalls()),
        )

    async def close(self, *, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """Send buffered records for at most `timeout_ms`, then close the connections.

        The futures of records without acknowledgement by then fail, and show whether the outcome is
        known. `close` raises nothing. An open transaction is aborted, a prepared transaction stays.
        Closing twice is allowed.
        """
        if self._loop is None:
            return
        if self._transactions is not None:
            await self._transactions.close(timeout_ms / 1000)
        self._loop = None
        closed = ClientClosedError("The producer is closed.")
        self._accumulator.close(closed)
        try:
            await self._drain(timeout_ms / 1000)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._fencing is not None:
                await self._fencing.close()
            await self._sender.close()
            for batch in list(self._accumulator.unsettled):
                batch.fail(_closed_before(outcome_unknown=batch.outcome_unknown))
            await self._disconnect()

    async def send(  # noqa: PLR0917 (the order is aiokafka's, which users know)
        self,
        topic: str,
        value: ValueIn | None = None,
        key: KeyIn | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Put a record into its partition's batch. The future gives its offset.

        Waits only while the topic is not known yet or the buffer is full. The future raises
        RaftlogClientError. The call itself raises TopicNotFoundError, SerializationError,
        RecordTooLargeError, BufferFullError or ClientClosedError, and the record was then never
        sent. `timestamp_ms` is a whole number. None means now.
        """
        loop = self._loop
        if loop is None or self._check_write is not None:
            loop = self._writable_loop()
        queues = self._topics.get(topic)
        if (
            queues is None
            or (partition is not None and partition >= len(queues.queues))
            or (self._lookups and topic in self._lookups)
        ):
            queues = await self._load(topic, partition)
            self._writable_loop()
        encoder, accumulator = self._encoder, self._accumulator
        key_bytes = key if key is None else encoder.key(key)
        value_bytes = value if value is None else encoder.value(value)
        header_list = list(headers) if headers else None
        size = encoder.size(key_bytes, value_bytes, header_list) + FUTURE_BYTES
        if accumulator.buffered_bytes >= accumulator.buffer_bytes_max or accumulator.waiters:
            await accumulator.wait_for_room()
            self._writable_loop()
        if timestamp_ms is None:
            timestamp_ms = int(time() * 1000)
        elif timestamp_ms.__class__ is not int:
            timestamp_ms = whole_timestamp_ms(timestamp_ms)
        queue = encoder.queue(queues, partition, key_bytes, value_bytes)
        is_full = False
        try:
            while True:
                batch = queue.open
                if batch is None or batch.bulk is not None:
                    batch = accumulator.open_batch(queue)
                if batch.append(timestamp_ms, key_bytes, value_bytes, header_list):
                    break
                is_full = True
                accumulator.close_batch(queue)
                # Records without a key use the next partition's turn.
                queue = encoder.queue(queues, partition, key_bytes, value_bytes)
        except LogError as error:
            accumulator.discard_empty(queue)
            raise server_error(error.entry.code, error.message) from None
        except BaseException:
            accumulator.discard_empty(queue)
            raise
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        batch.futures.append(future)
        batch.timestamps.append(timestamp_ms)
        batch.reserved_bytes += size
        accumulator.buffered_bytes += size
        if is_full:
            # The full batch leaves now, not when the caller happens to wait.
            await asyncio.sleep(0)
        return future

    async def send_and_wait(  # noqa: PLR0917 (as `send`)
        self,
        topic: str,
        value: ValueIn | None = None,
        key: KeyIn | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record and await its acknowledgement. Raises as `send` and its future do."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def send_many(
        self,
        topic: str,
        records: Iterable[Any] | AsyncIterable[Any],
        *,
        partition: int | None = None,
    ) -> SendSummary:
        """Send many records and wait until all are acknowledged.

        Each is a value, a (key, value) tuple, or a ProducerRecord. `partition` is for records that
        name none. The iterable is read as fast as the buffer allows. A blocking iterable blocks the
        event loop, so give an async iterable for slow sources.

        Raises SendManyError, with the acknowledged records, if a batch was given up. No record is
        taken from the iterable after the failure is known, but up to a buffer of records may have
        been. The iterable's exceptions pass, with a note of how much was written.
        """
        self._writable_loop()
        queues = self._topics.get(topic)
        if queues is None or (partition is not None and partition >= len(queues.queues)):
            queues = await self._load(topic, partition)
        send = BulkSend(self._accumulator, queues, self._encoder, partition=partition)
        if self._transactions is None:
            return await send.run(records)
        with self._transactions.state.writing():
            return await send.run(records)

    async def send_batch(self, topic: str, partition: int, data: bytearray) -> asyncio.Future[int]:
        """Send one whole record batch (format v2), encoded by the caller.

        The producer takes ownership of `data`, and stamps its id and sequence into the batch. The
        future gives the base offset (-1 if unknown). Future and call raise as those of `send`, and
        SerializationError if `data` is not one batch. Order is kept with all other records to the
        partition.
        """
        self._writable_loop()
        records = RawBatchBuilder(data)
        queues = self._topics.get(topic)
        if queues is None or partition >= len(queues.queues) or topic in self._lookups:
            queues = await self._load(topic, partition)
        if self._accumulator.must_wait:
            await self._accumulator.wait_for_room()
        return self._accumulator.add_encoded(queues.queue(partition), records)

    async def flush(self, *, timeout_ms: float | None = None) -> None:
        """Return once every record sent before is settled, written or given up.

        Raises DeliveryTimeoutError after `timeout_ms`. The records are still sent.
        """
        if self._loop is None:
            raise ClientClosedError("The producer is closed, or was never started.")
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        if not await self._drain(timeout_s):
            raise DeliveryTimeoutError(
                f"Not everything was acknowledged within {timeout_ms} ms; sending goes on.",
                outcome_unknown=True,
            )

    def transaction(self) -> Transaction:
        """Return a transaction for `async with`, which commits at the block's end.

        An exception aborts it. Records are sent by this producer's methods. Readers of committed
        transactions see all of them or none. Raises IllegalStateError without a `transactional_id`.
        """
        return Transaction(self._require_transactions())

    def prepared_transaction(self) -> Transaction | None:
        """Return the prepared transaction to `commit` or `abort` before any other, or None."""
        transactions = self._require_transactions()
        return Transaction(transactions) if transactions.state.state is State.PREPARED else None

    def _require_transactions(self) -> Transactions:
        if self._transactions is None:
            raise IllegalStateError("The producer has no transactions: give it a transactional_id.")
        return self._transactions

    def _writable_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop. Raises ClientClosedError, and as `check_write`."""
        if self._loop is None:
            raise ClientClosedError("The producer is closed, or was never started.")
        if self._check_write is not None:
            self._check_write()
        return self._loop

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the topic's partitions. Raises TopicNotFoundError."""
        return set(range(len((await self._load(topic, None)).queues)))

    async def _load(self, topic: str, partition: int | None) -> TopicQueues:
        """Return the queues of a topic that is unknown or lacks the partition.

        Calls that wait for the same topic continue in their order, and before any later call.
        """
        lookup = self._lookups.setdefault(topic, _Lookup())
        lookup.calls += 1
        try:
            async with lookup.lock:
                return await self._find(topic, partition)
        finally:
            lookup.calls -= 1
            if not lookup.calls:
                del self._lookups[topic]

    async def _find(self, topic: str, partition: int | None) -> TopicQueues:
        if partition is None:
            description = await self._metadata.topic(topic, to_produce=True)
        else:
            description = await self._metadata.check_partition(topic, partition, to_produce=True)
        queues = self._topics.get(topic)
        is_idempotent = self._sender.is_idempotent
        if queues is None:
            # Bounded by the existing topics named by the application.
            queues = self._topics[topic] = TopicQueues(description, is_idempotent=is_idempotent)
        else:
            queues.grow(description, is_idempotent=is_idempotent)
        return queues

    async def _drain(self, timeout_s: float | None = None) -> bool:
        """Await the outcome of all present batches. Returns False if the time was too short."""
        self._accumulator.hurry()
        try:
            async with asyncio.timeout(timeout_s):
                for batch in list(self._accumulator.unsettled):
                    await batch.settled()
        except TimeoutError:
            return False
        return True

    async def _keep_fresh(self) -> None:
        """Look for partitions added to the topics in use."""
        while True:
            await asyncio.sleep(self._metadata_max_age_s)
            try:
                await self._metadata.refresh(list(self._topics))
            except RaftlogClientError:
                # Sending notices and reports it if the metadata is needed.
                continue
            self._sender.apply_metadata()

    async def _report_stalls(self) -> None:
        reporter = StallReporter(self._accumulator, self._metadata)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            reporter.look(loop.time())


def _closed_before(*, outcome_unknown: bool) -> ClientClosedError:
    what = "may or may not be" if outcome_unknown else "is not"
    return ClientClosedError(
        f"The producer was closed before the record was acknowledged: it {what} written.",
        outcome_unknown=outcome_unknown,
    )
