"""Bounded waits for the work of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 20.0
POLL_S = 0.005


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; TimeoutError after 20 s."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(POLL_S)
