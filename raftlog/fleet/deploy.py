"""A cluster on hosts reached by ssh: set up, upgraded by the node, stopped, a lost node replaced.

Every change begins by reading the hosts, may be repeated, and continues a run that was cut. Steps
on several hosts run side by side, except those that take a node down: these go one by one, each
after the cluster's metadata has shown that no partition needs the node.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self, TypeVar

from raftlog_client import Admin, RaftlogClientError

from raftlog.cluster.membership import Probes, admin_of
from raftlog.fleet.deploy_plan import (
    HostState,
    NodePlan,
    Target,
    common_secret,
    next_to_restart,
    plan,
    plan_replacement,
)
from raftlog.fleet.drivers.ssh_host import SECRET_PATH, NodeStatus, SshHost
from raftlog.fleet.errors import FleetError
from raftlog.fleet.partitions import partition_states
from raftlog.fleet.release import Release
from raftlog.fleet.safety import PartitionState, Verdict, may_stop

SECRET_BYTES: Final = 32
POLL_S: Final = 0.25
STATUS_EVERY: Final = 8
"""Of the polls of a node's `/ready`, each so-manieth looks at its unit, too."""
PARTITIONS_NAMED_MAX: Final = 5
LOG_LINES_SHOWN: Final = 15
RESTARTS_MAX: Final = 3
"""By systemd, of a node that is waited for: after so many ends it does not become ready."""

T = TypeVar("T")
R = TypeVar("R")
Say = Callable[[str], None]


