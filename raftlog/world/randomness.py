"""Randomness of a node, seeded in simulation and the system's in production."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Randomness(Protocol):
    """Source of unpredictable bytes."""

    def token(self, length: int) -> bytes:
        """`length` unique bytes, for ids and secrets."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high], for jitter."""
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
