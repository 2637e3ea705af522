"""The admin client on the quorum, the nodes and the cluster's settings, over the real routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from raftlog_client import Admin, RaftlogClientError, ServerError
from raftlog_client.transport import NodeAddress, decoded

from raftlog.api.cluster import NodeList
from raftlog.http.app import Server
from raftlog.http.settings import ServerLimits, ServerSettings
from raftlog.raft.voters import Voter, VoterSet
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER, LogError
from tests.http.fakes import FakeNode, start_server


@dataclass
class Running:
    node: FakeNode
    server: Server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def running(node: FakeNode) -> AsyncIterator[Running]:
    """A serving node, registered with its address."""
    limits = ServerLimits(shutdown_s=1, linger_s=0.2)
    server = await start_server(node.services, ServerSettings(port=0, limits=limits))
    try:
        node.metadata.register(node.quorum.node_id, server.port)
        node.metadata.unfence(node.quorum.node_id)
        yield Running(node, server)
    finally:
        await server.close()


def follower() -> FakeNode:
    node = FakeNode(brokers=2, voters=2)
    node.services.node_id = node.quorum.node_id = 2
    node.quorum.connect(1)
    return node


async def test_quorum_is_described_by_its_leader() -> None:
    leader, other = FakeNode(brokers=2, voters=2), follower()
    leader.quorum.connect(2, match_index=110)
    async with running(leader) as first, running(other) as second:
        # Each has its own image; the follower must know where the leader is.
        other.metadata.register(1, first.server.port)
        async with Admin(bootstrap_servers=second.address) as admin:
            info = await admin.describe_quorum()
    assert (info.node_id, info.leader_id, info.is_active) == (1, 1, True)
    assert [(member.node_id, member.lag) for member in info.voters] == [(1, 0), (2, 10)]


async def test_follower_describes_the_quorum_if_its_leader_does_not_answer() -> None:
    async with running(follower()) as second:
        second.node.metadata.register(1, 1)  # no listener there
        async with Admin(bootstrap_servers=second.address) as admin:
            info = await admin.describe_quorum()
    assert (info.node_id, info.leader_id) == (2, 1)
    assert [member.lag for member in info.voters] == [None, 0]


async def test_lost_leader_is_none_and_reads_go_on() -> None:
    async with running(FakeNode(brokers=1, voters=3)) as one:
        one.node.quorum.lose_majority()
        await one.node.metadata.create_topic("t")
        async with Admin(bootstrap_servers=one.address) as admin:
            assert (await admin.describe_cluster()).controller_id is None
            assert (await admin.describe_quorum()).leader_id is None
            assert await admin.list_topics() == ["t"]
            assert (await admin.describe_cluster_settings()).values == {}


async def test_controller_of_the_cluster_is_named() -> None:
    async with running(FakeNode(brokers=2)) as one:
        one.node.quorum.leader_id = 2
        async with Admin(bootstrap_servers=one.address) as admin:
            assert (await admin.describe_cluster()).controller_id == 2


async def test_nodes_tell_votes_and_fences() -> None:
    node = FakeNode(brokers=3, voters=2)
    node.metadata.register(3)
    async with (
        running(node) as one,
        Admin(bootstrap_servers=one.address) as admin,
    ):
        nodes = await admin.describe_nodes()
    assert [(n.node_id, n.is_voter, n.is_controller, n.fenced) for n in nodes] == [
        (1, True, True, False),
        (2, True, False, False),
        (3, False, False, True),
    ]


async def test_votes_and_leadership_are_changed() -> None:
    async with (
        running(FakeNode(voters=2)) as one,
        Admin(bootstrap_servers=one.address) as admin,
    ):
        await admin.add_voter(3)
        await admin.remove_voter(2)
        await admin.transfer_leadership(2)
        await admin.transfer_leadership()
        assert one.node.quorum.asked == [
            ("add", 3), ("remove", 2), ("transfer", 2), ("transfer", None),
        ]  # fmt: skip
        with pytest.raises(ServerError) as unknown:
            await admin.remove_voter(9)
        assert unknown.value.name == "ILLEGAL_STATE"
        one.node.quorum.refusal = LogError(ILLEGAL_STATE, "Node 3 is not connected.")
        with pytest.raises(ServerError, match="Node 3 is not connected") as refused:
            await admin.add_voter(3)
        assert not refused.value.retriable


async def test_node_is_removed_or_the_refusal_says_why() -> None:
    node = FakeNode(brokers=3, voters=2)
    node.metadata.register(3)
    async with (
        running(node) as one,
        Admin(bootstrap_servers=one.address) as admin,
    ):
        await admin.remove_node(3)
        assert [found.node_id for found in await admin.describe_nodes()] == [1, 2]
        with pytest.raises(ServerError) as unknown:
            await admin.remove_node(3)
        assert unknown.value.name == "NOT_FOUND"
        with pytest.raises(ServerError, match="alive: stop it first") as refused:
            await admin.remove_node(2)
        assert refused.value.name == "ILLEGAL_STATE"
        assert not refused.value.retriable


async def test_change_without_a_controller_is_tried_until_there_is_one() -> None:
    async with running(FakeNode(voters=2)) as one:
        asked = one.node.quorum.asked
        one.node.quorum.refusal = LogError(NO_CONTROLLER)
        refusals: list[int] = []

        async def refused_twice(node_id: int) -> None:
            refusals.append(node_id)
            if len(refusals) < 3:
                raise LogError(NO_CONTROLLER)
            asked.append(("add", node_id))

        one.node.quorum.add_voter = refused_twice  # type: ignore[method-assign]
        async with Admin(bootstrap_servers=one.address, retry_backoff_ms=1) as admin:
            await admin.add_voter(3)
    assert (len(refusals), asked) == (3, [("add", 3)])


async def test_cluster_settings_are_changed_and_read() -> None:
    async with (
        running(FakeNode()) as one,
        Admin(bootstrap_servers=one.address) as admin,
    ):
        await admin.alter_cluster_settings({"retention.ms": 1000, "flush": "async"})
        after = await admin.alter_cluster_settings({"flush": "sync"}, unset=["retention.ms"])
        assert after.values == {"flush": "sync"}
        assert await admin.describe_cluster_settings(fresh=True) == after
        assert one.node.quorum.barriers == 1
        with pytest.raises(ServerError) as refused:
            await admin.alter_cluster_settings({"nonsense": "1"})
        assert refused.value.name == "INVALID_CONFIG"


async def test_voter_without_a_known_address_is_no_leader_to_ask() -> None:
    node = follower()
    node.quorum.voters = VoterSet((Voter(1, "", 0), Voter(2, "10.0.0.2", 8082)))
    del node.metadata.image.brokers[next(iter(node.metadata.image.brokers))]
    async with (
        running(node) as one,
        Admin(bootstrap_servers=one.address) as admin,
    ):
        assert (await admin.describe_quorum()).node_id == 2


def test_malformed_answer_is_a_typed_error_and_new_fields_are_none() -> None:
    address = NodeAddress("h:1")
    with pytest.raises(RaftlogClientError, match="h:1 sent a malformed answer, no NodeList"):
        decoded(b'{"nodes": [{"node_id": "x"}]}', NodeList, address)
    assert decoded(b'{"nodes": [], "colour": "red"}', NodeList, address) == NodeList(())
