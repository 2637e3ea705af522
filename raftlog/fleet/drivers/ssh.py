"""Driver `ssh`: one node of the cluster on each host, as the unit `raftlog@CLUSTER-ID`.

The settings of a node, `/etc/raftlog/CLUSTER-ID.toml`, are its membership here: a host with such a
file has the node. Its first line says whether the cluster was created: until then the first voters
have not all been ready together. A running node has the settings of its file, because the file is
written while the node is stopped.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from raftlog.cluster.manifest import host_port
from raftlog.fleet.drivers.driver import Machines, Tell
from raftlog.fleet.drivers.ssh_host import DATA, SECRET_PATH, SshHost
from raftlog.fleet.errors import FleetError, UnreachableError
from raftlog.fleet.files import FleetFiles
from raftlog.fleet.readiness import await_ready
from raftlog.fleet.release import Release, read_release
from raftlog.fleet.spec import ClusterSpec, HostEntry, settings_text
from raftlog.fleet.state import NodeState

HOSTS_AT_ONCE: Final = 16
LOG_LINES_SHOWN: Final = 8
SECRET_MODE: Final = 0o600
ORIGIN_KEYS: Final = ("voters", "join")
"""Settings of a first start. They stay: without these an emptied disk would begin a new cluster."""
REPLACE_KEY: Final = "replace"
"""Stays until the replaced node is ready: a disk that is lost later is a new decision."""
CREATED: Final = "# Written by `raftlog fleet apply`. The cluster is created.\n"
CREATING: Final = "# Written by `raftlog fleet apply`. The cluster is being created.\n"


@dataclass(frozen=True, slots=True)
class _Found:
    """A node's place."""

    host: str
    name: str
    settings: Mapping[str, Any]
    is_created: bool

    @property
    def origin(self) -> Mapping[str, Any]:
        """The settings of the node's first start."""
        return {key: self.settings[key] for key in ORIGIN_KEYS if key in self.settings}


async def with_release(spec: ClusterSpec) -> tuple[ClusterSpec, Release | None]:
    """The cluster with the version of its release. Raises FleetError, OSError."""
    if spec.release is None:
        return spec, None
    release = await asyncio.to_thread(read_release, Path(spec.release))
    return replace(spec, version=release.version), release


