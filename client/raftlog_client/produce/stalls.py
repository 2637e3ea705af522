"""Logs the reason for partitions with waiting records.

A partition stalls while its oldest due batch has stayed without an outcome for `STALL_S`. Slow bulk
work does not stall, because its batches settle one after the other.
"""

from __future__ import annotations

import logging
from typing import Final

from raftlog_client.metadata import ClusterMetadata
from raftlog_client.produce.accumulator import Accumulator
from raftlog_client.produce.batches import PendingBatch
from raftlog_client.produce.delivery import PartitionQueue

STALL_S: Final = 2.0
LOOK_INTERVAL_S: Final = 0.5

logger = logging.getLogger("raftlog_client")


class StallReporter:
    """Reports the stalled partitions of one producer, each stall once. Call `look` periodically."""

    def __init__(self, accumulator: Accumulator, metadata: ClusterMetadata) -> None:
        self._accumulator = accumulator
        self._metadata = metadata
        self._oldest: dict[PartitionQueue, tuple[PendingBatch, float]] = {}
        """Oldest due batch of each partition, with the time since it became the oldest."""
        self._reported: set[PendingBatch] = set()

    def look(self, now: float) -> None:
        """Log the partitions that stall since the last call."""
        oldest: dict[PartitionQueue, tuple[PendingBatch, float]] = {}
        stalled: list[tuple[PartitionQueue, PendingBatch]] = []
        for batch, queue in self._accumulator.unsettled.items():
            if queue in oldest or (queue.open is batch and not batch.is_due):
                continue
            before, since = self._oldest.get(queue, (batch, now))
            oldest[queue] = (batch, since if before is batch else now)
            if now - oldest[queue][1] >= STALL_S and batch not in self._reported:
                stalled.append((queue, batch))
        self._oldest = oldest
        self._reported &= {batch for batch, _ in oldest.values()}
        self._reported |= {batch for _, batch in stalled}
        if stalled:
            (queue, batch), others = stalled[0], len(stalled) - 1
            logger.warning(
                "waiting for partition %d of %s%s: %s",
                queue.target.partition,
                queue.target.topic,
                f" (and {others} other partitions)" if others else "",
                self._reason(queue, batch),
            )

    def _reason(self, queue: PartitionQueue, batch: PendingBatch) -> str:
        address = self._metadata.leader_address(*queue.target)
        if batch.last_error is not None:
            return str(batch.last_error)
        return "no leader" if address is None else f"{address} has not answered yet"
