"""The node with a console: a real node, alone in its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.node import NodeProcess
from bench.quorum import WITH_CONSOLE, AskError, ask


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path / "data", "sync", program=WITH_CONSOLE)
    process.start()
    try:
        yield process
    finally:
        process.kill()


def test_every_command_is_measured(node: NodeProcess) -> None:
    before = ask(node, "status")
    assert before["is_active"] and before["leader_id"] == before["node_id"] == 1

    samples = ask(node, "latency 20")["seconds"]
    assert len(samples) == 20 and min(samples) > 0

    counted = ask(node, "throughput 4 0.2")
    assert counted["committed"] > 4
    assert counted["seconds"] >= 0.2

    ask(node, "partitions 10500")
    after = ask(node, "status")
    assert after["topics"] == 2
    assert after["applied_index"] > before["applied_index"] + counted["committed"]
    assert not list(node.data_dir.glob("replicas/*/*")), "nobody here keeps these partitions"

    taken = ask(node, "snapshot 1")
    assert len(taken["snapshots_at"]) == 1
    assert taken["stall_s_max"] > 0
    assert ask(node, "stalls 0.1")["took_snapshot"] is False


def test_a_command_that_cannot_be_carried_out_is_an_error(node: NodeProcess) -> None:
    with pytest.raises(AskError, match="there is no command 'dance'"):
        ask(node, "dance")
    with pytest.raises(AskError, match="ValueError"):
        ask(node, "latency often")
    assert ask(node, "status")["is_active"]


def test_the_end_of_its_input_stops_the_node(node: NodeProcess) -> None:
    assert node.process.stdin is not None
    node.process.stdin.close()
    assert node.process.wait(timeout=30) == 0
