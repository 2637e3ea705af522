"""The settings of a node, from flags, environment and file."""

from __future__ import annotations

import socket
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from raftlog.http.browsers import parse_hosts, parse_origins
from raftlog.http.settings import ServerLimits, check_bounds
from raftlog.raft.voters import Voter, VoterSet, parse_voters

JOIN_ADDRESSES_MAX: Final = 32
WILDCARD_HOSTS: Final = ("0.0.0.0", "::")
SECRET_SUFFIX: Final = "_secret"
"""Settings with this suffix in their name are never shown."""
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
NOT_SHOWN: Final = "(not shown)"


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one start, from flags, environment and file."""

    data_dir: str
    """The node's own directory; created if missing."""
    node_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    """Number of this node, unique in its cluster; remembered in the data directory."""
    listen: str = "127.0.0.1:8082"
    """`host:port` to serve on; port 0 takes a free one; remembered in the data directory."""
    advertised: str | None = None
    """`host:port` announced to clients and other nodes; remembered in the data directory. By
    default this node's address in --voters, else the address listened on."""
    voters: str | None = None
    """The voters of a new cluster, the same list on each of them: `1@host:port,2@host:port,
    3@host:port`. Counts at the first start only; later a list that contradicts the data directory
    is refused. Without --voters and --join a node begins a cluster of itself alone."""
    join: str | None = None
    """`host:port[,host:port]` of any live nodes of the cluster to join. Counts at the first start
    only; later it is refused where the data directory is a cluster of its own."""
    cluster_secret: str | None = None
    """The secret by which the nodes of a cluster know each other; remembered in the data directory.
    Other users of the machine can read command lines: better by the environment or a file."""
    cluster_secret_file: str | None = None
    """File with the cluster's secret as its only content, readable by its owner alone (mode 600;
    640 if root owns it). Reread every 5 s. Two lines are two secrets, for a change while all nodes
    run: the first is used to prove, both are accepted."""
    health_port: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    """Separate port for /healthy, /ready and /metrics; -1: none."""
    allowed_origins: str | None = None
    """Origins of pages that may use this node from a browser, separated by commas:
    `https://example.com,http://host:port`. Pages of all other origins are refused (40302)."""
    allowed_hosts: str | None = None
    """Host names by which clients reach this node, separated by commas, besides IP addresses,
    `localhost`, and the names that the cluster's nodes listen on or advertise: the name of a load
    balancer, or another DNS name. Others are refused (42101), as foreign pages use them."""
    rack: str | None = None
    """Where the node stands; replicas are spread over racks; remembered in the data directory."""
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
        if self.cluster_secret is not None and self.cluster_secret_file is not None:
            raise ValueError(
                "the cluster's secret is given twice: by --cluster-secret and by "
                "--cluster-secret-file"
            )
        self.advertised_address(port=0)
        parse_origins(self.allowed_origins)
        parse_hosts(self.allowed_hosts)

    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on. Raises ValueError."""
        return split_address(self.listen)

    def advertised_address(self, port: int) -> tuple[str, int]:
        """Host and port to announce; `port` is the port listened on. Raises ValueError."""
        if self.advertised is not None:
            return split_address(self.advertised)
        own = self.own_voter()
        if own is not None:
            return own.host, own.port
        host = self.listen_address()[0]
        # No client can connect to "all addresses of this machine"; its name is the best known one.
        return (socket.gethostname() if host in WILDCARD_HOSTS else host), port

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
    """`host:port` as a pair; `[v6]:port` too. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_secret(name: str) -> bool:
    """Whether the setting's value must not be shown."""
    return name.endswith(SECRET_SUFFIX)


def shown(settings: msgspec.Struct) -> dict[str, Any]:
    """The settings by name, for display: secrets only as given or not."""
    values = msgspec.structs.asdict(settings)
    return {
        name: NOT_SHOWN if is_secret(name) and value is not None else value
        for name, value in values.items()
    }
