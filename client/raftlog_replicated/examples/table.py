"""A dictionary for state machines has snapshots without a stop and a current digest.

A copy of a million keys stops all else for 25 to 90 ms. So the keys lie in many small dictionaries.
A snapshot only marks these as shared. The first change of a shared dictionary first copies it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar
from zlib import crc32

import msgspec

V = TypeVar("V")

SHARDS: Final = 4_096
"""Dictionaries of a table. With ten million keys, a copy takes 50 µs."""
CHUNK_BYTES: Final = 128 * 1024
"""Bytes after which a chunk ends with the current pair. Such a chunk takes some milliseconds to
encode if pairs are small. Chunks longer than a record would be cut apart."""
DIGEST_BITS: Final = 128

_encode = msgspec.msgpack.Encoder().encode


class Table(Generic[V]):
    """Values by text, in an order that only depends on the history of keys."""

    def __init__(self, value_type: type[V]) -> None:
        """`value_type` is encoded by msgspec. Values are never changed in place."""
        self._decoder = msgspec.msgpack.Decoder(list[tuple[str, value_type]])  # type: ignore[valid-type]
        self._shards: list[dict[str, V]] = []
        self._is_own = bytearray()
        """Whether no snapshot shares a shard."""
        self._sum = 0
        """Sum of the hashes of all pairs, independent of their order, and cheap to keep."""
        self.restore(())

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def items(self) -> Iterator[tuple[str, V]]:
        """All pairs."""
        return chain.from_iterable(shard.items() for shard in self._shards)

    def get(self, key: str) -> V | None:
        """The value of a key. None without a value."""
        return self._shards[crc32(key.encode()) % SHARDS].get(key)

    def set(self, key: str, value: V | None) -> V | None:
        """Set a key, or delete it (None). Returns the value before."""
        number = crc32(key.encode()) % SHARDS
        shard = self._shards[number]
        if not self._is_own[number]:
            shard = self._shards[number] = shard.copy()
            self._is_own[number] = True
        before = shard.get(key)
        if before is not None:
            self._sum -= _hash(_encode((key, before)))
        if value is not None:
            shard[key] = value
            self._sum += _hash(_encode((key, value)))
        elif before is not None:
            del shard[key]
        return before

    def digest(self) -> bytes:
        """Equal for equal pairs, whatever the history."""
        return (self._sum % (1 << DIGEST_BITS)).to_bytes(DIGEST_BITS // 8, "big")

    def snapshot(self) -> Iterator[bytes]:
        """All pairs of this moment, in chunks. The table may change between them."""
        self._is_own = bytearray(SHARDS)
        return _chunks(list(self._shards))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace all pairs by a snapshot's."""
        self._shards = [{} for _ in range(SHARDS)]
        self._is_own = bytearray(b"\1" * SHARDS)
        self._sum = 0
        for chunk in chunks:
            for key, value in self._decoder.decode(chunk):
                self.set(key, value)


def _chunks(shards: list[dict[str, V]]) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    for shard in shards:
        for pair in shard.items():
            part = _encode(pair)
            parts.append(part)
            size += len(part)
            if size >= CHUNK_BYTES:
                yield _array(parts)
                parts, size = [], 0
    if parts:
        yield _array(parts)


def _array(parts: list[bytes]) -> bytes:
    """MessagePack's `array 32` of encoded pairs."""
    return b"".join((b"\xdd", len(parts).to_bytes(4, "big"), *parts))


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=DIGEST_BITS // 8).digest(), "big")
