"""Bytes in flight: one number that keeps all requests together within memory."""

from __future__ import annotations

from raftlog.record.errors import OVERLOADED, LogError


class BytesInFlight:
    """Counts the bytes that requests hold: bodies received or worked on, large answers being sent.

    It refuses, and never waits: requests that each wait for the others' bytes would wait for ever.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.refused = 0

    def take(self, size: int) -> None:
        """Hold `size` more bytes, or LogError OVERLOADED. Each take is matched by a `give`."""
        if self.used + size > self.bytes_max:
            self.refused += 1
            raise LogError(OVERLOADED)
        self.used += size

    def take_anyway(self, size: int) -> None:
        """Hold bytes that exist already and whose loss would help nobody: a finished answer.

        They make room scarcer for bodies to come.
        """
        self.used += size

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self.used -= size
        assert self.used >= 0, "more bytes in flight given back than taken"
