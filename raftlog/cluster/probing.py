"""What nodes say of themselves over HTTP, without a client that would retry elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp
import msgspec

ANSWER_TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 1024 * 1024
REASON_CHARACTERS_MAX: Final = 200
NO_ANSWER: Final = "does not answer"


class QuorumView(msgspec.Struct, frozen=True):
    """The part of GET /v1/quorum that tells who leads."""

    node_id: int
    leader_id: int | None
    term: int
    is_active: bool


class Probes:
    """Asks nodes by address. Use it as a context manager, in one event loop."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            # A node that was killed and started again must not be asked on its old connection.
            connector=aiohttp.TCPConnector(force_close=True),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def why_not_ready(self, address: str) -> str | None:
        """None if the node at this address is ready, else why not."""
        try:
            async with self._session.get(f"http://{address}/ready") as response:
                if response.status == 200:
                    return None
                body = await response.content.read(ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return NO_ANSWER
        try:
            return str(msgspec.json.decode(body)["message"])[:REASON_CHARACTERS_MAX]
        except (msgspec.DecodeError, KeyError, TypeError):
            return body[:REASON_CHARACTERS_MAX].decode(errors="replace")

    async def quorum(self, address: str) -> QuorumView | None:
        """What the node says of the quorum; None if it says nothing."""
        try:
            async with self._session.get(f"http://{address}/v1/quorum") as response:
                body: Any = await response.content.read(ANSWER_BYTES_MAX)
            return msgspec.json.decode(body, type=QuorumView)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
            return None

    async def controller(self, *addresses: str) -> int | None:
        """The node that is the active controller by its own word, in the highest term."""
        views = await asyncio.gather(*map(self.quorum, addresses))
        active = [
            (view.term, view.node_id) for view in views if view is not None and view.is_active
        ]
        return max(active)[1] if active else None
