"""Long polls: wait at several partitions until one has committed records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raftlog.record.types import Offset
from raftlog.replication.partition import Partition


async def wait_for_data(
    wants: Sequence[tuple[Partition, Offset]], *, min_bytes: int, timeout_s: float
) -> None:
    """Return when any partition has a committed record at its offset, or the time is up.

    With `min_bytes` > 1, wait until about that many bytes have been committed meanwhile, whenever
    they were written; what was committed before the call counts as enough. Also returns when a
    partition has nothing to tell any more: whoever reads it then, finds out why.
    """
    if any(one.is_closed or one.high_watermark > offset for one, offset in wants):
        return
    deadline = asyncio.get_running_loop().time() + timeout_s
    before = [partition.committed_bytes for partition, _ in wants]
    while await _any_moves(wants, deadline):
        committed = sum(
            partition.committed_bytes - count
            for (partition, _), count in zip(wants, before, strict=True)
        )
        has_moved = any(partition.high_watermark > offset for partition, offset in wants)
        if min_bytes <= 1 or committed >= min_bytes or not has_moved:
            return
        wants = [(p, max(offset, p.high_watermark)) for p, offset in wants]


async def _any_moves(wants: Sequence[tuple[Partition, Offset]], deadline: float) -> bool:
    """Wait until a high watermark passes its offset; False when the deadline came first."""
    loop = asyncio.get_running_loop()
    moved: asyncio.Future[bool] = loop.create_future()

    def settle(outcome: bool) -> None:
        if not moved.done():
            moved.set_result(outcome)

    timer = loop.call_at(deadline, settle, False)
    handles: list[tuple[Partition, int]] = []
    try:
        for partition, offset in wants:
            handles.append((partition, partition.add_read_waiter(offset, lambda: settle(True))))
        return await moved
    finally:
        timer.cancel()
        for partition, handle in handles:
            partition.remove_read_waiter(handle)