class Deployment:
    """The hosts of one cluster. An async context manager: connections are kept until its end."""

    def __init__(self, targets: Sequence[Target], say: Say, *, timeout_s: float) -> None:
        """`say` gets a line for each step; `timeout_s` bounds each wait for a node."""
        self._targets = tuple(targets)
        self._hosts = {target: SshHost(target.ssh) for target in targets}
        self._say = say
        self._timeout_s = timeout_s
        self._stack = AsyncExitStack()
        self._probes: Probes | None = None

    async def __aenter__(self) -> Self:
        self._probes = Probes()
        self._stack.push_async_callback(self._probes.close)
        for host in self._hosts.values():
            self._stack.push_async_callback(host.close)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def inspect(self, rack_from: str | None = None) -> list[HostState]:
        """Read the hosts. `rack_from` is a command that prints a host's rack there.

        Raises HostError.
        """

        async def look(target: Target) -> HostState:
            host = self._hosts[target]
            return HostState(
                target,
                settings=await host.configurations(),
                secret=await host.read_file(SECRET_PATH),
                current=await host.current(),
                rack=None if rack_from is None else await host.run(rack_from),
            )

        return await _each(self._targets, look)

    async def up(self, states: Sequence[HostState], release: Release, port: int) -> list[str]:
        """Start a node on every host, and wait until all are ready; their addresses.

        A running node is left as it is. Raises FleetError.
        """
        nodes = plan(states, port)
        await self._provide(nodes, release, common_secret(states))

        async def start(node: NodePlan) -> None:
            host = self._hosts[node.target]
            if node.is_new:
                await host.configure(node.name, node.settings)
            status = await host.status(node.name)
            if status.is_active:
                if status.version != release.version:
                    self._say(
                        f"{node.name} on {node.target.ssh} runs {status.version}, and the release "
                        f"here is {release.version}: --upgrade brings it"
                    )
                return
            await host.activate(release.version)
            await host.start(node.name)
            self._say(f"{node.name} on {node.target.ssh} starts")

        await _each(nodes, start)
        await _each(nodes, self._wait_ready)
        return [node.address for node in nodes]

    async def upgrade(self, states: Sequence[HostState], release: Release) -> list[str]:
        """Restart every node with the release, one by one; the addresses of all.

        A node that does not become ready gets its earlier release back, and the upgrade ends.
        Raises FleetError.
        """
        nodes = _known(states)
        await self._provide(nodes, release, common_secret(states))
        statuses = dict(zip(nodes, await self._statuses(nodes), strict=True))
        remaining = [node for node in nodes if statuses[node].version != release.version]
        # A node that is down costs nothing, and the others wait until all are ready.
        remaining.sort(key=lambda node: statuses[node].is_active)
        if not remaining:
            self._say(f"every node runs {release.version}: nothing to do")
        async with admin_of([node.address for node in nodes]) as admin:
            while remaining:
                controller = await self._probe.controller(*(node.address for node in nodes))
                node = next_to_restart(remaining, controller)
                remaining.remove(node)
                if statuses[node].is_active:
                    await self._wait_may_stop(admin, node, nodes)
                await self._restart(node, release, statuses[node].version)
        return [node.address for node in nodes]

    async def down(self, states: Sequence[HostState]) -> None:
        """Stop every node, one by one; data and settings stay. Raises FleetError."""
        nodes = _known(states)
        # Any other order would cause an election in between.
        controller = await self._probe.controller(*(node.address for node in nodes))
        for node in sorted(nodes, key=lambda one: one.node_id == controller):
            await self._hosts[node.target].stop(node.name)
            self._say(f"{node.name} on {node.target.ssh} has stopped")

    async def replace(
        self, states: Sequence[HostState], node_id: int, release: Release, port: int
    ) -> list[str]:
        """Start a lost node again on an empty disk, and wait until it is whole; all addresses.

        Raises FleetError.
        """
        planned = plan_replacement(states, node_id, port)
        first, later = planned.first, planned.later
        host = self._hosts[first.target]
        if await host.has_data(first.name):
            raise FleetError(
                f"{first.name} has its data on {first.target.ssh}: there is nothing to replace. "
                "Data that cannot be used any more: move it away first"
            )
        await self._provide([first], release, common_secret(states))
        await host.stop(first.name)
        await host.configure(first.name, first.settings)
        if await host.current() is None:
            await host.activate(release.version)
        await host.start(first.name)
        self._say(f"{first.name} on {first.target.ssh} starts in the place of the lost one")
        await self._wait_ready(first)
        # Without the consent to be replaced: a disk that is lost later is a new decision.
        await host.configure(later.name, later.settings)
        return [node.address for node in (*planned.others, first)]

    @property
    def _probe(self) -> Probes:
        assert self._probes is not None, "the deployment has not been opened"
        return self._probes

    async def _provide(
        self, nodes: Iterable[NodePlan], release: Release, secret: str | None
    ) -> None:
        """Bring release, unit and secret to the hosts, without a change to running nodes."""
        common = secret or f"{secrets.token_hex(SECRET_BYTES)}\n"

        async def provide(node: NodePlan) -> None:
            host = self._hosts[node.target]
            if await host.install(release):
                self._say(f"{node.target.ssh} has release {release.version}")
            await host.install_unit()
            await host.write_file(SECRET_PATH, common, 0o600)

        await _each(nodes, provide)

    async def _restart(self, node: NodePlan, release: Release, running: str | None) -> None:
        """Restart a node with the release; with the one before if it does not become ready."""
        host = self._hosts[node.target]
        before = await host.activate(release.version)
        if running is not None:
            # An earlier run may have ended between the change of release and the restart.
            before = running
        try:
            await host.restart(node.name)
            await self._wait_ready(node)
        except FleetError as error:
            if before is None or before == release.version:
                raise
            self._say(f"{node.name} does not become ready: back to {before}")
            await host.activate(before)
            await host.restart(node.name)
            await self._wait_ready(node)
            raise FleetError(
                f"{node.name} did not become ready with {release.version}, and runs {before} "
                f"again: {error}"
            ) from error
        self._say(f"{node.name} on {node.target.ssh} runs {release.version}")

    async def _statuses(self, nodes: Iterable[NodePlan]) -> list[NodeStatus]:
        return await _each(nodes, lambda node: self._hosts[node.target].status(node.name))

    async def _wait_ready(self, node: NodePlan) -> None:
        """Wait until the node answers `/ready`. Raises FleetError with the end of its log."""
        host = self._hosts[node.target]
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        polls = 0
        while (reason := await self._probe.why_not_ready(node.address)) is not None:
            polls += 1
            has_failed = False
            if polls % STATUS_EVERY == 0:
                status = await host.status(node.name)
                has_failed = status.restarts >= RESTARTS_MAX or (
                    not status.is_active and status.state in ("inactive", "failed")
                )
            if has_failed or loop.time() > deadline_s:
                log = await host.logs(node.name, LOG_LINES_SHOWN)
                raise FleetError(
                    f"{node.name} on {node.target.ssh} is not ready at {node.address}: {reason}. "
                    f"The end of its log:\n{log}"
                )
            await asyncio.sleep(POLL_S)

    async def _wait_may_stop(self, admin: Admin, node: NodePlan, nodes: Sequence[NodePlan]) -> None:
        """Wait until all others are ready, and no partition needs the node. Raises FleetError."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        while True:
            reason = None
            for other in nodes:
                why = None if other == node else await self._probe.why_not_ready(other.address)
                reason = reason or (why and f"{other.name} is not ready: {why}")
            if reason is None:
                try:
                    verdict = may_stop(
                        node.node_id, await partition_states(admin, await admin.describe_topics())
                    )
                except RaftlogClientError as error:
                    reason = f"the cluster does not answer: {error}"
                else:
                    if not verdict.blocked:
                        self._name_passed(node, verdict)
                        return
                    reason = f"needed by {_named(verdict.blocked)}"
            if loop.time() > deadline_s:
                raise FleetError(f"{node.name} on {node.target.ssh} may not stop: {reason}")
            await asyncio.sleep(POLL_S)

    def _name_passed(self, node: NodePlan, verdict: Verdict) -> None:
        if verdict.passed:
            self._say(
                f"{node.name}: {_named(verdict.passed)} will reject acks=all while it restarts: "
                "these have no more replicas than they need in sync"
            )


def _known(states: Sequence[HostState]) -> list[NodePlan]:
    """The nodes that the hosts have. Raises FleetError."""
    missing = [state.target.ssh for state in states if not state.settings]
    if missing:
        raise FleetError(f"{', '.join(missing)} runs no node: scripts/deploy without options first")
    return list(plan(states, 0))


def _named(partitions: Sequence[PartitionState]) -> str:
    names = [f"{one.topic}/{one.partition}" for one in partitions[:PARTITIONS_NAMED_MAX]]
    more = len(partitions) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


async def _each(items: Iterable[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """Call for all items side by side; raises the first failure once all have ended."""
    # No step is cut by the failure of another host.
    answers = await asyncio.gather(*map(call, items), return_exceptions=True)
    results: list[R] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        results.append(answer)
    return results
