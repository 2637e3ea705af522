from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.broker.limits import WorkTurns
from raftlog.record.batch import iterate_batches, iterate_headers
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.errors import DISK_FULL, NO_LEADER, STORAGE_FAILED, LogError
from raftlog.record.frames import (
    BATCHES_MEDIA_TYPE,
    FetchFrame,
    ProduceFrame,
)
from raftlog.record.types import PartitionId, ProducerEpoch, ProducerId
from raftlog.rest.v1.batches import FETCH_FRAME_BYTES, PARTITIONS_PER_TURN
from tests.broker.data_fakes import contents, waiting_readers
from tests.examples import examples
from tests.http.http_peers import RawPeer, Reply
from tests.record.wire import FetchFrameReader, encode_produce_frames
from tests.rest.data_fakes import DataPeer, data_node, few
from tests.waiting import until


def batch(*values: bytes, sequence: int = -1) -> bytes:
    identity: dict[str, Any] = {}
    if sequence >= 0:
        identity = {
            "producer_id": ProducerId(7),
            "producer_epoch": ProducerEpoch(0),
            "base_sequence": sequence,
        }
    builder = BatchBuilder(size_bytes_max=1 << 30, **identity)
    for value in values:
        builder.append(0, None, value)
    return bytes(builder.build())


def frames(*parts: tuple[str, int, bytes]) -> bytes:
    return encode_produce_frames(ProduceFrame(t, PartitionId(p), data) for t, p, data in parts)


async def produce(one: DataPeer, body: bytes, query: str = "") -> Reply:
    path = f"/v1/produce{query}"
    return await one.peer.request("POST", path, body, Content_Type=BATCHES_MEDIA_TYPE)


async def fetch_reply(one: DataPeer, body: Any) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await one.peer.request("POST", "/v1/fetch", data)


async def fetch(one: DataPeer, *wants: dict[str, Any], **more: Any) -> list[FetchFrame]:
    reply = await fetch_reply(one, {"partitions": list(wants), "max_wait_ms": 0, **more})
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == BATCHES_MEDIA_TYPE
    return parsed(reply.body)


def parsed(body: bytes) -> list[FetchFrame]:
    reader = FetchFrameReader(frame_bytes_max=1 << 26)
    found = reader.feed(body)
    reader.finish()
    return found


def want(topic: str, partition: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": offset, **more}


def records_in(frame: FetchFrame) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        for one in iterate_batches(frame.data)
        for record in decode(one, decompressed_bytes_max=1 << 26)
    ]


async def test_each_frame_gets_its_result_in_order() -> None:
    async with data_node() as one:
        body = frames(("six", 4, batch(b"a", b"b")), ("one", 0, batch(b"c") + batch(b"d")))
        reply = await produce(one, body)
        assert reply.json["results"] == [
            {
                "topic": topic,
                "partition": partition,
                "base_offset": 0,
                "last_offset": 1,
                "log_append_time": -1,
                "log_start_offset": 0,
                "error_code": None,
                "message": None,
            }
            for topic, partition in [("six", 4), ("one", 0)]
        ]
        assert [value for _, value in contents(one.node.log("six", 4))] == [b"a", b"b"]
        assert [value for _, value in contents(one.node.log())] == [b"c", b"d"]


async def test_frames_fail_apart() -> None:
    async with data_node() as one:
        one.node.log("six", 1).append_error = LogError(DISK_FULL)
        one.node.replicas.offline["six", 2] = LogError(NO_LEADER)
        broken = bytearray(batch(b"x"))
        broken[-1] ^= 1
        body = frames(
            ("none", 0, batch(b"x")),
            ("one", 1, batch(b"x")),
            ("six", 0, bytes(broken)),
            ("six", 1, batch(b"x")),
            ("six", 2, batch(b"x")),
            ("six", 3, b""),
            ("six", 4, batch(b"good")),
        )
        results = (await produce(one, body)).json["results"]
        codes = [result["error_code"] for result in results]
        assert codes == [40401, 40402, 42202, 50701, 50301, 42209, None]
        assert all(result["message"] for result in results[:-1])
        assert all(result["base_offset"] == -1 for result in results[:-1])
        assert one.node.record_count() == 1


