"""Replicating nodes in the simulated world, with replicas in memory.

A replica's batches are `(base offset, next offset, epoch, content)` with a small head of their own,
so that a follower can parse and check its data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.errors import CORRUPT_BATCH, NO_LEADER, NOT_READY, LogError
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    Buffer,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from raftlog.replication.follower.divergence import NO_EPOCH, BelowStart, Diverging, FetchPosition
from raftlog.replication.leader.role import Feed
from raftlog.replication.streams.follower_streams import FollowerStreams
from raftlog.replication.streams.leader_streams import LeaderStreams
from raftlog.replication.streams.replica_fetcher import FollowState
from raftlog.replication.streams.settings import StreamSettings
from raftlog.storage.compaction.plan import NO_HORIZON, DeletionHorizon
from raftlog.storage.types import ReadResult
from tests.simulation.world import Process, World

T = TypeVar("T")

TOPIC_ID = TopicId("a" * 32)
HEAD = Struct(">qqqI")
SYNC_S = 0.001


class Batch(NamedTuple):
    base: int
    next: int
    epoch: int
    content: bytes

    @property
    def data(self) -> bytes:
        return HEAD.pack(self.base, self.next, self.epoch, len(self.content)) + self.content


def parse(data: Buffer) -> list[Batch]:
    batches, at = [], 0
    view = memoryview(data)
    while at < len(view):
        if len(view) - at < HEAD.size:
            raise LogError(CORRUPT_BATCH, "cut off")
        base, following, epoch, size = HEAD.unpack_from(view, at)
        at += HEAD.size
        if len(view) - at < size:
            raise LogError(CORRUPT_BATCH, "cut off")
        batches.append(Batch(base, following, epoch, bytes(view[at : at + size])))
        at += size
    return batches


def row(
    leader: int, epoch: int, *, number: int = 0, adding: tuple[int, ...] = ()
) -> PartitionImage:
    return PartitionImage(
        partition=PartitionId(number),
        replicas=tuple(BrokerId(each) for each in (1, 2, 3)),
        isr=(BrokerId(leader),),
        elr=(),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch),
        adding=tuple(BrokerId(each) for each in adding),
    )


class FakePartition:
    """Both roles, by the contract. Outlives the processes of its node, like a disk."""

    def __init__(self, node_id: int, image: PartitionImage) -> None:
        self.node_id = node_id
        self.topic = "t"
        self.topic_id = TOPIC_ID
        self.image = image
        self.batches: list[Batch] = []
        self.start = 0
        self.empty_end = 0
        """Log end offset of an empty log."""
        self.synced = 0
        self.high_watermark = Offset(0)
        self.feeds: dict[int, Feed] = {}
        self.ends: dict[int, tuple[int, int, int]] = {}
        """By follower: broker epoch, durable end, log start, as acknowledged."""
        self.on_durable: Callable[[], None] | None = None
        self.sync_s: float | None = SYNC_S
        """None: nothing becomes durable before `sync`."""
        self.append_s: float | None = None
        """Duration of appends; None: done at once."""
        self.failures: list[LogError] = []
        """Raised by the next appends of fetched batches."""
        self.read_failures: list[LogError] = []
        self.reads = 0
        self.appends = 0
        self.truncations: list[int] = []
        self.restarts: list[int] = []
        self.producers = b""
        self.deletion_horizon = NO_HORIZON
        self.truncate_s = 0.002
        self.working = 0

    # Both

    @property
    def partition(self) -> PartitionId:
        return self.image.partition

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.image.leader_epoch

    @property
    def is_leader(self) -> bool:
        return self.image.leader == self.node_id

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self.batches[-1].next if self.batches else self.empty_end)

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self.start)

    @property
    def durable_end(self) -> Offset:
        return Offset(self.synced)

    @property
    def durable_log_start(self) -> Offset:
        return Offset(self.start)

    @property
    def log(self) -> FakePartition:
        return self

    @property
    def leader_role(self) -> FakePartition | None:
        return self if self.is_leader else None

    @property
    def follower_role(self) -> FakePartition:
        return self

    def require_leader(self) -> FakePartition:
        return self

    @property
    def contents(self) -> list[bytes]:
        return [batch.content for batch in self.batches]

    def update(self, image: PartitionImage) -> None:
        if image.leader_epoch != self.image.leader_epoch:
            self.image = image
            feeds, self.feeds, self.ends = self.feeds, {}, {}
            for feed in feeds.values():
                feed.on_ended(LogError(NO_LEADER, "another epoch"))
        self.image = image

    def crash(self) -> None:
        """The process is gone, and its unflushed data."""
        self.feeds, self.ends, self.on_durable, self.working = {}, {}, None, 0
        self.cut(self.synced)

    def cut(self, offset: int) -> None:
        while self.batches and self.batches[-1].next > offset:
            self.empty_end = self.batches.pop().base
        self.synced = min(self.synced, self.log_end_offset)

    def _wrote(self) -> None:
        if self.sync_s is not None:
            asyncio.get_running_loop().call_later(self.sync_s, self._sync_to, self.log_end_offset)

    def sync(self) -> None:
        self._sync_to(self.log_end_offset)

    def _sync_to(self, end: int) -> None:
        end = min(end, self.log_end_offset)
        if end > self.synced:
            self.synced = end
            if self.is_leader:
                self._advance()
            elif self.on_durable is not None:
                self.on_durable()

    # Leader

    def append(self, content: bytes, count: int = 1) -> None:
        assert self.is_leader
        base = self.log_end_offset
        batch = Batch(base, base + count, self.leader_epoch, content)
        self.batches.append(batch)
        data = batch.data
        for feed in list(self.feeds.values()):
            buffers: list[Buffer] = [data[: HEAD.size], memoryview(data)[HEAD.size :]]
            feed.on_appended(base, self.log_end_offset, buffers, len(data))
        self._wrote()

    def delete_before(self, offset: int) -> None:
        self.start = offset
        self.batches = [batch for batch in self.batches if batch.next > offset]
        for feed in self.feeds.values():
            feed.on_watermarks()

    def attach(self, feed: Feed, position: FetchPosition) -> Diverging | BelowStart | None:
        if position.leader_epoch > self.leader_epoch:
            raise LogError(NOT_READY, "not yet")
        if not self.is_leader or position.leader_epoch < self.leader_epoch:
            raise LogError(NO_LEADER, "not here")
        if position.offset < self.start:
            return BelowStart(Offset(self.start))
        if position.last_epoch != NO_EPOCH:
            own = [batch for batch in self.batches if batch.epoch <= position.last_epoch]
            epoch = own[-1].epoch if own else NO_EPOCH
            end = own[-1].next if own else 0
            if epoch != position.last_epoch or end < position.offset:
                return Diverging(LeaderEpoch(epoch), Offset(end))
        elif position.offset > self.log_end_offset:
            return BelowStart(Offset(self.start))
        self.feeds[feed.broker_id] = feed
        self._acked(feed, position.durable_end, position.log_start_offset)
        return None

    def detach(self, feed: Feed) -> None:
        if self.feeds.get(feed.broker_id) is feed:
            del self.feeds[feed.broker_id]

    def acked(self, feed: Feed, durable_end: Offset, log_start_offset: Offset) -> None:
        assert self.feeds.get(feed.broker_id) is feed
        self._acked(feed, durable_end, log_start_offset)

    def _acked(self, feed: Feed, durable_end: int, log_start_offset: int) -> None:
        self.ends[feed.broker_id] = (feed.broker_epoch, durable_end, log_start_offset)
        self._advance()

    def _advance(self) -> None:
        end = min([self.synced, *(end for _, end, _ in self.ends.values())])
        if end > self.high_watermark:
            self.high_watermark = Offset(end)
            for feed in self.feeds.values():
                feed.on_watermarks()

    def producers_below(self, offset: Offset, *, leader_epoch: LeaderEpoch) -> bytes:
        if not self.is_leader or leader_epoch != self.leader_epoch:
            raise LogError(NO_LEADER, "not here")
        return self.producers

    async def read_uncommitted(self, offset: Offset, *, max_bytes: int) -> ReadResult:
        assert self.is_leader
        self.reads += 1
        await asyncio.sleep(0.0005)
        if self.read_failures:
            raise self.read_failures.pop(0)
        found: list[Batch] = []
        size = 0
        for batch in self.batches:
            if batch.next > offset:
                if found and size + len(batch.data) > max_bytes:
                    break
                found.append(batch)
                size += len(batch.data)
        if not found:
            return ReadResult(b"", self.log_end_offset)
        return ReadResult(b"".join(batch.data for batch in found), Offset(found[-1].next))

    # Follower

    def _require(self, leader_epoch: int) -> None:
        if self.is_leader or leader_epoch != self.leader_epoch:
            raise LogError(NO_LEADER, "another epoch is applied")
        if self.working:
            raise LogError(NOT_READY, "the log is being changed")

    def position(self) -> FetchPosition:
        assert not self.working, "the log is being changed"
        if self.is_leader:
            raise LogError(NO_LEADER, "it leads")
        last = self.batches[-1].epoch if self.batches else NO_EPOCH
        return FetchPosition(
            self.leader_epoch,
            self.log_end_offset,
            LeaderEpoch(last),
            self.durable_end,
            self.log_start_offset,
        )

    def append_fetched_now(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log_start_offset: Offset,
    ) -> bool:
        self._require(leader_epoch)
        if self.append_s is not None:
            return False
        self._append(data, high_watermark)
        return True

    async def append_fetched(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log_start_offset: Offset,
    ) -> None:
        self._require(leader_epoch)
        assert self.append_s is not None
        self.working += 1
        try:
            await asyncio.sleep(self.append_s)
            self._append(data, high_watermark)
        finally:
            self.working -= 1

    def _append(self, data: Buffer, high_watermark: int) -> None:
        if self.failures:
            raise self.failures.pop(0)
        batches = parse(data)
        end = self.log_end_offset
        for batch in batches:
            if batch.base < end and not (not self.batches and batch.next > end):
                raise LogError(CORRUPT_BATCH, f"{batch.base} at {end}")
            end = Offset(batch.next)
        self.appends += 1
        self.batches.extend(batches)
        self.high_watermark = Offset(max(self.high_watermark, min(high_watermark, end)))
        self._wrote()

    def update_watermarks(
        self, *, leader_epoch: LeaderEpoch, high_watermark: Offset, log_start_offset: Offset
    ) -> None:
        self._require(leader_epoch)
        known = min(high_watermark, self.log_end_offset)
        self.high_watermark = Offset(max(self.high_watermark, known))
        if self.start < log_start_offset <= self.log_end_offset:
            self.start = log_start_offset
            if self.on_durable is not None:
                self.on_durable()

    def attach_fetcher(self, on_durable: Callable[[], None]) -> None:
        self.on_durable = on_durable

    def detach_fetcher(self) -> None:
        self.on_durable = None

    async def truncate_for(self, diverging: Diverging, *, leader_epoch: LeaderEpoch) -> None:
        self._require(leader_epoch)
        self.working += 1
        try:
            await asyncio.sleep(self.truncate_s)
            if self.failures:
                raise self.failures.pop(0)
            ends = [batch.next for batch in self.batches if batch.epoch <= diverging.epoch]
            offset = min(ends[-1] if ends else 0, diverging.end_offset)
            self.truncations.append(offset)
            self.cut(offset)
        finally:
            self.working -= 1

    async def restart_at(
        self,
        offset: Offset,
        *,
        producers: bytes,
        leader_epoch: LeaderEpoch,
        horizon: DeletionHorizon,
        is_outrun: bool,
    ) -> None:
        self._require(leader_epoch)
        self.producers, self.deletion_horizon = producers, horizon
        self.working += 1
        try:
            await asyncio.sleep(self.truncate_s)
            self.restarts.append(offset)
            self.batches = []
            self.start = self.empty_end = self.synced = offset
        finally:
            self.working -= 1


def fail(reason: str) -> None:
    """An `on_fatal`: fail the run."""
    raise AssertionError(reason)


@dataclass
class Node:
    """One node in all its lives."""

    cluster: Cluster
    node_id: int
    settings: StreamSettings
    replicas: dict[int, FakePartition] = field(default_factory=dict)
    epoch: int = 0
    feeds: LeaderStreams | None = None
    streams: FollowerStreams | None = None
    adding_bytes_per_s: int = 0

    @property
    def process(self) -> Process:
        return self.cluster.world.processes[self.node_id]

    @property
    def leader(self) -> LeaderStreams:
        assert self.feeds is not None
        return self.feeds

    @property
    def follower(self) -> FollowerStreams:
        assert self.streams is not None
        return self.streams

    def start(self) -> None:
        self.cluster.epochs += 1
        self.epoch = self.cluster.epochs
        self.cluster.world.start(self.node_id, self._main)
        # As the metadata would: everybody learns of the new start, which leads in new epochs only.
        self.cluster.broker_changed(self.node_id)
        for number, image in self.cluster.rows.items():
            if image.leader == self.node_id and self.epoch > len(self.cluster.nodes):
                self.cluster.lead(self.node_id, image.leader_epoch + 1, number)

    def crash(self, *, power: bool = False) -> None:
        self.cluster.world.crash(self.node_id, power=power)
        self.feeds = self.streams = None
        for replica in self.replicas.values():
            replica.crash()

    async def _main(self, process: Process) -> None:
        cluster = self.cluster
        self.feeds = LeaderStreams(
            network=process.network,
            clock=process.clock,
            broker_id=BrokerId(self.node_id),
            directory_id=f"d{self.node_id}",
            cluster_id=lambda: "c",
            own_epoch=lambda: BrokerEpoch(self.epoch),
            brokers=lambda broker_id: cluster.broker(broker_id),  # noqa: PLW0108 - tests replace it
            find=lambda topic_id, number: (
                self.replicas.get(number) if topic_id == TOPIC_ID else None
            ),
            on_fatal=fail,
            adding_bytes_per_s=lambda: self.adding_bytes_per_s,
            settings=self.settings,
        )
        self.feeds.start()
        self.streams = FollowerStreams(
            network=process.network,
            clock=process.clock,
            randomness=process.randomness,
            broker_id=BrokerId(self.node_id),
            directory_id=f"d{self.node_id}",
            cluster_id=lambda: "c",
            own_epoch=lambda: BrokerEpoch(self.epoch),
            on_fatal=fail,
            settings=self.settings,
        )
        self.follow_all()
        await asyncio.get_running_loop().create_future()

    def do(self, work: Callable[..., T], *arguments: object) -> T:
        """As code of its process."""
        return self.process.context.copy().run(work, *arguments)

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.process.run(work)

    def follow_all(self) -> None:
        for replica in self.replicas.values():
            self.follow(replica)

    def follow(self, replica: FakePartition) -> None:
        leader = self.cluster.broker(replica.image.leader)
        if leader is None or replica.is_leader:
            self.follower.unfollow(replica)
        else:
            self.follower.follow(replica, leader)

    def state(self, number: int = 0) -> FollowState | None:
        return self.follower.state_of(TOPIC_ID, PartitionId(number))


class Cluster:
    """Nodes, and metadata applied by all at once, unless held back by a test."""

    def __init__(
        self,
        world: World,
        nodes: int = 2,
        partitions: int = 1,
        settings: StreamSettings | None = None,
    ) -> None:
        self.world = world
        self.epochs = 0
        self.rows = {number: row(1, 1, number=number) for number in range(partitions)}
        self.nodes = {
            node_id: Node(self, node_id, settings or StreamSettings())
            for node_id in range(1, nodes + 1)
        }
        for node in self.nodes.values():
            node.replicas = {
                number: FakePartition(node.node_id, image) for number, image in self.rows.items()
            }
            node.start()

    def __getitem__(self, node_id: int) -> Node:
        return self.nodes[node_id]

    def broker(self, broker_id: BrokerId) -> BrokerImage | None:
        node = self.nodes.get(broker_id)
        if node is None:
            return None
        host, port = self.world.address(broker_id).rsplit(":", 1)
        return BrokerImage(
            broker_id=BrokerId(broker_id),
            broker_epoch=BrokerEpoch(node.epoch),
            directory_id=f"d{broker_id}",
            incarnation=f"{broker_id}-{node.epoch}",
            host=host,
            port=int(port),
            rack=None,
            software_version="1",
            command_version=1,
            fenced=False,
        )

    def broker_changed(self, broker_id: int) -> None:
        for node in self.nodes.values():
            if node.feeds is not None and self.world.is_up(node.node_id):
                node.do(node.feeds.broker_changed, BrokerId(broker_id))
                node.do(node.follow_all)

    def lead(self, leader: int, epoch: int, number: int = 0, nodes: Sequence[int] = ()) -> None:
        """Apply a leadership on the nodes (all, if none are named)."""
        self.rows[number] = row(leader, epoch, number=number)
        for node_id in nodes or self.nodes:
            self.apply(node_id, number)

    def apply(self, node_id: int, number: int = 0) -> None:
        node = self.nodes[node_id]
        replica = node.replicas[number]
        if not self.world.is_up(node_id) or node.streams is None:
            replica.update(self.rows[number])
            return

        def change() -> None:
            replica.update(self.rows[number])
            node.follow(replica)

        node.do(change)

    def append(self, content: bytes, number: int = 0) -> None:
        leader = self.nodes[self.rows[number].leader]
        leader.do(leader.replicas[number].append, content)

    def replicas(self, number: int = 0) -> list[FakePartition]:
        return [node.replicas[number] for node in self.nodes.values()]

    def leader(self, number: int = 0) -> FakePartition:
        return self.nodes[self.rows[number].leader].replicas[number]

    def agree(self, number: int = 0) -> bool:
        """Whether all have the same, durably, and the leader knows."""
        leader, *others = sorted(self.replicas(number), key=lambda each: not each.is_leader)
        return all(
            other.contents == leader.contents
            and other.synced == leader.log_end_offset == leader.high_watermark
            and leader.ends.get(other.node_id, (0, -1))[1] == leader.log_end_offset
            for other in others
        )


def play(seed: int, main: Callable[[World], Coroutine[Any, Any, None]]) -> str:
    """Run one; returns the digest."""
    world = World(seed)
    world.run(main)
    return world.digest()
