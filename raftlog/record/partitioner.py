"""Which partition a keyed record belongs to: Kafka's default partitioner, in one place.

Node and client both use this function, so that all records of one key go to one partition, the same
as with any Kafka client. The hash is murmur2 with Kafka's seed over the serialized key bytes; the
sign bit is cleared before the remainder is taken (`Utils.toPositive`).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_CACHED_KEYS_MAX = 16_384
_CACHED_KEY_BYTES_MAX = 64
_WORDS = tuple(Struct(f"<{count}I").unpack_from for count in range(_CACHED_KEY_BYTES_MAX // 4 + 1))


def murmur2(data: bytes) -> int:
    """32-bit murmur2 of `data` with Kafka's seed, as an unsigned number."""
    length = len(data)
    count = length >> 2
    words = _WORDS[count](data) if count < len(_WORDS) else Struct(f"<{count}I").unpack_from(data)
    digest = _SEED ^ (length & _MASK)
    for word in words:
        mixed = (word * _MULTIPLIER) & _MASK
        mixed = ((mixed ^ (mixed >> 24)) * _MULTIPLIER) & _MASK
        digest = ((digest * _MULTIPLIER) & _MASK) ^ mixed
    if tail := data[count << 2 :]:
        digest = ((digest ^ int.from_bytes(tail, "little")) * _MULTIPLIER) & _MASK
    digest = ((digest ^ (digest >> 13)) * _MULTIPLIER) & _MASK
    return digest ^ (digest >> 15)


# Real keys repeat (users, devices, carriers); a remembered hash costs a tenth of a computed one.
_remembered = lru_cache(maxsize=_CACHED_KEYS_MAX)(murmur2)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The number of the partition of a record with this key, of `partition_count` partitions.

    Returns a plain int: a NewType call per record would cost as much as the rest.
    """
    digest = _remembered(key) if len(key) <= _CACHED_KEY_BYTES_MAX else murmur2(key)
    return (digest & 0x7FFFFFFF) % partition_count
