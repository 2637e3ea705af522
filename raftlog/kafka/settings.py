"""Settings of the Kafka listener: bounds on memory and time that its clients may take."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Bounds of one listener. Bytes and requests in flight are the broker's, for all listeners."""

    produce_bytes_max: int = 32 * MIB
    """Size of a Produce request; a larger one ends its connection."""
    request_bytes_max: int = MIB
    """The same of any other request."""
    requests_per_connection_max: int = 16
    """Requests of one connection being handled or waiting for their turn to be answered."""
    receive_s: float = 10.0
    """A request must arrive within this, or move at `bytes_per_second_min`."""
    bytes_per_second_min: int = 64 * KIB
    """Minimum rate of a long request, and of answers that a client does not take at once."""
    write_stall_s: float = 30.0
    """A client that takes its answers below the minimum rate for so long is cut off."""
    idle_s: float = 600.0
    """An idle connection is closed after this; clients' own limit is nine minutes."""
    connections_max: int = 4_096
    """Open connections; further ones are closed at once."""
    connections_per_address_max: int = 1_024
    """The same, from one address (IPv6: from one /64 network)."""
    shutdown_s: float = 10.0
    """Time for requests in flight to finish when the listener closes."""
    gateway: tuple[str, int] | None = None
    """Host and port of a load balancer before all nodes, which clients take for one broker that
    leads and coordinates everything; None: clients learn each node's own address."""
