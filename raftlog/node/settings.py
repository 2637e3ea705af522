"""The settings of a node, from flags, environment and file."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from raftlog.http.browsers import parse_hosts, parse_origins
from raftlog.http.settings import ServerLimits, check_bounds, is_beyond_loopback
from raftlog.raft.voters import Voter, VoterSet, parse_voters

JOIN_ADDRESSES_MAX: Final = 32
WILDCARD_HOSTS: Final = ("0.0.0.0", "::")
SECRET_SUFFIX: Final = "_secret"
"""Settings with this suffix in their name are never shown."""
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
NOT_SHOWN: Final = "(not shown)"
NO_LISTENER: Final = "none"
"""The value of `kafka_listen` that ends a remembered listener."""
GATEWAY_PREFIX: Final = "gateway="


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """The address that Kafka clients use for a node."""

    host: str
    port: int
    is_gateway: bool = False
    """Whether clients get this one address for every leader and coordinator of the cluster."""


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one start, from flags, environment and file."""

    data_dir: str
    """The node's own directory. Created if missing."""
    node_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    """Number of this node, unique in its cluster. Remembered in the data directory."""
    listen: str = "127.0.0.1:8082"
    """`host:port` to serve on. Port 0 takes a free port. Remembered in the data directory."""
    advertised: str | None = None
    """`host:port` announced to clients and other nodes. Remembered in the data directory. By
    default this node's address in --voters, else the address listened on."""
    kafka_listen: str | None = None
    """`host:port` of a second listener for Kafka clients, usually port 9092. Port 0 takes a free
    port. Remembered in the data directory. `none` disables the listener, which is the default."""
    kafka_advertise: str | None = None
    """`host:port` announced to Kafka clients. Remembered in the data directory. By default the
    address of --kafka-listen. `gateway=host:port`, the address of a load balancer before nodes that
    all have this setting, is announced as the one broker, and each node forwards."""
    voters: str | None = None
    """The voters of a new cluster, as the same list on each of them, `1@host:port,2@host:port,
    3@host:port`. Counts only at the first start. Later a list that contradicts the data directory
    is refused. Without --voters and --join a node begins a cluster of only itself."""
    join: str | None = None
    """`host:port[,host:port]` of any live nodes of the cluster to join. Counts only at the first
    start. Later it is refused where the data directory is a separate cluster."""
    replace: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """The number of a node whose disk is lost. This node takes its number, vote and replicas, on an
    empty data directory. Needs --join. Ignored once the directory is that node's."""
    cluster_secret: str | None = None
    """The secret by which the nodes of a cluster know each other. Remembered in the data directory.
    Other users of the machine can read command lines, so prefer the environment or a file."""
    cluster_secret_file: str | None = None
    """File with only the cluster's secret, readable only by its owner. Mode 600, or 640 if root
    owns it. Reread every 5 s. Two lines are two secrets, for a change while all nodes run. The
    first is used to prove, both are accepted."""
    health_port: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    """Separate port for /healthy, /ready and /metrics. -1 for none."""
    allowed_origins: str | None = None
    """Origins of pages that may use this node from a browser, separated by commas,
    `https://example.com,http://host:port`. Pages of all other origins are refused (40302)."""
    allowed_hosts: str | None = None
    """Host names by which clients reach this node, separated by commas. The name of a load
    balancer, or another DNS name. IP addresses, `localhost`, and the names that the cluster's nodes
    listen on or advertise are always allowed. Others are refused (42101), as foreign pages use
    them."""
    rack: str | None = None
    """Where the node stands. Replicas are spread over racks. Remembered in the data directory."""
    flush: Literal["sync", "async"] = "sync"
    """Flush mode of acks=all, unless set by the topic (promises 1 and 2)."""
    partitions_default: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Partitions of a topic created without a number of partitions."""
    auto_create_topics: bool = False
    """Whether producing to an unknown topic creates the topic."""
    topic_defaults: dict[str, str] = {}
    """Topic configs for all topics without their own value."""
    limits: ServerLimits = ServerLimits()
    """Bounds on the memory and waiting requests of one peer, and of all together."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in shown(self).items())
        return f"{type(self).__name__}({words})"

    def check(self) -> None:
        """Check settings against each other. Raises ValueError with a message for the operator."""
        self.listen_address()
        if MIN_INSYNC_REPLICAS in self.topic_defaults:
            # The eligibility to lead must not depend on the deciding node.
            raise ValueError(
                f"{MIN_INSYNC_REPLICAS} is one for the whole cluster, so it is no default of a "
                "node: set it by PUT /v1/cluster/settings, or on topics"
            )
        self.voter_set()
        self.join_addresses()
        if self.voters is not None and self.join is not None:
            raise ValueError(
                "--voters begins a new cluster and --join enters one that exists: give one of them"
            )
        if self.replace is not None and self.replace != self.node_id:
            raise ValueError(
                f"--replace {self.replace} makes this node number {self.replace}, but --node-id or "
                f"the data directory says {self.node_id}: give an empty --data-dir, without "
                "--node-id"
            )
        if self.cluster_secret is not None and self.cluster_secret_file is not None:
            raise ValueError(
                "the cluster's secret is given twice: by --cluster-secret and by "
                "--cluster-secret-file"
            )
        self.advertised_address(port=0)
        self._check_kafka()
        parse_origins(self.allowed_origins)
        parse_hosts(self.allowed_hosts)

    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on. Raises ValueError."""
        return split_address(self.listen)

    def advertised_address(self, port: int) -> tuple[str, int]:
        """Host and port to announce. `port` is the port listened on. Raises ValueError."""
        if self.advertised is not None:
            return split_address(self.advertised)
        own = self.own_voter()
        if own is not None:
            return own.host, own.port
        host = self.listen_address()[0]
        # No client can connect to "all addresses of this machine". Its name is the best known
        # address.
        return (socket.gethostname() if host in WILDCARD_HOSTS else host), port

    def kafka_listen_address(self) -> tuple[str, int] | None:
        """Host and port of the Kafka listener. None without a listener. Raises ValueError."""
        if self.kafka_listen is None or self.kafka_listen == NO_LISTENER:
            return None
        return _address_of("--kafka-listen", self.kafka_listen)

    def kafka_advertised(self, port: int) -> KafkaAddress | None:
        """The address for Kafka clients. None without a listener. `port` is the port listened on.
        Raises ValueError."""
        listen = self.kafka_listen_address()
        if listen is None:
            return None
        if self.kafka_advertise is not None:
            is_gateway = self.kafka_advertise.startswith(GATEWAY_PREFIX)
            address = self.kafka_advertise.removeprefix(GATEWAY_PREFIX)
            return KafkaAddress(*_address_of("--kafka-advertise", address), is_gateway)
        host = listen[0]
        if host in WILDCARD_HOSTS:
            # The name by which other nodes know this machine, unless that is for itself alone.
            known = self.advertised_address(port)[0]
            host = known if is_beyond_loopback(known) else socket.gethostname()
        return KafkaAddress(host, port)

    def _check_kafka(self) -> None:
        listen = self.kafka_listen_address()
        if listen is None:
            if self.kafka_advertise is not None:
                raise ValueError(
                    "--kafka-advertise is the address of a Kafka listener, and there is none: give "
                    "--kafka-listen HOST:PORT (Kafka's usual port is 9092)"
                )
            return
        advertised = self.kafka_advertised(listen[1])
        if self.kafka_advertise is not None and advertised is not None and not advertised.port:
            raise ValueError(
                f"--kafka-advertise: {self.kafka_advertise!r} has no port that clients could "
                "connect to"
            )
        host, port = self.listen_address()
        for flag, other in (("--listen", port), ("--health-port", self.health_port)):
            if other > 0 and listen == (host, other):
                raise ValueError(
                    f"--kafka-listen and {flag} name the same port {other}: each listener has a "
                    "port of its own"
                )

    def voter_set(self) -> VoterSet | None:
        """The voters given, if any. Raises ValueError."""
        return None if self.voters is None else parse_voters(self.voters)

    def own_voter(self) -> Voter | None:
        """This node's entry among the given voters. Raises ValueError."""
        voters = self.voter_set()
        return None if voters is None else voters.find(self.node_id)

    def join_addresses(self) -> tuple[str, ...]:
        """Addresses (`host:port`) of nodes to join, in the order given. Raises ValueError."""
        if self.join is None:
            return ()
        addresses = [word.strip().removeprefix("http://") for word in self.join.split(",")]
        addresses = [word.rstrip("/") for word in addresses if word]
        for address in addresses:
            _, port = split_address(address)
            if not port:
                raise ValueError(f"--join: {address!r} has no port that a node could listen on")
        if not 1 <= len(addresses) <= JOIN_ADDRESSES_MAX:
            raise ValueError(
                f"--join names {len(addresses)} nodes: name 1 to {JOIN_ADDRESSES_MAX}, "
                "as host:port,host:port"
            )
        return tuple(dict.fromkeys(addresses))


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address_of(flag: str, address: str) -> tuple[str, int]:
    try:
        return split_address(address)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from error


def is_secret(name: str) -> bool:
    """Whether the setting's value must not be shown."""
    return name.endswith(SECRET_SUFFIX)


def shown(settings: msgspec.Struct) -> dict[str, Any]:
    """The settings by name, for display. Secrets only as given or not."""
    values = msgspec.structs.asdict(settings)
    return {
        name: NOT_SHOWN if is_secret(name) and value is not None else value
        for name, value in values.items()
    }
