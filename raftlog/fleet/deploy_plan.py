"""Which node each host of `scripts/deploy` runs, and with which settings. Pure.

The hosts' own settings files are the only memory of a deployment: a node keeps the file that it
has, a host without one gets the next free number. So a repeated command changes nothing, hosts may
be named in any order, and what an operator wrote into a file stays.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog.fleet.errors import FleetError

PORT_DEFAULT: Final = 8082
VOTERS_MAX: Final = 3
"""Of a new cluster: three survive the loss of one; later hosts join without a vote."""
HOSTS_MAX: Final = 32
"""The limit of --join and of server lists."""
_NAME: Final = re.compile(r"node-([1-9]\d{0,8})")
_HEADER: Final = "# Written by scripts/deploy at the first start; later changes here are kept.\n"


@dataclass(frozen=True, slots=True)
class Target:
    """A host of the command line."""

    ssh: str
    """Its ssh address, `[user@]host[:port]`."""
    host: str
    """The name or IP address by which nodes and clients reach it."""

    @classmethod
    def parse(cls, word: str) -> Target:
        """`[user@]host[:port][=address]`. Raises FleetError."""
        ssh, _, address = word.partition("=")
        host = address or _without_port(ssh.rpartition("@")[2])
        if not ssh or not host or any(character.isspace() for character in word):
            raise FleetError(f"{word!r} is not a host of the form [user@]host[:port][=address]")
        return cls(ssh, host)


@dataclass(frozen=True, slots=True)
class HostState:
    """Findings on one host."""

    target: Target
    settings: Mapping[str, str]
    """The settings of its nodes (TOML), by name."""
    secret: str | None = field(repr=False)
    current: str | None
    """The release of the next start."""
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node and its host."""

    target: Target
    node_id: int
    address: str
    """Where nodes and clients reach it, `host:port`."""
    settings: str
    """The content of its settings file."""
    is_new: bool

    @property
    def name(self) -> str:
        """The name of the node's unit and of its files."""
        return f"node-{self.node_id}"


@dataclass(frozen=True, slots=True)
class Replacement:
    """A lost node, to be started on an empty disk."""

    first: NodePlan
    """With the settings for the start in the lost node's place."""
    later: NodePlan
    """With the settings for all later starts."""
    others: tuple[NodePlan, ...]


def plan(states: Sequence[HostState], port: int) -> tuple[NodePlan, ...]:
    """The node of each host, in the order of the hosts. Raises FleetError."""
    _check(states)
    known = {state.target: _known_node(state) for state in states if state.settings}
    _check_ids(known)
    new = [state for state in states if state.target not in known]
    free = (number for number in range(1, 2 * HOSTS_MAX + 1) if number not in _ids(known))
    numbers = dict(zip((state.target for state in new), free, strict=False))
    addresses = {state.target: host_port(state.target.host, port) for state in new}
    if known:
        _check_not_lost(known.values(), addresses.values())
        origin = {"join": ",".join(node.address for node in known.values())}
    else:
        voters = [f"{numbers[one.target]}@{addresses[one.target]}" for one in new[:VOTERS_MAX]]
        origin = {"voters": ",".join(voters)}
    join = {"join": ",".join(addresses[one.target] for one in new[:VOTERS_MAX])}
    nodes = []
    for state in states:
        if state.target in known:
            nodes.append(known[state.target])
            continue
        node_id, address = numbers[state.target], addresses[state.target]
        first = origin if known or node_id <= VOTERS_MAX else join
        settings = _settings(node_id, address, first, state.rack)
        nodes.append(NodePlan(state.target, node_id, address, settings, is_new=True))
    return tuple(nodes)


def plan_replacement(states: Sequence[HostState], node_id: int, port: int) -> Replacement:
    """The lost node on its empty disk. Raises FleetError."""
    _check(states)
    known = {state.target: _known_node(state) for state in states if state.settings}
    _check_ids(known)
    others = [node for node in known.values() if node.node_id != node_id]
    lost = [state for state in states if known.get(state.target) not in others]
    if len(lost) != 1:
        raise FleetError(
            f"node {node_id} goes to the one host that runs no other node, and there are "
            f"{len(lost)} of these: name all hosts of the cluster, and the new one among them"
        )
    if not others:
        raise FleetError("no other node is left: there is no cluster to take the place in")
    state = lost[0]
    before = known.get(state.target)
    address = before.address if before else host_port(state.target.host, port)
    origin = {"join": ",".join(node.address for node in others)}
    later = _settings(node_id, address, origin, state.rack)
    first = f"{later}replace = {node_id}\n"
    return Replacement(
        NodePlan(state.target, node_id, address, first, is_new=True),
        NodePlan(state.target, node_id, address, later, is_new=True),
        tuple(others),
    )


