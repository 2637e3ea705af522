"""Consumer instances over HTTP, against the coordinators of one node, over logs in memory."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raftlog.broker.authorize import Operation
from raftlog.record.errors import FORBIDDEN, NO_LEADER, LogError
from raftlog.record.types import Offset
from raftlog.rest.v2 import leader_reads
from tests.http.http_peers import RawPeer, Reply
from tests.rest.data_fakes import DataPeer
from tests.rest.v1.test_groups import group_node
from tests.waiting import DEADLINE_S

V2 = "application/vnd.kafka.v2+json"
JSON_RECORDS = "application/vnd.kafka.json.v2+json"
BINARY_RECORDS = "application/vnd.kafka.binary.v2+json"
CHOOSE_ONE = (
    "IllegalStateError: You must choose only one way to configure your consumer: (1) subscribe to "
    "specific topics by name, (2) subscribe to topics matching a regex pattern, (3) assign itself "
    "specific topic-partitions."
)


class Client:
    """A client of one instance."""

    def __init__(self, one: DataPeer, group: str = "g", name: str = "i") -> None:
        self.one = one
        self.peer = one.peer
        self.group = group
        self.name = name

    @property
    def path(self) -> str:
        return f"/consumers/{self.group}/instances/{self.name}"

    async def create(self, **options: Any) -> Reply:
        body = {"name": self.name, "format": "json", "auto.offset.reset": "earliest", **options}
        return await self.ask("POST", f"/consumers/{self.group}", body)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        content = b"" if body is None else json.dumps(body).encode()
        headers = {"Content_Type": V2, **headers}
        return await self.peer.request(method, path, content, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.ask("POST", self.path + path, body, **headers)

    async def get(self, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.ask("GET", self.path + path, body, **headers)

    async def delete(self, path: str = "") -> Reply:
        return await self.ask("DELETE", self.path + path)

    async def subscribe(self, *topics: str) -> None:
        assert (await self.post("/subscription", {"topics": topics})).status == 204

    async def read(self, query: str = "timeout=0", **headers: str) -> list[Any]:
        reply = await self.get(f"/records?{query}", **headers)
        assert reply.status == 200, reply.body
        found: list[Any] = reply.json
        return found

    async def values(self, query: str = "timeout=0") -> list[Any]:
        return [record["value"] for record in await self.read(query)]

    async def offsets(self, *partitions: int, topic: str = "six") -> list[int]:
        body = {"partitions": [{"topic": topic, "partition": number} for number in partitions]}
        reply = await self.get("/offsets", body)
        assert reply.status == 200, reply.body
        return [row["offset"] for row in reply.json["offsets"]]


@asynccontextmanager
async def instance(**options: Any) -> AsyncIterator[Client]:
    async with group_node() as one:
        client = Client(one)
        assert (await client.create(**options)).status == 200
        yield client


async def produce(one: DataPeer, topic: str, *values: Any, partition: int | None = None) -> None:
    records = [{"value": value} for value in values]
    path = f"/topics/{topic}" + ("" if partition is None else f"/partitions/{partition}")
    reply = await one.peer.request("POST", path, json.dumps({"records": records}).encode())
    assert reply.status == 200, reply.body


# 1, 2: create and delete


@pytest.mark.parametrize("media_type", [V2, JSON_RECORDS, BINARY_RECORDS, "application/json"])
@pytest.mark.parametrize("trail", ["", "/"])
async def test_an_instance_is_created_once_and_deleted(media_type: str, trail: str) -> None:
    async with group_node() as one:
        client = Client(one, "a%2Fb")
        path = f"/consumers/a%2Fb{trail}"
        body = {
            "name": "i",
            "format": "json",
            "id": "1",
            "auto.commit.enable": "true",
            "fetch.min.bytes": "1",
            "consumer.request.timeout.ms": "10000",
            "topic.metadata.refresh.interval.ms": 100,
        }
        reply = await client.ask("POST", path, body, Content_Type=media_type)
        assert reply.status == 200
        assert reply.headers["content-type"] == V2
        assert reply.json == {
            "instance_id": "i",
            "base_uri": "http://localhost/consumers/a%2Fb/instances/i",
        }
        assert (await client.ask("POST", path, body)).error_code == 40902
        assert (await client.delete(trail)).status == 204
        reply = await client.delete(trail)
        assert reply.error_code == 40403
        assert reply.json["message"] == "Consumer instance not found."
        assert (await client.ask("POST", path, body)).status == 200


async def test_an_instance_without_a_body_gets_a_name() -> None:
    async with group_node() as one:
        replies = [await one.peer.request("POST", "/consumers/g") for _ in range(2)]
        names = {reply.json["instance_id"] for reply in replies}
        assert len(names) == 2
        for name in names:
            reply = await one.peer.request("GET", f"/consumers/g/instances/{name}/subscription")
            assert reply.json == {"topics": []}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"fetch.min.bytes": -10}, 42204),
        ({"auto.offset.reset": "bad"}, 42204),
        ({"format": "avro"}, 42204),
        ({"auto.commit.enable": "yes"}, 42204),
        ({"consumer.request.timeout.ms": "soon"}, 42204),
        ({"name": ""}, 42204),
        ({"name": "x" * 256}, 42204),
        ({"name": "a\nb"}, 40001),
        ({"name": 5}, 42201),
        ({"fetch.min.bytes": [1]}, 42201),
    ],
)
async def test_bad_options_are_refused(options: dict[str, Any], code: int) -> None:
    async with group_node() as one:
        reply = await Client(one).create(**options)
        assert reply.error_code == code
        if code == 42204:
            assert reply.json["message"].startswith("Invalid consumer configuration: ")


async def test_media_types_of_a_creation() -> None:
    async with group_node() as one:
        body = b'{"name": "i"}'
        reply = await one.peer.request("POST", "/consumers/g", body)
        assert reply.error_code == 41501
        reply = await one.peer.request("POST", "/consumers/g", body, Content_Type="text/plain")
        assert reply.error_code == 41501
        headers = {"Content_Type": V2, "Accept": BINARY_RECORDS}
        reply = await one.peer.request("POST", "/consumers/g", body, **headers)
        assert reply.error_code == 40601
        assert reply.headers["content-type"] == "application/json"


async def test_names_in_paths() -> None:
    async with group_node() as one:
        assert (await one.peer.request("POST", "/consumers/a%0Ab")).error_code == 40001
        assert (await one.peer.request("POST", "/consumers/")).error_code == 40400
        assert (await one.peer.request("POST", "/consumers")).error_code == 40400
        path = "/consumers/g/instances/a%07"
        assert (await one.peer.request("DELETE", path)).error_code == 40001
        assert (await one.peer.request("GET", f"{path}/records")).error_code == 40001
        assert (await one.peer.request("DELETE", "/consumers/g/instances/")).error_code == 40400
        path = "/consumers/g/instances//subscription"
        assert (await one.peer.request("GET", path)).error_code == 40400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/subscription", {"topics": ["one"]}),
        ("GET", "/subscription", None),
        ("DELETE", "/subscription", None),
        ("POST", "/assignments", {"partitions": [{"topic": "one", "partition": 0}]}),
        ("GET", "/assignments", None),
        ("POST", "/positions", {"offsets": [{"topic": "one", "partition": 0, "offset": 0}]}),
        ("POST", "/positions/end", {"partitions": [{"topic": "one", "partition": 0}]}),
        ("GET", "/records", None),
        ("POST", "/offsets", None),
        ("GET", "/offsets", None),
    ],
)
async def test_an_unknown_instance_is_told(method: str, path: str, body: Any) -> None:
    async with group_node() as one:
        client = Client(one)
        assert (await client.ask(method, client.path + path, body)).error_code == 40403


# 3, 4: subscriptions and assignments


@pytest.mark.parametrize("trail", ["", "/"])
async def test_subscriptions(trail: str) -> None:
    async with instance() as client:
        path = f"/subscription{trail}"
        assert (await client.get(path)).json == {"topics": []}
        assert (await client.post(path, {"topics": ["six", "one"]})).status == 204
        assert (await client.get(path)).json == {"topics": ["six", "one"]}
        partitions = (await client.get(f"/assignments{trail}")).json["partitions"]
        assert len(partitions) == 7
        for other in (
            {"topic_pattern": "o.*"},
            {"topics": ["one"], "topic_pattern": "o.*"},
        ):
            reply = await client.post(path, other)
            assert reply.error_code == 40903
            assert reply.json["message"] == CHOOSE_ONE
        body = {"partitions": [{"topic": "one", "partition": 0}]}
        assert (await client.post(f"/assignments{trail}", body)).error_code == 40903
        assert (await client.delete(path)).status == 204
        assert (await client.get(path)).json == {"topics": []}
        assert (await client.post(path, {"topic_pattern": "o.*"})).status == 204
        assert (await client.get(path)).json == {"topics": ["one"]}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"topics": "one"}, 42201),
        ({"topic_pattern": ["one"]}, 42201),
        ({}, 42201),
        (None, 42201),
        ({"topics": ["a\tb"]}, 40001),
        ({"topic_pattern": "("}, 42222),
    ],
)
async def test_bad_subscriptions_are_refused(body: Any, code: int) -> None:
    async with instance() as client:
        assert (await client.post("/subscription", body)).error_code == code
        assert (await client.get("/subscription")).json == {"topics": []}


async def test_assignments() -> None:
    async with instance() as client:
        assert (await client.get("/assignments")).json == {"partitions": []}
        partitions = [{"topic": "one", "partition": 0}, {"topic": "six", "partition": 4}]
        assert (await client.post("/assignments", {"partitions": partitions})).status == 204
        found = (await client.get("/assignments")).json["partitions"]
        assert sorted(found, key=lambda row: row["topic"]) == partitions
        reply = await client.post("/subscription", {"topics": ["one"]})
        assert reply.error_code == 40903
        for place, code in (({"topic": "no", "partition": 0}, 40401),
                            ({"topic": "one", "partition": 1}, 40402)):  # fmt: skip
            body = {"partitions": [place]}
            assert (await client.post("/assignments", body)).error_code == code


# 5: positions


async def test_positions() -> None:
    async with instance() as client:
        await produce(client.one, "one", *range(5))
        place = {"topic": "one", "partition": 0}
        assert (await client.post("/assignments", {"partitions": [place]})).status == 204
        assert await client.values() == [0, 1, 2, 3, 4]
        assert (
            await client.post("/positions", {"offsets": [{**place, "offset": 3}]})
        ).status == 204
        assert await client.values() == [3, 4]
        for trail in ("", "/"):
            path = f"/positions{trail}/beginning"
            assert (await client.post(path, {"partitions": [place]})).status == 204
            assert await client.values() == [0, 1, 2, 3, 4]
        assert (await client.post("/positions/beginning", {"partitions": [place]})).status == 204
        assert (await client.post("/positions/end", {"partitions": [place]})).status == 204
        assert await client.values() == []
        for seek in (
            client.post("/positions", {"offsets": [{"topic": "no", "partition": 0, "offset": 1}]}),
            client.post("/positions/end", {"partitions": [{"topic": "six", "partition": 0}]}),
        ):
            assert (await seek).error_code == 40903


async def test_positions_by_time() -> None:
    async with instance() as client:
        records = [{"value": time_ms, "timestamp": time_ms} for time_ms in (1_000, 2_000, 3_000)]
        body = json.dumps({"records": records}).encode()
        assert (await client.peer.request("POST", "/topics/one", body)).status == 200
        await client.subscribe("one")
        for text, expected in (
            ("1970-01-01T00:00:02Z", [2_000, 3_000]),
            ("1970-01-01T01:00:01.500+01:00", [2_000, 3_000]),
            ("1970-01-01T00:00:00", [1_000, 2_000, 3_000]),
            ("2030-01-01T00:00:00Z", []),
        ):
            seek = {"timestamps": [{"topic": "one", "partition": 0, "timestamp": text}]}
            assert (await client.post("/positions", seek)).status == 204
            assert await client.values() == expected
        seek = {"timestamps": [{"topic": "one", "partition": 0, "timestamp": "noon"}]}
        assert (await client.post("/positions", seek)).error_code == 42201


# 6: records


async def test_records_are_read_once_and_in_order() -> None:
    async with instance() as client:
        await client.subscribe("one", "six")
        assert await client.read() == []
        await produce(client.one, "one", {"a": 1}, partition=0)
        for number in range(6):
            await produce(client.one, "six", *range(10), partition=number)
        found = await client.read()
        assert len(found) == 61
        first = next(record for record in found if record["topic"] == "one")
        assert first.pop("timestamp") > 0
        assert first == {
            "topic": "one",
            "key": None,
            "value": {"a": 1},
            "partition": 0,
            "offset": 0,
        }
        for number in range(6):
            mine = [one for one in found if (one["topic"], one["partition"]) == ("six", number)]
            assert [one["offset"] for one in mine] == list(range(10))
        assert await client.read() == []


async def test_formats_and_media_types() -> None:
    async with instance(format="binary") as client:
        await client.subscribe("one")
        await produce(client.one, "one", "x")
        reply = await client.get("/records", Accept=JSON_RECORDS)
        assert reply.error_code == 40601
        assert (await client.get("/records", Accept="text/html")).error_code == 40601
        reply = await client.get("/records", Accept="*/*")
        assert reply.headers["content-type"] == BINARY_RECORDS
        assert b64decode(reply.json[0]["value"]) == b'"x"'
        for accept in (V2, "application/json", BINARY_RECORDS):
            reply = await client.get("/records?timeout=0", Accept=accept)
            assert (reply.status, reply.headers["content-type"]) == (200, accept)


async def test_a_read_waits_for_records_or_its_time() -> None:
    async with instance(**{"consumer.request.timeout.ms": 300}) as client:
        await client.subscribe("one")
        started = time.monotonic()
        assert await client.read("") == []
        assert 0.3 <= time.monotonic() - started < 5
        started = time.monotonic()
        assert await client.read("timeout=600") == []
        assert 0.6 <= time.monotonic() - started < 5
        async with RawPeer.connected(client.one.server.port) as other:
            read = asyncio.ensure_future(
                other.request("GET", f"{client.path}/records?timeout=60000")
            )
            await asyncio.sleep(0.05)
            await produce(client.one, "one", 1)
            async with asyncio.timeout(DEADLINE_S):
                assert [one["value"] for one in (await read).json] == [1]


async def test_a_read_without_partitions_waits_for_the_first() -> None:
    async with instance() as client:
        await produce(client.one, "one", 1)
        async with RawPeer.connected(client.one.server.port) as other:
            read = asyncio.ensure_future(
                other.request("GET", f"{client.path}/records?timeout=60000")
            )
            await asyncio.sleep(0.05)
            await client.subscribe("one")
            async with asyncio.timeout(DEADLINE_S):
                assert [one["value"] for one in (await read).json] == [1]


async def test_fetch_min_bytes_are_waited_for() -> None:
    async with instance(**{"fetch.min.bytes": 200}) as client:
        await client.subscribe("one")
        await produce(client.one, "one", 1)
        async with RawPeer.connected(client.one.server.port) as other:
            read = asyncio.ensure_future(
                other.request("GET", f"{client.path}/records?timeout=60000")
            )
            await asyncio.sleep(0.05)
            assert not read.done()
            await produce(client.one, "one", 2)
            async with asyncio.timeout(DEADLINE_S):
                assert not (await asyncio.wait({read}, timeout=0.05))[0]
                await produce(client.one, "one", 3)
                assert [one["value"] for one in (await read).json] == [1, 2, 3]
        assert (await client.read("timeout=10")) == []


async def test_max_bytes_bound_the_answer() -> None:
    async with instance(format="binary") as client:
        values = [b64encode(b"x" * 1_000).decode() for _ in range(50)]
        await produce(client.one, "one", *values, partition=0)
        for number in range(6):
            await produce(client.one, "six", values[0], partition=number)
        await client.subscribe("one", "six")
        for bound in (5_000, 10_000):
            reply = await client.get(f"/records?timeout=0&max_bytes={bound}")
            assert bound / 2 < len(reply.body) <= bound * 1.5
        assert len(await client.read("timeout=0&max_bytes=10")) == 1
        count = 1 + len(await client.read())
        assert count > 30
        assert await client.read() == []


async def test_a_hundred_records_come_at_once() -> None:
    async with instance() as client:
        await client.subscribe("one")
        for value in range(100):
            await produce(client.one, "one", value)
        assert await client.values("timeout=10000") == list(range(100))


async def test_a_value_that_is_not_json_is_told_and_passed_by_a_seek() -> None:
    async with instance() as client:
        await produce(client.one, "one", 1)
        body = json.dumps({"records": [{"value": b64encode(b"\xff").decode()}]}).encode()
        headers = {"Content_Type": BINARY_RECORDS}
        reply = await client.peer.request("POST", "/topics/one", body, **headers)
        assert reply.status == 200
        await produce(client.one, "six", "other", partition=0)
        await client.subscribe("one", "six")
        found: list[Any] = []
        refused = 0
        for _ in range(6):
            reply = await client.get("/records?timeout=0")
            if reply.status == 200:
                found += [one["value"] for one in reply.json]
            else:
                refused += 1
                assert reply.error_code == 42208
                assert "value deserialization error for format json" in reply.json["message"]
                assert "offset 1 of one-0" in reply.json["message"]
        assert sorted(map(str, found)) == ["1", "other"]
        assert refused >= 4
        seek = {"offsets": [{"topic": "one", "partition": 0, "offset": 2}]}
        assert (await client.post("/positions", seek)).status == 204
        await produce(client.one, "one", 3)
        assert await client.values() == [3]


async def test_a_read_that_waits_for_bytes_passes_over_a_value_that_is_not_json() -> None:
    async with instance(**{"fetch.min.bytes": 150}) as client:
        await produce(client.one, "one", "first")
        body = json.dumps({"records": [{"value": b64encode(b"\xff").decode()}]}).encode()
        headers = {"Content_Type": BINARY_RECORDS}
        reply = await client.peer.request("POST", "/topics/one", body, **headers)
        assert reply.status == 200
        await client.subscribe("one", "six")
        async with RawPeer.connected(client.one.server.port) as other:
            read = asyncio.ensure_future(
                other.request("GET", f"{client.path}/records?timeout=60000")
            )
            assert not (await asyncio.wait({read}, timeout=0.1))[0]
            await produce(client.one, "six", "second", partition=3)
            async with asyncio.timeout(DEADLINE_S):
                assert [one["value"] for one in (await read).json] == ["first", "second"]


async def test_partitions_behind_one_without_a_leader_have_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_reads, "PARTITION_S", 0.05)
    async with instance() as client:
        await client.subscribe("one", "six")
        await produce(client.one, "one", 1)
        for number in range(6):
            await produce(client.one, "six", number, partition=number)
        client.one.node.log().read_error = LogError(NO_LEADER)
        found: list[Any] = []
        for _ in range(2):
            reply = await client.get("/records?timeout=0")
            found += reply.json if reply.status == 200 else []
        assert sorted(one["value"] for one in found) == [0, 1, 2, 3, 4, 5]


async def test_two_reads_at_once_answer_each_record_once() -> None:
    async with instance() as client:
        await client.subscribe("one")
        async with (
            RawPeer.connected(client.one.server.port) as first,
            RawPeer.connected(client.one.server.port) as second,
        ):
            reads = [
                asyncio.ensure_future(peer.request("GET", f"{client.path}/records?timeout=1000"))
                for peer in (first, second)
            ]
            await asyncio.sleep(0.05)
            await produce(client.one, "one", 1, 2)
            replies = await asyncio.gather(*reads)
        assert sorted(one["value"] for reply in replies for one in reply.json) == [1, 2]


async def test_a_position_out_of_range_follows_the_reset() -> None:
    for reset, expected in (("earliest", [3, 4]), ("latest", [])):
        async with instance(**{"auto.offset.reset": reset}) as client:
            await produce(client.one, "one", *range(5))
            await client.subscribe("one")
            seek = {"offsets": [{"topic": "one", "partition": 0, "offset": 1}]}
            assert (await client.post("/positions", seek)).status == 204
            client.one.node.log().log_start_offset = Offset(3)
            assert await client.values() == expected
            await produce(client.one, "one", 5)
            assert await client.values() == [5]


async def test_the_next_coordinator_learns_where_latest_was() -> None:
    async with instance(**{"auto.offset.reset": "latest"}) as client:
        await produce(client.one, "one", *range(5))
        await client.subscribe("one")
        assert await client.read() == []
        topic = client.one.node.metadata.image.topic("one")
        shards = client.one.node.services.coordinators.shards()
        tables = [shard.state.instances.table for shard in shards]
        [starts] = [
            table.starts(table.by_id["g", "i"]) for table in tables if ("g", "i") in table.by_id
        ]
        assert starts == {(topic.topic_id, 0): 5}


async def test_a_partition_without_a_leader_is_told_once_nothing_else_is_there() -> None:
    async with instance() as client:
        await client.subscribe("one", "six")
        await produce(client.one, "one", 1)
        client.one.node.log().read_error = LogError(NO_LEADER)
        assert (await client.get("/records?timeout=200")).error_code == 50301
        await produce(client.one, "six", 2)
        assert await client.values() == [2]
        client.one.node.log().read_error = None
        assert await client.values() == [1]


# 7: offsets


async def test_offsets() -> None:
    async with instance(**{"auto.commit.enable": "false"}) as client:
        assert (await client.post("/offsets", {})).status == 200
        await client.subscribe("six")
        for number in range(6):
            await produce(client.one, "six", 1, 2, partition=number)
        assert await client.offsets(0, 3) == [-1, -1]
        assert len(await client.read()) == 12
        assert (await client.post("/offsets")).status == 200
        assert await client.offsets(0, 3) == [2, 2]
        for body, expected in (
            ({"offsets": [{"offset": 0, "metadata": "done"}]}, 1),
            ({"partitions": [{"offset": 5}]}, 5),
            ({"offsets": [{"next_offset": 7}]}, 7),
        ):
            for rows in body.values():
                rows[0].update(topic="six", partition=3)
            assert (await client.post("/offsets", body)).status == 200
            assert await client.offsets(3) == [expected]
        reply = await client.get("/offsets")
        assert [row["offset"] for row in reply.json["offsets"]] == [2, 2, 2, 7, 2, 2]
        assert reply.json["offsets"][0] == {
            "topic": "six", "partition": 0, "offset": 2, "metadata": ""
        }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"offsets": [{"topic": "six", "partition": 0}]}, 42201),
        ({"offsets": [{"topic": "six", "partition": 0, "offset": 1, "next_offset": 2}]}, 42201),
        ({"offsets": [], "partitions": []}, 42201),
        ({"offsets": [{"topic": "six", "partition": 0, "offset": -1}]}, 42201),
        ({"offsets": [{"topic": "six", "partition": 6, "offset": 1}]}, 40402),
        ({"offsets": [{"topic": "no", "partition": 0, "offset": 1}]}, 40401),
        (
            {"partitions": [{"topic": "six", "partition": 0, "offset": 1, "metadata": "x" * 5000}]},
            42230,
        ),
    ],
)
async def test_bad_commits_are_refused(body: Any, code: int) -> None:
    async with instance() as client:
        assert (await client.post("/offsets", body)).error_code == code


async def test_auto_commit_and_its_end() -> None:
    async with instance(**{"auto.commit.interval.ms": 1}) as client:
        await client.subscribe("six")
        await produce(client.one, "six", 1, 2, partition=0)
        assert len(await client.read()) == 2
        assert await client.offsets(0) == [-1]
        await client.read()
        assert await client.offsets(0) == [2]
        await produce(client.one, "six", 3, partition=0)
        assert len(await client.read()) == 1
        assert (await client.delete()).status == 204
        assert (await client.create()).status == 200
        assert await client.offsets(0) == [3]


async def test_two_instances_of_a_group_share_a_topic() -> None:
    async with instance() as first:
        second = Client(first.one, name="j")
        assert (await second.create()).status == 200
        for client in (first, second):
            await client.subscribe("six")
        for number in range(6):
            await produce(first.one, "six", number, partition=number)
        found = [await client.values() for client in (first, second)]
        assert [len(values) for values in found] == [3, 3]
        assert sorted([*found[0], *found[1]]) == [0, 1, 2, 3, 4, 5]
        described = await first.peer.request("GET", "/v1/groups/g")
        assert {one["client_id"] for one in described.json["members"]} == {"i", "j"}


async def test_rights() -> None:
    refused: set[tuple[Operation, str]] = set()

    def authorize(_principal: object, operation: Operation, resource: Any) -> None:
        if (operation, resource.name) in refused:
            raise LogError(FORBIDDEN)

    async with group_node(authorize) as one:
        client = Client(one)
        assert (await client.create()).status == 200
        await client.subscribe("one")
        refused.add((Operation.READ, "one"))
        assert (await client.get("/records")).status == 403
        body = {"offsets": [{"topic": "one", "partition": 0, "offset": 1}]}
        assert (await client.post("/offsets", body)).status == 403
        refused.add((Operation.DESCRIBE, "six"))
        assert (await client.post("/subscription", {"topics": ["six"]})).status == 403
        refused.add((Operation.READ, "g"))
        for reply in (
            await client.create(),
            await client.get("/subscription"),
            await client.get("/records"),
            await client.post("/offsets"),
            await client.delete(),
        ):
            assert reply.status == 403
