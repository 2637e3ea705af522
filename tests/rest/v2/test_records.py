from __future__ import annotations

import asyncio
import json
import random
import threading
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.broker.offsets import offset_from_end
from raftlog.record.batch import RecordBatch, sealed
from raftlog.record.compression import Compression
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.record.types import LeaderEpoch
from raftlog.rest.v2 import topics as v2
from tests.broker.data_fakes import NOW_MS, batch_of, waiting_readers
from tests.examples import examples
from tests.http.http_peers import RawPeer, Reply
from tests.rest.data_fakes import DataPeer, data_node, few
from tests.waiting import until

RECORDS = "/topics/one/partitions/0/records"
BINARY = "application/vnd.kafka.binary.v2+json"
TEXT = "application/vnd.kafka.text.v2+json"


async def write(one: DataPeer, *values: Any, **more: Any) -> None:
    """One batch of these JSON values."""
    body = json.dumps({"records": [{"value": value, **more} for value in values]})
    reply = await one.peer.request("POST", "/topics/one?acks=1", body.encode())
    assert reply.status == 200


async def write_binary(one: DataPeer, *values: str) -> None:
    body = json.dumps({"records": [{"value": value} for value in values]})
    reply = await one.peer.request("POST", "/topics/one", body.encode(), Content_Type=BINARY)
    assert reply.status == 200


async def read(one: DataPeer, query: str = "", **headers: str) -> Reply:
    return await one.peer.request("GET", f"{RECORDS}?{query}", b"", **headers)


def values(reply: Reply) -> list[Any]:
    assert reply.status == 200, reply.body
    return [record["value"] for record in reply.json]


def next_offset(reply: Reply) -> int:
    return int(reply.headers["x-raftlog-next-offset"])


async def test_answer_has_the_fields_of_the_convention_and_offsets_in_its_headers() -> None:
    async with data_node() as one:
        await write(one, {"x": [1, 2]}, key="k1")
        reply = await read(one)
        assert reply.json == [
            {
                "topic": "one",
                "key": "k1",
                "value": {"x": [1, 2]},
                "partition": 0,
                "offset": 0,
                "timestamp": NOW_MS,
            }
        ]
        assert reply.headers["content-type"] == "application/vnd.kafka.json.v2+json"
        assert reply.headers["x-raftlog-high-watermark"] == "1"
        assert reply.headers["x-raftlog-next-offset"] == "1"
        assert reply.headers["x-raftlog-log-start-offset"] == "0"


async def test_values_come_back_as_the_bytes_that_were_written() -> None:
    async with data_node() as one:
        value = b'{"n": 12345678901234567890.5,  "e":1e999, "s":"\\u00e9"}'
        await one.peer.request("POST", "/topics/one", b'{"records":[{"value":%b}]}' % value)
        assert value in (await read(one)).body


async def test_accept_chooses_the_format() -> None:
    async with data_node() as one:
        await write(one, "a", None)
        assert values(await read(one, Accept=BINARY)) == ["ImEi", None]
        assert values(await read(one, Accept=TEXT)) == ['"a"', None]
        assert values(await read(one, Accept="application/json")) == ["a", None]
        assert values(await read(one, Accept="text/html, */*;q=0.1")) == ["a", None]
        assert (await read(one, Accept="application/xml")).error_code == 40601


@pytest.mark.parametrize(
    ("query", "expected", "after"),
    [
        ("", [0, 1, 2, 3, 4], 5),
        ("offset=earliest", [0, 1, 2, 3, 4], 5),
        ("offset=3", [3, 4], 5),
        ("offset=5", [], 5),
        ("offset=latest", [], 5),
        ("offset=-1", [4], 5),
        ("offset=-3", [2, 3, 4], 5),
        ("offset=-3&max_records=1", [2], 3),
        ("offset=-5", [0, 1, 2, 3, 4], 5),
        ("offset=-9223372036854775807", [0, 1, 2, 3, 4], 5),
        ("offset=-0", [], 5),
        ("replica=any&offset=-2", [3, 4], 5),
        ("max_records=2", [0, 1], 2),
        ("offset=1&max_records=3", [1, 2, 3], 4),
        ("end_offset=2", [0, 1], 2),
        ("offset=1&end_offset=4", [1, 2, 3], 4),
        ("offset=4&end_offset=2", [], 4),
        ("offset=2&end_offset=2&timeout=60000", [], 2),
        ("end_offset=99&max_records=9999999", [0, 1, 2, 3, 4], 5),
        ("max_bytes=1", [0, 1, 2], 3),
    ],
)
async def test_offset_and_bounds(query: str, expected: list[int], after: int) -> None:
    async with data_node() as one:
        await write(one, 0, 1, 2)
        await write(one, 3, 4)
        reply = await read(one, query)
        assert values(reply) == expected
        assert next_offset(reply) == after


