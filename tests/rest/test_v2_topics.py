from __future__ import annotations

import pytest

from .data_fakes import data_node


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
            "configs": {"retention.ms": "1000"},
            "partitions": [{"partition": 0, "leader": 1, "replicas": [replica]}],
        }


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
