"""Which partition a record goes to, when its sender does not say."""

from __future__ import annotations

from typing import Protocol

from raftlog.record.partitioner import partition_for_key


class Partitioner(Protocol):
    """Chooses a partition in [0, partition_count), or None: the producer's sticky choice.

    The sticky choice stays on one partition until its batch is on its way, and then takes the next
    partition that has a leader, so that records without a key travel in few, large batches.
    """

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partition_count: int
    ) -> int | None:
        """The partition for a record of these serialized bytes."""
        ...


def murmur2_partitioner(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    partition_count: int,
) -> int | None:
    """Kafka's default: murmur2 of the key; sticky for records without one."""
    if key is None:
        return None
    return partition_for_key(key, partition_count)
