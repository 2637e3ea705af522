"""The coordinators of one node, with its shards and calls to other nodes' shards.

A group or transactional id belongs to one partition of an internal topic. Its leader is the
coordinator. A request goes to the shard here, or is forwarded to the leader, with the retries of
`PartitionHandle`. A shard is loaded when this node starts to lead its partition, dropped at once
when the lead ends, and loaded again after a failed append.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

from raftlog.coordinator.shard.decision import Counts
from raftlog.coordinator.shard.load import load_shard
from raftlog.coordinator.shard.messages import Messages
from raftlog.coordinator.shard.shard import Kind, Shard
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import TopicImage
from raftlog.peer.tasks import TaskGroup
from raftlog.record.coordinators import partition_of
from raftlog.record.errors import (
    COORDINATOR_LOADING,
    MAYBE_CHANGED,
    NOT_COORDINATOR,
    NOT_READY,
    RETRIABLE,
    TOPIC_EXISTS,
    LogError,
    outcome_unknown_error,
)
from raftlog.record.types import BrokerId, Buffer, PartitionId, TopicId
from raftlog.replication.cluster_metadata import ClusterMetadata
from raftlog.replication.leader.role import LeaderRole
from raftlog.replication.manager import ReplicaManager
from raftlog.replication.partition import Partition
from raftlog.routing.handle import CoordinatorCall
from raftlog.routing.leader_gate import CoordinatorServer
from raftlog.routing.router import PartitionRouter
from raftlog.world import Backoff, Clock
from raftlog.world.cluster_clock import ClusterClock

PARTITIONS: Final = 16
"""Partitions of an internal topic at its creation. Fixed, because ids depend on the number."""
TOPIC_CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""Configs with a tenth of the default segment. A load reads the newest segment uncompacted."""
CREATE_S_MAX: Final = 10.0
"""Longest attempt to create an internal topic."""
PAUSE_S: Final = 0.05
"""Pause between attempts to create a topic."""
RELOAD: Final = Backoff(0.05, 5.0)
"""Pauses between two loads of one partition."""
STABLE_S: Final = 30.0
"""A shard that has served for so long is loaded again after the shortest pause."""

AnyKind: TypeAlias = Kind[Any, Any, Any, Any]
AnyShard: TypeAlias = Shard[Any, Any]
Q = TypeVar("Q")
A = TypeVar("A")

logger = logging.getLogger(__name__)


