from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_client.partitioners import murmur2_partitioner
from raftlog_spark.keys import partition_of

keys = st.lists(st.none() | st.binary(max_size=9) | st.binary(max_size=300), max_size=80)


def expected(key: bytes | None, partitions: int) -> int:
    chosen = murmur2_partitioner("t", key, None, partitions)
    return -1 if chosen is None else chosen


class TestPartitionOf:
    @given(keys=keys, partitions=st.integers(1, 1000))
    def test_it_is_the_clients_partitioner(self, keys: list[bytes | None], partitions: int) -> None:
        found = partition_of(pa.array(keys, pa.binary()), partitions)
        assert found.tolist() == [expected(key, partitions) for key in keys]

    @given(keys=keys, first=st.integers(0, 80))
    def test_slices_are_their_own_keys(self, keys: list[bytes | None], first: int) -> None:
        found = partition_of(pa.array(keys, pa.binary()).slice(first), 7)
        assert found.tolist() == [expected(key, 7) for key in keys[first:]]

    @given(keys=st.lists(st.tuples(st.none() | st.binary(max_size=9), st.integers(1, 50))))
    def test_each_key_may_have_partitions_of_its_own(
        self, keys: list[tuple[bytes | None, int]]
    ) -> None:
        counts = np.array([count for _, count in keys], np.int32)
        found = partition_of(pa.array([key for key, _ in keys], pa.binary()), counts)
        assert found.tolist() == [expected(key, count) for key, count in keys]

    def test_strings_are_their_utf8(self) -> None:
        assert partition_of(pa.array(["é", None]), 12).tolist() == [
            expected("é".encode(), 12),
            -1,
        ]

    def test_one_very_long_key_among_many(self) -> None:
        keys = [b"k%d" % number for number in range(1000)] + [bytes(1_000_000)]
        assert partition_of(pa.array(keys), 12).tolist() == [expected(key, 12) for key in keys]

    def test_numbers_are_refused(self) -> None:
        with pytest.raises(pa.ArrowTypeError):
            partition_of(pa.array([1]), 3)
