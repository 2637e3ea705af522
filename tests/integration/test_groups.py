"""Consumer groups on real nodes: members share partitions, and take over from those that leave or
die; committed offsets survive restarts and kills."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import pytest
from raftlog_client import Admin, Consumer, Producer, ServerError, TopicPartition

from bench.cluster import Cluster
from bench.node import LoneNode
from raftlog.record.errors import GROUP_NOT_EMPTY, UNKNOWN_GROUP

PARTITIONS = 6
TIMEOUT_S = 60.0
SESSION_MS = 2_000


def member(servers: str, topic: str, **settings: Any) -> Consumer[Any, Any]:
    defaults = {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "session_timeout_ms": SESSION_MS,
        "auto_commit_interval_ms": 100,
    }
    return Consumer(topic, bootstrap_servers=servers, **(defaults | settings))


async def fill(servers: str, topic: str, first: int, count: int) -> None:
    """Records with the values `first`, `first + 1`, ….: equally many in each partition."""
    async with Producer(bootstrap_servers=servers) as producer:
        await asyncio.gather(
            *[
                await producer.send(topic, b"%d" % value, partition=value % PARTITIONS)
                for value in range(first, first + count)
            ]
        )


async def read_until(condition: Any, values: set[int], *readers: Consumer[Any, Any]) -> None:
    """Read with all readers in turn until the condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            for reader in readers:
                for records in (await reader.getmany(timeout_ms=50)).values():
                    values.update(int(record.value) for record in records)


async def committed(admin: Admin, group: str = "g") -> dict[TopicPartition, int]:
    """Committed offsets by partition."""
    described = await admin.describe_group(group)
    return {TopicPartition(one.topic, one.partition): one.offset for one in described.offsets}


def test_two_members_share_the_partitions_of_a_lone_node_and_one_leaves(node: LoneNode) -> None:
    asyncio.run(share(node.address))


