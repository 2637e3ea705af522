"""Negative offsets, counted back from the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from raftlog_client.types import PartitionOffsets

from raftlog.api.common import INT64_MAX, offset_before_end

offsets = st.integers(0, INT64_MAX)


@given(offsets, offsets, offsets)
def test_negative_offset_is_so_many_before_the_end_and_never_below_the_start(
    one: int, other: int, count: int
) -> None:
    start, end = sorted((one, other))
    found = offset_before_end(start, end, count)
    assert start <= found <= end
    assert end - found == min(count, end - start)


@given(offsets, offsets, offsets, offsets)
def test_client_counts_back_from_the_end_of_its_isolation(
    one: int, two: int, three: int, count: int
) -> None:
    start, stable, end = sorted((one, two, three))
    known = PartitionOffsets(start, end, end, last_stable_offset=stable)
    for isolation, limit in (("read_uncommitted", end), ("read_committed", stable)):
        found = known.before_end(count, isolation)
        assert found == max(start, limit - count)
