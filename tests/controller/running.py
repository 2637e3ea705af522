"""Clusters of tests: begun, looked after, and ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftlog.controller.messages import HEARTBEAT_S
from raftlog.metadata.configs.broker import SESSION_TIMEOUT_S_DEFAULT
from tests.controller.cluster import Cluster

SESSION_S = SESSION_TIMEOUT_S_DEFAULT


@asynccontextmanager
async def running(voters: int = 3, *others: int) -> AsyncIterator[Cluster]:
    """A cluster of `voters` and these other nodes; no node may end by itself."""
    cluster = Cluster(voters)
    await cluster.start(*others)
    try:
        yield cluster
        assert all(node.fatal == [] for node in cluster.nodes.values())
    finally:
        await cluster.close()


async def past_grace(cluster: Cluster) -> None:
    """Let the grace of a new controller pass for silent brokers."""
    await cluster.clock.advance(SESSION_S + HEARTBEAT_S)
