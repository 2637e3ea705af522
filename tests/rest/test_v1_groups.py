"""/v1/groups against the coordinators of one node, over logs in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from raftlog.broker.authorize import Authorize, Operation, allow_all
from raftlog.coordinator.consumer_decisions import GroupSettings
from raftlog.coordinator.group_kind import group_kind
from raftlog.coordinator.service import Coordinators
from raftlog.record.errors import FORBIDDEN, LogError
from raftlog.world.randomness import SystemRandomness
from raftlog.world.time import SystemClock
from tests.broker.data_fakes import DataNode
from tests.http.http_peers import Reply

from .data_fakes import DataPeer, serving

GROUP = "/v1/groups/a%2Fb"
JOIN = {"member_id": "m", "topics": ["six"], "session_timeout_ms": 9_000, "owned": []}


@asynccontextmanager
async def group_node(authorize: Authorize = allow_all) -> AsyncIterator[DataPeer]:
    """A node with its coordinators, and topics `one` and `six`."""
    node = DataNode()
    await node.metadata.create_topic("one", partitions=1)
    await node.metadata.create_topic("six", partitions=6)
    fatal: list[str] = []
    coordinators = Coordinators(
        [group_kind(GroupSettings())],
        replicas=node.replicas,  # type: ignore[arg-type]
        router=node.partitions,
        metadata=node.metadata,  # type: ignore[arg-type]
        clock=SystemClock(),
        on_fatal=fatal.append,
    )
    node.replicas.host = replace(node.replicas.host, on_lead_begun=coordinators.lead_begun)
    node.services.coordinators = coordinators
    node.services.randomness = SystemRandomness()
    try:
        async with serving(node, authorize=authorize) as one:
            yield one
    finally:
        await coordinators.close()
    assert not fatal


async def post(one: DataPeer, path: str, body: Any) -> Reply:
    return await one.peer.request("POST", GROUP + path, json.dumps(body).encode())


async def test_a_member_joins_commits_and_leaves() -> None:
    async with group_node() as one:
        joined = (await post(one, "/heartbeat", JOIN)).json
        topic_id = one.node.metadata.image.topic("six").topic_id
        assert joined == {
            "member_id": "m",
            "member_epoch": 1,
            "heartbeat_interval_ms": 3_000,
            "session_timeout_ms": 9_000,
            "assignment": [
                {"topic": "six", "topic_id": topic_id, "partitions": [0, 1, 2, 3, 4, 5]}
            ],
        }
        offsets = [
            {"topic": "six", "partition": 2, "offset": 7, "metadata": "x"},
            {"topic": "six", "partition": 6, "offset": 7},
            {"topic": "none", "partition": 0, "offset": 7},
            {"topic": "one", "partition": 0, "offset": 7, "topic_id": topic_id},
        ]
        member = {"member_id": "m", "member_epoch": 1}
        results = (await post(one, "/offsets", {"offsets": offsets, **member})).json["results"]
        assert [row["error_code"] for row in results] == [None, 40402, 40401, 40404]
        assert (await post(one, "/offsets", {"offsets": []})).error_code == 40422
        found = (await post(one, "/committed", {})).json["offsets"]
        assert [(row["partition"], row["offset"], row["metadata"]) for row in found] == [
            (2, 7, "x")
        ]
        wanted = {"topics": {"six": [1], "none": [0]}}
        found = (await post(one, "/committed", wanted)).json["offsets"]
        assert [row["offset"] for row in found] == [-1, -1]
        assert (await post(one, "/heartbeat", {"member_id": "m", "member_epoch": -1})).status == 200
        listed = (await one.peer.request("GET", "/v1/groups")).json
        assert listed == {
            "groups": [
                {
                    "group": "a/b",
                    "kind": "consumer",
                    "state": "empty",
                    "members": 0,
                    "coordinator": 1,
                }
            ],
            "incomplete": [],
        }


async def test_a_member_without_an_id_gets_one() -> None:
    async with group_node() as one:
        joined = (await post(one, "/heartbeat", {"topics": ["six"]})).json
        assert joined["member_id"]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/heartbeat", {**JOIN, "session_timeout_ms": 10}, 42224),
        ("/heartbeat", {**JOIN, "member_epoch": 3}, 40422),
        ("/reset", {}, 42201),
        ("/reset", {"to": "latest", "shift_by": 1}, 42201),
        ("/reset", {"to": "noon"}, 42201),
        ("/reset", {"to": "latest"}, 40421),
        ("/offsets/delete", {"topics": {"six": None}}, 40421),
    ],
)
async def test_a_bad_request_is_a_typed_error(path: str, body: Any, code: int) -> None:
    async with group_node() as one:
        assert (await post(one, path, body)).error_code == code


async def test_groups_need_rights() -> None:
    refused: set[Operation] = set()

    def authorize(_principal: object, operation: Operation, resource: Any) -> None:
        if resource.name == "a/b" and operation in refused:
            raise LogError(FORBIDDEN)

    async with group_node(authorize) as one:
        assert (await post(one, "/heartbeat", JOIN)).status == 200
        refused.update((Operation.READ, Operation.DESCRIBE, Operation.DELETE))
        assert (await post(one, "/heartbeat", JOIN)).status == 403
        assert (await post(one, "/offsets", {"offsets": []})).status == 403
        assert (await post(one, "/committed", {})).status == 403
        assert (await post(one, "/reset", {"to": "latest"})).status == 403
        assert (await post(one, "/offsets/delete", {"topics": {}})).status == 403
        assert (await one.peer.request("GET", GROUP)).status == 403
        assert (await one.peer.request("DELETE", GROUP)).status == 403
        assert (await one.peer.request("GET", "/v1/groups")).json["groups"] == []
