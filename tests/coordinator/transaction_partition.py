"""A led partition of `__transaction_state` over a log in memory, with a leader of all markers."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.shard.load import load_shard
from raftlog.coordinator.shard.shard import Shard
from raftlog.coordinator.transactions import messages
from raftlog.coordinator.transactions.kind import (
    TOPIC,
    TransactionCoordinator,
    TransactionKind,
)
from raftlog.coordinator.transactions.markers import MarkerWriter
from raftlog.coordinator.transactions.messages import (
    EndTransaction,
    Initialized,
    InitProducer,
    Request,
    TopicPartition,
    Verification,
    VerifyOrAdd,
    successful,
)
from raftlog.coordinator.transactions.transaction import VERSION_2, TransactionSettings
from raftlog.metadata.image import PartitionImage
from raftlog.peer.tasks import TaskGroup
from raftlog.record.control import Marker
from raftlog.record.errors import UNKNOWN_TOPIC, LogError
from raftlog.record.types import (
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
)
from raftlog.world.cluster_clock import ClusterClock
from tests.broker.data_fakes import DataNode, MemoryLog
from tests.controller.clock import SteppedClock
from tests.coordinator.calls import carry_out

A, B = TopicPartition("one", 0), TopicPartition("six", 5)

R = TypeVar("R")


class Leaders:
    """Stands in for the router: the leaders of all partitions, which write every marker."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, Producer, Marker]] = []
        self.failures: deque[LogError] = deque()
        """Raised by the next writes, one each."""
        self.refusals: dict[ProducerId, LogError] = {}
        """Raised by every write of these producers."""
        self.unknown: set[TopicPartition] = set()
        self.attempts = 0
        self.held: dict[ProducerId, asyncio.Event] = {}
        """Markers of these producers wait for the event."""

    def find(self, topic: str, partition: int) -> Any:
        place = TopicPartition(topic, partition)
        if place in self.unknown:
            raise LogError(UNKNOWN_TOPIC)
        return _Handle(self, place)


class _Handle:
    def __init__(self, leaders: Leaders, place: TopicPartition) -> None:
        self._leaders = leaders
        self._place = place

    async def write_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        self._leaders.attempts += 1
        await asyncio.sleep(0)
        if producer_id in self._leaders.held:
            await self._leaders.held[producer_id].wait()
        if self._leaders.failures:
            raise self._leaders.failures.popleft()
        if producer_id in self._leaders.refusals:
            raise self._leaders.refusals[producer_id]
        self._leaders.written.append((self._place, Producer(producer_id, producer_epoch), marker))


class TransactionPartition:
    """The partition, and requests to its shard."""

    def __init__(self, node: DataNode) -> None:
        self.node = node
        self.clock = SteppedClock()
        self.fatal: list[str] = []
        self.tasks = TaskGroup(self.fatal.append)
        self.leaders = Leaders()
        markers = MarkerWriter(self.leaders, self.clock)  # type: ignore[arg-type]
        self.kind = TransactionKind(
            node.metadata.allocate_producer_id, markers.run, TransactionSettings()
        )
        node.replicas.host = replace(node.replicas.host, confirm=self._learn)
        self.partition = node.replicas.here(TOPIC, 0)
        self.log: MemoryLog = node.log(TOPIC)
        self.newest: PartitionImage | None = None
        """The row that a read barrier applies."""
        self.barriers = 0
        self.nothing_learned: LogError | None = None
        """Error of a read barrier."""

    @classmethod
    async def start(cls) -> TransactionPartition:
        node = DataNode()
        await node.metadata.create_topic(TOPIC, partitions=1)
        return cls(node)

    async def _learn(self) -> None:
        self.barriers += 1
        if self.nothing_learned is not None:
            raise self.nothing_learned
        if self.newest is not None:
            self.partition.update(self.newest, 1)

    def replicate(self) -> None:
        """Give the partition a second replica, which may be elected."""
        self.partition.update(self.row(), 1)

    def row(self, leader: int = 1) -> PartitionImage:
        """The partition with two replicas, after the present row."""
        image = self.partition.image
        return msgspec.structs.replace(
            image,
            replicas=(BrokerId(1), BrokerId(2)),
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(image.leader_epoch + (leader != image.leader)),
            partition_epoch=PartitionEpoch(image.partition_epoch + 1),
        )

    async def load(self, *, writes_markers: bool = True) -> TransactionCoordinator:
        """A shard that serves, as the service runs it."""
        role = self.partition.require_leader()
        shard: TransactionCoordinator = Shard(
            self.kind,
            self.partition,
            role,
            clock=self.clock,
            cluster_clock=ClusterClock(self.clock),
            image=lambda: self.node.metadata.image,
            tasks=self.tasks,
        )
        role.end_listeners.append(shard.end)
        await load_shard(shard, self.clock.monotonic)
        self.tasks.spawn(shard.run(), "shard")
        if writes_markers:
            self.tasks.spawn(self.kind.beside(shard), "markers")
        return shard

    async def call(self, shard: TransactionCoordinator, request: Request, kind: type[R]) -> R:
        response = successful(await carry_out(shard, request))
        assert isinstance(response, kind)
        return response

    async def init(self, shard: TransactionCoordinator, transactional_id: str = "t") -> Producer:
        request = InitProducer(transactional_id, 60_000)
        return (await self.call(shard, request, Initialized)).producer

    async def begin(
        self,
        shard: TransactionCoordinator,
        *places: TopicPartition,
        transactional_id: str = "t",
    ) -> Producer:
        """An open transaction with these partitions."""
        producer = await self.init(shard, transactional_id)
        one = Verification(transactional_id, producer, places, is_addition=True)
        verified = await self.call(shard, VerifyOrAdd((one,)), messages.Verified)
        assert verified.outcomes == (None,)
        return producer

    async def end(
        self,
        shard: TransactionCoordinator,
        producer: Producer,
        *,
        is_commit: bool = True,
        transactional_id: str = "t",
    ) -> Producer:
        request = EndTransaction(transactional_id, producer, is_commit, VERSION_2)
        return (await self.call(shard, request, messages.Ended)).producer

    async def state(self, shard: TransactionCoordinator, transactional_id: str = "t") -> str:
        request = messages.DescribeTransaction(transactional_id)
        return (await self.call(shard, request, messages.TransactionDescription)).summary.state

    async def close(self) -> None:
        await self.tasks.close()
        assert not self.fatal, self.fatal
