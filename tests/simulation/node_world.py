"""Whole nodes as processes of a simulated world, started like `raftlog serve`.

A node that ends by itself (refused, or failed) leaves the reason in `endings`; `check_endings`
fails a history with such nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from raftlog.metadata.image import NO_LEADER_ID, BrokerImage, MetadataImage, TopicImage
from raftlog.node.assembly import NodeCore
from raftlog.node.directory import IdentityError, load_state, remember
from raftlog.node.replacement import NoteVote
from raftlog.node.settings import NodeSettings
from raftlog.node.start import decide_start
from raftlog.raft.interface import MemberSettings
from raftlog.record.errors import LogError
from raftlog.record.types import BrokerId
from raftlog.world import DiskError
from tests.simulation.life import Life, NodeDiedError
from tests.simulation.node_checker import NodeChecker
from tests.simulation.world import Process, World, run
from tests.waiting import until

T = TypeVar("T")

POLL_S: Final = 0.01
TAKE_PLACE_RETRY_S: Final = 0.2
UNTIL_S: Final = 20.0
"""How long a condition is waited for, in virtual time."""
VOTERS: Final = 3
"""Nodes forming the cluster; nodes of higher ids join."""
SNAPSHOTS: Final = MemberSettings(
    snapshot_entries=20, snapshot_bytes=10**9, entries_kept=5, chunk_bytes=1_000
)
"""Members with frequent snapshots, sent in many chunks."""


@dataclass(frozen=True)
class Ending:
    """Why a node's process ended by itself."""

    node_id: int
    incarnation: int
    reason: str


class Listeners(Protocol):
    """Listeners for clients, beside a node's core."""

    async def open(self, process: Process, core: NodeCore, on_fatal: Callable[[str], None]) -> None:
        """Open a node's, before it serves."""

    async def close(self, node_id: int) -> None:
        """Close a node's, which is stopping."""


