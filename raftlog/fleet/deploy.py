"""`scripts/deploy` keeps a cluster on hosts by the fleet's ssh driver.

The hosts are the only memory of a deployment. A node keeps its settings file, and a host without a
node gets the next free number. So every command reads the hosts first, may be repeated, and
continues a run that was cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from raftlog.cluster.manifest import BASE_PORT_DEFAULT
from raftlog.fleet.drivers.driver import Machines, Tell
from raftlog.fleet.drivers.ssh import SshDriver
from raftlog.fleet.drivers.ssh_host import SshHost
from raftlog.fleet.errors import FleetError
from raftlog.fleet.files import FleetFiles
from raftlog.fleet.plan import after
from raftlog.fleet.readiness import READY_TIMEOUT_S
from raftlog.fleet.reconciler import Fleet
from raftlog.fleet.release import Release
from raftlog.fleet.spec import ClusterSpec, FleetSpec, HostEntry, resolved
from raftlog.fleet.steps import ClusterStep, line

PORT_DEFAULT: Final = BASE_PORT_DEFAULT
NAME: Final = "node"
"""The cluster's name. Its units are `raftlog@node-N`."""


class DeployedCluster(ClusterSpec, frozen=True, kw_only=True):
    """The cluster of a command line."""

    keeps_found: ClassVar[bool] = True

    def replacing(self, node_id: int) -> str:
        """The command that replaces a node with a lost disk."""
        return f"scripts/deploy --replace {node_id} HOST..."


def cluster_of(words: Sequence[str], port: int = PORT_DEFAULT) -> DeployedCluster:
    """The cluster on these hosts, each `[user@]host[:port][=address]`. Raises FleetError."""
    hosts = []
    for word in words:
        address, _, host = word.partition("=")
        hosts.append({"address": address, "host": host or None})
    written = {"driver": "ssh", "name": NAME, "hosts": hosts, "port": port}
    try:
        spec = msgspec.convert(written, DeployedCluster)
    except msgspec.ValidationError as error:
        raise FleetError(f"the hosts of a cluster: {error}") from error
    return resolved(spec, 1, Path())


