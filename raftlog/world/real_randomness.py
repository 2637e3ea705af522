"""The machine's randomness."""

from __future__ import annotations

import random
import secrets


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
