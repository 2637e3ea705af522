from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.fetch import PartitionHandle
from raftlog.record.errors import BAD_REQUEST, STORAGE_FAILED, LogError
from raftlog.record.types import Offset, PartitionId
from raftlog.rest.v1.tail import TAIL_PARTITIONS_MAX, EventWriter, TailPosition, parse_event_id
from tests.broker.data_fakes import waiting_readers
from tests.http.http_peers import RawPeer
from tests.rest.data_fakes import DataPeer, data_node, few
from tests.waiting import DEADLINE_S, until

SSE = "text/event-stream"
TAIL = "/v1/topics/six/tail"


class Tail:
    """Reads an endless answer piece by piece."""

    def __init__(self, peer: RawPeer) -> None:
        self.peer = peer
        self.buffer = b""
        self.ended = False

    async def _more(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            size = int(await self.peer.reader.readuntil(b"\r\n"), 16)
            self.buffer += (await self.peer.reader.readexactly(size + 2))[:-2]
            self.ended = size == 0

    async def piece(self, end: bytes) -> str:
        """Up to the next `end`; empty once the answer has ended."""
        while end not in self.buffer and not self.ended:
            await self._more()
        piece, _, self.buffer = self.buffer.partition(end)
        return piece.decode()

    async def line(self) -> Any:
        """The next line that is not empty; None at the end."""
        while not (text := await self.piece(b"\n")) and not self.ended:
            pass
        return json.loads(text) if text else None

    async def event(self) -> dict[str, str]:
        """The next event; empty at the end. Comments are passed over."""
        while text := await self.piece(b"\n\n"):
            if not text.startswith(":"):
                return dict(row.split(": ", 1) for row in text.split("\n"))
        return {}


@asynccontextmanager
async def tailing(one: DataPeer, path: str, *headers: str) -> AsyncIterator[Tail]:
    async with RawPeer.connected(one.server.port) as peer:
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", *headers]
        await peer.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        head = await peer.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        yield Tail(peer)


async def write(one: DataPeer, partition: int, *values: Any) -> None:
    body = json.dumps({"records": [{"value": value} for value in values]}).encode()
    reply = await one.peer.request("POST", f"/topics/six/partitions/{partition}", body)
    assert reply.status == 200


async def test_lines_of_json_come_as_records_are_written() -> None:
    async with data_node() as one:
        await write(one, 0, "old")
        async with tailing(one, TAIL) as tail:
            await write(one, 3, {"x": 1}, {"x": 2})
            first, second = await tail.line(), await tail.line()
            assert first["value"] == {"x": 1}
            assert (second["partition"], second["offset"]) == (3, 1)
            await write(one, 5, 7)
            assert (await tail.line())["value"] == 7


async def test_a_tail_begins_with_the_last_records_of_each_partition() -> None:
    async with data_node() as one:
        await write(one, 1, "a", "b", "c")
        await write(one, 2, "d")
        async with tailing(one, f"{TAIL}?partition=1,2&offset=-2") as tail:
            found = [await tail.line() for _ in range(3)]
            assert sorted(record["value"] for record in found) == ["b", "c", "d"]
            await write(one, 1, "e")
            assert (await tail.line())["value"] == "e"


async def test_events_carry_where_to_go_on() -> None:
    async with data_node() as one:
        await write(one, 1, "a", "b")
        async with tailing(one, f"{TAIL}?partition=1,2&offset=earliest", f"Accept: {SSE}") as tail:
            events = [await tail.event(), await tail.event()]
            topic_id = one.node.metadata.image.topic("six").topic_id
            ids = [f"1:1,2:0@{topic_id}", f"1:2,2:0@{topic_id}"]
            assert [event["id"] for event in events] == ids
            assert [json.loads(event["data"])["value"] for event in events] == ["a", "b"]
            await write(one, 2, "c")
            assert (await tail.event())["id"] == f"1:2,2:1@{topic_id}"


@pytest.mark.parametrize("way", ["header", "query"])
async def test_resumed_tail_repeats_and_misses_nothing(way: str) -> None:
    async with data_node() as one:
        for number in range(3):
            await write(one, number, *[f"{number}-{n}" for n in range(5)])
        seen: list[str] = []
        last = ""
        for _ in range(5):
            path, headers = f"{TAIL}?partition=0,1,2&offset=earliest", [f"Accept: {SSE}"]
            if last and way == "header":
                headers.append(f"Last-Event-ID: {last}")
            elif last:
                path += f"&last_event_id={last}"
            async with tailing(one, path, *headers) as tail:
                for _ in range(3):
                    event = await tail.event()
                    seen.append(json.loads(event["data"])["value"])
                    last = event["id"]
        assert sorted(seen) == [f"{p}-{n}" for p in range(3) for n in range(5)]


async def test_a_tail_of_a_topic_made_again_does_not_go_on_in_it() -> None:
    async with data_node() as one:
        await write(one, 0, "a", "b")
        async with tailing(one, f"{TAIL}?offset=earliest", f"Accept: {SSE}") as tail:
            offsets, _, topic_id = (await tail.event())["id"].partition("@")
        path = f"{TAIL}?last_event_id={offsets}"
        reply = await one.peer.request("GET", f"{path}@{'f' * 32}")
        assert reply.error_code == 40404
        async with tailing(one, f"{path}@{topic_id}") as tail:
            assert (await tail.line())["value"] == "b"


async def test_partition_that_the_id_does_not_know_is_read_from_its_start() -> None:
    async with data_node() as one:
        await write(one, 0, "a", "b")
        await write(one, 4, "new")
        headers = [f"Accept: {SSE}", "Last-Event-ID: 0:1,1:0,2:0,3:0,5:0"]
        async with tailing(one, TAIL, *headers) as tail:
            found = {json.loads((await tail.event())["data"])["value"] for _ in range(2)}
            assert found == {"b", "new"}


async def test_formats() -> None:
    async with data_node() as one:
        await write(one, 0, "a")
        for name, value in [("json", "a"), ("text", '"a"'), ("binary", "ImEi")]:
            path = f"{TAIL}?partition=0&offset=0&format={name}"
            async with tailing(one, path) as tail:
                assert (await tail.line())["value"] == value


async def test_record_that_is_not_json_is_told_of_and_passed_over() -> None:
    async with data_node() as one:
        body = b'{"records":[{"value":"gA=="},{"value":"MQ=="}]}'
        media = "application/vnd.kafka.binary.v2+json"
        await one.peer.request("POST", "/topics/six/partitions/0", body, Content_Type=media)
        path = f"{TAIL}?partition=0&offset=earliest"
        async with tailing(one, path) as tail:
            refusal = await tail.line()
            assert (refusal["error_code"], refusal["offset"]) == (40601, 0)
            assert (await tail.line())["value"] == 1
        async with tailing(one, path, f"Accept: {SSE}") as tail:
            event = await tail.event()
            assert event["event"] == "error"
            assert event["id"].startswith("0:1@")
            assert json.loads((await tail.event())["data"])["value"] == 1


async def test_value_with_line_ends_between_its_parts_stays_on_one_line() -> None:
    async with data_node() as one:
        body = b'{"records":[{"value":{"a":\r\n\n[1,\n2]}}]}'
        await one.peer.request("POST", "/topics/six/partitions/0", body)
        path = f"{TAIL}?partition=0&offset=earliest"
        async with tailing(one, path) as tail:
            assert (await tail.line())["value"] == {"a": [1, 2]}
        async with tailing(one, path, f"Accept: {SSE}") as tail:
            assert json.loads((await tail.event())["data"])["value"] == {"a": [1, 2]}


async def test_idle_tail_sends_signs_of_life() -> None:
    async with data_node(few(tail_idle_s=0.02)) as one:
        async with tailing(one, TAIL, f"Accept: {SSE}") as tail:
            assert [await tail.piece(b"\n\n") for _ in range(3)] == [": idle"] * 3
        async with tailing(one, TAIL) as tail:
            assert [await tail.piece(b"\n") for _ in range(3)] == [""] * 3


async def test_tail_ends_cleanly_when_the_server_closes() -> None:
    async with data_node() as one, tailing(one, TAIL) as tail:
        closing = asyncio.create_task(one.server.close())
        assert await tail.line() is None
        assert tail.ended, "the answer is complete, not cut off"
        await closing


async def test_tail_ends_when_its_reader_leaves() -> None:
    async with data_node() as one:
        partition = one.node.replicas.partition("six", 0)
        async with tailing(one, TAIL):
            await until(lambda: waiting_readers(partition))
        await until(lambda: not waiting_readers(partition))


async def test_failure_while_tailing_is_told_and_ends_it() -> None:
    async with data_node() as one:
        for accept in (SSE, "*/*"):
            async with tailing(one, f"{TAIL}?partition=2", f"Accept: {accept}") as tail:
                one.node.log("six", 2).read_error = LogError(STORAGE_FAILED, "damaged")
                await write(one, 2, "x")
                if accept == SSE:
                    event = await tail.event()
                    assert event["event"] == "error"
                    found = json.loads(event["data"])
                else:
                    found = await tail.line()
                assert found == {"error_code": 50303, "message": "damaged"}
                assert await tail.line() is None
            one.node.log("six", 2).read_error = None


def test_ids_of_many_partitions_cost_each_record_little() -> None:
    class Counted(list[TailPosition]):
        passes = 0

        def __iter__(self) -> Iterator[TailPosition]:
            self.passes += 1
            return super().__iter__()

    handle = cast(PartitionHandle, SimpleNamespace(topic_id="T"))
    positions = Counted(
        TailPosition(handle, PartitionId(n), Offset(10 * n)) for n in range(TAIL_PARTITIONS_MAX)
    )
    writer = EventWriter(positions)
    for number in (0, 100, TAIL_PARTITIONS_MAX - 1):
        position = positions[number]
        writer.turn_to(position)
        for _ in range(1_000):
            position.offset = Offset(position.offset + 1)
            event = writer.record(b"1", position)
        expected = ",".join(f"{one.number}:{one.offset}" for one in positions) + "@T"
        assert event == f"id: {expected}\ndata: 1\n\n".encode()
    assert positions.passes < 20


async def test_large_backlog_is_sent_whole_and_in_order() -> None:
    async with data_node() as one:
        for _ in range(30):
            await write(one, 0, *["x" * 20_000] * 2)
        async with tailing(one, f"{TAIL}?partition=0&offset=earliest") as tail:
            assert [(await tail.line())["offset"] for _ in range(60)] == list(range(60))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/topics/none/tail", 40401),
        (f"{TAIL}?partition=6", 40402),
        (f"{TAIL}?partition=-1", 40001),
        (f"{TAIL}?partition=", 40001),
        (f"{TAIL}?partition=0,0", 40001),
        (f"{TAIL}?partition=0,x", 40001),
        (f"{TAIL}?offset=-x", 40001),
        (f"{TAIL}?offset=x", 40001),
        (f"{TAIL}?offset=1", 41601),
        (f"{TAIL}?format=avro", 40001),
        (f"{TAIL}?last_event_id=x", 40001),
        (f"{TAIL}?last_event_id=0:9", 41601),
    ],
)
async def test_wrong_parameter_is_a_typed_error_before_the_stream(path: str, code: int) -> None:
    async with data_node() as one:
        assert (await one.peer.request("GET", path)).error_code == code
        reply = await one.peer.request("GET", TAIL, Accept="image/png")
        assert reply.error_code == 40601


async def test_partitions_of_a_tail_are_bounded() -> None:
    async with data_node() as one:
        await one.node.metadata.create_topic("wide", partitions=300)
        reply = await one.peer.request("GET", "/v1/topics/wide/tail")
        assert reply.error_code == 40001
        async with tailing(one, "/v1/topics/wide/tail?partition=7,299"):
            pass


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), min_size=1))
def test_event_id_round_trip(offsets: dict[int, int]) -> None:
    text = ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())
    assert parse_event_id(text) == offsets


@given(st.text(max_size=20) | st.text("0123456789:,-", max_size=20))
def test_any_event_id_is_understood_or_refused(text: str) -> None:
    try:
        assert parse_event_id(text)
    except LogError as error:
        assert error.entry is BAD_REQUEST
