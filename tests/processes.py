"""Nodes of tests that share their processes."""

from __future__ import annotations

from functools import partial
from urllib.error import URLError

from bench.cluster import Cluster
from bench.node import MeasuredNode
from tests.waiting import wait_until


def make_whole(cluster: Cluster) -> None:
    """Start killed nodes, resume paused nodes, and wait until all replicas are in sync.

    A test that shares its cluster starts with this call, because an earlier test may have killed a
    node or may have failed. Raises RuntimeError: a node ended by itself.
    """
    cluster.heal()
    cluster.wait_answering()
    cluster.wait_quiet()
    for node in cluster.nodes.values():
        node.wait_ready()
    for node in cluster.nodes.values():
        wait_until(partial(_has_all_in_sync, node), cluster.log_ends)


def _has_all_in_sync(node: MeasuredNode) -> bool:
    """Whether each partition in the node's metadata has a leader and a full ISR."""
    try:
        topics = node.request("GET", "/v1/metadata")["topics"]
    except (URLError, TimeoutError):
        return False
    rows = [row for topic in topics for row in topic["partitions"]]
    return all(row["leader"] >= 0 and len(row["isr"]) == len(row["replicas"]) for row in rows)
