"""Replicas on several brokers over real logs: the test itself sends, acknowledges and applies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from raftlog.metadata.apply.cluster import PRODUCER_ID_MAX
from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.batch import RecordBatch
from raftlog.record.errors import LogError
from raftlog.record.types import (
    LEADER_EPOCH_MAX,
    BrokerEpoch,
    BrokerId,
    Buffer,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from raftlog.replication.follower.divergence import Diverging, Outrun
from raftlog.replication.partition import Host, Partition
from raftlog.storage.manager import LogManager
from raftlog.storage.types import FlushMode, LogConfig
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.time import SystemClock
from tests.replication.permits import SwitchedPermit
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import batch, read_all

TOPIC_ID = TopicId("0" * 32)
BROKER_EPOCH = BrokerEpoch(7)
READ_BYTES = 1 << 20


def row(
    leader: int,
    epoch: int,
    *,
    isr: tuple[int, ...] = (1, 2),
    replicas: tuple[int, ...] = (1, 2),
    partition_epoch: int | None = None,
    unclean_epoch: int = -1,
) -> PartitionImage:
    """Without `partition_epoch`, it is derived from the leader epoch."""
    return PartitionImage(
        partition=PartitionId(0),
        replicas=tuple(map(BrokerId, replicas)),
        isr=tuple(map(BrokerId, isr)),
        elr=(),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch * 10 if partition_epoch is None else partition_epoch),
        unclean_epoch=LeaderEpoch(unclean_epoch),
    )


def broker(number: int) -> BrokerImage:
    return BrokerImage(
        broker_id=BrokerId(number),
        broker_epoch=BROKER_EPOCH,
        directory_id=f"d{number}",
        incarnation="i",
        host=f"h{number}",
        port=8082,
        rack=None,
        software_version="",
        command_version=1,
        fenced=False,
    )


def one(*values: bytes) -> list[RecordBatch]:
    """One batch of these records."""
    return [batch(values)]


@dataclass
class HandFeed:
    """A feed that only notes its calls."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch = BROKER_EPOCH
    sent: list[tuple[Offset, Offset]] = field(default_factory=list)
    marks: int = 0
    ended_by: LogError | None = None

    def on_appended(
        self,
        base_offset: Offset,
        next_offset: Offset,
        buffers: Sequence[Buffer],
        size_bytes: int,
    ) -> None:
        assert sum(map(len, buffers)) == size_bytes
        self.sent.append((base_offset, next_offset))

    def on_watermarks(self) -> None:
        self.marks += 1

    def on_ended(self, error: LogError) -> None:
        assert self.ended_by is None, "told once"
        self.ended_by = error


@dataclass
class Node:
    """One broker with its replica of the one partition."""

    number: int
    brokers: dict[BrokerId, BrokerImage]
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    config: LogConfig = field(default_factory=LogConfig)
    may_act: bool = True
    is_registered: bool = True
    newest: PartitionImage | None = None
    """The row that a read barrier applies."""
    nothing_learned: LogError | None = None
    """Error of a read barrier."""
    coordinators: dict[PartitionId | None, int] = field(default_factory=dict)
    """Coordinators' epochs of the applied metadata."""
    newest_coordinators: dict[PartitionId | None, int] = field(default_factory=dict)
    """Coordinators' epochs that a read barrier applies."""
    next_producer_id: int = PRODUCER_ID_MAX
    newest_producer_id: int | None = None
    """First unissued producer id that a read barrier applies."""
    barriers: int = 0
    isr_changes_due: int = 0
    logs: LogManager = field(init=False)
    partition: Partition = field(init=False)

    async def open(self, image: PartitionImage) -> Partition:
        """Open the log on the disk, in the role that `image` gives."""
        self.logs = await LogManager.open(self.disk, SystemClock())
        log = await self.logs.open_replica(TOPIC_ID, PartitionId(0), self.config, create=True)
        self.partition = Partition(
            topic="t",
            topic_id=TOPIC_ID,
            log=log,
            image=image,
            min_insync_replicas=min(2, len(image.replicas)),
            host=Host(
                broker_id=BrokerId(self.number),
                clock=SystemClock(),
                cluster_clock=ClusterClock(SystemClock()),
                permit=SwitchedPermit(lambda: self.may_act, lambda: self.is_registered),
                brokers=lambda: self.brokers,
                on_isr_change_due=self._on_isr_change_due,
                confirm=self._learn,
                next_producer_id=lambda: self.next_producer_id,
                newest_coordinator=lambda number: self.coordinators.get(number, LEADER_EPOCH_MAX),
            ),
        )
        return self.partition

    def _on_isr_change_due(self, topic_id: TopicId, number: PartitionId) -> None:
        assert (topic_id, number) == (self.partition.topic_id, 0)
        self.isr_changes_due += 1

    async def _learn(self) -> None:
        self.barriers += 1
        if self.nothing_learned is not None:
            raise self.nothing_learned
        if self.newest is not None:
            self.partition.update(self.newest, 2)
        self.coordinators.update(self.newest_coordinators)
        if self.newest_producer_id is not None:
            self.next_producer_id = self.newest_producer_id

    async def values(self) -> list[bytes | None]:
        """The values of the whole log, committed or not."""
        return await read_all(self.partition.log)


