"""The listeners of a node's process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

from raftlog.node.process import Node
from raftlog.node.settings import NodeSettings


class Part:
    """A part of a node, which records the order of the ends."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.name = name
        self.port = 8082
        self._ended = ended

    async def leave(self) -> None:
        self._ended.append(f"{self.name} left")

    async def close(self) -> None:
        self._ended.append(f"{self.name} closed")


class ServerPart(Part):
    """An HTTP server, which goes on serving when it leaves."""

    def leave(self) -> None:  # type: ignore[override]
        self._ended.append(f"{self.name} left")


def node(ended: list[str], **settings: str) -> Node:
    core, tasks, kafka = (cast(Any, Part(name, ended)) for name in ("core", "tasks", "Kafka"))
    server = cast(Any, ServerPart("HTTP", ended))
    given = NodeSettings(data_dir="d", **settings)
    if not settings:
        return Node(given, core, server, tasks)
    return Node(given, core, server, tasks, kafka=kafka, kafka_port=9092)


async def test_kafka_listener_closes_while_other_nodes_are_still_connected() -> None:
    """The HTTP server's close ends the connections between nodes, which requests may need."""
    ended: list[str] = []
    running = node(ended, kafka_listen="[::1]:0")
    assert (running.address, running.kafka_address) == ("127.0.0.1:8082", "[::1]:9092")
    await running.stop()
    assert ended == [
        "HTTP left", "tasks closed", "core left", "Kafka closed", "HTTP closed", "core closed"
    ]  # fmt: skip


async def test_node_without_a_kafka_listener_stops_as_before() -> None:
    ended: list[str] = []
    running = node(ended)
    assert running.kafka_address is None
    await running.stop()
    assert ended == ["HTTP left", "tasks closed", "core left", "HTTP closed", "core closed"]


def test_node_without_a_kafka_listener_does_not_load_its_code() -> None:
    program = (
        "import sys, raftlog.cli.serve\n"
        "sys.exit(any(name.startswith('raftlog.kafka') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
