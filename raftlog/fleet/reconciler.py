"""The reconciler observes, decides and executes one step, until all is as written.

Each step starts with a new observation, so an interrupted run, a repeated run and a run after a
failure are the same thing. Only one `apply` runs at a time, by a lock beside the fleet's file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from msgspec.structs import replace
from raftlog_client import Admin, RaftlogClientError

from raftlog import __version__
from raftlog.api.catalog import CATALOG_TOPIC, CatalogEntry
from raftlog.cluster.errors import ClusterError
from raftlog.cluster.membership import admin_of, give_vote, take_vote
from raftlog.fleet import changes, plan
from raftlog.fleet.catalog import read_catalog, write_catalog
from raftlog.fleet.drivers.driver import Driver, Tell
from raftlog.fleet.drivers.local import LocalDriver
from raftlog.fleet.drivers.ssh import SshDriver, with_release
from raftlog.fleet.errors import FleetError
from raftlog.fleet.files import FleetFiles
from raftlog.fleet.observe import observe
from raftlog.fleet.readiness import READY_TIMEOUT_S, await_ready
from raftlog.fleet.spec import ClusterSpec, FleetSpec, TopicSpec, load
from raftlog.fleet.state import ClusterState, NodeState
from raftlog.fleet.steps import (
    AlterTopic,
    AwaitReady,
    CancelDecommission,
    ClusterStep,
    CreateCluster,
    CreateTopic,
    Decommission,
    ForgetLog,
    ForgetNode,
    GiveVote,
    GrowTopic,
    JoinNode,
    PublishLog,
    ReplaceNode,
    RestartNode,
    RetireNode,
    SetReplication,
    StartNodes,
    Step,
    StopCluster,
    TakeVote,
    line,
)

CLUSTERS_AT_ONCE: Final = 8
"""Clusters observed in parallel."""
REPEATS_MAX: Final = 5
"""Repeats of one step in a row. Its effect may be observed a moment later."""
REPEAT_DELAY_S: Final = 1.0

Lost = Mapping[str, Collection[int]]
"""Nodes with a lost disk, by cluster, as given by the operator."""


@dataclass(frozen=True, slots=True)
class Report:
    """One cluster compared with the file."""

    spec: ClusterSpec
    state: ClusterState | None
    """Observed state. None if not observed, see `error`."""
    steps: tuple[Step, ...] = ()
    """Steps to make the cluster as written."""
    problems: tuple[str, ...] = ()
    """Problems that no step removes."""
    error: FleetError | None = None

    @property
    def is_as_written(self) -> bool:
        """Whether nothing is to do, and nothing is amiss."""
        return (
            self.error is None
            and self.state is not None
            and not (self.steps or self.problems or self.state.under_min_isr)
        )


class Fleet:
    """The clusters of one file. Open by `open_fleet`."""

    def __init__(
        self,
        spec: FleetSpec,
        files: FleetFiles,
        drivers: Mapping[str, Driver],
        tell: Tell,
        *,
        timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        """Set up the drivers.

        `timeout_s` bounds each wait for a node to become ready, or to be allowed to stop.
        """
        self._timeout_s = timeout_s
        self.spec = spec
        self.files = files
        self._drivers = drivers
        self._tell = tell

    def topics(self, spec: ClusterSpec) -> tuple[TopicSpec, ...]:
        """The topics of a cluster in the file."""
        return spec.topics(is_home=spec.name == self.spec.fleet.home)

    async def report(self, lost: Lost | None = None) -> list[Report]:
        """Compare each cluster with the file. Changes nothing. Raises OSError."""
        slots = asyncio.Semaphore(CLUSTERS_AT_ONCE)

        async def inspect(spec: ClusterSpec) -> ClusterState | FleetError:
            async with slots:
                try:
                    return await self._observe(spec)
                except FleetError as error:
                    return error

        names = [spec.name for spec in self.spec.in_order]
        found = await asyncio.gather(*map(inspect, self.spec.in_order))
        states = dict(zip(names, found, strict=True))
        catalog = await self._catalog(states)
        return [
            self._reported(spec, states[spec.name], catalog, (lost or {}).get(spec.name, ()))
            for spec in self.spec.in_order
        ]

    async def removals(self, *, prune: bool) -> tuple[Step, ...]:
        """The steps for clusters and logs that left the file. Raises FleetError, OSError."""
        applied = self.files.load_applied()
        catalog: Mapping[str, CatalogEntry] = {}
        home = self.spec.home
        if home is not None:
            catalog = await self._catalog({home.name: await self._observe(home)})
        return plan.removal_steps(self.spec, applied.clusters, catalog, prune=prune)

    async def apply(self, lost: Lost | None = None, *, prune: bool = False) -> int:
        """Make all as written. Return how many steps that took. Raises FleetError, OSError."""
        with self.files.locked():
            applied = self.files.load_applied().merged(self.spec)
            if any(spec.name not in self._drivers for spec in applied.clusters):
                raise FleetError(
                    f"another apply of {self.files.file} ran meanwhile", "Run it again."
                )
            self.files.save_applied(applied)
            count = 0
            for spec in self.spec.in_order:
                try:
                    count += await self._converge(spec, set((lost or {}).get(spec.name, ())))
                except FleetError:
                    await self._publish_failure(spec)
                    raise
            steps = await self.removals(prune=prune)
            for step in steps:
                await self._remove(step)
            pruned = [step.cluster for step in steps if isinstance(step, StopCluster)]
            self.files.save_applied(applied.finished(self.spec, pruned))
            return count + len(steps)

    # One cluster

    async def _observe(self, spec: ClusterSpec) -> ClusterState:
        with _explained(spec.name):
            return await observe(spec, self._drivers[spec.name], self.topics(spec))

    def _reported(
        self,
        spec: ClusterSpec,
        state: ClusterState | FleetError,
        catalog: Mapping[str, CatalogEntry],
        lost: Collection[int],
    ) -> Report:
        if isinstance(state, FleetError):
            return Report(spec, None, error=state)
        topics = self.topics(spec)
        found = plan.problems(spec, state, topics)
        try:
            steps, final = plan.plan_cluster(spec, state, topics, lost)
        except FleetError as error:
            why = f"{error} {error.hint}" if error.hint else str(error)
            return Report(spec, state, problems=(*found, why))
        if self.spec.home is None:
            return Report(spec, state, steps, found)
        begin: tuple[PublishLog, ...] = ()
        if spec.name != self.spec.fleet.home or CATALOG_TOPIC in state.topics:
            begin = plan.catalog_steps(spec, state, catalog)
        if state.is_created and not state.is_led:
            return Report(spec, state, (*begin, *steps), found)
        known = {**catalog, **(plan.wanted_entries(spec, state, catalog) if begin else {})}
        end = plan.catalog_steps(spec, final, known)
        return Report(spec, state, (*begin, *steps, *end), found)

    async def _converge(self, spec: ClusterSpec, lost: set[int]) -> int:
        """Take steps until the cluster is as written. Return their number."""
        count = repeats = 0
        last: ClusterStep | None = None
        while True:
            state = await self._observe(spec)
            if last is None:
                count += await self._publish(spec, state)
            step = plan.next_step(spec, state, self.topics(spec), lost)
            if step is None:
                break
            repeats = repeats + 1 if step == last else 0
            if repeats > REPEATS_MAX or count > plan.STEPS_MAX:
                raise FleetError(
                    f"{line(step).strip()}: done {repeats} times, without the effect",
                    "`raftlog fleet status` shows the cluster.",
                )
            if repeats:
                await asyncio.sleep(REPEAT_DELAY_S)
            else:
                self._tell(line(step).strip())
            with _explained(line(step).strip()[2:]):
                await self._take(spec, state, step)
            if isinstance(step, ReplaceNode):
                lost.discard(step.node_id)
            last = step
            count += 1
        for problem in plan.problems(spec, state, self.topics(spec)):
            self._tell(f"{spec.name}: {problem}")
        return count + await self._publish(spec, state)

    async def _take(self, spec: ClusterSpec, state: ClusterState, step: ClusterStep) -> None:
        driver = self._drivers[spec.name]
        servers = _servers(state)

        def tell(text: str) -> None:
            self._tell(f"  {text}")

        match step:
            case CreateCluster():
                await driver.create()
            case StartNodes(node_ids=node_ids):
                await driver.start(node_ids)
                await self._await_ready(spec, state, node_ids)
            case AwaitReady(node_ids=node_ids):
                await self._await_ready(spec, state, node_ids)
            case ReplaceNode(node_id=node_id, host=host):
                others = [n.address for n in state.nodes if n.node_id != node_id and n.is_ready]
                await driver.replace(node_id, others, host)
            case RestartNode(node_id=node_id, was_ready=was_ready):
                if state.is_led:
                    async with admin_of(servers) as admin:
                        await changes.await_may_stop(
                            admin, node_id, tell, is_serving=was_ready, timeout_s=self._timeout_s
                        )
                await driver.restart(node_id)
                await self._await_ready(spec, state, (node_id,))
            case JoinNode(host=host):
                await driver.join(host, servers, [node.node_id for node in state.nodes])
            case RetireNode(node_id=node_id):
                tell(await driver.retire(node_id))
            case (
                GiveVote()
                | TakeVote()
                | CancelDecommission()
                | Decommission()
                | ForgetNode()
                | CreateTopic()
                | GrowTopic()
                | SetReplication()
                | AlterTopic()
            ):
                async with admin_of(servers) as admin:
                    await _change(admin, spec, state, step, tell)
            case _:
                assert_never(step)

    async def _await_ready(
        self, spec: ClusterSpec, state: ClusterState, node_ids: Sequence[int]
    ) -> None:
        addresses = {node_id: state.node(node_id).address for node_id in node_ids}
        await await_ready(addresses, self._drivers[spec.name], self._tell, self._timeout_s)

    # The catalog

    async def _catalog(
        self, states: Mapping[str, ClusterState | FleetError]
    ) -> Mapping[str, CatalogEntry]:
        """The entries. None of them while the home cluster does not have the catalog."""
        home = self.spec.home
        state = None if home is None else states[home.name]
        if not isinstance(state, ClusterState) or CATALOG_TOPIC not in state.topics:
            return {}
        with _explained("reading the catalog"):
            return await read_catalog(_servers(state))

    async def _publish(self, spec: ClusterSpec, state: ClusterState) -> int:
        """Write the entries of a cluster's logs, if they differ. Return their number."""
        home = self.spec.home
        if home is None or not spec.listed:
            return 0
        at_home = await self._observe(home)
        catalog = await self._catalog({home.name: at_home})
        steps = plan.catalog_steps(spec, state, catalog)
        wanted = plan.wanted_entries(spec, state, catalog)
        if CATALOG_TOPIC not in at_home.topics:
            return 0
        await self._write(at_home, {step: wanted[step.log] for step in steps})
        return len(steps)

    async def _publish_failure(self, spec: ClusterSpec) -> None:
        """Write the state that a failed step has left, if that can be done."""
        try:
            await self._publish(spec, await self._observe(spec))
        except (FleetError, OSError) as error:
            self._tell(f"the catalog does not show the state of {spec.name}: {error}")

    async def _write(
        self, home: ClusterState, entries: Mapping[PublishLog | ForgetLog, CatalogEntry | None]
    ) -> None:
        """Write entries of the catalog by their steps. None forgets a log."""
        for step in entries:
            self._tell(line(step).strip())
        if entries:
            with _explained("writing the catalog"):
                by_log = {step.log: entry for step, entry in entries.items()}
                await write_catalog(_servers(home), by_log)

    async def _remove(self, step: Step) -> None:
        if isinstance(step, StopCluster):
            self._tell(line(step).strip())
            with _explained(f"stopping cluster {step.cluster}"):
                await self._drivers[step.cluster].stop_cluster()
            return
        assert isinstance(step, PublishLog | ForgetLog)
        home = self.spec.home
        assert home is not None
        state = await self._observe(home)
        known = (await self._catalog({home.name: state})).get(step.log)
        if isinstance(step, ForgetLog):
            await self._write(state, {step: None})
        elif known is not None:
            await self._write(state, {step: replace(known, state=step.state)})


