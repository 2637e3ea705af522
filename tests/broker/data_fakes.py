"""A node with topics in memory: the real partitions and waiting, over logs that are lists."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from raftlog.coordinator.shard.status import CoordinatorStatus
from raftlog.metadata.image import MetadataImage
from raftlog.record.batch import RecordBatch
from raftlog.record.codec import BatchBuilder, Record, decode
from raftlog.record.compression import Compression
from raftlog.record.errors import OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID, LogError
from raftlog.record.header import parse_header
from raftlog.record.types import (
    AbortedTransaction,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionId,
    TopicId,
)
from raftlog.replication.manager import ReplicaListener
from raftlog.replication.partition import Host, Partition, not_led_here, wait_for_data
from raftlog.routing.forwarding import Forwarder
from raftlog.routing.leader_gate import LeaderGate
from raftlog.routing.router import PartitionRouter
from raftlog.storage.compaction.rewrite import refuse_keyless
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.log.core import Listeners, TombstoneHold
from raftlog.storage.log.log import Log
from raftlog.storage.producers.entry import NO_TRANSACTIONS, Terms
from raftlog.storage.producers.state import ProducerStates
from raftlog.storage.types import AppendResult, LogConfig, ReadResult
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.time import SystemClock
from tests.http.fakes import FakeMetadata
from tests.record.batches import stamped
from tests.replication.permits import SwitchedPermit

NOW_MS = 1_700_000_000_000
NOTHING = Offset(0)
MAX_MESSAGE_BYTES = 1_048_588


@dataclass
class MemoryLog:
    """A log with its batches in a list, and each producer's last batch."""

    config: LogConfig = field(default_factory=LogConfig)
    log_start_offset: Offset = NOTHING
    log_end_offset: Offset = NOTHING
    failure: LogError | None = None
    batches: list[bytes] = field(default_factory=list)
    appends: int = 0
    append_error: LogError | None = None
    read_error: LogError | None = None
    hold_flush: bool = False
    now_ms: int = -1
    size_bytes: int = 0

    def __post_init__(self) -> None:
        self.flushed_offset = self.high_watermark = Offset(0)
        self.flush_mode = self.config.flush
        self.possible_loss = None
        self.leader_epochs = LeaderEpochs()
        self._bases: list[int] = []
        self._producers: dict[tuple[int, int], tuple[int, int, AppendResult]] = {}
        self.producers = ProducerStates()
        """Always empty: no test here writes in transactions."""
        self.listeners = Listeners()
        self.appender = self.reader = self.operations = self

    def note_high_watermark(self, offset: Offset) -> None:
        self.high_watermark = offset

    def hold_tombstones(self, hold: TombstoneHold | None) -> None:
        """It never compacts."""

    def become_leader(self, leader_epoch: LeaderEpoch) -> None:
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    async def append(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: LeaderEpoch,
        *,
        guard: Callable[[], None] | None = None,
        terms: Terms = NO_TRANSACTIONS,
    ) -> list[AppendResult]:
        if self.append_error is not None:
            raise self.append_error
        if self.config.compacts:
            for batch in batches:
                refuse_keyless(batch, decompressed_bytes_max=MAX_MESSAGE_BYTES)
        if guard is not None:
            guard()
        self.appends += 1
        results = [self._append(batch, leader_epoch, terms) for batch in batches]
        if not self.hold_flush:
            asyncio.get_running_loop().call_soon(self.flush_now)
        return results

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        return high_watermark

    def _append(self, batch: RecordBatch, leader_epoch: LeaderEpoch, terms: Terms) -> AppendResult:
        header = batch.header
        identity = (header.producer_id, header.producer_epoch)
        if header.producer_id >= 0 and header.base_sequence >= 0:
            nothing = AppendResult(Offset(0), Offset(0))
            base, count, result = self._producers.get(identity, (0, 0, nothing))
            if count and (header.base_sequence, header.record_count) == (base, count):
                return AppendResult(result.base_offset, result.last_offset, duplicate=True)
            may_start = terms.may_start_anywhere and not count
            if header.base_sequence != (base + count) % 2**31 and not may_start:
                raise LogError(OUT_OF_ORDER_SEQUENCE if count else UNKNOWN_PRODUCER_ID)
        offset = self.log_end_offset
        data = b"".join(stamped(batch, offset, leader_epoch))
        self._bases.append(offset)
        self.batches.append(data)
        self.size_bytes += len(data)
        self.log_end_offset = Offset(offset + header.last_offset_delta + 1)
        for callback in self.listeners.appended:
            callback(offset, self.log_end_offset, [data], len(data))
        result = AppendResult(offset, Offset(self.log_end_offset - 1), self.now_ms)
        if header.producer_id >= 0 and header.base_sequence >= 0:
            self._producers[identity] = (header.base_sequence, header.record_count, result)
        return result

    def expect_sequence(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Assume the producer's batches up to `sequence` as appended."""
        nothing = AppendResult(Offset(0), Offset(0))
        self._producers[producer_id, epoch] = (sequence - 1, 1, nothing)

    def flush_now(self) -> None:
        self.flushed_offset = self.log_end_offset
        for callback in self.listeners.flushed:
            callback(self.flushed_offset)

    async def read(
        self, start: Offset, *, end: Offset, max_bytes: int, min_one: bool = True
    ) -> ReadResult:
        if self.read_error is not None:
            raise self.read_error
        index = max(bisect_right(self._bases, start) - 1, 0)
        taken: list[bytes] = []
        size = 0
        next_offset = start
        for base, data in zip(self._bases[index:], self.batches[index:], strict=True):
            if base >= end or (taken and size + len(data) > max_bytes):
                break
            taken.append(data)
            size += len(data)
            next_offset = parse_header(data).next_offset
        return ReadResult(b"".join(taken), Offset(next_offset))

    async def read_committed(
        self, start: Offset, *, end: Offset, max_bytes: int
    ) -> tuple[ReadResult, tuple[AbortedTransaction, ...]]:
        return await self.read(start, end=end, max_bytes=max_bytes), ()

    async def delete_records_before(self, offset: Offset) -> Offset:
        self.log_start_offset = max(self.log_start_offset, offset)
        return self.log_start_offset

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, end: Offset
    ) -> tuple[Offset, int] | None:
        for data in self.batches:
            for record in decode(
                RecordBatch(parse_header(data), data), decompressed_bytes_max=1 << 20
            ):
                stamp = record.timestamp or 0
                if record.offset < end and stamp >= timestamp_ms:
                    return Offset(record.offset), stamp
        return None

    async def offset_of_newest_timestamp(self, *, end: Offset) -> tuple[Offset, int] | None:
        records = [
            (-(record.timestamp or 0), record.offset)
            for data in self.batches
            for record in decode(
                RecordBatch(parse_header(data), data), decompressed_bytes_max=1 << 20
            )
            if record.offset < end
        ]
        if not records:
            return None
        timestamp, offset = min(records)
        return Offset(offset), -timestamp


