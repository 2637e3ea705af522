"""Rows gathered until there are enough of them, then parted by destination.

What comes out is encoded in one call for each destination, and a call costs some 100 us however few
its rows are. So rows are kept until each of the destinations that have any has about 1 MB of them,
or all together have as much as may be kept; then all of them leave. To let the largest alone leave
was rejected: the rows of one destination are slices of arrays that hold all others' too, so what
is kept for the small ones would keep everything in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from raftlog_spark.sink.partition_router import Destinations

PART_BYTES: Final = 1024 * 1024
"""How many rows of each destination make a call worth it."""
BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""What may be kept. While it leaves, there is a second copy of it, in another order."""


class RowBuffer:
    """Rows that wait. Bounded: whoever adds takes everything out as soon as `is_full`."""

    def __init__(self, *, part_bytes: int = PART_BYTES, bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._part_bytes = part_bytes
        self._bytes_max = bytes_max
        self._clear()

    def _clear(self) -> None:
        self._rows: list[pa.RecordBatch] = []
        self._destinations: list[Destinations] = []
        self._counts = np.zeros(0, np.int64)
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to take everything out."""
        enough = self._part_bytes * int(np.count_nonzero(self._counts))
        return bool(self._rows) and self._size_bytes >= min(enough, self._bytes_max)

    def add(self, rows: pa.RecordBatch, destinations: Destinations) -> None:
        """Keep rows, at least one, and where each of them goes."""
        assert len(destinations) == rows.num_rows > 0
        counts = np.bincount(destinations, minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        self._rows.append(rows)
        self._destinations.append(destinations)
        self._size_bytes += rows.nbytes

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Each destination with its rows, in the order in which they were added; then none is left.

        Every row that was added comes out exactly once.
        """
        if not self._rows:
            return
        (rows,) = pa.Table.from_batches(self._rows).combine_chunks().to_batches()
        counts, destinations = self._counts, np.concatenate(self._destinations)
        self._clear()
        present = np.flatnonzero(counts)
        if len(present) > 1:
            # Sorting is by counting, and so linear, for numbers of 16 bits.
            smallest = np.min_scalar_type(len(counts))
            order = np.argsort(destinations.astype(smallest), kind="stable")
            rows = rows.take(pa.array(order))
        first = 0
        for destination in present.tolist():
            count = int(counts[destination])
            yield destination, rows.slice(first, count)
            first += count


def parts(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in their order, in parts of at most so many bytes, unless a single row has more."""
    if rows.nbytes <= bytes_max or rows.num_rows <= 1:
        if rows.num_rows:
            yield rows
        return
    half = rows.num_rows // 2
    yield from parts(rows.slice(0, half), bytes_max)
    yield from parts(rows.slice(half), bytes_max)
