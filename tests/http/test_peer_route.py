"""`/v1/internal/{channel}` for strangers, other releases and hostile peers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from base64 import b64decode
from collections.abc import Callable

import pytest

from raftlog.http.app import described_routes
from raftlog.http.settings import ServerSettings
from raftlog.peer import nonces
from raftlog.peer.auth import Callee
from raftlog.peer.frames import FrameReader
from raftlog.peer.network import HttpNetwork
from raftlog.peer.opening import (
    PATH,
    challenge_headers,
    request_head,
    response_head,
)
from raftlog.rest.routes import ROUTES
from raftlog.world.network import NetworkError, RejectedError
from tests.peer.node_peers import (
    CHANNEL,
    KEY,
    NONCE,
    SECRET,
    HonestCaller,
    RunningNode,
    connect,
    framed,
    node,
    on_both_loops,
)

from .fakes import FakeNode, start_server
from .http_peers import RawPeer


def test_route_is_not_described() -> None:
    assert not [route for route in described_routes(ROUTES) if route.path.startswith(PATH)]


async def test_strangers_are_answered_401_as_plain_http() -> None:
    spoilt: list[Callable[[bytes], bytes]] = [
        lambda _: b"GET /v1/internal/quorum HTTP/1.1\r\nHost: localhost\r\n\r\n",
        lambda _: b"GET /v1/internal/unknown HTTP/1.1\r\nHost: localhost\r\n\r\n",
        lambda _: b"GET /v1/internal/%20%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        lambda honest: honest.replace(b"internal/quorum", b"internal/other"),
        lambda honest: honest.replace(b"Raftlog-Proof: ", b"Raftlog-Proof: A"),
        lambda honest: honest.replace(b"\r\nRaftlog-Nonce: A", b"\r\nRaftlog-Nonce: B"),
        lambda honest: honest.replace(b"\r\nRaftlog-Nonce", b"\r\nX-Nonce"),
        lambda honest: honest.replace(b"Raftlog-Callee-Nonce", b"X-Nonce"),
        lambda honest: honest.replace(b"Raftlog-Callee-Nonce: ", b"Raftlog-Callee-Nonce: A"),
        lambda _: HonestCaller("other").proven(NONCE).replace(b"/other", b"/quorum"),
        lambda _: (
            b"GET /v1/internal/quorum HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
        ),
    ]
    async with node() as callee:
        for spoil in spoilt:
            async with RawPeer.connected(callee.port) as peer:
                opening = spoil(await HonestCaller().opening(peer))
                for _ in range(2):  # the connection goes on as any other
                    await peer.send(opening)
                    assert (await peer.reply()).error_code == 40101
                assert (await peer.request("GET", "/nowhere")).status == 404
        assert callee.acceptor.hellos == []


async def test_first_line_is_good_for_one_connection_from_one_address_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node(host="0.0.0.0") as callee:
        async with RawPeer.connected(callee.port) as peer:
            recorded = await HonestCaller().opening(peer)
            async with RawPeer.connected(callee.port, "127.0.0.2") as elsewhere:
                await elsewhere.send(recorded)
                assert (await elsewhere.reply()).error_code == 40101
            await peer.send(recorded)
            assert (await peer.reply(has_body=False)).status == 101
        async with RawPeer.connected(callee.port) as again:
            await again.send(recorded)
            assert (await again.reply()).error_code == 40101
            late = await HonestCaller().opening(again)
            monkeypatch.setattr(nonces, "NONCE_S", -1.0)
            await again.send(late)
            assert (await again.reply()).error_code == 40101


async def test_node_without_a_network_knows_nobody() -> None:
    server = await start_server(FakeNode().services, ServerSettings(port=0))
    try:
        with pytest.raises(RejectedError) as rejected:
            await connect(HttpNetwork([SECRET]), f"127.0.0.1:{server.port}")
        assert rejected.value.code == 40101
    finally:
        await server.close()


async def test_other_methods_are_405() -> None:
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        for method in ("POST", "HEAD", "PUT", "DELETE"):
            reply = await peer.request(method, "/v1/internal/quorum")
            assert (reply.status, reply.headers["allow"]) == (405, "GET")


async def test_other_version_is_told_so_and_is_an_unproven_rejection_for_the_caller() -> None:
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        opening = await HonestCaller().opening(peer)
        await peer.send(opening.replace(b"raftlog.node.2", b"raftlog.node.9"))
        reply = await peer.reply()
        assert (reply.error_code, reply.json["message"]) == (
            40001,
            "This node speaks raftlog.node.2 only.",
        )

    async def other_release(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(other_release, "127.0.0.1", 0) as server:
        with pytest.raises(RejectedError, match="does not speak this version") as rejected:
            await connect(HttpNetwork([SECRET]), f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert not rejected.value.is_proven


async def test_proven_request_that_is_no_upgrade_is_400() -> None:
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        for change in (
            (b"Upgrade: websocket", b"Upgrade: x"),
            (b"Version: 13", b"Version: 8"),
            (b"Sec-WebSocket-Key: AAAA", b"Sec-WebSocket-Key: AA"),
        ):
            await peer.send((await HonestCaller().opening(peer)).replace(*change))
            assert (await peer.reply()).error_code == 40001


async def test_caller_may_not_speak_before_the_answer() -> None:
    async with node() as callee, RawPeer.connected(callee.port) as peer:
        opening = await HonestCaller().opening(peer)
        await peer.send(opening + b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
            await HonestCaller().challenge(thief)  # had it the secret's first proof
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
    openings = (request_head("n:1", CHANNEL, KEY, NONCE), HonestCaller().proven(NONCE))
    async with node(linger_s=0.05, header_receive_s=1) as callee:
        for _ in range(30):
            data = bytearray(chance.choice(openings))
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


@pytest.mark.parametrize("step", ["nonce", "challenge", "answer", "welcome"])
@pytest.mark.parametrize("seed", range(2))
async def test_caller_meets_noise_at_every_step(
    step: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A faulty callee: the caller gets an error of the interface, and no connection."""

    def serve(noise: bytes) -> Callable[..., object]:
        async def callee(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                if step == "nonce":
                    writer.write(noise)
                    return
                lines = [f"{name}: {value}\r\n" for name, value in challenge_headers(NONCE).items()]
                writer.write(
                    f"HTTP/1.1 401 x\r\n{''.join(lines)}Content-Length: 0\r\n\r\n".encode()
                )
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:-2])
                decoded = {name: token(text) for name, text in headers.items()}
                auth = Callee(
                    [SECRET], CHANNEL, decoded["Raftlog-Nonce"], NONCE, decoded["Raftlog-Proof"]
                )
                if step == "challenge":
                    writer.write(noise)
                    return
                writer.write(response_head(decoded["Sec-WebSocket-Key"], auth.challenge()))
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

    def token(text: str) -> bytes:
        try:
            return b64decode(text)
        except ValueError:
            return b""

    extra = [
        framed(b"\x04" + bytes(60), None),
        framed(b"\x07" + bytes(60), None),
        response_head(KEY, NONCE),
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ]
    for noise in [*noises(seed), *extra]:
        async with await asyncio.start_server(serve(noise), "127.0.0.1", 0) as server:  # type: ignore[arg-type] # a coroutine function
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises((NetworkError, RejectedError)) as failed:
                await connect(HttpNetwork([SECRET]), address)
            if isinstance(failed.value, RejectedError):
                assert (failed.value.code, failed.value.is_proven) == (40101, False)
    assert not [record for record in caplog.records if record.exc_info]