async def test_timestamp_names_the_first_record_that_is_not_older() -> None:
    async with data_node() as one:
        for time_ms in (100, 200, 300):
            await write(one, time_ms, timestamp=time_ms)
        assert values(await read(one, "timestamp=0")) == [100, 200, 300]
        assert values(await read(one, "timestamp=150")) == [200, 300]
        assert values(await read(one, "timestamp=301")) == []
        assert (await read(one, "timestamp=1&offset=1")).error_code == 40001


@pytest.mark.parametrize(
    "query",
    [
        "offset=--1",
        "offset=-",
        "offset=-9223372036854775808",
        "offset=-1&timestamp=1",
        "offset=x",
        "offset=",
        "offset=%2B1",
        "offset=1_0",
        "offset=99999999999999999999",
        "max_bytes=0",
        "max_records=0",
        "max_records=-1",
        "timeout=-1",
        "timeout=1.5",
        "end_offset=-5",
        "timestamp=-1",
        "timestamp=now",
        "offset=1&offset=2",
        "offset=%ff",
    ],
)
async def test_wrong_parameter_is_a_typed_error(query: str) -> None:
    async with data_node() as one:
        assert (await read(one, query)).error_code == 40001


async def test_offset_out_of_range_tells_the_range() -> None:
    async with data_node() as one:
        await write(one, 1, 2, 3)
        one.node.log().log_start_offset = one.node.log().log_end_offset
        reply = await read(one, "offset=1")
        assert reply.error_code == 41601
        assert "3 to 3" in reply.json["message"]
        assert (await read(one, "offset=4")).error_code == 41601


async def test_last_offsets_end_at_the_isolation_s_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with data_node() as one:
        await write(one, 0, 1, 2, 3)
        monkeypatch.setattr(one.node.log(), "last_stable_offset", lambda _: 2)
        assert values(await read(one, "offset=-1")) == [3]
        assert values(await read(one, "offset=-1&isolation=read_uncommitted")) == [3]
        reply = await read(one, "offset=-1&isolation=read_committed&end_offset=2")
        assert values(reply) == [1]


async def test_last_offsets_are_looked_up_again_after_a_trim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with data_node() as one:
        await write(one, 0, 1)
        await write(one, 2, 3)
        log = one.node.log()
        starts = [2, 4, 4]
        found: list[int] = []

        async def trimmed_afterwards(*arguments: Any) -> int:
            found.append(await offset_from_end(*arguments))
            log.log_start_offset = starts[len(found) - 1]
            return found[-1]

        monkeypatch.setattr(v2, "offset_from_end", trimmed_afterwards)
        assert values(await read(one, "offset=-3")) == []
        assert found == [1, 2, 4], "each within the log as it was"
        log.log_start_offset = 0
        found.clear()
        starts[:] = [1, 2, 3]
        monkeypatch.setattr(v2, "RESOLUTIONS_MAX", 2)
        assert (await read(one, "offset=-4")).error_code == 41601
        assert found == [0, 1], "and not without end"


async def test_unknown_topic_and_partition() -> None:
    async with data_node() as one:
        for path, code in [
            ("/topics/none/partitions/0/records", 40401),
            ("/topics/one/partitions/1/records", 40402),
            ("/topics/one/partitions/x/records", 40402),
        ]:
            assert (await one.peer.request("GET", path)).error_code == code


async def test_what_is_not_committed_is_not_read() -> None:
    async with data_node() as one:
        one.node.log().hold_flush = True
        await write(one, 1)
        reply = await read(one)
        assert values(reply) == []
        assert next_offset(reply) == 0
        one.node.log().flush_now()
        assert values(await read(one)) == [1]


async def test_long_poll_returns_with_the_first_record() -> None:
    async with data_node() as one, RawPeer.connected(one.server.port) as waiting:
        asked = asyncio.create_task(waiting.request("GET", f"{RECORDS}?timeout=60000"))
        partition = one.node.replicas.partition("one", 0)
        await until(lambda: waiting_readers(partition))
        await write(one, 7)
        assert values(await asked) == [7]


async def test_long_poll_ends_with_its_time_empty() -> None:
    async with data_node() as one:
        assert values(await read(one, "timeout=30")) == []


async def test_long_poll_ends_when_the_server_closes() -> None:
    async with data_node() as one:
        asked = asyncio.create_task(read(one, "timeout=60000"))
        partition = one.node.replicas.partition("one", 0)
        await until(lambda: waiting_readers(partition))
        await one.server.close()
        assert values(await asked) == []


