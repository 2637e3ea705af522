"""Leaders, moves, maintenance and decommission over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator

from raftlog.http.app import described_routes
from raftlog.http.openapi import describe
from raftlog.metadata.decisions.reassignment import plan_completions
from raftlog.record.types import BrokerId
from raftlog.rest.routes import ROUTES as REST_ROUTES
from raftlog.rest.v1 import cluster as v1_cluster
from tests.http.fakes import FakeNode
from tests.http.http_peers import RawPeer, Reply, serving
from tests.metadata.strategies import fence, set_row

ROUTES = [route for route in described_routes(REST_ROUTES) if route.tag == "v1"]
DOCUMENT = describe(ROUTES)
LEADER = "/v1/topics/t/partitions/0/leader"
LEADER_TEMPLATE = "/v1/topics/{topic}/partitions/{partition}/leader"


def checked(reply: Reply, method: str, path: str) -> Any:
    """The answer's JSON, which is as /openapi.json describes it; None for an empty one."""
    answer = DOCUMENT["paths"][path][method.lower()]["responses"][str(reply.status)]
    if reply.status == 204:
        assert reply.body == b"" and "content" not in answer
        return None
    schema = answer["content"]["application/json"]["schema"]
    OAS31Validator({**schema, "components": DOCUMENT["components"]}).validate(reply.json)
    return reply.json


async def ask(node: FakeNode, method: str, path: str, body: str = "", template: str = "") -> Any:
    """The answer's JSON, or its error code."""
    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        reply = await peer.request(method, path, body.encode(), Content_Type="application/json")
    answer = checked(reply, method, template or path)
    return reply.error_code if reply.status >= 400 else answer


@pytest.fixture
async def node() -> FakeNode:
    """Four brokers; topic t has two partitions of three replicas each."""
    made = FakeNode(brokers=4, voters=3)
    await made.metadata.create_topic("t", partitions=2, replication_factor=3)
    set_row(made.metadata.image, "t", 0, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)
    set_row(made.metadata.image, "t", 1, replicas=(2, 3, 1), isr=(2, 3, 1), leader=2)
    return made


async def test_leadership_is_given_to_whom_is_named_or_to_the_best(node: FakeNode) -> None:
    image = node.metadata.image
    for body, leader in (('{"broker":3}', 3), ('{"broker":null}', 1), ("{}", 3)):
        assert await ask(node, "POST", LEADER, body, LEADER_TEMPLATE) is None
        assert image.partition("t", 0).leader == leader


async def test_leader_may_be_elected_though_records_are_lost(node: FakeNode) -> None:
    image = node.metadata.image
    assert await ask(node, "POST", LEADER, '{"unclean":true}', LEADER_TEMPLATE) == 40903
    set_row(image, "t", 0, isr=(), elr=(), leader=-1)
    assert await ask(node, "POST", LEADER, "{}", LEADER_TEMPLATE) == 50301
    body = '{"unclean":true,"broker":2}'
    assert await ask(node, "POST", LEADER, body, LEADER_TEMPLATE) is None
    row = image.partition("t", 0)
    assert (row.leader, row.unclean_epoch) == (2, row.leader_epoch)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (LEADER, '{"broker":4}', 40400),
        (LEADER, '{"broker":0}', 42201),
        (LEADER, '{"leader":1}', 42201),
        (LEADER, "", 42201),
        (LEADER.replace("/0/", "/9/"), "{}", 40402),
        (LEADER.replace("/0/", "/x/"), "{}", 40402),
        (LEADER.replace("/t/", "/u/"), "{}", 40401),
    ],
)
async def test_impossible_leaders_are_refused(
    node: FakeNode, path: str, body: str, code: int
) -> None:
    assert await ask(node, "POST", path, body, LEADER_TEMPLATE) == code


async def test_partitions_are_moved_shown_and_left(node: FakeNode) -> None:
    path, one = "/v1/reassignments", "/v1/reassignments/{topic}/{partition}"
    body = (
        '{"reassignments":[{"topic":"t","partition":0,"replicas":[4,2,3]},'
        '{"topic":"t","partition":1,"replicas":[2,3]}]}'
    )
    assert await ask(node, "GET", path) == {"total": 0, "reassignments": []}
    assert await ask(node, "POST", path, body) is None
    shown = await ask(node, "GET", path)
    assert shown == {
        "total": 2,
        "reassignments": [
            {
                "topic": "t",
                "partition": 0,
                "leader": 1,
                "replicas": [4, 2, 3, 1],
                "isr": [2, 3, 1],
                "adding": [4],
                "removing": [1],
            },
            {
                "topic": "t",
                "partition": 1,
                "leader": 2,
                "replicas": [2, 3, 1],
                "isr": [2, 3, 1],
                "adding": [],
                "removing": [1],
            },
        ],
    }
    assert await ask(node, "GET", f"{path}?topic=t", template=path) == shown
    assert await ask(node, "GET", f"{path}?topic=u", template=path) == 40401
    assert await ask(node, "DELETE", f"{path}/t/0", template=one) is None
    assert (await ask(node, "GET", path))["total"] == 1
    assert await ask(node, "DELETE", f"{path}/t/0", template=one) == 40903
    assert await ask(node, "DELETE", f"{path}/t/9", template=one) == 40402


