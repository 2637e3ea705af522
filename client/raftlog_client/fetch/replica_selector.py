"""Selects the node to fetch from, a replica in the client's rack or the leader.

Kafka's name for it is `client.rack` (KIP-392). In Kafka the leader names the replica. Here the
client chooses by the racks and the in-sync sets of the metadata. A follower serves records below
the high watermark that it knows. These are the leader's records, delayed at most by replication.

The leader serves a partition without an in-sync replica in the rack. It also does for a while after
the replica has failed or lacks the offset. The leader has the records or knows the reason, so no
error of a follower reaches the application. A replica that falls out of sync is left at the next
refresh of the in-sync set.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from raftlog_client.metadata import ClusterMetadata
from raftlog_client.transport import NodeAddress
from raftlog_client.types import TopicPartition

LEADER_ONLY_S: Final = 10.0
"""Seconds that the leader serves a partition after a failure of the rack's replica."""
IN_SYNC_AGE_S: Final = 5.0
"""Age in seconds at which a topic's in-sync sets are looked up again."""


class ReplicaSelector:
    """Selects nodes for one consumer. Selects the leaders without a rack."""

    def __init__(
        self, metadata: ClusterMetadata, rack: str | None, refresh_soon: Callable[[str], None]
    ) -> None:
        """`refresh_soon` refreshes the metadata of a topic in the background."""
        self._metadata = metadata
        self._rack = rack
        self._refresh_soon = refresh_soon
        self._leader_only_until: dict[TopicPartition, float] = {}
        self._looked_up_at: dict[str, float] = {}

    def address(self, source: TopicPartition) -> NodeAddress | None:
        """Return the node to fetch the partition from, or None without a known leader."""
        leader = self._metadata.leader_address(*source)
        if self._rack is None or leader is None:
            return leader
        now = asyncio.get_running_loop().time()
        if now - self._looked_up_at.setdefault(source.topic, now) >= IN_SYNC_AGE_S:
            for topic, at in list(self._looked_up_at.items()):
                if now - at >= IN_SYNC_AGE_S:
                    del self._looked_up_at[topic]
                    self._refresh_soon(topic)
        if now < self._leader_only_until.get(source, -math.inf):
            return leader
        near = self._metadata.in_sync_addresses(*source, rack=self._rack)
        if leader in near or not near:
            return leader
        # Partitions spread over several replicas of a rack. Each stays with one replica.
        return near[source.partition % len(near)]

    def leave(self, source: TopicPartition) -> None:
        """Use the leader for a while, because the rack's replica failed or lacks the offset."""
        now = asyncio.get_running_loop().time()
        kept = {
            partition: until for partition, until in self._leader_only_until.items() if until > now
        }
        self._leader_only_until = kept | {source: now + LEADER_ONLY_S}
