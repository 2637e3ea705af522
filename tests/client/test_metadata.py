"""The client's view of the cluster: shared refreshes, other nodes when one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from raftlog_client import ConnectionLostError, RaftlogClientError, ServerError
from raftlog_client.metadata import JITTER, TOPICS_PER_REQUEST_MAX, Backoff, ClusterMetadata
from raftlog_client.transport import NodeAddress, Transport, parse_bootstrap

from raftlog.api.cluster import MetadataResponse
from raftlog.record.errors import OVERLOADED, RETRIABLE
from tests.client.fake_node import FakeCluster, Fault

METADATA = "/v1/metadata"


@asynccontextmanager
async def metadata_of(
    cluster: FakeCluster, extra: Sequence[NodeAddress] = ()
) -> AsyncIterator[ClusterMetadata]:
    transport = Transport(client_id="test", request_timeout_ms=300)
    transport.start()
    addresses = [*extra, *parse_bootstrap(cluster.bootstrap)]
    metadata = ClusterMetadata(transport, addresses, Backoff(1, 5))
    try:
        yield metadata
    finally:
        await metadata.close()
        await transport.close()


async def test_equal_refreshes_share_one_request(cluster: FakeCluster) -> None:
    async with metadata_of(cluster) as metadata:
        await asyncio.gather(*[metadata.refresh(("t",)) for _ in range(10)])
        assert cluster.requests[METADATA] == 1
        assert metadata.leader_address("t", 1) == f"127.0.0.1:{cluster.nodes[1].port}"
        assert metadata.leader_address("t", 9) is None


async def test_a_cancelled_caller_does_not_fail_the_others(cluster: FakeCluster) -> None:
    cluster.fail(METADATA, Fault(delay_s=0.05))
    async with metadata_of(cluster) as metadata:
        first = asyncio.create_task(metadata.refresh(("t",)))
        second = asyncio.create_task(metadata.refresh(("t",)))
        await asyncio.sleep(0.01)
        first.cancel()
        assert "t" in (await second).topics


async def test_nodes_that_are_gone_are_passed_over(cluster: FakeCluster) -> None:
    async with metadata_of(cluster, [NodeAddress("127.0.0.1:1")]) as metadata:
        for _ in range(6):
            await metadata.refresh(())
        await cluster.nodes[0].stop()
        for _ in range(6):
            await metadata.refresh(("t",))


async def test_names_are_asked_for_in_bounded_requests(single: FakeCluster) -> None:
    names = [f"n{number}" for number in range(TOPICS_PER_REQUEST_MAX + 1)]
    for name in names:
        single.create_topic(name)
    async with metadata_of(single) as metadata:
        assert set((await metadata.refresh(names)).topics) == set(names)
        assert single.requests[METADATA] == 2
        # Topics outside the request stay known; a refresh of all drops deleted ones.
        del single.topics["n0"]
        assert "n0" in (await metadata.refresh(("t",))).topics
        assert "n0" not in (await metadata.refresh(None)).topics


async def test_what_may_have_happened_is_not_repeated(single: FakeCluster) -> None:
    async with metadata_of(single) as metadata:
        single.fail(METADATA, Fault(error=RETRIABLE))
        with pytest.raises(ServerError):
            await metadata.call_any("GET", METADATA, MetadataResponse, is_idempotent=False)
        single.fail(METADATA, Fault(error=OVERLOADED))
        await metadata.call_any("GET", METADATA, MetadataResponse, is_idempotent=False)
        single.fail(METADATA, Fault(drop_after=True))
        with pytest.raises(ConnectionLostError):
            await metadata.call_any("GET", METADATA, MetadataResponse, is_idempotent=False)


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"{}",
        b'{"cluster_id":"c","brokers":[{}],"topics":[]}',
        b'{"cluster_id":"c","brokers":[],"topics":[{"name":"t","topic_id":"1","partitions":'
        b'[{"partition":1,"leader":1,"leader_epoch":0,"replicas":[1],"isr":[1]}]}]}',
    ],
)
async def test_malformed_answers_are_typed_errors(single: FakeCluster, answer: bytes) -> None:
    single.fail(METADATA, Fault(answer=answer))
    async with metadata_of(single) as metadata:
        with pytest.raises(RaftlogClientError, match="malformed"):
            await metadata.refresh(("t",))


def test_pauses_grow_to_their_bound() -> None:
    backoff = Backoff(10, 1000)
    for attempt, nominal_ms in [(0, 10), (1, 20), (6, 640), (7, 1000), (10_000, 1000)]:
        delay: Any = backoff.delay_s(attempt) * 1000
        assert nominal_ms * (1 - JITTER) <= delay <= nominal_ms * (1 + JITTER)
