"""Simulated byte streams: in order, whole or a first part, with ends that both sides hear of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.simulation.node_transport import ListeningSocket
from tests.simulation.streams import StreamManner, Streams
from tests.simulation.world import Process, World, run

PORT = 9092
SMALL = StreamManner(sent_bytes_max=10, unread_bytes_max=10, piece_bytes_max=4)


class Echo(asyncio.BufferedProtocol):
    """Sends back what comes."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events
        self.buffer = bytearray(64)
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=30, low=0)

    def get_buffer(self, _size_hint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        self.transport.write(bytes(self.buffer[:count]))

    def pause_writing(self) -> None:
        self.events.append("paused")
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.events.append("resumed")
        self.transport.resume_reading()

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append(type(error).__name__ if error else "lost")


def simulate(test: Any, manner: StreamManner = SMALL, seed: int = 0) -> None:
    """Run `test(world, streams, events)` with an echo at node 1."""

    async def main(world: World) -> None:
        streams, events = Streams(world, manner), []  # type: ignore[var-annotated]

        async def serve(process: Process) -> None:
            bound: Any = ListeningSocket(streams, process, PORT)
            await asyncio.get_running_loop().create_server(lambda: Echo(events), sock=bound)
            await asyncio.get_running_loop().create_future()

        world.start(1, serve)
        await asyncio.sleep(0.1)
        await test(world, streams, events)

    run(seed, main)


async def read_all(stream: Any) -> bytes:
    data = b""
    while more := await stream.read(100):
        data += more
    return data


@pytest.mark.parametrize("seed", range(20))
def test_bytes_come_back_whole_and_in_order(seed: int) -> None:
    async def test(_world: World, streams: Streams, events: list[Any]) -> None:
        stream = await streams.connect(-1, "n1.test", PORT)
        sent = bytes(range(256)) * 4
        stream.write(sent)
        data = b""
        while len(data) < len(sent):
            data += await stream.read(100)
        assert data == sent
        stream.half_close()
        assert await read_all(stream) == b""
        await asyncio.sleep(1)
        assert events[-2:] == ["eof", "lost"]

    simulate(test, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_client_that_does_not_read_pauses_the_protocol(seed: int) -> None:
    async def test(_world: World, streams: Streams, events: list[Any]) -> None:
        stream = await streams.connect(-1, "n1.test", PORT)
        stream.write(b"x" * 500)
        await asyncio.sleep(1)
        assert events == ["paused"]
        assert len(stream.to_client.arrived) == 10
        data = b""
        while len(data) < 500:
            data += await stream.read(100)
        await asyncio.sleep(1)
        assert events[-1] == "resumed"

    simulate(test, seed=seed)


@pytest.mark.parametrize("is_reading", [True, False])
def test_a_reset_is_heard_by_a_read_or_a_write(is_reading: bool) -> None:
    async def test(_world: World, streams: Streams, events: list[Any]) -> None:
        stream = await streams.connect(-1, "n1.test", PORT)
        stream.write(b"x" * (1 if is_reading else 500))
        await asyncio.sleep(1)
        stream.reset()
        await asyncio.sleep(1)
        assert events[-1] == "ConnectionResetError"

    simulate(test)


def test_a_client_that_vanishes_is_not_heard_of() -> None:
    async def test(_world: World, streams: Streams, events: list[Any]) -> None:
        stream = await streams.connect(-1, "n1.test", PORT)
        stream.write(b"x")
        stream.vanish()
        await asyncio.sleep(10)
        assert events == []

    simulate(test)


@pytest.mark.parametrize("power", [False, True])
def test_the_end_of_a_node_is_heard_unless_its_machine_is_gone(power: bool) -> None:
    async def test(world: World, streams: Streams, _events: list[Any]) -> None:
        stream = await streams.connect(-1, "n1.test", PORT)
        world.crash(1, power=power)
        if not power:
            assert await read_all(stream) == b""
            with pytest.raises(ConnectionRefusedError):
                await streams.connect(-1, "n1.test", PORT)
            return
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await stream.read(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await streams.connect(-1, "n1.test", PORT)

    simulate(test)


def test_a_paused_node_takes_bytes_until_its_buffer_is_full() -> None:
    async def test(world: World, streams: Streams, _events: list[Any]) -> None:
        stream = await streams.connect(-1, "n1.test", PORT)
        world.pause(1)
        stream.write(b"x" * 100)
        await asyncio.sleep(1)
        assert (len(stream.to_node.arrived), len(stream.to_node.unsent)) == (10, 10)
        world.resume(1)
        data = b""
        while len(data) < 100:
            data += await stream.read(100)

    simulate(test)


def test_a_blocked_link_holds_bytes_back() -> None:
    async def test(_world: World, streams: Streams, _events: list[Any]) -> None:
        stream = await streams.connect(-1, "n1.test", PORT)
        streams.link(-1, 1).block()
        stream.write(b"abc")
        await asyncio.sleep(1)
        assert not stream.to_client.arrived
        streams.heal()
        data = b""
        while len(data) < 3:
            data += await stream.read(3)
        assert data == b"abc"

    simulate(test)


def test_a_real_socket_is_refused() -> None:
    async def test(world: World, _streams: Streams, _events: list[Any]) -> None:
        with pytest.raises(AssertionError, match="create_server"):
            await world.loop.create_server(lambda: Echo([]), sock=object())
        world.loop.failures.clear()

    simulate(test)
