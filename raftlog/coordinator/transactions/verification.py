"""Transactions at a partition's leader, which verifies first batches and writes markers.

Before a producer and epoch write their first transactional batch to a partition, its leader has the
coordinator add the partition to the transaction (KIP-890). The batch is appended only if the
coordinator agrees, and no marker of the producer came in between (`begin_verification`). So no late
batch joins a transaction that has ended, and none stays open without the coordinator's knowledge.

The questions of one turn of the event loop to one shard are one request. Later batches of the
producer wait behind its first batch, in the order of the calls.

A producer starts its next transaction while the markers of its last transaction are being written.
Then the question waits here for the marker of this partition, which would end its guard, and at the
coordinator for the others. Nothing polls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, TypeAlias

from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.shard.service import Coordinators
from raftlog.coordinator.shard.shard import COMMIT_S
from raftlog.coordinator.transactions.kind import MESSAGES, TOPIC
from raftlog.coordinator.transactions.messages import (
    VERIFICATIONS_MAX,
    TopicPartition,
    Verification,
    Verified,
    VerifyOrAdd,
    shard_key,
    successful,
)
from raftlog.metadata.image import TopicImage
from raftlog.peer.tasks import TaskGroup
from raftlog.record.batch import RecordBatch
from raftlog.record.control import Marker
from raftlog.record.coordinators import partition_of
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_BODY,
    INVALID_TOPIC,
    TRANSACTION_NOT_VERIFIED,
    LogError,
)
from raftlog.record.types import PartitionId, ProducerEpoch, ProducerId, TopicId
from raftlog.replication.cluster_metadata import ClusterMetadata
from raftlog.replication.leader.arrival_order import ArrivalOrder
from raftlog.replication.leader.verification import VerificationGuard
from raftlog.replication.partition import Acks, Partition
from raftlog.routing.leader_gate import LeaderTransactions
from raftlog.storage.types import AppendResult
from raftlog.world import Clock

ASK_S: Final = 5.0
"""Timeout of one question."""
CONCURRENT_S_MAX: Final = 1.0
"""Longest wait in seconds for the markers of the producer's transaction before."""
PAUSES_S: Final = (0.0, 0.005, 0.01, 0.02, 0.05)
"""Pauses before a question is repeated. The last pause repeats. The coordinator holds a question.
It returns early only with a question of another producer that could be decided."""

_Key: TypeAlias = tuple[TopicId, PartitionId, ProducerId]
_Question: TypeAlias = tuple[Verification, "asyncio.Future[LogError | None]"]


logger = logging.getLogger(__name__)


