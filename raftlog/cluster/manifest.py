"""The manifest with a local cluster's nodes, addresses and command lines. Pure.

It is the only source of these. Processes come and go, and a stopped cluster starts again from the
manifest. Ids are never used twice, because the metadata may remember a removed node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from raftlog.cluster.errors import ClusterError
from raftlog.record.decoders import json_decoder

FORMAT_VERSION: Final = 1
NODES_MAX: Final = 32
"""Nodes on one machine, which is the limit of `--join` and of server lists."""
BASE_PORT_DEFAULT: Final = 8082
KAFKA_PORT_OFFSET: Final = 1_010
"""Kafka ports begin at 9092, its usual port, where the others begin at 8082."""
HOST_DEFAULT: Final = "127.0.0.1"
NODES_DEFAULT: Final = 3
MANAGED_FLAGS: Final = (
    "--data-dir", "--node-id", "--listen", "--advertised", "--voters", "--join",
    "--cluster-secret", "--cluster-secret-file", "--flush", "--show-settings", "--health-port",
    "--kafka-listen",
)  # fmt: skip
"""Settings of a node reserved for the manager, or different for each node."""

Flush = Literal["sync", "async"]
Port = Annotated[int, Meta(ge=1, le=65_535)]


class NodeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node of the cluster."""

    node_id: Annotated[int, Meta(ge=1)]
    port: Port
    directory: str
    """Name of its data directory, within the cluster's."""
    joined: bool = False
    """Whether the node joined the cluster. Otherwise it is one of the first voters."""
    stopped: bool = False
    """Whether the operator stopped the node. It is then not started with the others."""
    kafka_port: Port | None = None
    """The port of its Kafka listener, if there is one."""
    replaced: bool = False
    """Whether its data directory was lost once. An empty directory then replaces it."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster's nodes and settings."""

    created: str
    host: str
    flush: Flush
    arguments: tuple[str, ...]
    """Further arguments of `raftlog serve`, the same for every node."""
    voters: str
    """The first voters, in the form of `raftlog serve --voters`."""
    nodes: Annotated[tuple[NodeEntry, ...], Meta(min_length=1, max_length=NODES_MAX)]
    next_node_id: int
    version: Literal[1] = FORMAT_VERSION
    kafka_ended: bool = False
    """Whether the nodes had Kafka listeners, which their data directories may remember."""

    def node(self, node_id: int) -> NodeEntry:
        """The node of this id. Raises ClusterError."""
        for entry in self.nodes:
            if entry.node_id == node_id:
                return entry
        listed = ", ".join(str(entry.node_id) for entry in self.nodes)
        raise ClusterError(f"there is no node {node_id} in this cluster: it has {listed}")

    def address(self, entry: NodeEntry) -> str:
        """Address of the node, `host:port`."""
        return host_port(self.host, entry.port)

    def kafka_address(self, entry: NodeEntry) -> str | None:
        """Address of the node for Kafka clients, `host:port`. None without a Kafka listener."""
        return None if entry.kafka_port is None else host_port(self.host, entry.kafka_port)

    @property
    def ports(self) -> tuple[int, ...]:
        """The HTTP ports of all nodes."""
        return tuple(entry.port for entry in self.nodes)

    @property
    def kafka_ports(self) -> tuple[int, ...]:
        """The Kafka ports of all nodes. None without Kafka listeners."""
        return tuple(entry.kafka_port for entry in self.nodes if entry.kafka_port is not None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nodes' addresses, stopped nodes last."""
        return tuple(self.address(entry) for entry in sorted(self.nodes, key=lambda e: e.stopped))


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `up`. None stands for unchanged, or the default for a new cluster."""

    nodes: int | None = None
    base_port: int | None = None
    """The first node's port. The others follow. 0 for free ports."""
    host: str | None = None
    flush: Flush | None = None
    arguments: tuple[str, ...] | None = None
    kafka: bool | None = None
    """Whether each node has a Kafka listener. A new cluster's nodes have one by default."""
    kafka_base_port: int | None = None
    """The first node's Kafka port. The others follow. 0 for free ports."""

    def check(self) -> None:
        """Raise ClusterError, worded for the command's user, for invalid options."""
        if self.nodes is not None and not 1 <= self.nodes <= NODES_MAX:
            raise ClusterError(f"a local cluster has 1 to {NODES_MAX} nodes, not {self.nodes}")
        if self.base_port is not None and not 0 <= self.base_port <= 65_535:
            raise ClusterError(f"{self.base_port} is not a port")
        if self.kafka_base_port is not None:
            if not 0 <= self.kafka_base_port <= 65_535:
                raise ClusterError(f"{self.kafka_base_port} is not a port")
            if self.kafka is False:
                raise ClusterError("--no-kafka and --kafka-base-port exclude each other")
        for word in self.arguments or ():
            if word.partition("=")[0] in MANAGED_FLAGS:
                raise ClusterError(
                    f"{word.partition('=')[0]} is set by the manager, for each node its own",
                    "`raftlog cluster up --help` shows what can be chosen.",
                )


def new_manifest(
    plan: Plan, ports: Sequence[int], created: str, kafka_ports: Sequence[int] = ()
) -> Manifest:
    """A new cluster with a voter for each port, and Kafka listeners at `kafka_ports`."""
    host = plan.host or HOST_DEFAULT
    nodes = tuple(
        NodeEntry(node_id, port, directory_name(node_id), kafka_port=_nth(kafka_ports, node_id - 1))
        for node_id, port in enumerate(ports, start=1)
    )
    voters = ",".join(f"{entry.node_id}@{host_port(host, entry.port)}" for entry in nodes)
    return Manifest(
        created=created,
        host=host,
        flush=plan.flush or "sync",
        arguments=plan.arguments or (),
        voters=voters,
        nodes=nodes,
        next_node_id=len(nodes) + 1,
    )


def revised(manifest: Manifest, plan: Plan) -> Manifest:
    """An existing cluster with the changes of `up`. Raises ClusterError for forbidden changes."""
    if plan.nodes is not None and plan.nodes != len(manifest.nodes):
        raise ClusterError(
            f"the cluster has {len(manifest.nodes)} nodes, not {plan.nodes}",
            "Leave out --nodes to start it as it is; `raftlog cluster add-node` adds one.",
        )
    if plan.host is not None and plan.host != manifest.host:
        raise ClusterError(
            f"the cluster's nodes know each other at {manifest.host}, not {plan.host}",
            "Leave out --host to start it as it is.",
        )
    if plan.base_port and plan.base_port not in (entry.port for entry in manifest.nodes):
        ports = ", ".join(str(entry.port) for entry in manifest.nodes)
        raise ClusterError(
            f"the cluster's nodes know each other by the ports {ports}, not by {plan.base_port}",
            "Leave out --base-port to start it as it is.",
        )
    known = manifest.kafka_ports
    if plan.kafka_base_port and known and plan.kafka_base_port not in known:
        ports = ", ".join(map(str, known))
        raise ClusterError(
            f"Kafka clients know the cluster's nodes by the ports {ports}, not by "
            f"{plan.kafka_base_port}",
            "Leave out --kafka-base-port to start it as it is.",
        )
    found = replace(
        manifest,
        flush=plan.flush or manifest.flush,
        arguments=manifest.arguments if plan.arguments is None else plan.arguments,
    )
    if plan.kafka is False and manifest.kafka_ports:
        nodes = tuple(replace(entry, kafka_port=None) for entry in manifest.nodes)
        return replace(found, nodes=nodes, kafka_ended=True)
    return found


def needs_kafka_ports(manifest: Manifest, plan: Plan) -> bool:
    """Whether the plan gives Kafka listeners to an existing cluster without them."""
    wanted = plan.kafka or plan.kafka_base_port is not None
    return bool(wanted) and not manifest.kafka_ports


def with_kafka(manifest: Manifest, ports: Sequence[int]) -> Manifest:
    """The cluster with a Kafka listener for each node, in order, at these ports."""
    nodes = tuple(
        replace(entry, kafka_port=port) for entry, port in zip(manifest.nodes, ports, strict=True)
    )
    return replace(manifest, nodes=nodes, kafka_ended=False)


def default_kafka_base_port(base_port: int) -> int:
    """The first Kafka port of a cluster whose HTTP ports begin at `base_port`.

    So two clusters with different HTTP ports also have different Kafka ports.
    """
    last = base_port + KAFKA_PORT_OFFSET + NODES_MAX
    return base_port + (KAFKA_PORT_OFFSET if last <= 65_535 else -KAFKA_PORT_OFFSET)


def with_new_node(
    manifest: Manifest, port: int, kafka_port: int | None = None
) -> tuple[Manifest, NodeEntry]:
    """Add a joining node to the cluster. Raises ClusterError."""
    if len(manifest.nodes) >= NODES_MAX:
        raise ClusterError(f"a local cluster has at most {NODES_MAX} nodes")
    node_id = manifest.next_node_id
    entry = NodeEntry(node_id, port, directory_name(node_id), joined=True, kafka_port=kafka_port)
    return replace(manifest, nodes=(*manifest.nodes, entry), next_node_id=node_id + 1), entry


def without_node(manifest: Manifest, node_id: int) -> Manifest:
    """Remove a node from the cluster. Its id is not given again. Raises ClusterError."""
    gone = manifest.node(node_id)
    if len(manifest.nodes) == 1:
        raise ClusterError(
            f"node {node_id} is the only one: without it there is no cluster",
            "`raftlog cluster add-node` adds another.",
        )
    return replace(manifest, nodes=tuple(entry for entry in manifest.nodes if entry is not gone))


def with_stopped(manifest: Manifest, node_id: int, *, stopped: bool) -> Manifest:
    """Remember whether a node is stopped on purpose. Raises ClusterError."""
    return _with_entry(manifest, replace(manifest.node(node_id), stopped=stopped))


def with_replaced(manifest: Manifest, node_id: int) -> Manifest:
    """Remember that a node's data directory was lost. Raises ClusterError."""
    return _with_entry(manifest, replace(manifest.node(node_id), replaced=True))


def _with_entry(manifest: Manifest, changed: NodeEntry) -> Manifest:
    nodes = (changed if each.node_id == changed.node_id else each for each in manifest.nodes)
    return replace(manifest, nodes=tuple(nodes))


def serve_arguments(
    manifest: Manifest, entry: NodeEntry, data_dir: str, secret_file: str, *, has_begun: bool
) -> list[str]:
    """The command line of `raftlog serve` for a node.

    A node with an identity in its data directory needs neither voters nor join.
    """
    kafka: list[str] = []
    if (address := manifest.kafka_address(entry)) is not None:
        kafka = ["--kafka-listen", address]
    elif manifest.kafka_ended:
        kafka = ["--kafka-listen", "none"]
    own = ["--data-dir", data_dir, "--flush", manifest.flush, *kafka, *manifest.arguments]
    if has_begun:
        return own
    if entry.joined or entry.replaced:
        others = [manifest.address(other) for other in manifest.nodes if other is not entry]
        how = ["--join", ",".join(others)]
        if entry.replaced:
            how += ["--replace", str(entry.node_id)]
    else:
        how = ["--voters", manifest.voters]
    return [
        *own,
        *("--node-id", str(entry.node_id), "--listen", manifest.address(entry)),
        *("--cluster-secret-file", secret_file),
        *how,
    ]


def encoded(manifest: Manifest) -> bytes:
    """The manifest's file content as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decoded(content: bytes, where: str) -> Manifest:
    """The inverse of `encoded`. Raises ClusterError."""
    try:
        return json_decoder(Manifest).decode(content)
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"{where} cannot be read: {error}",
            "If a newer version wrote it, use that one; else restore the file.",
        ) from error


def directory_name(node_id: int) -> str:
    """The name of a node's data directory."""
    return f"node-{node_id}"


def _nth(ports: Sequence[int], position: int) -> int | None:
    return ports[position] if ports else None


def host_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
