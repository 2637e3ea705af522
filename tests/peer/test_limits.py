"""Limits between nodes: HTTP's own leave their connections alone; openings have theirs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from raftlog.http import connections
from raftlog.peer import handshake, nonces
from raftlog.peer.dial import address_group
from raftlog.peer.network import HttpNetwork
from raftlog.peer.nonces import OpeningNonces
from raftlog.world.network import NetworkError
from tests.http.http_peers import RawPeer

from .node_peers import SECRET, HonestCaller, connect, node, on_both_loops


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
        network = HttpNetwork([SECRET])
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
        network = HttpNetwork([SECRET])
        mine = await connect(network, callee.address)
        mine.connection.send(b"x")
        assert await callee.acceptor.receivers[0].has(1) == [b"x"]
        assert (callee.http_connections, callee.handed_over) == (2, 1)
        await network.close()


@on_both_loops
async def test_reserve_for_nodes_serves_nobody_else() -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Two places for each address.
        patch.setattr(connections, "NODES_RESERVED_MAX", 2 * connections.ADDRESS_SHARE)
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
            silent, stranger, user = await peer(), await peer(), await peer()
            # The two places of the address are taken: the oldest of them goes.
            assert (await silent.reply()).error_code == 42901
            assert await silent.is_closed()
            assert (await user.request("GET", "/healthy")).error_code == 42901
            assert await user.is_closed()
            # A node asks for its nonce first. A caller without a proof then has had its time.
            reply = await stranger.request("GET", "/v1/internal/quorum")
            assert (reply.error_code, "connection" in reply.headers) == (40101, False)
            reply = await stranger.request("GET", "/v1/internal/quorum")
            assert (reply.error_code, reply.headers["connection"]) == (40101, "close")
            assert await stranger.is_closed()
            for _ in range(2):
                assert await (await peer()).is_closed(), "who says nothing keeps no place"


@on_both_loops
async def test_recorded_opening_and_silence_keep_no_node_out() -> None:
    """74 connections that repeated one recorded line once kept a node out for 25 s."""
    async with node() as callee, AsyncExitStack() as stack:

        async def peer() -> RawPeer:
            return await stack.enter_async_context(RawPeer.connected(callee.port))

        first = await peer()
        recorded = await HonestCaller().opening(first)
        await first.send(recorded)
        assert (await first.reply(has_body=False)).status == 101
        repeating = [await peer() for _ in range(100)]
        for one in repeating:
            await one.send(recorded)
        for _ in range(100):
            await peer()  # in silence
        async with asyncio.timeout(1):
            (await connect(callee.network, callee.address)).connection.close()
        for one in repeating:
            assert (await one.reply()).error_code == 40101


@on_both_loops
async def test_openings_of_one_address_are_bounded_and_the_oldest_goes() -> None:
    """Even by the secret's holder: one address has a quarter of the places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handshake, "HANDSHAKES_MAX", 8)
        patch.setattr(handshake, "HANDSHAKES_PER_ADDRESS_MAX", 2)
        async with node(host="0.0.0.0") as callee, AsyncExitStack() as stack:

            async def opening(host: str) -> RawPeer:
                peer = await stack.enter_async_context(RawPeer.connected(callee.port, host))
                await peer.send(await HonestCaller().opening(peer))
                assert (await peer.reply(has_body=False)).status == 101
                return peer

            of_one = [await opening("127.0.0.1") for _ in range(3)]
            assert await of_one[0].is_closed()
            assert len(callee.network._openings.callees) == 2
            # Over all addresses, too, the oldest goes.
            for host in range(2, 9):
                await opening(f"127.0.0.{host}")
            assert await of_one[1].is_closed()
            assert len(callee.network._openings.callees) == 8
            async with asyncio.timeout(1):
                (await connect(callee.network, callee.address)).connection.close()


@on_both_loops
async def test_opening_of_a_proven_caller_gives_no_place_away() -> None:
    """A caller with a proven hello is a node: among such ones only, a newer one waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handshake, "HANDSHAKES_MAX", 1)
        patch.setattr(handshake, "HANDSHAKE_S", 0.3)
        async with node() as callee, AsyncExitStack() as stack:
            peer = await stack.enter_async_context(RawPeer.connected(callee.port))
            caller = HonestCaller()
            await peer.send(await caller.challenge(peer))
            await caller.message(peer)
            with pytest.raises(NetworkError, match="takes no connections now"):
                await connect(callee.network, callee.address)
            assert await peer.is_closed(), "its time is bounded"
            (await connect(callee.network, callee.address)).connection.close()


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::/64"),
        ("", ""),
        ("a:b", "a:b"),
    ],
)
def test_address_counts_by_the_network_of_one_client(address: str, group: str) -> None:
    assert address_group(address) == group


def test_used_nonces_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonces, "USED_MAX", 3)
    issuer = OpeningNonces()
    made = [issuer.issue("h", 100.0) for _ in range(5)]
    assert len(set(made)) == 5
    for nonce in made:
        assert issuer.is_fresh(nonce, "h", 101.0)
        issuer.use(nonce, 101.0)
        assert not issuer.is_fresh(nonce, "h", 101.0)
        assert len(issuer._used) <= 3
    issuer.use(issuer.issue("h", 200.0), 200.0)
    assert len(issuer._used) == 1, "old ones are no longer good anyway"


def test_nonce_is_good_for_its_host_its_issuer_and_a_moment() -> None:
    issuer = OpeningNonces()
    nonce = issuer.issue("h", 100.0)
    assert issuer.is_fresh(nonce, "h", 100.0 + nonces.NONCE_S)
    assert not issuer.is_fresh(nonce, "h", 100.1 + nonces.NONCE_S)
    assert not issuer.is_fresh(nonce, "other", 100.0)
    assert not OpeningNonces().is_fresh(nonce, "h", 100.0)
    for index in range(len(nonce)):
        changed = bytearray(nonce)
        changed[index] ^= 1
        assert not issuer.is_fresh(bytes(changed), "h", 100.0)
    for malformed in (b"", nonce[:-1], nonce + b"x"):
        assert not issuer.is_fresh(malformed, "h", 100.0)
