"""The endpoints of the quorum and of the nodes."""

from __future__ import annotations

from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator

from raftlog import __version__
from raftlog.http.app import described_routes
from raftlog.http.openapi import describe
from raftlog.raft import PeerStatus
from raftlog.raft.voters import Voter, VoterSet
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER, RETRIABLE, LogError
from raftlog.rest.routes import ROUTES as REST_ROUTES
from tests.http.fakes import FakeNode
from tests.http.http_peers import RawPeer, Reply, serving

ROUTES = [
    route for route in described_routes(REST_ROUTES) if route.tag in ("v1", "admin", "node", "v2")
]
DOCUMENT = describe(described_routes(REST_ROUTES))


def checked(reply: Reply, method: str, path: str) -> Any:
    """The answer's JSON, checked against /openapi.json."""
    content = DOCUMENT["paths"][path][method]["responses"][str(reply.status)]["content"]
    schema = {**content["application/json"]["schema"], "components": DOCUMENT["components"]}
    OAS31Validator(schema).validate(reply.json)
    return reply.json


async def get(node: FakeNode, path: str) -> Any:
    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        return checked(await peer.request("GET", path), "get", path)


async def ask(node: FakeNode, method: str, path: str, body: str = "") -> Reply:
    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        return await peer.request(method, path, body.encode(), Content_Type="application/json")


def cluster() -> FakeNode:
    """Node 1 leads three voters, of which 3 is not connected; 4 and 5 are observers."""
    node = FakeNode(brokers=4, voters=3)
    node.quorum.connect(2, match_index=115)
    node.quorum.connect(4, match_index=120)
    node.quorum.connect(5)
    return node


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_cluster_says_whether_access_is_open_and_how_its_node_does(
    host: str, is_open: bool
) -> None:
    node = cluster()
    await node.metadata.create_topic("t", partitions=3)
    node.replicas.open_count, node.replicas.opening_count = 1, 2
    async with (
        serving(ROUTES, node=node, host=host) as server,
        RawPeer.connected(server.port) as peer,
    ):
        found = checked(await peer.request("GET", "/v1/cluster"), "get", "/v1/cluster")
    assert found == {
        "cluster_id": "fake-cluster",
        "node_id": 1,
        "version": __version__,
        "controller_id": 1,
        "open_access": is_open,
        "clock_skew_ms": -1_500,
        "replicas": 3,
        "replicas_open": 1,
        "opening": 2,
    }


async def test_root_greets_with_version_and_working_links() -> None:
    node = cluster()
    routes = described_routes(REST_ROUTES)
    async with serving(routes, node=node) as server, RawPeer.connected(server.port) as peer:
        found = checked(await peer.request("GET", "/"), "get", "/")
        assert (found["name"], found["version"], found["node_id"]) == ("raftlog", __version__, 1)
        for path in found["links"].values():
            assert (await peer.request("GET", path)).status != 404, path


async def test_leader_shows_every_member_with_its_lag() -> None:
    view = await get(cluster(), "/v1/quorum")
    voters, observers = view.pop("voters"), view.pop("observers")
    assert view == {
        "cluster_id": "fake-cluster",
        "node_id": 1,
        "leader_id": 1,
        "term": 7,
        "is_active": True,
        "last_index": 120,
        "commit_index": 119,
        "applied_index": 118,
        "warnings": [],
    }
    assert [
        (m["node_id"], m["is_leader"], m["connected"], m["match_index"], m["lag"]) for m in voters
    ] == [(1, True, True, 120, 0), (2, False, True, 115, 5), (3, False, False, None, None)]
    assert [m["last_heard_ms"] for m in voters] == [0, 31, None]
    assert [(m["node_id"], m["match_index"], m["lag"]) for m in observers] == [
        (4, 120, 0),
        (5, None, None),
    ]


async def test_addresses_are_those_registered_then_those_known_otherwise() -> None:
    view = await get(cluster(), "/v1/quorum")
    places = {m["node_id"]: (m["host"], m["port"]) for m in view["voters"] + view["observers"]}
    assert places[3] == ("127.0.0.1", 8083)
    assert places[5] == ("10.0.0.5", 8082)


