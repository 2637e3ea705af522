"""How many bytes become committed: what a long poll that wants so many of them waits for."""

from __future__ import annotations

from collections import deque
from typing import Final

from raftlog.record.types import Offset

UNCOMMITTED_MAX: Final = 1024
"""Appends whose commit is still to come that are told apart; what follows counts with the last."""


class CommittedBytes:
    """Of one replica: bytes appended, by the offset that has to be committed for them to count."""

    __slots__ = ("_uncommitted", "total")

    def __init__(self) -> None:
        self.total = 0
        """Committed since the replica was opened; never falls."""
        self._uncommitted: deque[tuple[Offset, int]] = deque()

    def appended(self, end_offset: Offset, size_bytes: int) -> None:
        """The log has grown by so many bytes, and ends at that offset now."""
        uncommitted = self._uncommitted
        if len(uncommitted) >= UNCOMMITTED_MAX:
            size_bytes += uncommitted.pop()[1]
        uncommitted.append((end_offset, size_bytes))

    def committed(self, high_watermark: Offset) -> None:
        """Everything below is committed."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            self.total += uncommitted.popleft()[1]

    def cut(self, end_offset: Offset) -> None:
        """The log ends at that offset now, and what was behind it is gone."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[-1][0] > end_offset:
            uncommitted.pop()