class MemoryReplicas:
    """A ReplicaManager over logs in memory."""

    def __init__(self, metadata: FakeMetadata, node_id: int = 1) -> None:
        self.metadata = metadata
        self.node_id = node_id
        self.host = Host(
            broker_id=BrokerId(node_id),
            clock=SystemClock(),
            cluster_clock=ClusterClock(SystemClock()),
            permit=SwitchedPermit(),
            brokers=lambda: metadata.image.brokers,
        )
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.offline: dict[tuple[str, int], LogError] = {}

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    def on_lead_begun(self, listener: ReplicaListener) -> None:
        self.host.lead_listeners.append(listener)

    def partition(self, topic: str, partition: int) -> Partition:
        row = self.metadata.image.partition(topic, partition)
        if (topic, partition) in self.offline:
            raise self.offline[topic, partition]
        if row.leader != self.node_id:
            raise not_led_here(topic, row, self.image.brokers)
        return self.here(topic, partition)

    def replica(self, topic_id: TopicId, partition: PartitionId) -> Partition | None:
        topic = self.image.topics_by_id[topic_id]
        held = self.node_id in topic.partitions[partition].replicas
        return self.here(topic.name, partition) if held else None

    def here(self, topic: str, partition: int) -> Partition:
        """The replica, led here or not."""
        row = self.metadata.image.partition(topic, partition)
        found = self.partitions.get((topic, partition))
        if found is None:
            image = self.metadata.image.topic(topic)
            size = int(image.configs.get("max.message.bytes", MAX_MESSAGE_BYTES))
            found = self.partitions[topic, partition] = Partition(
                topic=topic,
                topic_id=image.topic_id,
                log=cast(Log, MemoryLog(LogConfig(max_message_bytes=size))),
                image=row,
                min_insync_replicas=1,
                host=self.host,
            )
        elif found.image is not row:
            found.update(row, 1)
        return found

    wait_for_data = staticmethod(wait_for_data)

    def partitions_of(self, topic: str) -> list[Partition]:
        count = len(self.metadata.image.topic(topic).partitions)
        return [self.partition(topic, number) for number in range(count)]


class DataNode:
    """The services, with topics `one` (1 partition) and `six` (6)."""

    def __init__(
        self,
        metadata: FakeMetadata | None = None,
        node_id: int = 1,
        forwarder: Forwarder | None = None,
    ) -> None:
        self.metadata = metadata or FakeMetadata(brokers=1)
        self.replicas = MemoryReplicas(self.metadata, node_id)
        self.partitions = PartitionRouter(
            self.replicas,
            broker_id=BrokerId(node_id),
            max_message_bytes=lambda topic: int(
                topic.configs.get("max.message.bytes", MAX_MESSAGE_BYTES)
            ),
            gate=LeaderGate(),
            forwarder=forwarder,
        )
        clock: Any = SimpleNamespace(time_ms=lambda: NOW_MS, monotonic=time.monotonic)
        self.services: Any = SimpleNamespace(
            replicas=self.replicas,
            partitions=self.partitions,
            metadata=self.metadata,
            coordinators=None,
            coordination=CoordinatorStatus,
            clock=clock,
            cluster_clock=ClusterClock(clock),
            node_id=BrokerId(node_id),
            cluster_id="fake-cluster",
            quorum=SimpleNamespace(leader_id=1),
            readiness=SimpleNamespace(reason=None),
        )

    def log(self, topic: str = "one", partition: int = 0) -> MemoryLog:
        """A partition's log."""
        return cast(MemoryLog, cast(object, self.replicas.here(topic, partition).log))

    def record_count(self) -> int:
        """Records in all partitions."""
        return sum(one.log_end_offset for one in self.replicas.partitions.values())


def waiting_readers(partition: Partition) -> int:
    """Number of readers waiting at a partition."""
    return len(partition.readers)


def records_of(data: bytes) -> Sequence[Record]:
    """The records of one batch."""
    return decode(RecordBatch(parse_header(data), data), decompressed_bytes_max=1 << 24)


def batch_of(values: Sequence[bytes], compression: Compression = Compression.GZIP) -> RecordBatch:
    """A compressible batch: small, however large its records."""
    builder = BatchBuilder(compression, 1 << 30)
    for value in values:
        builder.append(0, None, value)
    data = bytes(builder.build())
    return RecordBatch(parse_header(data), data)


def contents(log: MemoryLog) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all records."""
    return [(record.key, record.value) for data in log.batches for record in records_of(data)]
