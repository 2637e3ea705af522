"""Fetch answers without a copy: any bytes, in any pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_client.errors import ConnectionLostError, ServerError
from raftlog_client.fetch.protocol import (
    HEAD_BYTES_MAX,
    FetchConnectionPool,
    FetchResponse,
    MalformedResponseError,
)
from raftlog_client.transport import NodeAddress

from raftlog.record.frames import FetchFrame, encode_fetch_frame
from raftlog.record.types import AbortedTransaction, Offset, PartitionId, ProducerId

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n"


class Sink:
    """Keeps all frames, each in a buffer of its own."""

    def __init__(self) -> None:
        self.frames: list[FetchFrame] = []
        self.begun = 0

    def begin(self, frame: FetchFrame, size_bytes: int) -> memoryview:
        self.begun += 1
        return memoryview(bytearray(size_bytes))

    def end(self, frame: FetchFrame, data: memoryview) -> None:
        self.frames.append(frame._replace(data=bytes(data)))


def frame(data: bytes, error_code: int = 0) -> FetchFrame:
    offsets = (Offset(9), Offset(1), Offset(5))
    return FetchFrame("topic", PartitionId(3), error_code, *offsets, data)


def stable_frame(data: bytes, aborted_count: int) -> FetchFrame:
    aborted = [AbortedTransaction(ProducerId(n), Offset(n)) for n in range(aborted_count)]
    return frame(data)._replace(last_stable_offset=Offset(4), aborted=aborted)


def body_of(frames: Sequence[FetchFrame]) -> bytes:
    return b"".join(b"".join(map(bytes, encode_fetch_frame(one))) for one in frames)


def whole(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, sizes: Sequence[int] = ()) -> bytes:
    parts = [HEAD, b"Transfer-Encoding: chunked\r\n\r\n"]
    for size in (*sizes, len(body)):
        part, body = body[:size], body[size:]
        if part:
            parts.append(b"%x;name=value\r\n%b\r\n" % (len(part), part))
    return b"".join((*parts, b"0\r\n", b"Trailer: x\r\n", b"\r\n"))


def receive(response: FetchResponse, data: bytes, sizes: Sequence[int]) -> None:
    """As a connection does: straight to the destination, if known."""
    turn = 0
    while data:
        size = sizes[turn % len(sizes)] if sizes else len(data)
        turn += 1
        room = response.room()
        if room is None:
            part, data = data[:size], data[size:]
            response.feed(memoryview(part))
        else:
            size = min(size, len(room), len(data))
            room[:size], data = data[:size], data[size:]
            response.filled(size)


@given(
    st.lists(
        st.builds(frame, st.binary(max_size=200))
        | st.builds(stable_frame, st.binary(max_size=200), st.integers(0, 4)),
        max_size=4,
    ),
    st.lists(st.integers(1, 100), max_size=5),
    st.lists(st.integers(1, 150), max_size=5),
    st.booleans(),
)
def test_frames_come_whole_however_they_are_cut(
    frames: list[FetchFrame], chunks: list[int], pieces: list[int], is_chunked: bool
) -> None:
    body = body_of(frames)
    sink = Sink()
    response = FetchResponse(sink)
    data = chunked(body, chunks) if is_chunked else whole(body)
    receive(response, data, pieces)
    assert response.is_done
    assert response.status == 200
    assert sink.frames == frames


def test_data_is_put_where_the_sink_wants_it() -> None:
    sink = Sink()
    response = FetchResponse(sink)
    data = whole(body_of([frame(b"x" * 1000)]))
    head = len(data) - 1000
    response.feed(memoryview(data)[:head])
    room = response.room()
    assert room is not None
    assert len(room) == 1000


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/2 200\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        HEAD + b"\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n",
        b"x" * (HEAD_BYTES_MAX + 1),
        whole(body_of([frame(b"abc")])[:-1]),
        whole(body_of([frame(b"abc")])[:7]),
        whole(b"\x00" * 50),
        whole(b"\xff" * 50),
        whole(body_of([frame(b"")]).replace(b"topic", b"\xff\xfe\xfd\xfc\xfb")),
        whole(body_of([frame(b"")])[:-9] + b"\xff\xff\xff\xfftopic"),
        whole(body_of([frame(b"abc")])) + b"more",
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        receive(FetchResponse(Sink()), data, [])


@asynccontextmanager
async def node(
    *answers: bytes, closes: bool = False
) -> AsyncIterator[tuple[NodeAddress, list[int]]]:
    """A node with these answers, in turn; and the ports of its callers."""
    ports: list[int] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                await reader.readexactly(length)
                ports.append(writer.get_extra_info("peername")[1])
                writer.write(left.pop(0))
                await writer.drain()
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield NodeAddress(f"127.0.0.1:{port}"), ports


@pytest.fixture
def fetcher() -> FetchConnectionPool:
    return FetchConnectionPool("test")


async def test_a_connection_is_used_again(fetcher: FetchConnectionPool) -> None:
    one, two = [frame(b"a" * 100_000)], [frame(b"b"), frame(b"no", error_code=50301)]
    async with node(chunked(body_of(one), [1000] * 20), whole(body_of(two))) as (address, ports):
        for wanted in (one, two):
            sink = Sink()
            await fetcher.fetch(address, b"{}", sink, 5.0)
            assert sink.frames == wanted
        assert len(set(ports)) == 1
        fetcher.close()


async def test_a_connection_that_the_node_has_closed_is_not(fetcher: FetchConnectionPool) -> None:
    answer = whole(body_of([frame(b"a")]))
    async with node(answer, answer, closes=True) as (address, ports):
        await fetcher.fetch(address, b"{}", Sink(), 5.0)
        await asyncio.sleep(0.05)
        await fetcher.fetch(address, b"{}", Sink(), 5.0)
        assert len(set(ports)) == 2
        fetcher.close()


async def test_a_refusal_is_the_nodes_own(fetcher: FetchConnectionPool) -> None:
    text = b'{"error_code":50304,"message":"not yet"}'
    refusal = b"HTTP/1.1 503 x\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
    answer = whole(body_of([frame(b"a")]))
    async with node(refusal, answer) as (address, ports):
        with pytest.raises(ServerError, match="not yet") as caught:
            await fetcher.fetch(address, b"{}", Sink(), 5.0)
        assert caught.value.code == 50304
        await fetcher.fetch(address, b"{}", Sink(), 5.0)
        assert len(set(ports)) == 1
        fetcher.close()


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200", whole(body_of([frame(b"abc")]))[:-1]])
async def test_an_answer_that_breaks_off_is_a_lost_connection(
    fetcher: FetchConnectionPool, data: bytes
) -> None:
    async with node(data, closes=True) as (address, _):
        with pytest.raises(ConnectionLostError, match="broke"):
            await fetcher.fetch(address, b"{}", Sink(), 5.0)


async def test_a_malformed_answer_is_a_lost_connection(fetcher: FetchConnectionPool) -> None:
    async with node(b"nonsense\r\n\r\n") as (address, _):
        with pytest.raises(ConnectionLostError, match="malformed"):
            await fetcher.fetch(address, b"{}", Sink(), 5.0)


async def test_silence_ends_with_the_time_and_the_connection_is_not_used_again(
    fetcher: FetchConnectionPool,
) -> None:
    answer = whole(body_of([frame(b"a")]))
    async with node(b"HTTP/1.1", answer) as (address, ports):
        with pytest.raises(ConnectionLostError, match="did not answer"):
            await fetcher.fetch(address, b"{}", Sink(), 0.1)
        await fetcher.fetch(address, b"{}", Sink(), 5.0)
        assert len(set(ports)) == 2
        fetcher.close()


async def test_nobody_there(fetcher: FetchConnectionPool) -> None:
    with pytest.raises(ConnectionLostError, match="Cannot connect"):
        await fetcher.fetch(NodeAddress("127.0.0.1:1"), b"{}", Sink(), 5.0)