async def test_frame_is_written_whole_or_not_at_all() -> None:
    async with data_node() as one:
        body = frames(("one", 0, batch(b"good") + batch(b"bad")[:-1]))
        assert (await produce(one, body)).json["results"][0]["error_code"] == 42209
        await one.node.metadata.alter_configs("six", {"max.message.bytes": "1024"})
        body = frames(("six", 0, batch(b"good") + batch(b"x" * 2000)))
        assert (await produce(one, body)).json["results"][0]["error_code"] == 41302
        assert one.node.record_count() == 0


async def test_repeat_of_a_batch_gets_its_first_offset() -> None:
    async with data_node() as one:
        await produce(one, frames(("one", 0, batch(b"before"))))
        body = frames(("one", 0, batch(b"a", b"b", sequence=0)))
        for _ in range(3):
            result = (await produce(one, body)).json["results"][0]
            assert (result["base_offset"], result["last_offset"]) == (1, 2)
        assert one.node.record_count() == 3


@pytest.mark.parametrize("acks", ["all", "1", "0"])
async def test_acks(acks: str) -> None:
    async with data_node() as one:
        one.node.log().hold_flush = True
        body = frames(("one", 0, batch(b"a")))
        result = (await produce(one, body, f"?acks={acks}&timeout=20")).json["results"][0]
        assert result["error_code"] == (50003 if acks == "all" else None)


@pytest.mark.parametrize(
    ("body", "query", "code"),
    [
        (b"", "", 42201),
        (b"x", "", 42201),
        (frames(("one", 0, b"abc"))[:-1], "", 42201),
        (frames(("one", 0, batch(b"a")), ("one", 0, batch(b"a"))), "", 42201),
        (frames(("one", 0, batch(b"a"))), "?acks=3", 40001),
        (frames(("one", 0, batch(b"a"))), "?timeout=x", 40001),
        (frames(*[("one", n, batch(b"a")) for n in range(11)]), "", 42201),
    ],
)
async def test_request_that_cannot_be_taken_apart_is_refused_whole(
    body: bytes, query: str, code: int
) -> None:
    async with data_node(few(partitions_per_request_max=10)) as one:
        assert (await produce(one, body, query)).error_code == code
        assert one.node.record_count() == 0


async def test_produce_needs_its_media_type() -> None:
    async with data_node() as one:
        reply = await one.peer.request("POST", "/v1/produce", frames(("one", 0, batch(b"a"))))
        assert reply.error_code == 41501


async def test_fetch_gives_whole_batches_from_the_one_with_the_offset() -> None:
    async with data_node() as one:
        await produce(one, frames(("one", 0, batch(b"a", b"b") + batch(b"c"))))
        [frame] = await fetch(one, want("one", 0, 1))
        assert records_in(frame) == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert frame[:6] == ("one", 0, 0, 3, 0, 3)
        [frame] = await fetch(one, want("one", 0, 2))
        assert records_in(frame) == [(2, b"c")]
        [frame] = await fetch(one, want("one", 0, 3))
        assert frame[:7] == ("one", 0, 0, 3, 0, 3, b"")


async def test_every_partition_gets_a_frame_and_errors_are_frames() -> None:
    async with data_node() as one:
        await produce(one, frames(("six", 1, batch(b"a")), ("six", 5, batch(b"b"))))
        one.node.log("six", 5).read_error = LogError(STORAGE_FAILED, "damaged")
        found = await fetch(
            one,
            want("six", 0),
            want("six", 1),
            want("six", 5),
            want("one", 0, 1),
            want("one", 9),
            want("none", 0),
        )
        assert [(frame.topic, frame.partition, frame.error_code) for frame in found] == [
            ("six", 0, 0),
            ("six", 1, 0),
            ("six", 5, 50303),
            ("one", 0, 41601),
            ("one", 9, 40402),
            ("none", 0, 40401),
        ]
        assert found[2].message == "damaged"
        assert "0 to 0" in found[3].message
        assert found[0].next_offset == 0


