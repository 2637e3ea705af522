from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.batch import iterate_headers
from raftlog.record.errors import (
    DISK_FULL,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.partitioner import partition_for_key
from tests.broker.data_fakes import NOW_MS, MemoryLog, contents
from tests.examples import examples
from tests.http.http_peers import RawPeer, Reply
from tests.rest.data_fakes import DataPeer, data_node, few
from tests.waiting import until

ONE = '{"records":[{"value":{"x":1}}]}'


async def post(one: DataPeer, path: str, body: str | bytes, **headers: str) -> Reply:
    data = body.encode() if isinstance(body, str) else body
    return await one.peer.request("POST", path, data, **headers)


def placed(reply: Reply) -> list[tuple[int, int]]:
    assert reply.status == 200, reply.body
    assert reply.json["key_schema_id"] is None
    assert reply.json["value_schema_id"] is None
    for row in reply.json["offsets"]:
        assert set(row) == {"partition", "offset", "error_code", "error"}
        assert row["error_code"] is None
        assert row["error"] is None
    return [(row["partition"], row["offset"]) for row in reply.json["offsets"]]


def batch_count(log: MemoryLog) -> int:
    return sum(1 for data in log.batches for _ in iterate_headers(data))


async def test_records_get_offsets_in_the_requests_order() -> None:
    async with data_node() as one:
        body = json.dumps({"records": [{"value": n} for n in range(3)]})
        reply = await post(one, "/topics/one", body)
        assert placed(reply) == [(0, 0), (0, 1), (0, 2)]
        assert reply.headers["content-type"] == "application/vnd.kafka.v2+json"
        assert [value for _, value in contents(one.node.log())] == [b"0", b"1", b"2"]
        assert batch_count(one.node.log()) == 1, "records of one request are batched"


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/x-www-form-urlencoded",
        "application/vnd.kafka.v2+json",
        "application/vnd.kafka.json.v2+json",
    ],
)
async def test_these_content_types_mean_json(content_type: str | None) -> None:
    async with data_node() as one:
        headers = {} if content_type is None else {"Content_Type": content_type}
        assert placed(await post(one, "/topics/one", ONE, **headers)) == [(0, 0)]
        assert contents(one.node.log()) == [(None, b'{"x":1}')]


async def test_binary_and_text_store_what_they_stand_for() -> None:
    async with data_node() as one:
        binary = '{"records":[{"key":"AP8=","value":"gA=="}]}'
        text = '{"records":[{"key":"k","value":"né"}]}'
        placed(
            await post(
                one, "/topics/one", binary, Content_Type="application/vnd.kafka.binary.v2+json"
            )
        )
        placed(
            await post(one, "/topics/one", text, Content_Type="application/vnd.kafka.text.v2+json")
        )
        assert contents(one.node.log()) == [(b"\x00\xff", b"\x80"), (b"k", "né".encode())]


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/vnd.kafka.avro.v2+json", "application/vnd.raftlog.batches", "x"],
)
async def test_other_content_types_are_refused(content_type: str) -> None:
    async with data_node() as one:
        reply = await post(one, "/topics/one", ONE, Content_Type=content_type)
        assert reply.error_code == 41501
        assert one.node.record_count() == 0


async def test_keyed_records_go_where_kafkas_partitioner_puts_them() -> None:
    async with data_node() as one:
        keys = [f"k{n}" for n in range(20)]
        body = json.dumps({"records": [{"key": key, "value": key} for key in keys]})
        rows = placed(await post(one, "/topics/six", body))
        expected = [partition_for_key(json.dumps(key).encode(), 6) for key in keys]
        assert [partition for partition, _ in rows] == expected
        for number in set(expected):
            log = one.node.log("six", number)
            mine = [k for k, p in zip(keys, expected, strict=True) if p == number]
            assert [json.loads(value or b"") for _, value in contents(log)] == mine
            assert batch_count(log) == 1


async def test_records_without_key_stay_together_and_take_turns_between_requests() -> None:
    async with data_node() as one:
        body = '{"records":[{"value":1},{"value":2}]}'
        seen = []
        for _ in range(6):
            rows = placed(await post(one, "/topics/six", body))
            assert len({partition for partition, _ in rows}) == 1
            seen.append(rows[0][0])
        assert sorted(seen) == list(range(6))


