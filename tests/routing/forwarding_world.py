"""Three forwarding nodes on the simulated network; their partitions are lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from raftlog.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from raftlog.record.batch import RecordBatch
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.control import Marker
from raftlog.record.errors import NO_LEADER, OFFSET_OUT_OF_RANGE, LogError
from raftlog.record.header import parse_header
from raftlog.record.types import (
    AbortedTransaction,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionId,
    ProducerEpoch,
    ProducerId,
    TopicId,
)
from raftlog.replication.partition import Acks, Fetched, Isolation, Partition
from raftlog.routing.forwarding import Forwarder
from raftlog.routing.forwarding_server import ForwardingServer
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.leader_gate import LeaderGate
from raftlog.routing.router import PartitionRouter
from raftlog.storage.leader_epochs import EpochEndOffset
from raftlog.storage.producers.state import ProducerDescription
from raftlog.storage.types import AppendResult, LogConfig
from tests.simulation.world import Process, World, run

T = TypeVar("T")

NODES = (1, 2, 3)
TOPIC_ID = TopicId("a" * 32)
TOPIC = "t"
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
CLUSTER_ID = "cluster"


def batch(*values: bytes, sequence: int = -1, producer_id: int = -1) -> RecordBatch:
    """A batch of records without keys."""
    builder = BatchBuilder(
        Compression.NONE,
        1 << 30,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(0 if producer_id >= 0 else -1),
        base_sequence=sequence,
    )
    for value in values:
        builder.append(0, None, value)
    data = bytes(builder.build())
    return RecordBatch(parse_header(data), memoryview(data))


@dataclass
class Records:
    """The records of all replicas."""

    batches: list[bytes] = field(default_factory=list)
    results: list[AppendResult] = field(default_factory=list)
    seen: dict[tuple[int, int], AppendResult] = field(default_factory=dict)
    end: int = 0
    start: int = 0

    def append(self, one: RecordBatch) -> AppendResult:
        header = one.header
        known = self.seen.get((header.producer_id, header.base_sequence))
        if header.producer_id >= 0 and known is not None:
            return AppendResult(known.base_offset, known.last_offset, duplicate=True)
        last = self.end + header.record_count - 1
        result = AppendResult(Offset(self.end), Offset(last))
        self.end = last + 1
        self.batches.append(bytes(one.data))
        self.results.append(result)
        self.seen[header.producer_id, header.base_sequence] = result
        return result


class FakePartition:
    """One node's replica; leads by the node's own metadata."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.topic, self.topic_id, self.partition = TOPIC, TOPIC_ID, PartitionId(0)
        self.name = f"{TOPIC}-0"
        self.log = type("Log", (), {"config": LogConfig(max_message_bytes=MAX_MESSAGE_BYTES)})()
        self.errors: list[LogError] = []
        """Raised by the next operations, before any effect."""
        self.late_errors: list[LogError] = []
        """Raised by the next appends, after the records were written."""
        self.calls: list[str] = []
        self.gate: asyncio.Event | None = None
        """Gate before operations."""
        self.after: asyncio.Event | None = None
        """Gate of appends after their write."""
        self.is_closed = False
        self.known_end: int | None = None
        """As a follower: its records, all committed."""
        self.waiters: dict[int, tuple[int, Callable[[], None]]] = {}
        self.stable = Offset(2**62)
        """First offset of an open transaction."""
        self.aborted: tuple[AbortedTransaction, ...] = ()

    def writer(self) -> FakePartition:
        return self

    @property
    def records(self) -> Records:
        return self.node.cluster.records

    @property
    def high_watermark(self) -> Offset:
        return Offset(self.records.end if self.known_end is None else self.known_end)

    log_end_offset = high_watermark

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self.records.start)

    def require_leader(self) -> FakePartition:
        return self

    def known_end_offset(self) -> Offset:
        return self.high_watermark

    async def confirm(self) -> None:
        await self._begin("confirm")

    may_be_led_elsewhere = True

    async def end_offset(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Offset:
        await self.confirm()
        return self.readable_end(isolation)

    @property
    def last_stable_offset(self) -> Offset:
        return min(self.stable, self.high_watermark)

    def readable_end(self, isolation: Isolation) -> Offset:
        committed = isolation is Isolation.READ_COMMITTED
        return self.last_stable_offset if committed else self.high_watermark

    @property
    def is_leader(self) -> bool:
        return self.node.replicas.image.partition(TOPIC, 0).leader == self.node.node_id

    async def _begin(self, call: str) -> None:
        self.calls.append(call)
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)

    async def append(
        self, batches: Sequence[RecordBatch], *, acks: Acks, timeout_s: float
    ) -> list[AppendResult]:
        await self._begin(f"append {acks.name} {timeout_s:.1f}")
        results = [self.records.append(one) for one in batches]
        if self.late_errors:
            raise self.late_errors.pop(0)
        if self.after is not None:
            await self.after.wait()
        return results

    async def read(
        self,
        offset: Offset,
        *,
        max_bytes: int,
        end_offset: Offset | None = None,
        any_replica: bool = False,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Fetched:
        committed = " committed" * (isolation is Isolation.READ_COMMITTED)
        await self._begin(
            f"read {offset} {max_bytes} {end_offset}{' any' * any_replica}{committed}"
        )
        if offset > self.high_watermark:
            raise LogError(OFFSET_OUT_OF_RANGE, "out of range")
        data = b""
        following = offset
        for result, content in zip(self.records.results, self.records.batches, strict=True):
            end = self.readable_end(isolation)
            is_known = result.last_offset < (end if end_offset is None else min(end, end_offset))
            if result.last_offset >= offset and is_known and (not data or len(data) < max_bytes):
                data += content
                following = Offset(result.last_offset + 1)
        return Fetched(
            data,
            following,
            self.high_watermark,
            self.log_start_offset,
            self.last_stable_offset,
            self.aborted if committed else (),
        )

    async def write_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
    ) -> None:
        await self._begin(f"marker {producer_id} {producer_epoch} {marker} {timeout_s:.1f}")

    async def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[Offset, int] | None:
        return (await self.known_offset_for_timestamp(timestamp_ms, isolation))[0]

    async def known_offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[tuple[Offset, int] | None, Offset]:
        await self._begin(f"time {timestamp_ms}")
        end = self.readable_end(isolation)
        return (None if timestamp_ms > 100 else (Offset(7), 99)), end

    async def newest_record(self, isolation: Isolation) -> tuple[Offset, int] | None:
        await self._begin(f"newest {isolation.name}")
        end = self.readable_end(isolation)
        return (Offset(end - 1), 99) if end else None

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEndOffset | None:
        return EpochEndOffset(LeaderEpoch(3), self.high_watermark) if epoch >= 3 else None

    def producers(self, count_max: int) -> list[ProducerDescription]:
        return [
            ProducerDescription(2**62 + number, 1, number, 5, -1, number or None)
            for number in range(min(count_max, 20_000))
        ]

    async def delete_records(self, before: Offset) -> Offset:
        await self._begin(f"delete {before}")
        self.records.start = self.records.end if before == -1 else before
        return Offset(self.records.start)


