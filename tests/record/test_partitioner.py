from __future__ import annotations

import pytest
from aiokafka.partitioner import (  # type: ignore[import-untyped] # it has no py.typed
    DefaultPartitioner,
)
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.partitioner import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "signed_hash"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_equals_the_vectors_of_kafkas_own_tests(key: bytes, signed_hash: int) -> None:
    assert murmur2(key) == signed_hash & 0xFFFFFFFF


@given(st.binary(max_size=200))
def test_hash_equals_another_implementation(key: bytes) -> None:
    assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=100), st.integers(1, 10_000))
def test_partition_equals_the_fields_default_partitioner(key: bytes, count: int) -> None:
    everyone = list(range(count))
    assert partition_for_key(key, count) == DefaultPartitioner()(key, everyone, everyone)
