"""Waiting for records: until some are committed, the time is up, or the server closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from raftlog.http.context import ServerContext
from raftlog.record.types import Offset
from raftlog.replication.partition import Partition
from raftlog.routing.handle import PartitionHandle


async def wait_for_data(
    context: ServerContext,
    wants: Sequence[tuple[Partition, Offset]],
    *,
    timeout_s: float,
    min_bytes: int = 1,
) -> None:
    """Return when any partition has a committed record at its offset, or nothing will come."""
    if timeout_s <= 0 or context.closing.is_set() or not wants:
        return
    await _until_closing(
        context,
        context.services.replicas.wait_for_data(wants, min_bytes=min_bytes, timeout_s=timeout_s),
    )


async def wait_anywhere(
    context: ServerContext,
    wants: Sequence[tuple[PartitionHandle, Offset]],
    *,
    timeout_s: float,
) -> None:
    """The same for partitions wherever they are led. Raises LogError OVERLOADED."""
    if timeout_s <= 0 or context.closing.is_set() or not wants:
        return
    await _until_closing(context, context.services.partitions.wait_for_data(wants, timeout_s))


async def _until_closing(context: ServerContext, wait: Coroutine[Any, Any, None]) -> None:
    data = asyncio.ensure_future(wait)
    closing = asyncio.ensure_future(context.closing.wait())
    try:
        await asyncio.wait((data, closing), return_when=asyncio.FIRST_COMPLETED)
        if data.done():
            data.result()
    finally:
        # Also when the reader has left, and this very wait is cancelled.
        data.cancel()
        closing.cancel()
