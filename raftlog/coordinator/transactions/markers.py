"""Markers of decided transactions, written to every partition of each until all are committed.

`run` accompanies one loaded shard of transactions. It takes each decision once the decision is
committed, also the decisions of earlier coordinators, writes the markers through the leaders of
their partitions, and confirms each to the shard. Only the shard's end stops an attempt, because
until its marker is written, a transaction holds back readers of committed records.

A leader that rejects a marker ends no shard. The answer of another node, right or wrong, is about
a single transaction, which is parked: its markers are retried after longer pauses, and the node
counts it (`raftlog_transactions_parked`). After COORDINATOR_FENCED the quorum decides whether this
coordinator is over.

A marker may be written twice, by this coordinator or by two. The partition's leader knows it by
producer, epoch and coordinator epoch (the leader epoch of the shard).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from raftlog.coordinator.shard.decision import Decision
from raftlog.coordinator.transactions.kind import TransactionCoordinator
from raftlog.coordinator.transactions.messages import PendingMarkers, TopicPartition
from raftlog.coordinator.transactions.shard import DECISIONS, TransactionShard
from raftlog.coordinator.transactions.transaction import VERSION_2
from raftlog.record.control import Marker
from raftlog.record.errors import (
    COORDINATOR_FENCED,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.routing.router import PartitionRouter
from raftlog.world import Backoff, Clock

AT_ONCE_MAX: Final = 64
"""Markers of one shard under way at once."""
WRITE_S: Final = 10.0
"""Timeout of one attempt."""
RETRIES: Final = Backoff(0.02, 2.0)
"""Pauses between attempts for one partition, and between decisions while the shard takes none."""
PARKED: Final = Backoff(0.1, 10.0)
"""Pauses between attempts that the partition's leader rejects."""
LOGGED_ATTEMPT: Final = 8
"""Number of attempts between logged attempts. The first is some seconds after the start."""
IDLE_S: Final = 3_600.0
"""Longest wait for a decision."""

R = TypeVar("R")

logger = logging.getLogger(__name__)


