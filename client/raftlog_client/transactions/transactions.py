"""Transactions of a producer, with the I/O around transactions/state.py.

A transaction starts at the cluster with its first write. All its batches are flushed before its
end, and a failed batch breaks it. Ends are harmless to repeat, so each is repeated until its
outcome is known or `delivery_timeout_ms` is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from raftlog.api.groups import NO_MEMBER_EPOCH, CommitResponse
from raftlog.api.transactions import (
    EndRequest,
    InitRequest,
    TransactionOffsets,
    TransactionProducer,
)
from raftlog.record import errors
from raftlog.record.coordinators import TRANSACTIONS_TOPIC
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog_client.consumer import Consumer
from raftlog_client.errors import (
    DeliveryTimeoutError,
    FencedError,
    IllegalStateError,
    RaftlogClientError,
    ServerError,
    TransactionAbortableError,
    server_error,
)
from raftlog_client.groups.consumer import ConsumerGroup, with_metadata
from raftlog_client.groups.offsets import offset_commits
from raftlog_client.metadata import COORDINATOR_PATIENCE_S, ClusterMetadata, CoordinatorKey
from raftlog_client.produce.accumulator import ProducerSettings
from raftlog_client.produce.batches import ProducerIdentity
from raftlog_client.produce.sender import Sender
from raftlog_client.transactions.state import (
    EndError,
    State,
    TransactionState,
    is_not_open,
    judge_end,
)
from raftlog_client.types import GroupMetadata, OffsetAndMetadata, TopicPartition

T = TypeVar("T")
_Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]

logger = logging.getLogger("raftlog_client")


class Transactions:
    """All transactions of one producer, one after the other."""

    def __init__(
        self,
        transactional_id: str,
        metadata: ClusterMetadata,
        sender: Sender,
        flush: Callable[[], Awaitable[Any]],
        *,
        settings: ProducerSettings,
    ) -> None:
        """`flush` returns once all present batches are settled."""
        self.state = TransactionState(transactional_id)
        self._path, self._coordinator = _route(transactional_id)
        self._metadata = metadata
        self._timeout_ms = settings.transaction_timeout_ms
        self._keeps_prepared = settings.keeps_prepared
        self._deadline_s = settings.delivery_timeout_ms / 1000
        self._sender = sender
        self._flush = flush
        self._abandoning: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        """Allows one change of the transaction at a time."""

    async def start(self) -> None:
        """Become the only producer of the transactional id and fence earlier producers.

        Their open transactions are aborted, or kept if prepared and `keeps_prepared` is set.
        """
        request = InitRequest(self._timeout_ms, keep_prepared=self._keeps_prepared)
        answer = await init_producer(self._metadata, self.state.transactional_id, request)
        self.state.started(identity_of(answer), is_prepared=answer.is_prepared)

    async def close(self, timeout_s: float) -> None:
        """Abort an open transaction, which holds back all readers of its partitions."""
        if self.state.state in {State.OPEN, State.BROKEN}:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.abort()
            except (RaftlogClientError, TimeoutError) as error:
                logger.warning(
                    "transactional id %s: the open transaction could not be aborted, and ends "
                    "after %d ms (transaction_timeout_ms): %r",
                    self.state.transactional_id,
                    self._timeout_ms,
                    error,
                )

    def batch_failed(self, error: RaftlogClientError) -> None:
        """Drop the transaction's other batches, because one of them is given up."""
        if self.state.fail(error):
            self._abandoning = asyncio.ensure_future(
                self._sender.abandon_all(self.state.abortable())
            )

    async def begin(self) -> None:
        """Begin a transaction. A previous broken transaction is aborted first."""
        async with self._lock:
            if self.state.state is State.BROKEN:
                await self._abort()
            self.state.begin()
            self._sender.use_identity(self.state.identity)

    async def commit(self) -> None:
        """Flush and commit. Raises as `Transaction.commit`."""
        async with self._ending():
            await self._flush_all()
            try:
                self.state.begin_commit()
            except TransactionAbortableError as error:
                try:
                    await self._abort()
                except FencedError:
                    raise
                except RaftlogClientError as failure:
                    # The next `begin` retries.
                    error.add_note(f"It could not be aborted yet: {failure}")
                raise error from error.__cause__
            if self._has_begun():
                await self._commit()
            else:
                self._ended(None)

    async def abort(self) -> None:
        """Drop unsent records and abort. Does nothing if no transaction is open."""
        async with self._ending():
            if self.state.state is not State.IDLE:
                await self._abort()

    async def prepare(self) -> None:
        """Flush and prepare. The transaction then outlives this process."""
        self.state.check_write()
        async with self._ending():
            await self._flush_all()
            if self.state.state is State.BROKEN:
                raise self.state.abortable()
            if not self._has_begun():
                raise IllegalStateError("Cannot prepare: the transaction has no writes.")
            try:
                await self._end("prepare")
            except RaftlogClientError as error:
                self.state.broken(error)
                raise
            self.state.prepared()

    async def add_offsets(
        self,
        offsets: Callable[[], tuple[GroupMetadata, _Offsets]],
        on_stale_epoch: Callable[[], None] | None,
    ) -> _Offsets:
        """Commit offsets of a group with the transaction. `offsets` is called for each attempt.

        `on_stale_epoch` reports a newer epoch of the member, which the next attempt may then have.
        """
        self.state.check_write()
        try:
            return await self._add_offsets(offsets, on_stale_epoch)
        except RaftlogClientError as error:
            self.state.fail(error)
            raise self.state.abortable() from error

    # Ends

    @asynccontextmanager
    async def _ending(self) -> AsyncIterator[None]:
        """Allow one end at a time, without writes during it."""
        async with self._lock:
            self.state.is_ending = True
            try:
                yield
            finally:
                self.state.is_ending = False

    async def _flush_all(self) -> None:
        self.state.check_quiet()
        if self.state.state in {State.OPEN, State.BROKEN}:
            await self._flush()

    def _has_begun(self) -> bool:
        return self.state.has_begun or self._sender.has_sent

    async def _commit(self) -> None:
        try:
            answer = await self._end("commit")
        except DeliveryTimeoutError as error:
            if error.outcome_unknown:
                self.state.outcome_unknown()
            raise
        except ServerError as error:
            doubt = self.state.state is State.COMMITTING
            is_fenced = judge_end(error) is EndError.FENCED
            if not is_fenced and not is_not_open(error):
                raise
            # Only an abort shows whether the coordinator aborted it or the producer is fenced.
            self.state.broken(error)
            await self._abort(outcome_unknown=doubt)
            raise TransactionAbortableError(
                "The transaction was aborted by the coordinator: it lasted longer than "
                f"transaction_timeout_ms. ({error})"
            ) from error
        self._ended(answer)

    async def _abort(self, *, outcome_unknown: bool = False) -> None:
        self.state.check_abort()
        aborted = TransactionAbortableError("The transaction was aborted before this was written.")
        if self.state.state is State.OPEN:
            self.state.broken(aborted)
        if self._abandoning is not None:
            await self._abandoning
            self._abandoning = None
        await self._sender.abandon_all(aborted)
        if not self._has_begun():
            self._ended(None)
            return
        try:
            answer = await self._end("abort")
        except ServerError as error:
            if judge_end(error) is EndError.FENCED:
                raise self.state.fence(error, outcome_unknown=outcome_unknown) from error
            self.state.broken(error)
            raise
        except RaftlogClientError as error:
            self.state.broken(error)
            raise
        self._ended(answer)

    def _ended(self, answer: TransactionProducer | None) -> None:
        assert self.state.identity is not None
        self.state.ended(self.state.identity if answer is None else identity_of(answer))
        self._sender.use_identity(None)

    async def _end(self, verb: str) -> TransactionProducer:
        """Repeat a request until it gets a response.

        Raises ServerError for a final refusal, DeliveryTimeoutError.
        """
        identity = self.state.identity
        assert identity is not None
        doubt = self.state.state is State.COMMITTING

        def maybe_done() -> None:
            if verb == "commit":
                self.state.outcome_unknown()

        try:
            return await self._repeat(
                f"{self._path}/{verb}",
                TransactionProducer,
                lambda: EndRequest(identity.producer_id, identity.producer_epoch),
                maybe_done,
            )
        except DeliveryTimeoutError as error:
            doubt = doubt or error.outcome_unknown
            outcome = (
                f"may or may not be done: call {verb}() again to know"
                if doubt
                else f"is not done: call {verb}() again, or abort()"
            )
            raise DeliveryTimeoutError(
                f"The {verb} of the transaction {outcome}. {error}",
                retriable=True,
                outcome_unknown=doubt,
            ) from error

    async def _repeat(
        self,
        path: str,
        kind: type[T],
        body: Callable[[], msgspec.Struct],
        maybe_done: Callable[[], None],
        on_stale_epoch: Callable[[], None] | None = None,
    ) -> T:
        """Call nodes until a node responds or finally refuses."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        outcome_unknown = False
        attempt = 0
        while True:
            patience_s = min(COORDINATOR_PATIENCE_S, max(deadline - loop.time(), 0.01))
            try:
                return await self._metadata.call_next(
                    "POST", path, kind, body(), timeout_s=patience_s, coordinator=self._coordinator
                )
            except asyncio.CancelledError:
                maybe_done()
                raise
            except RaftlogClientError as error:
                is_stale = (
                    isinstance(error, ServerError) and error.entry is errors.STALE_MEMBER_EPOCH
                )
                if is_stale and on_stale_epoch is not None:
                    on_stale_epoch()
                elif judge_end(error) is not EndError.RETRY:
                    raise
                if error.outcome_unknown:
                    outcome_unknown = True
                    maybe_done()
                delay_s = self._metadata.backoff.delay_s(attempt)
                attempt += 1
                if loop.time() + delay_s >= deadline:
                    raise DeliveryTimeoutError(
                        f"No answer of the coordinator within delivery_timeout_ms: {error}",
                        retriable=True,
                        outcome_unknown=outcome_unknown,
                    ) from error
            await asyncio.sleep(delay_s)

    async def _add_offsets(
        self,
        offsets: Callable[[], tuple[GroupMetadata, _Offsets]],
        on_stale_epoch: Callable[[], None] | None,
    ) -> _Offsets:
        identity = self.state.identity
        assert identity is not None
        sent: _Offsets = {}

        def body() -> TransactionOffsets:
            nonlocal sent
            group, sent = offsets()
            return TransactionOffsets(
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                group=group.group_id,
                offsets=offset_commits(sent),
                member_id=group.member_id,
                member_epoch=group.member_epoch,
            )

        if not offsets()[1]:
            return sent
        self.state.has_begun = True
        answer = await self._repeat(
            f"{self._path}/offsets", CommitResponse, body, lambda: None, on_stale_epoch
        )
        for row in answer.results:
            if row.error_code:
                raise server_error(row.error_code, row.message)
        return sent


class Transaction:
    """One transaction. An async context manager that commits, or aborts on an exception.

    All records that the producer sends while it is open belong to it.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._committed: list[tuple[ConsumerGroup, _Offsets]] = []

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._transactions.state.state is State.PREPARED:
            # commit() or abort() decides its end elsewhere.
            return
        if error is None:
            try:
                await self.commit()
            except RaftlogClientError:
                if self._transactions.state.state is State.OPEN:
                    await self._abort_quietly()
                raise
        else:
            await self._abort_quietly()

    async def _abort_quietly(self) -> None:
        """Abort for the sake of another exception. Raises only FencedError."""
        try:
            await self.abort()
        except FencedError:
            raise
        except RaftlogClientError as failure:
            logger.warning("a transaction could not be aborted, the next retries: %s", failure)

    async def begin(self) -> None:
        """Begin the transaction. Raises FencedError, and IllegalStateError in a transaction."""
        await self._transactions.begin()

    async def commit(self) -> None:
        """Wait for all records and commit. Harmless to repeat after a DeliveryTimeoutError.

        Raises TransactionAbortableError if it is aborted instead. Raises FencedError if this
        producer has ended, and DeliveryTimeoutError, with `outcome_unknown` if it may be committed.
        """
        await self._transactions.commit()
        for group, offsets in self._committed:
            group.committed_elsewhere(offsets)
        self._committed.clear()

    async def abort(self) -> None:
        """Abort, so that no reader of committed transactions sees its records.

        Harmless without an open transaction. The futures of unsent records raise
        TransactionAbortableError. Raises FencedError, DeliveryTimeoutError, and IllegalStateError
        while the outcome of a commit is unknown.
        """
        await self._transactions.abort()

    async def prepare(self) -> None:
        """Execute the first of two phases. The transaction then waits for `commit` or `abort`.

        It survives restarts. See `keeps_prepared` of the producer. Raises as `commit`.
        """
        await self._transactions.prepare()

    async def commit_offsets(
        self,
        offsets: Consumer[Any, Any] | Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata | str | None = None,
    ) -> None:
        """Commit a consumer's positions with the transaction, which gives exactly-once processing.

        Give the consumer, for the positions after all records given out, with its
        `auto_commit_interval_ms` None. Or give offsets, with the `group_metadata()` of their
        consumer or the id of a group without members. Raises TransactionAbortableError if the
        consumer has lost a partition in the meantime, the member has left the group, or the group
        has members.
        """
        if isinstance(offsets, Consumer):
            source = offsets.transaction_source()
            sent = await self._transactions.add_offsets(
                source.offsets_for_transaction, source.report_soon
            )
            self._committed.append((source, sent))
            return
        if group is None:
            raise ValueError("offsets need the group_metadata() of their consumer, or a group id")
        if isinstance(group, str):
            group = GroupMetadata(group, "", NO_MEMBER_EPOCH)
        named, whole = group, with_metadata(offsets)
        await self._transactions.add_offsets(lambda: (named, whole), None)


async def init_producer(
    metadata: ClusterMetadata, transactional_id: str, request: InitRequest
) -> TransactionProducer:
    """Become the only producer of the id. Fences the previous. Raises RaftlogClientError."""
    path, coordinator = _route(transactional_id)
    return await metadata.call_any(
        "POST",
        f"{path}/init",
        TransactionProducer,
        request,
        patience_s=COORDINATOR_PATIENCE_S,
        coordinator=coordinator,
    )


def _route(transactional_id: str) -> tuple[str, CoordinatorKey]:
    path = f"/v1/transactions/{quote(transactional_id, safe='')}"
    return path, CoordinatorKey(TRANSACTIONS_TOPIC, transactional_id)


def identity_of(answer: TransactionProducer) -> ProducerIdentity:
    """Return the identity for the next batches."""
    return ProducerIdentity(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))
