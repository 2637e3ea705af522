"""The replicas of one broker over a simulated disk, with metadata that the test changes by hand.

Brokers 2 and 3 exist in the metadata only. Only `sleep` moves the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import (
    ChangePartitions,
    Command,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    PartitionChange,
    RegisterBroker,
    SetControlledShutdown,
    UnfenceBroker,
    encode_command,
)
from raftlog.metadata.decisions.liveness import plan_replica_failures
from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.record.types import BrokerId, Offset, PartitionId, TopicId
from raftlog.replication.manager import ReplicaManager
from raftlog.replication.partition import Host, Partition
from raftlog.replication.repair import Repairs, ReplicaKey
from raftlog.replication.replica import TopicSettings
from raftlog.storage.manager import LogManager
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.time import SystemClock
from tests.replication.permits import SwitchedPermit
from tests.simulation.disk import SimulatedDisk
from tests.waiting import until

ME = BrokerId(1)
BROKERS = 3
DEADLINE_S = 30.0


class JumpingClock(SystemClock):
    """A sleep ends in the next turn, and the time has passed."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@dataclass
class NotedStreams:
    """Fake streams that only note the followed replicas."""

    followed: dict[Partition, tuple[BrokerId, int]] = field(default_factory=dict)

    def follow(self, partition: Partition, leader: BrokerImage) -> None:
        self.followed[partition] = (leader.broker_id, partition.image.leader_epoch)

    def unfollow(self, partition: Partition) -> None:
        self.followed.pop(partition, None)


def topic_id(number: int) -> TopicId:
    return TopicId(f"{number:032x}")


