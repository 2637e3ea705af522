from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.errors import DISK_FULL, LogError
from tests.broker.data_fakes import contents
from tests.examples import examples
from tests.http.http_peers import PATIENCE_S, RawPeer, Reply
from tests.rest.data_fakes import DataPeer, data_node, few
from tests.waiting import DEADLINE_S, until

RECORDS = "/v3/clusters/-/topics/one/records"
SIX = "/v3/clusters/-/topics/six/records"


def json_data(value: Any) -> dict[str, Any]:
    return {"type": "JSON", "data": value}


def stream(*records: Any, between: str = "\n") -> bytes:
    return between.join(json.dumps(record) for record in records).encode()


async def post(one: DataPeer, body: bytes, path: str = RECORDS, **headers: str) -> Reply:
    return await one.peer.request("POST", path, body, **headers)


def receipts(reply: Reply) -> list[Any]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json"
    return [json.loads(line) for line in reply.body.splitlines()]


async def test_one_record_and_its_receipt() -> None:
    async with data_node() as one:
        record = {
            "partition_id": 0,
            "headers": [{"name": "h", "value": "QQ=="}],
            "key": {"type": "BINARY", "data": "AP8="},
            "value": {"type": "STRING", "data": "né"},
            "timestamp": "2021-02-05T19:14:42.5Z",
        }
        reply = await post(one, stream(record))
        assert receipts(reply) == [
            {
                "error_code": 200,
                "cluster_id": "fake-cluster",
                "topic_name": "one",
                "partition_id": 0,
                "offset": 0,
                "timestamp": "2021-02-05T19:14:42.500Z",
                "key": {"type": "BINARY", "size": 2},
                "value": {"type": "STRING", "size": 3},
            }
        ]
        assert contents(one.node.log()) == [(b"\x00\xff", "né".encode())]
        read = await one.peer.request(
            "GET", "/topics/one/partitions/0/records", Accept="application/vnd.kafka.binary.v2+json"
        )
        assert read.json[0]["timestamp"] == 1612552482500
        assert read.json[0]["headers"] == [{"key": "h", "value": "QQ=="}]