async def test_list_of_moves_is_bounded(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1_cluster, "REASSIGNMENTS_LISTED_MAX", 1)
    for number in (0, 1):
        set_row(node.metadata.image, "t", number, removing=(1,))
    shown = await ask(node, "GET", "/v1/reassignments")
    assert (shown["total"], len(shown["reassignments"])) == (2, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"reassignments":[]}', 42201),
        ('{"reassignments":[{"topic":"t","partition":0,"replicas":[]}]}', 42201),
        ('{"reassignments":[{"topic":"t","partition":0,"replicas":[1,1]}]}', 42206),
        ('{"reassignments":[{"topic":"t","partition":0,"replicas":[9]}]}', 42206),
        ('{"reassignments":[{"topic":"u","partition":0,"replicas":[1]}]}', 40401),
        ("{}", 42201),
    ],
)
async def test_impossible_moves_are_refused(node: FakeNode, body: str, code: int) -> None:
    before = node.metadata.image.applied_index
    assert await ask(node, "POST", "/v1/reassignments", body) == code
    assert node.metadata.image.applied_index == before


async def test_too_many_moves_at_once_are_refused(node: FakeNode) -> None:
    one = '{"topic":"t","partition":0,"replicas":[1]}'
    body = '{"reassignments":[' + ",".join([one] * 20_000) + "]}"
    assert await ask(node, "POST", "/v1/reassignments", body) == 42201


async def test_node_is_decommissioned_watched_and_kept_after_all(node: FakeNode) -> None:
    path, template = "/v1/nodes/1/decommission", "/v1/nodes/{node}/decommission"
    view = {
        "node_id": 1,
        "decommissioning": True,
        "partitions_left": 2,
        "partitions_moving": 0,
        "is_empty": False,
    }
    assert await ask(node, "POST", path, template=template) == view
    assert await ask(node, "GET", path, template=template) == view
    set_row(node.metadata.image, "t", 0, removing=(1,))
    view = await ask(node, "GET", path, template=template)
    assert view["partitions_moving"] == 1
    assert await ask(node, "DELETE", path, template=template) is None
    view = await ask(node, "GET", path, template=template)
    assert (view["decommissioning"], view["partitions_moving"]) == (False, 0)
    for number in (0, 1):
        set_row(node.metadata.image, "t", number, removing=(1,))
    for command in plan_completions(node.metadata.image):
        node.metadata.run(command)
    assert (await ask(node, "GET", path, template=template))["is_empty"]


async def test_decommission_that_leaves_too_few_is_refused(node: FakeNode) -> None:
    template = "/v1/nodes/{node}/decommission"
    assert await ask(node, "POST", "/v1/nodes/4/decommission", template=template)
    assert await ask(node, "POST", "/v1/nodes/1/decommission", template=template) == 40903
    assert not node.metadata.image.brokers[BrokerId(1)].decommissioning


@pytest.mark.parametrize("number", ["0", "x", "9"])
@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("POST", "decommission"),
        ("GET", "decommission"),
        ("DELETE", "decommission"),
        ("PUT", "maintenance"),
        ("DELETE", "maintenance"),
    ],
)
async def test_unknown_nodes_are_not_found(
    node: FakeNode, number: str, method: str, what: str
) -> None:
    template = f"/v1/nodes/{{node}}/{what}"
    assert await ask(node, method, f"/v1/nodes/{number}/{what}", template=template) == 40400


async def test_nodes_show_their_state_and_their_load(node: FakeNode) -> None:
    template = "/v1/nodes/{node}/maintenance"
    for _ in range(2):
        assert await ask(node, "PUT", "/v1/nodes/2/maintenance", template=template) is None
    await ask(node, "POST", "/v1/nodes/4/decommission", template="/v1/nodes/{node}/decommission")
    fence(node.metadata.image, 3)
    node.quorum.connect(5)
    node.metadata.unwritable = {BrokerId(3)}
    shown = {row["node_id"]: row for row in (await ask(node, "GET", "/v1/nodes"))["nodes"]}
    names = ("fenced", "can_write", "maintenance", "decommissioning", "led", "held")
    assert {number: tuple(row[name] for name in names) for number, row in shown.items()} == {
        1: (False, True, False, False, 1, 2),
        2: (False, True, True, False, 1, 2),
        3: (True, False, False, False, 0, 2),
        4: (False, True, False, True, 0, 0),
        5: (None, None, None, None, 0, 0),
    }
    assert await ask(node, "DELETE", "/v1/nodes/2/maintenance", template=template) is None
    assert not node.metadata.image.brokers[BrokerId(2)].maintenance