async def test_large_answer_is_sent_in_chunks_that_take_turns() -> None:
    async with data_node() as one:
        big = [batch(b"x" * 100_000) for _ in range(20)]
        await produce(one, frames(*[("six", n, b"".join(big)) for n in (0, 1)]))
        wants = [want("six", n, max_bytes=10_000_000) for n in (0, 1)]
        found = await fetch(one, *wants)
        assert all(len(frame.data) <= FETCH_FRAME_BYTES for frame in found)
        assert [frame.partition for frame in found[:4]] == [0, 1, 0, 1]
        for number in (0, 1):
            own = [frame for frame in found if frame.partition == number]
            offsets = [offset for frame in own for offset, _ in records_in(frame)]
            assert offsets == list(range(20))


async def test_large_answer_for_an_old_client_is_not_in_chunks() -> None:
    """HTTP/1.0 knows none: such an answer ends with its connection."""
    async with data_node() as one, RawPeer.connected(one.server.port) as peer:
        big = b"".join(batch(b"x" * 100_000) for _ in range(20))
        await produce(one, frames(("one", 0, big)))
        body = json.dumps({"partitions": [want("one", 0, max_bytes=10_000_000)]}).encode()
        head = f"POST /v1/fetch HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
        await peer.send(head.encode() + body)
        head_bytes, _, answer = (await peer.rest()).partition(b"\r\n\r\n")
        assert head_bytes.startswith(b"HTTP/1.0 200 ")
        assert b"chunked" not in head_bytes.lower()
        found = parsed(answer)
        assert [offset for frame in found for offset, _ in records_in(frame)] == list(range(20))


async def test_bounds_of_partition_and_answer() -> None:
    async with data_node() as one:
        big = b"".join(batch(b"x" * 1000) for _ in range(50))
        await produce(one, frames(*[("six", n, big) for n in range(3)]))
        [frame] = await fetch(one, want("six", 0, max_bytes=5000))
        assert len(records_in(frame)) == 4
        [frame] = await fetch(one, want("six", 0, max_bytes=1))
        assert len(records_in(frame)) == 1, "one batch at least"
        found = await fetch(one, *[want("six", n) for n in range(3)], max_bytes=5000)
        assert [len(records_in(frame)) for frame in found] == [4, 1, 0]
        assert found[2].next_offset == 0


async def test_no_batch_is_sent_that_begins_at_the_end_or_behind_it() -> None:
    async with data_node() as one:
        for values in ((b"0", b"1"), (b"2", b"3"), (b"4", b"5")):
            await produce(one, frames(("one", 0, batch(*values))))
        for end, following in ((2, 2), (3, 4), (4, 4), (9, 6)):
            (frame,) = await fetch(one, want("one", 0, end_offset=end))
            assert (frame.next_offset, frame.high_watermark) == (following, 6)
            assert len(records_in(frame)) == following
        # Nothing is waited for that is not wanted.
        (frame,) = await fetch(one, want("one", 0, offset=6, end_offset=6), max_wait_ms=60_000)
        assert (frame.error_code, frame.next_offset, len(frame.data)) == (0, 6, 0)


async def test_chunks_end_at_the_end_offset() -> None:
    async with data_node() as one:
        for _ in range(8):
            await produce(one, frames(("one", 0, batch(b"x" * 200_000))))
        parts = await fetch(one, want("one", 0, end_offset=3, max_bytes=1 << 30))
        assert parts[-1].next_offset == 3
        assert sum(len(records_in(part)) for part in parts) == 3


async def test_a_topic_made_anew_is_another_one() -> None:
    async with data_node() as one:
        await produce(one, frames(("one", 0, batch(b"a"))))
        topic_id = one.node.metadata.image.topic("one").topic_id
        (frame,) = await fetch(one, want("one", 0, topic_id=topic_id))
        assert (frame.error_code, len(records_in(frame))) == (0, 1)
        (frame,) = await fetch(one, want("one", 0, topic_id="f" * 32))
        assert frame.error_code == 40404
        assert topic_id in frame.message
        assert "f" * 32 in frame.message


