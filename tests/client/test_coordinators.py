"""Requests to coordinators: directly where the coordinator is known, else to any node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from raftlog_client import BrokerInfo, ConnectionLostError, PartitionInfo, ServerError
from raftlog_client import metadata as module
from raftlog_client.metadata import Backoff, ClusterMetadata, ClusterView, CoordinatorKey
from raftlog_client.transport import NodeAddress, Transport
from raftlog_client.types import TopicDescription

from raftlog.api.common import Empty
from raftlog.record.coordinators import OFFSETS_TOPIC, partition_of
from raftlog.record.errors import NOT_COORDINATOR, UNKNOWN_MEMBER, ErrorEntry

NODES = 3
COUNT = 16
KEY = CoordinatorKey(OFFSETS_TOPIC, "billing")


class Nodes(Transport):
    """Three nodes: an answer to each call, and the addresses called. Node 1 leads all shards."""

    def __init__(self) -> None:
        super().__init__(client_id="test", request_timeout_ms=1_000)
        self.called: list[str] = []
        self.leader = 1
        self.error: Exception | None = None
        self.lookups = 0

    async def call(
        self,
        address: NodeAddress,
        method: str,
        path: str,
        kind: type[Any],
        body: msgspec.Struct | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        self.called.append(address)
        if self.error is not None and address == f"n{self.leader}:1":
            raise self.error
        return Empty()


@pytest.fixture
async def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
async def metadata(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClusterMetadata]:
    made = ClusterMetadata(nodes, [NodeAddress("n1:1")], Backoff(1, 2))
    made._addresses = {number: NodeAddress(f"n{number}:1") for number in range(1, NODES + 1)}

    async def refresh(_: ClusterMetadata, topics: Any) -> ClusterView:
        nodes.lookups += 1
        rows = tuple(
            PartitionInfo(OFFSETS_TOPIC, number, nodes.leader, 1, (1, 2, 3), (1, 2, 3))
            for number in range(COUNT)
        )
        brokers = {number: BrokerInfo(number, f"n{number}", 1) for number in made._addresses}
        topic = TopicDescription(OFFSETS_TOPIC, "id", rows)
        made.view = ClusterView("c", 1, brokers, {OFFSETS_TOPIC: topic})
        return made.view

    monkeypatch.setattr(ClusterMetadata, "refresh", refresh)
    yield made
    await made.close()


async def called(metadata: ClusterMetadata, nodes: Nodes, count: int = 1) -> set[str]:
    nodes.called.clear()
    for _ in range(count):
        await metadata.call_any("POST", "/x", Empty, coordinator=KEY)
    return set(nodes.called)


async def looked_up(metadata: ClusterMetadata) -> None:
    while metadata._lookups:  # noqa: ASYNC110 - plain data
        await asyncio.sleep(0)


async def test_first_requests_do_not_wait_for_the_lookup_and_later_ones_go_directly(
    metadata: ClusterMetadata, nodes: Nodes
) -> None:
    assert len(await called(metadata, nodes)) == 1
    await looked_up(metadata)
    assert await called(metadata, nodes, 10) == {"n1:1"}
    assert nodes.lookups == 1
    nodes.called.clear()
    for _ in range(6):
        await metadata.call_any("POST", "/x", Empty)
    assert len(set(nodes.called)) == NODES


async def test_leader_of_the_key_is_called_and_not_of_another(
    metadata: ClusterMetadata, nodes: Nodes
) -> None:
    await called(metadata, nodes)
    await looked_up(metadata)
    [topic] = metadata.view.topics.values()
    rows = list(topic.partitions)
    number = partition_of(KEY.key, COUNT)
    rows[number] = PartitionInfo(OFFSETS_TOPIC, number, 3, 2, (1, 2, 3), (1, 2, 3))
    moved = TopicDescription(OFFSETS_TOPIC, "id", tuple(rows))
    metadata.view = ClusterView("c", 1, metadata.view.brokers, {OFFSETS_TOPIC: moved})
    assert await called(metadata, nodes, 5) == {"n3:1"}


@pytest.mark.parametrize(
    "error",
    [ServerError(NOT_COORDINATOR), ConnectionLostError("gone", outcome_unknown=False)],
    ids=["refusal", "lost connection"],
)
async def test_failed_coordinator_is_avoided_and_looked_up_again(
    metadata: ClusterMetadata, nodes: Nodes, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COORDINATOR_LOOKUP_S", 0.0)
    monkeypatch.setattr(module, "COORDINATOR_AVOIDED_S", 0.05)
    await called(metadata, nodes)
    await looked_up(metadata)
    nodes.error = error
    # The call ends with another node's answer.
    assert len(await called(metadata, nodes)) == 2
    nodes.error, nodes.leader = None, 2
    await called(metadata, nodes)
    await looked_up(metadata)
    assert nodes.lookups == 2
    await asyncio.sleep(0.06)
    assert await called(metadata, nodes, 5) == {"n2:1"}


@pytest.mark.parametrize("entry", [UNKNOWN_MEMBER])
async def test_final_refusal_of_a_coordinator_is_no_reason_to_avoid_it(
    metadata: ClusterMetadata, nodes: Nodes, entry: ErrorEntry
) -> None:
    await called(metadata, nodes)
    await looked_up(metadata)
    nodes.error = ServerError(entry)
    with pytest.raises(ServerError):
        await called(metadata, nodes)
    nodes.error = None
    assert await called(metadata, nodes, 5) == {"n1:1"}


async def test_failed_lookup_leaves_any_node(
    metadata: ClusterMetadata, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: ClusterMetadata, __: Any) -> ClusterView:
        raise ServerError(NOT_COORDINATOR)

    monkeypatch.setattr(ClusterMetadata, "refresh", refuse)
    assert len(await called(metadata, nodes, 6)) == NODES
    await looked_up(metadata)
