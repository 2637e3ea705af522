"""One led partition over a log in memory, and shards of registers on it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from raftlog.coordinator.shard.decision import Producer
from raftlog.coordinator.shard.load import load_shard
from raftlog.coordinator.shard.shard import Shard
from raftlog.peer.tasks import TaskGroup
from raftlog.record.batch import RecordBatch, iterate_batches, sealed
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.compression import Compression
from raftlog.record.header import CONTROL_BIT, parse_header
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionEpoch
from raftlog.world.cluster_clock import ClusterClock
from tests.broker.data_fakes import DataNode, MemoryLog
from tests.controller.clock import SteppedClock
from tests.coordinator import registers
from tests.coordinator.registers import (
    KIND,
    TOPIC,
    Get,
    Increment,
    RegisterShard,
    Response,
    carry_out,
)

T = TypeVar("T")
DEADLINE_S = 10.0


class ShardHarness:
    """The partition `__registers-0`, led by this node."""

    def __init__(self, node: DataNode) -> None:
        self.node = node
        self.clock = SteppedClock()
        self.cluster_clock = ClusterClock(self.clock)
        self.fatal: list[str] = []
        self.tasks = TaskGroup(self.fatal.append)
        self.partition = node.replicas.here(TOPIC, 0)
        self.log: MemoryLog = node.log(TOPIC)
        self._operations = 0

    @classmethod
    async def start(cls) -> ShardHarness:
        node = DataNode()
        await node.metadata.create_topic(TOPIC, partitions=1)
        return cls(node)

    async def load(self) -> RegisterShard:
        """A shard that serves, with its timers running."""
        shard = self.empty()
        await load_shard(shard, self.clock.monotonic)
        self.tasks.spawn(shard.run(), "shard")
        return shard

    def empty(self) -> RegisterShard:
        role = self.partition.require_leader()
        shard: RegisterShard = Shard(
            KIND,
            self.partition,
            role,
            clock=self.clock,
            cluster_clock=self.cluster_clock,
            image=lambda: self.node.metadata.image,
            tasks=self.tasks,
        )
        role.end_listeners.append(shard.end)
        return shard

    def request(self, shard: RegisterShard, request: Any) -> asyncio.Task[Response]:
        return asyncio.ensure_future(carry_out(shard, request))

    def increment(
        self, shard: RegisterShard, register: str = "r", client: str = "c", operation: str = ""
    ) -> asyncio.Task[Response]:
        self._operations += 1
        name = operation or f"{client}/{self._operations}"
        return self.request(shard, Increment(register, client, name))

    async def value(self, shard: RegisterShard, register: str = "r") -> int:
        return (await self.request(shard, Get(register))).value

    def lead(self, leader: int) -> None:
        """Apply another leader, or this node again, in the next leader epoch."""
        row = self.partition.image
        self.partition.update(
            msgspec.structs.replace(
                row,
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(row.leader_epoch + 1),
                partition_epoch=PartitionEpoch(row.partition_epoch + 1),
            ),
            1,
        )

    def set_isr(self, minimum: int) -> None:
        """Set min.insync.replicas: 1 is fulfilled, 2 is not."""
        self.partition.min_insync_replicas = minimum

    def written(self) -> list[list[str]]:
        """The operations of each batch in the log."""
        found = []
        for data in self.log.batches:
            for batch in iterate_batches(data):
                records = decode(batch, decompressed_bytes_max=1 << 24)
                found.append(_operations(records))
        return found

    async def close(self) -> None:
        await self.tasks.close()
        assert not self.fatal, self.fatal


def _operations(records: Sequence[Any]) -> list[str]:
    operations = []
    for each in records:
        decoded = registers.decode_record(each.key, each.value)
        assert decoded is not None
        key: Any = decoded.key
        value: Any = decoded.value
        if key.partition == registers.REGISTER and value is not None:
            operations.append(value.metadata)
    return operations


def marker(producer: Producer, *, committed: bool) -> RecordBatch:
    """A control batch that ends the producer's transaction."""
    builder = BatchBuilder(
        Compression.NONE,
        1 << 30,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transactional=True,
    )
    builder.append(0, struct.pack(">hh", 0, int(committed)), struct.pack(">hi", 0, 5))
    data = bytearray(builder.build())
    header = parse_header(data)
    header = sealed(data, header._replace(attributes=header.attributes | CONTROL_BIT))
    return RecordBatch(header, memoryview(data))