async def test_batch_larger_than_a_chunk_is_sent() -> None:
    async with data_node() as one:
        await produce(one, frames(("one", 0, batch(b"x" * 900_000) + batch(b"y"))))
        found = await fetch(one, want("one", 0, max_bytes=10_000_000))
        assert [len(value or b"") for frame in found for _, value in records_in(frame)] == [
            900_000,
            1,
        ]


async def test_fetch_waits_for_the_first_of_many_partitions() -> None:
    async with data_node() as one, RawPeer.connected(one.server.port) as waiting:
        body = {"partitions": [want("six", n) for n in range(6)], "max_wait_ms": 60_000}
        asked = asyncio.create_task(waiting.request("POST", "/v1/fetch", json.dumps(body).encode()))
        partition = one.node.replicas.partition("six", 3)
        await until(lambda: waiting_readers(partition))
        await produce(one, frames(("six", 3, batch(b"a"))))
        found = parsed((await asked).body)
        assert [len(frame.data) > 0 for frame in found] == [n == 3 for n in range(6)]
        assert not waiting_readers(partition)


async def test_fetch_of_many_partitions_lets_others_run_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = 0

    class CountedTurns(WorkTurns):
        async def wait(self) -> None:
            nonlocal turns
            turns += 1
            await super().wait()

    monkeypatch.setattr("raftlog.broker.shared.WorkTurns", CountedTurns)
    count = 4 * PARTITIONS_PER_TURN
    async with data_node() as one:
        assert len(await fetch(one, *(want(f"none-{n}", 0) for n in range(count)))) == count
    # Each is looked up, and then answered.
    assert turns == 2 * 4


async def test_fetch_does_not_wait_when_a_partition_has_an_error() -> None:
    async with data_node() as one:
        found = await fetch(one, want("one", 0), want("none", 0), max_wait_ms=60_000)
        assert [frame.error_code for frame in found] == [0, 40401]


async def test_min_bytes_waits_for_more() -> None:
    async with data_node() as one, RawPeer.connected(one.server.port) as waiting:
        body = {"partitions": [want("one", 0)], "max_wait_ms": 60_000, "min_bytes": 130}
        asked = asyncio.create_task(waiting.request("POST", "/v1/fetch", json.dumps(body).encode()))
        partition = one.node.replicas.partition("one", 0)
        await until(lambda: waiting_readers(partition))
        await produce(one, frames(("one", 0, batch(b"a"))))
        await until(lambda: waiting_readers(partition))
        assert not asked.done()
        await produce(one, frames(("one", 0, batch(b"a"))))
        assert len(records_in(parsed((await asked).body)[0])) == 2


async def test_fetch_ends_when_the_server_closes() -> None:
    async with data_node() as one:
        asked = asyncio.create_task(fetch(one, want("one", 0), max_wait_ms=60_000))
        partition = one.node.replicas.partition("one", 0)
        await until(lambda: waiting_readers(partition))
        await one.server.close()
        assert [frame.data for frame in await asked] == [b""]


async def test_answers_below_a_chunk_count_as_they_grow() -> None:
    """Many fetches of some batches hold as much as one of a large answer."""
    async with data_node(few(bytes_in_flight_max=1_000_000)) as one, AsyncExitStack() as stack:
        for number in range(2):
            await produce(one, frames(("six", number, batch(b"x" * 100_000))))
        second = one.node.log("six", 1)
        gate = asyncio.Event()
        real = second.read

        async def slow(*args: Any, **more: Any) -> Any:
            await gate.wait()
            return await real(*args, **more)

        second.read = slow  # type: ignore[method-assign]
        body = json.dumps({"partitions": [want("six", 0), want("six", 1)]}).encode()
        peers = [
            await stack.enter_async_context(RawPeer.connected(one.server.port)) for _ in range(4)
        ]
        sent = [asyncio.ensure_future(peer.request("POST", "/v1/fetch", body)) for peer in peers]
        await until(lambda: sum(each.done() for each in sent) == 2)
        assert 200_000 < one.server.context.broker.bytes_in_flight.used <= 250_000
        gate.set()
        replies = await asyncio.gather(*sent)
        # There is room for one whole answer of this address at most.
        assert sorted(reply.status for reply in replies).count(429) in (3, 4)


