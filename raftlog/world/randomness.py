"""Randomness, as a node sees it: seeded in simulation, the system's in production.

The machine's randomness.
"""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Randomness(Protocol):
    """Where unpredictable bytes come from."""

    def token(self, length: int) -> bytes:
        """`length` bytes that nobody else has drawn: for ids and secrets."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high]: for jitter."""
        ...


class SystemRandomness:
    """`Randomness` by the operating system."""

    def __init__(self) -> None:
        self._jitter = random.SystemRandom()

    def token(self, length: int) -> bytes:
        """`length` bytes fit for ids and secrets."""
        return secrets.token_bytes(length)

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high]."""
        return self._jitter.uniform(low, high)
