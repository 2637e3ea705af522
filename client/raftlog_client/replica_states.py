"""How far the replicas of a topic are: each leader is asked about what it leads."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote

from raftlog.record.errors import NOT_FOUND
from raftlog_client.errors import RaftlogClientError, ServerError
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.transport import NodeAddress, decoded
from raftlog_client.types import PartitionState, PartitionStates, TopicDescription

ASK_TIMEOUT_S: Final = 2.0
"""A leader that is silent for longer is left out."""


async def replica_states(
    metadata: ClusterMetadata, topic: TopicDescription
) -> dict[int, PartitionState]:
    """By partition; those whose leader does not answer, or that have none, are left out."""
    led: dict[NodeAddress, set[int]] = {}
    for one in topic.partitions:
        address = metadata.leader_address(topic.name, one.partition)
        if address is not None:
            led.setdefault(address, set()).add(one.partition)
    answers = await asyncio.gather(*(_ask(metadata, address, topic.name) for address in led))
    return {
        state.partition: state
        for numbers, states in zip(led.values(), answers, strict=True)
        for state in states
        if state.partition in numbers
    }


async def _ask(
    metadata: ClusterMetadata, address: NodeAddress, topic: str
) -> tuple[PartitionState, ...]:
    path = f"/v1/topics/{quote(topic, safe='')}/partitions"
    try:
        answer = await metadata.call_node(address, "GET", path, timeout_s=ASK_TIMEOUT_S)
    except ServerError as error:
        # A node of an earlier release does not know the question.
        if error.entry is not NOT_FOUND and not error.retriable:
            raise
        return ()
    except RaftlogClientError as error:
        if not error.retriable:
            raise
        return ()
    return decoded(answer, PartitionStates, "replicas").partitions
