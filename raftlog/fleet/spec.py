"""The fleet's file, with its clusters, nodes and logs, checked. Pure, except for `load`.

The file is TOML. `docs/fleet.md` describes every key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from raftlog.api.catalog import CATALOG_CONFIG, CATALOG_PARTITIONS, CATALOG_TOPIC
from raftlog.cluster.manifest import BASE_PORT_DEFAULT, NODES_DEFAULT, NODES_MAX
from raftlog.fleet.errors import SpecError
from raftlog.record.coordinators import INTERNAL_TOPICS

CLUSTERS_MAX: Final = 1_000
LOGS_MAX: Final = 10_000
"""Logs of one cluster, in the catalog."""
REPLICATION_DEFAULT: Final = 3
"""Replicas by default, or the number of nodes in a smaller cluster."""
VOTERS_DEFAULT: Final = 3
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")
"""Part of unit and directory names, and a DNS label."""
RESERVED_SETTINGS: Final = frozenset(
    [
        "data_dir", "node_id", "listen", "advertised", "voters", "join", "replace", "rack",
        "cluster_secret", "cluster_secret_file",
    ]
)  # fmt: skip
"""Settings of a node that the driver gives each node."""
LOCAL_KEYS: Final = ("dir", "nodes", "base_port")
SSH_KEYS: Final = ("hosts", "port", "release")

ConfigValue = str | int | float | bool
Port = Annotated[int, Meta(ge=1, le=65_535)]


class HostEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine reached by ssh."""

    address: Annotated[str, Meta(min_length=1)]
    """`host`, `user@host` or `user@host:port`. The port is that of ssh."""
    host: str | None = None
    """The name or IP address by which nodes and clients reach the machine. By default that of
    `address`."""
    rack: str | None = None

    @property
    def name(self) -> str:
        """The name or IP address by which nodes and clients reach the machine."""
        return self.host or host_name(self.address)


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic that a cluster should have."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[cluster]]` of the file. See docs/fleet.md."""

    keeps_found: ClassVar[bool] = False
    """Whether settings, votes and nodes outside of `hosts` stay as found. A release that does not
    become ready is then taken back. True for `scripts/deploy`, which has no file."""

    driver: Literal["local", "ssh"]
    name: str = ""
    """Name of the cluster, by default the log's."""
    log: str | None = None
    """The one log of this cluster."""
    logs: Annotated[tuple[str, ...], Meta(max_length=LOGS_MAX)] = ()
    """Topics to list in the catalog. Their users create these."""
    partitions: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Partitions of `log`."""
    replication_factor: Annotated[int, Meta(ge=1, le=NODES_MAX)] | None = None
    """Replicas of each partition of `log`."""
    config: dict[str, ConfigValue] = {}
    """Topic configs of `log`."""
    settings: dict[str, Any] = {}
    """Settings of every node, in the names and tables of `raftlog serve --config`."""
    version: Annotated[str, Meta(min_length=1)] | None = None
    """An installed release (driver ssh), by default that of `release`, else each host's current
    release."""
    voters: Literal[1, 3, 5, 7] = VOTERS_DEFAULT
    """The most voters. A smaller cluster has fewer."""
    replace: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """Nodes to start on an empty disk, if their data is gone."""
    dir: str | None = None
    """Cluster's directory (driver local)."""
    nodes: Annotated[int, Meta(ge=1, le=NODES_MAX)] | None = None
    """Number of nodes (driver local)."""
    base_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """First node's port (driver local). 0 for free ports."""
    hosts: Annotated[tuple[str | HostEntry, ...], Meta(max_length=NODES_MAX)] = ()
    """Hosts with one node on each (driver ssh)."""
    port: Port = BASE_PORT_DEFAULT
    """Nodes' port (driver ssh)."""
    release: str | None = None
    """Directory of wheels to run (driver ssh), as made by `scripts/deploy --wheels DIR`."""

    @property
    def machines(self) -> tuple[HostEntry, ...]:
        """Hosts (driver ssh), in the file's order."""
        return tuple(HostEntry(entry) if isinstance(entry, str) else entry for entry in self.hosts)

    @property
    def size(self) -> int:
        """How many nodes the cluster should have."""
        return len(self.hosts) if self.driver == "ssh" else self.nodes or NODES_DEFAULT

    @property
    def voter_count(self) -> int:
        """How many of the nodes should have a vote."""
        return min(self.voters, self.size)

    @property
    def listed(self) -> tuple[str, ...]:
        """The logs of this cluster in the catalog."""
        return (self.log,) if self.log is not None else self.logs

    def replacing(self, node_id: int) -> str:
        """The command that replaces a node with a lost disk."""
        return f"raftlog fleet apply FILE --replace {self.name}/{node_id}"

    def topics(self, *, is_home: bool) -> tuple[TopicSpec, ...]:
        """The topics that the reconciler creates and keeps as written."""
        default = min(REPLICATION_DEFAULT, self.size)
        if is_home:
            return (TopicSpec(CATALOG_TOPIC, CATALOG_PARTITIONS, default, dict(CATALOG_CONFIG)),)
        if self.log is None:
            return ()
        config = {name: config_text(value) for name, value in sorted(self.config.items())}
        factor = self.replication_factor or default
        return (TopicSpec(self.log, self.partitions, factor, config),)


