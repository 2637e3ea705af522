"""Calls to leaders: abandoned once another node leads, and back-offs that end early then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from raftlog_client import ConnectionLostError, TopicPartition
from raftlog_client.metadata import Backoff, ClusterMetadata
from raftlog_client.routing import LeaderCalls
from raftlog_client.transport import Transport, parse_bootstrap

from tests.client.fake_node import FakeCluster

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_MS = 60_000


@pytest.fixture
async def calls(cluster: FakeCluster) -> AsyncIterator[LeaderCalls]:
    """Calls of a client with endless back-offs; its view is of before any test's move."""
    transport = Transport(client_id="test", request_timeout_ms=2_000)
    transport.start()
    backoff = Backoff(LONG_MS, LONG_MS)
    metadata = ClusterMetadata(transport, parse_bootstrap(cluster.bootstrap), backoff)
    await metadata.refresh(["t"])
    calls = LeaderCalls(metadata)
    yield calls
    await calls.close()
    await metadata.close()
    await transport.close()


def move(cluster: FakeCluster, number: int) -> None:
    partition = cluster.topics["t"].partitions[number]
    partition.leader = 3 - partition.leader
    partition.leader_epoch += 1


async def silence(calls: LeaderCalls, *partitions: TopicPartition, all_moved: bool) -> None:
    """A call without an answer, to the leader of the first partition."""
    address = calls.metadata.leader_address(*partitions[0])
    assert address is not None
    count_min = len(partitions) if all_moved else 1
    with calls.follow(
        address,
        partitions,
        on_moved=lambda moved: len(moved) >= count_min,
        patience_s=0.01,
        is_write=True,
    ):
        await asyncio.sleep(LONG_MS)


async def test_a_silent_call_is_abandoned_with_unknown_outcome_once_another_leads(
    cluster: FakeCluster, calls: LeaderCalls
) -> None:
    task = asyncio.create_task(silence(calls, P0, all_moved=False))
    await asyncio.sleep(0.1)
    assert not task.done()
    move(cluster, 0)
    with pytest.raises(ConnectionLostError, match="other nodes lead") as lost:
        await asyncio.wait_for(task, 2)
    assert lost.value.outcome_unknown


async def test_a_call_of_many_partitions_may_wait_for_the_last_move(
    cluster: FakeCluster, calls: LeaderCalls
) -> None:
    task = asyncio.create_task(silence(calls, P0, P1, all_moved=True))
    move(cluster, 0)
    await asyncio.sleep(0.8)
    assert not task.done()
    move(cluster, 1)
    with pytest.raises(ConnectionLostError):
        await asyncio.wait_for(task, 2)


async def test_a_cancelled_call_stays_cancelled(cluster: FakeCluster, calls: LeaderCalls) -> None:
    move(cluster, 0)
    task = asyncio.create_task(silence(calls, P0, all_moved=False))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_received_bytes_end_the_silence(cluster: FakeCluster, calls: LeaderCalls) -> None:
    move(cluster, 0)
    address = calls.metadata.leader_address(*P0)
    assert address is not None
    received = iter(range(1_000))
    before = cluster.requests["/v1/metadata"]
    with calls.follow(address, (P0,), patience_s=0.01, progress=lambda: next(received)):
        await asyncio.sleep(0.7)
    assert cluster.requests["/v1/metadata"] == before


async def test_a_parked_partition_resumes_once_its_leader_moved(
    cluster: FakeCluster, calls: LeaderCalls
) -> None:
    resumed: list[str] = []
    calls.park("first", P0, 1, lambda: resumed.append("first"))
    calls.park("second", P1, 1, lambda: resumed.append("second"))
    move(cluster, 0)
    await calls.metadata.refresh(["t"])
    calls.resume_moved()
    calls.resume_moved()
    assert resumed == ["first"]


async def test_refreshes_soon_are_one_request_and_then_partitions_resume(
    cluster: FakeCluster, calls: LeaderCalls
) -> None:
    resumed = asyncio.Event()
    calls.park("owner", P0, 1, resumed.set)
    move(cluster, 0)
    before = cluster.requests["/v1/metadata"]
    for _ in range(5):
        calls.refresh_soon("t")
    await asyncio.wait_for(resumed.wait(), 2)
    assert cluster.requests["/v1/metadata"] == before + 1


async def test_nothing_resumes_after_the_close(cluster: FakeCluster, calls: LeaderCalls) -> None:
    resumed: list[str] = []
    calls.park("owner", P0, 1, lambda: resumed.append("owner"))
    await calls.close()
    move(cluster, 0)
    await calls.metadata.refresh(["t"])
    calls.resume_moved()
    assert not resumed
