"""Internal topics, and which partition of one coordinates a group or transactional id, as in Kafka.

The leader of that partition is the coordinator. Nodes and client compute it alike.
"""

from __future__ import annotations

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
METADATA_TOPIC: Final = "__cluster_metadata"
"""Kafka's name of the metadata log, which is no topic."""
INTERNAL_TOPICS: Final = frozenset(
    {OFFSETS_TOPIC, TRANSACTIONS_TOPIC, METADATA_TOPIC, "__share_group_state"}
)
"""Names reserved for the cluster, as in Kafka. Nodes create, write and delete these topics. Clients
may only read them. Other names that begin with `__` are the clients' (`__debezium-heartbeat.…`)."""


def partition_of(key: str, count: int) -> int:
    """Partition of a group or transactional id, as Kafka computes it.

    `Utils.abs` of `String.hashCode`, modulo the count. The smallest integer has no opposite, and
    counts as 0.
    """
    hashed = java_hash(key)
    return 0 if hashed == -(1 << 31) else abs(hashed) % count


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, over UTF-16 code units in 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed
