"""The Kafka listeners of simulated nodes: opened and closed as `raftlog.node.process` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from raftlog.broker.limits import BrokerSettings
from raftlog.broker.service import Broker
from raftlog.http.settings import ServerSettings
from raftlog.kafka.listener import KafkaListener
from raftlog.kafka.settings import KafkaSettings
from raftlog.node.assembly import NodeCore
from tests.simulation.node_transport import ListeningSocket
from tests.simulation.node_world import NodeWorld
from tests.simulation.streams import StreamManner, Streams
from tests.simulation.world import Process

PORT: Final = 9092


def host(node_id: int) -> str:
    """The name of a node's machine."""
    return f"n{node_id}.test"


@dataclass
class KafkaFront:
    """The listeners of all nodes. The nodes have none without it."""

    nodes: NodeWorld
    settings: KafkaSettings = field(default_factory=KafkaSettings)
    limits: BrokerSettings = field(default_factory=lambda: ServerSettings().for_broker())
    manner: StreamManner = field(default_factory=StreamManner)
    streams: Streams = field(init=False)
    listeners: dict[int, KafkaListener] = field(default_factory=dict)
    """The newest of each node."""

    def __post_init__(self) -> None:
        self.streams = Streams(self.nodes.world, self.manner)
        self.nodes.listeners = self
        for node_id in self.nodes.node_ids:
            self.nodes.overrides.setdefault(node_id, {})["kafka_listen"] = f"{host(node_id)}:{PORT}"

    async def open(self, process: Process, core: NodeCore, on_fatal: Callable[[str], None]) -> None:
        """See `node_world.Listeners`."""
        broker = Broker(core.services, self.limits)
        listener = KafkaListener(
            broker, self.settings, lambda error: on_fatal(f"An invariant broke: {error!r}")
        )
        bound: Any = ListeningSocket(self.streams, process, PORT)
        await listener.start(bound)
        server = cast("Any", listener._server)
        server.shared = listener.buffer.obj
        self.listeners[process.node_id] = listener

    async def close(self, node_id: int) -> None:
        """See `node_world.Listeners`."""
        await self.listeners[node_id].close()

    def leaks(self) -> list[str]:
        """What the listeners still hold, once all clients have left."""
        found: list[str] = []
        for node_id in sorted(self.nodes.cores):
            listener = self.listeners[node_id]
            in_flight = listener.broker.bytes_in_flight
            held = {
                "connections": len(listener._connections),
                "addresses": len(listener._by_address),
                "requests": len(listener._tasks),
                "waiting for room": len(listener._waiting),
                "bytes in flight": in_flight.used,
                "bytes in flight by address": sum(in_flight._by_address.values()),
            }
            found += [f"n{node_id}: {count} {what}" for what, count in held.items() if count]
        return found
