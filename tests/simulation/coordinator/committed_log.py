"""The log of an internal topic's partition, as a load would read it."""

from __future__ import annotations

from typing import Final

from raftlog.coordinator.shard import service
from raftlog.node.assembly import NodeCore
from raftlog.record.types import Offset
from raftlog.replication.partition import Partition
from tests.simulation.node_world import NodeWorld

READ_BYTES: Final = 1 << 20
WHOLE_LOG: Final = {**service.TOPIC_CONFIGS, "segment.ms": str(400 * 86_400_000)}
"""Configs of an internal topic that is never compacted. A clock weeks ahead starts new segments."""


async def committed_log(nodes: NodeWorld, led: Partition) -> bytes:
    """All committed batches of a partition, read at its leader."""

    async def read(core: NodeCore) -> bytes:
        partition = core.services.replicas.partition(led.topic, led.partition)
        parts, offset = [], partition.log_start_offset
        while offset < partition.high_watermark:
            fetched = await partition.read(offset, max_bytes=READ_BYTES)
            parts.append(bytes(fetched.data))
            offset = Offset(fetched.next_offset)
        return b"".join(parts)

    return await nodes.call(int(led.host.broker_id), read)