class VerifiedTransactions(LeaderTransactions):
    """Appends and markers of transactions at the partitions led here."""

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
        self._questions: dict[tuple[int, bool], list[_Question]] = {}
        """Questions of this turn, by coordinator partition and whether they are repeated. A
        repeated question would be held, and must not hold a first question."""
        self._markers: dict[_Key, list[asyncio.Future[None]]] = {}
        """Questions that wait for a marker here. A few per open request."""

    async def append(
        self,
        found: Partition,
        batches: Sequence[RecordBatch],
        *,
        transactional_id: str,
        acks: Acks,
        timeout_s: float,
        adds_partition: bool = True,
        may_start_anywhere: bool = False,
    ) -> list[AppendResult]:
        """Append batches of one producer's transaction, as `Partition.append`.

        Also raises LogError, with nothing written: TRANSACTION_NOT_VERIFIED if the coordinator does
        not respond, and its refusals (CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, …).
        """
        producer = _producer(batches)
        key = (found.topic_id, found.partition, producer.producer_id)
        if not self._order.is_held([key]):
            guard = found.begin_verification(*producer)
            if guard is None:
                return await found.append(
                    batches, acks=acks, timeout_s=timeout_s, may_start_anywhere=may_start_anywhere
                )
        deadline = self._clock.monotonic() + timeout_s
        place = self._order.enter([key])
        try:
            await place.reached()
            if found.begin_verification(*producer) is None:
                guard = None
            else:
                guard = await self.verify(
                    found, transactional_id, producer, deadline=deadline, adds=adds_partition
                )
        finally:
            # The producer's next append runs in a later step of the loop than this one.
            place.leave()
        remaining_s = max(deadline - self._clock.monotonic(), 0.0)
        return await found.append(
            batches,
            acks=acks,
            timeout_s=remaining_s,
            verification=guard,
            may_start_anywhere=may_start_anywhere,
        )

    async def write_marker(
        self,
        found: Partition,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        """Write as `Partition.write_marker`, through the shard where the partition has a shard.

        There the shard's own bound of a commit counts, because a shorter bound would end the shard.
        """
        try:
            await self._write_marker(
                found, producer_id, producer_epoch, marker, timeout_s=timeout_s
            )
        finally:
            for future in self._markers.get((found.topic_id, found.partition, producer_id), ()):
                if not future.done():
                    future.set_result(None)

    async def _write_marker(
        self,
        found: Partition,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        if found.topic == TOPIC:
            raise LogError(
                INVALID_TOPIC, f"{found.name} takes no markers, as no transaction includes it."
            )
        shard = self._coordinators.shard_of(found)
        if shard is None:
            await found.write_marker(producer_id, producer_epoch, marker, timeout_s=timeout_s)
            return
        await shard.role.confirm_marker(producer_id, marker)
        newest: int | None = None

        def judge(new_producers: int) -> bool:
            nonlocal newest
            newest = shard.role.newest_coordinator(marker)
            return shard.role.needs_marker(
                producer_id,
                producer_epoch,
                marker,
                newest_coordinator=newest,
                new_producers=new_producers,
            )

        await shard.append_marker(
            Producer(producer_id, producer_epoch),
            committed=marker.commit,
            judge=judge,
            write=lambda guard: found.write_marker(
                producer_id,
                producer_epoch,
                marker,
                timeout_s=COMMIT_S,
                before_write=guard,
                newest_coordinator=newest,
            ),
        )

    async def verify(
        self,
        found: Partition,
        transactional_id: str,
        producer: Producer,
        *,
        deadline: float = float("inf"),
        adds: bool = True,
    ) -> VerificationGuard | None:
        """Return once the partition is in the transaction, with the guard for the append.

        `adds`: see `LeaderTransactions.append`. None if the transaction is open in the partition
        already, in this epoch. `deadline` is of the monotonic clock. Raises LogError as `append`.
        """
        partition = TopicPartition(found.topic, found.partition)
        verification = Verification(transactional_id, producer, (partition,), is_addition=adds)
        deadline = min(deadline, self._clock.monotonic() + CONCURRENT_S_MAX)
        await self._marker_of_before(found, producer, deadline)
        attempt = 0
        while True:
            # One guard for each question, because the awaited marker of the last transaction ends
            # it.
            guard = found.begin_verification(*producer)
            error = await self._ask(verification, is_again=attempt > 0)
            if error is None:
                return guard
            pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
            late = self._clock.monotonic() + pause_s >= deadline
            if error.entry is not CONCURRENT_TRANSACTIONS or late:
                raise error
            if pause_s:
                await self._clock.sleep(pause_s)
            attempt += 1

    async def _marker_of_before(
        self, found: Partition, producer: Producer, deadline: float
    ) -> None:
        """Wait for the marker of the producer's older transaction here, until the deadline.

        Until then the coordinator would not agree.
        """
        key = (found.topic_id, found.partition, producer.producer_id)
        while found.log.producers.awaits_marker(*producer):
            remaining_s = deadline - self._clock.monotonic()
            if remaining_s <= 0:
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._markers.setdefault(key, []).append(future)
            try:
                await asyncio.wait((future,), timeout=remaining_s)
            finally:
                waiting = self._markers[key]
                waiting.remove(future)
                if not waiting:
                    del self._markers[key]

    async def _ask(self, verification: Verification, *, is_again: bool) -> LogError | None:
        """The coordinator's outcome, in one request with the other questions of this turn."""
        topic = self._metadata.image.topics_by_name.get(TOPIC)
        if topic is None:
            return _not_verified("No transactional id was initialized yet, as far as known here.")
        number = partition_of(shard_key(verification.transactional_id), len(topic.partitions))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[LogError | None] = loop.create_future()
        questions = self._questions.setdefault((number, is_again), [])
        if not questions:
            loop.call_soon(self._flush, topic, number, is_again)
        questions.append((verification, answer))
        return await answer

    def _flush(self, topic: TopicImage, number: int, is_again: bool) -> None:
        questions = self._questions.pop((number, is_again))
        for start in range(0, len(questions), VERIFICATIONS_MAX):
            some = questions[start : start + VERIFICATIONS_MAX]
            self._tasks.spawn(self._send(topic, number, some), "verify-transactions")

    async def _send(self, topic: TopicImage, number: int, questions: Sequence[_Question]) -> None:
        request = VerifyOrAdd(tuple(verification for verification, _ in questions))
        outcomes: Sequence[LogError | None] = [
            _not_verified("The node is stopping.") for _ in questions
        ]
        try:
            response = await self._coordinators.call_partition(
                MESSAGES,
                topic,
                number,
                request,
                timeout_s=ASK_S,
                may_repeat=True,
                is_held=True,
            )
            verified = successful(response)
            if isinstance(verified, Verified) and len(verified.outcomes) == len(questions):
                outcomes = [
                    None if outcome is None else outcome.error() for outcome in verified.outcomes
                ]
            else:
                logger.error("%s-%d: a response to other questions: %r", TOPIC, number, verified)
                outcomes = [_not_verified("Its response was malformed.") for _ in questions]
        except LogError as error:
            # No batch was written, whatever the outcome of the question.
            outcomes = [_not_verified(error.message) for _ in questions]
        finally:
            for (_, answer), outcome in zip(questions, outcomes, strict=True):
                if not answer.done():
                    answer.set_result(outcome)


def _producer(batches: Sequence[RecordBatch]) -> Producer:
    """The one producer of the batches. Raises LogError INVALID_BODY."""
    producers = {(batch.header.producer_id, batch.header.producer_epoch) for batch in batches}
    is_transactional = all(batch.header.is_transactional for batch in batches)
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
