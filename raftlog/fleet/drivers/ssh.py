"""Driver `ssh` runs one node on each host, as the unit `raftlog@CLUSTER-ID`.

The settings of a node, `/etc/raftlog/CLUSTER-ID.toml`, are its membership here. A host with such a
file has the node. Its first line shows whether the cluster was created. Until then the first voters
have not all been ready together. A running node has the settings of its file, because the file is
written while the node is stopped.

`scripts/deploy` has no file (`keeps_found`). The settings on the hosts are its only memory. They
are written once, and changes made there stay. All hosts must respond and run no other node.
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
from raftlog.cluster.membership import Probes
from raftlog.fleet.drivers.driver import Machines, Tell
from raftlog.fleet.drivers.ssh_host import DATA, SECRET_PATH, NodeStatus, SshHost
from raftlog.fleet.errors import FleetError, UnreachableError
from raftlog.fleet.files import FleetFiles
from raftlog.fleet.readiness import READY_TIMEOUT_S, await_ready
from raftlog.fleet.release import Release, read_release
from raftlog.fleet.spec import ClusterSpec, HostEntry, settings_text
from raftlog.fleet.state import NodeState

HOSTS_AT_ONCE: Final = 16
LOG_LINES_SHOWN: Final = 15
RESTARTS_MAX: Final = 3
"""Restarts of a node by systemd during one wait. A node with so many does not stay up."""
SECRET_MODE: Final = 0o600
ORIGIN_KEYS: Final = ("voters", "join")
"""Settings of a first start. Without these an emptied disk would start a new cluster."""
REPLACE_KEY: Final = "replace"
"""Setting that stays until the replaced node is ready. A disk lost later is a new decision."""
CREATED: Final = "# Written by `raftlog fleet apply`. The cluster is created.\n"
KEPT: Final = "# Written by scripts/deploy at the first start; later changes here are kept.\n"
CREATING: Final = "# Written by `raftlog fleet apply`. The cluster is being created.\n"


@dataclass(frozen=True, slots=True)
class _Found:
    """A node's place."""

    host: str
    name: str
    text: str
    settings: Mapping[str, Any]
    address: str
    version: str | None

    @property
    def is_created(self) -> bool:
        """Whether the creation of the cluster has ended."""
        return not self.text.startswith(CREATING)

    @property
    def origin(self) -> Mapping[str, Any]:
        """The settings of the node's first start."""
        return {key: self.settings[key] for key in ORIGIN_KEYS if key in self.settings}

    @property
    def lasting(self) -> Mapping[str, Any]:
        """The settings of every start."""
        passing = (*ORIGIN_KEYS, REPLACE_KEY)
        return {key: value for key, value in self.settings.items() if key not in passing}


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
        *,
        timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        """`past` are hosts of earlier runs, which may have nodes still.

        `timeout_s` bounds each wait for a node to become ready.
        """
        self._spec = spec
        self._release = release
        self._files = files
        self._tell = tell
        self._entries = {machine.name: machine for machine in (*past, *spec.machines)}
        try:
            self._hosts = {name: SshHost(entry.address) for name, entry in self._entries.items()}
        except ValueError as error:
            raise FleetError(f"cluster {spec.name}: {error}") from error
        self._name = re.compile(rf"{re.escape(spec.name)}-([1-9][0-9]{{0,9}})")
        self._slots = asyncio.Semaphore(HOSTS_AT_ONCE)
        self._secret_lock = asyncio.Lock()
        self._found: dict[int, _Found] = {}
        self._places: dict[int, str] = {}
        """The host of each node that this driver has started."""
        self._restarts: dict[int, int] = {}
        """Restarts by systemd at the first inspection of a started node."""
        self._timeout_s = timeout_s

    async def close(self) -> None:
        """End the kept connections."""
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    async def inspect(self) -> Machines:
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
                        other = self._found.get(node.node_id)
                        if other is not None and self._spec.keeps_found:
                            raise FleetError(
                                f"{other.host} and {found.host} both run node {node.node_id} of "
                                f"cluster {self._spec.name}: hosts of different clusters were named"
                            )
                        nodes.append(node)
                        self._found[node.node_id] = found
        if unreachable and (not self._found or self._spec.keeps_found):
            host, reason = next(iter(unreachable.items()))
            raise UnreachableError(host, f"look for nodes of cluster {self._spec.name}", reason)
        current = {machine.name for machine in self._spec.machines}
        for host in sorted(unreachable.keys() - current):
            self._tell(f"host {host}, no longer in the file, does not answer: {unreachable[host]}")
        return Machines(
            tuple(sorted(nodes, key=lambda node: node.node_id)),
            is_created=bool(self._found)
            and all(found.is_created for found in self._found.values()),
            unreachable={host: why for host, why in unreachable.items() if host in current},
        )

    async def create(self) -> None:
        """Start the first voters together, wait until all are ready, then settle their files."""
        machines = self._spec.machines[: self._spec.voter_count]
        voters = self._voters()
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
        await await_ready(addresses, self, self._tell, self._timeout_s)
        await _together(self._configure(node_id, one.name, first) for node_id, one in numbered)

    async def provide(self) -> None:
        """Bring release, unit and secret to all hosts in parallel. Nothing running changes."""
        await self._secret()
        await _together(self._prepare(machine.name) for machine in self._spec.machines)

    async def start(self, node_ids: Sequence[int]) -> None:
        """Start nodes with the release and the settings of the file."""
        before: dict[int, str | None] = {}

        async def begin(node_id: int) -> None:
            found = self._place(node_id)
            first = None if self._spec.keeps_found else found.origin
            before[node_id] = await self._begin(node_id, found.host, first)

        await _together(map(begin, node_ids))
        await self._ready_or_back(before)

    async def restart(self, node_id: int) -> None:
        """Stop a node, change release and settings, start the node again."""
        found = self._place(node_id)
        host = self._hosts[found.host]
        await self._prepare(found.host)
        if not self._spec.keeps_found:
            await host.stop(found.name)
            await self._configure(node_id, found.host, found.origin)
        before = await self._activate(found.host)
        self._restarts.pop(node_id, None)
        await host.restart(found.name)
        # An earlier run may have ended between the change of release and the restart.
        await self._ready_or_back({node_id: found.version or before})

    async def join(self, host: str, servers: Sequence[str], known_ids: Sequence[int]) -> None:
        """Start a new node on a host."""
        kept = await asyncio.gather(*map(self._kept_ids, sorted(self._hosts)))
        node_id = max((*known_ids, *(number for ids in kept for number in ids)), default=0) + 1
        await self._begin(node_id, host, {"join": ",".join(servers)})

    async def replace(self, node_id: int, servers: Sequence[str], host: str) -> None:
        """Start a node on an empty directory, in the place of a lost node.

        Waits until ready.
        """
        host = host or self._place(node_id).host
        machine, name = self._hosts[host], self._node_name(node_id)
        if await machine.has_data(name):
            raise FleetError(
                f"node {node_id} of cluster {self._spec.name} has data on {host}, in {DATA}/{name}",
                "If it is damaged, stop the unit and move the directory away; only an empty "
                "directory takes the place of a lost one.",
            )
        # The host is prepared before the stop, as systemd does not know the unit on an empty host.
        await self._prepare(host)
        await machine.stop(name)
        join = {"join": ",".join(servers)}
        first = {**join, REPLACE_KEY: node_id}
        await self._begin(node_id, host, first, keeps_current=self._spec.keeps_found)
        address = {node_id: self._address(host, node_id)}
        await await_ready(address, self, self._tell, self._timeout_s)
        await self._configure(node_id, host, join)

    async def retire(self, node_id: int) -> str:
        """Stop a node and remove its settings. Its data directory stays."""
        found = self._place(node_id)
        await self._hosts[found.host].uninstall(found.name)
        return f"its data directory is kept as {found.host}:{DATA}/{found.name}"

    async def stop_cluster(self) -> None:
        """Stop the nodes in sequence, the controller last."""
        for host, reason in (await self.inspect()).unreachable.items():
            raise UnreachableError(host, f"stop cluster {self._spec.name}", reason)
        probes = Probes()
        try:
            # Every other order elects a successor in between.
            last = await probes.controller(*(found.address for found in self._found.values()))
        finally:
            await probes.close()
        for node_id, found in sorted(
            self._found.items(), key=lambda item: (item[0] == last, item[0])
        ):
            self._tell(f"stopping node {node_id} on {found.host}")
            await self._hosts[found.host].stop(found.name)

    async def failure(self, node_id: int) -> str | None:
        """Why a node does not stay up, or None while its process runs."""
        status, restarts = await self._watched(node_id)
        if status.is_active and restarts < RESTARTS_MAX:
            return None
        ended = f"{status.state} ({status.result}, exit status {status.exit_status})"
        return f"{ended}; {await self.log_end(node_id)}"

    async def _watched(self, node_id: int) -> tuple[NodeStatus, int]:
        """A unit, and its restarts by systemd since its first inspection."""
        status = await self._hosts[self._host_of(node_id)].status(self._node_name(node_id))
        return status, status.restarts - self._restarts.setdefault(node_id, status.restarts)

    async def log_end(self, node_id: int) -> str:
        """The end of a node's log, with its title."""
        host = self._hosts[self._host_of(node_id)]
        lines = (await host.logs(self._node_name(node_id), LOG_LINES_SHOWN)).splitlines()
        return "\n    ".join(["the end of its log:", *lines])

    def preview(self, node_id: int, host: str, lost: int | None) -> str:
        """The settings file of a node, as found or as a first start writes it."""
        found = self._found.get(node_id)
        if found is not None and node_id != lost:
            return found.text
        voters = self._spec.machines[: self._spec.voter_count]
        addresses = [one.address for n, one in self._found.items() if n != lost]
        if not addresses and host in [voter.name for voter in voters]:
            return KEPT + self._settings(node_id, host, {"voters": self._voters()})
        servers = addresses or [self._address(voter.name) for voter in voters]
        first: dict[str, Any] = {"join": ",".join(servers)}
        if node_id == lost:
            first[REPLACE_KEY] = node_id
        return KEPT + self._settings(node_id, host, first)

    async def _look_at(self, host: str) -> list[tuple[NodeState, _Found]]:
        async with self._slots:
            answer = []
            texts = await self._hosts[host].configurations()
            if self._spec.keeps_found and len(texts) > 1:
                raise FleetError(
                    f"{host} runs {', '.join(sorted(texts))}: scripts/deploy knows one node a "
                    "host; `raftlog fleet` manages others"
                )
            for name, text in texts.items():
                match = self._name.fullmatch(name)
                if match is None and self._spec.keeps_found:
                    raise FleetError(f"{host}:/etc/raftlog/{name}.toml is not of scripts/deploy")
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
        if self._spec.keeps_found and (
            settings.get("node_id") != node_id or not isinstance(settings.get("advertised"), str)
        ):
            raise FleetError(
                f"{host}:/etc/raftlog/{name}.toml is not of scripts/deploy: it has `advertised`, "
                f"and `node_id = {node_id}`"
            )
        status = await self._hosts[host].status(name)
        address = str(settings.get("advertised", self._address(host)))
        found = _Found(
            host=host,
            name=name,
            text=text,
            settings=settings,
            address=address,
            version=status.version,
        )
        node = NodeState(
            node_id=node_id,
            address=address,
            host=host,
            is_running=status.is_active,
            why=None if status.is_active else f"its unit is {status.state}",
            version=status.version,
            has_settings=self._spec.keeps_found
            or found.lasting == tomllib.loads(self._settings(node_id, host, {})),
            has_data=await self._hosts[host].has_data(name),
        )
        return node, found

    async def _begin(
        self,
        node_id: int,
        host: str,
        first: Mapping[str, Any] | None,
        head: str | None = None,
        *,
        keeps_current: bool = False,
    ) -> str | None:
        """Bring a host to its release, write the settings of a node, start the node.

        `first` are the settings of the first start. With None the settings file stays as it is.
        With `keeps_current`, the release of the host stays, if there is one. Returns the release
        before.
        """
        self._places[node_id] = host
        self._restarts.pop(node_id, None)
        await self._prepare(host)
        before = await self._activate(host, keeps_current=keeps_current)
        if first is not None:
            await self._configure(node_id, host, first, head)
        await self._hosts[host].start(self._node_name(node_id))
        return before

    async def _ready_or_back(self, before: Mapping[int, str | None]) -> None:
        """Wait until nodes are ready. Without a file, else give them the release before again.

        Raises FleetError if a node does not become ready.
        """
        if not self._spec.keeps_found:
            return
        version = self._spec.version
        try:
            await self._await_ready(before)
        except FleetError as error:
            back = {n: old for n, old in before.items() if old is not None and old != version}
            if len(before) > 1:
                # Others may serve by now, and a second node must not stop beside the broken node.
                back = {n: old for n, old in back.items() if await self._is_broken(n)}
            if not back:
                raise
            for node_id, old in back.items():
                self._tell(f"node {node_id} does not become ready with {version}: back to {old}")
                host = self._hosts[self._host_of(node_id)]
                await host.activate(old)
                self._restarts.pop(node_id, None)
                await host.restart(self._node_name(node_id))
            await self._await_ready(back)
            named = ", ".join(f"node {node_id} runs {old} again" for node_id, old in back.items())
            raise FleetError(
                f"release {version} does not become ready, and {named}: {error}"
            ) from error

    async def _is_broken(self, node_id: int) -> bool:
        status, restarts = await self._watched(node_id)
        return not status.is_active or restarts > 0

    async def _await_ready(self, node_ids: Iterable[int]) -> None:
        addresses = {node_id: self._place(node_id).address for node_id in node_ids}
        await await_ready(addresses, self, self._tell, self._timeout_s)

    async def _prepare(self, host: str) -> None:
        """Install release, unit and secret. Nothing running changes."""
        machine = self._hosts[host]
        secret = await self._secret()
        if self._release is not None and await machine.install(self._release):
            self._tell(f"{host}: installed release {self._release.version}")
        await machine.install_unit()
        known = await machine.read_file(SECRET_PATH)
        if known is not None and known != secret:
            raise FleetError(
                f"{host}: {SECRET_PATH} is the secret of another fleet",
                f"If this fleet's is to be that one, copy the file to {self._files.path('secret')}",
            )
        await machine.write_file(SECRET_PATH, secret, SECRET_MODE)

    async def _secret(self) -> str:
        """The secret of the fleet's nodes, from the file, the hosts, or newly made."""
        async with self._secret_lock:
            if (secret := self._files.secret()) is not None:
                return secret
            texts = await asyncio.gather(*(h.read_file(SECRET_PATH) for h in self._hosts.values()))
            known = {name: one for name, one in zip(self._hosts, texts, strict=True) if one}
            if len(set(known.values())) > 1:
                raise FleetError(
                    f"the secrets of {', '.join(known)} differ: are these hosts of one cluster?",
                    f"The same file {SECRET_PATH} belongs on all of them.",
                )
            return self._files.ensure_secret(next(iter(known.values()), None))

    async def _activate(self, host: str, *, keeps_current: bool = False) -> str | None:
        """Have the next start on a host use the cluster's release. Return the release before."""
        machine = self._hosts[host]
        version = self._spec.version
        if version is None or keeps_current:
            current = await machine.current()
            if current is not None:
                return current
        if version is None:
            raise FleetError(
                f"{host} has no release of raftlog",
                f"Give cluster {self._spec.name} a `release`: the directory of wheels that "
                "`scripts/deploy --wheels DIR` makes.",
            )
        return await machine.activate(version)

    async def _configure(
        self, node_id: int, host: str, first: Mapping[str, Any], head: str | None = None
    ) -> None:
        head = head or (KEPT if self._spec.keeps_found else CREATED)
        text = head + self._settings(node_id, host, first)
        await self._hosts[host].configure(self._node_name(node_id), text)

    def _settings(self, node_id: int, host: str, first: Mapping[str, Any]) -> str:
        found = self._found.get(node_id)
        if self._spec.keeps_found and found is not None and found.host == host:
            return settings_text({**found.lasting, **first})
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

    def _address(self, host: str, node_id: int = 0) -> str:
        """The address of a node by its settings, or by the port of new nodes."""
        found = self._found.get(node_id)
        if found is not None and found.host == host:
            return found.address
        return host_port(host, self._spec.port)

    def _voters(self) -> str:
        """The first voters of a new cluster."""
        machines = self._spec.machines[: self._spec.voter_count]
        return ",".join(
            f"{number}@{self._address(one.name)}" for number, one in enumerate(machines, 1)
        )

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

    def _host_of(self, node_id: int) -> str:
        """The host where a node was found, or where this driver has started the node."""
        if node_id in self._found:
            return self._found[node_id].host
        return self._places.get(node_id) or self._place(node_id).host

    async def _kept_ids(self, host: str) -> list[int]:
        """The ids of data directories on a host, also of retired nodes.

        None of them if the host is down.
        """
        try:
            listed = await self._hosts[host].run(f"ls -1 {DATA} 2>/dev/null || true")
        except UnreachableError as error:
            self._tell(f"{error}: data directories there are not counted")
            return []
        return [int(found[1]) for name in listed.split() if (found := self._name.fullmatch(name))]


async def _together(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Run all in parallel. Raises the first failure once all have ended."""
    # No step is cut by the failure of another host.
    for answer in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
