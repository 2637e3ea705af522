"""Reads from replicas in the consumer's rack (KIP-392), and from the leader where these fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from raftlog_client import Consumer, OffsetOutOfRangeError, TopicPartition
from raftlog_client.fetch import requests

from raftlog.record.errors import (
    NO_LEADER,
    OFFSET_OUT_OF_RANGE,
    STORAGE_FAILED,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    ErrorEntry,
)
from tests.client.fake_node import FakeCluster, Fault
from tests.client.fake_partition import FakePartition
from tests.client.test_consumer import append

FETCH, METADATA = "/v1/fetch", "/v1/metadata"
SECONDS = 20.0


@pytest.fixture
async def racks() -> AsyncIterator[FakeCluster]:
    """Nodes 1 to 4 in the racks a, b, b and c; node 1 leads `t`, and all but 4 hold it, in sync."""
    async with FakeCluster(4) as fake:
        for node, rack in zip(fake.nodes, "abbc", strict=True):
            node.rack = rack
        fake.create_topic("t", 1)
        only(fake).replicas = [1, 2, 3]
        yield fake
        for node in fake.nodes:
            if node.stopped is not None:
                node.stopped.set()


def only(cluster: FakeCluster) -> FakePartition:
    return cluster.topics["t"].partitions[0]


@asynccontextmanager
async def consuming(
    cluster: FakeCluster, rack: str | None, **settings: Any
) -> AsyncIterator[Consumer[Any, Any]]:
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, **settings}
    async with Consumer(
        "t", bootstrap_servers=cluster.bootstrap, client_rack=rack, **settings
    ) as consumer:
        yield consumer


async def take(consumer: Consumer[Any, Any], count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            found.append((await consumer.getone()).value)
    return found


async def served_by(cluster: FakeCluster, consumer: Consumer[Any, Any]) -> int:
    """The node that serves the next record."""
    before = len(cluster.fetched)
    append(only(cluster), b"next")
    assert await take(consumer, 1) == [b"next"]
    nodes = {node for node, _ in cluster.fetched[before:]}
    assert len(nodes) == 1
    return nodes.pop()


@pytest.mark.parametrize(
    ("rack", "node"), [("a", 1), ("b", 2), ("c", 1), ("nowhere", 1), (None, 1)]
)
async def test_a_replica_in_sync_in_the_rack_serves_or_else_the_leader(
    racks: FakeCluster, rack: str | None, node: int
) -> None:
    """Node 4, in rack c, holds no replica."""
    append(only(racks), b"0", b"1")
    async with consuming(racks, rack) as consumer:
        assert await take(consumer, 2) == [b"0", b"1"]
        assert await served_by(racks, consumer) == node
    assert {node for node, _ in racks.fetched} == {node}


async def test_the_leader_serves_where_it_is_in_the_rack_too(racks: FakeCluster) -> None:
    racks.nodes[0].rack = "b"
    async with consuming(racks, "b") as consumer:
        assert await served_by(racks, consumer) == 1


async def test_partitions_spread_over_the_replicas_of_a_rack(racks: FakeCluster) -> None:
    racks.create_topic("u", 4)
    for partition in racks.topics["u"].partitions:
        partition.lead(1)
        partition.replicas = [1, 2, 3]
        append(partition, b"x")
    async with Consumer(
        "u",
        bootstrap_servers=racks.bootstrap,
        client_rack="b",
        auto_offset_reset="earliest",
    ) as consumer:
        await take(consumer, 4)
    assert sorted(node for node, _ in racks.fetched) == [2, 2, 3, 3]


async def test_a_follower_that_dies_leaves_its_reader_to_another_or_to_the_leader(
    racks: FakeCluster,
) -> None:
    append(only(racks), b"0")
    async with consuming(racks, "b") as consumer:
        assert await take(consumer, 1) == [b"0"]
        await racks.nodes[1].stop()
        assert await served_by(racks, consumer) in {1, 3}
        await racks.nodes[2].stop()
        assert await served_by(racks, consumer) == 1


async def test_a_follower_that_hangs_is_left(racks: FakeCluster) -> None:
    racks.nodes[2].rack = "a"
    append(only(racks), b"0")
    async with consuming(racks, "b", request_timeout_ms=60_000) as consumer:
        assert await take(consumer, 1) == [b"0"]
        racks.nodes[1].stopped = asyncio.Event()
        append(only(racks), b"1")
        assert await take(consumer, 1) == [b"1"]
        assert racks.fetched[-1] == (1, 1)


@pytest.mark.parametrize(
    "refusal", [NO_LEADER, OFFSET_OUT_OF_RANGE, STORAGE_FAILED, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID]
)
async def test_no_refusal_of_a_follower_reaches_the_application(
    racks: FakeCluster, refusal: ErrorEntry
) -> None:
    append(only(racks), b"0", b"1")
    racks.fail(FETCH, Fault(error=refusal))
    async with consuming(racks, "b", auto_offset_reset="none") as consumer:
        consumer.seek(TopicPartition("t", 0), 0)
        assert await take(consumer, 2) == [b"0", b"1"]
        assert {node for node, _ in racks.fetched} == {1}
        assert racks.requests[FETCH] <= 4, "the follower is not asked again and again"


async def test_offsets_beyond_a_follower_s_log_are_the_leader_s(racks: FakeCluster) -> None:
    append(only(racks), b"0", b"1")
    append(only(racks), b"2")
    only(racks).follower_ends[2] = 2
    async with consuming(racks, "b") as consumer:
        assert await take(consumer, 2) == [b"0", b"1"]
        assert racks.fetched == [(2, 0)]
        consumer.seek(TopicPartition("t", 0), 3)
        assert await served_by(racks, consumer) == 1


async def test_out_of_range_is_the_leader_s_to_say(racks: FakeCluster) -> None:
    append(only(racks), b"0")
    async with consuming(racks, "b", auto_offset_reset="none") as consumer:
        consumer.seek(TopicPartition("t", 0), 9)
        with pytest.raises(OffsetOutOfRangeError):
            await take(consumer, 1)


async def test_the_follower_serves_again_after_a_while(
    racks: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LEADER_ONLY_S", 0.0)
    append(only(racks), b"0")
    racks.fail(FETCH, Fault(error=NO_LEADER))
    async with consuming(racks, "b") as consumer:
        assert await take(consumer, 1) == [b"0"]
        assert await served_by(racks, consumer) == 2


async def test_a_follower_that_falls_out_of_sync_is_left_and_taken_again(
    racks: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "IN_SYNC_AGE_S", 0.05)
    racks.nodes[2].rack = "a"
    append(only(racks), b"0")
    # Assigned partitions: no subscription refreshes the metadata.
    async with Consumer(
        bootstrap_servers=racks.bootstrap,
        client_rack="b",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
    ) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        assert await take(consumer, 1) == [b"0"]
        assert racks.fetched == [(2, 0)]
        # It stays where it is, answers, and never comes further.
        only(racks).follower_ends[2] = 1
        append(only(racks), b"1")
        only(racks).isr = [1, 3]
        assert await take(consumer, 1) == [b"1"]
        assert racks.fetched[-1][0] == 1
        only(racks).isr = None
        del only(racks).follower_ends[2]
        async with asyncio.timeout(SECONDS):
            while await served_by(racks, consumer) != 2:
                await racks.wait_for_requests(METADATA, racks.requests[METADATA] + 1)
        assert only(racks).values()[:2] == [b"0", b"1"]


async def test_a_new_leader_in_the_rack_is_followed(racks: FakeCluster) -> None:
    append(only(racks), b"0")
    async with consuming(racks, "b") as consumer:
        assert await take(consumer, 1) == [b"0"]
        await racks.nodes[0].stop()
        await racks.nodes[1].stop()
        only(racks).lead(3)
        only(racks).isr = [3]
        assert await served_by(racks, consumer) == 3