def common_secret(states: Sequence[HostState]) -> str | None:
    """The secret of the hosts that have one; None if none has. Raises FleetError."""
    secrets = {state.secret for state in states if state.secret is not None}
    if len(secrets) > 1:
        listed = ", ".join(state.target.ssh for state in states if state.secret is not None)
        raise FleetError(
            f"the secrets of {listed} differ: are these hosts of one cluster? The same file "
            "/etc/raftlog/cluster.secret belongs on all of them"
        )
    return next(iter(secrets), None)


def next_to_restart(remaining: Sequence[NodePlan], controller: int | None) -> NodePlan:
    """The next node of a rolling restart: the active controller last, to be elected once only."""
    return next((one for one in remaining if one.node_id != controller), remaining[0])


def host_port(host: str, port: int) -> str:
    """`host:port`; `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _settings(node_id: int, address: str, origin: Mapping[str, str], rack: str | None) -> str:
    port = address.rpartition(":")[2]
    values: dict[str, Any] = {
        "node_id": node_id,
        # The address that others use may not be one of the machine's own, as behind a router.
        "listen": f"[::]:{port}" if address.startswith("[") else f"0.0.0.0:{port}",
        "advertised": address,
        **origin,
    }
    if rack is not None:
        values["rack"] = rack
    # Strings of JSON are strings of TOML.
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    return _HEADER + "".join(lines)


def _known_node(state: HostState) -> NodePlan:
    """The node of a host by its settings file."""
    if len(state.settings) > 1:
        raise FleetError(
            f"{state.target.ssh} runs {', '.join(sorted(state.settings))}: scripts/deploy knows "
            "one node a host; `raftlog fleet` manages others"
        )
    name, content = next(iter(state.settings.items()))
    where = f"{state.target.ssh}:/etc/raftlog/{name}.toml"
    found = _NAME.fullmatch(name)
    try:
        values = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise FleetError(f"{where} is not TOML: {error}") from error
    if found is None or values.get("node_id") != int(found[1]):
        raise FleetError(f"{where} is not a file of scripts/deploy: node_id and its name differ")
    address = values.get("advertised")
    if not isinstance(address, str):
        raise FleetError(f"{where} has no `advertised` address")
    return NodePlan(state.target, int(found[1]), address, content, is_new=False)


def _check(states: Sequence[HostState]) -> None:
    if not 1 <= len(states) <= HOSTS_MAX:
        raise FleetError(f"a cluster has 1 to {HOSTS_MAX} hosts here, not {len(states)}")
    for kind in ("ssh", "host"):
        names = [getattr(state.target, kind) for state in states]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise FleetError(f"{', '.join(repeated)} is named more than once")


def _check_ids(known: Mapping[Target, NodePlan]) -> None:
    ids = [node.node_id for node in known.values()]
    repeated = sorted({number for number in ids if ids.count(number) > 1})
    if repeated:
        raise FleetError(
            f"several hosts run node {repeated[0]}: hosts of different clusters were named"
        )


def _check_not_lost(known: Iterable[NodePlan], addresses: Iterable[str]) -> None:
    """A first voter's host without settings has lost its disk, and is no new node."""
    new = set(addresses)
    for node in known:
        for voter in str(tomllib.loads(node.settings).get("voters", "")).split(","):
            number, _, address = voter.strip().partition("@")
            if address in new:
                raise FleetError(
                    f"node {number} was at {address}, and its host has no settings any more: if "
                    f"its disk is lost, `scripts/deploy --replace {number}` takes its place"
                )


def _ids(known: Mapping[Target, NodePlan]) -> set[int]:
    return {node.node_id for node in known.values()}


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
