"""auto.create.topics: one rule for every way to produce, off and on."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.record.frames import BATCHES_MEDIA_TYPE, ProduceFrame
from raftlog.record.types import PartitionId
from tests.broker.harness import encoded
from tests.record.wire import encode_produce_frames
from tests.rest.data_fakes import data_node

V3 = "/v3/clusters/-/topics/new/records"
FRAMES = encode_produce_frames([ProduceFrame("new", PartitionId(0), encoded([b"a"]))])
WAYS = [
    ("/topics/new", b'{"records":[{"value":1}]}', "application/json"),
    ("/topics/new", b'{"records":[{"value":"YQ=="}]}', "application/vnd.kafka.binary.v2+json"),
    ("/topics/new/partitions/0", b'{"records":[{"value":1}]}', "application/json"),
    (V3, b'{"value":{"type":"JSON","data":1}}', "application/json"),
    (
        f"{V3}:batch",
        b'{"entries":[{"id":"1","value":{"type":"JSON","data":1}}]}',
        "application/json",
    ),
    ("/v1/produce", FRAMES, BATCHES_MEDIA_TYPE),
    ("/v1/metadata", b'{"topics":["new","one"]}', "application/json"),
]


def has_failed(json: Any) -> bool:
    if "error_code" in json:
        return bool(json["error_code"] != 200)
    return any(row["error_code"] for name in ("results", "topics") for row in json.get(name, ()))


@pytest.mark.parametrize(("path", "body", "content_type"), WAYS)
@pytest.mark.parametrize("is_on", [False, True])
async def test_unknown_topic_is_created_by_every_way_to_produce_or_by_none(
    is_on: bool, path: str, body: bytes, content_type: str
) -> None:
    async with data_node(auto_create_topics=is_on) as one:
        reply = await one.peer.request("POST", path, body, Content_Type=content_type)
        assert has_failed(reply.json) is not is_on, reply.body
        assert ("new" in one.node.metadata.image.topics_by_name) is is_on


@pytest.mark.parametrize(
    "path", ["/v1/metadata?topics=new", "/topics/new", "/topics/new/partitions/0/records"]
)
async def test_reads_create_nothing(path: str) -> None:
    async with data_node(auto_create_topics=True) as one:
        await one.peer.request("GET", path)
        assert "new" not in one.node.metadata.image.topics_by_name


async def test_metadata_to_produce_says_why_a_topic_cannot_be_created() -> None:
    async with data_node(auto_create_topics=True) as one:
        reply = await one.peer.request("POST", "/v1/metadata", '{"topics":["grün","one"]}'.encode())
        bad, known = reply.json["topics"]
        assert bad["error_code"] == 42205
        assert "grün" in bad["message"]
        assert (known["name"], known["error_code"]) == ("one", None)
        many = b'{"topics":[%b]}' % b",".join(b'"t%d"' % number for number in range(20_000))
        assert (await one.peer.request("POST", "/v1/metadata", many)).error_code == 42201