class SshDriver:
    """The nodes of one cluster on its hosts."""

    def __init__(
        self,
        spec: ClusterSpec,
        release: Release | None,
        past: Sequence[HostEntry],
        files: FleetFiles,
        tell: Tell,
    ) -> None:
        """`past`: hosts of earlier runs, which may have nodes still."""
        self._spec = spec
        self._release = release
        self._files = files
        self._tell = tell
        self._entries = {machine.name: machine for machine in (*past, *spec.machines)}
        try:
            self._hosts = {name: SshHost(one.address) for name, one in self._entries.items()}
        except ValueError as error:
            raise FleetError(f"cluster {spec.name}: {error}") from error
        self._name = re.compile(rf"{re.escape(spec.name)}-([1-9][0-9]{{0,9}})")
        self._slots = asyncio.Semaphore(HOSTS_AT_ONCE)
        self._secret_lock = asyncio.Lock()
        self._found: dict[int, _Found] = {}

    async def close(self) -> None:
        """End the kept connections."""
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    async def look(self) -> Machines:
        """Find the nodes by the settings on the hosts."""
        names = sorted(self._hosts)
        answers = await asyncio.gather(*map(self._look_at, names), return_exceptions=True)
        nodes: list[NodeState] = []
        unreachable: dict[str, str] = {}
        self._found = {}
        for name, answer in zip(names, answers, strict=True):
            match answer:
                case UnreachableError():
                    unreachable[name] = answer.detail
                case BaseException():
                    raise answer
                case _:
                    for node, found in answer:
                        nodes.append(node)
                        self._found[node.node_id] = found
        if not self._found and unreachable:
            host, reason = next(iter(unreachable.items()))
            raise UnreachableError(host, f"look for nodes of cluster {self._spec.name}", reason)
        current = {machine.name for machine in self._spec.machines}
        for host in sorted(unreachable.keys() - current):
            self._tell(f"host {host}, no longer in the file, does not answer: {unreachable[host]}")
        return Machines(
            tuple(sorted(nodes, key=lambda node: node.node_id)),
            is_created=bool(self._found) and all(one.is_created for one in self._found.values()),
            unreachable={host: why for host, why in unreachable.items() if host in current},
        )

    async def create(self) -> None:
        """Start the first voters together, wait until all are ready, then settle their files."""
        machines = self._spec.machines[: self._spec.voter_count]
        voters = ",".join(
            f"{number}@{self._address(one.name)}" for number, one in enumerate(machines, 1)
        )
        for node_id, found in sorted(self._found.items()):
            known = found.settings.get("voters", voters)
            if known != voters:
                raise FleetError(
                    f"cluster {self._spec.name} was begun with other voters: {known}",
                    f"Name the same first hosts in the same order, or give up node {node_id} of "
                    f"{found.host}: `raftlog@{found.name}` and its file in /etc/raftlog.",
                )
        numbered = list(enumerate(machines, 1))
        first = {"voters": voters}
        await _together(
            self._begin(node_id, one.name, first, head=CREATING) for node_id, one in numbered
        )
        addresses = {node_id: self._address(one.name) for node_id, one in numbered}
        await await_ready(addresses, self.failure, self._tell)
        await _together(self._configure(node_id, one.name, first) for node_id, one in numbered)

    async def start(self, node_ids: Sequence[int]) -> None:
        """Start nodes with the release and the settings of the file."""
        places = [(node_id, self._place(node_id)) for node_id in node_ids]
        await _together(self._begin(node_id, found.host, found.origin) for node_id, found in places)

    async def restart(self, node_id: int) -> None:
        """Stop a node, change release and settings, start the node again."""
        found = self._place(node_id)
        await self._prepare(found.host)
        await self._hosts[found.host].stop(found.name)
        await self._activate(found.host)
        await self._configure(node_id, found.host, found.origin)
        await self._hosts[found.host].start(found.name)

    async def join(self, host: str, servers: Sequence[str], known_ids: Sequence[int]) -> None:
        """Start a new node on a host."""
        kept = await asyncio.gather(*map(self._kept_ids, sorted(self._hosts)))
        node_id = max((*known_ids, *(number for ids in kept for number in ids)), default=0) + 1
        await self._begin(node_id, host, {"join": ",".join(servers)})

    async def replace(self, node_id: int, servers: Sequence[str]) -> None:
        """Start a node on an empty directory, in the place of the lost one; wait until ready."""
        found = self._place(node_id)
        host = self._hosts[found.host]
        if await host.has_data(found.name):
            raise FleetError(
                f"node {node_id} of cluster {self._spec.name} has data on {found.host}, in "
                f"{DATA}/{found.name}",
                "If it is damaged, stop the unit and move the directory away; only an empty "
                "directory takes the place of a lost one.",
            )
        await host.stop(found.name)
        join = {"join": ",".join(servers)}
        await self._begin(node_id, found.host, {**join, REPLACE_KEY: node_id})
        await await_ready({node_id: self._address(found.host)}, self.failure, self._tell)
        await self._configure(node_id, found.host, join)

    async def retire(self, node_id: int) -> str:
        """Stop a node and remove its settings; its data directory stays."""
        found = self._place(node_id)
        await self._hosts[found.host].uninstall(found.name)
        return f"its data directory is kept as {found.host}:{DATA}/{found.name}"

    async def stop_cluster(self) -> None:
        """Stop the nodes, one after the other."""
        for host, reason in (await self.look()).unreachable.items():
            raise UnreachableError(host, f"stop cluster {self._spec.name}", reason)
        for node_id, found in sorted(self._found.items()):
            self._tell(f"stopping node {node_id} on {found.host}")
            await self._hosts[found.host].stop(found.name)

    async def failure(self, node_id: int) -> str | None:
        """Why a node does not stay up; None while its process runs."""
        found = self._found.get(node_id)
        name = found.name if found else self._node_name(node_id)
        host = self._hosts[found.host if found else self._spec.machines[node_id - 1].name]
        status = await host.status(name)
        if status.is_active:
            return None
        lines = (await host.logs(name, LOG_LINES_SHOWN)).splitlines()
        ended = f"{status.state} ({status.result}, exit status {status.exit_status})"
        return "\n    ".join([f"{ended}; the end of its log:", *lines])

    async def _look_at(self, host: str) -> list[tuple[NodeState, _Found]]:
        async with self._slots:
            answer = []
            for name, text in (await self._hosts[host].configurations()).items():
                match = self._name.fullmatch(name)
                if match is None:
                    continue
                answer.append(await self._look_for(host, int(match[1]), name, text))
            return answer

    async def _look_for(
        self, host: str, node_id: int, name: str, text: str
    ) -> tuple[NodeState, _Found]:
        try:
            settings = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise FleetError(f"{host}: /etc/raftlog/{name}.toml is not TOML: {error}") from error
        status = await self._hosts[host].status(name)
        passing = (*ORIGIN_KEYS, REPLACE_KEY)
        lasting = {key: value for key, value in settings.items() if key not in passing}
        node = NodeState(
            node_id=node_id,
            address=str(settings.get("advertised", self._address(host))),
            host=host,
            is_running=status.is_active,
            why=None if status.is_active else f"its unit is {status.state}",
            version=status.version,
            has_settings=lasting == tomllib.loads(self._settings(node_id, host, {})),
            has_data=await self._hosts[host].has_data(name),
        )
        return node, _Found(host, name, settings, not text.startswith(CREATING))

    async def _begin(
        self, node_id: int, host: str, first: Mapping[str, Any], head: str = CREATED
    ) -> None:
        """Bring a host to its release, write the settings of a node, start the node."""
        await self._prepare(host)
        await self._activate(host)
        await self._configure(node_id, host, first, head)
        await self._hosts[host].start(self._node_name(node_id))

    async def _prepare(self, host: str) -> None:
        """Install release, unit and secret; nothing running changes."""
        machine = self._hosts[host]
        if self._release is not None and await machine.install(self._release):
            self._tell(f"{host}: installed release {self._release.version}")
        await machine.install_unit()
        known = await machine.read_file(SECRET_PATH)
        secret = await self._secret()
        if known is not None and known != secret:
            raise FleetError(
                f"{host}: {SECRET_PATH} is the secret of another fleet",
                f"If this fleet's is to be that one, copy the file to {self._files.path('secret')}",
            )
        await machine.write_file(SECRET_PATH, secret, SECRET_MODE)

    async def _secret(self) -> str:
        """The secret of the fleet's nodes: of the file, else that of the hosts, else a new one."""
        async with self._secret_lock:
            if (secret := self._files.secret()) is not None:
                return secret
            known = await asyncio.gather(*(h.read_file(SECRET_PATH) for h in self._hosts.values()))
            return self._files.ensure_secret(next((one for one in known if one), None))

    async def _activate(self, host: str) -> None:
        machine = self._hosts[host]
        if self._spec.version is not None:
            await machine.activate(self._spec.version)
        elif await machine.current() is None:
            raise FleetError(
                f"{host} has no release of raftlog",
                f"Give cluster {self._spec.name} a `release`: the directory of wheels that "
                "`scripts/deploy --wheels DIR` makes.",
            )

    async def _configure(
        self, node_id: int, host: str, first: Mapping[str, Any], head: str = CREATED
    ) -> None:
        text = head + self._settings(node_id, host, first)
        await self._hosts[host].configure(self._node_name(node_id), text)

    def _settings(self, node_id: int, host: str, first: Mapping[str, Any]) -> str:
        port = self._spec.port
        own: dict[str, Any] = {
            "node_id": node_id,
            "listen": host_port("::" if ":" in host else "0.0.0.0", port),
            "advertised": self._address(host),
            **first,
        }
        rack = self._entries[host].rack
        if rack is not None:
            own["rack"] = rack
        return settings_text({**self._spec.settings, **own})

    def _address(self, host: str) -> str:
        return host_port(host, self._spec.port)

    def _node_name(self, node_id: int) -> str:
        return f"{self._spec.name}-{node_id}"

    def _place(self, node_id: int) -> _Found:
        found = self._found.get(node_id)
        if found is None:
            raise FleetError(
                f"node {node_id} of cluster {self._spec.name} is on no host that answers",
                "Bring its host back; or take the host out of the file, if it is gone for good.",
            )
        return found

    async def _kept_ids(self, host: str) -> list[int]:
        """The ids of data directories on a host, of retired nodes, too; none if it is down."""
        try:
            listed = await self._hosts[host].run(f"ls -1 {DATA} 2>/dev/null || true")
        except UnreachableError as error:
            self._tell(f"{error}: data directories there are not counted")
            return []
        return [int(found[1]) for name in listed.split() if (found := self._name.fullmatch(name))]


async def _together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all side by side; raises the first failure once all have ended."""
    # No step is cut by the failure of another host.
    for answer in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