@dataclass
class OneNode:
    """Broker 1. `open` starts it, also after `disk.crash`."""

    disk: SimulatedDisk = field(default_factory=lambda: SimulatedDisk(1))
    state_machine: MetadataStateMachine = field(default_factory=MetadataStateMachine)
    clock: JumpingClock = field(default_factory=JumpingClock)
    streams: NotedStreams = field(default_factory=NotedStreams)
    defaults: dict[str, str] = field(default_factory=dict)
    failed: list[list[ReplicaKey]] = field(default_factory=list)
    """Failed replicas, as reported to the metadata."""
    refusals: list[LogError] = field(default_factory=list)
    """Errors of the next reports."""
    on_fail: Callable[[], None] = lambda: None
    asked: list[tuple[BrokerId, Offset]] = field(default_factory=list)
    """Reads of other brokers' replicas, for repairs."""
    copy: Callable[[Offset], Awaitable[bytes]] | None = None
    """The batches of other brokers' replicas."""
    fatal: list[str] = field(default_factory=list)
    index: int = 0
    logs: LogManager = field(init=False)
    replicas: ReplicaManager = field(init=False)
    repairs: Repairs = field(init=False)

    def __post_init__(self) -> None:
        for number in range(1, BROKERS + 1):
            self.register(number)

    # Metadata

    def run(self, command: Command) -> ApplyResult:
        self.index += 1
        result = self.state_machine.apply(self.index, encode_command(command))
        result.check()
        return result

    def register(self, number: int, incarnation: str = "i") -> None:
        self.run(
            RegisterBroker(
                broker_id=BrokerId(number),
                directory_id=f"d{number}",
                incarnation=incarnation,
                host=f"h{number}",
                port=1,
                software_version="0",
            )
        )
        self.unfence(number)

    def unfence(self, number: int) -> None:
        epoch = self.state_machine.image.brokers[BrokerId(number)].broker_epoch
        self.run(UnfenceBroker(broker_id=BrokerId(number), broker_epoch=epoch))

    def fence(self, number: int) -> None:
        epoch = self.state_machine.image.brokers[BrokerId(number)].broker_epoch
        self.run(FenceBroker(broker_id=BrokerId(number), broker_epoch=epoch))

    def shut_down(self, number: int) -> None:
        """Begin a controlled shutdown."""
        epoch = self.state_machine.image.brokers[BrokerId(number)].broker_epoch
        self.run(SetControlledShutdown(broker_id=BrokerId(number), broker_epoch=epoch))

    def create(self, *replicas: int, number: int = 0, name: str = "t", **configs: str) -> None:
        """A topic of one partition; its first replica leads."""
        self.run(
            CreateTopic(
                topic_id=topic_id(number),
                name=name,
                configs={key.replace("_", "."): value for key, value in configs.items()},
                assignments=(tuple(map(BrokerId, replicas)),),
            )
        )

    def create_many(self, partitions: int, *, number: int = 0, name: str = "t") -> None:
        """A topic of partitions that this node leads."""
        self.run(
            CreateTopic(
                topic_id=topic_id(number),
                name=name,
                configs={},
                assignments=((ME, BrokerId(2)),) * partitions,
            )
        )

    def delete(self, number: int = 0) -> None:
        self.run(DeleteTopic(topic_id=topic_id(number)))

    def change(
        self,
        *,
        leader: int | None = None,
        isr: Iterable[int] | None = None,
        replicas: Iterable[int] | None = None,
        unclean: bool = False,
        number: int = 0,
    ) -> None:
        row = self.row(number)

        def ids(members: Iterable[int] | None) -> tuple[BrokerId, ...] | None:
            return None if members is None else tuple(map(BrokerId, members))

        change = PartitionChange(
            topic_id=topic_id(number),
            partition=PartitionId(0),
            partition_epoch=row.partition_epoch,
            leader=None if leader is None else BrokerId(leader),
            isr=ids(isr),
            replicas=ids(replicas),
            unclean=unclean,
        )
        self.run(ChangePartitions(changes=(change,)))

    def row(self, number: int = 0) -> PartitionImage:
        return self.state_machine.image.topics_by_id[topic_id(number)].partitions[0]

    async def fail_replicas(self, keys: Collection[ReplicaKey], *, lost: bool) -> None:
        await asyncio.sleep(0)
        self.failed.append(list(keys))
        if self.refusals:
            raise self.refusals.pop(0)
        self.on_fail()
        for command in plan_replica_failures(self.state_machine.image, ME, keys, lost=lost):
            for stale in self.run(command).partitions().stale:
                raise LogError(stale.refusal.entry, stale.refusal.message)

    # The node

    async def open(self) -> None:
        self.logs = await LogManager.open(self.disk, SystemClock())
        host = Host(
            broker_id=ME,
            clock=self.clock,
            cluster_clock=ClusterClock(self.clock),
            permit=SwitchedPermit(),
            brokers=lambda: self.state_machine.image.brokers,
        )
        settings = TopicSettings(
            self.defaults, cluster=lambda: self.state_machine.image.cluster_settings
        )
        self.replicas = ReplicaManager(
            self.state_machine,
            self.logs,
            settings,
            host,
            self.streams,
            on_fatal=self.fatal.append,
        )
        self.repairs = Repairs(
            replicas=self.replicas,
            broker_id=ME,
            clock=self.clock,
            fail_replicas=self.fail_replicas,
            read_replica=self.read_replica,
            on_fatal=self.fatal.append,
        )
        await self.replicas.start()

    async def read_replica(
        self, broker_id: BrokerId, _topic_id: TopicId, _number: PartitionId, offset: Offset
    ) -> bytes:
        """Batches of another broker's replica."""
        self.asked.append((broker_id, offset))
        if self.copy is None:
            raise LogError(STORAGE_FAILED, "no good copy")
        return await self.copy(offset)

    async def close(self) -> None:
        await self.repairs.close()
        await self.replicas.close()
        await self.logs.close()
        assert not self.fatal, self.fatal

    async def settled(self) -> None:
        await self.replicas.settled(self.index)

    async def until(self, condition: Callable[[], object]) -> None:
        """Let other tasks run until the condition holds. Storage pauses in real time."""
        await until(condition, poll_s=0)

    async def turns(self, number: int = 200) -> None:
        """Let other tasks run."""
        for _ in range(number):
            await asyncio.sleep(0)

    def replica(self, number: int = 0) -> Partition | None:
        return self.replicas.replica(topic_id(number), PartitionId(0))

    def here(self, number: int = 0) -> Partition:
        found = self.replica(number)
        assert found is not None
        return found

    def files(self, below: str) -> list[str]:
        """The files below a directory, and the directories of replicas without a file."""
        disk = self.disk
        empty = [
            f"{below}/{topic}/{replica}"
            for topic in disk.list_directory(below)
            for replica in disk.list_directory(f"{below}/{topic}")
            if not disk.list_directory(f"{below}/{topic}/{replica}")
        ]
        return sorted(empty + [path for path in disk.paths() if path.startswith(f"{below}/")])