async def test_slow_reader_makes_the_node_hold_little() -> None:
    async with data_node() as one:
        log = one.node.log()
        big = b"".join(batch(b"x" * 200_000) for _ in range(150))
        await produce(one, frames(("one", 0, big)))
        reads = 0
        real = log.read

        async def counted(*args: Any, **more: Any) -> Any:
            nonlocal reads
            reads += 1
            return await real(*args, **more)

        log.read = counted  # type: ignore[method-assign]
        body = json.dumps({"partitions": [want("one", 0, max_bytes=2**31 - 1)]}).encode()
        async with RawPeer.connected(one.server.port) as slow:
            await slow.send(
                b"POST /v1/fetch HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            before = 0
            while reads > before or not reads:
                before = reads
                await asyncio.sleep(0.05)
            assert reads < 120, "the socket's buffers, not the node, decide how far it reads"
            reply = await slow.reply()
        frames_read = parsed(reply.body)
        assert sum(len(records_in(frame)) for frame in frames_read) == 150


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        {},
        {"partitions": []},
        {"partitions": {}},
        {"partitions": [{"topic": "one", "partition": 0}]},
        {"partitions": [{"topic": "one", "partition": -1, "offset": 0}]},
        {"partitions": [{"topic": "one", "partition": 0, "offset": -1}]},
        {"partitions": [{"topic": "one", "partition": 0, "offset": 2**63}]},
        {"partitions": [{"topic": "one", "partition": 0, "offset": 0, "max_bytes": 0}]},
        {"partitions": [{"topic": "x" * 250, "partition": 0, "offset": 0}]},
        {"partitions": [{"topic": "../one", "partition": 0, "offset": 0}]},
        {"partitions": [{"topic": "", "partition": 0, "offset": 0}]},
        {"partitions": [want("one", 0)] * 11},
        {"partitions": [want("one", 0)], "max_bytes": 0},
        {"partitions": [want("one", 0)], "min_bytes": -1},
        {"partitions": [want("one", 0)], "max_wait_ms": -1},
        {"partitions": [want("one", 0)], "isolation": 1},
    ],
)
async def test_bad_fetch_is_refused(body: Any) -> None:
    async with data_node(few(partitions_per_request_max=10)) as one:
        assert (await fetch_reply(one, body)).error_code == 42201


async def test_no_produce_body_makes_an_internal_error() -> None:
    async with data_node() as one:
        loop = asyncio.get_running_loop()
        good = bytearray(batch(b"a", b"b"))

        async def attempt(body: bytes) -> None:
            before = one.node.record_count()
            reply = await produce(one, body)
            if reply.status == 200:
                codes = [result["error_code"] for result in reply.json["results"]]
                assert all(code in (None, 40401, 40402, 42202, 42209, 41302) for code in codes)
                assert one.node.record_count() >= before
            else:
                assert reply.error_code == 42201
                assert one.node.record_count() == before

        @settings(max_examples=examples(200), deadline=None)
        @given(st.binary(max_size=90), st.integers(0, len(good) - 1), st.integers(0, 255))
        def run(noise: bytes, position: int, value: int) -> None:
            changed = bytearray(good)
            changed[position] = value
            for body in (noise, frames(("one", 0, noise)), frames(("one", 0, bytes(changed)))):
                asyncio.run_coroutine_threadsafe(attempt(body), loop).result(20)

        await asyncio.to_thread(run)
        headers = [header for data in one.node.log().batches for _, header in iterate_headers(data)]
        assert all(header.record_count == header.last_offset_delta + 1 for header in headers)
