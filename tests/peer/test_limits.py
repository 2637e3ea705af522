"""Limits between nodes: HTTP's own leave their connections alone; openings have theirs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from raftlog.http import connections
from raftlog.peer import handshake, network
from raftlog.peer.auth import Caller
from raftlog.peer.network import HttpNetwork
from raftlog.peer.opening import request_head
from raftlog.world.network import NetworkError
from tests.http.http_peers import RawPeer

from .node_peers import CHANNEL, SECRET, connect, node, on_both_loops


@on_both_loops
async def test_limits_of_http_leave_open_connections_alone() -> None:
    limits: dict[str, Any] = {
        "keep_alive_s": 0.05,
        "header_receive_s": 0.05,
        "write_stall_s": 0.05,
        "connections_max": 2,
        "connections_per_address_max": 1,
    }
    async with node(**limits) as callee:
        network = HttpNetwork(SECRET)
        ends = [await connect(network, callee.address) for _ in range(5)]
        assert (callee.http_connections, callee.handed_over) == (0, 5)
        async with RawPeer.connected(callee.port) as peer:
            assert (await peer.request("GET", "/nowhere")).status == 404
            assert await peer.is_closed()  # idle: so the sweep has been by
        await asyncio.sleep(0.2)
        for end, other in zip(ends, callee.acceptor.receivers, strict=True):
            end.connection.send(b"x")
            assert await other.has(1) == [b"x"]
            assert not end.closed_count
        await network.close()


@on_both_loops
async def test_connections_of_users_cannot_starve_nodes() -> None:
    async with node(connections_per_address_max=2) as callee, AsyncExitStack() as stack:
        for _ in range(2):
            peer = await stack.enter_async_context(RawPeer.connected(callee.port))
            assert (await peer.request("GET", "/nowhere")).status == 404
        network = HttpNetwork(SECRET)
        mine = await connect(network, callee.address)
        mine.connection.send(b"x")
        assert await callee.acceptor.receivers[0].has(1) == [b"x"]
        assert (callee.http_connections, callee.handed_over) == (2, 1)
        await network.close()


@on_both_loops
async def test_reserve_for_nodes_serves_nobody_else() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "NODES_RESERVED_MAX", 2)
        limits: dict[str, Any] = {
            "connections_per_address_max": 1,
            "header_receive_s": 0.2,
            "linger_s": 0.1,
        }
        async with node(**limits) as callee, AsyncExitStack() as stack:

            async def peer() -> RawPeer:
                return await stack.enter_async_context(RawPeer.connected(callee.port))

            first = await peer()
            assert (await first.request("GET", "/nowhere")).status == 404
            user, stranger, silent = await peer(), await peer(), await peer()
            # Those two take the reserve: this one is refused at once.
            assert (await silent.reply()).error_code == 42901
            assert (await user.request("GET", "/healthy")).error_code == 42901
            assert await user.is_closed()
            reply = await stranger.request("GET", "/v1/internal/quorum")
            assert (reply.error_code, reply.headers["connection"]) == (40101, "close")
            assert await stranger.is_closed()
            for _ in range(2):
                assert await (await peer()).is_closed(), "who says nothing keeps no place"


@on_both_loops
async def test_openings_in_progress_are_bounded_in_number_and_time() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "HANDSHAKES_MAX", 3)
        patch.setattr(handshake, "HANDSHAKE_S", 0.3)
        async with node() as callee, AsyncExitStack() as stack:
            # Proven openings, as of an attacker with recorded ones.
            caller = Caller(SECRET, CHANNEL, b"h", bytes(32))
            head = request_head(callee.address, CHANNEL, bytes(16), caller.nonce, caller.opening())
            peers = [
                await stack.enter_async_context(RawPeer.connected(callee.port)) for _ in range(4)
            ]
            for peer in peers[:3]:
                await peer.send(head)
                assert (await peer.reply()).status == 101
            await peers[3].send(head)
            assert (await peers[3].reply()).error_code == 50305
            with pytest.raises(NetworkError, match="takes no connections now"):
                await connect(callee.network, callee.address)
            for peer in peers[:3]:
                assert await peer.is_closed()
            (await connect(callee.network, callee.address)).connection.close()