async def share(servers: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("t", partitions=PARTITIONS)
        await fill(servers, "t", 0, 600)
        values: set[int] = set()
        async with member(servers, "t") as first:
            assert len(first.assignment()) == PARTITIONS
            async with member(servers, "t") as second:
                await read_until(
                    lambda: len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2,
                    values,
                    first,
                    second,
                )
                assert not first.assignment() & second.assignment()
                await read_until(lambda: len(values) == 600, values, first, second)
                [listed] = (await admin.list_groups()).groups
                assert (listed.group, listed.kind, listed.members) == ("g", "consumer", 2)
                described = await admin.describe_group("g")
                assert {one.member_id for one in described.offsets} == {
                    one.member_id for one in described.members
                }
                with pytest.raises(ServerError) as refused:
                    await admin.delete_group("g")
                assert refused.value.code == GROUP_NOT_EMPTY.code
            await fill(servers, "t", 600, 60)
            await read_until(lambda: len(values) == 660, values, first)
            assert len(first.assignment()) == PARTITIONS
        assert set((await committed(admin)).values()) == {110}


def test_groups_are_administered_on_a_lone_node(node: LoneNode) -> None:
    asyncio.run(administer(node.address))


async def administer(servers: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        assert (await admin.list_groups()).groups == []
        with pytest.raises(ServerError) as refused:
            await admin.describe_group("g")
        assert refused.value.code == UNKNOWN_GROUP.code
        await admin.create_topic("t", partitions=PARTITIONS)
        await fill(servers, "t", 0, 60)
        async with member(servers, "t") as reader:
            await read_until(lambda: len(values) == 60, values := set(), reader)
        assert set((await committed(admin)).values()) == {10}
        planned = await admin.reset_offsets("g", to="earliest", validate_only=True)
        assert [(row.before, row.offset) for row in planned.partitions] == [(10, 0)] * PARTITIONS
        assert set((await committed(admin)).values()) == {10}
        await admin.reset_offsets("g", [TopicPartition("t", 1)], shift_by=-4)
        assert (await committed(admin))[TopicPartition("t", 1)] == 6
        described = await admin.describe_group("g")
        assert [one.lag for one in described.offsets] == [0, 4, 0, 0, 0, 0]
        await admin.delete_offsets("g", [TopicPartition("t", 0)])
        assert len(await committed(admin)) == PARTITIONS - 1
        await admin.delete_group("g")
        assert (await admin.list_groups()).groups == []


def test_new_partitions_are_assigned_by_themselves(shared_node: LoneNode) -> None:
    asyncio.run(grow(shared_node.address))


async def grow(servers: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("grown", partitions=2)
        async with member(servers, "grown", group_id="grown") as reader:
            assert len(reader.assignment()) == 2
            await admin.create_partitions("grown", PARTITIONS)
            await read_until(lambda: len(reader.assignment()) == PARTITIONS, set(), reader)


TAKEN, SURVIVED = "taken", "survived"
"""Topics and groups of the shared cluster."""


def read_forever(servers: str) -> None:
    """The program of a member that is killed."""

    async def read() -> None:
        async with member(servers, TAKEN, group_id=TAKEN) as reader:
            while True:
                await reader.getmany(timeout_ms=100)

    asyncio.run(read())


def test_another_member_takes_over_from_a_killed_one(cluster: Cluster) -> None:
    asyncio.run(take_over(cluster.servers))


async def take_over(servers: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(TAKEN, partitions=PARTITIONS)
        values: set[int] = set()
        async with member(servers, TAKEN, group_id=TAKEN) as survivor:
            process = multiprocessing.get_context("spawn").Process(
                target=read_forever, args=(servers,)
            )
            process.start()
            try:
                await read_until(
                    lambda: len(survivor.assignment()) == PARTITIONS // 2, values, survivor
                )
            finally:
                process.kill()
                process.join()
            await fill(servers, TAKEN, 0, 600)
            await read_until(lambda: len(values) == 600, values, survivor)
            assert len(survivor.assignment()) == PARTITIONS
            assert len((await admin.describe_group(TAKEN)).members) == 1


def test_members_and_offsets_survive_the_coordinators_kill_and_a_restart_of_all(
    cluster: Cluster,
) -> None:
    servers = cluster.servers
    before = asyncio.run(survive_a_kill(cluster, servers))
    for node in cluster.nodes.values():
        if node.is_running:
            node.stop()
    for node in cluster.nodes.values():
        node.relaunch()
    for node in cluster.nodes.values():
        node.wait_ready()
    asyncio.run(go_on(servers, before))


async def survive_a_kill(cluster: Cluster, servers: str) -> dict[TopicPartition, int]:
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic(SURVIVED, partitions=PARTITIONS)
        await fill(servers, SURVIVED, 0, 600)
        values: set[int] = set()
        async with (
            member(servers, SURVIVED, group_id=SURVIVED) as first,
            member(servers, SURVIVED, group_id=SURVIVED) as second,
        ):
            await read_until(lambda: len(values) == 600, values, first, second)
            coordinator = (await admin.describe_group(SURVIVED)).coordinator
            await asyncio.to_thread(cluster.nodes[coordinator].kill)
            await fill(servers, SURVIVED, 600, 600)
            await read_until(lambda: len(values) == 1200, values, first, second)
            assert (await admin.describe_group(SURVIVED)).coordinator != coordinator
        found = await committed(admin, SURVIVED)
        assert set(found.values()) == {200}
        return found


async def go_on(servers: str, before: dict[TopicPartition, int]) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        assert await committed(admin, SURVIVED) == before
        await fill(servers, SURVIVED, 1200, 60)
        values: set[int] = set()
        async with member(servers, SURVIVED, group_id=SURVIVED) as reader:
            await read_until(lambda: len(values) == 60, values, reader)
        assert values == set(range(1200, 1260))