@pytest.mark.parametrize(
    ("address", "place"),
    [("[::1]:9", ("::1", 9)), ("odd", (None, None)), ("host:x", (None, None))],
)
async def test_odd_address_of_a_peer_harms_nothing(
    address: str, place: tuple[str | None, int | None]
) -> None:
    node = FakeNode()
    node.quorum.connected[9] = PeerStatus(9, address, False, None, 1.0, 1.0)
    (member,) = (await get(node, "/v1/quorum"))["observers"]
    assert (member["host"], member["port"]) == place


async def test_follower_that_knows_no_leader_says_so_and_shows_whom_it_reaches() -> None:
    node = cluster()
    node.quorum.lose_majority()
    view = await get(node, "/v1/quorum")
    assert (view["leader_id"], view["is_active"]) == (None, False)
    assert [m["connected"] for m in view["voters"]] == [True, False, False]
    assert not any(m["is_leader"] for m in view["voters"])
    assert view["observers"] == []


async def test_observer_lists_itself_among_the_observers() -> None:
    node = FakeNode(brokers=1)
    node.quorum.voters = VoterSet((Voter(2, "10.0.0.2", 8082, "pinned"),))
    node.quorum.leader_id = 2
    view = await get(node, "/v1/quorum")
    assert [(m["node_id"], m["connected"]) for m in view["observers"]] == [(1, True)]
    assert [(m["node_id"], m["directory_id"]) for m in view["voters"]] == [(2, "pinned")]


async def test_nodes_are_those_registered_voting_or_connected() -> None:
    node = cluster()
    node.quorum.voters = VoterSet(
        (*node.quorum.voters.voters, Voter(7, "10.0.0.7", 8082))
    )  # never started
    node.metadata.register(4)  # started again, and not heard of yet
    nodes = {row["node_id"]: row for row in (await get(node, "/v1/nodes"))["nodes"]}
    assert sorted(nodes) == [1, 2, 3, 4, 5, 7]
    assert [number for number, row in nodes.items() if row["is_controller"]] == [1]
    assert [number for number, row in nodes.items() if row["is_voter"]] == [1, 2, 3, 7]
    assert [number for number, row in nodes.items() if row["connected"]] == [1, 2, 4, 5]
    assert {number: row["fenced"] for number, row in nodes.items()} == {
        1: False, 2: False, 3: False, 4: True, 5: None, 7: None,
    }  # fmt: skip
    assert nodes[1]["software_version"] == "0"
    assert nodes[1]["directory_id"] == "d1"
    assert nodes[4]["broker_epoch"] > nodes[3]["broker_epoch"]
    assert nodes[7]["broker_epoch"] is None


async def test_changes_are_passed_to_the_quorum() -> None:
    node = cluster()
    for method, path, body in (
        ("POST", "/v1/quorum/voters", '{"node_id":4}'),
        ("DELETE", "/v1/quorum/voters/3", ""),
        ("POST", "/v1/quorum/transfer", '{"node_id":2}'),
        ("POST", "/v1/quorum/transfer", '{"node_id":null}'),
        ("POST", "/v1/quorum/transfer", "{}"),
    ):
        assert (await ask(node, method, path, body)).status == 204, (method, path)
    assert node.quorum.asked == [
        ("add", 4), ("remove", 3), ("transfer", 2), ("transfer", None), ("transfer", None),
    ]  # fmt: skip


@pytest.mark.parametrize("entry", [ILLEGAL_STATE, NO_CONTROLLER, RETRIABLE])
async def test_refusal_of_the_quorum_is_answered_as_it_is(entry: Any) -> None:
    node = cluster()
    node.quorum.refusal = LogError(entry, "Because.")
    reply = await ask(node, "POST", "/v1/quorum/voters", '{"node_id":4}')
    assert (reply.error_code, reply.json["message"]) == (entry.code, "Because.")
    checked(reply, "post", "/v1/quorum/voters")


