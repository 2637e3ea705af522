"""Queries over many partitions: one call per leader, one outcome per partition."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from raftlog.metadata.image import NO_LEADER_ID
from raftlog.record.errors import NO_LEADER, NOT_READY, UNKNOWN_PARTITION, UNKNOWN_TOPIC, LogError
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionId
from raftlog.routing.forwarding import ANSWER_SLACK_S
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.many import (
    BOUNDS_S_MAX,
    FoundRecord,
    PartitionBounds,
    bounds_of_many,
    times_of_many,
)

from .forwarding_world import NODES, TOPIC, TOPIC_ID, Cluster, Node, batch, simulate


def spread(cluster: Cluster, *leaders: int) -> None:
    """Have the topic as many partitions, led by these nodes, as all nodes know."""
    for number in NODES:
        image = cluster.nodes[number].replicas.image
        topic = image.topic(TOPIC)
        first = topic.partitions[0]
        rows = tuple(
            msgspec.structs.replace(
                first,
                partition=PartitionId(index),
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(5),
            )
            for index, leader in enumerate(leaders)
        )
        topic = msgspec.structs.replace(topic, partitions=rows)
        image.topics_by_id[TOPIC_ID] = image.topics_by_name[TOPIC] = topic


def wanted(node: Node, *partitions: int) -> list[PartitionHandle]:
    return [
        PartitionHandle(node.partitions, TOPIC, TOPIC_ID, PartitionId(one), None)
        for one in partitions
    ]


async def bounds(node: Node, *partitions: int) -> list[PartitionBounds | LogError]:
    return await node.run(bounds_of_many(node.partitions, wanted(node, *partitions)))


async def times(node: Node, *times_ms: int) -> list[FoundRecord | LogError | None]:
    partitions = wanted(node, *range(len(times_ms)))
    return await node.run(
        times_of_many(node.partitions, list(zip(partitions, times_ms, strict=True)))
    )


def refusal(row: object) -> LogError:
    assert isinstance(row, LogError)
    return row


def test_each_leader_is_asked_once_however_many_partitions_it_leads() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.nodes[1].append(batch(b"a", b"b"))
        node = cluster.nodes[2]
        spread(cluster, *(1, 2, 3) * 500)
        before = node.forwarder.requests
        rows = await bounds(node, *range(1500))
        assert rows == [PartitionBounds(*(0, 2, 2))] * 1500  # type: ignore[arg-type]
        assert node.forwarder.requests - before == 2

    simulate(test)


def test_each_node_makes_sure_once_that_it_leads() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        spread(cluster, *(1, 2, 3) * 500)
        await bounds(node, *range(1500))
        assert [cluster.nodes[number].mine.calls for number in NODES] == [["confirm"]] * 3
        cluster.nodes[1].mine.errors = [LogError(NO_LEADER)]
        rows = await bounds(node, *range(6))
        assert [isinstance(row, LogError) for row in rows] == [True, False, False] * 2

    simulate(test)


def test_a_lead_that_ends_while_it_is_made_sure_of_is_of_one_partition() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        spread(cluster, 2, 2)
        node.mine.gate = asyncio.Event()
        asking = asyncio.ensure_future(bounds(node, 0, 1))
        await asyncio.sleep(0.001)
        spread(cluster, 2, 1)
        node.mine.gate.set()
        rows = await asking
        assert rows[0] == PartitionBounds(*(0, 0, 0))  # type: ignore[arg-type]
        assert refusal(rows[1]).entry is NO_LEADER

    simulate(test)


def test_more_than_one_question_holds_is_asked_in_several() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        spread(cluster, *(1,) * 2_001)
        assert len(await bounds(node, *range(2_001))) == 2_001
        assert node.forwarder.requests == 3

    simulate(test)


def test_a_partition_without_leader_has_an_error_and_the_others_answer() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        spread(cluster, 1, NO_LEADER_ID, 3, 2)
        rows = await bounds(node, 0, 1, 2, 3)
        assert refusal(rows[1]).entry is NO_LEADER
        assert [isinstance(row, PartitionBounds) for row in rows] == [True, False, True, True]
        found = await times(node, 5, 5, 500, 5)
        assert found[0] == found[3] == (7, 99)
        assert refusal(found[1]).entry is NO_LEADER
        assert found[2] is None

    simulate(test)


def test_that_no_record_is_that_young_is_confirmed_once_for_all_partitions() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        spread(cluster, 2, 2, 2)
        assert await times(node, 5, 500, 500) == [(7, 99), None, None]
        assert node.mine.calls == ["time 5", "time 500", "time 500", "confirm"]
        node.mine.calls.clear()
        assert await times(node, 5, 5, 5) == [(7, 99)] * 3
        assert "confirm" not in node.mine.calls

    simulate(test)


def test_a_lead_that_is_not_confirmed_denies_no_record_of_a_time() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        spread(cluster, 2, 2)

        async def refuse() -> None:
            raise LogError(NO_LEADER, "not known at the moment")

        node.mine.confirm = refuse  # type: ignore[method-assign]
        rows = await times(node, 500, 5)
        assert refusal(rows[0]).entry is NO_LEADER
        assert rows[1] == (7, 99)

    simulate(test)


def test_a_record_committed_while_the_lead_is_confirmed_is_found() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        spread(cluster, 2)
        confirm = node.mine.confirm

        async def confirm_and_grow() -> None:
            await confirm()
            cluster.records.end += 1

        node.mine.confirm = confirm_and_grow  # type: ignore[method-assign]
        await times(node, 500)
        assert node.mine.calls == ["time 500", "confirm", "time 500"]

    simulate(test)


def test_an_error_at_a_leader_is_of_one_partition() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        spread(cluster, 1, 1, 1)
        # The leader has not heard of the last two partitions, and leads the first no more.
        leader.learn(3, 6)
        rows = await bounds(node, 0, 1)
        assert [refusal(row).entry for row in rows] == [NO_LEADER, UNKNOWN_PARTITION]
        assert f"{TOPIC}-1" in refusal(rows[1]).message
        spread(cluster, 1, 1)
        leader.mine.errors = [LogError(NOT_READY, "not yet")]
        found = await times(node, 5, 5)
        assert [isinstance(one, LogError) for one in found] == [True, False]

    simulate(test)


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_leader_that_hangs_or_is_gone_does_not_keep_the_others_answers(is_crashed: bool) -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        spread(cluster, 1, 2, 3)
        await bounds(node, 0, 2)
        (cluster.world.crash if is_crashed else cluster.world.pause)(1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        rows = await bounds(node, 0, 1, 2)
        assert refusal(rows[0]).entry is NOT_READY
        assert isinstance(rows[1], PartitionBounds)
        assert isinstance(rows[2], PartitionBounds)
        assert loop.time() - began <= BOUNDS_S_MAX + ANSWER_SLACK_S + 0.01

    simulate(test)


def test_a_deleted_topic_is_told() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        one = wanted(node, 0)
        for number in NODES:
            image = cluster.nodes[number].replicas.image
            del image.topics_by_id[TOPIC_ID], image.topics_by_name[TOPIC]
        rows = await node.run(bounds_of_many(node.partitions, one))
        assert refusal(rows[0]).entry is UNKNOWN_TOPIC

    simulate(test)
