"""The replicas of this node, kept in step with the applied metadata.

A metadata change takes effect here in three parts. At once, within the apply, new roles, epochs and
min.insync.replicas reach the partitions, and a deleted topic stops being served. In the next turns
of the event loop, as there may be thousands of partitions, logs get new configs, and partitions of
a deleted topic close. Later, in order, as the disk takes time, replicas are created, opened and
removed (lifecycle.py).

A replica that cannot be opened, or fails, goes offline without affecting the others. Requests to
its partition get the reason, and the repair starts (repair.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from raftlog.metadata.delta import MetadataDelta, TopicChange
from raftlog.metadata.image import MetadataImage, PartitionImage, TopicImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.record.errors import (
    NOT_READY,
    STORAGE_FAILED,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import BrokerId, Buffer, Offset, PartitionId, TopicId
from raftlog.replication.lifecycle import ReplicaLifecycle
from raftlog.replication.partition import Host, Partition, not_led_here, wait_for_data
from raftlog.replication.replica import TopicSettings
from raftlog.replication.streams.follower_streams import FollowerStreams
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.types import LogConfig, LogState

PARTITIONS_PER_TURN_MAX: Final = 128
"""Most partitions closed, configured or notified of the lease in one turn of some milliseconds."""

ReplicaListener: TypeAlias = Callable[[TopicId, PartitionId], None]
"""Takes the topic and number of a replica."""

logger = logging.getLogger(__name__)


class ReplicaManager:
    """All replicas of this node. Lives in the event loop."""

    def __init__(
        self,
        state_machine: MetadataStateMachine,
        logs: LogManager,
        settings: TopicSettings,
        host: Host,
        streams: FollowerStreams,
        *,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` gets the reason when metadata changes cannot take effect any more."""
        self._state_machine = state_machine
        self._broker_id = host.broker_id
        self._settings = settings
        self._host = host
        self._streams = streams
        self._partitions: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[tuple[TopicId, PartitionId], Partition] = {}
        self._logs = logs
        self._lifecycle = ReplicaLifecycle(
            logs,
            host.broker_id,
            settings,
            image=lambda: state_machine.image,
            replica=self.replica,
            serve=self._serve,
            on_open_failed=self._on_open_failed,
            on_fatal=on_fatal,
        )
        self._configuring_count = 0
        """Changes of configs that have not reached all logs."""
        self._all_configured = asyncio.Event()
        self._all_configured.set()
        self._closing = False
        self.isr_shrinks = 0
        """Applied changes that removed members from the ISR of a partition led here."""
        self.isr_expands = 0
        """Applied changes that added members."""
        self._failure_listeners: list[ReplicaListener] = []
        self._loss_listeners: list[ReplicaListener] = []

    @property
    def image(self) -> MetadataImage:
        """The applied metadata."""
        return self._state_machine.image

    @property
    def settings(self) -> TopicSettings:
        """The topic configs in force on this node."""
        return self._settings

    def on_lead_begun(self, listener: ReplicaListener) -> None:
        """Call `listener` when a partition begins to be led here. It must not raise."""
        self._host.lead_listeners.append(listener)

    def on_replica_failed(self, listener: ReplicaListener) -> None:
        """Call `listener` for each log here that cannot be opened or used, or is damaged."""
        self._failure_listeners.append(listener)

    def on_possible_loss(self, listener: ReplicaListener) -> None:
        """Call `listener` for each replica here that may lack acknowledged records."""
        self._loss_listeners.append(listener)

    def refuse_writes(self, error: LogError | None) -> None:
        """Refuse all appends with `error` but serve reads. None accepts appends again."""
        self._host.write_gate.refuse(error)
        self._in_turns(list(self._by_id.values()), Partition.write_gate_moved)

    async def start(self) -> None:
        """Open every replica that the metadata assigns to this node, then apply its changes."""
        self._state_machine.subscribe(self._apply)
        await self._lifecycle.start()

    async def close(self) -> None:
        """Stop serving and following. The caller closes the logs afterwards."""
        self._closing = True
        await self._lifecycle.close()
        for partition in list(self._by_id.values()):
            self._streams.unfollow(partition)
            partition.close(LogError(NOT_READY, "The node is stopping."))

    # What is here

    def partition(self, topic: str, partition: int) -> Partition:
        """The partition, if this node leads it or its replica here is closed. Raises LogError
        UNKNOWN_TOPIC, UNKNOWN_PARTITION, NO_LEADER, STORAGE_FAILED or NOT_READY."""
        try:
            found = self._partitions[topic][partition]
        except KeyError:
            raise self._unavailable_error(topic, partition) from None
        if found.leader_role is None and not found.is_closed:
            raise self._unavailable_error(topic, partition)
        return found

    def replica(self, topic_id: TopicId, partition: PartitionId) -> Partition | None:
        """The replica on this node, in either role. None if no replica is open."""
        return self._by_id.get((topic_id, partition))

    def replicas(self) -> Iterator[Partition]:
        """All open replicas."""
        return iter(list(self._by_id.values()))

    def led(self) -> Iterator[Partition]:
        """All partitions that this node leads."""
        return (partition for partition in self.replicas() if partition.is_leader)

    @property
    def opening_count(self) -> int:
        """Replicas assigned to this node and not opened, or created, yet."""
        return self._lifecycle.opening_count

    @property
    def offline_count(self) -> int:
        """Replicas that serve no requests because they are not opened, failed, or damaged."""
        closed = sum(partition.is_closed for partition in self._by_id.values())
        return self._lifecycle.offline_count + closed

    wait_for_data = staticmethod(wait_for_data)

    async def settled(self, index: int) -> None:
        """Return once the metadata up to `index` has taken effect on this node's disk."""
        await self._lifecycle.settled(index)
        await self._all_configured.wait()

    def _in_turns(
        self,
        partitions: Sequence[Partition],
        work: Callable[[Partition], None],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `work` for each partition, some at once, the others in later turns."""
        for partition in partitions[:PARTITIONS_PER_TURN_MAX]:
            work(partition)
        rest = partitions[PARTITIONS_PER_TURN_MAX:]
        if rest:
            asyncio.get_running_loop().call_soon(self._in_turns, rest, work, done)
        else:
            done()

    # Metadata

    def _apply(self, delta: MetadataDelta) -> None:
        for topic in delta.deleted:
            gone = LogError(UNKNOWN_TOPIC, f"Topic {topic.name!r} was deleted.")
            dropped = list(self._partitions.pop(topic.name, {}).values())
            for partition in dropped:
                del self._by_id[topic.topic_id, partition.partition]
                self._lifecycle.retire(partition)
            self._in_turns(dropped, partial(self._stop, error=gone))
        for change in delta.changed:
            self._apply_change(change)
        if delta.cluster_settings:
            self._configure_all(delta.cluster_settings)
        if delta.brokers:
            self._follow_brokers(delta.brokers)
        self._lifecycle.applied(delta)

    def _apply_change(self, change: TopicChange) -> None:
        topic = change.after
        served = self._partitions.get(topic.name)
        if served is None:
            return
        min_insync_replicas = self._settings.min_insync_replicas(topic)
        # min.insync.replicas may come from the topic's configs, or from its number of replicas.
        is_new_rule = change.configs_changed or (
            change.before.replication_factor != topic.replication_factor
        )
        for number in change.partitions:
            partition = served.get(number)
            if partition is None:
                continue
            row = topic.partitions[number]
            if self._broker_id not in row.replicas:
                self._drop(topic, PartitionId(number), self._moved_error(topic, row))
                continue
            if partition.is_leader:
                self._count_isr(partition.image, row)
            partition.update(row, min_insync_replicas)
            self._follow(partition)
        if is_new_rule:
            self._set_minimum(served.values(), min_insync_replicas)
        if change.configs_changed:
            self._configure_soon(list(served.values()))

    def _set_minimum(self, partitions: Iterable[Partition], min_insync_replicas: int) -> None:
        """Set min.insync.replicas of partitions, within the apply.

        The metadata counts on that, because below the minimum a leader commits nothing, and members
        that leave the ISR stay eligible (KIP-966).
        """
        changed = [each for each in partitions if each.min_insync_replicas != min_insync_replicas]
        for partition in changed:
            partition.set_minimum(min_insync_replicas)
        # A lower minimum commits records.
        self._in_turns(changed, Partition.maybe_commit)

    def _configure_soon(self, partitions: Sequence[Partition]) -> None:
        """Give the logs of these partitions the configs in force. `settled` waits for that."""
        self._configuring_count += 1
        self._all_configured.clear()
        self._in_turns(partitions, self._configure, self._on_configured)

    def _configure(self, partition: Partition) -> None:
        topic = self.image.topics_by_id.get(partition.topic_id)
        is_served = self.replica(partition.topic_id, partition.partition) is partition
        if topic is None or not is_served or self._closing:
            return
        log_config = self._settings.log_config(topic)
        if partition.log.config != log_config:
            partition.log.configure(log_config)

    def _on_configured(self) -> None:
        self._configuring_count -= 1
        if not self._configuring_count:
            self._all_configured.set()

    def _count_isr(self, before: PartitionImage, after: PartitionImage) -> None:
        if before.isr != after.isr:
            self.isr_shrinks += not set(before.isr) <= set(after.isr)
            self.isr_expands += not set(after.isr) <= set(before.isr)

    def _stop(self, partition: Partition, error: LogError) -> None:
        """Stop a partition that no request finds any more."""
        self._streams.unfollow(partition)
        partition.close(error)

    def _drop(self, topic: TopicImage, number: PartitionId, error: LogError) -> None:
        """Stop serving a replica. Its files stay for the lifecycle."""
        partition = self._partitions.get(topic.name, {}).pop(number, None)
        if partition is not None:
            self._by_id.pop((topic.topic_id, number), None)
            self._lifecycle.retire(partition)
            self._stop(partition, error)

    def _moved_error(self, topic: TopicImage, row: PartitionImage) -> LogError:
        return not_led_here(topic.name, row, self.image.brokers)

    def _configure_all(self, names: Collection[str]) -> None:
        """Apply cluster settings to topics that do not set all of these themselves."""
        partitions: list[Partition] = []
        for name, served in self._partitions.items():
            topic = self.image.topics_by_name[name]
            if all(config in topic.configs for config in names):
                continue
            self._set_minimum(served.values(), self._settings.min_insync_replicas(topic))
            partitions.extend(served.values())
        self._configure_soon(partitions)

    def _follow_brokers(self, broker_ids: Collection[BrokerId]) -> None:
        """Follow brokers again that were started again, perhaps at another address."""
        for partition in self._by_id.values():
            if partition.image.leader in broker_ids:
                self._follow(partition)

    def refresh(self, partition: Partition) -> None:
        """Let a replica take its role once nothing prevents it any more."""
        topic = self.image.topics_by_id.get(partition.topic_id)
        if topic is not None and self.replica(partition.topic_id, partition.partition) is partition:
            row = topic.partitions[partition.partition]
            partition.update(row, self._settings.min_insync_replicas(topic))
            self._follow(partition)

    def set_leaving(self, partition: Partition, *, leaving: bool) -> None:
        """Stop following while the replica leaves the ISR to be replaced, or resume."""
        partition.set_leaving(leaving=leaving)
        if self.replica(partition.topic_id, partition.partition) is partition:
            self._follow(partition)

    def _follow(self, partition: Partition) -> None:
        leader = self.image.brokers.get(partition.image.leader)
        idle = partition.is_closed or partition.is_leaving or partition.loss_gate.may_have_lost_data
        if leader is None or leader.broker_id == self._broker_id or idle:
            self._streams.unfollow(partition)
        else:
            self._streams.follow(partition, leader)

    # Lifecycle

    async def open_again(self, topic_id: TopicId, number: PartitionId) -> None:
        """Try once more to open an offline replica. Raises LogError if it stays offline. On return
        the replica is served, perhaps still damaged, or no longer assigned to this node."""
        await self._lifecycle.open_again(topic_id, number)

    @property
    def open_count(self) -> int:
        """Replicas that are open here."""
        return len(self._by_id)

    def lost(self) -> Collection[tuple[TopicId, PartitionId]]:
        """Replicas assigned before this start without their files, not opened before renewed."""
        return list(self._lifecycle.lost)

    def is_lost(self, topic_id: TopicId, number: PartitionId) -> bool:
        """Whether the replica is one of `lost`."""
        return (topic_id, number) in self._lifecycle.lost

    def lacks_room(self, topic_id: TopicId, number: PartitionId) -> bool:
        """Whether the replica could not be opened because the disk was full."""
        return self._lifecycle.lacks_room(topic_id, number)

    async def renew(self, topic_id: TopicId, number: PartitionId) -> None:
        """Replace an unusable replica by an empty replica. Quarantines the old files. The caller
        has taken the replica out of ISR and ELR before. Raises LogError."""
        await self._replace(topic_id, number, self._logs.renew_replica)

    async def reopen(self, topic_id: TopicId, number: PartitionId) -> None:
        """Open a damaged log again, after `Log.repair_offline` returned True. Raises LogError."""
        await self._replace(topic_id, number, self._logs.reopen_replica)

    async def _replace(
        self,
        topic_id: TopicId,
        number: PartitionId,
        replacement: Callable[[TopicId, PartitionId, LogConfig], Awaitable[Log]],
    ) -> None:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None or self._broker_id not in topic.partitions[number].replicas:
            return
        self._drop(topic, number, LogError(STORAGE_FAILED, "The replica is being replaced."))
        await self._lifecycle.replace(topic_id, number, replacement)

    async def read_copy(
        self, topic_id: TopicId, number: PartitionId, offset: Offset, max_bytes: int
    ) -> Buffer:
        """Batches from the batch that holds `offset`, for the repair of another replica.

        Committed batches of the replica here, else intact batches of its damaged files, which may
        not be committed. Empty without such a batch. Raises LogError if the replica here cannot be
        read.
        """
        try:
            data = await self._read_committed(topic_id, number, offset, max_bytes)
        except LogError:
            data = await self._logs.read_copy(topic_id, number, offset, max_bytes)
            if not data:
                raise
            return data
        return data or await self._logs.read_copy(topic_id, number, offset, max_bytes)

    async def _read_committed(
        self, topic_id: TopicId, number: PartitionId, offset: Offset, max_bytes: int
    ) -> Buffer:
        replica = self.replica(topic_id, number)
        if replica is None:
            raise LogError(NOT_READY, "The replica is not open here.")
        fetched = await replica.read(
            offset, max_bytes=max_bytes, any_replica=True, waits_for_repair=False
        )
        return fetched.data

    def _on_open_failed(self, topic_id: TopicId, partition: PartitionId) -> None:
        if not self._closing:
            self._report_failed(topic_id, partition)

    def _report_failed(self, topic_id: TopicId, number: PartitionId) -> None:
        for listener in self._failure_listeners:
            listener(topic_id, number)

    def _serve(self, topic: TopicImage, row: PartitionImage, log: Log) -> None:
        """Serve a replica with an open log."""
        present = self._by_id.get((topic.topic_id, row.partition))
        if present is not None and present.log is log:
            # Another task opened the log first. Two partitions would lead and follow by one log.
            return
        if present is not None:
            self._drop(topic, row.partition, LogError(NOT_READY, "The replica was replaced."))
        config = self._settings.topic_config(topic)
        log_config = self._settings.log_config(topic)
        if log.config != log_config:
            # Settings of the topic or the cluster have changed while the log was being opened.
            log.configure(log_config)
        partition = Partition(
            topic=topic.name,
            topic_id=topic.topic_id,
            log=log,
            image=row,
            min_insync_replicas=config.min_insync_replicas,
            host=self._host,
            on_loss_cleared=self.refresh,
        )
        key = (topic.topic_id, row.partition)
        self._partitions.setdefault(topic.name, {})[row.partition] = partition
        self._by_id[key] = partition
        log.listeners.failed.append(lambda _: self._log_ended(partition))
        log.listeners.damaged.append(lambda _: self._damage_found(partition))
        if partition.is_closed:
            self._log_ended(partition)
        elif log.damage_found is not None:
            self._damage_found(partition)
        if partition.loss_gate.may_have_lost_data and not self._closing:
            for listener in self._loss_listeners:
                listener(*key)
        self._follow(partition)

    def _log_ended(self, partition: Partition) -> None:
        """Report a log that cannot be used for repair, unless it was closed on purpose."""
        key = (partition.topic_id, partition.partition)
        is_served = self._by_id.get(key) is partition and not self._closing
        if is_served and partition.log.state in {LogState.FAILED, LogState.DAMAGED}:
            self._streams.unfollow(partition)
            self._report_failed(*key)

    def _damage_found(self, partition: Partition) -> None:
        """Report a damaged log for repair. The replica keeps serving intact records."""
        key = (partition.topic_id, partition.partition)
        if self._by_id.get(key) is partition and not self._closing:
            self._report_failed(*key)

    def _unavailable_error(self, topic: str, partition: int) -> LogError:
        try:
            row = self.image.partition(topic, partition)
        except LogError as error:
            return error
        offline = self._lifecycle.offline(topic, partition)
        if offline is not None:
            return LogError(offline.entry, offline.message)
        if row.leader != self._broker_id:
            return not_led_here(topic, row, self.image.brokers)
        return LogError(NOT_READY, f"{topic}-{partition} is being opened.")


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """Replication of one node, as counts since the start and present states."""

    isr_shrinks: int = 0
    """Changes that removed members from the ISR of a partition led here."""
    isr_expands: int = 0
    """Changes that added members."""
    under_min_isr: int = 0
    """Led partitions below min.insync.replicas, which refuse `acks=all` appends."""
    at_min_isr: int = 0
    """Led partitions at min.insync.replicas."""
    bytes_in: int = 0
    """Bytes of record batches received from leaders."""
    bytes_out: int = 0
    """Bytes of record batches sent to followers."""
    leaders_connected: int = 0
    """Connections to leaders."""
    followers_connected: int = 0
    """Connections of followers."""
    lag_records: Mapping[BrokerId, int] = field(default_factory=dict)
    """Largest durable lag over the partitions led here, per follower."""
    offline: int = 0
    """Replicas here that serve no requests because they failed, are damaged, or not opened.
    """
    opening: int = 0
    """Replicas of this node that are being created or opened."""
    distrusted: int = 0
    """Replicas behind a closed loss gate, which may miss acknowledged records."""
    repairs: int = 0
    """Replicas under repair, or queued for it."""
    repairs_postponed: int = 0
    """Replicas of these that wait, as they were replaced too often within an hour."""
    requests_forwarded: int = 0
    """Requests forwarded to leaders on other nodes."""
    requests_taken: int = 0
    """Forwarded requests of other nodes, served here."""


class LedCounts(NamedTuple):
    """Counts over the led partitions, as in ReplicationStatus."""

    lag_records: dict[BrokerId, int]
    under_min_isr: int
    at_min_isr: int


def count_led(led: Iterable[Partition]) -> LedCounts:
    """Count led partitions in one pass."""
    lags: dict[BrokerId, int] = {}
    under_min_isr = at_min_isr = 0
    for partition in led:
        role = partition.leader_role
        if role is None:
            continue
        spare = len(partition.image.isr) - partition.min_insync_replicas
        under_min_isr += spare < 0
        at_min_isr += spare == 0
        end_offset, start_offset = partition.log_end_offset, partition.log_start_offset
        for broker_id, follower in role.state.followers.items():
            lag = end_offset - max(follower.durable_end, start_offset)
            if lag > lags.get(broker_id, -1):
                lags[broker_id] = max(lag, 0)
    return LedCounts(lags, under_min_isr, at_min_isr)
