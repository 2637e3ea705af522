"""Fixtures: a fake cluster for faults, and `bootstrap` for tests against a real node, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from raftlog_client import Admin

from bench.node import LoneNode
from tests.client.fake_node import FakeCluster

_topic_numbers = count(1)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Two fake nodes, and the topic `t` of three partitions."""
    async with FakeCluster(2) as fake:
        fake.create_topic("t", 3)
        yield fake


@pytest.fixture
async def single() -> AsyncIterator[FakeCluster]:
    """One fake node, and the topic `t` of one partition."""
    async with FakeCluster(1) as fake:
        fake.create_topic("t", 1)
        yield fake


@pytest.fixture(scope="session")
def real_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    """One real node for all end-to-end tests of the client."""
    node = LoneNode(tmp_path_factory.mktemp("node") / "data", flush="async")
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture(params=["fake", "real"])
async def bootstrap(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Addresses of a cluster: of a fake one, then of a real one."""
    if request.param == "real":
        yield request.getfixturevalue("real_node").address
        return
    async with FakeCluster(2) as fake:
        yield fake.bootstrap


@pytest.fixture
async def topic(bootstrap: str) -> str:
    """A new topic of three partitions on the cluster of `bootstrap`."""
    name = f"topic-{next(_topic_numbers)}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        # Some records' timestamps are years old.
        await admin.create_topic(name, partitions=3, configs={"retention.ms": "-1"})
    return name
