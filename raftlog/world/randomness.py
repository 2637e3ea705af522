"""Randomness, as a node sees it: seeded in simulation, the system's in production."""

from __future__ import annotations

from typing import Protocol


class Randomness(Protocol):
    """Where unpredictable bytes come from."""

    def token(self, length: int) -> bytes:
        """`length` bytes that nobody else has drawn: for ids and secrets."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high]: for jitter."""
        ...