def nodes(*numbers: int, flush: FlushMode = FlushMode.SYNC) -> list[Node]:
    """Brokers that know each other."""
    brokers = {BrokerId(number): broker(number) for number in numbers}
    config = LogConfig(flush=flush)
    return [Node(number, brokers, SimulatedDisk(number), config) for number in numbers]


def restarted(node: Node, number: int) -> None:
    """Restart a broker, as `node` has applied it."""
    known = node.brokers[BrokerId(number)]
    node.brokers[BrokerId(number)] = replace(
        known, broker_epoch=BrokerEpoch(known.broker_epoch + 1)
    )


def attach(leader: Node, follower: Node) -> HandFeed:
    """Attach a follower with a prefix of the leader's log."""
    feed = HandFeed(BrokerId(follower.number))
    answer = leader.partition.attach(feed, follower.partition.follower_role.position())
    assert answer is None, answer
    return feed


async def send(leader: Node, follower: Node, *, sync: bool = True) -> None:
    """Bring a follower to the leader's end."""
    epoch = leader.partition.image.leader_epoch
    start = follower.partition.log_end_offset
    result = await leader.partition.require_leader().read_uncommitted(start, max_bytes=READ_BYTES)
    if result.data:
        await follower.partition.follower_role.append_fetched(
            result.data,
            leader_epoch=epoch,
            high_watermark=leader.partition.high_watermark,
            log_start_offset=leader.partition.log_start_offset,
        )
    if sync:
        await follower.partition.log.flush()


def ack(leader: Node, follower: Node, feed: HandFeed) -> None:
    """Acknowledge the follower's durable end to the leader."""
    partition = follower.partition
    leader.partition.require_leader().acked(feed, partition.durable_end, partition.log_start_offset)


async def restart(leader: Node, follower: Node, offset: Offset, *, is_outrun: bool = False) -> None:
    """Restart the follower's log, with its leader's producers and horizon."""
    epoch = leader.partition.image.leader_epoch
    await follower.partition.follower_role.restart_at(
        offset,
        producers=leader.partition.require_leader().producers_below(offset, leader_epoch=epoch),
        leader_epoch=epoch,
        horizon=leader.partition.require_leader().deletion_horizon,
        is_outrun=is_outrun,
    )


async def catch_up(leader: Node, follower: Node) -> HandFeed:
    """Cut, send and acknowledge until the follower has all."""
    while True:
        feed = HandFeed(BrokerId(follower.number))
        answer = leader.partition.attach(feed, follower.partition.follower_role.position())
        epoch = leader.partition.image.leader_epoch
        if isinstance(answer, Diverging):
            await follower.partition.follower_role.truncate_for(answer, leader_epoch=epoch)
        elif answer is not None:
            is_outrun = isinstance(answer, Outrun)
            await restart(leader, follower, answer.log_start_offset, is_outrun=is_outrun)
        else:
            break
    await send(leader, follower)
    ack(leader, follower, feed)
    return feed
