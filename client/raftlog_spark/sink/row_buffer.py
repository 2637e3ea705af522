"""Buffers rows, then splits them by destination.

The rows are encoded in one call for each destination, and a call costs some 100 us for any number
of rows. So rows are kept until the destinations with rows have about 1 MB each on average, or until
the whole buffer is full; then all rows leave. Rejected: only the largest destination leaves. The
rows of one destination are slices of arrays that hold all others too, so the rest would keep
everything in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from raftlog_spark.sink.partition_router import Destinations

PART_BYTES: Final = 1024 * 1024
"""Bytes of each destination's rows that make a call worth it."""
BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most buffered bytes. While the rows leave, a second copy exists, in another order."""


class RowBuffer:
    """Buffered rows. Bounded, since the caller empties the buffer as soon as `is_full`."""

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
        """Whether the caller must empty the buffer now."""
        enough = self._part_bytes * int(np.count_nonzero(self._counts))
        return bool(self._rows) and self._size_bytes >= min(enough, self._bytes_max)

    def add(self, rows: pa.RecordBatch, destinations: Destinations) -> None:
        """Add rows, at least one, and the destination of each."""
        assert len(destinations) == rows.num_rows > 0
        counts = np.bincount(destinations, minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        self._rows.append(rows)
        self._destinations.append(destinations)
        self._size_bytes += rows.nbytes

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Each destination with its rows, in the order of `add`. Empties the buffer. Every added
        row comes out exactly once."""
        if not self._rows:
            return
        (rows,) = pa.Table.from_batches(self._rows).combine_chunks().to_batches()
        counts, destinations = self._counts, np.concatenate(self._destinations)
        self._clear()
        present = np.flatnonzero(counts)
        if len(present) > 1:
            # A counting sort, and so linear, for numbers of 16 bits.
            smallest = np.min_scalar_type(len(counts))
            order = np.argsort(destinations.astype(smallest), kind="stable")
            rows = rows.take(pa.array(order))
        first = 0
        for destination in present.tolist():
            count = int(counts[destination])
            yield destination, rows.slice(first, count)
            first += count


def parts(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, in parts of at most so many bytes. Only a part with a single row may have
    more."""
    if rows.nbytes <= bytes_max or rows.num_rows <= 1:
        if rows.num_rows:
            yield rows
        return
    half = rows.num_rows // 2
    yield from parts(rows.slice(0, half), bytes_max)
    yield from parts(rows.slice(half), bytes_max)
