"""Streams between real partitions over real logs, on simulated disks and networks."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest

from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.batch import RecordBatch, iterate_batches, split_batches
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.errors import LogError
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from raftlog.replication.partition import Acks, Partition
from raftlog.replication.replica import Host
from raftlog.replication.streams.follower_streams import FollowerStreams
from raftlog.replication.streams.leader_streams import LeaderStreams
from raftlog.replication.streams.settings import StreamSettings
from raftlog.storage.manager import LogManager
from raftlog.storage.types import UNLIMITED, FlushMode, LogConfig, StorageSettings
from raftlog.world.cluster_clock import ClusterClock
from tests.replication.permits import SwitchedPermit
from tests.replication.streams_world import fail, play
from tests.simulation.world import Process, World
from tests.waiting import until

TOPIC = TopicId("b" * 32)
NODES = (1, 2, 3)
SEEDS = range(6)
SHORT_SEGMENTS = LogConfig(segment_bytes=5000, retention_ms=UNLIMITED)
"""The batches of these tests are from 1970."""
SMALL = StreamSettings(
    window_bytes=8000,
    chunk_bytes=2000,
    live_bytes_max=3000,
    piece_bytes=4000,
    batch_bytes_max=100_000,
)


def batch(content: bytes, count: int = 1) -> RecordBatch:
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    for _ in range(count):
        assert builder.append(1, None, content, [])
    (one,) = split_batches(bytes(builder.build()), max_message_bytes=1 << 20)
    return one


@dataclass
class Node:
    """One broker in all its lives, with one replica."""

    cluster: Cluster
    node_id: int
    epoch: int = 0
    logs: LogManager | None = None
    partition: Partition | None = None
    feeds: LeaderStreams | None = None
    streams: FollowerStreams | None = None

    def start(self) -> None:
        cluster = self.cluster
        cluster.epochs += 1
        self.epoch = cluster.epochs
        cluster.world.start(self.node_id, self._main)
        cluster.changed()

    def crash(self, *, power: bool) -> None:
        self.partition = self.feeds = self.streams = None
        self.cluster.world.crash(self.node_id, power=power)

    async def _main(self, process: Process) -> None:
        cluster = self.cluster
        settings = StorageSettings(recovery_bytes_max=2000)
        self.logs = await LogManager.open(process.disk, process.clock, settings)
        await self.logs.start()
        log = await self.logs.open_replica(TOPIC, PartitionId(0), cluster.config, create=True)
        partition = Partition(
            topic="t",
            topic_id=TOPIC,
            log=log,
            image=cluster.row,
            min_insync_replicas=1,
            host=Host(
                broker_id=BrokerId(self.node_id),
                clock=process.clock,
                cluster_clock=ClusterClock(process.clock),
                permit=SwitchedPermit(),
                brokers=cluster.brokers,
            ),
        )
        if partition.loss_gate.may_have_lost_data:
            partition.loss_gate.clear_loss()
        feeds = LeaderStreams(
            network=process.network,
            clock=process.clock,
            broker_id=BrokerId(self.node_id),
            directory_id=f"d{self.node_id}",
            cluster_id=lambda: "c",
            own_epoch=lambda: BrokerEpoch(self.epoch),
            brokers=lambda broker_id: cluster.brokers().get(broker_id),
            find=lambda _topic_id, _number: partition,
            on_fatal=fail,
            settings=cluster.settings,
        )
        feeds.start()
        streams = FollowerStreams(
            network=process.network,
            clock=process.clock,
            randomness=process.randomness,
            broker_id=BrokerId(self.node_id),
            directory_id=f"d{self.node_id}",
            cluster_id=lambda: "c",
            own_epoch=lambda: BrokerEpoch(self.epoch),
            on_fatal=fail,
            settings=cluster.settings,
        )
        self.partition, self.feeds, self.streams = partition, feeds, streams
        # Metadata applied during the open of the log.
        self.apply()
        await asyncio.get_running_loop().create_future()

    @property
    def leads(self) -> bool:
        return self.partition is not None and self.partition.is_leader

    def apply(self) -> None:
        partition, feeds, streams = self.partition, self.feeds, self.streams
        if partition is None or feeds is None or streams is None:
            return
        partition.update(self.cluster.row, 1)
        for node_id in NODES:
            feeds.broker_changed(BrokerId(node_id))
        leader = self.cluster.brokers().get(partition.image.leader)
        if partition.image.leader == self.node_id or leader is None:
            streams.unfollow(partition)
        else:
            streams.follow(partition, leader)

    def do_apply(self) -> None:
        process = self.cluster.world.processes[self.node_id]
        if process.alive:
            process.context.copy().run(self.apply)


@dataclass
class Cluster:
    world: World
    config: LogConfig = field(default_factory=lambda: SHORT_SEGMENTS)
    settings: StreamSettings = field(default_factory=StreamSettings)
    epochs: int = 0
    row: PartitionImage = field(init=False)
    nodes: dict[int, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.row = PartitionImage(
            partition=PartitionId(0),
            replicas=tuple(BrokerId(each) for each in NODES),
            isr=tuple(BrokerId(each) for each in NODES),
            elr=(),
            leader=BrokerId(1),
            leader_epoch=LeaderEpoch(1),
            partition_epoch=PartitionEpoch(1),
        )
        for node_id in NODES:
            self.nodes[node_id] = Node(self, node_id)
        for node in self.nodes.values():
            node.start()

    def brokers(self) -> dict[BrokerId, BrokerImage]:
        images = {}
        for node_id, node in self.nodes.items():
            host, port = self.world.address(node_id).rsplit(":", 1)
            images[BrokerId(node_id)] = BrokerImage(
                broker_id=BrokerId(node_id),
                broker_epoch=BrokerEpoch(node.epoch),
                directory_id=f"d{node_id}",
                incarnation="x",
                host=host,
                port=int(port),
                rack=None,
                software_version="1",
                command_version=1,
                fenced=False,
            )
        return images

    def changed(self) -> None:
        for node in self.nodes.values():
            if node.node_id in self.world.processes:
                node.do_apply()

    def lead(self, leader: int) -> None:
        row = self.row
        self.row = PartitionImage(
            partition=row.partition,
            replicas=row.replicas,
            isr=row.isr,
            elr=(),
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(row.leader_epoch + 1),
            partition_epoch=PartitionEpoch(row.partition_epoch + 1),
        )
        self.changed()

    def is_up(self) -> bool:
        return all(node.partition is not None for node in self.nodes.values())

    @property
    def leader(self) -> Node:
        return self.nodes[self.row.leader]

    async def append(self, *batches: RecordBatch, acks: Acks = Acks.LEADER) -> None:
        node = self.leader
        assert node.partition is not None
        await self.world.processes[node.node_id].run(
            node.partition.append(batches, acks=acks, timeout_s=5)
        )

    def agree(self) -> bool:
        """Whether all replicas end durably at the same offset, known to all as committed."""
        partitions = [node.partition for node in self.nodes.values()]
        ends = [
            (each.log_end_offset, each.durable_end, each.high_watermark)
            for each in partitions
            if each is not None
        ]
        return len(ends) == 3 and len({*(one for end in ends for one in end)}) == 1

    async def contents(self, node_id: int) -> bytes:
        partition = self.nodes[node_id].partition
        assert partition is not None
        parts = []
        offset = partition.log_start_offset
        while offset < partition.log_end_offset:
            result = await self.world.processes[node_id].run(
                partition.log.reader.read(offset, end=partition.log_end_offset, max_bytes=1 << 20)
            )
            parts.append(bytes(result.data))
            offset = result.next_offset
        return b"".join(parts)

    async def same_bytes(self) -> bytes:
        one, *others = [await self.contents(node_id) for node_id in NODES]
        assert all(other == one for other in others)
        return one


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("flush", list(FlushMode))
def test_replicas_become_the_same_byte_for_byte(seed: int, flush: FlushMode) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, config=replace(SHORT_SEGMENTS, flush=flush))
        await until(cluster.is_up, deadline_s=5)
        for number in range(100):
            acks = Acks.ALL if number % 10 == 0 else Acks.LEADER
            await cluster.append(batch(b"%d" % number * 30, 1 + number % 3), acks=acks)
        await until(cluster.agree, deadline_s=5)
        data = await cluster.same_bytes()
        assert len(list(iterate_batches(data))) == 100
        for node_id in (2, 3):
            streams = cluster.nodes[node_id].streams
            assert streams is not None
            (status,) = streams.describe()
            assert status.corrupt_count == 0

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_that_was_away_catches_up_over_many_segments(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, settings=SMALL)
        await until(cluster.is_up, deadline_s=5)
        cluster.nodes[3].crash(power=seed % 2 == 0)
        for number in range(150):
            await cluster.append(batch(b"%d" % number * 100))
        # A batch longer than any message.
        await cluster.append(batch(b"long" * 5000))
        cluster.nodes[3].start()
        await cluster.append(batch(b"last"))
        await until(cluster.agree, deadline_s=10)
        assert len(list(iterate_batches(await cluster.same_bytes()))) == 152

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_begins_where_records_were_deleted_in_the_middle_of_a_batch(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, settings=SMALL)
        await until(cluster.is_up, deadline_s=5)
        cluster.nodes[3].crash(power=False)
        world.wipe(3)
        one = cluster.leader.partition
        assert one is not None
        for number in range(50):
            await cluster.append(batch(b"%d" % number * 100, count=10))
        await asyncio.sleep(0.1)
        # Like retention; delete-records would wait for the absent replica.
        one.log.high_watermark = one.log_end_offset
        await world.processes[1].run(one.log.operations.delete_records_before(255))  # type: ignore[arg-type]
        cluster.nodes[3].start()
        await until(cluster.agree, deadline_s=10)
        three = cluster.nodes[3].partition
        assert three is not None
        assert three.log_start_offset == 255
        (status,) = cluster.nodes[3].streams.describe()  # type: ignore[union-attr]
        assert status.corrupt_count == 0

    play(seed, main)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_acknowledged_by_all_survives(seed: int) -> None:
    """Power cuts, cut cables, lost connections, changes of leader; all replicas stay in sync."""

    async def main(world: World) -> None:  # noqa: PLR0912 - a line or two for each event
        chance = random.Random(seed)
        cluster = Cluster(world, settings=SMALL)
        acknowledged: dict[bytes, None] = {}
        writers: dict[asyncio.Task[None], None] = {}

        async def write(content: bytes) -> None:
            try:
                await cluster.append(batch(content), acks=Acks.ALL)
            except (LogError, AssertionError):
                return
            acknowledged[content] = None

        async def write_or_die(content: bytes) -> None:
            # NodeDiedError: the outcome is unknown.
            try:
                await write(content)
            except Exception as error:
                assert type(error).__name__ == "NodeDiedError"

        def elect() -> None:
            """The present replica with the longest log: it has all records acknowledged by all."""
            there = [each for each in cluster.nodes.values() if each.partition is not None]
            if there:
                cluster.lead(chance.choice(there).node_id)

        for step in range(120):
            what = chance.random()
            node_id = chance.choice(NODES)
            node = cluster.nodes[node_id]
            if what < 0.6:
                for number in range(chance.randrange(1, 6)):
                    content = b"%d-%d-" % (step, number) + b"x" * chance.randrange(1500)
                    task = asyncio.ensure_future(write_or_die(content))
                    writers[task] = None
            elif what < 0.66:
                world.network.reset(node_id, node_id % 3 + 1)
            elif what < 0.7:
                world.network.partition([node_id], [each for each in NODES if each != node_id])
            elif what < 0.8:
                world.network.heal()
            elif what < 0.85:
                if world.is_up(node_id) and node.partition is not None:
                    node.crash(power=chance.random() < 0.5)
                    if cluster.row.leader == node_id:
                        elect()
            elif what < 0.92:
                for each in NODES:
                    if not world.is_up(each):
                        cluster.nodes[each].start()
                        if cluster.row.leader == each:
                            elect()
            else:
                elect()
            await asyncio.sleep(chance.choice((0.0, 0.005, 0.05, 0.3)))
        world.network.heal()
        for each in NODES:
            if not world.is_up(each):
                cluster.nodes[each].start()
        await until(cluster.is_up, deadline_s=5)
        elect()
        # A truncation, or an append of fetched data, may have to end first.
        await until(lambda: cluster.leader.leads, deadline_s=1)
        await asyncio.wait_for(asyncio.gather(*writers), 10)
        await cluster.append(batch(b"end"), acks=Acks.ALL)
        await until(cluster.agree, deadline_s=10)
        data = await cluster.same_bytes()
        for content in acknowledged:
            assert content in data

    play(seed, main)