async def test_partition_of_the_record_and_of_the_path() -> None:
    async with data_node() as one:
        body = '{"records":[{"value":1,"partition":4},{"value":2,"partition":1}]}'
        assert placed(await post(one, "/topics/six", body)) == [(4, 0), (1, 0)]
        body = '{"records":[{"key":"k","value":1},{"value":2,"partition":5}]}'
        assert placed(await post(one, "/topics/six/partitions/5", body)) == [(5, 0), (5, 1)]
        body = '{"records":[{"value":2,"partition":4}]}'
        reply = await post(one, "/topics/six/partitions/5", body)
        assert reply.error_code == 42201


async def test_the_default_timestamp_is_the_clusters_time() -> None:
    """The record expires by it, whatever the clock of this node shows."""
    async with data_node() as one:
        right_ms = NOW_MS + 30 * 86_400_000
        one.node.services.cluster_clock.note_cluster_time(right_ms, right_ms)
        placed(await post(one, "/topics/one", '{"records":[{"value":1}]}'))
        reply = await one.peer.request("GET", "/topics/one/partitions/0/records")
        assert right_ms <= reply.json[0]["timestamp"] <= right_ms + 60_000


async def test_timestamps_and_headers_are_kept_and_now_is_the_default() -> None:
    async with data_node() as one:
        body = (
            '{"records":[{"value":1,"timestamp":0},{"value":2},{"value":3,"timestamp":'
            '9223372036854775807,"headers":[{"key":"h","value":"QQ=="}]}]}'
        )
        placed(await post(one, "/topics/one", body))
        reply = await one.peer.request("GET", "/topics/one/partitions/0/records")
        assert [record["timestamp"] for record in reply.json] == [0, NOW_MS, 2**63 - 1]
        assert [record.get("headers") for record in reply.json] == [
            None,
            None,
            [{"key": "h", "value": "QQ=="}],
        ]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/topics/none", 40401),
        ("/topics/..%2Fone", 40401),
        (f"/topics/{quote('é' * 300)}", 40401),
        ("/topics/six/partitions/6", 40402),
        ("/topics/six/partitions/-1", 40402),
        ("/topics/six/partitions/x", 40402),
        ("/topics/six/partitions/99999999999999999999", 40402),
        ("/topics/none/partitions/0", 40401),
        ("/topics/one?acks=2", 40001),
        ("/topics/one?timeout=-1", 40001),
        ("/topics/one?timeout=x", 40001),
        ("/topics/one?producer_id=1", 40001),
        ("/topics/one?producer_id=-1&producer_epoch=0&sequence=0", 40001),
        ("/topics/one?producer_id=1&producer_epoch=40000&sequence=0", 40001),
        ("/topics/one?producer_id=1&producer_epoch=0&sequence=2147483648", 40001),
        ("/topics/one?acks=1&acks=1", 40001),
        ("/topics/one?acks=%ff", 40001),
    ],
)
async def test_wrong_address_or_option_is_a_typed_error(path: str, code: int) -> None:
    async with data_node() as one:
        assert (await post(one, path, ONE)).error_code == code
        assert one.node.record_count() == 0


@pytest.mark.parametrize("acks", ["all", "-1", "1", "0"])
async def test_acks_in_query_or_body(acks: str) -> None:
    async with data_node() as one:
        assert placed(await post(one, f"/topics/one?acks={acks}&timeout=5000", ONE)) == [(0, 0)]
        body = f'{{"records":[{{"value":1}}],"acks":"{acks}","timeout":5000}}'
        assert placed(await post(one, "/topics/one", body)) == [(0, 1)]
        assert (await post(one, "/topics/one?acks=1", body)).error_code == 40001
        body = '{"records":[{"value":1}],"acks":7}'
        assert (await post(one, "/topics/one", body)).error_code == 40001


@pytest.mark.parametrize(
    "body",
    [
        '{"records":[{"value":1},{"value":2,"partition":6}]}',
        '{"records":[{"value":1},{"value":2,"partition":-1}]}',
        '{"records":[{"value":1},{"valeu":2}]}',
        '{"records":[{"value":1},{"value":"' + "x" * 3000 + '","partition":1}]}',
    ],
)
async def test_nothing_is_written_of_a_request_with_one_bad_record(body: str) -> None:
    async with data_node() as one:
        await one.node.metadata.alter_configs("six", {"max.message.bytes": "1024"})
        reply = await post(one, "/topics/six", body)
        assert reply.error_code in (40402, 42201, 41302)
        assert one.node.record_count() == 0


