from __future__ import annotations

import pytest

from raftlog.broker.authorize import Operation, Principal, Resource
from raftlog.metadata.configs.topic import TOPIC_CONFIG_TABLE
from raftlog.record.errors import FORBIDDEN, LogError
from tests.broker.data_fakes import DataNode
from tests.rest.data_fakes import data_node, serving

V2 = "application/vnd.kafka.v2+json"
DEFAULTS = {name: entry.default for name, entry in TOPIC_CONFIG_TABLE.items()}


async def test_topics_are_listed_sorted() -> None:
    async with data_node() as one:
        await one.node.metadata.create_topic("alpha")
        reply = await one.peer.request("GET", "/topics")
        assert reply.json == ["alpha", "one", "six"]
        assert reply.headers["content-type"] == "application/vnd.kafka.v2+json"
        reply = await one.peer.request("GET", "/topics", Accept="application/json")
        assert reply.headers["content-type"] == "application/json"


async def test_topic_is_described() -> None:
    async with data_node() as one:
        await one.node.metadata.alter_configs("one", {"retention.ms": "1000"})
        reply = await one.peer.request("GET", "/topics/one")
        replica = {"broker": 1, "leader": True, "in_sync": True}
        assert reply.json == {
            "name": "one",
            "configs": {**DEFAULTS, "retention.ms": "1000"},
            "partitions": [{"partition": 0, "leader": 1, "replicas": [replica]}],
        }


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", V2),
        ("*/*", V2),
        (V2, V2),
        ("text/html", V2),
        ("application/json", "application/json"),
        (f"{V2};q=0.5, application/json", "application/json"),
    ],
)
async def test_brokers_and_errors_have_the_media_type_of_v2(accept: str, media_type: str) -> None:
    headers = {"Accept": accept} if accept else {}
    async with data_node() as one:
        if accept != "text/html":
            brokers = await one.peer.request("GET", "/brokers", **headers)
            assert brokers.json == {"brokers": [1]}
            assert brokers.headers["content-type"] == media_type
        for method, path, body in (
            ("GET", "/topics/none", b""),
            ("GET", "/topics/one/partitions/0/records?offset=x", b""),
            ("POST", "/topics/one", b"{"),
        ):
            reply = await one.peer.request(method, path, body, **headers)
            assert reply.error_code
            assert reply.headers["content-type"] == media_type, path


async def test_configs_are_left_out_for_a_principal_that_may_not_describe_them() -> None:
    def authorize(_: Principal, operation: Operation, __: Resource) -> None:
        if operation is Operation.DESCRIBE_CONFIGS:
            raise LogError(FORBIDDEN)

    node = DataNode()
    await node.metadata.create_topic("one")
    async with serving(node, authorize=authorize) as one:
        assert (await one.peer.request("GET", "/topics/one")).json["configs"] == {}


async def test_partitions_are_described() -> None:
    async with data_node() as one:
        rows = (await one.peer.request("GET", "/topics/six/partitions")).json
        assert [row["partition"] for row in rows] == list(range(6))
        assert (await one.peer.request("GET", "/topics/six/partitions/4")).json == rows[4]


async def test_offsets_are_what_can_be_read() -> None:
    async with data_node() as one:
        path = "/topics/one/partitions/0/offsets"
        assert (await one.peer.request("GET", path)).json == {
            "beginning_offset": 0,
            "end_offset": 0,
        }
        await one.peer.request("POST", "/topics/one", b'{"records":[{"value":1},{"value":2}]}')
        one.node.log().hold_flush = True
        await one.peer.request("POST", "/topics/one?acks=1", b'{"records":[{"value":3}]}')
        assert (await one.peer.request("GET", path)).json == {
            "beginning_offset": 0,
            "end_offset": 2,
        }


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/topics/none", 40401),
        ("/topics/%2e%2e", 40401),
        ("/topics/none/partitions", 40401),
        ("/topics/none/partitions/0", 40401),
        ("/topics/one/partitions/1", 40402),
        ("/topics/one/partitions/-1", 40402),
        ("/topics/one/partitions/zero", 40402),
        ("/topics/none/partitions/0/offsets", 40401),
        ("/topics/one/partitions/1/offsets", 40402),
        ("/topics/one/partitions/0/offsets/x", 40400),
    ],
)
async def test_what_is_not_there_is_told_so(path: str, code: int) -> None:
    async with data_node() as one:
        assert (await one.peer.request("GET", path)).error_code == code
