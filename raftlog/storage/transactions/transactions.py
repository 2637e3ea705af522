"""Transactions of one log that readers of committed records must not pass. Pure.

A transaction is *open* from its first batch to its marker. It stays *unstable* until the marker is
committed, which means below the high watermark. The last stable offset is the first offset of the
earliest unstable transaction, else the high watermark.

Within one log, the last stable offset never goes back while the high watermark does not:

- A transaction starts at the log end, at or above the high watermark, and so above the last stable
  offset.
- A marker does not end the instability of its transaction. The high watermark does, and leaves only
  later transactions, which start above.
- A truncation removes only uncommitted batches. These are transactions that start above the high
  watermark, and markers above it, by which their transactions are open again, at the same first
  offset.

Across leaders it never goes back either. Each transaction below an earlier leader's last stable
offset has a committed marker, which the next leader has below its own high watermark before it
reports an end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from raftlog.record.types import Offset, ProducerId


class AbortedEntry(NamedTuple):
    """An aborted transaction, as the aborted index of a segment stores it."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    """Offset of the marker."""
    stable_offset: Offset
    """Offset below which no later ended transaction starts. A lookup up to here needs no later
    entry."""


class UnstableTransactions:
    """Open transactions, and ended transactions without a surely committed marker."""

    __slots__ = ("_ended", "_open")

    def __init__(
        self,
        opened: Iterable[tuple[int, int]] = (),
        ended: Iterable[tuple[int, int]] = (),
    ) -> None:
        """`opened` holds producer id and first offset, `ended` first offset and the marker's."""
        self._open = OrderedDict(sorted(opened, key=itemgetter(1)))
        """First offset by producer id, in the order of the offsets."""
        self._ended = list(ended)
        """Heap of pairs of first offset and marker's offset."""
        heapify(self._ended)

    def __bool__(self) -> bool:
        return bool(self._open or self._ended)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note that a transaction has started."""
        opened = self._open
        is_in_order = not opened or next(reversed(opened.values())) < first_offset
        opened[producer_id] = first_offset
        if not is_in_order:
            # Producers of one append are remembered in the order of their first batches.
            self._open = OrderedDict(sorted(opened.items(), key=itemgetter(1)))

    def end(self, producer_id: int, last_offset: int) -> Offset:
        """Note that a marker at `last_offset` has ended the producer's transaction.

        Returns the offset below which no transaction starts that ends later.
        """
        heappush(self._ended, (self._open.pop(producer_id), last_offset))
        return Offset(next(iter(self._open.values()), last_offset + 1))

    def first_unstable(self, high_watermark: Offset) -> Offset | None:
        """First offset of the earliest unstable transaction, or None.

        `high_watermark` must not be lower than at the last call.
        """
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        first = next(iter(self._open.values()), None)
        if ended and (first is None or ended[0][0] < first):
            first = ended[0][0]
        return None if first is None else Offset(first)

    @property
    def ended(self) -> list[tuple[int, int]]:
        """First offset and marker's offset of the ended transactions, for snapshots."""
        return list(self._ended)

    def has_ended_from(self, offset: Offset) -> bool:
        """Whether a marker of an ended transaction lies at or above `offset`."""
        return any(last_offset >= offset for _, last_offset in self._ended)
