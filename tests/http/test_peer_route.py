"""`/v1/internal/{channel}` for strangers, other releases and hostile peers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable

import pytest

from raftlog.http.app import described_routes
from raftlog.http.settings import ServerSettings
from raftlog.peer.auth import Callee, Caller
from raftlog.peer.frames import FrameReader, frame, pack_length
from raftlog.peer.network import HttpNetwork
from raftlog.peer.opening import PATH, ResponseReader, request_head, response_head
from raftlog.rest.routes import ROUTES
from raftlog.world.network import NetworkError, RejectedError
from tests.peer.node_peers import CHANNEL, SECRET, RunningNode, connect, node, on_both_loops

from .fakes import FakeNode, start_server
from .http_peers import PATIENCE_S, RawPeer

KEY = bytes(16)
NONCE = bytes(32)


def framed(message: bytes, mask: bytes | None = b"\x01\x02\x03\x04") -> bytes:
    return b"".join(frame([pack_length(len(message)), message], len(message) + 4, mask))


class HonestCaller:
    """A caller by hand; a test may spoil any step."""

    def __init__(self, channel: str = CHANNEL) -> None:
        self.auth = Caller(SECRET, channel, b"hello", NONCE)
        self.opening = request_head("n:1", channel, KEY, NONCE, self.auth.opening())
        self.frames = FrameReader(is_masked=False, bytes_max=100_000)

    async def challenge(self, peer: RawPeer) -> bytes:
        """Send the opening; returns HELLO, framed."""
        await peer.send(self.opening)
        async with asyncio.timeout(PATIENCE_S):
            head = await peer.reader.readuntil(b"\r\n\r\n")
        found = ResponseReader(KEY).feed(head)
        assert found is not None
        return framed(self.auth.challenged(found[0].nonce, found[0].proof))

    async def message(self, peer: RawPeer) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            while not (messages := self.frames.feed(await peer.reader.read(1000))):
                pass
        (message,) = messages
        return message


def test_route_is_not_described() -> None:
    assert not [route for route in described_routes(ROUTES) if route.path.startswith(PATH)]


async def test_strangers_are_answered_401_as_plain_http() -> None:
    honest = HonestCaller().opening
    async with node() as callee:
        for opening in (
            b"GET /v1/internal/quorum HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /v1/internal/unknown HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /v1/internal/%20%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            honest.replace(b"internal/quorum", b"internal/other"),
            honest.replace(b"Raftlog-Proof: ", b"Raftlog-Proof: A"),
            honest.replace(b"Raftlog-Nonce: A", b"Raftlog-Nonce: B"),
            honest.replace(b"Raftlog-Nonce", b"X-Nonce"),
            HonestCaller("other").opening.replace(b"internal/other", b"internal/quorum"),
            b"GET /v1/internal/quorum HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Protocol: chat\r\n\r\n",
        ):
            async with RawPeer.connected(callee.port) as peer:
                for _ in range(2):  # the connection goes on as any other
                    await peer.send(opening)
                    assert (await peer.reply()).error_code == 40101
                assert (await peer.request("GET", "/nowhere")).status == 404
        assert callee.acceptor.hellos == []


async def test_node_without_a_network_knows_nobody() -> None:
    server = await start_server(FakeNode().services, ServerSettings(port=0))
    try:
        with pytest.raises(RejectedError) as rejected:
            await connect(HttpNetwork(SECRET), f"127.0.0.1:{server.port}")
        assert rejected.value.code == 40101
    finally:
        await server.close()


async def test_other_methods_are_405() -> None:
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        for method in ("POST", "HEAD", "PUT", "DELETE"):
            reply = await peer.request(method, "/v1/internal/quorum")
            assert (reply.status, reply.headers["allow"]) == (405, "GET")


async def test_other_version_is_told_so_and_is_a_rejection_for_the_caller() -> None:
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        await peer.send(HonestCaller().opening.replace(b"raftlog.node.1", b"raftlog.node.9"))
        reply = await peer.reply()
        assert (reply.error_code, reply.json["message"]) == (
            40001,
            "This node speaks raftlog.node.1 only.",
        )

    async def other_release(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(other_release, "127.0.0.1", 0) as server:
        with pytest.raises(RejectedError, match="another version"):
            await connect(HttpNetwork(SECRET), f"127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_proven_request_that_is_no_upgrade_is_400() -> None:
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        for change in (
            (b"Upgrade: websocket", b"Upgrade: x"),
            (b"Version: 13", b"Version: 8"),
            (b"Sec-WebSocket-Key: AAAA", b"Sec-WebSocket-Key: AA"),
        ):
            await peer.send(HonestCaller().opening.replace(*change))
            assert (await peer.reply()).error_code == 40001


async def test_caller_may_not_speak_before_the_answer() -> None:
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        await peer.send(
            HonestCaller().opening + b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert (await peer.reply()).error_code == 40001
        assert (await peer.reply()).status == 404
        assert not callee.network._openings.callees


@on_both_loops
async def test_handshake_by_hand_opens_a_connection() -> None:
    """Byte by byte: the reference for tests with one spoilt step."""
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        caller = HonestCaller()
        for byte in await caller.challenge(peer):
            await peer.send(bytes((byte,)))
        confirm = framed(caller.auth.answered(await caller.message(peer)))
        for byte in confirm + framed(b"first") + framed(b"second"):
            await peer.send(bytes((byte,)))
        caller.auth.welcomed(await caller.message(peer))
        assert await callee.acceptor.receivers[0].has(2) == [b"first", b"second"]


@on_both_loops
async def test_recorded_handshake_does_not_get_past_the_challenge() -> None:
    async with node() as callee:
        async with RawPeer.connected(callee.port) as peer:
            caller = HonestCaller()
            hello = await caller.challenge(peer)
            await peer.send(hello)
            confirm = framed(caller.auth.answered(await caller.message(peer)))
            await peer.send(confirm)
            await caller.message(peer)
        async with RawPeer.connected(callee.port) as thief:
            await HonestCaller().challenge(thief)
            await thief.send(hello + confirm)
            assert await thief.is_closed()
        assert len(callee.acceptor.hellos) == len(callee.acceptor.receivers) == 1


def noises(seed: int) -> list[bytes]:
    chance = random.Random(seed)
    return [
        chance.randbytes(chance.choice([1, 7, 60, 3_000])),
        b"\x82" + chance.randbytes(50),
        b"\x82\xff" + chance.randbytes(30),
        framed(chance.randbytes(100)),
        framed(bytes((chance.randrange(8),)) + chance.randbytes(chance.randrange(80))),
        framed(chance.randbytes(66_000)),
        b"\x88\x80\x00\x00\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_noise_at_every_step_ends_the_connection_without_a_word(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broken: list[AssertionError] = []
    async with node(on_broken_invariant=broken.append) as callee:
        for noise, step in itertools.product(noises(seed), ("hello", "confirm", "open")):
            async with RawPeer.connected(callee.port) as peer:
                caller = HonestCaller()
                hello = await caller.challenge(peer)
                if step != "hello":
                    await peer.send(hello)
                    confirm = framed(caller.auth.answered(await caller.message(peer)))
                    if step == "open":
                        await peer.send(confirm)
                        caller.auth.welcomed(await caller.message(peer))
                peer.writer.write(noise)
                peer.writer.write_eof()
                assert b"HTTP" not in await peer.rest()
        assert (await other_answer(callee)) == 404
    assert broken == []
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("seed", range(10))
async def test_noise_instead_of_the_request_is_never_500(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    opening = HonestCaller().opening
    async with node(linger_s=0.05, header_receive_s=1) as callee:
        for _ in range(30):
            data = bytearray(opening)
            for _ in range(chance.randrange(1, 20)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            async with RawPeer.connected(callee.port) as peer:
                peer.writer.write(bytes(data))
                peer.writer.write_eof()
                answer = await peer.rest()
                assert not answer.startswith(b"HTTP/1.1 5"), bytes(data)
        assert (await other_answer(callee)) == 404
    assert not [record for record in caplog.records if record.exc_info]


async def other_answer(callee: RunningNode) -> int:
    async with RawPeer.connected(callee.port) as peer:
        return (await peer.request("GET", "/nowhere")).status


@pytest.mark.parametrize("step", ["challenge", "answer", "welcome"])
@pytest.mark.parametrize("seed", range(2))
async def test_caller_meets_noise_at_every_step(
    step: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A faulty callee: the caller gets an error of the interface, and no connection."""

    def serve(noise: bytes) -> Callable[..., object]:
        async def callee(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:-2])
                decoded = {name: token(text) for name, text in headers.items()}
                auth = Callee(SECRET, CHANNEL, decoded["Raftlog-Nonce"], decoded["Raftlog-Proof"])
                if step == "challenge":
                    writer.write(noise)
                    return
                key = decoded["Sec-WebSocket-Key"]
                writer.write(response_head(key, NONCE, auth.challenge(NONCE)))
                frames = FrameReader(is_masked=True, bytes_max=100_000)
                (hello,) = frames.feed(await reader.read(10_000))
                auth.take_hello(hello)
                if step == "welcome":
                    writer.write(framed(auth.answer(b"h"), None))
                    (confirm,) = frames.feed(await reader.read(10_000))
                    auth.confirmed(confirm)
                writer.write(noise)
            finally:
                writer.close()

        return callee

    from base64 import b64decode

    def token(text: str) -> bytes:
        try:
            return b64decode(text)
        except ValueError:
            return b""

    extra = [
        framed(b"\x04" + bytes(60), None),
        framed(b"\x07" + bytes(60), None),
        response_head(KEY, NONCE, NONCE),
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ]
    for noise in [*noises(seed), *extra]:
        async with await asyncio.start_server(serve(noise), "127.0.0.1", 0) as server:  # type: ignore[arg-type] # a coroutine function
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises((NetworkError, RejectedError)) as failed:
                await connect(HttpNetwork(SECRET), address)
            if isinstance(failed.value, RejectedError):
                assert failed.value.code == 40101
    assert not [record for record in caplog.records if record.exc_info]
