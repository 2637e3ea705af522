"""The HTTP server has settings for addresses, and for every limit of its peers.

All numbers are checked against their bounds in every settings object, whether decoded from a file,
converted from the environment, or constructed in code.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

from raftlog.broker.limits import BrokerSettings
from raftlog.world.open_files import connections_max

KIB = 1024
MIB = 1024 * KIB


class SettingError(ValueError):
    """A setting is outside its bounds. `str()` has its name, its value and the bounds."""


def check_bounds(settings: msgspec.Struct) -> None:
    """Raise SettingError if a field violates the `ge` or `le` of its annotation.

    msgspec checks bounds when it decodes, but not in the constructor.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for name, hint in hints.items():
        for meta in getattr(hint, "__metadata__", ()):
            value = getattr(settings, name)
            if (meta.ge is not None and value < meta.ge) or (
                meta.le is not None and value > meta.le
            ):
                raise SettingError(f"{name} is {value}; allowed is {meta.ge} to {meta.le}")


def is_beyond_loopback(host: str) -> bool:
    """Whether clients of other machines can connect to a listener at `host`."""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


Bytes = Annotated[int, Meta(ge=1, le=1024 * MIB)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0.01, le=86_400)]


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on memory and time that one peer, and all together, may take."""

    # Size of a request
    body_bytes_max: Bytes = 32 * MIB
    """Request body as it arrives on the wire. More is 41301."""
    decompressed_bytes_max: Bytes = 64 * MIB
    """Request body after Content-Encoding. More is 41301."""
    batch_decompressed_bytes_max: Bytes = 16 * MIB
    """A record batch decoded for a JSON response, after decompression. More is 41302. Decoding
    takes several times this for a moment."""
    records_per_request_max: Count = 100_000
    """Records in one produce request. More is 41301."""
    partitions_per_request_max: Count = 10_000
    """Partitions (or frames) named by one /v1 request. More is 42201."""
    json_depth_max: Annotated[int, Meta(ge=2, le=500)] = 64
    """Nesting of a JSON body. More is 42201. Parsers recurse, and the stack is finite."""
    header_bytes_max: Annotated[int, Meta(ge=KIB, le=MIB)] = 32 * KIB
    """Request line and headers together. More is 43101."""
    header_field_bytes_max: Annotated[int, Meta(ge=256, le=64 * KIB)] = 8 * KIB
    """The request line, and any one header. More is 43101."""
    header_count_max: Annotated[int, Meta(ge=8, le=1_000)] = 100
    """Headers of one request. More is 40001."""

    # Size and duration of a response
    response_bytes_max: Bytes = 32 * MIB
    """Largest `max_bytes` of a read. Larger values are lowered to it."""
    long_poll_ms_max: Annotated[int, Meta(ge=1, le=3_600_000)] = 300_000
    """Longest `timeout` or `max_wait_ms` of a read. Longer values are lowered to it."""
    produce_timeout_ms_default: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    """Time to wait for acknowledgements, where a produce request names none."""
    produce_timeout_ms_max: Annotated[int, Meta(ge=1, le=3_600_000)] = 300_000
    """Longest such time of a request. Longer values are lowered to it."""
    tail_idle_s: Seconds = 15
    """A tail without records sends a comment this often, to detect readers that left."""

    # Time on the wire
    header_receive_s: Seconds = 10
    """Time from a request's first byte to the end of its headers. Longer is 40801."""
    body_receive_s: Seconds = 10
    """A body must arrive within this time, or move at `body_bytes_per_second_min` in each such
    time. Slower is 40801. The same holds for each record of a stream."""
    body_bytes_per_second_min: Annotated[int, Meta(ge=1, le=1024 * MIB)] = 64 * KIB
    """Minimum rate of a long body, and of the reader of a large answer."""
    keep_alive_s: Seconds = 75
    """An idle connection is closed after this."""
    write_stall_s: Seconds = 30
    """A reader must take the next slice (256 KiB) of its response within this time. It is cut off
    otherwise, or if it reads a large response slower than `body_bytes_per_second_min` for this
    time."""
    linger_s: Seconds = 2
    """Time for a refused peer to read its answer before the connection is cut."""
    shutdown_s: Seconds = 10
    """Time for requests in flight to finish when the server closes."""

    # Load at one time
    connections_max: Annotated[int, Meta(ge=1, le=100_000)] = 4_096
    """Open connections of a listener. A quarter of the limit of open files bounds it too. Further
    connections get 50305 and are closed."""
    connections_per_address_max: Annotated[int, Meta(ge=1, le=100_000)] = 1_024
    """Open connections from one address (one /64 network for IPv6). Further connections get 42901
    and are closed."""
    bytes_in_flight_max: Bytes = 256 * MIB
    """Request bodies received or worked on, and large responses being sent. More is 50305. One
    client address (a /64 network for IPv6) holds a quarter of it. More is 42901."""
    requests_in_flight_max: Annotated[int, Meta(ge=4, le=100_000)] = 4_096
    """Requests being handled, including waiting reads. More is 50305. One client address has a
    quarter of it. More is 42901."""
    receive_buffer_bytes: Annotated[int, Meta(ge=4 * KIB, le=4 * MIB)] = 64 * KIB
    """Approximate body bytes that a connection buffers before the socket is paused."""

    # Metrics
    topic_labels_max: Annotated[int, Meta(ge=0, le=100_000)] = 200
    """Topics with separate metrics. The others are summed as `other`."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def within_open_files(self) -> ServerLimits:
        """These limits, with fewer connections if the process can open few files."""
        return msgspec.structs.replace(self, connections_max=connections_max(self.connections_max))


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one node's HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8082
    """Port to listen on. 0 takes a free port."""
    health_port: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    """Additional port for only /healthy, /ready and /metrics. 0 takes a free port, -1 opens
    none."""
    backlog: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """Connections that the kernel queues before the server accepts them."""
    allowed_origins: tuple[str, ...] = ()
    """Origins (`https://host:port`) of pages that may use this node from a browser."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names of this node besides the advertised names of the cluster."""
    auto_create_topics: bool = False
    """Whether a produce request to an unknown topic creates it."""
    other_open_access: bool = False
    """Whether another listener of the node serves clients of other machines."""
    limits: ServerLimits = ServerLimits()

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def is_beyond_loopback(self) -> bool:
        """Whether clients of other machines can connect."""
        return is_beyond_loopback(self.host)

    def for_broker(self) -> BrokerSettings:
        """The settings common to all listeners of the node."""
        limits = self.limits
        return BrokerSettings(
            auto_create_topics=self.auto_create_topics,
            bytes_in_flight_max=limits.bytes_in_flight_max,
            requests_in_flight_max=limits.requests_in_flight_max,
            response_bytes_max=limits.response_bytes_max,
            long_poll_s_max=limits.long_poll_ms_max / 1000,
            partitions_per_request_max=limits.partitions_per_request_max,
            topic_labels_max=limits.topic_labels_max,
        )
