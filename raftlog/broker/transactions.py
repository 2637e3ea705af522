"""Transactions of the cluster, through their coordinators on any node.

A request goes to the coordinator of its transactional id. The ids of one sink share a coordinator.
Requests that are harmless to repeat are repeated while the coordinator moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from raftlog.broker.authorize import (
    CLUSTER,
    Authorize,
    Operation,
    Principal,
    Resource,
    group_resource,
    may_describe,
    topic_resource,
    transactional_id_resource,
)
from raftlog.broker.node import NodeServices
from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.transactions.kind import MESSAGES, TOPIC
from raftlog.coordinator.transactions.messages import (
    NO_EPOCH,
    AbortTransaction,
    AddPartitions,
    CommitSinkEpoch,
    DescribeSink,
    DescribeTransaction,
    Done,
    Ended,
    EndTransaction,
    Initialized,
    InitProducer,
    ListTransactions,
    PrepareTransaction,
    Request,
    Response,
    SinkEpoch,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
    TransactionSummary,
    shard_key,
    sink_shard_key,
    successful,
)
from raftlog.coordinator.transactions.transaction import VERSION_1, VERSION_2
from raftlog.metadata.image import TopicImage
from raftlog.record.control import Marker
from raftlog.record.coordinators import OFFSETS_TOPIC, partition_of
from raftlog.record.errors import INVALID_BODY, LogError
from raftlog.record.types import NO_PRODUCER_ID, BrokerId, PartitionId
from raftlog.storage.producers.state import ProducerDescription

__all__ = [
    "VERSION_1",
    "VERSION_2",
    "Ended",
    "Initialized",
    "Marker",
    "Producer",
    "TopicPartition",
    "TransactionDescription",
    "TransactionService",
]

PRODUCERS_MAX: Final = 10_000
"""Producers of one description."""
CALL_S: Final = 10.0
"""Timeout of one call."""

R = TypeVar("R", bound=Response)


class CoordinatedTransaction(NamedTuple):
    """A transactional id, and the node that coordinates it."""

    summary: TransactionSummary
    coordinator: BrokerId


class TransactionsFound(NamedTuple):
    """The transactional ids of all coordinators that answered."""

    transactions: Sequence[CoordinatedTransaction]
    incomplete: Sequence[str]
    """Why those of some coordinators are missing."""


class TransactionService:
    """The transactions of the cluster, on any node."""

    def __init__(self, services: NodeServices, authorize: Authorize) -> None:
        self._services = services
        self._authorize = authorize

    async def init(
        self,
        principal: Principal,
        transactional_id: str,
        *,
        timeout_ms: int,
        known: Producer,
        keep_prepared: bool,
    ) -> Initialized:
        """Make the caller the only producer of the id.

        `known` comes from an earlier response, or has the producer id -1. Raises LogError
        CONCURRENT_TRANSACTIONS until an earlier transaction has ended.
        """
        self._authorize(principal, Operation.WRITE, transactional_id_resource(transactional_id))
        request = InitProducer(
            transactional_id,
            timeout_ms,
            None if known.producer_id == NO_PRODUCER_ID else known,
            keep_prepared,
        )
        # A repeat would fence the producer of its first response, and only an epoch is lost.
        return await self._call(request, shard_key(transactional_id), Initialized, is_held=True)

    async def add_partitions(
        self,
        principal: Principal,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
    ) -> None:
        """Add partitions to the transaction, for clients that do so before they write (version 1).

        Raises LogError FORBIDDEN, UNKNOWN_TOPIC or UNKNOWN_PARTITION for any of them, with none
        added.
        """
        self._authorize(principal, Operation.WRITE, transactional_id_resource(transactional_id))
        image = self._services.metadata.image
        for partition in partitions:
            self._authorize(principal, Operation.WRITE, topic_resource(partition.topic))
            image.partition(partition.topic, PartitionId(partition.partition))
        await self._add(transactional_id, producer, partitions)

    async def add_group(
        self, principal: Principal, transactional_id: str, producer: Producer, group_id: str
    ) -> None:
        """A group's offsets join the transaction, as `add_partitions`. Raises LogError."""
        self._authorize(principal, Operation.WRITE, transactional_id_resource(transactional_id))
        self._authorize(principal, Operation.READ, group_resource(group_id))
        topic = self._services.metadata.image.topic(OFFSETS_TOPIC)
        number = partition_of(group_id, len(topic.partitions))
        await self._add(transactional_id, producer, [TopicPartition(topic.name, number)])

    async def _add(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> None:
        request = AddPartitions(transactional_id, producer, tuple(partitions))
        await self._call(request, shard_key(transactional_id), Done)

    async def producers(
        self, principal: Principal, topic: str, partition: int, *, any_node: bool = False
    ) -> list[ProducerDescription]:
        """The producers of a partition's leader, with those of open transactions first (KIP-664).

        Raises LogError UNKNOWN_TOPIC, UNKNOWN_PARTITION or NO_LEADER. Without `any_node` it also
        raises NO_LEADER for a partition led elsewhere.
        """
        self._authorize(principal, Operation.READ, topic_resource(topic))
        if any_node:
            return await self._services.partitions.find(topic, partition).producers(PRODUCERS_MAX)
        return self._services.replicas.partition(topic, partition).producers(PRODUCERS_MAX)

    async def write_marker(
        self,
        principal: Principal,
        topic: str,
        partition: int,
        producer: Producer,
        marker: Marker,
        *,
        any_node: bool = False,
    ) -> None:
        """End a transaction in one partition without its coordinator.

        An operator calls it for a transaction that its coordinator does not know (KIP-664). Raises
        LogError, as `producers`.
        """
        self._authorize(principal, Operation.CLUSTER_ACTION, CLUSTER)
        if min(*producer, marker.coordinator_epoch) < 0:
            raise LogError(INVALID_BODY, "The numbers of a marker are 0 or more.")
        partitions = self._services.partitions
        if any_node:
            await partitions.find(topic, partition).write_marker(
                *producer, marker, timeout_s=CALL_S
            )
            return
        found = self._services.replicas.partition(topic, partition)
        await partitions.gate.write_marker(found, *producer, marker, timeout_s=CALL_S)

    async def end(
        self,
        principal: Principal,
        transactional_id: str,
        producer: Producer,
        *,
        is_commit: bool,
        version: int = VERSION_2,
    ) -> Producer:
        """Commit or abort. Returns the producer for the next transaction. Raises LogError.

        VERSION_1 keeps the epoch, and its sequence numbers continue.
        """
        self._authorize(principal, Operation.WRITE, transactional_id_resource(transactional_id))
        request = EndTransaction(transactional_id, producer, is_commit, version)
        key = shard_key(transactional_id)
        return (await self._call(request, key, Ended, is_held=True)).producer

    async def prepare(
        self, principal: Principal, transactional_id: str, producer: Producer
    ) -> None:
        """First phase of two. The transaction then waits for its end, beyond any timeout."""
        self._authorize(principal, Operation.WRITE, transactional_id_resource(transactional_id))
        request = PrepareTransaction(transactional_id, producer)
        await self._call(request, shard_key(transactional_id), Done)

    async def fence(self, principal: Principal, transactional_id: str) -> None:
        """Abort whatever is open, and fence its producer. Raises LogError INVALID_TXN_STATE."""
        self._authorize(principal, Operation.WRITE, transactional_id_resource(transactional_id))
        request = AbortTransaction(transactional_id)
        await self._call(request, shard_key(transactional_id), Done, may_repeat=False)

    async def describe(
        self, principal: Principal, transactional_id: str
    ) -> tuple[TransactionDescription, BrokerId]:
        """One transactional id, and its coordinator. Raises LogError UNKNOWN_TRANSACTION."""
        self._authorize(principal, Operation.DESCRIBE, transactional_id_resource(transactional_id))
        key = shard_key(transactional_id)
        request = DescribeTransaction(transactional_id)
        found = await self._call(request, key, TransactionDescription, may_change=False)
        topic = self._services.metadata.image.topic(TOPIC)
        return found, topic.partitions[partition_of(key, len(topic.partitions))].leader

    async def list(self, principal: Principal) -> TransactionsFound:
        """All transactional ids that the principal may describe."""
        topic = self._services.metadata.image.topics_by_name.get(TOPIC)
        if topic is None:
            return TransactionsFound((), ())
        answers = await asyncio.gather(
            *(self._list(topic, row.partition) for row in topic.partitions)
        )
        found: list[CoordinatedTransaction] = []
        incomplete: list[str] = []
        for row, answer in zip(topic.partitions, answers, strict=True):
            if isinstance(answer, LogError):
                incomplete.append(f"{TOPIC}-{row.partition}: {answer.message}")
                continue
            if not answer.is_complete:
                incomplete.append(f"{TOPIC}-{row.partition} has more than one answer holds.")
            found += (
                CoordinatedTransaction(transaction, row.leader)
                for transaction in answer.transactions
                if may_describe(
                    self._authorize,
                    principal,
                    transactional_id_resource(transaction.transactional_id),
                )
            )
        return TransactionsFound(found, incomplete)

    async def commit_sink_epoch(
        self,
        principal: Principal,
        sink_id: str,
        transactional_ids: Sequence[str],
        *,
        epoch: int = NO_EPOCH,
        owner: str = "",
    ) -> SinkEpoch:
        """Commit these prepared transactions of a sink and abort its others, all or nothing.

        An epoch that is committed already changes nothing. Without an epoch, transactions that are
        committed already stay so. A repeat is harmless as long as their ids are known.
        """
        self._authorize(principal, Operation.WRITE, _sink_resource(sink_id))
        request = CommitSinkEpoch(sink_id, epoch, tuple(transactional_ids), owner)
        return await self._call(request, sink_shard_key(sink_id), SinkEpoch)

    async def describe_sink(self, principal: Principal, sink_id: str) -> SinkEpoch:
        """The newest committed epoch of a sink, or -1."""
        self._authorize(principal, Operation.DESCRIBE, _sink_resource(sink_id))
        request = DescribeSink(sink_id)
        return await self._call(request, sink_shard_key(sink_id), SinkEpoch, may_change=False)

    async def _call(
        self,
        request: Request,
        key: str,
        kind: type[R],
        *,
        may_change: bool = True,
        may_repeat: bool = True,
        is_held: bool = False,
    ) -> R:
        response = await self._services.coordinators.call(
            MESSAGES,
            key,
            request,
            timeout_s=CALL_S,
            may_change=may_change,
            may_repeat=may_repeat,
            is_held=is_held,
        )
        found = successful(response)
        assert isinstance(found, kind)
        return found

    async def _list(self, topic: TopicImage, number: int) -> TransactionListing | LogError:
        try:
            response = await self._services.coordinators.call_partition(
                MESSAGES,
                topic,
                number,
                ListTransactions(),
                timeout_s=CALL_S,
                may_change=False,
                may_repeat=True,
            )
            listing = successful(response)
        except LogError as error:
            return error.as_outcome()
        assert isinstance(listing, TransactionListing)
        return listing


def _sink_resource(sink_id: str) -> Resource:
    return transactional_id_resource(sink_shard_key(sink_id))
