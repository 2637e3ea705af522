"""The settings of a node: what flags, environment and file amount to."""

from __future__ import annotations

import socket
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from raftlog.http.settings import ServerLimits, check_bounds
from raftlog.raft.voters import Voter, VoterSet, parse_voters

JOIN_ADDRESSES_MAX: Final = 32
WILDCARD_HOSTS: Final = ("0.0.0.0", "::")
SECRET_SUFFIX: Final = "_secret"
"""A setting whose name ends so is never shown to anybody."""
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
NOT_SHOWN: Final = "(not shown)"


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a node is started: what flags, environment and file amount to."""

    data_dir: str
    """The node's own directory; created if missing."""
    node_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    """Number of this node, unique in its cluster; remembered in the data directory."""
    listen: str = "127.0.0.1:8082"
    """`host:port` to serve on; port 0 takes a free one; remembered in the data directory."""
    advertised: str | None = None
    """`host:port` that clients and other nodes are told; remembered in the data directory. By
    default what --voters says of this node, else the address listened on."""
    voters: str | None = None
    """The voters of a new cluster, the same list on each of them: `1@host:port,2@host:port,
    3@host:port`. Counts at the first start only. Without it and --join a node begins a cluster of
    itself alone."""
    join: str | None = None
    """`host:port[,host:port]` of any live nodes of the cluster to join. Counts at the first start
    only."""
    cluster_secret: str | None = None
    """The secret by which the nodes of a cluster know each other; remembered in the data directory.
    Other users of the machine can read command lines: better by the environment or a file."""
    cluster_secret_file: str | None = None
    """File that holds the cluster's secret, and nothing else."""
    health_port: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    """Separate port for /healthy, /ready and /metrics; -1: none."""
    rack: str | None = None
    """Where the node stands; replicas are spread over racks; remembered in the data directory."""
    flush: Literal["sync", "async"] = "sync"
    """What acks=all waits for, unless a topic says otherwise (promises 1 and 2)."""
    partitions_default: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Partitions of a topic that is created without saying how many."""
    auto_create_topics: bool = False
    """Whether producing to an unknown topic creates it."""
    topic_defaults: dict[str, str] = {}
    """Topic configs for all topics that do not set them."""
    limits: ServerLimits = ServerLimits()
    """What one peer, and all together, may make the server hold or wait for."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in shown(self).items())
        return f"{type(self).__name__}({words})"

    def check(self) -> None:
        """Raise ValueError, in words for who gave them, if settings cannot go together."""
        self.listen_address()
        if MIN_INSYNC_REPLICAS in self.topic_defaults:
            # What is eligible to lead must not depend on which node is asked.
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

    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on. Raises ValueError."""
        return split_address(self.listen)

    def advertised_address(self, port: int) -> tuple[str, int]:
        """Host and port that others are told, if `port` is the one listened on. ValueError."""
        if self.advertised is not None:
            return split_address(self.advertised)
        own = self.own_voter()
        if own is not None:
            return own.host, own.port
        host = self.listen_address()[0]
        # Nobody can connect to "all addresses of this machine"; its name is the best we know.
        return (socket.gethostname() if host in WILDCARD_HOSTS else host), port

    def voter_set(self) -> VoterSet | None:
        """The voters given, if any. Raises ValueError."""
        return None if self.voters is None else parse_voters(self.voters)

    def own_voter(self) -> Voter | None:
        """What the voters given say of this node. Raises ValueError."""
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


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_secret(name: str) -> bool:
    """Whether the value of the setting of that name must not be shown."""
    return name.endswith(SECRET_SUFFIX)


def shown(settings: msgspec.Struct) -> dict[str, Any]:
    """The settings by name, as they may be shown: secrets only as given or not."""
    values = msgspec.structs.asdict(settings)
    return {
        name: NOT_SHOWN if is_secret(name) and value is not None else value
        for name, value in values.items()
    }