@pytest.mark.parametrize("between", ["", "\n", " \r\n "])
async def test_receipts_come_in_the_records_order(between: str) -> None:
    async with data_node() as one:
        records = [{"partition_id": n % 3, "value": json_data(n)} for n in range(9)]
        found = receipts(await post(one, stream(*records, between=between), SIX))
        assert [row["error_code"] for row in found] == [200] * 9
        assert [row["partition_id"] for row in found] == [n % 3 for n in range(9)]
        assert [row["offset"] for row in found] == [n // 3 for n in range(9)]
        assert one.node.log("six", 1).appends == 1, "what came together is written together"


async def test_json_is_stored_as_it_was_written_and_null_is_none() -> None:
    async with data_node() as one:
        body = (
            b'{"key":{"type":"JSON","data":null},"value":{"type":"JSON","data":{"b": 1,"a":1e999}}}'
        )
        body += b'{"key":null,"value":{"type":"STRING"}}'
        receipts(await post(one, body))
        assert contents(one.node.log()) == [(None, b'{"b": 1,"a":1e999}'), (None, None)]


async def test_wrong_record_gets_its_own_error_and_the_others_are_written() -> None:
    async with data_node() as one:
        await one.node.metadata.alter_configs("one", {"max.message.bytes": "1024"})
        good = {"value": json_data(1)}
        wrong: list[Any] = [
            {"value": {"type": "AVRO", "data": 1}},
            {"value": {"data": 1}},
            {"value": {"type": "BINARY", "data": "Q"}},
            {"value": {"type": "STRING", "data": 1}},
            {"value": json_data(1), "partition_id": 7},
            {"value": json_data(1), "partition": 0},
            {"value": json_data(1), "timestamp": "yesterday"},
            {"value": json_data(1), "timestamp": "2021-02-05T19:14:42"},
            {"value": json_data(1), "timestamp": "1969-02-05T19:14:42Z"},
            {"value": json_data(1), "timestamp": -1},
            {"value": json_data("x" * 3000)},
            {},
        ]
        body = stream(*[record for one_wrong in wrong for record in (one_wrong, good)])
        found = receipts(await post(one, body))
        codes = [row["error_code"] for row in found]
        assert codes[1::2] == [200] * len(wrong)
        assert codes[::2] == [42201] * 4 + [40402] + [42201] * 5 + [41302, 42201]
        assert all(set(row) == {"error_code", "message"} for row in found[::2])
        assert [row["offset"] for row in found[1::2]] == list(range(len(wrong)))


@pytest.mark.parametrize(
    "rest", [b'{"value":tru}', b"[1]", b"x", b'{"value":{"type":"JSON"}]', b"}"]
)
async def test_malformed_json_ends_the_stream_after_what_came_before(rest: bytes) -> None:
    good = stream({"value": json_data(1)})
    async with data_node() as one:
        reply = await post(one, good + rest + b"\n" + good + good)
        assert [row["error_code"] for row in receipts(reply)] == [200, 42201]
        assert one.node.record_count() == 1
    async with data_node() as one:
        await begin(one.peer)
        await send_chunk(one.peer, good)
        await until(lambda: one.node.record_count() == 1)
        await send_chunk(one.peer, rest + b"\n" + good)
        reply = await one.peer.reply()
        assert [row["error_code"] for row in receipts(reply)] == [200, 42201]
        assert await one.peer.is_closed()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 42201),
        (b" \n ", 42201),
        (b"1", 42201),
        (b'{"value":{"type":"X","data":1}}', 42201),
        (b'{"value":{"type":"JSON","data":1}', 42201),
        (b'{"value":{"type":"JSON","data":"\xff"}}', 42201),
        (b'{"partition_id":9,"value":{"type":"JSON","data":1}}', 40402),
        (b'{"value":{"type":"JSON","data":' + b"[" * 90 + b"]" * 90 + b"}}", 42201),
        (b'{"value":{"type":"JSON","data":' + b"[" * 9000 + b"]" * 9000 + b"}}", 42201),
    ],
)
async def test_lone_record_that_fails_has_the_errors_status(body: bytes, code: int) -> None:
    async with data_node() as one:
        assert (await post(one, body)).error_code == code
        assert one.node.record_count() == 0


async def test_append_that_fails_is_told_per_record() -> None:
    async with data_node() as one:
        one.node.log("six", 2).append_error = LogError(DISK_FULL)
        records = [{"partition_id": n, "value": json_data(n)} for n in (1, 2, 3)]
        found = receipts(await post(one, stream(*records), SIX))
        assert [row["error_code"] for row in found] == [200, 50701, 200]


async def test_unknown_topic_media_type_and_options() -> None:
    async with data_node() as one:
        body = stream({"value": json_data(1)})
        reply = await post(one, body, "/v3/clusters/-/topics/none/records")
        assert reply.error_code == 40401
        assert (await post(one, body, Content_Type="text/plain")).error_code == 41501
        assert (await post(one, body, RECORDS + "?acks=x")).error_code == 40001
        assert receipts(await post(one, body, RECORDS + "?acks=1&timeout=10"))
        zipped = await post(one, gzip.compress(body * 3), Content_Encoding="gzip")
        assert len(receipts(zipped)) == 3


async def begin(peer: RawPeer, path: str = RECORDS, *extra: str) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", *extra]
    await peer.send("\r\n".join(lines).encode() + b"\r\n\r\n")


async def send_chunk(peer: RawPeer, data: bytes) -> None:
    await peer.send(b"%x\r\n%b\r\n" % (len(data), data))


async def next_chunk(peer: RawPeer) -> bytes:
    async with asyncio.timeout(DEADLINE_S):
        size = int(await peer.reader.readuntil(b"\r\n"), 16)
        return (await peer.reader.readexactly(size + 2))[:-2]


async def test_receipts_are_streamed_while_the_body_goes_on() -> None:
    async with data_node() as one:
        await begin(one.peer)
        text = stream({"value": json_data("a")})
        await send_chunk(one.peer, text[:10])
        await send_chunk(one.peer, text[10:] + text[:5])
        head = await one.peer.reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert json.loads(await next_chunk(one.peer))["offset"] == 0
        await send_chunk(one.peer, text[5:] + text)
        lines = b""
        while lines.count(b"\n") < 2:
            lines += await next_chunk(one.peer)
        assert [json.loads(line)["offset"] for line in lines.splitlines()] == [1, 2]
        await one.peer.send(b"0\r\n\r\n")
        assert await one.peer.reader.readexactly(5) == b"0\r\n\r\n"
        assert (await post(one, text)).status == 200, "the connection goes on"


