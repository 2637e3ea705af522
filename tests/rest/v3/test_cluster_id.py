"""The cluster id in v3 paths: the node's own or `-`; a foreign one is 404, for writes too."""

from __future__ import annotations

import pytest

from raftlog.http.routing import Route
from raftlog.rest.routes import ROUTES
from tests.rest.data_fakes import data_node
from tests.rest.v1.test_groups import group_node

CLUSTER_ROUTES = [route for route in ROUTES if "{cluster}" in route.path]
_PARAMETERS = {
    "{topic}": "one",
    "{partition}": "0",
    "{broker}": "1",
    "{config}": "retention.ms",
    "{group}": "g",
    "{consumer}": "c",
}


def path_of(template: str, cluster: str) -> str:
    path = template.replace("{cluster}", cluster)
    for name, value in _PARAMETERS.items():
        path = path.replace(name, value)
    return path


@pytest.mark.parametrize("route", CLUSTER_ROUTES, ids=lambda route: route.name)
async def test_foreign_cluster_id_is_not_found(route: Route) -> None:
    async with data_node() as one:
        for cluster in ("any", "fake-cluste", "FAKE-CLUSTER", "%2D%2D"):
            path = path_of(route.path, cluster)
            reply = await one.peer.request(
                route.method, path, b'{"topic_name":"new"}', Content_Type="application/json"
            )
            assert (reply.status, reply.error_code) == (404, 40400), path
            assert "fake-cluster" in reply.json["message"]
        assert set(one.node.metadata.image.topics_by_name) == {"one", "six"}


@pytest.mark.parametrize("cluster", ["-", "fake-cluster"])
async def test_own_cluster_id_and_dash_are_answered(cluster: str) -> None:
    async with group_node() as one:
        for route in CLUSTER_ROUTES:
            if route.method == "GET":
                reply = await one.peer.request("GET", path_of(route.path, cluster))
                if reply.status not in (200, 422):
                    message = reply.json["message"]
                    assert "being reassigned" in message or "Group 'g'" in message, route.path
        assert (
            await one.peer.request("DELETE", f"/v3/clusters/{cluster}/topics/six")
        ).status == 204


def test_every_v3_route_but_the_list_names_its_cluster() -> None:
    without = {route.path for route in ROUTES if route.path.startswith("/v3")} - {
        route.path for route in CLUSTER_ROUTES
    }
    assert without == {"/v3/clusters"}
