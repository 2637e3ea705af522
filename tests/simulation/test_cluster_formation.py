"""Clusters come to be, grow, and come back from their data directories: whole nodes, simulated."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

import pytest

from raftlog.metadata.commands import KAFKA_ADDRESS_VERSION, RegisterBroker
from raftlog.node import assembly
from raftlog.record.types import BrokerId
from tests.simulation.node_world import SNAPSHOTS, NodeWorld, simulate

ORDERS = list(itertools.permutations((1, 2, 3)))


@pytest.mark.parametrize("apart_s", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_three_nodes_form_a_cluster_in_whatever_order_they_start(
    order: tuple[int, ...], apart_s: float
) -> None:
    async def test(nodes: NodeWorld) -> None:
        for node_id in order:
            nodes.start(node_id)
            await asyncio.sleep(apart_s)
        await nodes.ready()
        await nodes.create_topic(order[0], "t", partitions=3)
        await nodes.agreed()
        assert len({nodes.image(node_id).cluster_id for node_id in order}) == 1
        nodes.check_endings()

    simulate(test)


def test_two_of_three_are_enough_and_one_alone_waits() -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.start(3)
        await asyncio.sleep(10)
        assert not nodes.is_ready(3)
        assert nodes.controller() is None
        nodes.start(1)
        await nodes.ready(1, 3)
        nodes.check_endings()

    simulate(test)


def test_a_node_without_voters_or_join_is_a_cluster_of_its_own() -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.start(1)
        assert await nodes.ready() == 1
        await nodes.create_topic(1, "t")
        assert nodes.takes_writes(1, "t")

    simulate(test, node_count=1, voter_count=1)


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_fourth_node_joins_by_any_node_and_hosts_partitions(asked: int) -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.overrides[4] = {"join": nodes.world.address(asked)}
        nodes.overrides[5] = {"join": nodes.world.address(4)}
        for node_id in (1, 2, 3):
            nodes.start(node_id)
        await nodes.ready(1, 2, 3)
        for node_id in (4, 5):
            nodes.start(node_id)
            await nodes.ready(node_id)
        number = await nodes.create_led_by(5, "t")
        await nodes.until(lambda: nodes.takes_writes(5, "t", number))
        assert nodes.cores[5].quorum.voters.ids == {1, 2, 3}
        await nodes.agreed()
        nodes.check_endings()

    simulate(test, node_count=5)


def test_a_node_that_joins_waits_for_the_cluster_to_be_there() -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.start(4)
        await asyncio.sleep(5)
        for node_id in (1, 2, 3):
            nodes.start(node_id)
            await asyncio.sleep(1)
        await nodes.ready()
        nodes.check_endings()

    simulate(test, node_count=4)


def test_a_node_joins_by_a_snapshot_when_the_log_begins_later() -> None:
    async def test(nodes: NodeWorld) -> None:
        for node_id in (1, 2, 3):
            nodes.start(node_id)
        controller = await nodes.ready(1, 2, 3)
        for number in range(40):
            await nodes.create_topic(controller, f"t-{number}")
        nodes.start(4)
        await nodes.ready()
        await nodes.agreed()
        assert nodes.cores[4].quorum.status().snapshot_index > 0
        assert len(nodes.image(4).topics_by_name) == 40

    simulate(test, node_count=4, member_settings=SNAPSHOTS)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("snapshots", [False, True])
def test_nodes_restart_with_nothing_but_their_data_directories(
    power: bool, snapshots: bool
) -> None:
    async def test(nodes: NodeWorld) -> None:
        if snapshots:
            nodes.member_settings = SNAPSHOTS
        nodes.start_all()
        controller = await nodes.ready()
        for number in range(30):
            await nodes.create_topic(controller, f"t-{number}")
        cluster_id = nodes.image(controller).cluster_id
        epochs = {node_id: nodes.broker(controller, node_id).broker_epoch for node_id in (1, 4)}
        for node_id in nodes.node_ids:
            nodes.kill(node_id, power=power)
            nodes.overrides[node_id] = {"voters": None, "join": None}
        nodes.start_all()
        controller = await nodes.ready()
        await nodes.agreed()
        assert nodes.image(controller).cluster_id == cluster_id
        assert len(nodes.image(controller).topics_by_name) == 30
        for node_id, epoch in epochs.items():
            assert nodes.broker(controller, node_id).broker_epoch > epoch
        nodes.check_endings()

    simulate(test, node_count=4)


def test_the_voters_given_to_a_restart_do_not_count() -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.start_all()
        await nodes.ready()
        nodes.kill(2)
        # A corrected voter list is of no use any more.
        own = f"2@{nodes.world.address(2)},7@elsewhere.test:8082"
        nodes.overrides[2] = {"voters": f"{own},3@{nodes.world.address(3)}"}
        nodes.start(2)
        await nodes.ready()
        nodes.check_endings()
        # Another cluster's list is refused, and without it the node goes on.
        nodes.kill(2)
        nodes.overrides[2] = {"voters": own}
        nodes.start(2)
        assert "start without --voters" in await nodes.ended(2)
        nodes.overrides[2] = {"voters": None}
        nodes.start(2)
        await nodes.ready()

    simulate(test)


def test_a_cluster_of_one_does_not_take_in_voters_of_another_list() -> None:
    """Nodes 2 and 3 would follow node 1 and its one vote, and call themselves voters."""

    async def test(nodes: NodeWorld) -> None:
        nodes.overrides[1] = {"voters": None}
        nodes.start(1)
        await nodes.until(lambda: nodes.is_ready(1))
        nodes.start(2)
        assert "in which it has the only vote" in await nodes.ended(2)
        assert nodes.is_ready(1)
        assert nodes.cores[1].quorum.peers() == {}

    simulate(test)


def test_a_voter_that_has_moved_is_found_by_all() -> None:
    async def test(nodes: NodeWorld) -> None:
        nodes.start_all()
        await nodes.ready()
        nodes.kill(2)
        nodes.overrides = {node_id: {"voters": None} for node_id in nodes.node_ids}
        nodes.world.network.move(2, "moved.test:9000")
        nodes.start(2)
        await nodes.ready()

        def found(node_id: int) -> bool:
            voter = nodes.cores[node_id].quorum.voters.find(2)
            return voter is not None and voter.address == "moved.test:9000"

        await nodes.until(lambda: all(map(found, nodes.node_ids)))
        controller = await nodes.ready()
        broker = nodes.broker(controller, 2)
        assert (broker.host, broker.port) == ("moved.test", 9000)
        # The others connect to it there, and its own state suffices.
        for node_id in nodes.node_ids:
            nodes.kill(node_id)
        nodes.start(2)
        nodes.start(3)
        await nodes.ready(2, 3)
        nodes.check_endings()

    simulate(test)


def test_kafka_addresses_are_known_to_all_once_the_last_older_node_is_upgraded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All nodes are stopped, and started by the new release: each meets rows of the older one."""
    older = partial(RegisterBroker, command_version=KAFKA_ADDRESS_VERSION - 1)

    def addresses(nodes: NodeWorld, node_id: int) -> list[tuple[str | None, int | None]]:
        brokers = nodes.image(node_id).brokers
        return [(brokers[one].kafka_host, brokers[one].kafka_port) for one in sorted(brokers)]

    async def test(nodes: NodeWorld) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(assembly, "RegisterBroker", older)
            nodes.start_all()
            await nodes.ready()
        for node_id in nodes.node_ids:
            nodes.kill(node_id)
            nodes.overrides[node_id] = {"kafka_listen": f"10.0.0.{node_id}:9092"}
        for node_id in (1, 2):
            nodes.start(node_id)
        await nodes.ready(1, 2)
        assert addresses(nodes, 1) == [(None, None)] * 3
        epochs = [nodes.image(1).brokers[BrokerId(one)].broker_epoch for one in (1, 2)]
        nodes.start(3)
        await nodes.ready()
        expected = [(f"10.0.0.{one}", 9092) for one in nodes.node_ids]
        await nodes.until(lambda: all(addresses(nodes, one) == expected for one in nodes.node_ids))
        assert [nodes.image(1).brokers[BrokerId(one)].broker_epoch for one in (1, 2)] == epochs
        # A restart registers its address at once: it does not vanish from the metadata.
        nodes.kill(2)
        nodes.start(2)
        await nodes.ready()
        await nodes.agreed()
        assert addresses(nodes, 2) == expected
        nodes.check_endings()

    simulate(test)