@asynccontextmanager
async def open_fleet(file: Path, tell: Tell) -> AsyncIterator[Fleet]:
    """Read a fleet's file, and connect its drivers. Raises FleetError, OSError."""
    files = FleetFiles(file)
    written = load(file)

    def tell_event(text: str) -> None:
        tell(f"  {text}")

    applied = files.load_applied()
    async with AsyncExitStack() as stack:
        drivers: dict[str, Driver] = {}
        resolved = []
        for spec in written.cluster:
            exact, driver = await _driver(spec, applied.cluster(spec.name), files, tell_event)
            stack.push_async_callback(driver.close)
            drivers[spec.name] = driver
            resolved.append(exact)
        for old in applied.clusters:
            if old.name not in drivers:
                # This is only for `--prune`, which starts nothing. Its release may be gone.
                bare = replace(old, release=None, version=None)
                drivers[old.name] = (await _driver(bare, old, files, tell_event))[1]
                stack.push_async_callback(drivers[old.name].close)
        yield Fleet(FleetSpec(tuple(resolved), written.fleet), files, drivers, tell)


async def _driver(
    spec: ClusterSpec, past: ClusterSpec | None, files: FleetFiles, tell: Tell
) -> tuple[ClusterSpec, Driver]:
    """A cluster's driver, and the cluster with its exact version."""
    if past is not None and past.driver != spec.driver:
        raise FleetError(
            f"cluster {spec.name} was made by driver {past.driver}, the file says {spec.driver}",
            "Give the new cluster another name: no step moves a cluster to other machines at once.",
        )
    if spec.driver == "local":
        if past is not None and past.dir != spec.dir:
            raise FleetError(
                f"cluster {spec.name} is in {past.dir}, the file says {spec.dir}",
                "Write the old directory, or give the new cluster another name.",
            )
        return replace(spec, version=__version__), LocalDriver(spec, tell)
    exact, release = await with_release(spec)
    machines = () if past is None else past.machines
    return exact, SshDriver(exact, release, machines, files, tell)