async def test_request_over_the_batch_limit_becomes_several_batches_of_one_append() -> None:
    async with data_node() as one:
        await one.node.metadata.alter_configs("one", {"max.message.bytes": "1024"})
        body = json.dumps({"records": [{"value": "x" * 300} for _ in range(10)]})
        rows = placed(await post(one, "/topics/one", body))
        assert rows == [(0, n) for n in range(10)]
        assert batch_count(one.node.log()) == 4
        assert one.node.log().appends == 1


async def test_too_large_body_and_too_many_records() -> None:
    few_records = few(body_bytes_max=200, records_per_request_max=2)
    async with data_node(few_records) as one:
        body = '{"records":[{"value":1},{"value":2},{"value":3}]}'
        assert (await post(one, "/topics/one", body)).error_code == 41301
        body = json.dumps({"records": [{"value": "x" * 300}]})
        async with RawPeer.connected(one.server.port) as other:
            reply = await other.request("POST", "/topics/one", body.encode())
            assert reply.error_code == 41301
        assert one.node.record_count() == 0


async def test_repeated_sequence_returns_the_first_offsets() -> None:
    async with data_node() as one:
        path = "/topics/six/partitions/2?producer_id=9&producer_epoch=0&sequence="
        body = '{"records":[{"value":1},{"value":2}]}'
        first = placed(await post(one, path + "0", body))
        assert placed(await post(one, path + "0", body)) == first == [(2, 0), (2, 1)]
        assert placed(await post(one, path + "2", body)) == [(2, 2), (2, 3)]
        assert one.node.record_count() == 4
        assert (await post(one, path + "9", body)).error_code == 40905
        other = path.replace("producer_id=9", "producer_id=8")
        assert (await post(one, other + "9", body)).error_code == 40910
        in_body = (
            '{"records":[{"value":1},{"value":2}],"producer_id":9,"producer_epoch":0,"sequence":2}'
        )
        assert placed(await post(one, "/topics/six/partitions/2", in_body)) == [(2, 2), (2, 3)]


async def test_sequence_of_a_split_request_goes_on_and_wraps() -> None:
    async with data_node() as one:
        await one.node.metadata.alter_configs("one", {"max.message.bytes": "1024"})
        body = json.dumps({"records": [{"value": "x" * 300} for _ in range(10)]})
        last = 2**31 - 1
        log = one.node.log()
        log.expect_sequence(9, 0, last - 1)
        path = f"/topics/one?producer_id=9&producer_epoch=0&sequence={last - 1}"
        assert len(placed(await post(one, path, body))) == 10
        headers = [header for data in log.batches for _, header in iterate_headers(data)]
        assert [header.base_sequence for header in headers] == [last - 1, 1, 4, 7]


async def test_idempotent_request_must_be_certain_of_its_one_partition() -> None:
    async with data_node() as one:
        query = "?producer_id=9&producer_epoch=0&sequence=0"
        reply = await post(one, f"/topics/six{query}", ONE)
        assert reply.error_code == 42201
        body = '{"records":[{"value":1,"partition":0},{"value":2,"partition":1}]}'
        reply = await post(one, f"/topics/six{query}", body)
        assert reply.error_code == 42201
        assert "0, 1" in reply.json["message"]
        assert one.node.record_count() == 0
        body = '{"records":[{"key":"a","value":1},{"key":"a","value":2}]}'
        assert len(placed(await post(one, f"/topics/six{query}", body))) == 2


async def test_partly_failed_request_tells_of_each_record() -> None:
    async with data_node() as one:
        one.node.log("six", 1).append_error = LogError(DISK_FULL, 'full: "é"')
        one.node.log("six", 2).append_error = LogError(STORAGE_FAILED)
        one.node.replicas.offline["six", 3] = LogError(NO_LEADER)
        body = json.dumps({"records": [{"value": n, "partition": n % 4} for n in range(8)]})
        reply = await post(one, "/topics/six", body)
        assert reply.status == 200
        rows = reply.json["offsets"]
        assert [row["error_code"] for row in rows] == [None, 2, 1, 2] * 2
        assert [row["offset"] for row in rows] == [0, None, None, None, 1, None, None, None]
        assert rows[1]["error"] == 'full: "é"'
        assert rows[3]["partition"] == 3


async def test_request_of_which_nothing_was_written_has_the_errors_status() -> None:
    async with data_node() as one:
        one.node.log().append_error = LogError(NOT_ENOUGH_REPLICAS)
        assert (await post(one, "/topics/one", ONE)).error_code == 50302
        one.node.log("six", 1).append_error = LogError(DISK_FULL)
        one.node.log("six", 2).append_error = LogError(STORAGE_FAILED)
        body = '{"records":[{"value":1,"partition":1},{"value":2,"partition":2}]}'
        reply = await post(one, "/topics/six", body)
        assert reply.error_code == 50303, "the one whose outcome is unknown counts"


