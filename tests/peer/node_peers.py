"""Nodes connected over real loopback sockets, as a test sees them."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from raftlog.http.app import Server
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.peer.auth import Caller
from raftlog.peer.frames import FrameReader, frame, pack_length
from raftlog.peer.network import HttpNetwork
from raftlog.peer.opening import ResponseReader, request_head
from raftlog.world.network import Connection, Receiver
from tests.http.fakes import FakeNode, start_server
from tests.http.http_peers import PATIENCE_S, RawPeer
from tests.waiting import until

SECRET = b"the secret of a cluster in tests"
CHANNEL = "quorum"
KEY = bytes(16)
NONCE = bytes(32)


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on asyncio's own loop and on uvloop's: their transports differ."""

    def run_test(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        run(test())

    # Not functools.wraps: pytest would look for the wrapped function's parameters.
    run_test.__name__, run_test.__doc__ = test.__name__, test.__doc__
    mark: Callable[[Callable[..., None]], Callable[..., None]] = pytest.mark.parametrize(
        "run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"]
    )
    return mark(run_test)


@dataclass
class Recorder:
    """A receiver with a record of all calls."""

    connection: Connection
    messages: list[bytes] = field(default_factory=list)
    closed_count: int = 0

    def received(self, message: bytes) -> None:
        assert type(message) is bytes
        assert not self.closed_count
        self.messages.append(message)

    def closed(self) -> None:
        self.closed_count += 1

    async def has(self, count: int) -> list[bytes]:
        await until(lambda: len(self.messages) >= count)
        return self.messages

    async def ends(self) -> None:
        await until(lambda: self.closed_count)
        assert self.closed_count == 1


@dataclass
class FakeAcceptor:
    """Takes every caller, unless a test says otherwise."""

    own_hello: bytes = b"hello of the callee"
    opened_by: Callable[[Connection], Receiver] = Recorder
    receivers: list[Any] = field(default_factory=list)
    hellos: list[bytes] = field(default_factory=list)
    refusal: Exception | None = None

    def hello(self, hello: bytes) -> bytes:
        self.hellos.append(hello)
        if self.refusal is not None:
            raise self.refusal
        return self.own_hello

    def opened(self, connection: Connection) -> Receiver:
        receiver = self.opened_by(connection)
        self.receivers.append(receiver)
        return receiver


@dataclass
class RunningNode:
    """A node's server, its network, and the acceptor of its connections."""

    server: Server
    network: HttpNetwork
    acceptor: FakeAcceptor

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def http_connections(self) -> int:
        """Connections under HTTP's limits."""
        return len(self.server._main.connections._open)

    @property
    def handed_over(self) -> int:
        return len(self.server._main.connections._handed_over)


@asynccontextmanager
async def node(
    secret: bytes = SECRET,
    acceptor: FakeAcceptor | None = None,
    *,
    host: str = "127.0.0.1",
    on_broken_invariant: Callable[[AssertionError], None] | None = None,
    **limits: Any,
) -> AsyncIterator[RunningNode]:
    """A node on a free port, checked for leftovers at the end."""
    network = HttpNetwork([secret], on_broken_invariant=on_broken_invariant)
    accepting = acceptor or FakeAcceptor()
    network.accept(CHANNEL, accepting)
    settings = ServerSettings(host=host, port=0, limits=ServerLimits(**{"shutdown_s": 1, **limits}))
    server = await start_server(FakeNode().services, settings, network=network)
    running = RunningNode(server, network, accepting)
    try:
        yield running
    finally:
        await server.close()
    assert (running.http_connections, running.handed_over) == (0, 0)
    assert not network._openings.callees
    assert not network._openings.callers


async def connect(network: HttpNetwork, address: str, hello: bytes = b"hello") -> Recorder:
    """Open a connection; returns the caller's end."""
    opened: list[Recorder] = []

    def open_it(connection: Connection) -> Recorder:
        opened.append(Recorder(connection))
        return opened[0]

    await network.connect(address, CHANNEL, hello, open_it, timeout_s=PATIENCE_S)
    return opened[0]


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Recorder, Recorder, RunningNode]]:
    """Two connected ends: the caller's, the callee's; and the callee's node."""
    async with node(**options) as callee:
        caller = HttpNetwork([SECRET])
        mine = await connect(caller, callee.address)
        try:
            yield mine, callee.acceptor.receivers[0], callee
        finally:
            await caller.close()
            await mine.ends()


def framed(message: bytes, mask: bytes | None = b"\x01\x02\x03\x04") -> bytes:
    return b"".join(frame([pack_length(len(message)), message], len(message) + 4, mask))


class HonestCaller:
    """A caller by hand; a test may spoil any step."""

    def __init__(self, channel: str = CHANNEL) -> None:
        self.channel = channel
        self.frames = FrameReader(is_masked=False, bytes_max=100_000)

    async def opening(self, peer: RawPeer) -> bytes:
        """Ask for a nonce; returns the request that proves it."""
        await peer.send(request_head("n:1", self.channel, KEY, NONCE))
        reply = await peer.reply()
        assert reply.error_code == 40101
        assert reply.headers["www-authenticate"] == "Raftlog-Node"
        return self.proven(b64decode(reply.headers["raftlog-nonce"]))

    def proven(self, callee_nonce: bytes) -> bytes:
        """The request that proves a nonce."""
        self.auth = Caller(SECRET, self.channel, b"hello", NONCE, callee_nonce)
        return request_head(
            "n:1", self.channel, KEY, NONCE, callee_nonce=callee_nonce, proof=self.auth.opening()
        )

    async def challenge(self, peer: RawPeer) -> bytes:
        """Send the opening; returns HELLO, framed."""
        await peer.send(await self.opening(peer))
        async with asyncio.timeout(PATIENCE_S):
            head = await peer.reader.readuntil(b"\r\n\r\n")
        found = ResponseReader(KEY).feed(head)
        assert found is not None
        return framed(self.auth.challenged(found[0].proof))

    async def message(self, peer: RawPeer) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            while not (messages := self.frames.feed(await peer.reader.read(1000))):
                pass
        (message,) = messages
        return message
