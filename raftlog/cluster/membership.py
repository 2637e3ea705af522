"""Membership changes by the HTTP interface, each repeated until done, and node probes.

A change may have succeeded though its response was lost (the controller may die during the change).
So each of these reads the state, requests the change, and reads again, until done or past the
deadline.

Probes call one node over HTTP, without a client's retries at other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import aiohttp
import msgspec
from raftlog_client import Admin, RaftlogClientError, ServerError

from raftlog.api.cluster import ClusterInfo, NodeInfo, QuorumInfo
from raftlog.api.common import ErrorBody
from raftlog.cluster.errors import ClusterError
from raftlog.record.decoders import json_decoder
from raftlog.record.errors import ILLEGAL_STATE

T = TypeVar("T")

CHANGE_TIMEOUT_S: Final = 30.0
DEAD_TIMEOUT_S: Final = 10.0
"""Longest wait for the end of a lost node's session, 1.5 s by default."""
REQUEST_TIMEOUT_MS: Final = 5_000
RETRY_S: Final = 0.2


@asynccontextmanager
async def admin_of(addresses: Sequence[str]) -> AsyncIterator[Admin]:
    """An admin client that also calls nodes that are not ready."""
    admin = Admin(bootstrap_servers=list(addresses), request_timeout_ms=REQUEST_TIMEOUT_MS)
    await admin.start(needs_ready_node=False)
    try:
        yield admin
    finally:
        await admin.close()


async def voter_ids(admin: Admin) -> set[int]:
    """The voters' ids. Raises RaftlogClientError."""
    return {voter.node_id for voter in (await admin.describe_quorum()).voters}


async def give_vote(admin: Admin, node_id: int) -> None:
    """Give a node a vote, and wait until done. Raises ClusterError."""

    async def is_so() -> bool:
        return node_id in await voter_ids(admin)

    await _carry_through(f"node {node_id} has no vote yet", is_so, lambda: admin.add_voter(node_id))


async def take_vote(admin: Admin, node_id: int) -> None:
    """Remove a node's vote, and wait until done. Raises ClusterError."""

    async def is_so() -> bool:
        return node_id not in await voter_ids(admin)

    await _carry_through(
        f"node {node_id} still has a vote", is_so, lambda: admin.remove_voter(node_id)
    )


async def take_lost_place(
    addresses: Sequence[str],
    node_id: int,
    directory_id: str,
    note_vote: Callable[[], Awaitable[None]],
) -> None:
    """Have the cluster give the place of a lost node to an empty data directory.

    `note_vote` is awaited before the lost node's vote is removed. Harmless to repeat. Raises
    ClusterError, in particular while the node is alive.
    """
    try:
        async with admin_of(addresses) as admin:
            await _take_lost_place(admin, node_id, directory_id, note_vote)
    except RaftlogClientError as error:
        raise ClusterError(f"node {node_id} is not replaced: {error}") from error


async def _take_lost_place(
    admin: Admin, node_id: int, directory_id: str, note_vote: Callable[[], Awaitable[None]]
) -> None:
    async def is_dead() -> bool:
        known = await node(admin, node_id)
        return known is None or known.fenced is not False or known.directory_id == directory_id

    async def is_replaced() -> bool:
        known = await node(admin, node_id)
        return known is None or known.broker_epoch is None or known.directory_id == directory_id

    # This comes before its vote is touched, as a wrong number must change nothing.
    await _carry_through(
        f"node {node_id} is alive, so it cannot be replaced",
        is_dead,
        _wait,
        timeout_s=DEAD_TIMEOUT_S,
    )
    if node_id in await voter_ids(admin):
        known = await node(admin, node_id)
        if known is not None and known.directory_id == directory_id:
            return
        await note_vote()
        await take_vote(admin, node_id)
    await _carry_through(
        f"node {node_id} is not replaced",
        is_replaced,
        lambda: admin.replace_node(node_id, directory_id),
    )


async def _wait() -> None:
    """Wait until a dead node is found dead, after its session timeout."""


async def node(admin: Admin, node_id: int) -> NodeInfo | None:
    """A node as the cluster knows it, or None. Raises RaftlogClientError."""
    nodes = await admin.describe_nodes()
    return next((known for known in nodes if known.node_id == node_id), None)


async def _carry_through(
    what: str,
    is_so: Callable[[], Awaitable[bool]],
    ask: Callable[[], Awaitable[None]],
    *,
    timeout_s: float = CHANGE_TIMEOUT_S,
) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    reason: RaftlogClientError | None = None
    while True:
        try:
            if await is_so():
                return
            await ask()
        except RaftlogClientError as error:
            # A refusal may be temporary (another change is under way, the node has not caught up).
            reason = error
            if not (error.retriable or error.outcome_unknown or _is_refusal(error)):
                raise ClusterError(f"{what}: {error}") from error
        if loop.time() >= deadline_s:
            raise ClusterError(f"{what}: {reason or 'it takes too long'}") from reason
        await asyncio.sleep(RETRY_S)


def _is_refusal(error: RaftlogClientError) -> bool:
    return isinstance(error, ServerError) and error.entry is ILLEGAL_STATE


ANSWER_TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 1024 * 1024
REASON_CHARACTERS_MAX: Final = 200
NO_ANSWER: Final = "does not answer"


class Probes:
    """Calls nodes by address, within one event loop. `close` after use."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            # A restarted node must not be called on its old connection.
            connector=aiohttp.TCPConnector(force_close=True),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def why_not_ready(self, address: str) -> str | None:
        """The reason why the node at this address is not ready, or None if ready."""
        try:
            async with self._session.get(f"http://{address}/ready") as response:
                if response.status == 200:
                    return None
                body = await response.content.read(ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return NO_ANSWER
        try:
            return json_decoder(ErrorBody).decode(body).message[:REASON_CHARACTERS_MAX]
        except (msgspec.DecodeError, UnicodeDecodeError):
            return body[:REASON_CHARACTERS_MAX].decode(errors="replace")

    async def quorum(self, address: str) -> QuorumInfo | None:
        """The quorum as the node sees it, or None without a response."""
        return await self._read(address, "/v1/quorum", QuorumInfo)

    async def controller(self, *addresses: str) -> int | None:
        """The node with the highest term that claims to be the active controller."""
        views = await asyncio.gather(*map(self.quorum, addresses))
        active = [
            (view.term, view.node_id) for view in views if view is not None and view.is_active
        ]
        return max(active)[1] if active else None

    async def version(self, address: str) -> str | None:
        """The version of the software that runs there, or None without a response."""
        found = await self._read(address, "/v1/cluster", ClusterInfo)
        return None if found is None else found.version

    async def _read(self, address: str, path: str, kind: type[T]) -> T | None:
        """Read one node's response. None without a response that is understood."""
        try:
            async with self._session.get(f"http://{address}{path}") as response:
                body = await response.content.read(ANSWER_BYTES_MAX)
            return json_decoder(kind).decode(body)
        except (
            aiohttp.ClientError,
            TimeoutError,
            OSError,
            msgspec.DecodeError,
            UnicodeDecodeError,
        ):
            return None
