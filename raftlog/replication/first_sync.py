"""The replicas of a node that have not been in sync since its start.

A rolling restart continues with the next node when this one is ready. If its replicas still lag
then, the next stop brings partitions below min.insync.replicas, and `acks=all` is refused. So
readiness waits until each replica has been in its ISR once. A replica without a leader to follow
cannot join the ISR. It is logged, and not waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.record.errors import counted
from raftlog.record.types import BrokerId, PartitionId, TopicId

NAMED_MAX: Final = 5
"""Partitions named in a message."""

logger = logging.getLogger(__name__)


class FirstSync:
    """Decides how long a started node waits for its replicas. Lives in the event loop."""

    def __init__(self, image: Callable[[], MetadataImage], broker_id: BrokerId) -> None:
        self._image = image
        self._broker_id = broker_id
        self._waiting: set[tuple[TopicId, PartitionId]] | None = None
        """Replicas never in sync since the start. None before `begin`, empty once the wait is over.
        """

    def begin(self) -> None:
        """Wait for the replicas that are assigned to this node and out of sync.

        Called when the node serves. Replicas that a reassignment is adding are copied at a
        separate, throttled rate, and no other node's stop waits for them.
        """
        self._waiting = {
            (topic.topic_id, row.partition)
            for topic in self._image().topics_by_id.values()
            for row in topic.partitions
            if self._lags(row)
        }

    def applied(self, delta: MetadataDelta) -> None:
        """Note the replicas that have entered their ISR."""
        if not self._waiting:
            return
        for change in delta.changed:
            for number in change.partitions:
                if not self._lags(change.after.partitions[number]):
                    self._waiting.discard((change.after.topic_id, number))
        for topic in delta.deleted:
            self._waiting -= {(topic.topic_id, row.partition) for row in topic.partitions}

    def waiting(self) -> list[str]:
        """The partitions waited for, as `topic-partition`. Stays empty once it was empty."""
        if not self._waiting:
            return []
        topics = self._image().topics_by_id
        rows = [
            (topics[topic_id].name, topics[topic_id].partitions[number])
            for topic_id, number in sorted(self._waiting)
            if topic_id in topics
        ]
        waited_for = [f"{name}-{row.partition}" for name, row in rows if row.leader != NO_LEADER_ID]
        if not waited_for:
            self._waiting = set()
            if rows:
                without = [f"{name}-{row.partition}" for name, row in rows]
                logger.warning(
                    "ready, with %s out of sync whose partitions have no leader: %s",
                    counted(len(without), "replica"),
                    named(without),
                )
        return waited_for

    def _lags(self, row: PartitionImage) -> bool:
        me = self._broker_id
        return me in row.replicas and me not in row.isr and me not in row.adding


def named(partitions: list[str]) -> str:
    """The first of these partitions, for a message."""
    return ", ".join(partitions[:NAMED_MAX]) + (", …" if len(partitions) > NAMED_MAX else "")
