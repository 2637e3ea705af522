"""Real nodes: processes of their own, on loopback, with a data directory each.

Modules share one node and one cluster: their topics, groups and transactional ids have different
names. A test that needs an empty node, or that changes the whole cluster, starts its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bench.node import LoneNode
from tests.processes import make_whole


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    """A running node with an empty log."""
    process = LoneNode(tmp_path / "data", flush="sync")
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    """A running node for tests that leave it running."""
    process = LoneNode(tmp_path_factory.mktemp("shared-node") / "data", flush="sync")
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="session")
def shared_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three voters; tests use `cluster`."""
    directory = tmp_path_factory.mktemp("shared-cluster") / "cluster"
    with Cluster(directory, 3) as processes:
        processes.start()
        yield processes


@pytest.fixture
def cluster(shared_processes: Cluster) -> Cluster:
    """Three voters with an active leader, all ready, all replicas in sync.

    A test may kill, pause and restart the nodes.
    """
    make_whole(shared_processes)
    return shared_processes