async def test_timeout_is_told_as_unknown() -> None:
    async with data_node() as one:
        one.node.log().hold_flush = True
        reply = await post(one, "/topics/one?timeout=20", ONE)
        assert reply.error_code == 50003
        assert "unknown" in reply.json["message"]
        reply = await post(one, "/topics/one?timeout=20&acks=1", ONE)
        assert placed(reply) == [(0, 1)]


async def test_unknown_topic_is_created_only_if_the_settings_say_so() -> None:
    async with data_node(auto_create_topics=True) as one:
        assert placed(await post(one, "/topics/fresh", ONE)) == [(0, 0)]
        assert (await post(one, "/topics/..", ONE)).error_code == 42205
        assert "fresh" in one.node.metadata.image.topics_by_name


async def test_requests_that_arrive_together_share_a_batch_and_get_their_own_offsets() -> None:
    async with data_node() as one:
        one.node.log().hold_flush = True
        peers = [await stack_peer(one) for _ in range(8)]
        bodies = [f'{{"records":[{{"value":{n}}},{{"value":{n}}}]}}' for n in range(8)]
        raw = [
            "POST /topics/one HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
            for body in bodies
        ]
        for peer, request in zip(peers, raw, strict=True):
            peer.writer.write(request.encode())
        await until(lambda: one.node.record_count() == 16)
        one.node.log().flush_now()
        values = [value for _, value in contents(one.node.log())]
        for number, peer in enumerate(peers):
            rows = placed(await peer.reply())
            assert [values[offset] for _, offset in rows] == [str(number).encode()] * 2
            assert rows[1][1] == rows[0][1] + 1
        assert one.node.log().appends < 8
        for peer in peers:
            peer.writer.close()


async def stack_peer(one: DataPeer) -> RawPeer:
    reader, writer = await asyncio.open_connection("127.0.0.1", one.server.port)
    return RawPeer(reader, writer)


QUERY = st.dictionaries(
    st.sampled_from(["acks", "timeout", "producer_id", "producer_epoch", "sequence", "x"]),
    st.sampled_from(["all", "0", "1", "-1", "", "x", "99999999999999999999", "1.5", " 1", "²"]),
    max_size=4,
)
FIELDS: st.SearchStrategy[Any] = (
    st.none()
    | st.integers(-2, 7)
    | st.sampled_from([2**31, 2**63, 1.5, "QQ==", "Q", "", [], {}, [[]], {"a": 1}])
)
RECORD = st.dictionaries(
    st.sampled_from(["key", "value", "partition", "timestamp", "headers", "x"]), FIELDS
) | st.builds(lambda value, key: {"value": value, "key": key}, FIELDS, FIELDS)
BODY = (
    st.builds(
        lambda records, more: json.dumps({"records": records, **more}).encode(),
        st.lists(RECORD, max_size=3) | FIELDS,
        st.dictionaries(st.sampled_from(["acks", "sequence", "key_schema", "x"]), FIELDS),
    )
    | st.binary(max_size=30)
    | st.just(base64.b64encode(b"x"))
)


async def test_no_body_and_no_query_makes_an_internal_error() -> None:
    async with data_node() as one:

        async def attempt(query: dict[str, str], body: bytes, kind: str, path: str) -> None:
            text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
            before = one.node.record_count()
            media = f"application/vnd.kafka.{kind}.v2+json"
            reply = await post(one, f"{path}?{text}", body, Content_Type=media)
            if reply.status == 200:
                assert one.node.record_count() >= before
            else:
                assert reply.error_code // 100 in (400, 404, 409, 413, 422)
                assert one.node.record_count() == before

        await fuzz(attempt)


async def fuzz(attempt: Any) -> None:
    """Run hypothesis in a thread: it calls synchronously, and the server is in this loop."""
    loop = asyncio.get_running_loop()

    @settings(max_examples=examples(150), deadline=None)
    @given(
        QUERY,
        BODY,
        st.sampled_from(["json", "binary", "text"]),
        st.sampled_from(["/topics/one", "/topics/six", "/topics/six/partitions/3"]),
    )
    def run(query: dict[str, str], body: bytes, kind: str, path: str) -> None:
        asyncio.run_coroutine_threadsafe(attempt(query, body, kind, path), loop).result(20)

    await asyncio.to_thread(run)
