"""A handle on one partition of the cluster, for local or forwarded calls with retries.

If this node leads the partition, the handle calls the partition directly. Otherwise it forwards the
operation to the leader of the applied metadata.

Leaders change, and nodes apply the change at different times. So an operation is retried if it
certainly had no effect (NO_LEADER, NOT_READY), or may be repeated without harm (reads, and appends
with a producer id). It is retried as soon as the metadata names another leader or epoch, and after
a short pause, because the leader may be the node that is behind. Forwarded and retried appends of
one producer go one at a time, in their order of arrival. Retries end with the request's own
timeout, after RETRY_S_MAX at most. An append with an unknown outcome keeps it, whatever a retry
returns.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

from raftlog.record.batch import RecordBatch
from raftlog.record.control import Marker
from raftlog.record.errors import (
    COORDINATOR_LOADING,
    DUPLICATE_SEQUENCE,
    NO_LEADER,
    NOT_COORDINATOR,
    NOT_READY,
    RETRIABLE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import (
    NO_PRODUCER_ID,
    Buffer,
    LeaderEpoch,
    Offset,
    PartitionId,
    ProducerEpoch,
    ProducerId,
    TopicId,
)
from raftlog.replication.leader.arrival_order import Place
from raftlog.replication.leader.role import SEQUENCE_ERRORS
from raftlog.replication.partition import Acks, Fetched, Isolation, Partition
from raftlog.routing.forwarding_messages import (
    BODY_BYTES_MAX,
    Append,
    Appended,
    Bounds,
    Coordinate,
    Coordinated,
    Delete,
    DescribeProducers,
    FindEpochEnd,
    FindNewest,
    FindTime,
    FoundEpochEnd,
    FoundTime,
    Marks,
    Operation,
    Outcome,
    Read,
    WriteMarker,
    decode_producers,
    outcome_unknown_if_changing,
    split_aborted,
)
from raftlog.routing.leader_gate import Write
from raftlog.storage.producers.state import ProducerDescription
from raftlog.storage.types import AppendResult
from raftlog.world import Backoff

if TYPE_CHECKING:
    from raftlog.routing.router import PartitionRouter

RETRY_S_MAX: Final = 5.0
"""Longest time of a request for retries."""
PAUSES: Final = Backoff(0.02, 0.25)
"""Pauses between retries, unless the leader changes before."""
READ_S_MAX: Final = 10.0
"""Timeout of a call that needs no waiting at the leader."""
ALL_RECORDS: Final = -1
"""The `before` of `delete_records` for all committed records."""

T = TypeVar("T")

ProducerKey: TypeAlias = tuple[TopicId, PartitionId, ProducerId]
"""One producer in one partition."""


class CoordinatorCall(ABC, Generic[T]):
    """A request to the coordinator of a partition, encoded only for another node."""

    @abstractmethod
    async def local(self, found: Partition, timeout_s: float) -> T:
        """Carry out the request at a partition led here. Raises LogError."""

    @abstractmethod
    def encoded(self) -> Sequence[Buffer]:
        """The request, for another node."""

    @abstractmethod
    def decoded(self, body: memoryview) -> T:
        """The response of another node."""


class PartitionHandle:
    """One partition of the cluster, for one request."""

    __slots__ = ("_local", "_router", "partition", "topic", "topic_id")

    def __init__(
        self,
        router: PartitionRouter,
        topic: str,
        topic_id: TopicId,
        partition: PartitionId,
        local: Partition | None,
    ) -> None:
        """`local` is the partition if this node leads it at the moment."""
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self._router = router
        self._local = local

    def __eq__(self, other: object) -> bool:
        """Handles are equal if both reach the same partition by the same router."""
        return (
            isinstance(other, PartitionHandle)
            and self.partition == other.partition
            and self.topic_id == other.topic_id
            and self._router is other._router
        )

    def __hash__(self) -> int:
        return hash(self.topic_id) ^ self.partition

    @property
    def max_message_bytes(self) -> int:
        """Size of the largest batch that the topic accepts."""
        if self._local is not None:
            return self._local.log.config.max_message_bytes
        return self._router.max_message_bytes(self._router.topic(self.topic_id))

    @property
    def is_compacted(self) -> bool:
        """Whether the topic takes only records with a key, as far as this node knows."""
        return self._local is not None and self._local.log.config.compacts

    def local_replica(self, offset: Offset) -> Partition | None:
        """This node's replica, if reads from `offset` on may use it."""
        if self._local is not None and self._local.is_leader:
            return self._local
        try:
            return self._router.replicas.partition(self.topic, self.partition)
        except LogError:
            return None

    def open(
        self,
        transactional_id: str | None,
        *,
        adds_partition: bool = True,
        may_start_anywhere: bool = False,
    ) -> Write:
        """Open the partition for one append, as `LeaderGate.open`."""
        return partial(
            self.append,
            transactional_id=transactional_id,
            adds_partition=adds_partition,
            may_start_anywhere=may_start_anywhere,
        )

    async def append(
        self,
        batches: Sequence[RecordBatch],
        *,
        acks: Acks,
        timeout_s: float,
        transactional_id: str | None = None,
        adds_partition: bool = True,
        may_start_anywhere: bool = False,
    ) -> list[AppendResult]:
        """Append as `Partition.append`. Batches with a `transactional_id` join its transaction.

        An append that is forwarded or retried holds back later appends of its producer, and waits
        for earlier appends. Otherwise appends would overtake each other and be out of order at the
        leader. Local appends wait for none but these.
        """
        gate, order, routed = self._router.gate, self._router.appends, self._router.routed_appends
        producers = {batch.header.producer_id for batch in batches} - {NO_PRODUCER_ID}
        keys = [(self.topic_id, self.partition, producer_id) for producer_id in producers]
        deadline = asyncio.get_running_loop().time() + timeout_s
        refusal: LogError | None = None

        def local(found: Partition, remaining_s: float) -> Awaitable[list[AppendResult]]:
            write = gate.open(
                found,
                transactional_id,
                adds_partition=adds_partition,
                may_start_anywhere=may_start_anywhere,
            )
            return write(batches, acks=acks, timeout_s=remaining_s)

        place = order.enter(keys)
        is_counted = False
        try:
            if self._local is not None and not any(key in routed for key in keys):
                is_first = order.is_first(place)
                try:
                    return await local(self._local, timeout_s)
                except LogError as error:
                    refusal = self._drop_local(error)
                    if not is_first and error.entry in SEQUENCE_ERRORS:
                        # The append before may also have been refused, and succeed by its retry.
                        refusal = None
            routed.update(keys)
            is_counted = True
            await self._wait_earlier(place, deadline)
            outcome, _ = await self._routed(
                Append(
                    topic_id=self.topic_id,
                    partition=self.partition,
                    acks=int(acks),
                    transactional_id=transactional_id,
                    adds_partition=adds_partition,
                    may_start_anywhere=may_start_anywhere,
                ),
                [batch.data for batch in batches],
                local=local,
                timeout_s=deadline - asyncio.get_running_loop().time(),
                may_repeat=all(batch.header.producer_id != NO_PRODUCER_ID for batch in batches),
                refusal=refusal,
            )
        finally:
            place.leave()
            if is_counted:
                self._router.end_routed(keys)
        return _append_results(outcome)

    async def _wait_earlier(self, place: Place[ProducerKey], deadline: float) -> None:
        """Wait for earlier appends of the producer. Raises LogError NOT_READY at the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await place.reached()
        except TimeoutError:
            raise LogError(
                NOT_READY,
                f"{self.topic}-{self.partition}: nothing was written, as an earlier append of the "
                "same producer is not over yet.",
            ) from None

    async def read(
        self,
        offset: Offset,
        *,
        max_bytes: int,
        end_offset: Offset | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Fetched:
        """See `Partition.read`."""
        refusal: LogError | None = None

        def local(found: Partition, _remaining_s: float = 0.0) -> Awaitable[Fetched]:
            return found.read(
                offset, max_bytes=max_bytes, end_offset=end_offset, isolation=isolation
            )

        if self._local is not None:
            try:
                return await local(self._local)
            except LogError as error:
                refusal = self._drop_local(error)
        bytes_max = min(max_bytes, BODY_BYTES_MAX)
        operation = Read(
            topic_id=self.topic_id,
            partition=self.partition,
            offset=offset,
            max_bytes=bytes_max,
            end_offset=end_offset,
            isolation=int(isolation),
        )
        outcome, body = await self._routed(operation, (), local=local, refusal=refusal)
        if isinstance(outcome, Fetched):
            return outcome
        assert isinstance(outcome, Marks)
        aborted, data = split_aborted(outcome.aborted_count, body)
        return Fetched(
            data=data,
            next_offset=Offset(outcome.next_offset),
            high_watermark=Offset(outcome.high_watermark),
            log_start_offset=Offset(outcome.log_start_offset),
            last_stable_offset=Offset(outcome.last_stable_offset),
            aborted=aborted,
        )

    async def bounds(
        self, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[Offset, Offset]:
        """Log start offset and high watermark, or last stable offset for READ_COMMITTED."""
        outcome, _ = await self._routed(
            Bounds(self.topic_id, self.partition),
            (),
            local=lambda found, _: _bounds(found, isolation),
        )
        if isinstance(outcome, tuple):
            return outcome
        assert isinstance(outcome, Marks)
        end = outcome.high_watermark
        if isolation is Isolation.READ_COMMITTED:
            end = outcome.last_stable_offset
        return Offset(outcome.log_start_offset), Offset(end)

    async def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[Offset, int] | None:
        """See `Partition.offset_for_timestamp`."""
        return await self._found_record(
            FindTime(self.topic_id, self.partition, timestamp_ms, int(isolation)),
            lambda found, _: found.offset_for_timestamp(timestamp_ms, isolation),
        )

    async def newest_record(self, isolation: Isolation) -> tuple[Offset, int] | None:
        """See `Partition.newest_record`."""
        return await self._found_record(
            FindNewest(self.topic_id, self.partition, int(isolation)),
            lambda found, _: found.newest_record(isolation),
        )

    async def _found_record(
        self,
        operation: FindTime | FindNewest,
        local: Callable[[Partition, float], Awaitable[tuple[Offset, int] | None]],
    ) -> tuple[Offset, int] | None:
        outcome, _ = await self._routed(operation, (), local=local)
        if isinstance(outcome, FoundTime):
            found = outcome.found
            return None if found is None else (Offset(found[0]), found[1])
        assert outcome is None or isinstance(outcome, tuple)
        return outcome

    async def epoch_end(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset] | None:
        """See `Partition.epoch_end`."""

        async def local(found: Partition, _remaining_s: float) -> FoundEpochEnd:
            end = found.epoch_end(epoch)
            return FoundEpochEnd(None if end is None else (end.epoch, end.end_offset))

        outcome, _ = await self._routed(
            FindEpochEnd(self.topic_id, self.partition, epoch), (), local=local
        )
        assert isinstance(outcome, FoundEpochEnd)
        pair = outcome.found
        return None if pair is None else (LeaderEpoch(pair[0]), Offset(pair[1]))

    async def producers(self, count_max: int) -> list[ProducerDescription]:
        """See `Partition.producers`."""

        async def local(found: Partition, _remaining_s: float) -> list[ProducerDescription]:
            return found.producers(count_max)

        outcome, body = await self._routed(
            DescribeProducers(self.topic_id, self.partition, count_max),
            (),
            local=local,
        )
        return outcome if isinstance(outcome, list) else decode_producers(body)

    async def delete_records(self, before: Offset) -> Offset:
        """See `Partition.delete_records`."""
        outcome, _ = await self._routed(
            Delete(self.topic_id, self.partition, before),
            (),
            local=lambda found, _: found.require_leader().delete_records(before),
            # A repeat would delete records committed since the first call.
            may_repeat=before != ALL_RECORDS,
        )
        if isinstance(outcome, Marks):
            return Offset(outcome.log_start_offset)
        assert isinstance(outcome, int)
        return Offset(outcome)

    async def coordinate(
        self,
        call: CoordinatorCall[T],
        *,
        timeout_s: float,
        may_change: bool,
        may_repeat: bool,
        is_held: bool,
    ) -> T:
        """Have the leader's coordinator carry out a request.

        `may_repeat`: repeated also after an unknown outcome. Raises LogError.
        """
        outcome, body = await self._routed(
            Coordinate(self.topic_id, self.partition, may_change, is_held),
            call.encoded,
            local=call.local,
            timeout_s=timeout_s,
            may_repeat=may_repeat,
        )
        return call.decoded(body) if isinstance(outcome, Coordinated) else cast(T, outcome)

    async def write_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        """See `Partition.write_marker`."""
        await self._routed(
            WriteMarker(
                topic_id=self.topic_id,
                partition=self.partition,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                commit=marker.commit,
                is_epoch_next=marker.is_epoch_next,
                coordinator=marker.coordinator,
            ),
            (),
            local=lambda found, remaining_s: self._router.gate.write_marker(
                found, producer_id, producer_epoch, marker, timeout_s=remaining_s
            ),
            timeout_s=timeout_s,
        )

    async def _routed(
        self,
        operation: Operation,
        body: Sequence[Buffer] | Callable[[], Sequence[Buffer]],
        *,
        local: Callable[[Partition, float], Awaitable[T]],
        timeout_s: float = READ_S_MAX,
        may_repeat: bool = True,
        refusal: LogError | None = None,
    ) -> tuple[T | Outcome, memoryview]:
        """Call the leader, with retries, until success, a final error, or the timeout.

        `body` is built only for another node, if callable. `refusal` is the error of a first call
        to the local partition.
        """
        loop = asyncio.get_running_loop()
        router = self._router
        started = loop.time()
        deadline = started + timeout_s
        retry_until = min(deadline, started + RETRY_S_MAX)
        unknown_error: LogError | None = None
        attempt = 0
        seen = None
        while True:
            before, seen = seen, router.leadership(self.topic_id, self.partition)
            if seen != before:
                # A new leader is ready soon, while its coordinator loads or its metadata is behind.
                attempt = 0
            error = refusal
            if error is None:
                remaining_s = max(deadline - loop.time(), 0.0)
                try:
                    if seen.leader == router.broker_id:
                        found = router.replicas.partition(self.topic, self.partition)
                        return await local(found, remaining_s), _NO_BODY
                    return await router.call_leader(
                        seen.leader,
                        operation,
                        (self,),
                        body() if callable(body) else body,
                        timeout_s=remaining_s,
                    )
                except LogError as failure:
                    error = failure
            was_here, refusal = refusal is not None, None
            if error.entry.outcome_unknown:
                unknown_error = error
            remaining_s = retry_until - loop.time()
            if remaining_s <= 0 or not self._may_retry(error, may_repeat=may_repeat):
                raise _final_error(operation, error, unknown_error)
            if was_here and seen.leader != router.broker_id:
                # The present leader was not called yet.
                continue
            router.log_wait(self, loop.time() - started, error)
            await router.wait_moved(self, seen, min(PAUSES.delay_s(attempt), remaining_s))
            attempt += 1

    def _drop_local(self, error: LogError) -> LogError:
        """Forget the local partition after an error, so that later calls look up the leader."""
        self._local = None
        return error

    def _may_retry(self, error: LogError, *, may_repeat: bool) -> bool:
        """Whether a retry may succeed, and does no harm."""
        if error.entry in {NO_LEADER, NOT_READY, NOT_COORDINATOR, COORDINATOR_LOADING}:
            return True
        if not may_repeat or error.entry not in {RETRIABLE, STORAGE_FAILED}:
            return False
        # A leader with failing storage does not lead for long, if others hold the partition.
        topic = self._router.topic(self.topic_id)
        return error.entry is RETRIABLE or len(topic.partitions[self.partition].replicas) > 1


class LocalFollowerHandle(PartitionHandle):
    """A partition that this node follows, with reads from the local replica.

    Its committed records are always a prefix of the leader's.
    """

    __slots__ = ("_follower",)

    def __init__(
        self,
        router: PartitionRouter,
        topic: str,
        topic_id: TopicId,
        partition: PartitionId,
        follower: Partition,
    ) -> None:
        super().__init__(router, topic, topic_id, partition, None)
        self._follower = follower

    def local_replica(self, offset: Offset) -> Partition | None:
        """This node's replica, unless its log ends before `offset`."""
        follower = self._follower
        is_there = (
            follower.log_start_offset <= offset <= follower.log_end_offset
            and not follower.is_closed
        )
        return follower if is_there else None

    async def read(
        self,
        offset: Offset,
        *,
        max_bytes: int,
        end_offset: Offset | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Fetched:
        """See `Partition.read`."""
        follower = self.local_replica(offset)
        if follower is not None:
            try:
                return await follower.read(
                    offset,
                    max_bytes=max_bytes,
                    end_offset=end_offset,
                    any_replica=True,
                    isolation=isolation,
                )
            except LogError:
                # The leader may have the records, or raises the reason.
                pass
        return await super().read(
            offset, max_bytes=max_bytes, end_offset=end_offset, isolation=isolation
        )

    async def bounds(
        self, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[Offset, Offset]:
        """Log start offset and readable end of the local replica."""
        return self._follower.log_start_offset, self._follower.readable_end(isolation)


_NO_BODY: Final = memoryview(b"")


async def _bounds(found: Partition, isolation: Isolation) -> tuple[Offset, Offset]:
    end = await found.end_offset(isolation)
    return found.log_start_offset, end


def _append_results(outcome: list[AppendResult] | Outcome) -> list[AppendResult]:
    """The results of a local append, or of the leader's answer to a forwarded append."""
    if isinstance(outcome, list):
        return outcome
    assert isinstance(outcome, Appended)
    return [
        AppendResult(Offset(first), Offset(last), time_ms, duplicate)
        for first, last, time_ms, duplicate in outcome.results
    ]


def _final_error(operation: Operation, error: LogError, unknown_error: LogError | None) -> LogError:
    """The error to raise after the last retry. An earlier unknown outcome stays unknown."""
    if unknown_error is None or error.entry.outcome_unknown or error.entry is DUPLICATE_SEQUENCE:
        return error
    both = f"{unknown_error.message} A retry was refused: {error.message}"
    return outcome_unknown_if_changing(operation, LogError(RETRIABLE, both))
