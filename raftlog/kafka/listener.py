"""The listener: accepts connections, counts them, and ends them when the node stops."""

from __future__ import annotations

import socket
from collections.abc import Callable

from raftlog.broker.service import Broker
from raftlog.kafka.settings import KafkaSettings


class KafkaListener:
    """One node's Kafka listener. Lives in the event loop."""

    def __init__(
        self,
        broker: Broker,
        settings: KafkaSettings,
        on_broken_invariant: Callable[[BaseException], None],
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._on_broken_invariant = on_broken_invariant

    async def start(self, bound: socket.socket) -> None:
        """Listen on a bound socket."""

    async def close(self) -> None:
        """Accept no more, let requests in flight finish for a while, and close all connections."""
