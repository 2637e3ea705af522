"""/v1/groups against the coordinators of one node, over logs in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raftlog.broker.authorize import Authorize, Operation, allow_all
from raftlog.coordinator.groups.classic.messages import (
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    Synced,
    SyncGroup,
)
from raftlog.coordinator.groups.kind import MESSAGES
from raftlog.coordinator.groups.messages import GroupRequest, GroupResponse
from raftlog.metadata.delta import MetadataDelta
from raftlog.record.errors import FORBIDDEN, TRANSACTION_NOT_VERIFIED, LogError
from tests.broker.data_fakes import DataNode
from tests.broker.harness import coordinating_groups
from tests.http.http_peers import Reply
from tests.rest.data_fakes import DataPeer, serving

GROUP = "/v1/groups/a%2Fb"
JOIN = {"member_id": "m", "topics": ["six"], "session_timeout_ms": 9_000, "owned": []}


@asynccontextmanager
async def group_node(
    authorize: Authorize = allow_all, cluster_settings: dict[str, str] | None = None
) -> AsyncIterator[DataPeer]:
    """A node with its coordinators, and topics `one` and `six`."""
    node = DataNode()
    await node.metadata.create_topic("one", partitions=1)
    await node.metadata.create_topic("six", partitions=6)
    node.metadata.image.cluster_settings = dict(cluster_settings or {})
    async with coordinating_groups(node), serving(node, authorize=authorize) as one:
        yield one


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
        repeated = {"topics": {"six": [2] * 3}}
        assert len((await post(one, "/committed", repeated)).json["offsets"]) == 1
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


async def test_a_classic_group_is_shown_and_takes_no_other_members_until_it_is_empty() -> None:
    async with group_node() as one:
        coordinators = one.node.services.coordinators
        request = JoinGroup(
            "a/b",
            "consumer",
            (Protocol("range", b""),),
            9_000,
            9_000,
            new_member_id="m",
            client_id="c",
            requires_member_id=False,
        )

        async def send(message: GroupRequest) -> GroupResponse:
            answer: GroupResponse = await coordinators.call(
                MESSAGES, "a/b", message, timeout_s=5, is_held=True
            )
            return answer

        joined = await send(request)
        assert isinstance(joined, Joined)
        listed = (await one.peer.request("GET", "/v1/groups")).json["groups"]
        assert [(row["kind"], row["state"]) for row in listed] == [
            ("classic", "completing-rebalance")
        ]
        assert isinstance(await send(SyncGroup("a/b", "m", 1)), Synced)
        described = (await one.peer.request("GET", GROUP)).json
        assert (described["kind"], described["state"]) == ("classic", "stable")
        assert (described["epoch"], described["assignor"]) == (1, "range")
        member = described["members"][0]
        assert (member["member_id"], member["client_id"]) == ("m", "c")
        assert (member["member_epoch"], member["assignment"]) == (1, [])
        assert (await post(one, "/heartbeat", JOIN)).error_code == 40933
        offsets = [{"topic": "six", "partition": 2, "offset": 7}]
        body = {"offsets": offsets, "member_id": "m", "member_epoch": 1}
        assert (await post(one, "/offsets", body)).json["results"][0]["error_code"] is None
        assert (await post(one, "/reset", {"to": "latest"})).error_code == 40925
        assert (await one.peer.request("DELETE", GROUP)).error_code == 40925
        await send(LeaveGroup("a/b", (LeavingMember("m"),)))
        assert (await one.peer.request("DELETE", GROUP)).status == 204


async def test_settings_of_the_cluster_hold_at_once() -> None:
    settings = {
        "group.consumer.session.timeout.ms": "12000",
        "group.consumer.heartbeat.interval.ms": "1000",
        "group.min.session.timeout.ms": "10000",
    }
    async with group_node(cluster_settings=settings) as one:
        assert (await post(one, "/heartbeat", JOIN)).error_code == 42224
        first = {"member_id": "m", "topics": ["six"], "owned": []}
        joined = (await post(one, "/heartbeat", first)).json
        assert (joined["session_timeout_ms"], joined["heartbeat_interval_ms"]) == (12_000, 1_000)
        one.node.metadata.image.cluster_settings = {"group.max.size": "1"}
        changed = MetadataDelta(cluster_settings=("group.max.size", *settings))
        one.node.services.coordinators.metadata_applied(changed)
        refused = await post(one, "/heartbeat", {**JOIN, "member_id": "n"})
        assert refused.error_code == 40926
        kept = (await post(one, "/heartbeat", {**first, "member_epoch": 1})).json
        assert (kept["session_timeout_ms"], kept["heartbeat_interval_ms"]) == (45_000, 5_000)


async def test_a_member_without_an_id_gets_one() -> None:
    async with group_node() as one:
        joined = (await post(one, "/heartbeat", {"topics": ["six"]})).json
        assert joined["member_id"]


REPORT = {"position": 41, "primaries": 1, "endpoint": "a:1", "disconnect_timeout_ms": 300}


async def test_members_of_a_service_report_and_hand_over() -> None:
    async with group_node() as one:
        joins = [
            {**JOIN, "member_id": name, "instance_id": f"{name}-1", "assignor": "primary"}
            for name in "mn"
        ]
        for join in joins:
            joined = (await post(one, "/heartbeat", {**join, "report": REPORT})).json
        assert joined["assignment"] == []
        held = {"member_id": "m", "member_epoch": 1, "max_wait_ms": 10}
        await post(one, "/heartbeat", {**held, "report": {"position": 42}})
        described = (await one.peer.request("GET", GROUP)).json
        assert described["assignor"] == "primary"
        assert [
            (row["instance_id"], row["position"], row["endpoint"], len(row["assignment"]))
            for row in described["members"]
        ] == [("m-1", 42, None, 1), ("n-1", 41, "a:1", 0)]
        asked = {"member_id": "m", "member_epoch": 2, "owned": [], "report": REPORT}
        asked |= {"hand_over_to": "o-1", "sequence": 1}
        assert (await post(one, "/heartbeat", asked)).error_code == 40903
        answer = (await post(one, "/heartbeat", {**asked, "hand_over_to": "n-1"})).json
        assert answer["assignment"] == []


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/heartbeat", {**JOIN, "session_timeout_ms": 10}, 42224),
        ("/heartbeat", {**JOIN, "member_epoch": 3}, 40422),
        ("/heartbeat", {**JOIN, "report": {"position": -1}}, 42201),
        ("/heartbeat", {**JOIN, "report": {}}, 42201),
        ("/heartbeat", {**JOIN, "report": {"position": 1, "disconnect_timeout_ms": 0}}, 42201),
        ("/heartbeat", {**JOIN, "hand_over_to": "n"}, 40001),
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


async def test_offsets_in_a_transaction_name_the_producer_and_the_right_fields() -> None:
    async with group_node() as one:
        path = "/v1/transactions/t/offsets"
        offsets = [{"topic": "one", "partition": 0, "offset": 7}]
        body = {"producer_id": 4, "producer_epoch": 0, "group": "a/b", "offsets": offsets}
        for wrong, code in (
            ({"producer_id": -1}, 42201),
            ({"group": ""}, 42201),
            ({"member": "m"}, 42201),
        ):
            reply = await one.peer.request("POST", path, json.dumps(body | wrong).encode())
            assert reply.json["error_code"] == code, reply.json
        unverified = await one.peer.request("POST", path, json.dumps(body).encode())
        assert unverified.json["error_code"] == TRANSACTION_NOT_VERIFIED.code
