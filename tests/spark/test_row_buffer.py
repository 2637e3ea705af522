"""Rows gathered and parted: each comes out once, in its place, in order, and few are kept."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from raftlog_spark.sink.sink_task import RowBuffer, parts

batches = st.lists(
    st.lists(st.integers(0, 20) | st.integers(0, 70_000), min_size=1, max_size=40), max_size=8
)


def numbered(first: int, count: int) -> pa.RecordBatch:
    """Numbered rows with all columns of records."""
    numbers = range(first, first + count)
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.record_batch(
        {
            "number": pa.array(numbers, pa.int64()),
            "value": pa.array(
                [None if n % 5 == 0 else b"v" * (n % 7) for n in numbers], pa.binary()
            ),
            "headers": pa.array(
                [[] if n % 3 else [{"key": str(n), "value": b"%d" % n}] for n in numbers],
                pa.list_(header),
            ),
        }
    )


@given(batches=batches, first=st.integers(0, 3))
def test_every_row_comes_out_once_in_its_place_in_order(
    batches: list[list[int]], first: int
) -> None:
    gathered = RowBuffer()
    expected: dict[int, list[dict[str, object]]] = {}
    count = 0
    for destinations in batches:
        # A slice, as Spark's and `parts` are.
        rows = numbered(count, len(destinations) + first).slice(first)
        count += len(destinations)
        gathered.add(rows, np.array(destinations, np.int32))
        for row, destination in zip(rows.to_pylist(), destinations, strict=True):
            expected.setdefault(destination, []).append(row)
    found = [(number, rows.to_pylist()) for number, rows in gathered.take()]
    assert found == sorted(expected.items())
    assert not list(gathered.take())


def sized(count: int) -> pa.RecordBatch:
    """Rows of 10 bytes and 4 of an offset."""
    return pa.record_batch({"value": pa.array([bytes(10)] * count)})


def test_it_is_full_with_enough_for_every_destination_that_has_rows() -> None:
    gathered = RowBuffer(part_bytes=1000, bytes_max=1 << 30)
    assert not gathered.is_full
    gathered.add(sized(80), np.full(80, 7, np.int32))
    assert gathered.is_full
    gathered.add(sized(1), np.full(1, 9, np.int32))
    assert not gathered.is_full
    gathered.add(sized(80), np.full(80, 7, np.int32))
    assert gathered.is_full
    list(gathered.take())
    assert not gathered.is_full


def test_it_is_full_at_its_bound_however_many_destinations_there_are() -> None:
    gathered = RowBuffer(part_bytes=1000, bytes_max=5000)
    gathered.add(sized(400), np.arange(400, dtype=np.int32))
    assert gathered.is_full


@given(sizes=st.lists(st.integers(0, 300), max_size=60), bytes_max=st.integers(1, 500))
def test_parts_are_the_rows_in_order_and_small(sizes: list[int], bytes_max: int) -> None:
    rows = pa.record_batch({"value": pa.array([bytes(size) for size in sizes], pa.binary())})
    found = list(parts(rows, bytes_max))
    assert [row for part in found for row in part.to_pylist()] == rows.to_pylist()
    assert all(part.num_rows == 1 or 0 < part.nbytes <= bytes_max for part in found)
