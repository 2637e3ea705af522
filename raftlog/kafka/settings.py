"""The Kafka listener bounds the memory and time that its clients may take."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Bounds of one listener. Bytes and requests in flight are the broker's, for all listeners."""

    produce_bytes_max: int = 32 * MIB
    """Size of a Produce request. A larger request ends its connection."""
    request_bytes_max: int = MIB
    """Size of any other request. A larger request ends its connection."""
    requests_per_connection_max: int = 16
    """Requests of one connection that are handled or wait for their response's turn."""
    receive_s: float = 10.0
    """A request must arrive within this time, or move at `bytes_per_second_min`."""
    bytes_per_second_min: int = 64 * KIB
    """Minimum rate of a long request, and of responses that wait for the client."""
    write_stall_s: float = 30.0
    """A client that takes responses below the minimum rate for this time is cut off."""
    idle_s: float = 600.0
    """An idle connection is closed after this time. Clients' own limit is nine minutes."""
    connections_max: int = 4_096
    """Open connections. Further connections are closed at once."""
    connections_per_address_max: int = 1_024
    """Open connections from one address (one /64 network for IPv6)."""
    shutdown_s: float = 10.0
    """Time for requests in flight to finish when the listener closes."""
    gateway: tuple[str, int] | None = None
    """Host and port of a load balancer before all nodes. Clients take it for one broker that leads
    and coordinates everything. With None, clients get each node's own address."""
