"""Appends, markers and coordinator requests reach the partitions led here through one gate.

Every append of a client at a leader goes through the gate, whatever node it came from. It opens the
partition, then writes. A batch of a transaction is confirmed by the transaction's coordinator
first. The node's coordinators register with the gate when the node is built, before it serves.
Without them a leader refuses to open a transaction, and requests to coordinators get NOT_READY.

A node closes the gate while it hands its partitions over. An append then waits in the router of the
node where it arrived, until the next leader is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Protocol

from raftlog.record.batch import RecordBatch
from raftlog.record.control import Marker
from raftlog.record.errors import NO_LEADER, NOT_READY, LogError
from raftlog.record.types import Buffer, ProducerEpoch, ProducerId
from raftlog.replication.partition import Acks, Partition
from raftlog.storage.types import AppendResult


class Write(Protocol):
    """Appends batches to an opened partition, as `LeaderRole.append`. Raises LogError."""

    def __call__(
        self, batches: Sequence[RecordBatch], *, acks: Acks, timeout_s: float
    ) -> Awaitable[list[AppendResult]]:
        """Append the batches, whole or not at all, and return once `acks` is fulfilled."""
        ...


class LeaderTransactions(ABC):
    """Appends and markers of transactions at partitions led here. All raise LogError."""

    @abstractmethod
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
        """`Partition.append`, once the coordinator has confirmed the transaction.

        With `adds_partition` the partition joins the transaction by its first batch. Otherwise it
        must have joined before (clients of version 1, KIP-890). `may_start_anywhere` as for
        `LeaderRole.append`.
        """

    @abstractmethod
    async def write_marker(
        self,
        found: Partition,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        """Write as `Partition.write_marker`, through the shard where the partition has a shard."""


class CoordinatorServer(ABC):
    """The coordinators of the partitions led here."""

    @abstractmethod
    async def serve(self, found: Partition, request: memoryview, timeout_s: float) -> Buffer:
        """Carry out another node's request at a partition led here. Raises LogError."""


class LeaderGate:
    """The gate of one node. Lives in the event loop."""

    def __init__(self) -> None:
        self._transactions: LeaderTransactions | None = None
        self._coordinators: CoordinatorServer | None = None
        self._is_closed = False

    def register(
        self,
        *,
        transactions: LeaderTransactions | None = None,
        coordinators: CoordinatorServer | None = None,
    ) -> None:
        """Register the node's coordinators, each of the two once."""
        if transactions is not None:
            assert self._transactions is None
            self._transactions = transactions
        if coordinators is not None:
            assert self._coordinators is None
            self._coordinators = coordinators

    def close(self) -> None:
        """Refuse appends with NO_LEADER, while this node hands its partitions over."""
        self._is_closed = True

    def reopen(self) -> None:
        """Let appends through again."""
        self._is_closed = False

    def open(
        self,
        found: Partition,
        transactional_id: str | None,
        *,
        adds_partition: bool = True,
        may_start_anywhere: bool = False,
    ) -> Write:
        """Open a partition led here for one append.

        The append is in a transaction, or outside of any if `transactional_id` is None. See
        `LeaderTransactions.append` for the options. The write takes its place in the log, or in
        the line for it, before it suspends. Raises LogError, as the write does.
        """
        if self._is_closed:
            raise LogError(NO_LEADER, f"{found.name} is handed over, as its leader stops.")
        if transactional_id is None or self._transactions is None:
            append = found.writer().append
            return partial(append, may_start_anywhere=True) if may_start_anywhere else append
        return partial(
            self._transactions.append,
            found,
            transactional_id=transactional_id,
            adds_partition=adds_partition,
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
        """End a producer's transaction at a partition led here. Raises LogError."""
        if self._transactions is None:
            await found.write_marker(producer_id, producer_epoch, marker, timeout_s=timeout_s)
            return
        await self._transactions.write_marker(
            found, producer_id, producer_epoch, marker, timeout_s=timeout_s
        )

    async def coordinate(self, found: Partition, request: memoryview, timeout_s: float) -> Buffer:
        """Carry out another node's request to the coordinator of a partition led here.

        Raises LogError.
        """
        if self._coordinators is None:
            raise LogError(NOT_READY, "This node's coordinators are not running.")
        return await self._coordinators.serve(found, request, timeout_s)
