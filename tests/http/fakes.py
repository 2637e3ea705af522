"""Fakes of the node's services, for tests of the HTTP layer alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from raftlog.broker.authorize import Authorize, allow_all
from raftlog.broker.service import Broker
from raftlog.coordinator.shard.status import CoordinatorStatus
from raftlog.http.app import Ports, Server
from raftlog.http.settings import ServerSettings
from raftlog.metadata.apply.apply import apply
from raftlog.metadata.apply.cluster import ClusterSettings
from raftlog.metadata.commands import (
    KAFKA_ADDRESS_VERSION,
    Assignments,
    ClusterCreated,
    Command,
    DeleteTopic,
    RegisterBroker,
    UnfenceBroker,
)
from raftlog.metadata.decisions import admin_plans
from raftlog.metadata.decisions.elections import LogEnd, PartitionKey
from raftlog.metadata.decisions.liveness import plan_unregistration
from raftlog.metadata.image import BrokerImage, MetadataImage, TopicImage
from raftlog.raft import PeerStatus, QuorumStatus, Role, SyncTimes
from raftlog.raft.voters import Voter, VoterSet
from raftlog.record.errors import NO_CONTROLLER, OFFSET_OUT_OF_RANGE, LogError
from raftlog.record.types import BrokerId, Offset, ProducerEpoch, ProducerId, TopicId
from raftlog.replication.cluster_metadata import Operations
from raftlog.replication.manager import ReplicationStatus
from raftlog.replication.replica import TopicSettings
from raftlog.rest.routes import ROUTES
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.time import SystemClock


class FakeMetadata:
    """Decides and applies at once."""

    def __init__(self, brokers: int) -> None:
        self.image = MetadataImage()
        self.settings = TopicSettings(cluster=lambda: self.image.cluster_settings)
        self._ids = 0
        self.quorum: FakeQuorum | None = None
        self.unwritable: set[BrokerId] = set()
        self.log_ends: dict[BrokerId, LogEnd] = {}
        """Of every partition, as the brokers answer."""
        self.operations = Operations(
            lambda: self.image, self._carry_out, self._collect, lambda: self.unwritable
        )
        self.run(ClusterCreated(cluster_id="fake-cluster", created_ms=0))
        for number in range(1, brokers + 1):
            self.register(number)
            self.unfence(number)

    async def _collect(
        self, keys: Collection[PartitionKey]
    ) -> Mapping[PartitionKey, Mapping[BrokerId, LogEnd]]:
        return dict.fromkeys(keys, self.log_ends)

    def register(
        self,
        number: int,
        port: int | None = None,
        host: str = "127.0.0.1",
        kafka_port: int | None = None,
    ) -> None:
        """Register a start of a broker, which stays fenced until `unfence`."""
        self.run(
            RegisterBroker(
                v=1 if kafka_port is None else KAFKA_ADDRESS_VERSION,
                broker_id=BrokerId(number),
                directory_id=f"d{number}",
                incarnation=f"i{self._next_id()}",
                host=host,
                port=8080 + number if port is None else port,
                software_version="0",
                kafka_host=None if kafka_port is None else host,
                kafka_port=kafka_port,
            )
        )

    def unfence(self, number: int) -> None:
        broker = self.image.brokers[BrokerId(number)]
        assert isinstance(broker, BrokerImage)
        self.run(UnfenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))

    def run(self, command: Command) -> Any:
        result = apply(self.image, self.image.applied_index + 1, command)
        result.check()
        return result.value

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        assignments: Assignments | None = None,
    ) -> TopicImage:
        plan = admin_plans.plan_topic(
            self.image,
            name=name,
            partitions=1 if partitions is None else partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            topic_id=TopicId(f"{self._next_id():032x}"),
            assignments=assignments,
        )
        command = admin_plans.complete(plan)
        return cast(TopicImage, self.run(command))

    async def delete_topic(self, name: str) -> TopicImage:
        return cast(TopicImage, self.run(DeleteTopic(topic_id=self.image.topic(name).topic_id)))

    async def add_partitions(
        self, name: str, total: int, assignments: Assignments | None = None
    ) -> TopicImage:
        command = admin_plans.complete(
            admin_plans.plan_partitions(
                self.image, name=name, partitions=total, assignments=assignments
            )
        )
        return cast(TopicImage, self.run(command))

    async def alter_configs(
        self, name: str, values: Mapping[str, str], removals: Sequence[str] = ()
    ) -> TopicImage:
        command = admin_plans.plan_configs(self.image, name=name, values=values, removals=removals)
        return cast(TopicImage, self.run(command))

    async def alter_cluster_settings(
        self, values: Mapping[str, str], removals: Sequence[str] = ()
    ) -> tuple[int, Mapping[str, str]]:
        command = admin_plans.plan_cluster_settings(self.image, values=values, removals=removals)
        settings = self.run(command)
        assert isinstance(settings, ClusterSettings)
        return self.image.applied_index, settings.values

    async def unregister_broker(self, broker_id: BrokerId) -> None:
        assert self.quorum is not None
        await self.quorum.read_barrier()
        has_vote = self.quorum.voters.find(broker_id) is not None
        self.run(plan_unregistration(self.image, broker_id, has_vote=has_vote))

    async def _carry_out(self, plan: Callable[[], Iterable[Command]]) -> None:
        for command in plan():
            self.run(command)

    async def allocate_producer_id(self) -> tuple[ProducerId, ProducerEpoch]:
        return ProducerId(self._next_id()), ProducerEpoch(0)


@dataclass
class FakeQuorum:
    """A member with the state that a test sets; records the calls."""

    node_id: int
    voters: VoterSet
    leader_id: int | None = 1
    term: int = 7
    last_index: int = 120
    commit_index: int = 119
    applied_index: int = 118
    elections: int = 2
    syncs: SyncTimes = field(default_factory=lambda: SyncTimes(10, 0.5, 0.25))
    connected: dict[int, PeerStatus] = field(default_factory=dict)
    refusal: LogError | None = None
    """The error of every change and every barrier."""
    asked: list[tuple[str, int | None]] = field(default_factory=list)
    barriers: int = 0

    @property
    def is_active(self) -> bool:
        return self.leader_id == self.node_id

    def peers(self) -> dict[int, PeerStatus]:
        return dict(self.connected)

    def connect(self, node_id: int, *, match_index: int | None = None) -> None:
        """Connect another member."""
        is_voter = self.voters.find(node_id) is not None
        self.connected[node_id] = PeerStatus(
            node_id, f"10.0.0.{node_id}:8082", is_voter, match_index, 0.0314, 0.0314
        )

    def lose_majority(self) -> None:
        """As after an election timeout without any other voter."""
        self.leader_id = None
        self.connected.clear()
        self.refusal = LogError(NO_CONTROLLER)

    def status(self) -> QuorumStatus:
        return QuorumStatus(
            role=Role.LEADER if self.is_active else Role.FOLLOWER,
            leader_id=self.leader_id,
            is_active=self.is_active,
            term=self.term,
            last_index=self.last_index,
            commit_index=self.commit_index,
            applied_index=self.applied_index,
            snapshot_index=1,
            journal_bytes=4096,
            elections=self.elections,
            syncs=self.syncs,
            failure=None,
        )

    async def read_barrier(self) -> int:
        self._refuse()
        self.barriers += 1
        return self.applied_index

    async def add_voter(self, node_id: int) -> None:
        self._refuse()
        self.asked.append(("add", node_id))

    async def remove_voter(self, node_id: int) -> None:
        self._refuse()
        self.voters.remove(node_id)  # raises if that is not possible
        self.asked.append(("remove", node_id))

    async def transfer_leadership(self, node_id: int | None) -> None:
        self._refuse()
        self.asked.append(("transfer", node_id))

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal


@dataclass
class FakePartition:
    """A partition of 100 records; only deletion works."""

    log_start_offset: int = 0
    high_watermark: int = 100

    async def delete_records(self, before: Offset) -> Offset:
        target = self.high_watermark if before == -1 else before
        if target > self.high_watermark:
            raise LogError(OFFSET_OUT_OF_RANGE)
        self.log_start_offset = max(self.log_start_offset, target)
        return Offset(self.log_start_offset)


@dataclass
class FakeReplicas:
    """The partitions of the image."""

    metadata: FakeMetadata
    partitions: dict[tuple[str, int], FakePartition] = field(default_factory=dict)

    opening_count = 0
    open_count = 0

    def partition(self, topic: str, partition: int) -> FakePartition:
        self.metadata.image.partition(topic, partition)
        return self.partitions.setdefault((topic, partition), FakePartition())

    def led(self) -> Iterator[FakePartition]:
        return iter(())


@dataclass
class FakeLog:
    size_bytes: int


@dataclass
class FakeLogs:
    """Logs of given sizes."""

    sizes: dict[tuple[str, int], int] = field(default_factory=dict)

    def logs(self) -> dict[tuple[str, int], FakeLog]:
        return {key: FakeLog(size) for key, size in self.sizes.items()}

    clock_skew_ms: int | None = -1_500
    free_bytes: int = 1 << 30

    def totals(self) -> Any:
        return SimpleNamespace(
            replicas=0,
            failed=0,
            damaged=0,
            size_bytes=0,
            segments=0,
            open_files=0,
            syncs=0,
            producers=4,
            refused_producers=3,
            clock_skew_ms=-1_500,
            free_bytes=0,
            scrubbed_bytes=4096,
            scrub_damage=2,
        )


@dataclass
class FakeNode:
    """The services of a node, and their settings for a test."""

    brokers: int = 1
    not_ready: str | None = None
    catching_up: str | None = None
    voters: int = 1

    def __post_init__(self) -> None:
        self.quorum = FakeQuorum(
            1, VoterSet(tuple(Voter(n, f"10.0.0.{n}", 8082) for n in range(1, self.voters + 1)))
        )
        self.metadata = FakeMetadata(self.brokers)
        self.metadata.quorum = self.quorum
        self.replicas = FakeReplicas(self.metadata)
        self.logs = FakeLogs()
        self.replication = ReplicationStatus()
        self.services: Any = SimpleNamespace(
            replicas=self.replicas,
            partitions=SimpleNamespace(find=self.replicas.partition),
            metadata=self.metadata,
            quorum=self.quorum,
            logs=self.logs,
            clock=SystemClock(),
            cluster_clock=ClusterClock(SystemClock()),
            node_id=BrokerId(1),
            replication=lambda: self.replication,
            coordination=CoordinatorStatus,
            cluster_id="fake-cluster",
            readiness=FakeReadiness(self),
            catching_up=lambda: self.catching_up,
            disk=SimpleNamespace(
                can_write=lambda: self.services.node_id not in self.metadata.unwritable
            ),
        )


class FakeReadiness:
    """The readiness that a test gives its node."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    @property
    def reason(self) -> str | None:
        return self._node.not_ready


async def start_server(
    services: Any, settings: ServerSettings, *, authorize: Authorize = allow_all, **options: Any
) -> Server:
    """Start the server of a node with these services, like the node's process."""
    broker = Broker(services, settings.for_broker(), authorize)
    ports = await Ports.bind(settings)
    return await Server.start(broker, settings, ROUTES, ports=ports, **options)
