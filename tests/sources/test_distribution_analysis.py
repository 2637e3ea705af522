"""The claims of "Apache Kafka - Distribution Analysis" (DESOSA 2021): replication, fault tolerance,
delivery semantics, consistency against availability, network partitions.

docs/sources.md lists all claims, those with tests elsewhere too.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from raftlog.record.errors import NO_LEADER, NOT_ENOUGH_REPLICAS, LogError
from raftlog.replication.partition import Acks
from tests.simulation.data.clients import encode
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, ask, simulate_data
from tests.simulation.life import NodeDiedError
from tests.simulation.node_world import NodeWorld, simulate_cluster
from tests.sources.simulated import (
    NODES,
    REPLICAS,
    T,
    known_as_committed,
    read_values,
    refusal,
    replica,
    send,
    write_numbered,
)

SESSION_S: Final = 1.5
"""`broker.session.timeout.ms`: a leader without the quorum stops within this time."""
ANSWER_S: Final = 0.3


# Replication


def test_a_record_may_be_read_from_any_broker_once_the_followers_have_copied_it() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS])
        await data.in_sync()
        for node_id in REPLICAS[1:]:
            data.world.pause(node_id)
        assert await send(data, REPLICAS[0], acks=Acks.LEADER) == "ok"
        reader = Consumer(data, "early", T)
        reader.seek(0)
        assert await reader.poll(REPLICAS[0]) == ()
        for node_id in REPLICAS[1:]:
            data.world.resume(node_id)
        await data.in_sync()
        by_node = [await read_values(data, node_id, 1) for node_id in REPLICAS]
        assert by_node[0] == by_node[1] == by_node[2]

    simulate_data(test, node_count=NODES)


def test_the_leader_orders_the_writes_of_all_producers_alike_for_all_replicas() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS])
        until_s = data.world.loop.now + 2.0
        producers = [data.producer(f"p{number}") for number in range(4)]
        await asyncio.gather(*(one.run(until_s, 0.01) for one in producers))
        await data.in_sync()
        end = replica(data, REPLICAS[0]).log_end_offset
        assert end > 100
        logs = [await read_values(data, node_id, end) for node_id in REPLICAS]
        assert logs[0] == logs[1] == logs[2]

    simulate_data(test, node_count=NODES)


@pytest.mark.parametrize("is_caught_up", [True, False], ids=["all in sync", "one is behind"])
def test_a_failed_leader_is_replaced_by_one_of_the_isr_and_catches_up_as_it_returns(
    *, is_caught_up: bool
) -> None:
    async def test(data: DataWorld) -> None:
        leader, other, behind = REPLICAS
        await data.create("t", [REPLICAS])
        values = await write_numbered(data)
        await data.in_sync()
        if not is_caught_up:
            data.nodes.cut_off(behind)
            await data.isr(T, leader, other)
        values += await write_numbered(data)
        await known_as_committed(data, len(values), leader, other)
        data.nodes.kill(leader)
        data.world.network.heal()
        candidates = [other, behind] if is_caught_up else [other]
        await data.led(T, *candidates)
        values += await write_numbered(data)
        data.nodes.start(leader)
        await data.in_sync()
        assert await read_values(data, leader, len(values)) == values

    simulate_data(test, node_count=NODES)


def test_when_the_controller_fails_another_node_takes_over_and_elects() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS])
        await write_numbered(data)
        await data.in_sync()
        controller = await data.nodes.until(data.nodes.controller)
        data.nodes.kill(controller)
        data.nodes.kill(REPLICAS[0])
        await data.led(T, *REPLICAS[1:])
        assert data.nodes.controller() != controller
        await write_numbered(data)
        data.nodes.start(controller)
        data.nodes.start(REPLICAS[0])

    simulate_data(test, node_count=NODES)


@pytest.mark.parametrize("faulty", [1, 2])
def test_2f_plus_1_voters_go_on_without_f_of_them_and_stop_without_one_more(faulty: int) -> None:
    voters = 2 * faulty + 1

    async def test(nodes: NodeWorld) -> None:
        dead, rest = nodes.node_ids[:faulty], nodes.node_ids[faulty:]
        for node_id in dead:
            nodes.kill(node_id)
        await nodes.until(
            lambda: nodes.controller() is not None and all(map(nodes.is_fenced, dead))
        )
        controller = await nodes.ready(*rest)
        await nodes.create_topic(controller, "f", partitions=1, replication_factor=1)
        nodes.kill(rest.pop())
        await nodes.until(lambda: nodes.controller() is None)
        with pytest.raises((LogError, TimeoutError)):
            async with asyncio.timeout(2 * SESSION_S):
                await nodes.create_topic(rest[0], "g", partitions=1, replication_factor=1)
        for node_id in nodes.node_ids:
            if not nodes.world.is_up(node_id):
                nodes.start(node_id)
        await nodes.ready()
        assert {"f"} <= {*nodes.image(rest[0]).topics_by_name}

    simulate_cluster(test, node_count=voters, voter_count=voters)


# Delivery semantics


@pytest.mark.parametrize(
    ("is_copied", "is_repeated", "has_sequence", "count"),
    [
        pytest.param(False, False, False, 0, id="at most once: none"),
        pytest.param(True, False, False, 1, id="at most once: one"),
        pytest.param(False, True, False, 1, id="at least once: one"),
        pytest.param(True, True, False, 2, id="at least once: two"),
        pytest.param(False, True, True, 1, id="exactly once: by the retry"),
        pytest.param(True, True, True, 1, id="exactly once: by the first"),
    ],
)
def test_a_broker_that_fails_before_its_acknowledgement(
    *, is_copied: bool, is_repeated: bool, has_sequence: bool, count: int
) -> None:
    """The producer cannot know whether a follower has the record.

    Without a retry the record may be lost; a retry may repeat the record, unless its sequence
    number shows that the log has it.
    """

    async def test(nodes: NodeWorld) -> None:
        # Without the history's checker, which would find the lost and the repeated record.
        data = DataWorld(nodes)
        leader, follower, other = REPLICAS
        await data.create("t", [REPLICAS])
        await data.in_sync()
        identity = await ask(
            data, follower, lambda core: core.services.metadata.allocate_producer_id()
        )
        batch = encode(["once"], identity, 0) if has_sequence else encode(["once"])

        async def append(node_id: int) -> Any:
            return await ask(
                data,
                node_id,
                lambda core: core.services.replicas.partition("t", 0).append(
                    batch, acks=Acks.ALL, timeout_s=ANSWER_S
                ),
            )

        data.nodes.cut_off(leader, [other] if is_copied else [follower, other])
        appending = asyncio.ensure_future(append(leader))
        has_record = follower if is_copied else leader
        await data.nodes.until(lambda: replica(data, has_record).log_end_offset == 1)
        data.nodes.kill(leader)
        with pytest.raises(NodeDiedError):
            await appending
        data.world.network.heal()
        successor = await data.led(T, follower)
        if is_repeated:
            await append(successor)
        data.nodes.start(leader)
        await data.in_sync()
        end = replica(data, successor).log_end_offset
        for node_id in REPLICAS:
            assert await read_values(data, node_id, end) == ["once"] * count

    simulate_cluster(test, node_count=NODES)


# Consistency against availability


@pytest.mark.parametrize("min_isr", [1, 2, 3])
def test_min_insync_replicas_chooses_between_available_writes_and_safe_ones(min_isr: int) -> None:
    """Of three replicas 3 - min ISR may die with writes going on, min ISR - 1 with nothing lost."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS], {"min.insync.replicas": str(min_isr)})
        values = await write_numbered(data)
        await data.in_sync()
        alive = list(REPLICAS)
        while len(alive) > min_isr:
            data.nodes.kill(alive.pop(0))
            await data.isr(T, *alive)
            values += await write_numbered(data)
        await known_as_committed(data, len(values), *alive)
        # As many as the minimum have all records: all but one of these may die.
        while len(alive) > 1:
            data.nodes.kill(alive.pop(0))
            await data.led(T, *alive)
            assert (await refusal(data, await data.led(T))).entry is NOT_ENOUGH_REPLICAS
        assert await read_values(data, alive[0], len(values)) == values
        data.nodes.kill(alive[0])
        for node_id in REPLICAS[:-1]:
            data.nodes.start(node_id)
        if min_isr == 1:
            # One death too many: the others lack records, and the partition waits.
            await data.nodes.ready(*REPLICAS[:-1])
            assert data.leader(T) is None
            assert (await refusal(data, REPLICAS[0])).entry is NO_LEADER
        data.nodes.start(alive[0])

    simulate_data(test, node_count=NODES)