async def test_record_that_does_not_arrive_in_time_is_given_up() -> None:
    async with data_node(few(body_receive_s=0.05)) as one:
        await begin(one.peer)
        await send_chunk(one.peer, b'{"value":')
        reply = await one.peer.reply()
        assert reply.error_code == 40801
        assert await one.peer.is_closed()


async def test_silent_stream_ends_after_the_idle_time() -> None:
    async with data_node(few(keep_alive_s=0.05)) as one:
        await begin(one.peer)
        await send_chunk(one.peer, stream({"value": json_data("a")}))
        reply = await one.peer.reply()
        assert [row["error_code"] for row in receipts(reply)] == [200]
        assert await one.peer.is_closed()


async def test_record_larger_than_a_body_may_be_is_refused_before_its_end() -> None:
    async with data_node(few(body_bytes_max=1000)) as one:
        await begin(one.peer)
        await send_chunk(one.peer, b'{"value":{"type":"STRING","data":"' + b"x" * 2000)
        reply = await one.peer.reply()
        assert reply.error_code == 41301


async def test_unfinished_records_count_as_bytes_in_flight() -> None:
    async with data_node(few(bytes_in_flight_max=1000)) as one:
        await begin(one.peer)
        await send_chunk(one.peer, b'{"value":{"type":"STRING","data":"' + b"x" * 2000)
        assert (await one.peer.reply()).error_code == 42901


async def test_whole_records_count_as_bytes_in_flight_until_they_are_written() -> None:
    """Many small requests wait for their commit, and hold records like one large request."""
    body = stream({"value": {"type": "STRING", "data": "x" * 1000}})
    async with data_node(few(bytes_in_flight_max=16_000)) as one, AsyncExitStack() as stack:
        budget = one.server.context.broker.bytes_in_flight
        one.node.log().hold_flush = True
        peers = [
            await stack.enter_async_context(RawPeer.connected(one.server.port)) for _ in range(6)
        ]
        sent = [asyncio.ensure_future(peer.request("POST", RECORDS, body)) for peer in peers]
        await until(lambda: sum(each.done() for each in sent) == 3)
        refused = [await each for each in sent if each.done()]
        assert [reply.error_code for reply in refused] == [42901] * 3
        assert 3 * len(body) < budget.used <= 4_000
        one.node.log().flush_now()
        await asyncio.gather(*sent)
        assert one.node.log().log_end_offset == 3
        assert budget.used == 0


async def test_stream_gives_the_bytes_of_written_records_back_while_it_goes_on() -> None:
    async with data_node(few(bytes_in_flight_max=16_000)) as one:
        await begin(one.peer)
        log, budget = one.node.log(), one.server.context.broker.bytes_in_flight
        for written in range(1, 6):
            await send_chunk(one.peer, stream({"value": {"type": "STRING", "data": "x" * 1000}}))
            await until(lambda written=written: log.log_end_offset == written)
            await until(lambda: budget.used == 0)
        await one.peer.send(b"0\r\n\r\n")
        assert len(receipts(await one.peer.reply())) == 5


async def test_record_that_trickles_in_is_ended() -> None:
    bounds = few(body_receive_s=0.3, body_bytes_per_second_min=1000)
    async with data_node(bounds) as one:
        await begin(one.peer)
        reply = asyncio.create_task(one.peer.reply())
        async with asyncio.timeout(PATIENCE_S):
            await send_chunk(one.peer, b'{"value":{"type":"STRING","data":"')
            while not reply.done():
                one.peer.writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(0.02)
        assert (await reply).error_code == 40801


