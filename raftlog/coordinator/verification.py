"""Transactions at the leader of a partition: verification before the first batch, and markers.

Before a producer and epoch write their first transactional batch to a partition, its leader has the
coordinator add the partition to the transaction (KIP-890). The batch is appended only if the
coordinator agrees, and no marker of the producer came in between (`begin_verification`). So no late
batch joins a transaction that has ended, and none stays open without the coordinator's knowledge.

The questions of one turn of the event loop to one shard are one request. Later batches of the
producer wait behind its first one, in the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeAlias

from raftlog.coordinator.decision import Producer
from raftlog.coordinator.service import Coordinators, partition_of
from raftlog.coordinator.transaction_kind import TOPIC, decode_response, encode_request
from raftlog.coordinator.transaction_messages import (
    VERIFICATIONS_MAX,
    TopicPartition,
    Verification,
    Verified,
    VerifyOrAdd,
    shard_key,
)
from raftlog.metadata.image import TopicImage
from raftlog.peer.tasks import TaskGroup
from raftlog.record.batch import RecordBatch
from raftlog.record.control import Marker
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_BODY,
    TRANSACTION_NOT_VERIFIED,
    LogError,
)
from raftlog.record.types import PartitionId, ProducerEpoch, ProducerId, TopicId
from raftlog.replication.arrival_order import ArrivalOrder
from raftlog.replication.cluster_metadata import ClusterMetadata
from raftlog.replication.partition import Acks, Partition
from raftlog.storage.types import AppendResult
from raftlog.world import Clock

ASK_S: Final = 5.0
"""Timeout of one question."""
CONCURRENT_S_MAX: Final = 1.0
"""Longest wait for the end of the producer's transaction before: its markers are being written."""
PAUSE_S_MIN: Final = 0.005
PAUSE_S_MAX: Final = 0.1

_Key: TypeAlias = tuple[TopicId, PartitionId, ProducerId]
_Question: TypeAlias = tuple[Verification, "asyncio.Future[LogError | None]"]


class LeaderTransactions:
    """Appends and markers of transactions at the partitions led here: `TransactionHooks`."""

    def __init__(
        self,
        coordinators: Coordinators,
        metadata: ClusterMetadata,
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        self._coordinators = coordinators
        self._metadata = metadata
        self._clock = clock
        self._tasks = tasks
        self._order: ArrivalOrder[_Key] = ArrivalOrder()
        """Producers with a first batch that waits for the coordinator."""
        self._questions: dict[int, list[_Question]] = {}
        """Of this turn of the event loop, by the partition of the coordinator's topic."""

    async def append(
        self,
        found: Partition,
        batches: Sequence[RecordBatch],
        *,
        transactional_id: str,
        acks: Acks,
        timeout_s: float,
    ) -> list[AppendResult]:
        """Append batches of one producer's transaction, as `Partition.append`.

        Raises also LogError, with nothing written: TRANSACTION_NOT_VERIFIED if the coordinator does
        not answer, and its refusals (CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, …).
        """
        producer = _producer(batches)
        key = (found.topic_id, found.partition, producer.producer_id)
        if not self._order.is_held([key]):
            guard = found.begin_verification(*producer)
            if guard is None:
                return await found.append(batches, acks=acks, timeout_s=timeout_s)
        deadline = self._clock.monotonic() + timeout_s
        place = self._order.enter([key])
        try:
            await place.reached()
            guard = found.begin_verification(*producer)
            if guard is not None:
                partition = TopicPartition(found.topic, found.partition)
                await self._verify(transactional_id, producer, partition, deadline)
        finally:
            # The producer's next append runs in a later step of the loop than this one.
            place.leave()
        remaining_s = max(deadline - self._clock.monotonic(), 0.0)
        return await found.append(batches, acks=acks, timeout_s=remaining_s, verification=guard)

    async def write_marker(
        self,
        found: Partition,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        """See `Partition.write_marker`; through the shard, where the partition has one."""
        shard = self._coordinators.shard_of(found)
        if shard is None:
            await found.write_marker(producer_id, producer_epoch, marker, timeout_s=timeout_s)
            return
        await shard.append_marker(
            Producer(producer_id, producer_epoch),
            committed=marker.commit,
            judge=lambda: found.needs_marker(producer_id, producer_epoch, marker),
            write=lambda guard: found.write_marker(
                producer_id, producer_epoch, marker, timeout_s=timeout_s, before_write=guard
            ),
        )

    async def _verify(
        self,
        transactional_id: str,
        producer: Producer,
        partition: TopicPartition,
        deadline: float,
    ) -> None:
        """Return once the partition is in the transaction. Raises LogError."""
        verification = Verification(transactional_id, producer, (partition,), is_addition=True)
        deadline = min(deadline, self._clock.monotonic() + CONCURRENT_S_MAX)
        pause_s = PAUSE_S_MIN
        while True:
            error = await self._ask(verification)
            if error is None:
                return
            late = self._clock.monotonic() + pause_s >= deadline
            if error.entry is not CONCURRENT_TRANSACTIONS or late:
                raise error
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _ask(self, verification: Verification) -> LogError | None:
        """The coordinator's outcome, in one request with the other questions of this turn."""
        topic = self._metadata.image.topics_by_name.get(TOPIC)
        if topic is None:
            return _not_verified("No transactional id was initialized yet, as far as known here.")
        number = partition_of(shard_key(verification.transactional_id), len(topic.partitions))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[LogError | None] = loop.create_future()
        questions = self._questions.setdefault(number, [])
        if not questions:
            loop.call_soon(self._flush, topic, number)
        questions.append((verification, answer))
        return await answer

    def _flush(self, topic: TopicImage, number: int) -> None:
        questions = self._questions.pop(number)
        for start in range(0, len(questions), VERIFICATIONS_MAX):
            some = questions[start : start + VERIFICATIONS_MAX]
            self._tasks.spawn(self._send(topic, number, some), "verify-transactions")

    async def _send(self, topic: TopicImage, number: int, questions: Sequence[_Question]) -> None:
        request = VerifyOrAdd(tuple(verification for verification, _ in questions))
        outcomes: Sequence[LogError | None] = [
            _not_verified("The node is stopping.") for _ in questions
        ]
        try:
            data = await self._coordinators.call_partition(
                topic, number, encode_request(request), timeout_s=ASK_S, may_repeat=True
            )
            response = decode_response(data)
            assert isinstance(response, Verified)
            outcomes = [None if one is None else one.error() for one in response.outcomes]
        except LogError as error:
            # With any outcome of the question: no batch was written.
            outcomes = [_not_verified(error.message) for _ in questions]
        finally:
            for (_, answer), outcome in zip(questions, outcomes, strict=True):
                if not answer.done():
                    answer.set_result(outcome)


def _producer(batches: Sequence[RecordBatch]) -> Producer:
    """The one producer of the batches. Raises LogError INVALID_BODY."""
    producers = {(one.header.producer_id, one.header.producer_epoch) for one in batches}
    is_transactional = all(one.header.is_transactional for one in batches)
    if len(producers) != 1 or not is_transactional:
        raise LogError(
            INVALID_BODY,
            "The batches of a transaction must be transactional, and of one producer id and epoch.",
        )
    return Producer(*producers.pop())


def _not_verified(reason: str) -> LogError:
    return LogError(
        TRANSACTION_NOT_VERIFIED,
        f"The coordinator has not confirmed the transaction; nothing was written. {reason}",
    )