@pytest.mark.parametrize("path", ["0", "-1", "x", "2147483648", "99999999999999999999", "%31x"])
async def test_what_is_no_node_number_is_not_found(path: str) -> None:
    node = cluster()
    assert (await ask(node, "DELETE", f"/v1/quorum/voters/{path}")).error_code == 40400
    assert node.quorum.asked == []


@pytest.mark.parametrize("path", ["0", "-1", "x", "2147483648", "7"])
async def test_unknown_node_is_not_found(path: str) -> None:
    reply = await ask(cluster(), "DELETE", f"/v1/nodes/{path}")
    assert reply.error_code == 40400
    checked(reply, "delete", "/v1/nodes/{node}")


async def test_node_is_forgotten_once_nothing_depends_on_it() -> None:
    node = cluster()
    (row,) = (await node.metadata.create_topic("t")).partitions
    holder = row.replicas[0]
    node.metadata.unfence(holder)

    async def refused() -> str:
        reply = await ask(node, "DELETE", f"/v1/nodes/{holder}")
        assert reply.error_code == 40903
        checked(reply, "delete", "/v1/nodes/{node}")
        return str(reply.json["message"])

    assert "alive: stop it first" in await refused()
    node.metadata.register(holder)
    assert f"`raftlog quorum remove-voter {holder}`" in await refused()
    node.quorum.voters = node.quorum.voters.remove(holder)
    assert "1 partition of 1 topic (t)" in await refused()
    await node.metadata.delete_topic("t")
    reply = await ask(node, "DELETE", f"/v1/nodes/{holder}")
    assert (reply.status, reply.body) == (204, b"")
    assert holder not in node.metadata.image.brokers
    assert (await ask(node, "DELETE", f"/v1/nodes/{holder}")).error_code == 40400


async def test_voter_that_never_registered_still_has_a_vote() -> None:
    node = cluster()
    node.quorum.voters = node.quorum.voters.add(Voter(7, "10.0.0.7", 8082))
    reply = await ask(node, "DELETE", "/v1/nodes/7")
    assert (reply.error_code, "remove-voter 7" in reply.json["message"]) == (40903, True)


async def test_nothing_is_forgotten_without_a_quorum() -> None:
    node = cluster()
    node.metadata.register(4)
    node.quorum.lose_majority()
    assert (await ask(node, "DELETE", "/v1/nodes/4")).error_code == NO_CONTROLLER.code
    assert 4 in node.metadata.image.brokers


async def test_whether_a_node_votes_is_left_to_the_quorum() -> None:
    """This node may lag behind the change that gave the vote."""
    reply = await ask(cluster(), "DELETE", "/v1/quorum/voters/4")
    assert (reply.error_code, reply.json["message"]) == (40903, "Node 4 is not a voter.")


@pytest.mark.parametrize(
    "body", ["", "{}", '{"node_id":0}', '{"node_id":"4"}', '{"node_id":4,"x":1}', "[4]"]
)
async def test_malformed_wish_is_refused(body: str) -> None:
    node = cluster()
    assert (await ask(node, "POST", "/v1/quorum/voters", body)).error_code == 42201
    assert node.quorum.asked == []


@pytest.mark.parametrize(("leader", "told"), [(1, 1), (2, 2), (None, -1)])
async def test_controller_is_the_leader_of_the_quorum_everywhere(
    leader: int | None, told: int
) -> None:
    node = FakeNode(brokers=2, voters=2)
    node.quorum.leader_id = leader
    assert (await get(node, "/v1/metadata"))["controller_id"] == told
    async with serving(ROUTES, node=node) as server, RawPeer.connected(server.port) as peer:
        described = (await peer.request("GET", "/v3/clusters/-")).json
        listed = (await peer.request("GET", "/v3/clusters")).json
    assert listed["data"] == [described]
    if leader is None:
        assert described["controller"] is None
    else:
        assert described["controller"]["related"].endswith(f"/brokers/{leader}")
