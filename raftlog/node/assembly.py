"""The node's core has metadata, controller, logs and partitions over a world, without sockets.

Start: claim the data directory → recover the metadata → take part in the quorum → register this
start (a new broker epoch, and with it a new leader epoch for every partition it leads) → recover
the logs → serve. Stop: let others take over → sync and checkpoint the logs, with the marker of a
clean stop → leave the quorum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from raftlog import __version__
from raftlog.broker.node import NodeServices, Readiness
from raftlog.controller.disk_watch import DiskWatch
from raftlog.controller.lead_permit import LeadPermit
from raftlog.controller.service import ControllerService
from raftlog.coordinator.groups.kind import GroupKind, VerifyTransaction
from raftlog.coordinator.groups.settings import GroupSettings
from raftlog.coordinator.shard.service import AnyKind, Coordinators
from raftlog.coordinator.shard.status import CoordinatorWatch
from raftlog.coordinator.transactions.kind import TransactionKind
from raftlog.coordinator.transactions.markers import MarkerWriter
from raftlog.coordinator.transactions.transaction import TransactionSettings
from raftlog.coordinator.transactions.verification import VerifiedTransactions
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import RegisterBroker
from raftlog.metadata.decisions.elections import NO_LOG_END, LogEnd, PartitionKey
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.node.directory import (
    METADATA_DIRECTORY,
    DirectoryState,
    Identity,
    claim,
    load_cluster_id,
    note_cluster_id,
)
from raftlog.node.disk_policy import WritePolicy, follow_storage_limits
from raftlog.node.registration import Registration, create_cluster, find_cluster
from raftlog.node.replacement import Replacement, TakePlace
from raftlog.node.replication_service import ReplicationService
from raftlog.node.settings import KafkaAddress, NodeSettings, split_address
from raftlog.node.start import Join, Restart, Start, check_restart
from raftlog.peer.tasks import TaskGroup
from raftlog.raft import MemberIdentity, MemberSettings, RaftMember
from raftlog.raft.voters import bootstrap_id, parse_voters
from raftlog.record.errors import DISK_FULL, LogError, counted
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.replication.first_sync import FirstSync, named
from raftlog.replication.replica import TopicSettings
from raftlog.routing.leader_gate import LeaderGate
from raftlog.storage.manager import LogManager
from raftlog.storage.types import LogState
from raftlog.world import Clock, Disk, Network, Randomness

LEAVE_TIMEOUT_S: Final = 2.0
"""How long a stopping node waits for others to take over."""
COMMITTED_TIMEOUT_S: Final = 1.0
"""How long a stopping node waits for the commit of what is in its logs."""
COMMITTED_POLL_S: Final = 0.005

logger = logging.getLogger(__name__)


def coordinator_kinds(
    data: ReplicationService, clock: Clock, verify: VerifyTransaction
) -> tuple[AnyKind, ...]:
    """The kinds of coordinators that nodes run."""
    markers = MarkerWriter(data.partitions, clock)
    return (
        GroupKind(GroupSettings(), verify),
        TransactionKind(data.metadata.allocate_producer_id, markers.run, TransactionSettings()),
    )


def _log_end(logs: LogManager, key: PartitionKey) -> LogEnd:
    log = logs.find(*key)
    if log is None or log.state is not LogState.ONLINE:
        return NO_LOG_END
    return LogEnd(log.last_epoch, log.log_end_offset)


class NodeCore:
    """A node, but for the HTTP server in front of it. Made by `open`."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        identity: Identity,
        state_machine: MetadataStateMachine,
        quorum: RaftMember[ApplyResult],
        logs: LogManager,
        topic_settings: TopicSettings,
        replacement: Replacement,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        network: Network,
        on_fatal: Callable[[str], None],
    ) -> None:
        self.identity = identity
        self._replacement = replacement
        self._first_sync = FirstSync(lambda: state_machine.image, node_id)
        state_machine.subscribe(self._first_sync.applied)
        self.quorum = quorum
        self._readiness = Readiness()
        self._state_machine = state_machine
        self._disk = disk
        self._tasks = TaskGroup(on_fatal)
        self._creating_cluster = False
        follow_storage_limits(state_machine, logs)
        self.permit = LeadPermit(quorum=quorum, clock=clock, broker_id=node_id)
        self._disk_watch = DiskWatch(permit=self.permit, quorum=quorum, logs=logs, clock=clock)
        self.controller = ControllerService(
            quorum=quorum,
            state_machine=state_machine,
            clock=clock,
            randomness=randomness,
            broker_id=node_id,
            permit=self.permit,
            on_fatal=on_fatal,
            log_end=partial(_log_end, logs),
            disk=self._disk_watch,
            on_cluster_time=logs.cluster_clock.note_cluster_time,
        )
        logs.cluster_clock.follow_cluster_time()
        self.writes = WritePolicy(
            node_id=node_id, permit=self.permit, disk=self._disk_watch, clock=clock
        )
        gate = LeaderGate()
        self.data = ReplicationService(
            state_machine=state_machine,
            quorum=quorum,
            logs=logs,
            settings=topic_settings,
            broker_id=node_id,
            directory_id=identity.directory_id,
            permit=self.permit,
            gate=gate,
            unwritable=lambda: self.controller.unwritable,
            log_ends=self.controller.log_ends,
            clock=clock,
            randomness=randomness,
            network=network,
            on_fatal=on_fatal,
        )
        self.coordinators = Coordinators(
            replicas=self.data.replicas,
            router=self.data.partitions,
            metadata=self.data.metadata,
            clock=clock,
            cluster_clock=logs.cluster_clock,
            on_fatal=on_fatal,
        )
        transactions = VerifiedTransactions(
            self.coordinators, self.data.metadata, clock, self._tasks
        )
        self.coordinators.register(*coordinator_kinds(self.data, clock, transactions.verify))
        gate.register(transactions=transactions, coordinators=self.coordinators)
        state_machine.subscribe(self.coordinators.metadata_applied)
        self._coordinator_watch = CoordinatorWatch(
            self.coordinators, self.data.partitions, lambda: state_machine.image, clock
        )
        self.services = NodeServices(
            replicas=self.data.replicas,
            partitions=self.data.partitions,
            metadata=self.data.metadata,
            coordinators=self.coordinators,
            coordination=self._coordinator_watch.status,
            quorum=quorum,
            logs=logs,
            clock=clock,
            cluster_clock=logs.cluster_clock,
            randomness=randomness,
            node_id=node_id,
            replication=self.data.status,
            readiness=self._readiness,
            catching_up=self._catching_up,
            disk=self._disk_watch,
        )
        self._registration = Registration(
            node_id=node_id,
            quorum=quorum,
            state_machine=state_machine,
            controller=self.controller,
            clock=clock,
            on_fatal=on_fatal,
        )
        state_machine.subscribe(self._registration.forget_directories)

    @property
    def not_ready(self) -> str | None:
        """Why this node does not serve. None while it serves."""
        return self._readiness.reason

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
        take_place: TakePlace | None = None,
        member_settings: MemberSettings | None = None,
    ) -> NodeCore:
        """Recover the metadata. `address` (`host:port`) is where other nodes will reach this one.

        `state` is the result of `load_state`, and `start` that of `decide_start`. `on_fatal`
        receives the reason if the node must end. `take_place` is for a start in a lost node's
        place. Raises LogError, DiskError, IdentityError, StartError, or the ValueError of
        `take_place`.
        """
        node_id = BrokerId(settings.node_id)
        identity = await disk.run(lambda: claim(disk, settings, state, randomness))
        state_machine = MetadataStateMachine()
        known_cluster, replacement = await disk.run(
            lambda: (load_cluster_id(disk), Replacement.load(disk))
        )
        if isinstance(start, Join) and start.replaces and take_place is not None:
            await take_place(start.addresses, node_id, identity.directory_id, replacement.note_vote)
        joined, initial = await find_cluster(start, identity, address, network, clock)
        # The list of voters that the cluster began with, whatever a later start names.
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
        if isinstance(start, Restart):
            ignored = check_restart(settings, identity, quorum.voters, known_cluster)
            if ignored is not None:
                logger.warning("%s", ignored)
        quorum.on_failed(on_fatal)
        topic_settings = TopicSettings(
            {"flush": settings.flush, **settings.topic_defaults},
            settings.partitions_default,
            cluster=lambda: state_machine.image.cluster_settings,
        )
        return cls(
            node_id=node_id,
            identity=identity,
            state_machine=state_machine,
            quorum=quorum,
            logs=await LogManager.open(disk, clock, on_failed=on_fatal),
            topic_settings=topic_settings,
            replacement=replacement,
            disk=disk,
            clock=clock,
            randomness=randomness,
            network=network,
            on_fatal=on_fatal,
        )

    async def serve(
        self, address: str, rack: str | None, kafka: KafkaAddress | None = None
    ) -> None:
        """Take part in the cluster, register this start, open the replicas, and be electable.

        `address` (`host:port`) is for HTTP clients and other nodes, `kafka` for Kafka clients.

        The order matters, because the metadata must know which records a replica here may have lost
        before the replica can be elected. Waits while there is no majority of the voters. Raises
        LogError if the cluster rejects this node.
        """
        self.quorum.on_role_changed(self._role_changed)
        self.writes.on_changed(self.data.replicas.refuse_writes)
        self.controller.on_lease_changed(lambda _valid: self._lease_changed())
        self._registration.listen()
        self.quorum.start(address)
        self.controller.start()
        host, port = split_address(address)
        command = RegisterBroker(
            broker_id=self.services.node_id,
            directory_id=self.identity.directory_id,
            incarnation=self.services.randomness.token(16).hex(),
            host=host,
            port=port,
            software_version=__version__,
            rack=rack,
            kafka_host=None if kafka is None else kafka.host,
            kafka_port=None if kafka is None else kafka.port,
        )
        epoch: BrokerEpoch | None = None
        try:
            epoch = await self._registration.register(command)
        except LogError as error:
            if error.entry is not DISK_FULL:
                raise
            # The old leader epochs must not take new records. Reading does not need a new epoch.
            logger.error("the disk is full: serving reads only until there is room again")
            self._disk_watch.registration_failed(error)
        self.writes.update()
        if self.services.cluster_id:
            await self._disk.run(lambda: note_cluster_id(self._disk, self.services.cluster_id))
        await self.data.open()
        await self.services.logs.start()
        self.writes.observe_disk()
        self._tasks.spawn(self.writes.watch_disk(), "disk-watch")
        self._tasks.spawn(self._coordinator_watch.run(), "group-lags")
        if kafka is not None:
            self._tasks.spawn(self._registration.add_kafka_address(command), "kafka-address")
        if epoch is None:
            later = self._registration.register_when_room(command, self._registered_with_room)
            self._tasks.spawn(later, "register-later")
            await self._registration.wait_known()
        else:
            await self._join(epoch)
            await self._registration.wait_unfenced()
        self._first_sync.begin()
        if self._replacement.is_due:
            vote = self._replacement.regain_vote(
                self.quorum, self.services.node_id, self.services.clock
            )
            self._tasks.spawn(vote, "regain-vote")
        self._readiness.started()

    async def leave(self) -> None:
        """Let others take over the led partitions, while this node can still be reached.

        The node serves on. New appends wait for the next leaders, so that no outcome is unknown.
        """
        self._tasks.cancel()
        gate = self.services.partitions.gate
        if len(self.services.metadata.image.brokers) > 1:
            gate.close()
        await self._until_committed()
        is_handed_over = await self.controller.shut_down(LEAVE_TIMEOUT_S)
        # A partition without a successor is led here to the end.
        gate.reopen()
        if not is_handed_over:
            logger.warning(
                "stopping with some led partitions not handed over: see the controller's log"
            )
        await self.quorum.resign_leadership()

    async def _until_committed(self) -> None:
        """Return once every record in a log led here is committed, or late."""
        clock = self.services.clock
        deadline = clock.monotonic() + COMMITTED_TIMEOUT_S
        while clock.monotonic() < deadline and any(
            partition.high_watermark < partition.log_end_offset
            for partition in self.services.replicas.led()
        ):
            await clock.sleep(COMMITTED_POLL_S)

    async def close(self) -> None:
        """Stop cleanly, with acknowledged records durable and no scan at the next start."""
        self._readiness.stopping()
        await self._tasks.close()
        await self.coordinators.close()
        await self.data.close()
        await self.services.logs.close()
        await self.controller.close()
        await self.quorum.close()

    def _catching_up(self) -> str | None:
        if self._replacement.is_due:
            return "The node is in a lost one's place, and has not got its vote back yet."
        waiting = self._first_sync.waiting()
        if not waiting:
            return None
        return (
            f"{counted(len(waiting), 'replica')} not in sync yet since the node's start: "
            f"{named(waiting)}."
        )

    async def _join(self, epoch: BrokerEpoch) -> None:
        """Take part in replication, and only then send heartbeats to the controller."""
        await self.data.join()
        self.controller.registered(epoch)

    async def _registered_with_room(self, epoch: BrokerEpoch) -> None:
        await self._join(epoch)
        logger.info("the disk has room again: accepting writes")
        self._disk_watch.registration_succeeded()
        self.writes.update()

    def _role_changed(self) -> None:
        is_new = self._state_machine.image.cluster_id is None
        if self.quorum.is_active and is_new and not self._creating_cluster:
            self._creating_cluster = True
            self._tasks.spawn(self._create_cluster(), "create-cluster")

    async def _create_cluster(self) -> None:
        try:
            await create_cluster(self.quorum, self.services.clock, self.services.randomness)
        finally:
            self._creating_cluster = False

    def _lease_changed(self) -> None:
        if self.permit.is_cut_off and self.not_ready is None:
            logger.warning("cut off from the controller: rejecting writes")
        self.writes.update()
