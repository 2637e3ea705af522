"""Queries to partition leaders: split, merged, and repeated when a leader has moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from raftlog_client import (
    Admin,
    ConnectionLostError,
    Consumer,
    OffsetOutOfRangeError,
    RaftlogClientError,
    ServerError,
    TopicNotFoundError,
    TopicPartition,
)
from raftlog_client.errors import server_error
from raftlog_client.metadata import Backoff, ClusterMetadata
from raftlog_client.routing import LeaderCalls, all_answers
from raftlog_client.transport import NodeAddress, Transport, parse_bootstrap

from raftlog.record.errors import (
    NO_LEADER,
    NOT_READY,
    OFFSET_OUT_OF_RANGE,
    OVERLOADED,
    STORAGE_FAILED,
    UNKNOWN_TOPIC,
    ErrorEntry,
)
from tests.client.fake_node import FakeCluster, Fault

METADATA = "/v1/metadata"
OFFSETS = "/v1/offsets"
TIMES = "/v1/offsets-for-times"
DELETE = "/v1/delete-records"
ALL = [TopicPartition("t", number) for number in range(3)]
NOBODY = 99


@asynccontextmanager
async def metadata_of(cluster: FakeCluster) -> AsyncIterator[ClusterMetadata]:
    transport = Transport(client_id="test", request_timeout_ms=2_000)
    transport.start()
    metadata = ClusterMetadata(transport, parse_bootstrap(cluster.bootstrap), Backoff(1, 5))
    try:
        yield metadata
    finally:
        await metadata.close()
        await transport.close()


def admin_of(cluster: FakeCluster, **settings: Any) -> Admin:
    return Admin(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=1, **settings)


class Asked:
    """A query answered by the partition's number, after these `refusals`."""

    def __init__(self, *refusals: ErrorEntry | RaftlogClientError) -> None:
        self.requests: list[tuple[NodeAddress, list[int]]] = []
        self.refusals = list(refusals)
        self.offline: set[TopicPartition] = set()

    async def __call__(
        self, address: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Mapping[TopicPartition, int | RaftlogClientError]:
        self.requests.append((address, [one.partition for one in partitions]))
        if self.refusals:
            refusal = self.refusals.pop(0)
            raise server_error(refusal.code) if isinstance(refusal, ErrorEntry) else refusal
        if self.offline.intersection(partitions):
            raise server_error(STORAGE_FAILED.code)
        return {one: one.partition for one in partitions}


async def test_each_leader_is_asked_for_what_it_leads(cluster: FakeCluster) -> None:
    asked = Asked()
    async with metadata_of(cluster) as metadata:
        found = await LeaderCalls(metadata).query(asked, reversed(ALL), timeout_s=2)
        assert found == {one: one.partition for one in ALL}
        assert list(found) == ALL[::-1]
    first, second = (NodeAddress(f"127.0.0.1:{node.port}") for node in cluster.nodes)
    assert sorted(asked.requests) == sorted([(first, [2, 0]), (second, [1])])


async def test_leaders_are_asked_at_the_same_time(cluster: FakeCluster) -> None:
    all_here = asyncio.Barrier(2)

    async def question(
        _: NodeAddress, partitions: Sequence[TopicPartition], __: float
    ) -> Mapping[TopicPartition, int | RaftlogClientError]:
        await all_here.wait()
        return dict.fromkeys(partitions, 0)

    async with metadata_of(cluster) as metadata:
        calls = LeaderCalls(metadata)
        assert all_answers(await calls.query(question, ALL, timeout_s=2)) == dict.fromkeys(ALL, 0)


@pytest.mark.parametrize(
    "refusal",
    [
        NO_LEADER,
        NOT_READY,
        OVERLOADED,
        UNKNOWN_TOPIC,
        ConnectionLostError("", outcome_unknown=True),
    ],
)
async def test_what_may_pass_is_asked_again_with_new_metadata(
    single: FakeCluster, refusal: ErrorEntry | RaftlogClientError
) -> None:
    asked = Asked(refusal)
    async with metadata_of(single) as metadata:
        await metadata.refresh(["t"])
        before = single.requests[METADATA]
        found = await LeaderCalls(metadata).query(asked, ALL[:1], timeout_s=2)
        assert all_answers(found) == {ALL[0]: 0}
        assert single.requests[METADATA] == before + 1
    assert len(asked.requests) == 2


async def test_what_is_final_is_told_at_once(single: FakeCluster) -> None:
    asked = Asked(OFFSET_OUT_OF_RANGE)
    async with metadata_of(single) as metadata:
        found = await LeaderCalls(metadata).query(asked, ALL[:1], timeout_s=2)
    with pytest.raises(OffsetOutOfRangeError):
        all_answers(found)
    assert len(asked.requests) == 1


async def test_an_offline_partition_does_not_hide_its_neighbours(single: FakeCluster) -> None:
    single.create_topic("wide", 9)
    places = [TopicPartition("wide", number) for number in range(9)]
    asked = Asked()
    asked.offline = {places[4]}
    async with metadata_of(single) as metadata:
        found = await LeaderCalls(metadata).query(asked, places, timeout_s=2)
    assert {one for one, outcome in found.items() if outcome == one.partition} == {
        *places[:4],
        *places[5:],
    }
    assert isinstance(found[places[4]], ServerError)


async def test_a_partition_without_leader_is_waited_for(cluster: FakeCluster) -> None:
    partition = cluster.topics["t"].partitions[1]
    partition.leader = NOBODY
    async with metadata_of(cluster) as metadata:
        calls, asked = LeaderCalls(metadata), Asked()
        waiting = asyncio.create_task(calls.query(asked, ALL, timeout_s=2))
        await cluster.wait_for_requests(METADATA, 3)
        partition.leader = 1
        assert all_answers(await waiting) == {one: one.partition for one in ALL}


async def test_without_a_leader_the_end_comes_in_time(cluster: FakeCluster) -> None:
    cluster.topics["t"].partitions[1].leader = NOBODY
    async with metadata_of(cluster) as metadata:
        await metadata.refresh(["t"])
        calls, asked = LeaderCalls(metadata), Asked()
        with pytest.raises(ServerError, match="t-1") as refused:
            all_answers(await calls.query(asked, ALL, timeout_s=0.2))
        assert refused.value.entry is NO_LEADER
        at_hand = await calls.query(asked, ALL, timeout_s=0.2, must_settle=False)
        assert at_hand == {ALL[0]: 0, ALL[2]: 2}


async def test_a_silent_leader_costs_half_of_the_time(cluster: FakeCluster) -> None:
    times: list[float] = []

    async def question(
        _: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Mapping[TopicPartition, int | RaftlogClientError]:
        times.append(timeout_s)
        if len(times) == 1:
            raise ConnectionLostError("silence", outcome_unknown=True)
        return dict.fromkeys(partitions, 0)

    async with metadata_of(cluster) as metadata:
        await LeaderCalls(metadata).query(question, ALL[:1], timeout_s=2)
    assert times[0] == pytest.approx(1, rel=0.1)


async def test_topics_and_partitions_that_do_not_exist_are_told(cluster: FakeCluster) -> None:
    gone, beyond = TopicPartition("gone", 0), TopicPartition("t", 3)
    async with metadata_of(cluster) as metadata:
        found = await LeaderCalls(metadata).query(Asked(), [gone, beyond, ALL[0]], timeout_s=2)
    assert found[ALL[0]] == 0
    assert all(isinstance(found[one], TopicNotFoundError) for one in (gone, beyond))


async def test_a_new_partition_is_found(cluster: FakeCluster) -> None:
    async with metadata_of(cluster) as metadata:
        await metadata.refresh(["t"])
        cluster.add_partitions("t", 4)
        new = TopicPartition("t", 3)
        assert await LeaderCalls(metadata).query(Asked(), [new], timeout_s=2) == {new: 3}


@pytest.mark.parametrize("path", [OFFSETS, TIMES, DELETE])
async def test_moved_leaders_are_followed(cluster: FakeCluster, path: str) -> None:
    """All three queries of a client with a view from before the move."""
    async with (
        admin_of(cluster) as admin,
        Consumer("t", bootstrap_servers=cluster.bootstrap, retry_backoff_ms=1) as consumer,
    ):
        await admin.describe_topic("t")
        for partition in cluster.topics["t"].partitions:
            partition.leader = 3 - partition.leader
        if path == OFFSETS:
            assert await consumer.end_offsets(ALL) == dict.fromkeys(ALL, 0)
        elif path == TIMES:
            assert await consumer.offsets_for_times(dict.fromkeys(ALL, 0)) == dict.fromkeys(ALL)
        else:
            assert await admin.delete_records(dict.fromkeys(ALL, -1)) == dict.fromkeys(ALL, 0)
    # Once of each wrong leader, once of each right one; and the consumer's start.
    assert cluster.requests[path] == 4 + 2 * (path == OFFSETS)


async def test_a_dead_leader_is_waited_for(cluster: FakeCluster) -> None:
    async with admin_of(cluster) as admin:
        await admin.describe_topic("t")
        await cluster.nodes[1].stop()
        at_hand = await admin.offsets(["t"], at_hand_after_ms=500)
        assert sorted(at_hand) == [ALL[0], ALL[2]]
        waiting = asyncio.create_task(admin.offsets(["t"]))
        await cluster.wait_for_requests(OFFSETS, cluster.requests[OFFSETS] + 1)
        await cluster.nodes[1].start()
        assert sorted(await waiting) == ALL


async def test_a_deletion_is_tried_everywhere_before_its_first_error_is_raised(
    cluster: FakeCluster,
) -> None:
    cluster.topics["t"].partitions[0].leader = NOBODY
    cluster.topics["t"].partitions[1].end_offset = 5
    async with admin_of(cluster, request_timeout_ms=1000) as admin:
        with pytest.raises(ServerError, match="t-0"):
            await admin.delete_records({ALL[0]: 1, ALL[1]: 4})
    assert cluster.topics["t"].partitions[1].log_start_offset == 4


async def test_a_consumer_reads_what_is_led_while_the_rest_is_not(cluster: FakeCluster) -> None:
    """A position that cannot be found does not hold up the others."""
    cluster.topics["t"].partitions[1].leader = NOBODY
    async with Consumer(
        "t", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", retry_backoff_ms=1
    ) as consumer:
        assert await consumer.position(ALL[0]) == 0
        await cluster.wait_for_requests("/v1/fetch", 1)
        cluster.topics["t"].partitions[1].leader = 2
        assert await consumer.position(ALL[1]) == 0


async def test_latest_is_not_fixed_before_every_partition_told(cluster: FakeCluster) -> None:
    cluster.topics["t"].partitions[1].leader = NOBODY
    consumer = Consumer(
        "t", bootstrap_servers=cluster.bootstrap, retry_backoff_ms=1, request_timeout_ms=1000
    )
    with pytest.raises(ConnectionLostError) as refused:
        await consumer.start()
    assert "t-1" in str(refused.value.__cause__)


async def test_a_silent_node_is_not_waited_for_when_metadata_is_wanted(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_client.metadata.METADATA_PATIENCE_S", 0.05)
    cluster.fail(METADATA, Fault(delay_s=30))
    async with metadata_of(cluster) as metadata:
        assert "t" in (await metadata.refresh(["t"])).topics
        assert cluster.requests[METADATA] == 2