async def test_long_poll_is_forgotten_when_its_reader_leaves() -> None:
    async with data_node() as one:
        partition = one.node.replicas.partition("one", 0)
        async with RawPeer.connected(one.server.port) as leaving:
            await leaving.send(
                f"GET {RECORDS}?timeout=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            await until(lambda: waiting_readers(partition))
        await until(lambda: not waiting_readers(partition))


@pytest.mark.parametrize("stored", ["gA==", "", "Iv8i", "eA==", "e30gMQ==", "WzFd/w==", "TmFO"])
async def test_json_read_of_what_is_not_json_names_the_offset(stored: str) -> None:
    async with data_node() as one:
        await write(one, 1)
        await write_binary(one, stored)
        await write(one, 3)
        before = await read(one)
        assert values(before) == [1], "what comes before it is answered"
        reply = await read(one, f"offset={next_offset(before)}")
        assert reply.error_code == 40601
        assert "offset 1 " in reply.json["message"]
        assert values(await read(one, "offset=1", Accept=BINARY)) == [stored, "Mw=="]
        assert values(await read(one, "offset=2")) == [3]


async def test_text_read_of_what_is_not_text_names_the_offset() -> None:
    async with data_node() as one:
        await write_binary(one, "gA==")
        reply = await read(one, Accept=TEXT)
        assert reply.error_code == 40601
        assert "offset 0 " in reply.json["message"]


async def test_value_too_deep_for_a_parser_is_no_internal_error() -> None:
    async with data_node() as one:
        deep = batch_of([b"[" * 50_000 + b"]" * 50_000])
        await one.node.replicas.partition("one", 0).log.appender.append([deep], LeaderEpoch(0))
        await until(lambda: one.node.log().flushed_offset == 1)
        assert (await read(one)).error_code == 40601
        assert len(values(await read(one, Accept=BINARY))) == 1


async def append(one: DataPeer, *batches: RecordBatch) -> None:
    """Append batches to the log as they are."""
    log = one.node.replicas.partition("one", 0).log
    end = log.log_end_offset + sum(batch.header.record_count for batch in batches)
    await log.appender.append(batches, LeaderEpoch(0))
    await until(lambda: one.node.log().flushed_offset == end)


async def test_batch_of_very_many_records_is_answered_in_bounded_memory() -> None:
    """An answer that finds no room for more ends there; the next poll goes on."""
    async with data_node(few(bytes_in_flight_max=1_200_000)) as one:
        await append(one, batch_of([b""] * 20_000))
        offset = polls = 0
        while offset < 20_000:
            reply = await read(one, f"offset={offset}&max_records=100000", Accept=BINARY)
            assert [record["offset"] for record in reply.json] == [
                *range(offset, next_offset(reply))
            ]
            assert len(reply.body) <= 300_000
            offset, polls = next_offset(reply), polls + 1
        assert polls > 4


@pytest.mark.parametrize("compression", [each for each in Compression if each])
async def test_max_bytes_counts_what_is_answered(compression: Compression) -> None:
    async with data_node() as one:
        # 5 MB each, as decoded.
        batches = [batch_of([bytes(100_000)] * 50, compression) for _ in range(20)]
        assert sum(len(batch.data) for batch in batches) < 5_000_000
        await append(one, *batches)
        offset = 0
        while offset < 300:
            reply = await read(one, f"offset={offset}", Accept=BINARY)
            assert 1 << 20 <= len(reply.body) < (1 << 20) + 300_000
            assert [record["offset"] for record in reply.json] == [
                *range(offset, next_offset(reply))
            ]
            offset = next_offset(reply)
        reply = await read(one, "max_bytes=1", Accept=BINARY)
        assert next_offset(reply) == 1


async def five_reads(one: DataPeer, stack: AsyncExitStack) -> list[asyncio.Future[Reply]]:
    """Reads of one address, begun on connections of their own."""
    peers = [await stack.enter_async_context(RawPeer.connected(one.server.port)) for _ in range(5)]
    return [
        asyncio.ensure_future(peer.request("GET", RECORDS, b"", Accept=BINARY)) for peer in peers
    ]


async def test_batches_of_reads_that_wait_for_a_thread_are_counted_and_given_back() -> None:
    async with data_node(few(bytes_in_flight_max=4_000_000)) as one:
        stored = batch_of([random.Random(1).randbytes(250_000) + bytes(50_000)])
        assert stored.header.compression is Compression.GZIP
        await append(one, stored)
        broker = one.server.context.broker
        may_go = threading.Event()
        busy = [asyncio.ensure_future(broker.decompression.run(may_go.wait)) for _ in range(2)]
        async with AsyncExitStack() as stack:
            reads = await five_reads(one, stack)
            # A quarter of the bytes, for this address: three batches.
            await until(lambda: sum(each.done() for each in reads) == 2)
            assert broker.bytes_in_flight.used == 3 * stored.header.size_bytes
            refused = [await each for each in reads if each.done()]
            assert [reply.error_code for reply in refused] == [42901] * 2
            may_go.set()
            await asyncio.gather(*busy, *reads)
        assert broker.bytes_in_flight.used == 0


async def test_uncompressed_batches_of_reads_that_wait_for_a_turn_are_counted() -> None:
    async with data_node(few(bytes_in_flight_max=4_000_000)) as one:
        stored = batch_of([bytes(250_000)], Compression.NONE)
        await append(one, stored)
        broker = one.server.context.broker
        may_go = asyncio.Event()
        wait = broker.turns.wait

        async def slow() -> None:
            await may_go.wait()
            await wait()

        broker.turns.wait = slow  # type: ignore[method-assign]
        async with AsyncExitStack() as stack:
            reads = await five_reads(one, stack)
            # An address holds a quarter: three stored batches, until their answers have had a turn.
            await until(lambda: sum(each.done() for each in reads) == 2)
            assert broker.bytes_in_flight.used >= 3 * len(stored.data)
            refused = [await each for each in reads if each.done()]
            assert [reply.error_code for reply in refused] == [42901] * 2
            may_go.set()
            await asyncio.gather(*reads)
        assert broker.bytes_in_flight.used == 0


@pytest.mark.parametrize("compression", [each for each in Compression if each])
async def test_batch_over_the_bound_is_refused(compression: Compression) -> None:
    async with data_node(few(batch_decompressed_bytes_max=1_000_000)) as one:
        await append(one, batch_of([bytes(100_000)] * 50, compression))
        assert (await read(one, Accept=BINARY)).error_code == 41302


async def test_answer_without_room_for_its_first_record_is_refused() -> None:
    async with data_node(few(bytes_in_flight_max=1_000_000)) as one:
        await append(one, batch_of([bytes(500_000)], Compression.NONE))
        reply = await read(one, Accept=BINARY)
        assert reply.error_code == 40601
        assert "offset 0 takes" in reply.json["message"]
        assert one.server.context.broker.bytes_in_flight.used == 0


async def test_bytes_asked_for_are_exceeded_by_no_further_batch() -> None:
    async with data_node() as one:
        await write(one, "x" * 50)
        await write(one, "y" * 50)
        size = len(one.node.log().batches[0])
        assert len(values(await read(one, f"max_bytes={size + 10}"))) == 1
        assert len(values(await read(one, f"max_bytes={size * 2}"))) == 2


async def test_records_removed_by_compaction_are_passed_over() -> None:
    async with data_node() as one:
        written = batch_of([b"1", b"2"])
        header = written.header._replace(last_offset_delta=9)
        data = bytearray(written.data)
        compacted = RecordBatch(sealed(data, header), bytes(data))
        log = one.node.replicas.partition("one", 0).log
        await log.appender.append([compacted, compacted], LeaderEpoch(0))
        await until(lambda: one.node.log().flushed_offset == 20)
        reply = await read(one)
        assert [record["offset"] for record in reply.json] == [0, 1, 10, 11]
        assert next_offset(reply) == 20
        assert values(await read(one, "offset=5&end_offset=8")) == []
        assert next_offset(await read(one, "offset=5&end_offset=8")) == 8
        assert next_offset(await read(one, "offset=15")) == 20


async def test_storage_failure_is_told() -> None:
    async with data_node() as one:
        await write(one, 1)
        one.node.log().read_error = LogError(STORAGE_FAILED, "damaged")
        assert (await read(one)).error_code == 50303


async def test_many_steps_make_one_answer() -> None:
    async with data_node() as one:
        for number in range(20):
            await write(one, *[str(number) * 5000] * 10)
        reply = await read(one, "max_bytes=10000000")
        assert len(values(reply)) == 200
        assert [record["offset"] for record in reply.json] == list(range(200))
        reply = await read(one, "max_bytes=400000")
        assert 50 <= len(values(reply)) < 100


async def test_no_query_makes_an_internal_error() -> None:
    async with data_node() as one:
        await write(one, 1, 2, 3)
        loop = asyncio.get_running_loop()

        async def attempt(query: dict[str, str]) -> None:
            text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
            reply = await read(one, text)
            assert reply.status == 200 or reply.error_code // 100 in (400, 416)

        @settings(max_examples=examples(150), deadline=None)
        @given(
            st.dictionaries(
                st.sampled_from(["offset", "max_bytes", "max_records", "end_offset", "timestamp"]),
                st.sampled_from(["0", "1", "3", "4", "-1", "", "x", "latest", str(2**63 - 1), "²"])
                | st.text(max_size=3),
            )
        )
        def run(query: dict[str, str]) -> None:
            asyncio.run_coroutine_threadsafe(attempt(query), loop).result(20)

        await asyncio.to_thread(run)