Cluster = TypeVar("Cluster", bound=ClusterSpec)


class FleetTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[fleet]` of the file."""

    home: str | None = None
    """The cluster that keeps the catalog."""


class FleetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    cluster: Annotated[tuple[ClusterSpec, ...], Meta(max_length=CLUSTERS_MAX)] = ()
    fleet: FleetTable = FleetTable()

    @property
    def in_order(self) -> tuple[ClusterSpec, ...]:
        """The clusters, home first, as the others are listed in its catalog."""
        return tuple(sorted(self.cluster, key=lambda spec: spec.name != self.fleet.home))

    @property
    def home(self) -> ClusterSpec | None:
        """The cluster that keeps the catalog."""
        return next((spec for spec in self.cluster if spec.name == self.fleet.home), None)


def load(path: Path) -> FleetSpec:
    """Read and check a fleet's file. Raises SpecError, OSError."""
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise SpecError(f"{path} is longer than {FILE_BYTES_MAX:,} bytes")
    try:
        return parse(content.decode(), path.absolute().parent)
    except (UnicodeDecodeError, SpecError) as error:
        raise SpecError(f"{path}: {error}") from error


def parse(text: str, base: Path) -> FleetSpec:
    """Check the file's text. Relative paths start at `base`. Raises SpecError."""
    try:
        found = msgspec.convert(tomllib.loads(text), FleetSpec)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise SpecError(str(error)) from error
    clusters = tuple(resolved(spec, number, base) for number, spec in enumerate(found.cluster, 1))
    found = FleetSpec(clusters, found.fleet)
    for complaint in _conflicts(found):
        raise SpecError(complaint)
    return found


def config_text(value: ConfigValue) -> str:
    """A topic config as the cluster writes values."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def host_name(address: str) -> str:
    """The machine's name in `user@host:port`. An IPv6 address with a port is in brackets."""
    host = address.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings of a node as sorted TOML. The same settings are the same text."""
    lines = [
        ".".join(_quoted(part) for part in path) + f" = {_quoted(value)}\n"
        for path, value in sorted(_leaves(settings, ()))
    ]
    return "".join(lines)


def _leaves(
    table: Mapping[str, Any], prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def _quoted(value: object) -> str:
    # Strings, numbers, booleans and arrays of JSON are TOML as well. Only DEL must be escaped.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def resolved(spec: Cluster, number: int, base: Path) -> Cluster:
    """The cluster with its defaults and absolute paths. Raises SpecError."""
    name = spec.name or spec.log or ""
    if not name:
        raise SpecError(f"cluster {number} has no name: give `name`, or `log`")
    where = f"cluster {name}"
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{where}: a cluster's name has up to 48 lower case letters, digits and hyphens; "
            "give `name` if the log's is another"
        )
    given = {key for key in (*LOCAL_KEYS, *SSH_KEYS) if _is_given(spec, key)}
    foreign = given - set(LOCAL_KEYS if spec.driver == "local" else SSH_KEYS)
    if foreign:
        raise SpecError(f"{where}: {', '.join(sorted(foreign))} is not for driver {spec.driver}")
    for complaint in (*_log_complaints(spec), *_settings_complaints(spec)):
        raise SpecError(f"{where}: {complaint}")
    if spec.driver == "ssh":
        if spec.release is not None and spec.version is not None:
            raise SpecError(f"{where}: `release` has its own version, so leave out `version`")
        if not spec.hosts:
            raise SpecError(f"{where}: `hosts` names its machines")
        for names in (
            [machine.address for machine in spec.machines],
            [machine.name for machine in spec.machines],
        ):
            for host in names:
                if names.count(host) > 1:
                    raise SpecError(f"{where}: host {host} is named more than once")
    factor = spec.replication_factor
    if factor is not None and factor > spec.size:
        raise SpecError(f"{where}: replication_factor {factor} needs more than {spec.size} nodes")
    return replace(
        spec,
        name=name,
        dir=str(base / (spec.dir or f"fleet/{name}")) if spec.driver == "local" else None,
        release=None if spec.release is None else str(base / spec.release),
    )


def _is_given(spec: ClusterSpec, key: str) -> bool:
    default = next(field.default for field in msgspec.structs.fields(spec) if field.name == key)
    return bool(getattr(spec, key) != default)


def _log_complaints(spec: ClusterSpec) -> Iterator[str]:
    if spec.log is not None and spec.logs:
        yield "`log` makes a cluster of exactly one log, so `logs` is not for it"
    if spec.log is None and (spec.config or spec.replication_factor or spec.partitions != 1):
        yield "partitions, replication_factor and config are those of `log`, which is missing"
    for log in spec.listed:
        if not log or log in INTERNAL_TOPICS:
            yield f"{log!r} is no name for a log"
    if len(set(spec.logs)) < len(spec.logs):
        yield "`logs` names a log twice"


def _settings_complaints(spec: ClusterSpec) -> Iterator[str]:
    reserved = RESERVED_SETTINGS & set(spec.settings)
    if reserved:
        yield f"the driver sets {', '.join(sorted(reserved))}, for each node its own"
    if spec.driver == "local" and "kafka_listen" in spec.settings:
        yield "the local driver chooses `kafka_listen`"
    if spec.log is not None and spec.settings.get("auto_create_topics"):
        yield "a cluster of exactly one log must not create topics by itself"
    try:
        is_same = tomllib.loads(settings_text(spec.settings)) == spec.settings
    except (tomllib.TOMLDecodeError, TypeError):
        is_same = False
    if not is_same:
        yield "`settings` takes text, numbers, booleans, lists and tables"


def _conflicts(fleet: FleetSpec) -> Iterator[str]:
    """Faults between clusters."""
    seen: dict[tuple[str, object], str] = {}
    releases: dict[str, ClusterSpec] = {}
    for spec in fleet.cluster:
        claims: list[tuple[str, object]] = [("name", spec.name)]
        claims += [("log", log) for log in spec.listed]
        if spec.driver == "local":
            claims.append(("dir", spec.dir))
            if spec.base_port != 0:
                first = spec.base_port or BASE_PORT_DEFAULT
                claims += [("port", port) for port in range(first, first + spec.size)]
        claims += [("address", (machine.name, spec.port)) for machine in spec.machines]
        for claim in claims:
            if claim in seen:
                what, value = claim
                yield f"{what} {_shown(value)} is used by clusters {seen[claim]} and {spec.name}"
            seen[claim] = spec.name
        for machine in spec.machines:
            other = releases.setdefault(machine.name, spec)
            if (other.release, other.version) != (spec.release, spec.version):
                yield (
                    f"host {machine.name} has one release: clusters {other.name} and {spec.name} "
                    "name different ones"
                )
    home = fleet.home
    if fleet.fleet.home is not None and home is None:
        yield f"home {fleet.fleet.home!r} is none of the clusters"
    if home is not None and home.log is not None:
        yield f"home {home.name} keeps the catalog, so it is no cluster of exactly one log"


def _shown(value: object) -> str:
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)