class Coordinators(CoordinatorServer):
    """The coordinators of one node. Lives in the event loop."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        router: PartitionRouter,
        metadata: ClusterMetadata,
        clock: Clock,
        cluster_clock: ClusterClock,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` gets the reason when the node must end."""
        self._kinds: dict[str, AnyKind] = {}
        self._by_topic: dict[str, AnyKind] = {}
        self._replicas = replicas
        self._router = router
        self._metadata = metadata
        self._clock = clock
        self._cluster_clock = cluster_clock
        self._tasks = TaskGroup(on_fatal)
        self._roles: dict[tuple[TopicId, PartitionId], LeaderRole] = {}
        """Leader epochs with a task."""
        self._shards: dict[tuple[TopicId, PartitionId], AnyShard] = {}
        """Loaded shards."""
        self._creations: dict[str, asyncio.Lock] = {}
        self._is_closing = False
        replicas.on_lead_begun(self._lead_begun)

    def register(self, *kinds: AnyKind) -> None:
        """Run coordinators of these kinds. Call it before the replicas open."""
        for kind in kinds:
            assert kind.name not in self._kinds
            self._kinds[kind.name] = kind
            self._by_topic[kind.topic] = kind
            self._creations[kind.topic] = asyncio.Lock()

    async def close(self) -> None:
        """End all shards."""
        self._is_closing = True
        for shard in list(self._shards.values()):
            shard.end(LogError(NOT_READY, "The node is stopping."))
        await self._tasks.close()

    def shards(self) -> list[AnyShard]:
        """The shards that serve here."""
        return list(self._shards.values())

    def counts(self) -> Counts:
        """What the coordinators of this node have done since its start."""
        return sum((kind.counts for kind in self._kinds.values()), Counter())

    def shard_of(self, partition: Partition) -> AnyShard | None:
        """The shard through which all batches of the partition go. None if it needs none.

        Raises LogError COORDINATOR_LOADING.
        """
        if partition.topic not in self._by_topic:
            return None
        shard = self._shards.get((partition.topic_id, partition.partition))
        if shard is None:
            raise LogError(COORDINATOR_LOADING, f"The coordinator of {partition.name} is loading.")
        return shard

    # Requests

    async def call(
        self,
        messages: Messages[Q, A],
        key: str,
        request: Q,
        *,
        timeout_s: float,
        may_change: bool = True,
        may_repeat: bool = False,
        is_held: bool = False,
    ) -> A:
        """Execute a request at the coordinator of a group or transactional id.

        It is retried while the coordinator moves or loads, and after an unknown outcome only if it
        `may_repeat`. Without `may_change`, a lost response is no unknown outcome. With `is_held`
        the coordinator may hold the request open. Raises LogError.
        """
        topic = await self._topic(self._kinds[messages.kind])
        number = partition_of(key, len(topic.partitions))
        return await self.call_partition(
            messages,
            topic,
            number,
            request,
            timeout_s=timeout_s,
            may_change=may_change,
            may_repeat=may_repeat,
            is_held=is_held,
        )

    async def call_partition(
        self,
        messages: Messages[Q, A],
        topic: TopicImage,
        number: int,
        request: Q,
        *,
        timeout_s: float,
        may_change: bool = True,
        may_repeat: bool = False,
        is_held: bool = False,
    ) -> A:
        """Execute a request at the coordinator that leads a partition of the internal topic.

        Retries, and raises LogError, as `call`.
        """
        checked = messages.checked(request)
        return await self._router.find(topic.name, number).coordinate(
            _Call(self, messages, checked, may_change=may_change),
            timeout_s=timeout_s,
            may_change=may_change,
            may_repeat=may_repeat,
            is_held=is_held,
        )

    async def coordinator_of(self, kind: str, key: str) -> BrokerId:
        """The broker that coordinates a group or transactional id, or NO_LEADER_ID for none.

        Creates the internal topic with its first use. Raises LogError.
        """
        topic = await self._topic(self._kinds[kind])
        return topic.partitions[partition_of(key, len(topic.partitions))].leader

    async def serve(self, found: Partition, request: memoryview, timeout_s: float) -> Buffer:
        """Carry out another node's request at a partition led here. Raises LogError."""
        messages = self._serving(found).kind.messages
        response = await self.handle(found, messages.decode_request(request), timeout_s)
        return messages.encode_response(response)

    async def handle(self, found: Partition, request: object, timeout_s: float) -> Any:
        """Carry out a checked request at a partition led here. Raises LogError."""
        shard = self._serving(found)
        try:
            async with asyncio.timeout(timeout_s):
                return await shard.kind.handle(shard, request)
        except TimeoutError:
            late = LogError(RETRIABLE, f"{found.name}: not committed in time.")
            raise outcome_unknown_error(late, MAYBE_CHANGED) from None

    def _serving(self, found: Partition) -> AnyShard:
        shard = self.shard_of(found)
        if shard is None:
            raise LogError(NOT_COORDINATOR, f"{found.name} has no coordinator.")
        return shard

    # Internal topics

    async def _topic(self, kind: AnyKind) -> TopicImage:
        """The internal topic, created with its first use. Raises LogError."""
        topic = self._metadata.image.topics_by_name.get(kind.topic)
        if topic is not None:
            return topic
        async with self._creations[kind.topic]:
            return await self._created(kind.topic)

    async def _created(self, name: str) -> TopicImage:
        deadline = self._clock.monotonic() + CREATE_S_MAX
        while True:
            topic = self._metadata.image.topics_by_name.get(name)
            if topic is not None:
                return topic
            try:
                return await self._metadata.create_topic(
                    name, partitions=PARTITIONS, configs=TOPIC_CONFIGS
                )
            except LogError as error:
                # Another node's creation may not be applied here yet.
                may_retry = error.entry.retriable or error.entry is TOPIC_EXISTS
                if not may_retry or self._clock.monotonic() >= deadline:
                    raise
            await self._clock.sleep(PAUSE_S)

    # Shards

    def metadata_applied(self, delta: MetadataDelta) -> None:
        """Notify the shards of topics that were created, deleted or enlarged, and of settings."""
        if delta.cluster_settings:
            for shard in self.shards():
                shard.settings_changed()
        names = {topic.name for topic in (*delta.created, *delta.deleted)}
        names.update(
            change.after.name
            for change in delta.changed
            if len(change.before.partitions) != len(change.after.partitions)
        )
        if names:
            for shard in self.shards():
                shard.topics_changed(names)

    def _lead_begun(self, topic_id: TopicId, number: PartitionId) -> None:
        """Load the shard of a partition that begins to be led here."""
        topic = self._metadata.image.topics_by_id.get(topic_id)
        if topic is not None and topic.name in self._by_topic and not self._is_closing:
            name = f"coordinator-{topic.name}-{number}"
            self._tasks.spawn(self._lead(self._by_topic[topic.name], topic_id, number), name)

    async def _lead(self, kind: AnyKind, topic_id: TopicId, number: PartitionId) -> None:
        """Keep a shard of the partition loaded, for one leader epoch."""
        partition = self._replicas.replica(topic_id, number)
        role = None if partition is None else partition.leader_role
        key = (topic_id, number)
        if partition is None or role is None or self._roles.get(key) is role:
            return
        self._roles[key] = role
        try:
            await self._keep_loaded(kind, partition, role)
        finally:
            if self._roles.get(key) is role:
                del self._roles[key]

    async def _keep_loaded(self, kind: AnyKind, partition: Partition, role: LeaderRole) -> None:
        loads = 0
        while partition.leader_role is role:
            begun_s = self._clock.monotonic()
            await self._serve_one(kind, partition, role)
            if self._clock.monotonic() - begun_s >= STABLE_S:
                loads = 0
            if partition.leader_role is role:
                await self._clock.sleep(RELOAD.delay_s(loads))
                loads += 1

    async def _serve_one(self, kind: AnyKind, partition: Partition, role: LeaderRole) -> None:
        """Load a shard, and serve until its end."""
        key = (partition.topic_id, partition.partition)
        shard: AnyShard = Shard(
            kind,
            partition,
            role,
            clock=self._clock,
            cluster_clock=self._cluster_clock,
            image=lambda: self._metadata.image,
            tasks=self._tasks,
        )
        role.end_listeners.append(shard.end)
        try:
            await load_shard(shard, self._clock.monotonic)
            self._shards[key] = shard
            if (beside := kind.beside(shard)) is not None:
                self._tasks.spawn(beside, f"coordinator-{kind.name}-beside")
            await shard.run()
        except LogError as error:
            if error.entry is not NOT_COORDINATOR:
                logger.error("%s: coordinator not loaded: %s", partition.name, error.message)
            shard.end(error)
        finally:
            role.end_listeners.remove(shard.end)
            if self._shards.get(key) is shard:
                del self._shards[key]
        if partition.leader_role is role and shard.ended is not None:
            logger.warning(
                "%s: coordinator ended, loading again: %s", partition.name, shard.ended.message
            )


class _Call(CoordinatorCall[A]):
    """A checked request to the coordinator that leads a partition."""

    __slots__ = ("_coordinators", "_may_change", "_messages", "_request")

    def __init__(
        self, coordinators: Coordinators, messages: Messages[Q, A], request: Q, *, may_change: bool
    ) -> None:
        self._coordinators = coordinators
        self._messages = messages
        self._request = request
        self._may_change = may_change

    async def local(self, found: Partition, timeout_s: float) -> A:
        try:
            return cast(A, await self._coordinators.handle(found, self._request, timeout_s))
        except LogError as error:
            if error.entry is RETRIABLE and not self._may_change:
                raise LogError(NOT_READY, error.message) from None
            raise

    def encoded(self) -> Sequence[Buffer]:
        return (self._messages.encode_request(self._request),)

    def decoded(self, body: memoryview) -> A:
        return self._messages.decode_response(body)
