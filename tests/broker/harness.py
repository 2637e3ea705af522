"""A broker over a node in memory, with an authorizer that records and refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from raftlog.broker.authorize import ANONYMOUS, Operation, Principal, Resource, ResourceType
from raftlog.broker.limits import BrokerSettings
from raftlog.broker.produce import ProduceOptions, StoredRecord
from raftlog.broker.service import Broker
from raftlog.coordinator.groups.kind import GroupKind
from raftlog.coordinator.groups.settings import GroupSettings
from raftlog.coordinator.shard.service import AnyKind, Coordinators
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.errors import FORBIDDEN, LogError
from raftlog.replication.partition import Acks
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.randomness import SystemRandomness
from raftlog.world.time import SystemClock
from tests.broker.data_fakes import DataNode
from tests.coordinator.group_harness import no_transactions

ALICE = Principal("User", "alice")
DEFAULTS = ProduceOptions(Acks.ALL, 5.0)
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


@dataclass
class Authorizer:
    """Records every call; refuses the operations in `refused`."""

    refused: set[tuple[Operation, str]] = field(default_factory=set)
    calls: list[tuple[Principal, Operation, Resource]] = field(default_factory=list)

    def __call__(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        self.calls.append((principal, operation, resource))
        if (operation, resource.name) in self.refused:
            raise LogError(FORBIDDEN, f"{operation} of {resource.name} is refused.")

    def taken(self) -> list[tuple[Operation, ResourceType, str]]:
        """Operations and resources since the last call, in order."""
        taken = [(operation, *resource) for _, operation, resource in self.calls]
        assert all(principal == ALICE for principal, _, _ in self.calls)
        self.calls.clear()
        return taken


def broker_settings(**values: Any) -> BrokerSettings:
    """Settings of a test: defaults, but for `values`."""
    return BrokerSettings(
        **{
            "auto_create_topics": False,
            "bytes_in_flight_max": 1 << 20,
            "requests_in_flight_max": 1000,
            "response_bytes_max": 1 << 20,
            "long_poll_s_max": 5.0,
            "partitions_per_request_max": 100,
            "topic_labels_max": 10,
            **values,
        }
    )


class BrokerHarness:
    """Topics `one` (1 partition) and `six` (6), all led by this node."""

    def __init__(self, node: Any, **settings: Any) -> None:
        self.node = node
        self.authorizer = Authorizer()
        self.broker = Broker(node.services, broker_settings(**settings), self.authorizer)

    @classmethod
    async def start(cls, **settings: Any) -> BrokerHarness:
        node = DataNode()
        await node.metadata.create_topic("one", partitions=1)
        await node.metadata.create_topic("six", partitions=6)
        return cls(node, **settings)

    def refuse(self, operation: Operation, name: str) -> None:
        self.authorizer.refused.add((operation, name))


@asynccontextmanager
async def coordinating_groups(node: DataNode, *others: AnyKind) -> AsyncIterator[None]:
    """The node coordinates groups, and other kinds."""
    fatal: list[str] = []
    coordinators = Coordinators(
        replicas=node.replicas,  # type: ignore[arg-type]
        router=node.partitions,
        metadata=node.metadata,  # type: ignore[arg-type]
        clock=SystemClock(),
        cluster_clock=ClusterClock(SystemClock()),
        on_fatal=fatal.append,
    )
    coordinators.register(GroupKind(GroupSettings(), no_transactions), *others)
    node.services.coordinators = coordinators
    node.services.randomness = SystemRandomness()
    try:
        yield
    finally:
        await coordinators.close()
    assert not fatal


def record(value: str, key: bytes | None = None) -> StoredRecord:
    """A record to write."""
    return (0, key, value.encode(), None)


def encoded(values: Sequence[bytes]) -> bytes:
    """One record batch, as a client builds it."""
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    for value in values:
        builder.append(0, None, value)
    return bytes(builder.build())


__all__ = [
    "ALICE",
    "ANONYMOUS",
    "CLUSTER",
    "DEFAULTS",
    "TOPIC",
    "Authorizer",
    "BrokerHarness",
    "Operation",
    "broker_settings",
    "coordinating_groups",
    "encoded",
    "record",
]