class FakeReplicas:
    """A node's replicas, by its own metadata."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.image = MetadataImage()
        self.mine = FakePartition(node)
        self.has_replica = True
        self.is_opening = False
        self.waits: list[float] = []
        self.wake = asyncio.Event()

    def partition(self, topic: str, partition: int) -> Partition:
        row = self.image.partition(topic, partition)
        if row.leader != self.node.node_id:
            raise LogError(NO_LEADER, f"led by {row.leader}")
        return cast(Partition, self.mine)

    def replica(self, topic_id: TopicId, partition: PartitionId) -> Partition | None:
        return cast(Partition, self.mine) if self.has_replica else None

    async def wait_for_data(
        self,
        wants: Sequence[tuple[Partition, Offset]],
        *,
        min_bytes: int,
        timeout_s: float,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> None:
        self.waits.append(timeout_s)
        if any(partition.readable_end(isolation) > offset for partition, offset in wants):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.wake.wait()
        except TimeoutError:
            pass


class Node:
    """One node's part in passing requests on."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.process: Process
        self.replicas: FakeReplicas
        self.partitions: PartitionRouter
        self.gate: LeaderGate
        self.forwarder: Forwarder
        self.server: ForwardingServer
        self.fatal: list[str] = []

    async def main(self, process: Process) -> None:
        self.process = process
        self.replicas = FakeReplicas(self)
        identity = BrokerId(self.node_id)
        self.gate = LeaderGate()
        self.forwarder = Forwarder(
            process.network,
            clock=process.clock,
            node_id=identity,
            cluster_id=lambda: CLUSTER_ID,
            broker=self.replicas.image.brokers.get,
            on_fatal=self.fatal.append,
        )
        self.partitions = PartitionRouter(
            self.replicas,
            broker_id=identity,
            max_message_bytes=lambda _: MAX_MESSAGE_BYTES,
            gate=self.gate,
            forwarder=self.forwarder,
        )
        self.server = ForwardingServer(
            self.replicas,
            self.gate,
            network=process.network,
            clock=process.clock,
            node_id=identity,
            cluster_id=lambda: CLUSTER_ID,
            on_fatal=self.fatal.append,
        )
        self.server.start()
        await asyncio.Event().wait()

    @property
    def mine(self) -> FakePartition:
        return self.replicas.mine

    def learn(self, leader: int, epoch: int) -> None:
        """Apply a leader and an epoch on the node."""
        image = self.replicas.image
        for number in NODES:
            host, _, port = self.cluster.world.address(number).rpartition(":")
            broker_epoch = BrokerEpoch(self.cluster.broker_epochs[number])
            image.brokers[BrokerId(number)] = BrokerImage(
                broker_id=BrokerId(number),
                broker_epoch=broker_epoch,
                directory_id=f"d{number}",
                incarnation="i",
                host=host,
                port=int(port),
                rack=None,
                software_version="0",
                command_version=1,
                fenced=False,
            )
        row = PartitionImage(
            partition=PartitionId(0),
            replicas=tuple(BrokerId(number) for number in NODES),
            isr=tuple(BrokerId(number) for number in NODES),
            elr=(),
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            partition_epoch=PartitionEpoch(epoch),
        )
        topic = image.topics_by_id.get(TOPIC_ID)
        topic = (
            TopicImage(topic_id=TOPIC_ID, name=TOPIC, configs={}, partitions=(row,))
            if topic is None
            else msgspec.structs.replace(topic, partitions=(row,))
        )
        image.topics_by_id[TOPIC_ID] = image.topics_by_name[TOPIC] = topic
        self.partitions.on_metadata_applied()

    def find(self, *, any_replica: bool = False) -> PartitionHandle:
        return self.partitions.find(TOPIC, 0, any_replica=any_replica)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the node."""
        return await self.process.run(work)

    async def append(self, *batches: RecordBatch, timeout_s: float = 5.0) -> list[AppendResult]:
        async def append() -> list[AppendResult]:
            return await self.find().append(batches, acks=Acks.ALL, timeout_s=timeout_s)

        return await self.run(append())

    async def read(
        self, offset: int = 0, max_bytes: int = 1 << 20, *, any_replica: bool = False
    ) -> Fetched:
        async def read() -> Fetched:
            access = self.find(any_replica=any_replica)
            return await access.read(Offset(offset), max_bytes=max_bytes)

        return await self.run(read())


class Cluster:
    """The nodes; all know node 1 as the leader of epoch 1."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records = Records()
        self.broker_epochs = dict.fromkeys(NODES, 1)
        self.nodes = {number: Node(self, number) for number in NODES}

    async def start(self) -> None:
        for number, node in self.nodes.items():
            self.world.start(number, node.main)
        await asyncio.sleep(0.001)
        self.lead(1, 1)

    def lead(self, leader: int, epoch: int, *, known_to: Sequence[int] = NODES) -> None:
        for number in known_to:
            if self.world.is_up(number):
                self.nodes[number].process.context.run(self.nodes[number].learn, leader, epoch)

    async def restart(self, number: int) -> None:
        """Start a stopped node again, as another incarnation."""
        self.broker_epochs[number] += 1
        self.world.start(number, self.nodes[number].main)
        await asyncio.sleep(0.001)


def simulate(test: Callable[[Cluster], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await test(cluster)

    run(seed, main)
