"""Fakes of the node's services, for tests of the HTTP layer alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from raftlog.metadata import controller
from raftlog.metadata.apply import apply
from raftlog.metadata.commands import ClusterCreated, Command, DeleteTopic, RegisterBroker
from raftlog.metadata.image import MetadataImage, TopicImage
from raftlog.record.errors import OFFSET_OUT_OF_RANGE, LogError
from raftlog.record.types import BrokerId, Offset, ProducerEpoch, ProducerId, TopicId
from raftlog.world.real_clock import SystemClock


class FakeMetadata:
    """Decides and applies at once."""

    def __init__(self, brokers: int) -> None:
        self.image = MetadataImage()
        self.settings = SimpleNamespace(defaults={}, partitions_default=1)
        self._ids = 0
        self.run(ClusterCreated(cluster_id="fake-cluster", created_ms=0))
        for number in range(1, brokers + 1):
            self.run(
                RegisterBroker(
                    broker_id=BrokerId(number),
                    directory_id=f"d{number}",
                    incarnation=f"i{number}",
                    host="127.0.0.1",
                    port=8080 + number,
                    software_version="0",
                )
            )

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
    ) -> TopicImage:
        command = controller.plan_topic(
            self.image,
            name=name,
            partitions=1 if partitions is None else partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            topic_id=TopicId(f"{self._next_id():032x}"),
        )
        return cast(TopicImage, self.run(command))

    async def delete_topic(self, name: str) -> TopicImage:
        return cast(TopicImage, self.run(DeleteTopic(topic_id=self.image.topic(name).topic_id)))

    async def add_partitions(self, name: str, total: int) -> TopicImage:
        command = controller.plan_partitions(self.image, name=name, partitions=total)
        return cast(TopicImage, self.run(command))

    async def alter_configs(
        self, name: str, values: Mapping[str, str], removals: Sequence[str] = ()
    ) -> TopicImage:
        command = controller.plan_configs(self.image, name=name, values=values, removals=removals)
        return cast(TopicImage, self.run(command))

    async def allocate_producer_id(self) -> tuple[ProducerId, ProducerEpoch]:
        return ProducerId(self._next_id()), ProducerEpoch(0)


@dataclass
class FakePartition:
    """A partition of 100 records that can only be trimmed."""

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
    """Partitions as the image has them."""

    metadata: FakeMetadata
    partitions: dict[tuple[str, int], FakePartition] = field(default_factory=dict)

    def partition(self, topic: str, partition: int) -> FakePartition:
        self.metadata.image.partition(topic, partition)
        return self.partitions.setdefault((topic, partition), FakePartition())


@dataclass
class FakeLog:
    size_bytes: int


@dataclass
class FakeLogs:
    """Logs of the sizes a test gives them."""

    sizes: dict[tuple[str, int], int] = field(default_factory=dict)

    def logs(self) -> dict[tuple[str, int], FakeLog]:
        return {key: FakeLog(size) for key, size in self.sizes.items()}

    def totals(self) -> Any:
        return SimpleNamespace(
            replicas=0,
            failed=0,
            damaged=0,
            size_bytes=0,
            segments=0,
            open_files=0,
            syncs=0,
            free_bytes=0,
        )


@dataclass
class FakeNode:
    """The services, and the knobs a test turns."""

    brokers: int = 1
    not_ready: str | None = None

    def __post_init__(self) -> None:
        self.metadata = FakeMetadata(self.brokers)
        self.replicas = FakeReplicas(self.metadata)
        self.logs = FakeLogs()
        self.services: Any = SimpleNamespace(
            replicas=self.replicas,
            metadata=self.metadata,
            logs=self.logs,
            clock=SystemClock(),
            node_id=BrokerId(1),
            cluster_id="fake-cluster",
            is_ready=lambda: self.not_ready,
        )
