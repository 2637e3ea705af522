"""Clusters of fake nodes, for tests of programs that drive clusters."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.cluster import Cluster

FAKE = (sys.executable, "-m", "tests.bench.fake_node")


def fake_cluster(directory: Path, mistake: str = "none") -> Cluster:
    """Three fake nodes below `directory`; for the mistakes see fake_node.py."""
    arguments = ("--mistake", mistake)
    return Cluster(directory / "cluster", 3, arguments=arguments, program=FAKE)