async def test_stream_of_small_records_may_be_slow() -> None:
    bounds = few(body_receive_s=1.0, body_bytes_per_second_min=1_000_000)
    async with data_node(bounds) as one:
        await begin(one.peer)
        text = stream({"value": json_data("a")}, {"value": json_data("b")})
        for number in range(12):
            # Each chunk ends a record, and begins the next. All take longer than the bound; one may
            # be ten times later on a busy machine.
            await send_chunk(one.peer, text[-5:] + text[:-5] if number else text[:-5])
            await asyncio.sleep(0.1)
        await send_chunk(one.peer, text[-5:])
        await one.peer.send(b"0\r\n\r\n")
        assert {each["error_code"] for each in receipts(await one.peer.reply())} == {200}


async def test_batch_has_a_bounded_number_of_entries() -> None:
    async with data_node() as one:
        entries = [{"id": str(number), "value": None} for number in range(10_001)]
        body = json.dumps({"entries": entries}).encode()
        assert (await one.peer.request("POST", f"{RECORDS}:batch", body)).error_code == 41301


async def test_peer_that_waits_to_be_asked_is_asked() -> None:
    async with data_node() as one:
        await begin(one.peer, RECORDS, "Expect: 100-continue")
        assert b"100 Continue" in await one.peer.reader.readuntil(b"\r\n\r\n")
        await send_chunk(one.peer, stream({"value": json_data("a")}))
        await one.peer.send(b"0\r\n\r\n")
        assert len(receipts(await one.peer.reply())) == 1


async def test_stream_ends_when_the_server_closes() -> None:
    async with data_node() as one:
        await begin(one.peer)
        await send_chunk(one.peer, stream({"value": json_data("a")}))
        await until(lambda: one.node.record_count() == 1)
        closing = asyncio.create_task(one.server.close())
        assert len(receipts(await one.peer.reply())) == 1
        await closing


async def test_batch_tells_successes_and_failures_by_id() -> None:
    async with data_node() as one:
        one.node.log("six", 2).append_error = LogError(DISK_FULL, "full")
        entries = [
            {"id": f"e{n}", "partition_id": n, "key": json_data("k"), "value": json_data(n)}
            for n in (1, 2, 3)
        ]
        reply = await post(one, stream({"entries": entries}), f"{SIX}:batch")
        assert reply.status == 207
        assert [row["id"] for row in reply.json["successes"]] == ["e1", "e3"]
        assert reply.json["successes"][0]["key"] == {"type": "JSON", "size": 3}
        assert reply.json["successes"][1]["partition_id"] == 3
        assert reply.json["failures"] == [{"id": "e2", "error_code": 50701, "message": "full"}]
        one.node.log("six", 1).append_error = LogError(DISK_FULL, "full")
        reply = await post(one, stream({"entries": entries[:2]}), f"{SIX}:batch")
        assert (reply.status, reply.json["successes"]) == (207, [])
        assert [row["error_code"] for row in reply.json["failures"]] == [50701, 50701]


async def test_bad_entries_of_a_batch_fail_alone() -> None:
    async with data_node() as one:
        await one.node.metadata.alter_configs("one", {"max.message.bytes": "1024"})
        bad: list[tuple[dict[str, Any], int]] = [
            ({"value": {"type": "AVRO", "data": 1}}, 42201),
            ({"value": {"type": "BINARY", "data": "Q"}}, 42201),
            ({"value": json_data(1), "partition_id": 7}, 40402),
            ({"value": json_data(1), "partition_id": -1}, 42201),
            ({"value": json_data(1), "timestamp": "yesterday"}, 42201),
            ({"value": json_data(1), "timestamp": "1969-02-05T19:14:42Z"}, 42201),
            ({"value": json_data("x" * 3000)}, 41302),
            ({"value": json_data(1), "unknown": 1}, 42201),
            ({}, 42201),
        ]
        entries = []
        for number, (entry, _) in enumerate(bad):
            entries += [{"id": f"b{number}", **entry}]
            entries += [{"id": f"g{number}", "value": json_data(number)}]
        reply = await post(one, stream({"entries": entries}), f"{RECORDS}:batch")
        assert reply.status == 207
        failures = [(row["id"], row["error_code"]) for row in reply.json["failures"]]
        assert failures == [(f"b{number}", code) for number, (_, code) in enumerate(bad)]
        successes = [(row["id"], row["offset"]) for row in reply.json["successes"]]
        assert successes == [(f"g{number}", number) for number in range(len(bad))]
        assert [value for _, value in contents(one.node.log())] == [
            str(number).encode() for number in range(len(bad))
        ]


