"""A node without its sockets: metadata, controller, logs and partitions over a world.

Start: claim the data directory → recover the metadata → take part in the quorum → register this
start (a new broker epoch, and with it a new leader epoch for every partition it leads) → recover
the logs → serve. Stop: let others take over → sync and checkpoint the logs, with the marker of a
clean stop → leave the quorum.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

from raftlog import __version__
from raftlog.broker.service import Services
from raftlog.controller.messages import RefusalReason
from raftlog.controller.service import ControllerService
from raftlog.controller.settings import ControllerSettings
from raftlog.metadata.apply import ApplyResult
from raftlog.metadata.commands import ClusterCreated, RegisterBroker
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import BrokerImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.node.directory import (
    METADATA_DIRECTORY,
    DirectoryState,
    Identity,
    claim,
    load_cluster_id,
    note_cluster_id,
)
from raftlog.node.replication_service import ReplicationService
from raftlog.node.settings import NodeSettings, split_address
from raftlog.node.start import Begin, Join, Restart, Start
from raftlog.peer.hello import is_passing
from raftlog.raft import MemberIdentity, MemberSettings, RaftMember
from raftlog.raft.hello import QuorumHello
from raftlog.raft.joining import find_cluster
from raftlog.raft.voters import NO_VOTERS, Voter, VoterSet, bootstrap_id, parse_voters
from raftlog.record.errors import (
    DISK_FULL,
    ILLEGAL_STATE,
    NO_CONTROLLER,
    NO_LEADER,
    OVERLOADED,
    RETRIABLE,
    LogError,
    when_directory_is_lost,
)
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.replication.cluster_metadata import propose
from raftlog.replication.topic_settings import TopicSettings
from raftlog.storage.disk_health import LOOK_S, DiskHealth, DiskTrouble
from raftlog.storage.manager import LogManager
from raftlog.world import Clock, Disk, Network, Randomness

REGISTRATION_RETRY_S: Final = 0.2
DISK_FULL_RETRY_S: Final = 2.0
JOIN_S: Final = 30.0
"""How long a joining node looks for its cluster."""
REJECTED_S: Final = 3.0
"""How long a node bears that all it reaches of its cluster rejects it, before it gives up."""
SERVING_S: Final = 5.0
"""How long a start waits to be unfenced, before it says that it serves."""
LEAVE_S: Final = 2.0
"""How long a stopping node waits for others to take over."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Core:
    """A node, but for the HTTP server in front of it. Made by `open`."""

    def __init__(
        self,
        *,
        services: Services,
        quorum: RaftMember[ApplyResult],
        controller: ControllerService,
        data: ReplicationService,
        state_machine: MetadataStateMachine,
        identity: Identity,
        disk: Disk,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self.services = services
        self.quorum = quorum
        self.controller = controller
        self.data = data
        self.identity = identity
        self.not_ready: str | None = "The node is starting."
        self._state_machine = state_machine
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[None]] = set()
        self._disk_full: LogError | None = None
        self._disk_watch = DiskHealth()
        self._known_index = -1
        """What the controller had applied, as this node knew at the last look at the disk."""
        self._disk_stall: DiskTrouble | None = None
        """What keeps this node from applying what the others act by already, if anything."""
        self._creating_cluster = False

    @classmethod
    async def open(
        cls,
        settings: NodeSettings,
        *,
        state: DirectoryState,
        start: Start,
        address: str,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        network: Network,
        on_fatal: Callable[[str], None],
        member_settings: MemberSettings | None = None,
        controller_settings: ControllerSettings | None = None,
    ) -> Core:
        """Recover the metadata. `address` (`host:port`) is where other nodes will reach this one.

        `state` is what `load_state` found in the data directory, and `start` what `decide_start`
        made of it. `on_fatal` is given the reason if the node must end.
        Raises LogError, DiskError or IdentityError.
        """
        node_id = BrokerId(settings.node_id)
        identity = await disk.run(lambda: claim(disk, settings, state, randomness))
        state_machine = MetadataStateMachine()
        known_cluster = await disk.run(lambda: load_cluster_id(disk))
        joined, initial = await _cluster_of(start, identity, address, network, clock)
        # The list that the cluster was begun with, whatever a later start is given.
        begun_with = identity.first_start.voters
        quorum = await RaftMember.open(
            disk=disk,
            directory=METADATA_DIRECTORY,
            initial=initial,
            state_machine=state_machine,
            identity=MemberIdentity(
                node_id,
                identity.directory_id,
                __version__,
                None if begun_with is None else bootstrap_id(parse_voters(begun_with)),
            ),
            network=network,
            clock=clock,
            randomness=randomness,
            cluster_id=lambda: state_machine.image.cluster_id or known_cluster or joined,
            settings=member_settings,
        )
        quorum.on_failed(on_fatal)
        topic_settings = TopicSettings(
            {"flush": settings.flush, **settings.topic_defaults},
            settings.partitions_default,
            cluster=lambda: state_machine.image.cluster_settings,
        )
        logs = await LogManager.open(disk, clock)
        data = ReplicationService(
            state_machine=state_machine,
            quorum=quorum,
            logs=logs,
            settings=topic_settings,
            broker_id=node_id,
            directory_id=identity.directory_id,
            own_epoch=lambda: controller.broker_epoch,
            may_act=lambda: core.may_act,
            unwritable=lambda: controller.unwritable,
            clock=clock,
            randomness=randomness,
            network=network,
            on_fatal=on_fatal,
        )
        controller = ControllerService(
            quorum=quorum,
            state_machine=state_machine,
            clock=clock,
            randomness=randomness,
            broker_id=node_id,
            settings=controller_settings or ControllerSettings(),
            on_fatal=on_fatal,
            can_write=lambda: core.can_write,
        )
        services = Services(
            replicas=data.replicas,
            partitions=data.partitions,
            metadata=data.metadata,
            quorum=quorum,
            logs=logs,
            clock=clock,
            randomness=randomness,
            node_id=node_id,
            replication=data.status,
            is_ready=lambda: core.not_ready,
            can_write=lambda: core.can_write,
        )
        core = cls(
            services=services,
            quorum=quorum,
            controller=controller,
            data=data,
            state_machine=state_machine,
            identity=identity,
            disk=disk,
            on_fatal=on_fatal,
        )
        state_machine.subscribe(core._forget_directories)
        return core

    async def serve(self, address: str, rack: str | None) -> None:
        """Take part in the cluster, register this start, open the replicas, and be electable.

        In this order: the metadata must know what a replica here may have lost before it can be
        elected. Waits for as long as there is no majority of the voters. Raises LogError if the
        cluster refuses this node.
        """
        self.quorum.on_role_changed(self._role_changed)
        self.controller.on_lease_changed(lambda _valid: self._lease_changed())
        self.controller.on_refused(self._refused)
        self.quorum.start(address)
        self.controller.start()
        host, port = split_address(address)
        registration = RegisterBroker(
            broker_id=self.services.node_id,
            directory_id=self.identity.directory_id,
            incarnation=self.services.randomness.token(16).hex(),
            host=host,
            port=port,
            software_version=__version__,
            rack=rack,
        )
        epoch: BrokerEpoch | None = None
        try:
            epoch = await self._first_of(self._register(registration), self._rejected_for_good())
        except LogError as error:
            if error.entry is not DISK_FULL:
                raise
            # The old leader epochs must not take new records; reading does not need a new one.
            logger.error("the disk is full: serving reads only until there is room")
            self._disk_full = error
        self._update_writes()
        if self.services.cluster_id:
            await self._disk.run(lambda: note_cluster_id(self._disk, self.services.cluster_id))
        await self.data.open()
        await self.services.logs.start()
        self._look_at_disk()
        self._spawn(self._watch_disk(), "disk-watch")
        if epoch is None:
            self._spawn(self._register_later(registration), "register-later")
        else:
            await self._join(epoch)
            await self._wait_until_serving()
        self.not_ready = None

    @property
    def can_write(self) -> bool:
        """Whether the disk takes writes, and has for a while: see storage/disk_health.py."""
        return self._disk_full is None and self._disk_watch.can_write

    @property
    def may_act(self) -> bool:
        """Whether this node may act as the leader of what it leads, at this moment."""
        if self.controller.is_cut_off or self._disk_stall is not None:
            return False
        # Not left to the next look: a process that was stopped may have missed some.
        return self._disk_watch.trouble is None or not self._is_behind(self.controller.known_index)

    def _is_behind(self, known_index: int) -> bool:
        return self.quorum.applied_index < known_index

    async def leave(self) -> None:
        """Let others take over what this node leads, while it can still be reached."""
        self.not_ready = "The node is stopping."
        for task in self._tasks:
            task.cancel()
        if not await self.controller.shut_down(LEAVE_S):
            logger.warning("some partitions that this node leads were not taken over")
        await self.quorum.resign_leadership()

    async def close(self) -> None:
        """Stop cleanly: everything acknowledged is durable, and the next start need not look."""
        self.not_ready = "The node is stopping."
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.data.close()
        await self.services.logs.close()
        await self.controller.close()
        await self.quorum.close()

    # Registration

    async def _join(self, epoch: BrokerEpoch) -> None:
        """Take part in replication, and only then be heard of by the controller."""
        await self.data.join()
        self.controller.registered(epoch)

    async def _register(self, registration: RegisterBroker) -> BrokerEpoch:
        while True:
            try:
                broker = (await propose(self.quorum, registration)).broker()
            except LogError as error:
                # The incarnation makes a repeat harmless.
                if error.entry not in (NO_CONTROLLER, RETRIABLE, OVERLOADED):
                    raise
                if self.quorum.lacks_room:
                    # It may be registered, but cannot take the entry that says so.
                    raise LogError(DISK_FULL, "The disk is full.") from error
                logger.info("not registered yet: %s", self._why_alone() or error)
                await self.services.clock.sleep(REGISTRATION_RETRY_S)
            else:
                return broker.broker_epoch

    async def _register_later(self, registration: RegisterBroker) -> None:
        while True:
            await self.services.clock.sleep(DISK_FULL_RETRY_S)
            try:
                await self._join(await self._register(registration))
            except LogError as error:
                if error.entry is DISK_FULL:
                    continue
                self._on_fatal(f"The cluster refuses this node: {error}")
                return
            logger.info("there is room on the disk again: taking writes")
            self._disk_full = None
            self._update_writes()
            return

    async def _rejected_for_good(self) -> NoReturn:
        """Raise LogError once this node has been rejected by all that it reaches for a while."""
        since: float | None = None
        while True:
            now = self.services.clock.monotonic()
            lasting = [error for error in self.quorum.rejected_by.values() if not is_passing(error)]
            if not lasting or self.quorum.peers():
                since = None
            elif since is None:
                since = now
            elif now - since >= REJECTED_S:
                raise LogError(ILLEGAL_STATE, lasting[0].message)
            await self.services.clock.sleep(REGISTRATION_RETRY_S)

    async def _first_of(self, *works: Coroutine[Any, Any, T]) -> T:
        """Run several, until the first has ended; return or raise what it did."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return next(iter(done)).result()

    async def _wait_until_serving(self) -> None:
        """Wait until the controller has unfenced this node, and it may act as a leader."""
        deadline = self.services.clock.monotonic() + SERVING_S
        while self.services.clock.monotonic() < deadline:
            broker = self._own_broker()
            if broker is not None and not broker.fenced and not self.controller.is_cut_off:
                return
            await self.services.clock.sleep(REGISTRATION_RETRY_S / 10)
        logger.warning("serving, but the controller has this node fenced still")

    def _own_broker(self) -> BrokerImage | None:
        return self._state_machine.image.brokers.get(self.services.node_id)

    def _why_alone(self) -> str:
        reached = len(self.quorum.peers())
        others = len(self.quorum.voters.ids - {self.services.node_id})
        rejections = "; ".join(
            f"{where}: {error.message}" for where, error in sorted(self.quorum.rejected_by.items())
        )
        return f"{reached} of {others} other voters are reached. {rejections}".strip()

    # What changes

    def _role_changed(self) -> None:
        is_new = self._state_machine.image.cluster_id is None
        if self.quorum.is_active and is_new and not self._creating_cluster:
            self._creating_cluster = True
            self._spawn(self._create_cluster(), "create-cluster")

    async def _create_cluster(self) -> None:
        services = self.services
        created = ClusterCreated(
            cluster_id=services.randomness.token(16).hex(), created_ms=services.clock.time_ms()
        )
        try:
            await propose(self.quorum, created)
        except LogError as error:
            # Another leads by now, and does the same.
            logger.info("the cluster is not created yet: %s", error)
        finally:
            self._creating_cluster = False

    def _lease_changed(self) -> None:
        if self.controller.is_cut_off and self.not_ready is None:
            logger.warning("cut off from the controller: taking no writes")
        self._update_writes()

    async def _watch_disk(self) -> None:
        while True:
            await self.services.clock.sleep(LOOK_S)
            self._look_at_disk()

    def _look_at_disk(self) -> None:
        """The next heartbeat says what comes of it."""
        watch, logs = self._disk_watch, self.services.logs
        before, could_write = watch.trouble, watch.can_write
        watch.look(
            self.services.clock.monotonic(),
            room_bytes=logs.room_bytes,
            oldest_sync_at=logs.oldest_sync_at,
            lacks_room=self.quorum.lacks_room,
        )
        # By what was known at the last look: an entry is on its way to the disk for a moment.
        is_behind = self._is_behind(self._known_index)
        self._known_index = self.controller.known_index
        blinded_by = self._disk_stall
        self._disk_stall = (blinded_by or watch.trouble) if is_behind else None
        if watch.trouble is not None and watch.trouble is not before:
            logger.error("the disk %s: others lead what they can", watch.trouble.value)
        elif watch.can_write and not could_write:
            logger.info("the disk takes writes again")
        if self._disk_stall is not blinded_by:
            self._update_writes()

    def _update_writes(self) -> None:
        node_id = self.services.node_id
        refusal = self._disk_full
        if refusal is None and self.controller.is_cut_off:
            # Another may have been elected without this node's knowledge (promise 7).
            refusal = LogError(NO_LEADER, f"Node {node_id} is cut off from the controller.")
        if refusal is None and self._disk_stall is not None:
            # Others may lead by now, and commit once this node has been silent for long enough.
            is_full = self._disk_stall is DiskTrouble.FULL
            refusal = LogError(
                DISK_FULL if is_full else NO_LEADER,
                f"The disk of node {node_id} {self._disk_stall.value}: it cannot follow the "
                "metadata.",
            )
        self.services.replicas.refuse_writes(refusal)

    def _forget_directories(self, delta: MetadataDelta) -> None:
        # A broker was unregistered: the directory that it is known with would keep the next one of
        # its id out. A snapshot shows no more of it than another directory.
        for broker_id in delta.brokers_gone:
            self.quorum.forget(broker_id)
        brokers = self._state_machine.image.brokers
        for broker_id in delta.brokers:
            self.quorum.forget(broker_id, unless=brokers[broker_id].directory_id)

    def _refused(self, reason: RefusalReason, message: str) -> None:
        self._on_fatal(f"The controller refuses this node ({reason.name.lower()}): {message}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("%s failed", task.get_name(), exc_info=error)
            self._on_fatal(f"{task.get_name()} failed: {error!r}")


async def _cluster_of(
    start: Start, identity: Identity, address: str, network: Network, clock: Clock
) -> tuple[str | None, VoterSet]:
    """The cluster's id, if it is known, and the voters that a new journal begins with."""
    match start:
        case Begin(voters=None):
            host, port = split_address(address)
            alone = Voter(identity.node_id, host, port, identity.directory_id)
            return None, VoterSet((alone,))
        case Begin(voters=VoterSet() as voters):
            return None, voters
        case Join(addresses=addresses):
            hello = QuorumHello(
                node_id=identity.node_id,
                directory_id=identity.directory_id,
                cluster_id=None,
                bootstrap_id=None,
                address=address,
                software_version=__version__,
                voters=NO_VOTERS,
            )
            theirs = await find_cluster(network, addresses, hello, clock=clock, timeout_s=JOIN_S)
            if theirs.voters.find(identity.node_id) is not None:
                # With an empty log it would vote against what it has acknowledged (quorum.md).
                raise LogError(
                    ILLEGAL_STATE,
                    f"Node {identity.node_id} has a vote in this cluster, and its log is in "
                    "another data directory. Start it with that one. "
                    f"{when_directory_is_lost(identity.node_id)}",
                )
            return theirs.cluster_id, theirs.voters
        case Restart():
            return None, NO_VOTERS
    raise AssertionError(start)