class MarkerWriter:
    """Writes the markers of all shards of this node."""

    def __init__(self, router: PartitionRouter, clock: Clock) -> None:
        self._router = router
        self._clock = clock

    async def run(self, shard: TransactionCoordinator) -> None:
        """Write the markers of one shard until it ends."""
        limit = asyncio.Semaphore(AT_ONCE_MAX)
        taken = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._decided(shard, taken)
                    decisions, pending = await self._settled(
                        shard,
                        lambda state, after=taken: _pending(state, after),  # type: ignore[misc]
                    )
                    taken = decisions
                    for markers in pending:
                        tasks.create_task(self._end(shard, markers, limit))
        except* LogError:
            # The shard is over. The next shard takes its decisions from the log.
            pass

    async def _end(
        self, shard: TransactionCoordinator, markers: PendingMarkers, limit: asyncio.Semaphore
    ) -> None:
        """End one transaction in all its partitions. Raises LogError when the shard is over."""
        if not markers.partitions:
            await self._confirm(shard, markers, None)
        async with asyncio.TaskGroup() as tasks:
            for partition in sorted(markers.partitions):
                tasks.create_task(self._end_in(shard, markers, partition, limit))

    async def _end_in(
        self,
        shard: TransactionCoordinator,
        markers: PendingMarkers,
        partition: TopicPartition,
        limit: asyncio.Semaphore,
    ) -> None:
        """End one transaction in one partition, and confirm it."""
        name = f"{partition.topic}-{partition.partition}"
        attempt = 0
        is_parked = False
        while True:
            async with limit:
                error = await self._attempt(shard, markers, partition)
            if error is None:
                break
            if error.entry is COORDINATOR_FENCED:
                await _confirm_lead(shard)
            _require_serving(shard)
            attempt += 1
            is_retriable = error.entry.retriable
            if not is_retriable and not is_parked:
                is_parked = True
                shard.state.park(markers, partition)
                _log(shard, markers, f"it is parked, as {name} rejects its marker", error)
            elif attempt % LOGGED_ATTEMPT == 0:
                _log(shard, markers, f"no marker in {name} after {attempt} attempts", error)
            await self._clock.sleep((RETRIES if is_retriable else PARKED).delay_s(attempt - 1))
        await self._confirm(shard, markers, partition)

    async def _attempt(
        self, shard: TransactionCoordinator, markers: PendingMarkers, partition: TopicPartition
    ) -> LogError | None:
        """Write one marker. Returns the error, or None once it is committed, or not needed."""
        marker = Marker(
            markers.is_commit,
            shard.role.state.row.leader_epoch,
            is_epoch_next=markers.version >= VERSION_2,
            coordinator=shard.partition.partition,
        )
        try:
            found = self._router.find(*partition)
            await found.write_marker(*markers.producer, marker, timeout_s=WRITE_S)
        except LogError as error:
            if error.entry is PRODUCER_FENCED:
                # A newer epoch, or the next transaction, has written there, which only the end of
                # this transaction allows.
                return None
            if error.entry not in {UNKNOWN_TOPIC, UNKNOWN_PARTITION}:
                return error
            return await self._unless_gone(shard, partition, error)
        return None

    async def _unless_gone(
        self, shard: TransactionCoordinator, partition: TopicPartition, error: LogError
    ) -> LogError | None:
        """None if the partition is deleted. A node that is behind may merely not know it yet."""
        try:
            await shard.partition.confirm()
            self._router.find(*partition)
        except LogError as again:
            is_gone = again.entry in {UNKNOWN_TOPIC, UNKNOWN_PARTITION}
            return None if is_gone else again
        return error

    async def _confirm(
        self,
        shard: TransactionCoordinator,
        markers: PendingMarkers,
        partition: TopicPartition | None,
    ) -> None:
        written = () if partition is None else (partition,)
        await self._settled(
            shard,
            lambda state: state.markers_written(markers, written, shard.moment().time_ms),
        )

    async def _decided(self, shard: TransactionCoordinator, taken: int) -> None:
        """Return once more than `taken` transactions are decided. Raises LogError as `_settled`."""
        while True:
            try:
                if await shard.wait_until(
                    (DECISIONS,), lambda state: state.decisions > taken, IDLE_S
                ):
                    return
            except LogError:
                _require_serving(shard)
                await self._clock.sleep(RETRIES.max_s)

    async def _settled(
        self, shard: TransactionCoordinator, decide: Callable[[TransactionShard], Decision[R]]
    ) -> R:
        """Execute, and repeat while the shard takes no decisions.

        Raises LogError NOT_COORDINATOR once the shard is over.
        """
        attempt = 0
        while True:
            try:
                return await shard.execute(decide)
            except LogError:
                _require_serving(shard)
            await self._clock.sleep(RETRIES.delay_s(attempt))
            attempt += 1


def _pending(state: TransactionShard, after: int) -> Decision[tuple[int, list[PendingMarkers]]]:
    return Decision((state.decisions, state.pending_markers(after)))


async def _confirm_lead(shard: TransactionCoordinator) -> None:
    """Let the quorum end the shard if another coordinator has replaced it."""
    with suppress(LogError):
        await shard.partition.confirm()


def _log(
    shard: TransactionCoordinator, markers: PendingMarkers, state: str, error: LogError
) -> None:
    logger.warning(
        "%s: transaction of producer %d: %s, trying again: %s",
        shard.partition.name,
        markers.producer.producer_id,
        state,
        error.message,
    )


def _require_serving(shard: TransactionCoordinator) -> None:
    """Raise LogError NOT_COORDINATOR once the shard is over."""
    if shard.ended is not None:
        raise LogError(NOT_COORDINATOR, shard.ended.message)
