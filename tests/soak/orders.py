"""The process side of a client process: its order from stdin, and work until stdin ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

Order = TypeVar("Order")

LINE_BYTES_MAX: Final = 1 << 16
"""Of an order, unless it lists more."""


async def order_from_stdin(
    kind: type[Order], line_bytes_max: int = LINE_BYTES_MAX
) -> tuple[Order, asyncio.StreamReader]:
    """The order, one JSON line, and the rest of stdin."""
    reader = asyncio.StreamReader(limit=line_bytes_max)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return msgspec.json.decode(await reader.readline(), type=kind), reader


async def until_end(work: Coroutine[Any, Any, None], reader: asyncio.StreamReader) -> None:
    """Run until stdin ends. Raises what the work raises."""
    working, ended = asyncio.ensure_future(work), asyncio.ensure_future(reader.read())
    await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