def test_a_read_is_of_the_most_recent_write_or_an_error_at_the_leader() -> None:
    """A deposed leader denies no record that its successor has acknowledged."""

    async def test(data: DataWorld) -> None:
        leader = REPLICAS[0]
        await data.create("t", [REPLICAS])
        await write_numbered(data)
        await data.in_sync()
        reader = Consumer(data, "end", T)
        assert await reader.ask_end(leader) == 3
        data.nodes.cut_off(leader)
        await data.led(T, *REPLICAS[1:])
        await write_numbered(data)
        assert await reader.ask_end(leader) is None
        assert await reader.ask_end(REPLICAS[1]) == 6

    simulate_data(test, node_count=NODES)


# Network partitions


def test_followers_that_lose_their_leader_leave_the_isr_and_return_once_they_have_caught_up() -> (
    None
):
    async def test(data: DataWorld) -> None:
        leader, *followers = REPLICAS
        await data.create("t", [REPLICAS], {"min.insync.replicas": "1"})
        await write_numbered(data)
        await data.in_sync()
        for node_id in followers:
            data.nodes.cut_off(node_id)
        await data.isr(T, leader)
        values = await write_numbered(data, 5)
        for node_id in followers:
            assert replica(data, node_id).log_end_offset == 3
        data.world.network.heal()
        await data.isr(T, *REPLICAS)
        for node_id in followers:
            assert (await read_values(data, node_id, 8))[3:] == values

    simulate_data(test, node_count=NODES)


def test_an_isolated_leader_commits_nothing_stops_and_truncates_as_it_returns() -> None:
    """With acks=1 the leader still acknowledges records for a moment, as promised for acks=1."""

    async def test(data: DataWorld) -> None:
        leader, *followers = REPLICAS
        await data.create("t", [REPLICAS])
        values = await write_numbered(data)
        await data.in_sync()
        cut_at = data.world.loop.now
        data.nodes.cut_off(leader)
        assert await send(data, leader, within_s=ANSWER_S) == "unknown"
        assert await send(data, leader, acks=Acks.LEADER) == "ok"
        assert replica(data, leader).log_end_offset == 5
        assert replica(data, leader).high_watermark == 3
        await data.nodes.until(lambda: not data.nodes.takes_writes(leader, "t", 0))
        assert data.world.loop.now - cut_at <= SESSION_S
        assert await send(data, leader, acks=Acks.LEADER) == "refused"
        await data.led(T, *followers)
        values += await write_numbered(data)
        data.world.network.heal()
        await data.in_sync()
        assert not replica(data, leader).is_leader
        assert replica(data, leader).log_end_offset == 6
        assert await read_values(data, leader, 6) == values

    simulate_data(test, node_count=NODES)
