"""The replicas' files follow the applied metadata. They are opened, replaced and removed.

Work runs in the order of the metadata, and later than the apply. `settled` waits for the disk. A
replica is deleted only by applied metadata, which is the deletion of its topic, or a row that names
this node no more. Files that cannot be removed stay. A replica that cannot be opened is offline,
and the others are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.metadata.delta import MetadataDelta, TopicChange
from raftlog.metadata.image import MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import DISK_FULL, STORAGE_FAILED, LogError
from raftlog.record.types import BrokerId, PartitionId, TopicId
from raftlog.replication.partition import Partition
from raftlog.replication.replica import TopicSettings
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.repair.quarantine import replica_name
from raftlog.storage.types import LogConfig
from raftlog.world import DiskError

logger = logging.getLogger(__name__)

OPENS_AT_ONCE_MAX: Final = 512
"""Most replicas in opening at once. They share syncs, and one write of the checkpoint file."""
SERVED_PER_TURN_MAX: Final = 64
"""Most opened replicas that take roles in one event loop turn, 0.1 ms each."""
PENDING_CHANGES_MAX: Final = 100_000
"""Most metadata changes that are applied and still wait for the disk."""


@dataclass(frozen=True, slots=True)
class _Change:
    index: int
    delta: MetadataDelta
    forgotten: tuple[TopicId, ...]
    """Topics missing from the image without a known deletion."""


class ReplicaLifecycle:
    """Opens, replaces and removes this node's replicas. Lives in the event loop."""

    def __init__(
        self,
        logs: LogManager,
        broker_id: BrokerId,
        settings: TopicSettings,
        *,
        image: Callable[[], MetadataImage],
        replica: Callable[[TopicId, PartitionId], Partition | None],
        serve: Callable[[TopicImage, PartitionImage, Log], None],
        on_open_failed: Callable[[TopicId, PartitionId], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`image` gives the applied metadata, `replica` the served replica. `serve` takes an open
        log. `on_open_failed` is called for a replica that could not be opened and is offline.
        `on_fatal` gets the reason when the metadata cannot be applied, and the node must end."""
        self._logs = logs
        self._broker_id = broker_id
        self._settings = settings
        self._current_image = image
        self._replica = replica
        self._serve = serve
        self._on_open_failed = on_open_failed
        self._on_fatal = on_fatal
        self._opening: dict[tuple[TopicId, PartitionId], None] = {}
        """Replicas assigned to this node by applied metadata, and not opened yet."""
        self._served_in_turn = 0
        self._offline: dict[tuple[str, int], LogError] = {}
        self.lost: set[tuple[TopicId, PartitionId]] = set()
        """Replicas assigned before this start without their files, until they are renewed."""
        self._retired: dict[tuple[TopicId, PartitionId], Partition] = {}
        """Not served any more, but a change of the log may still be under way."""
        self._changes: deque[_Change] = deque()
        self._settled_index = 0
        self._progress = asyncio.Condition()
        self._worker: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @property
    def _image(self) -> MetadataImage:
        return self._current_image()

    async def start(self) -> None:
        """Open every assigned replica, then start with the changes applied since."""
        self._find_lost()
        index = self._image.applied_index
        for topic in list(self._image.topics_by_id.values()):
            self._expect(topic, topic.partitions)
        await self._open_all(list(self._opening))
        self._settled_index = index
        await self._note_known()
        await self._remove_deleted_strays()
        self._worker = asyncio.create_task(self._execute(), name="replica-manager")

    async def close(self) -> None:
        """Stop. Changes that still wait for the disk take effect at the next start."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    # Applied metadata

    def applied(self, delta: MetadataDelta) -> None:
        """Queue an applied change for the disk."""
        for topic in delta.deleted:
            for row in topic.partitions:
                self._offline.pop((topic.name, row.partition), None)
                self.lost.discard((topic.topic_id, row.partition))
                self._opening.pop((topic.topic_id, row.partition), None)
        for topic in delta.created:
            self._expect(topic, topic.partitions)
        for change in delta.changed:
            self._opening.update(dict.fromkeys(self._gained(change)))
        assert len(self._changes) < PENDING_CHANGES_MAX
        # Looked up now, because the image remembers only the newest deletions.
        known = self._image.deleted_topic_ids
        forgotten = tuple(topic.topic_id for topic in delta.deleted if topic.topic_id not in known)
        self._changes.append(_Change(self._image.applied_index, delta, forgotten))
        if self._worker is not None:
            asyncio.get_running_loop().create_task(self._notify())

    def retire(self, partition: Partition) -> None:
        """Remember a replica that is not served any more, until its last change is over."""
        self._retired[partition.topic_id, partition.partition] = partition

    async def settled(self, index: int) -> None:
        """Return once the metadata up to `index` has taken effect on this node's disk."""
        async with self._progress:
            await self._progress.wait_for(
                lambda: self._settled_index >= index or self._failure is not None
            )
        if self._failure is not None:
            raise LogError(STORAGE_FAILED, f"Applying metadata on disk failed: {self._failure}")

    def offline(self, topic: str, partition: int) -> LogError | None:
        """Why a replica could not be opened. None if it was opened, or never tried."""
        return self._offline.get((topic, partition))

    @property
    def opening_count(self) -> int:
        """Replicas being opened, or created."""
        return len(self._opening)

    @property
    def offline_count(self) -> int:
        """Replicas that could not be opened."""
        return len(self._offline)

    def lacks_room(self, topic_id: TopicId, number: PartitionId) -> bool:
        """Whether the replica could not be opened because the disk was full."""
        topic = self._image.topics_by_id.get(topic_id)
        offline = None if topic is None else self.offline(topic.name, number)
        return offline is not None and offline.entry is DISK_FULL

    # Opening

    async def open_again(self, topic_id: TopicId, number: PartitionId) -> None:
        """Try once more to open an offline replica. Raises LogError if it stays offline."""
        topic = self._assigned_topic(topic_id, number)
        if topic is not None and self._replica(topic_id, number) is None:
            await self._open_one(topic, number)

    async def replace(
        self,
        topic_id: TopicId,
        number: PartitionId,
        replacement: Callable[[TopicId, PartitionId, LogConfig], Awaitable[Log]],
    ) -> None:
        """Replace the log of a replica that is not served any more. Raises LogError. `replacement`
        is `renew_replica` or `reopen_replica` of the logs."""
        topic = self._assigned_topic(topic_id, number)
        if topic is None:
            return
        config = self._settings.log_config(topic)
        await self._wait_retired(topic_id, number)
        log = await replacement(topic_id, number, config)
        self._offline.pop((topic.name, number), None)
        self.lost.discard((topic_id, number))
        self._serve_newest(topic_id, number, log)
        await self._note_known()

    def _find_lost(self) -> None:
        """Find the replicas of this node without their files. They stay offline until renewed."""
        for topic in self._image.topics_by_id.values():
            for row in topic.partitions:
                if self._broker_id in row.replicas and self._logs.is_lost(
                    topic.topic_id, row.partition
                ):
                    self.lost.add((topic.topic_id, row.partition))

    async def _note_known(self) -> None:
        """End a start without a checkpoint file, once every replica is in the new file."""
        if not self.lost and not self._is_any_unopened():
            try:
                await self._logs.all_known()
            except DiskError as error:
                logger.warning("the next start looks for lost replicas again: %s", error)

    def _is_any_unopened(self) -> bool:
        """Whether a replica could not be opened at all. A damaged replica is open, and known."""
        topics = self._image.topics_by_name
        return any(
            name in topics and self._logs.find(topics[name].topic_id, PartitionId(number)) is None
            for name, number in self._offline
        )

    def _assigned_topic(self, topic_id: TopicId, number: PartitionId) -> TopicImage | None:
        """The topic, if the newest metadata assigns a replica of the partition to this node."""
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None or self._broker_id not in topic.partitions[number].replicas:
            return None
        return topic

    def _expect(self, topic: TopicImage, rows: Iterable[PartitionImage]) -> None:
        """Count the replicas among these rows as being opened."""
        for row in rows:
            if self._broker_id in row.replicas:
                self._opening[topic.topic_id, row.partition] = None

    async def _open_all(self, keys: Sequence[tuple[TopicId, PartitionId]]) -> None:
        for start in range(0, len(keys), OPENS_AT_ONCE_MAX):
            group = keys[start : start + OPENS_AT_ONCE_MAX]
            await asyncio.gather(*(self._open(*key) for key in group))

    async def _open(self, topic_id: TopicId, number: PartitionId) -> None:
        # A later change may have deleted the topic, or changed the row, before this open.
        topic = self._assigned_topic(topic_id, number)
        if topic is not None and self._replica(topic_id, number) is None:
            try:
                await self._open_one(topic, number)
            except LogError as error:
                logger.error("%s-%d cannot be opened: %s", topic.name, number, error.message)
                self._on_open_failed(topic_id, number)
        self._opening.pop((topic_id, number), None)

    async def _open_one(self, topic: TopicImage, number: PartitionId) -> None:
        await self._wait_retired(topic.topic_id, number)
        key = (topic.name, number)
        if (topic.topic_id, number) in self.lost:
            lost = LogError(
                STORAGE_FAILED,
                f"{topic.name}-{number} is offline: its files are gone from this node's disk. They "
                "are copied again from another replica with all records; without one, an operator "
                "has to accept the loss (`raftlog cluster transfer-leadership --unclean`).",
            )
            if topic.topic_id in self._image.topics_by_id:
                self._offline[key] = lost
            raise lost
        try:
            log = await self._logs.open_replica(
                topic.topic_id, number, self._settings.log_config(topic), create=True
            )
        except (LogError, DiskError) as error:
            is_full = isinstance(error, LogError) and error.entry is DISK_FULL
            offline = LogError(
                DISK_FULL if is_full else STORAGE_FAILED,
                f"{key[0]}-{key[1]} is offline: {error}",
            )
            if topic.topic_id in self._image.topics_by_id:
                self._offline[key] = offline
            raise offline from error
        await self._wait_turn()
        self._offline.pop(key, None)
        if self._logs.find(topic.topic_id, number) is log:
            # A later change may have removed or replaced the replica during the work.
            self._serve_newest(topic.topic_id, number, log)

    async def _wait_turn(self) -> None:
        """Return in a turn of the event loop with room for another role."""
        while self._served_in_turn >= SERVED_PER_TURN_MAX:  # noqa: ASYNC110 - no event: a turn
            await asyncio.sleep(0)
        if not self._served_in_turn:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._served_in_turn += 1

    def _begin_turn(self) -> None:
        self._served_in_turn = 0

    def _serve_newest(self, topic_id: TopicId, number: PartitionId, log: Log) -> None:
        newest = self._assigned_topic(topic_id, number)
        if newest is not None:
            self._serve(newest, newest.partitions[number], log)

    async def _wait_retired(self, topic_id: TopicId, number: PartitionId) -> None:
        """Return when the last change of a retired replica's log is over. A truncation still under
        way would remove records of the partition that serves the log next."""
        key = (topic_id, number)
        while (partition := self._retired.get(key)) is not None:
            await partition.follower_role.until_idle()
            if self._retired.get(key) is partition:
                del self._retired[key]

    # Changes on disk

    async def _notify(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def _execute(self) -> None:
        try:
            while True:
                async with self._progress:
                    await self._progress.wait_for(lambda: bool(self._changes))
                while self._changes:
                    change = self._changes[0]
                    await self._execute_one(change)
                    self._changes.popleft()
                    self._settled_index = change.index
                await self._notify()
        except Exception as error:
            self._failure = error
            logger.critical("applying metadata on disk failed", exc_info=error)
            await self._notify()
            self._on_fatal(f"Applying metadata on disk failed: {error!r}")

    async def _execute_one(self, change: _Change) -> None:
        delta = change.delta
        for topic in delta.deleted:
            for row in topic.partitions:
                await self._wait_retired(topic.topic_id, row.partition)
            if topic.topic_id in change.forgotten:
                # After a snapshot. Deleted too long ago for the image to remember, or never there.
                logger.warning(
                    "topic %s (%s) is missing from the metadata without a known deletion: "
                    "its files are kept and not served",
                    topic.name,
                    topic.topic_id,
                )
                await self._log_failure(
                    f"topic {topic.name}", self._logs.release_topic(topic.topic_id)
                )
            else:
                await self._log_failure(
                    f"topic {topic.name}", self._logs.delete_topic(topic.topic_id)
                )
        for topic in delta.created:
            await self._open_all([(topic.topic_id, row.partition) for row in topic.partitions])
        for topic_change in delta.changed:
            await self._execute_change(topic_change)
        await self._note_known()

    async def _execute_change(self, change: TopicChange) -> None:
        before = change.before.partitions
        for number in change.partitions:
            had = number < len(before) and self._broker_id in before[number].replicas
            if had and self._broker_id not in change.after.partitions[number].replicas:
                topic_id = change.after.topic_id
                await self._wait_retired(topic_id, number)
                if not self._holds(topic_id, number):
                    self.lost.discard((topic_id, number))
                    name = f"{change.after.name}-{number}"
                    logger.info("%s was reassigned to other brokers: deleting the replica", name)
                    await self._log_failure(name, self._logs.delete_replica(topic_id, number))
        await self._open_all(self._gained(change))

    def _gained(self, change: TopicChange) -> list[tuple[TopicId, PartitionId]]:
        """Replicas that the change assigns to this node."""
        before, after = change.before.partitions, change.after.partitions
        return [
            (change.after.topic_id, number)
            for number in change.partitions
            if self._broker_id in after[number].replicas
            and not (number < len(before) and self._broker_id in before[number].replicas)
        ]

    async def _log_failure(self, name: str, work: Awaitable[None]) -> None:
        """Log a failed removal. The files stay, and later changes are not held up."""
        try:
            await work
        except LogError as error:
            logger.error("%s cannot be deleted, its files stay: %s", name, error.message)

    def _holds(self, topic_id: TopicId, number: PartitionId) -> bool:
        """Whether the newest metadata assigns a replica of the partition to this node."""
        # The change that deletes a topic also removes its files.
        return (
            topic_id not in self._image.topics_by_id
            or self._assigned_topic(topic_id, number) is not None
        )

    async def _remove_deleted_strays(self) -> None:
        """Remove stray replicas of topics known to be deleted. Keep and report all others.

        A node that was down, or died, during a deletion finds the files at its next start, and
        at the start after that if they cannot be removed now.
        """
        strays = self._logs.strays()
        deleted = {
            stray.partition("/")[0] for stray in strays
        } & self._image.deleted_topic_ids.keys()
        for topic_id in sorted(deleted):
            logger.info("deleting stray replicas of deleted topic %s", topic_id)
            await self._log_failure(f"topic {topic_id}", self._logs.delete_topic(TopicId(topic_id)))
        # Replicas assigned here could not be opened, which the log reports already.
        assigned = {
            replica_name(topic.topic_id, row.partition)
            for topic in self._image.topics_by_id.values()
            for row in topic.partitions
            if self._broker_id in row.replicas
        }
        for stray in self._logs.strays():
            if stray not in assigned:
                logger.warning(
                    "stray replica %s: the metadata does not assign it to this node; its files are "
                    "kept",
                    stray,
                )