class Deployment:
    """The hosts of one cluster. Open by `open_deployment`."""

    def __init__(
        self, spec: DeployedCluster, found: Machines, work: Path, tell: Tell, timeout_s: float
    ) -> None:
        """Use `work`, an empty directory. `timeout_s` bounds each wait for a node."""
        self._spec = spec
        self._found = found
        self._files = FleetFiles(work / "cluster")
        self._tell = tell
        self._timeout_s = timeout_s

    async def preview(self, lost: int | None = None) -> list[str]:
        """The lines of a plan, with steps and the settings of each node. Raises FleetError."""
        self._check_lost(lost)
        async with self._fleet(self._spec, None) as (fleet, driver):
            (report,) = await fleet.report(_lost(lost))
            if report.error is not None or report.state is None or report.problems:
                raise report.error or FleetError("; ".join(report.problems))
            state = report.state
            for step in report.steps:
                if isinstance(step, ClusterStep):
                    state = after(self._spec, state, step)
            lines = [line(step) for step in report.steps]
            for machine in self._spec.machines:
                for node in state.nodes:
                    if node.is_managed and node.host == machine.name:
                        kind = "new" if machine.name in self._missing else "kept"
                        lines.append(f"{machine.address}: {NAME}-{node.node_id} ({kind})")
                        text = driver.preview(node.node_id, machine.name, lost)
                        lines += [f"    {row}" for row in text.splitlines()]
            return lines

    async def up(self, release: Release) -> list[str]:
        """Start a node on every host, and wait until all are ready. Return their addresses.

        Running nodes keep their release. Raises FleetError.
        """
        addresses, _ = await self._apply(release, self._spec)
        return addresses

    async def upgrade(self, release: Release) -> list[str]:
        """Restart every node with the release, one by one. Return the addresses of all.

        A node that does not become ready gets its earlier release back, and the upgrade ends.
        Raises FleetError.
        """
        self._check_complete()
        addresses, steps = await self._apply(release, replace(self._spec, version=release.version))
        if not steps:
            self._tell(f"every node runs {release.version}: nothing to do")
        return addresses

    async def replace(self, node_id: int, release: Release) -> list[str]:
        """Start a lost node again on an empty disk, and wait until it is whole.

        Returns all addresses. Raises FleetError.
        """
        self._check_lost(node_id)
        addresses, _ = await self._apply(release, self._spec, node_id)
        return addresses

    async def down(self) -> None:
        """Stop every node, one by one. Data and settings stay. Raises FleetError."""
        self._check_complete()
        async with self._fleet(self._spec, None) as (_, driver):
            await driver.stop_cluster()

    async def _apply(
        self, release: Release, spec: DeployedCluster, lost: int | None = None
    ) -> tuple[list[str], int]:
        """The addresses of all nodes, and how many steps were taken.

        The version of `spec` is that of every node. Without a version running nodes keep theirs.
        """
        async with self._fleet(spec, release) as (fleet, driver):
            if lost is None:
                await driver.provide()
            steps = await fleet.apply(_lost(lost))
            nodes = {node.host: node for node in (await driver.inspect()).nodes}
        for node in nodes.values():
            if node.version not in (None, release.version):
                self._tell(
                    f"{NAME}-{node.node_id} on {node.host} runs {node.version}, and the release "
                    f"here is {release.version}: --upgrade brings it"
                )
        return [nodes[machine.name].address for machine in spec.machines], steps

    @asynccontextmanager
    async def _fleet(
        self, spec: DeployedCluster, release: Release | None
    ) -> AsyncIterator[tuple[Fleet, SshDriver]]:
        version = None if release is None else release.version
        own = replace(self._spec, version=version)
        driver = SshDriver(own, release, (), self._files, self._tell, timeout_s=self._timeout_s)
        fleet = Fleet(
            FleetSpec((spec,)), self._files, {NAME: driver}, self._tell, timeout_s=self._timeout_s
        )
        try:
            yield fleet, driver
        finally:
            await driver.close()

    @property
    def _missing(self) -> list[str]:
        """The hosts without a node."""
        have = {node.host for node in self._found.nodes}
        return [machine.name for machine in self._spec.machines if machine.name not in have]

    def _check_complete(self) -> None:
        if self._missing:
            raise FleetError(
                f"{', '.join(self._missing)} runs no node: scripts/deploy without options first"
            )

    def _check_lost(self, lost: int | None) -> None:
        """Raise FleetError unless exactly one host may take a lost node."""
        if lost is None:
            return
        others = [node for node in self._found.nodes if node.node_id != lost]
        free = len(self._spec.machines) - len(others)
        if free != 1:
            raise FleetError(
                f"node {lost} goes to the only host that runs no other node, and there are {free} "
                "of these: name all hosts of the cluster, and the new host among them"
            )
        if not others:
            raise FleetError("no other node is left: there is no cluster to take the place in")
        if any(node.node_id == lost and node.has_data for node in self._found.nodes):
            raise FleetError(
                f"{NAME}-{lost} has its data: there is nothing to replace",
                "Data that cannot be used any more: move it away first.",
            )


@asynccontextmanager
async def open_deployment(
    spec: DeployedCluster,
    work: Path,
    tell: Tell,
    *,
    rack_from: str | None = None,
    timeout_s: float = READY_TIMEOUT_S,
) -> AsyncIterator[Deployment]:
    """Read the hosts. `rack_from` is a command that prints the rack of a new host there.

    Raises FleetError.
    """
    driver = SshDriver(spec, None, (), FleetFiles(work / "cluster"), tell)
    try:
        found = await driver.inspect()
    finally:
        await driver.close()
    have = {node.host for node in found.nodes}

    async def with_rack(machine: HostEntry) -> HostEntry:
        if rack_from is None or machine.name in have:
            return machine
        async with SshHost(machine.address) as host:
            return replace(machine, rack=await host.run(rack_from))

    machines = await asyncio.gather(*map(with_rack, spec.machines))
    yield Deployment(replace(spec, hosts=tuple(machines)), found, work, tell, timeout_s)


def _lost(node_id: int | None) -> dict[str, set[int]]:
    return {} if node_id is None else {NAME: {node_id}}