async def _change(
    admin: Admin,
    spec: ClusterSpec,
    state: ClusterState,
    step: GiveVote
    | TakeVote
    | CancelDecommission
    | Decommission
    | ForgetNode
    | CreateTopic
    | GrowTopic
    | SetReplication
    | AlterTopic,
    tell: Tell,
) -> None:
    match step:
        case GiveVote(node_id=node_id):
            await give_vote(admin, node_id)
        case TakeVote(node_id=node_id):
            await take_vote(admin, node_id)
        case CancelDecommission(node_id=node_id):
            await admin.cancel_decommission(node_id)
        case Decommission(node_id=node_id):
            await changes.move_away(admin, node_id, tell)
        case ForgetNode(node_id=node_id):
            await changes.forget(admin, node_id)
        case CreateTopic():
            await changes.create_topic(admin, step)
        case GrowTopic(topic=topic, partitions=partitions):
            await admin.create_partitions(topic, partitions)
        case SetReplication():
            allowed = [node.node_id for node in plan.kept_nodes(spec, state)]
            await changes.set_replication(admin, step, allowed, tell)
        case AlterTopic(topic=topic, config=config):
            await admin.alter_configs(topic, config)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise failures of any layer as a FleetError that names the work."""
    try:
        yield
    except (FleetError, ClusterError) as error:
        raise FleetError(f"{what}: {error}", error.hint) from error
    except (RaftlogClientError, TimeoutError) as error:
        raise FleetError(f"{what}: {error or 'no answer in time'}") from error


def _servers(state: ClusterState) -> list[str]:
    """The addresses of ready nodes first."""
    ordered: list[NodeState] = sorted(state.nodes, key=lambda node: not node.is_ready)
    return [node.address for node in ordered if node.address]
