"""Clusters of tests: begun, looked after, and ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftlog.controller import ControllerSettings
from tests.controller.cluster import Cluster

SETTINGS = ControllerSettings()


@asynccontextmanager
async def running(
    voters: int = 3, *others: int, settings: ControllerSettings | None = None
) -> AsyncIterator[Cluster]:
    """A cluster of so many voters and these other nodes; no node may end by itself in it."""
    cluster = Cluster(voters, settings)
    await cluster.start(*others)
    try:
        yield cluster
        assert all(node.fatal == [] for node in cluster.nodes.values())
    finally:
        await cluster.close()


async def past_grace(cluster: Cluster) -> None:
    """A new controller has waited long enough for brokers that it has not heard."""
    await cluster.clock.advance(SETTINGS.grace_s + SETTINGS.heartbeat_s)
