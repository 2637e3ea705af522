"""Kafka's default partitioner maps a keyed record to its partition.

Node and client both use this function, so that all records of one key go to one partition, the same
as with any Kafka client. The hash is murmur2 with Kafka's seed over the serialized key bytes. The
sign bit is cleared before the remainder is taken (`Utils.toPositive`).
"""

from __future__ import annotations

from typing import Final

from murmurhash2 import murmurhash2

MURMUR2_SEED: Final = 0x9747B28C
"""Kafka's seed."""
POSITIVE: Final = 0x7FFFFFFF
"""Bits of a hash that count. A caller with many keys applies hash and mask itself, because a call
per key would cost as much as the hash."""


def murmur2(data: bytes) -> int:
    """32-bit murmur2 of `data` with Kafka's seed, as an unsigned number."""
    return murmurhash2(data, MURMUR2_SEED)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a record with this key, below `partition_count`.

    Returns a plain int. A NewType call per record would cost as much as the rest.
    """
    return (murmurhash2(key, MURMUR2_SEED) & POSITIVE) % partition_count