async def test_refused_entries_cost_no_append_each() -> None:
    async with data_node() as one:
        await one.node.metadata.alter_configs("one", {"max.message.bytes": "1024"})
        entries = [
            {"id": str(number), "value": json_data("x" * 3000 * (number % 2))}
            for number in range(100)
        ]
        reply = await post(one, stream({"entries": entries}), f"{RECORDS}:batch")
        assert len(reply.json["successes"]) == len(reply.json["failures"]) == 50
        assert one.node.log().appends == 1
        reply = await post(one, stream(*[{"value": entry["value"]} for entry in entries]))
        assert [row["error_code"] for row in receipts(reply)] == [200, 41302] * 50
        # One for each step of the stream, which has 32 KiB.
        assert one.node.log().appends <= 8


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 42201),
        (b"{}", 42201),
        (b'{"entries":[]}', 42201),
        (b'{"entries":[{"value":{"type":"JSON"}}]}', 42201),
        (b'{"entries":[{"id":"","value":{"type":"JSON"}}]}', 42201),
        (b'{"entries":[{"id":"a b","value":{"type":"JSON"}}]}', 42201),
        (b'{"entries":[{"id":"a","value":null},{"id":"a","value":null}]}', 42201),
        (b'{"entries":[{"id":"a","value":null},{"value":null}]}', 42201),
        (b'{"entries":[{"id":"a","value":null},7]}', 42201),
        (b'{"entries":[{"id":"a","value":{"type":"JSON","data":"\xff"}}]}', 42201),
        (b'{"entries":' + b"[" * 5000, 42201),
    ],
)
async def test_bad_batch_is_refused_whole(body: bytes, code: int) -> None:
    async with data_node() as one:
        assert (await post(one, body, f"{SIX}:batch")).error_code == code
        assert one.node.record_count() == 0


async def test_batch_is_bounded_in_number() -> None:
    async with data_node(few(records_per_request_max=2)) as one:
        entries = [{"id": str(n), "value": None} for n in range(3)]
        reply = await post(one, stream({"entries": entries}), f"{SIX}:batch")
        assert reply.error_code == 41301


NOISE = st.binary(max_size=40) | st.text('{}[]":,\\ typedavluJSON10', max_size=40).map(str.encode)
FIELD = st.none() | st.integers(-1, 7) | st.sampled_from(["", "QQ==", [], {}, 2**63, 1.5])
DATA = st.none() | st.fixed_dictionaries(
    {"type": st.sampled_from(["JSON", "BINARY", "STRING", "X", 1])}, optional={"data": FIELD}
)
RECORD = st.dictionaries(st.sampled_from(["key", "value"]), DATA).flatmap(
    lambda base: st.dictionaries(
        st.sampled_from(["partition_id", "timestamp", "headers", "id"]), FIELD, max_size=2
    ).map(lambda more: {**base, **more})
)


async def test_no_stream_makes_an_internal_error() -> None:
    async with data_node() as one:
        loop = asyncio.get_running_loop()

        async def attempt(body: bytes, path: str) -> None:
            before = one.node.record_count()
            async with RawPeer.connected(one.server.port) as peer:
                reply = await peer.request("POST", path, body)
            if reply.status == 200:
                codes = [row["error_code"] for row in receipts(reply)]
                assert set(codes) <= {200, 42201, 40402}
                assert one.node.record_count() - before == codes.count(200)
            elif reply.status == 207:
                assert not reply.json["failures"]
            else:
                assert reply.error_code in (42201, 40402, 40001)
                assert one.node.record_count() == before

        @settings(max_examples=examples(150), deadline=None)
        @given(st.lists(RECORD, max_size=4), NOISE, st.sampled_from(["", "\n"]))
        def run(records: list[Any], noise: bytes, between: str) -> None:
            body = stream(*records, between=between)
            batch = json.dumps({"entries": records}).encode()
            for path, data in [(SIX, body + noise), (SIX, noise + body), (f"{SIX}:batch", batch)]:
                asyncio.run_coroutine_threadsafe(attempt(data, path), loop).result(20)

        await asyncio.to_thread(run)
