"""Appends and markers of transactions at a partition's leader: hooks for the node's coordinators.

Assembly sets the hooks once, before the node serves; the default is a node without coordinators.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from raftlog.record.batch import RecordBatch
from raftlog.record.control import Marker
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog.replication.partition import Acks, Partition
from raftlog.storage.types import AppendResult


class TransactionHooks(Protocol):
    """Appends and markers of transactions at partitions led here. All raise LogError."""

    async def append(
        self,
        found: Partition,
        batches: Sequence[RecordBatch],
        *,
        transactional_id: str,
        acks: Acks,
        timeout_s: float,
        adds: bool = True,
    ) -> list[AppendResult]:
        """`Partition.append`, once the coordinator has confirmed the transaction.

        `adds`: the partition joins the transaction by its first batch; otherwise it must have
        joined before (clients of version 1, KIP-890).
        """
        ...

    async def write_marker(
        self,
        found: Partition,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        """`Partition.write_marker`; through the shard, where the partition has one."""
        ...


def append_at_leader(
    transactions: TransactionHooks,
    found: Partition,
    batches: Sequence[RecordBatch],
    *,
    transactional_id: str | None,
    acks: Acks,
    timeout_s: float,
    adds: bool = True,
) -> Awaitable[list[AppendResult]]:
    """Append batches to a partition led here, in a transaction or (None) outside of any.

    `adds`: see `TransactionHooks.append`.
    """
    if transactional_id is None:
        return found.append(batches, acks=acks, timeout_s=timeout_s)
    return transactions.append(
        found,
        batches,
        transactional_id=transactional_id,
        acks=acks,
        timeout_s=timeout_s,
        adds=adds,
    )


class NoCoordinators:
    """Appends without confirmation: the leader refuses to open a transaction."""

    async def append(
        self,
        found: Partition,
        batches: Sequence[RecordBatch],
        *,
        transactional_id: str,
        acks: Acks,
        timeout_s: float,
        adds: bool = True,
    ) -> list[AppendResult]:
        """See `TransactionHooks`."""
        return await found.append(batches, acks=acks, timeout_s=timeout_s)

    async def write_marker(
        self,
        found: Partition,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        """See `TransactionHooks`."""
        await found.write_marker(producer_id, producer_epoch, marker, timeout_s=timeout_s)
