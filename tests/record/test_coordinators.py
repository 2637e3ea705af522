"""Ids belong to partitions as Kafka computes it: known values of Java's `String.hashCode`."""

from __future__ import annotations

import pytest

from raftlog.record.coordinators import java_hash, partition_of

HASHES = {
    "": 0,
    "a": 97,
    "Aa": 2112,
    "BB": 2112,
    "hello": 99162322,
    "Hello, World!": 1498789909,
    "polygenelubricants": -(1 << 31),
    "\U0001f600": 0xD83D * 31 + 0xDE00,
    "\ud83d": 0xD83D,
    "é": 0xE9,
}


@pytest.mark.parametrize("text", HASHES)
def test_hash_is_that_of_java(text: str) -> None:
    assert java_hash(text) == HASHES[text]


def test_partition_is_the_size_of_the_hash_modulo_the_count() -> None:
    assert partition_of("hello", 16) == 99162322 % 16
    negative = next(f"g{n}" for n in range(1000) if java_hash(f"g{n}" * 3) < 0) * 3
    assert partition_of(negative, 50) == -java_hash(negative) % 50
    # The smallest integer has no opposite.
    assert partition_of("polygenelubricants", 7) == 0
    assert {partition_of(f"group-{n}", 16) for n in range(200)} == set(range(16))