@dataclass
class NodeWorld:
    """Nodes 1 to `voter_count` form a cluster together; later nodes join."""

    world: World
    node_count: int = VOTERS
    voter_count: int = VOTERS
    member_settings: MemberSettings = field(default_factory=MemberSettings)
    topic_defaults: dict[str, str] = field(default_factory=dict)
    checker: NodeChecker = field(default_factory=NodeChecker)
    cores: dict[int, NodeCore] = field(default_factory=dict)
    """Cores of open nodes, perhaps still starting."""
    endings: list[Ending] = field(default_factory=list)
    overrides: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Settings of single nodes."""
    listeners: Listeners | None = None
    """Opens and closes what clients connect to; None: there is nothing."""

    def __post_init__(self) -> None:
        self.world.loop.after_event = self._after_event

    @property
    def node_ids(self) -> list[int]:
        return list(range(1, self.node_count + 1))

    def others(self, node_id: int | None) -> list[int]:
        """All nodes but one."""
        return [other for other in self.node_ids if other != node_id]

    @property
    def first_voters(self) -> list[int]:
        return self.node_ids[: self.voter_count]

    @property
    def voters(self) -> str:
        """Value of --voters for the nodes forming the cluster."""
        return ",".join(f"{node_id}@{self.world.address(node_id)}" for node_id in self.first_voters)

    def settings(self, node_id: int) -> NodeSettings:
        """Settings of the node: the same at every start."""
        begins = node_id <= self.voter_count
        settings = NodeSettings(
            data_dir="unused",
            node_id=node_id,
            listen=self.world.address(node_id),
            voters=self.voters if begins and self.voter_count > 1 else None,
            join=None if begins else ",".join(map(self.world.address, self.first_voters)),
            topic_defaults=self.topic_defaults,
        )
        return msgspec.structs.replace(settings, **self.overrides.get(node_id, {}))

    # Nodes

    def start_all(self) -> None:
        for node_id in self.node_ids:
            self.start(node_id)

    def start(self, node_id: int) -> Process:
        """Start a node, which is in `cores` once open, and serves when `is_ready`."""
        return self.world.start(node_id, self._main)

    def kill(self, node_id: int, *, power: bool = False) -> None:
        self.world.crash(node_id, power=power)

    def cut_off(self, node_id: int, others: Iterable[int] | None = None) -> None:
        """Block a node from all other nodes, or from these, in both directions."""
        rest = [other for other in (others or self.node_ids) if other != node_id]
        self.world.network.partition([node_id], rest)

    async def stop(self, node_id: int) -> None:
        """Stop a node like SIGTERM. Raises NodeDiedError if the node is down or dies."""

        async def stop(core: NodeCore) -> None:
            await core.leave()
            if self.listeners is not None:
                await self.listeners.close(node_id)
            await core.close()

        await self.call(node_id, stop)
        self.kill(node_id)

    async def _main(self, process: Process) -> None:
        loop = asyncio.get_running_loop()
        fatal: asyncio.Future[str] = loop.create_future()

        def on_fatal(reason: str) -> None:
            if not fatal.done():
                fatal.set_result(reason)

        starting = loop.create_task(self._open(process, on_fatal))
        await asyncio.wait((starting, fatal), return_when=asyncio.FIRST_COMPLETED)
        if not fatal.done():
            try:
                starting.result()
            except (LogError, DiskError, IdentityError, ValueError) as error:
                on_fatal(f"the node cannot start: {error}")
        reason = await fatal
        self.world.trace(f"{process} ends: {reason}")
        self.endings.append(Ending(process.node_id, process.incarnation, reason))

    async def _open(self, process: Process, on_fatal: Callable[[str], None]) -> None:
        node_id, settings = process.node_id, self.settings(process.node_id)
        state = await process.disk.run(lambda: load_state(process.disk))
        core = await NodeCore.open(
            settings,
            state=state,
            start=decide_start(settings, state),
            address=process.address,
            disk=process.disk,
            clock=process.clock,
            randomness=process.randomness,
            network=process.network,
            on_fatal=on_fatal,
            take_place=partial(self._take_place, process),
            member_settings=self.member_settings,
        )
        self.cores[node_id] = core
        self.checker.opened(node_id)
        process.on_end(lambda: self._gone(node_id, core))
        if self.listeners is not None:
            await self.listeners.open(process, core, on_fatal)
        await core.serve(process.address, settings.rack, settings.kafka_advertised(9092))
        await process.disk.run(lambda: remember(process.disk, settings))
        self.world.trace(f"{process} serves")

    async def _take_place(
        self,
        process: Process,
        _addresses: Sequence[str],
        node_id: int,
        directory_id: str,
        note_vote: NoteVote,
    ) -> None:
        """Like `raftlog.cluster.membership.take_lost_place`, without HTTP."""
        while True:
            try:
                for other in self.others(node_id):
                    if self.is_ready(other) and node_id in self.cores[other].quorum.voters.ids:
                        await note_vote()
                        await self.call(other, lambda core: core.quorum.remove_voter(node_id))
                    if self.is_ready(other):
                        await self.call(
                            other,
                            lambda core: core.services.metadata.replace_directory(
                                BrokerId(node_id), directory_id
                            ),
                        )
                        return
            except (LogError, NodeDiedError) as error:
                self.world.trace(f"{process} is not in the lost one's place yet: {error}")
            await process.clock.sleep(TAKE_PLACE_RETRY_S)

    def _gone(self, node_id: int, core: NodeCore) -> None:
        if self.cores.get(node_id) is core:
            del self.cores[node_id]

    def _after_event(self, life: Life) -> None:
        core = self.cores.get(life.node_id)
        if core is not None:
            self.checker.after_event(life.node_id, core, self.world.loop.now)

    # Queries of tests

    def image(self, node_id: int) -> MetadataImage:
        return self.cores[node_id].services.metadata.image

    def broker(self, seen_by: int, node_id: int) -> BrokerImage:
        return self.image(seen_by).brokers[node_id]  # type: ignore[index]

    def is_fenced(self, node_id: int, *, seen_by: int | None = None) -> bool:
        """By the metadata applied by the active controller, or by the given node."""
        observer = self.controller() if seen_by is None else seen_by
        return observer is not None and self.broker(observer, node_id).fenced

    def is_ready(self, node_id: int) -> bool:
        core = self.cores.get(node_id)
        return core is not None and core.not_ready is None

    def controller(self) -> int | None:
        """The active controller of the highest term."""
        active = [
            (core.quorum.term, node_id)
            for node_id, core in sorted(self.cores.items())
            if core.quorum.is_active
        ]
        return max(active)[1] if active else None

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The leader of a partition, by the active controller's metadata."""
        controller = self.controller()
        if controller is None:
            return None
        row = self.image(controller).partition(topic, partition)
        return None if row.leader == NO_LEADER_ID else row.leader

    def takes_writes(self, node_id: int, topic: str, partition: int = 0) -> bool:
        """Whether the node would append to the partition at this moment."""
        core = self.cores.get(node_id)
        if core is None:
            return False
        try:
            found = core.services.replicas.partition(topic, partition)
        except LogError:
            return False
        return found.host.write_gate.refusal is None

    async def until(self, condition: Callable[[], T | None], seconds: float = UNTIL_S) -> T:
        """Wait for a condition, in virtual time, and return its result."""
        return await until(condition, self.describe, deadline_s=seconds, poll_s=POLL_S)

    async def ready(self, *node_ids: int) -> int:
        """Wait until these nodes, or all, serve and are unfenced; return the active controller."""
        wanted = node_ids or tuple(self.node_ids)

        def is_whole() -> int | None:
            controller = self.controller()
            if controller is None or not all(map(self.is_ready, wanted)):
                return None
            brokers = self.image(controller).brokers
            if any(node_id not in brokers or brokers[node_id].fenced for node_id in wanted):  # type: ignore[index]
                return None
            return controller

        return await self.until(is_whole)

    async def agreed(self) -> None:
        """Wait until all running nodes have applied the same index, with the same image."""

        def is_agreed() -> bool:
            images = [core.services.metadata.image for _, core in sorted(self.cores.items())]
            indexes = {core.quorum.applied_index for core in self.cores.values()}
            last = {core.quorum.status().last_index for core in self.cores.values()}
            return len(indexes) == 1 and indexes == last and len(set(map(digest, images))) == 1

        await self.until(is_agreed)

    async def call(self, node_id: int, work: Callable[[NodeCore], Coroutine[Any, Any, T]]) -> T:
        """Run a call on a node. Raises NodeDiedError if the node is down or dies, and LogError."""
        core = self.cores.get(node_id)
        if core is None:
            raise NodeDiedError(f"node {node_id} is down")
        return await self.world.processes[node_id].run(work(core))

    async def create_topic(self, node_id: int, name: str, **arguments: Any) -> TopicImage:
        return await self.call(
            node_id, lambda core: core.services.metadata.create_topic(name, **arguments)
        )

    async def create_led_by(self, leader: int, name: str) -> int:
        """Create a topic with a partition for each node, which has no other replica.

        The number of the one led by `leader`.
        """
        controller = await self.until(self.controller)
        topic = await self.create_topic(
            controller, name, partitions=self.node_count, replication_factor=1
        )
        return next(row.partition for row in topic.partitions if row.leader == leader)

    async def ended(self, node_id: int) -> str:
        """Wait until the node's process has ended by itself, and return why."""
        incarnation = self.world.processes[node_id].incarnation
        await self.until(lambda: not self.world.is_up(node_id))
        reasons = [
            ending.reason
            for ending in self.endings
            if (ending.node_id, ending.incarnation) == (node_id, incarnation)
        ]
        assert reasons, f"node {node_id} did not end by itself"
        return reasons[0]

    def check_endings(self) -> None:
        """No node has ended by itself."""
        assert not self.endings, self.endings

    def describe(self) -> str:
        """Each node's state, a line each."""
        lines = [str(ending) for ending in self.endings]
        for node_id in self.node_ids:
            core = self.cores.get(node_id)
            if core is None:
                up = "starting" if self.world.is_up(node_id) else "down"
                lines.append(f"{node_id}: {up}")
                continue
            status, image = core.quorum.status(), core.services.metadata.image
            fenced = [broker.broker_id for broker in image.brokers.values() if broker.fenced]
            lines.append(
                f"{node_id}: {status} voters={sorted(core.quorum.voters.ids)} "
                f"peers={sorted(core.quorum.peers())} brokers={sorted(image.brokers)} "
                f"fenced={fenced} cut_off={core.permit.is_cut_off} "
                f"not_ready={core.not_ready} rejected={core.quorum.rejected_by}"
            )
        return "\n".join(lines)


def simulate(
    test: Callable[[NodeWorld], Coroutine[Any, Any, None]], seed: int = 0, **arguments: Any
) -> None:
    """Run a test in a world without started nodes."""

    async def main(world: World) -> None:
        await test(NodeWorld(world, **arguments))

    run(seed, main)


def simulate_cluster(
    test: Callable[[NodeWorld], Coroutine[Any, Any, None]],
    seed: int = 0,
    *,
    may_end: bool = False,
    **arguments: Any,
) -> None:
    """Run a test on a serving cluster. No node ends by itself, unless allowed."""

    async def begun(nodes: NodeWorld) -> None:
        nodes.start_all()
        await nodes.ready()
        await test(nodes)
        if not may_end:
            nodes.check_endings()

    simulate(begun, seed, **arguments)


def digest(image: MetadataImage) -> bytes:
    """See `NodeChecker.digest`."""
    return NodeChecker.digest(image)
