from __future__ import annotations

import json
from typing import Any

import pytest

from raftlog.record.errors import NO_LEADER, LogError
from tests.http.http_peers import Reply
from tests.rest.data_fakes import DataPeer, data_node, few


async def post(one: DataPeer, path: str, body: Any) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await one.peer.request("POST", path, data)


async def test_offsets_of_all_partitions_of_many_topics() -> None:
    async with data_node() as one:
        await post(one, "/topics/six/partitions/3", {"records": [{"value": 1}, {"value": 2}]})
        reply = await post(one, "/v1/offsets", {"topics": ["one", "six", "one"]})
        assert set(reply.json["topics"]) == {"one", "six"}
        six = reply.json["topics"]["six"]
        assert six["topic_id"] == one.node.metadata.image.topic("six").topic_id
        assert set(six["partitions"]) == set("012345")
        offsets = {
            "beginning_offset": 0,
            "end_offset": 2,
            "high_watermark": 2,
            "last_stable_offset": 2,
        }
        assert six["partitions"]["3"] == offsets
        assert (await post(one, "/v1/offsets", {"topics": []})).json == {"topics": {}}


async def test_offsets_for_times() -> None:
    async with data_node() as one:
        records = [{"value": n, "timestamp": 100 * n} for n in range(1, 4)]
        await post(one, "/topics/six/partitions/2", {"records": records})
        reply = await post(one, "/v1/offsets-for-times", {"timestamps": {"six": {"2": 101}}})
        assert reply.json["offsets"] == {"six": {"2": {"offset": 1, "timestamp": 200}}}
        topic_id = one.node.metadata.image.topic("six").topic_id
        assert reply.json["topic_ids"] == {"six": topic_id}
        wanted = {"six": {str(n): 101 for n in range(6)}, "one": {"0": 0}}
        reply = await post(one, "/v1/offsets-for-times", {"timestamps": wanted})
        assert reply.json["offsets"]["six"]["1"] is None
        assert reply.json["offsets"]["one"] == {"0": None}
        assert len(reply.json["offsets"]["six"]) == 6


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/offsets", b"", 42201),
        ("/v1/offsets", b"\xff", 42201),
        ("/v1/offsets", {}, 42201),
        ("/v1/offsets", {"topics": "one"}, 42201),
        ("/v1/offsets", {"topics": [1]}, 42201),
        ("/v1/offsets", {"topics": ["none"]}, 40401),
        ("/v1/offsets", {"topics": ["six"], "x": 1}, 42201),
        ("/v1/offsets", {"topics": {"six": 0}}, 42201),
        ("/v1/offsets", {"topics": {"six": ["0"]}}, 42201),
        ("/v1/offsets", {"topics": {"six": [-1]}}, 42201),
        ("/v1/offsets", {"topics": {"six": None}}, 42201),
        ("/v1/offsets", {"topics": {"six": [6]}}, 40402),
        ("/v1/offsets", {"topics": {"none": []}}, 40401),
        ("/v1/offsets", {"topics": {"none": [0]}}, 40401),
        ("/v1/offsets-for-times", {}, 42201),
        ("/v1/offsets-for-times", {"timestamps": {"one": {"0": -1}}}, 42201),
        ("/v1/offsets-for-times", {"timestamps": {"one": {"0": 2**63}}}, 42201),
        ("/v1/offsets-for-times", {"timestamps": {"one": {"x": 1}}}, 42201),
        ("/v1/offsets-for-times", {"timestamps": {"one": {"-1": 1}}}, 42201),
        ("/v1/offsets-for-times", {"timestamps": {"one": {"00": 1}}}, 42201),
        ("/v1/offsets-for-times", {"timestamps": {"one": {"1": 1}}}, 40402),
        ("/v1/offsets-for-times", {"timestamps": {"none": {"0": 1}}}, 40401),
    ],
)
async def test_bad_request_is_a_typed_error(path: str, body: Any, code: int) -> None:
    async with data_node() as one:
        assert (await post(one, path, body)).error_code == code


async def test_number_of_partitions_is_bounded() -> None:
    async with data_node(few(partitions_per_request_max=5)) as one:
        assert (await post(one, "/v1/offsets", {"topics": ["six"]})).error_code == 42201
        some = {"six": list(range(6))}
        assert (await post(one, "/v1/offsets", {"topics": some})).error_code == 42201
        assert (await post(one, "/v1/offsets", {"topics": {"six": [0, 1, 2]}})).status == 200
        wanted = {"six": {str(n): 1 for n in range(6)}}
        reply = await post(one, "/v1/offsets-for-times", {"timestamps": wanted})
        assert reply.error_code == 42201


async def test_partition_without_leader_is_told() -> None:
    async with data_node() as one:
        one.node.replicas.offline["six", 3] = LogError(NO_LEADER)
        assert (await post(one, "/v1/offsets", {"topics": ["six"]})).error_code == 50301
        wanted: dict[str, Any] = {"six": {"2": 1, "3": 1}}
        reply = await post(one, "/v1/offsets-for-times", {"timestamps": wanted})
        assert reply.error_code == 50301


async def test_offsets_of_some_partitions_only() -> None:
    async with data_node() as one:
        await post(one, "/topics/six/partitions/3", {"records": [{"value": 1}]})
        # Partitions without a leader here do not matter to a request for others.
        one.node.replicas.offline["six", 5] = LogError(NO_LEADER)
        wanted = {"six": [3, 0, 3], "one": []}
        reply = await post(one, "/v1/offsets", {"topics": wanted})
        topics = reply.json["topics"]
        assert list(topics) == ["six", "one"]
        assert {
            number: row["end_offset"] for number, row in topics["six"]["partitions"].items()
        } == {
            "3": 1,
            "0": 0,
        }
        assert topics["one"]["partitions"] == {}
        assert topics["one"]["topic_id"] == one.node.metadata.image.topic("one").topic_id
        assert (await post(one, "/v1/offsets", {"topics": {}})).json == {"topics": {}}
        reply = await post(one, "/v1/offsets", {"topics": {"six": [0, 5]}})
        assert reply.error_code == 50301
