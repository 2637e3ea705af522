"""The node with a console: a real node, alone in its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.node import LoneNode
from bench.quorum import WITH_CONSOLE, ConsoleError, execute


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    process = LoneNode(tmp_path / "data", "sync", program=WITH_CONSOLE)
    process.start()
    try:
        yield process
    finally:
        process.kill()


def test_every_command_is_measured(node: LoneNode) -> None:
    before = execute(node, "status")
    assert before["is_active"] and before["leader_id"] == before["node_id"] == 1

    samples = execute(node, "latency 20")["seconds"]
    assert len(samples) == 20 and min(samples) > 0

    counted = execute(node, "throughput 4 0.2")
    assert counted["committed"] > 4
    assert counted["seconds"] >= 0.2

    execute(node, "partitions 10500")
    after = execute(node, "status")
    assert after["topics"] == 2
    assert after["applied_index"] > before["applied_index"] + counted["committed"]
    assert not list(node.data_dir.glob("replicas/*/*")), "no replica is on this node"

    taken = execute(node, "snapshot 1")
    assert len(taken["snapshots_at"]) == 1
    assert taken["stall_s_max"] > 0
    assert execute(node, "stalls 0.1")["took_snapshot"] is False


def test_a_command_that_cannot_be_carried_out_is_an_error(node: LoneNode) -> None:
    with pytest.raises(ConsoleError, match="there is no command 'dance'"):
        execute(node, "dance")
    with pytest.raises(ConsoleError, match="ValueError"):
        execute(node, "latency often")
    assert execute(node, "status")["is_active"]
