"""The partitions of this node, kept in step with the applied metadata.

What a metadata change means here is done in two parts. At once, while the image changes: new
epochs and configs reach the partitions, and a deleted topic stops being served. Later, in order,
because it takes the disk: replicas are created, opened and removed. `settled` waits for that.

A replica that cannot be opened is offline alone: its partition answers with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import MetadataImage, PartitionImage, TopicImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.record.errors import NOT_READY, STORAGE_FAILED, UNKNOWN_TOPIC, LogError
from raftlog.record.types import BrokerId, Offset, PartitionId, TopicId
from raftlog.replication.partition import Partition, not_led_here
from raftlog.replication.topic_settings import TopicSettings
from raftlog.storage.log import Log
from raftlog.storage.manager import LogManager
from raftlog.world import DiskError

logger = logging.getLogger(__name__)

OPENS_AT_ONCE_MAX = 16
"""Replicas being opened at once; storage bounds how many of them work at a time."""
PENDING_CHANGES_MAX = 100_000
"""Metadata changes applied but not yet carried out on disk."""


@dataclass(frozen=True, slots=True)
class _Change:
    index: int
    delta: MetadataDelta


class ReplicaManager:
    """All partitions that this node leads. Lives in the event loop."""

    def __init__(
        self,
        state_machine: MetadataStateMachine,
        logs: LogManager,
        broker_id: BrokerId,
        settings: TopicSettings,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_act`: whether this node may act as a leader, at the moment of asking."""
        self._state_machine = state_machine
        self._logs = logs
        self._broker_id = broker_id
        self._settings = settings
        self._may_act = may_act
        self._partitions: dict[str, dict[int, Partition]] = {}
        self._offline: dict[tuple[str, int], LogError] = {}
        self._changes: deque[_Change] = deque()
        self._settled_index = 0
        self._progress = asyncio.Condition()
        self._worker: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._write_refusal: LogError | None = None
        self._on_topics_changed: list[Callable[[], None]] = []

    @property
    def image(self) -> MetadataImage:
        """The applied metadata."""
        return self._state_machine.image

    def on_topics_changed(self, callback: Callable[[], None]) -> None:
        """Be told when topics came, went or changed, for what is derived from them."""
        self._on_topics_changed.append(callback)

    def refuse_writes(self, error: LogError | None) -> None:
        """Refuse all appends with `error` while reads go on; None: take them again."""
        self._write_refusal = error
        for partitions in self._partitions.values():
            for partition in partitions.values():
                self._refuse(partition)

    def _refuse(self, partition: Partition) -> None:
        """Have a partition refuse appends if the node does, or does not lead it."""
        if self._write_refusal is None and partition.leader != self._broker_id:
            name, number = partition.topic, partition.partition
            leader = self.image.brokers.get(partition.leader)
            partition.write_refusal = not_led_here(name, number, leader)
        else:
            partition.write_refusal = self._write_refusal

    async def start(self) -> None:
        """Open every replica that the metadata gives this node, then follow its changes."""
        self._state_machine.subscribe(self._apply)
        index = self.image.applied_index
        gate = asyncio.Semaphore(OPENS_AT_ONCE_MAX)

        async def open_gated(topic: TopicImage, partition: PartitionImage) -> None:
            async with gate:
                await self._open(topic, partition)

        topics = list(self.image.topics_by_id.values())
        await asyncio.gather(*(open_gated(t, p) for t in topics for p in t.partitions))
        self._settled_index = index
        await self._sort_strays()
        self._worker = asyncio.create_task(self._carry_out(), name="replica-manager")

    async def close(self) -> None:
        """Stop serving and following; the logs are closed by their manager."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        for partitions in self._partitions.values():
            for partition in partitions.values():
                partition.close(LogError(NOT_READY, "The node is stopping."))

    def partition(self, topic: str, partition: int) -> Partition:
        """The partition, which this node leads.

        Raises LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, NO_LEADER, STORAGE_FAILED, NOT_READY.
        """
        try:
            return self._partitions[topic][partition]
        except KeyError:
            raise self._why_not(topic, partition) from None

    def partitions_of(self, topic: str) -> list[Partition]:
        """All partitions of a topic, in order. Raises LogError as `partition` does."""
        count = len(self.image.topic(topic).partitions)
        return [self.partition(topic, number) for number in range(count)]

    async def wait_for_data(
        self, wants: Sequence[tuple[Partition, Offset]], *, min_bytes: int, timeout_s: float
    ) -> None:
        """Return when any partition has a committed record at its offset, or the time is up.

        With `min_bytes` > 1, wait until about that many bytes have arrived meanwhile; what was
        there before the call counts as enough.
        """
        if any(partition.high_watermark > offset for partition, offset in wants):
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        sizes = [partition.log.size_bytes for partition, _ in wants]
        while await _any_moves(wants, deadline):
            arrived = sum(
                max(0, partition.log.size_bytes - size)
                for (partition, _), size in zip(wants, sizes, strict=True)
            )
            if arrived >= min_bytes:
                return
            wants = [(p, max(offset, p.high_watermark)) for p, offset in wants]

    async def settled(self, index: int) -> None:
        """Return once the metadata up to `index` is carried out on this node's disk."""
        async with self._progress:
            await self._progress.wait_for(
                lambda: self._settled_index >= index or self._failure is not None
            )
        if self._failure is not None:
            raise LogError(STORAGE_FAILED, f"Following the metadata failed: {self._failure}")

    def _apply(self, delta: MetadataDelta) -> None:
        for topic in delta.deleted:
            for partition in self._partitions.pop(topic.name, {}).values():
                partition.close(LogError(UNKNOWN_TOPIC, f"Topic {topic.name!r} was deleted."))
            for row in topic.partitions:
                self._offline.pop((topic.name, row.partition), None)
        for change in delta.changed:
            served = self._partitions.get(change.after.name, {})
            for number, partition in served.items():
                image = change.after.partitions[number]
                partition.update(image, self._settings.min_insync_replicas(change.after))
                self._refuse(partition)
                if change.configs_changed:
                    partition.log.configure(self._settings.log_config(change.after))
        if delta.cluster_settings:
            self._configure_all(delta.cluster_settings)
        assert len(self._changes) < PENDING_CHANGES_MAX
        self._changes.append(_Change(self.image.applied_index, delta))
        for callback in self._on_topics_changed:
            callback()
        if self._worker is not None:
            asyncio.get_running_loop().create_task(self._notify())

    def _configure_all(self, names: Collection[str]) -> None:
        """Carry out cluster settings, in topics that do not set all of these themselves."""
        for name, served in self._partitions.items():
            topic = self.image.topics_by_name[name]
            if all(config in topic.configs for config in names):
                continue
            min_insync_replicas = self._settings.min_insync_replicas(topic)
            log_config = self._settings.log_config(topic)
            for number, partition in served.items():
                partition.update(topic.partitions[number], min_insync_replicas)
                partition.log.configure(log_config)

    async def _notify(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def _carry_out(self) -> None:
        try:
            while True:
                async with self._progress:
                    await self._progress.wait_for(lambda: bool(self._changes))
                while self._changes:
                    change = self._changes[0]
                    await self._carry_out_one(change.delta)
                    self._changes.popleft()
                    self._settled_index = change.index
                await self._notify()
        except Exception as error:
            self._failure = error
            logger.exception("following the metadata failed")
            await self._notify()
            raise

    async def _carry_out_one(self, delta: MetadataDelta) -> None:
        for topic in delta.deleted:
            await self._logs.delete_topic(topic.topic_id)
        for topic in delta.created:
            await self._open_all(topic, [row.partition for row in topic.partitions])
        for change in delta.changed:
            known = len(change.before.partitions)
            await self._open_all(change.after, [p for p in change.partitions if p >= known])

    async def _open_all(self, topic: TopicImage, numbers: Sequence[PartitionId]) -> None:
        for number in numbers:
            # A later change may have deleted the topic, or changed the row, meanwhile.
            newest = self.image.topics_by_id.get(topic.topic_id)
            if newest is not None:
                await self._open(newest, newest.partitions[number])

    async def _open(self, topic: TopicImage, row: PartitionImage) -> None:
        if self._broker_id not in row.replicas:
            return
        key = (topic.name, row.partition)
        try:
            log = await self._logs.open_replica(
                topic.topic_id, row.partition, self._settings.log_config(topic), create=True
            )
        except (LogError, DiskError) as error:
            logger.error("%s-%d cannot be opened: %s", *key, error)
            self._offline[key] = LogError(STORAGE_FAILED, f"{key[0]}-{key[1]} is offline: {error}")
            return
        newest = self.image.topics_by_id.get(topic.topic_id)
        if newest is not None:
            self._serve(newest, newest.partitions[row.partition], log)

    async def _sort_strays(self) -> None:
        """Remove replicas of topics known to be deleted; keep and report all others.

        A node that was down, or died, when its topics were deleted finds them again.
        """
        strays = self._logs.strays()
        deleted = {
            stray.partition("/")[0] for stray in strays
        } & self.image.deleted_topic_ids.keys()
        for topic_id in sorted(deleted):
            logger.info("removing the replicas of topic %s, which was deleted", topic_id)
            await self._logs.delete_topic(TopicId(topic_id))
        for stray in self._logs.strays():
            logger.warning("replica %s is on disk but not in the metadata; it is kept", stray)

    def _serve(self, topic: TopicImage, row: PartitionImage, log: Log) -> None:
        config = self._settings.log_config(topic)
        if log.config != config:
            # Settings of the topic or the cluster have changed while the log was being opened.
            log.configure(config)
        partition = Partition(
            topic=topic.name,
            topic_id=topic.topic_id,
            log=log,
            image=row,
            min_insync_replicas=self._settings.min_insync_replicas(topic),
            may_act=self._may_act,
        )
        self._refuse(partition)
        self._partitions.setdefault(topic.name, {})[row.partition] = partition
        for callback in self._on_topics_changed:
            callback()

    def _why_not(self, topic: str, partition: int) -> LogError:
        try:
            row = self.image.partition(topic, partition)
        except LogError as error:
            return error
        offline = self._offline.get((topic, partition))
        if offline is not None:
            return LogError(offline.entry, offline.message)
        if row.leader != self._broker_id:
            return not_led_here(topic, partition, self.image.brokers.get(row.leader))
        return LogError(NOT_READY, f"{topic}-{partition} is being opened.")


async def _any_moves(wants: Sequence[tuple[Partition, Offset]], deadline: float) -> bool:
    """Wait until a high watermark passes its offset; False when the deadline came first."""
    loop = asyncio.get_running_loop()
    moved: asyncio.Future[bool] = loop.create_future()

    def settle(outcome: bool) -> None:
        if not moved.done():
            moved.set_result(outcome)

    timer = loop.call_at(deadline, settle, False)
    handles: list[tuple[Partition, int]] = []
    try:
        for partition, offset in wants:
            handles.append((partition, partition.add_read_waiter(offset, lambda: settle(True))))
        return await moved
    finally:
        timer.cancel()
        for partition, handle in handles:
            partition.remove_read_waiter(handle)
