"""Invariants of all replicas of all partitions, checked after every event of any node.

1. In one leader epoch of a partition one process acts as its leader: only this process appends
   batches of its own, and moves the high watermark by itself.
2. The high watermark of a replica never falls within a process and leader epoch.
3. Committed records are the same on every replica, for ever: equal prefixes below the smaller of
   two high watermarks.
4. One (leader epoch, offset) is one batch, with one history before it, on every disk and at any
   time.
5. Every electable replica (ISR and ELR of the newest metadata) has all committed records, durably.
   A replica with losses on its disk is excused until the next start of its node is unfenced: before
   that the metadata may name it, but it cannot act as a leader.

6. A node appends and commits as a leader only within one session timeout of its last touch with
   the quorum: a heartbeat taken by a controller, less the time for which that controller could not
   prove to be the only one (promise 7).
7. The metadata of a partition changes at most `CHURN_MAX` times within `CHURN_S`, whatever fails.
8. What a leader counts as durable at a follower, the counted incarnation of the follower has
   acknowledged, and has had durably itself; and a replica that enters the ISR has acknowledged to
   the leader that proposed it, in the incarnation that the metadata names (KIP-903).
9. After a truncation no producer is remembered by a batch that is gone: its repetition would be
   acknowledged, and written nowhere.
10. No partition is without a leader for `OFFLINE_S` of one term of the quorum while a replica that
   may be elected is available, and the metadata moves.

11. Every electable replica begins, durably, at or after each acknowledged deletion of records, or
   has losses on its disk.

The batches of compacted topics change: of these, only ends are checked (1, 2, 5), and the content
by the history of the clients.

Metadata with a recorded loss (an unclean election, a loss reported with flush=async) excuses the
consequences: `forgive`. After an unclean election, these are the records that the new leader lacks.

Only replicas with a change are checked: hooks in the storage report the changes.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn
from unittest import mock

from raftlog.controller.active import ActiveController
from raftlog.controller.messages import Heartbeat, HeartbeatAnswer
from raftlog.metadata.configs.broker import session_timeout_s
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.node.assembly import NodeCore
from raftlog.record.types import PartitionId, TopicId
from raftlog.replication.leader.state import LeaderState
from raftlog.replication.partition import Partition
from raftlog.replication.streams.replica_fetcher import ReplicaFetcher
from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint
from raftlog.storage.log.core import LogCore
from raftlog.storage.log.log import Log
from raftlog.storage.log.operations import LogOperations
from raftlog.storage.types import LogState
from tests.simulation.data.replicas import UNKNOWN, Batch, Key, Replica
from tests.simulation.life import Life
from tests.simulation.node_checker import InvariantError
from tests.simulation.node_world import NodeWorld

MOVED: list[LogCore] = []
"""Logs with a change in the present event."""
CUT: list[LogCore] = []
"""Logs with a truncation or a restart that has ended in the present event."""
ACKED: list[tuple[Partition, int]] = []
"""Followers with an acknowledgement in the present event, and its durable end."""
TOUCHED: list[tuple[int, float]] = []
"""Brokers with a heartbeat taken in the present event, and the unproven time of the controller."""
CHURN_S: Final = 5.0
CHURN_MAX: Final = 60
"""Some changes follow each death, cut or operator: nearly all random histories stay below 30, those
with many failovers below 50. A partition that changes by itself has hundreds."""
OFFLINE_S: Final = 3.0
"""More than a controller's failover and one election."""


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Install the hooks in the storage. One world at a time."""

    def noting(name: str) -> Any:
        original: Callable[..., Any] = getattr(LogCore, name)

        def noted(self: LogCore, *arguments: Any, **named: Any) -> Any:
            MOVED.append(self)
            return original(self, *arguments, **named)

        return mock.patch.object(LogCore, name, noted)

    def noting_after(name: str) -> Any:
        original: Callable[..., Any] = getattr(LogOperations, name)

        async def noted(self: LogOperations, *arguments: Any, **named: Any) -> Any:
            try:
                return await original(self, *arguments, **named)
            finally:
                MOVED.append(self._core)
                CUT.append(self._core)

        return mock.patch.object(LogOperations, name, noted)

    subscription, next_ack = ReplicaFetcher.subscription, ReplicaFetcher.next_ack

    def noted_subscription(self: ReplicaFetcher, handle: int) -> Any:
        found = subscription(self, handle)
        if found is not None:
            ACKED.append((self.partition, int(found.durable_end)))
        return found

    def noted_ack(self: ReplicaFetcher) -> Any:
        ack = next_ack(self)
        if ack is not None:
            ACKED.append((self.partition, ack[1]))
        return ack

    handle_heartbeat = ActiveController.handle_heartbeat

    def noted_heartbeat(self: ActiveController, heartbeat: Heartbeat) -> Any:
        reply = handle_heartbeat(self, heartbeat)
        if isinstance(reply, HeartbeatAnswer) and not reply.fenced:
            TOUCHED.append((int(heartbeat.broker_id), reply.confirmed_age_s))
        return reply

    published = LogCore.published

    def noted_published(self: LogCore, checkpoint: ReplicaCheckpoint) -> None:
        start_before = self.durable_log_start
        published(self, checkpoint)
        if self.durable_log_start > start_before:
            # The node may die before any other change of this log.
            MOVED.append(self)

    def set_and_note(self: Log, offset: Any) -> None:
        MOVED.append(self)
        vars(self)["high_watermark"] = offset

    noted_property = property(lambda self: vars(self)["high_watermark"], set_and_note)
    MOVED.clear()
    TOUCHED.clear()
    ACKED.clear()
    CUT.clear()
    with (
        mock.patch.object(ReplicaFetcher, "subscription", noted_subscription),
        mock.patch.object(ReplicaFetcher, "next_ack", noted_ack),
        mock.patch.object(ActiveController, "handle_heartbeat", noted_heartbeat),
        mock.patch.object(LogCore, "published", noted_published),
        noting("note_append"),
        noting("end_sync"),
        noting("end_service"),
        noting("mark_changed"),
        noting_after("truncate_to"),
        noting_after("restart_at"),
        mock.patch.object(Log, "high_watermark", noted_property, create=True),
    ):
        yield
    MOVED.clear()
    TOUCHED.clear()
    ACKED.clear()
    CUT.clear()


class Churn:
    """How often the metadata of each partition changes."""

    def __init__(self) -> None:
        self.bound = CHURN_MAX
        self.highest = 0
        self._changes: dict[Key, deque[float]] = {}

    def changed(self, key: Key, count: int, now: float) -> int:
        """So many changes came; return how many within the last `CHURN_S`."""
        times = self._changes.setdefault(key, deque())
        times.extend([now] * count)
        while times and times[0] < now - CHURN_S:
            times.popleft()
        self.highest = max(self.highest, len(times))
        return len(times)


@dataclass
class Shared:
    """Knowledge about one partition, from all replicas."""

    committed: dict[int, Batch] = field(default_factory=dict)
    """By base offset, everything below any high watermark."""
    links: dict[int, bytes] = field(default_factory=dict)
    """The links of these batches, by next offset."""
    committed_end: int = 0
    """The highest high watermark of any leader."""
    committed_link: bytes = b""
    """The link of the last batch below."""
    leaders: dict[int, str] = field(default_factory=dict)
    """Leader epoch to the process acting as its leader."""
    row: PartitionImage | None = None
    """Of the newest metadata."""
    unclean_epoch: int = -1
    begun_unclean: int = -1
    """The newest unclean leader epoch in which its leader has acted."""
    deleted_before: int = 0
    """An acknowledged deletion: no electable replica begins below."""
    lost: set[tuple[int, int, int, int]] = field(default_factory=set)
    """Committed batches that an unclean election has given up: offsets, leader epoch, CRC."""
    compacted_end: int = 0
    """The highest active segment of any replica so far began here: all below may be compacted."""
    offline_since: float | None = None
    """Without a leader since then, though a replica may be elected."""


class ReplicaChecker:
    """Watches all replicas of a world. Raises InvariantError."""

    def __init__(self, nodes: NodeWorld) -> None:
        self.nodes = nodes
        self.world = nodes.world
        self.replicas: dict[tuple[int, Key], Replica] = {}
        self.shared: dict[Key, Shared] = {}
        self.links: dict[tuple[Key, int, int], tuple[bytes, str]] = {}
        """(partition, leader epoch, base offset) to the batch's link, and its first replica."""
        self.newest_index = 0
        self.newest: MetadataImage | None = None
        self.term = 0
        self.term_since = -math.inf
        """When the first metadata of the quorum's term came."""
        self.fenced: dict[int, bool] = {}
        self.broker_epochs: dict[int, int] = {}
        self.on_loss: Callable[[Key, int], None] = self.forgive
        """Called with the offset from which on an unclean election has lost records."""
        self.churn = Churn()
        self.touched: dict[int, float] = {}
        """When each node was last in touch with the quorum."""
        self.acked: dict[tuple[Key, int, int], int] = {}
        """The highest end that a follower has told any leader, in each broker epoch of its node."""
        self.deletions: list[Key] = []
        """Partitions with an acknowledged deletion in the present event."""
        self.looks = 0
        self._after = self.world.loop.after_event
        self.world.loop.after_event = self._after_event

    # Reports of tests

    def damaged(self, node_id: int, key: Key) -> None:
        """Files of a replica were damaged on purpose."""
        replica = self.replicas[node_id, key]
        replica.is_lost, replica.lost_epoch = True, self.broker_epochs.get(node_id, 0)
        replica.damaged_log = replica.log

    def deleted(self, key: Key, before: int) -> None:
        """A client was told that all records below are deleted."""
        shared = self.shared.setdefault(key, Shared())
        shared.deleted_before = max(shared.deleted_before, before)
        # Checked after the event: only the world's own loop ends the run.
        self.deletions.append(key)

    def forgive(self, key: Key, from_offset: int = 0) -> None:
        """The partition has reported a possible loss of records from there on."""
        shared = self.shared.setdefault(key, Shared())
        for base_offset in [each for each in shared.committed if each >= from_offset]:
            batch = shared.committed.pop(base_offset)
            shared.links.pop(batch.next_offset, None)
            shared.lost.add(batch[:4])
        shared.committed_end = min(shared.committed_end, from_offset)
        last = shared.committed[max(shared.committed)] if shared.committed else None
        # Records below the start of a leader in between were committed unseen.
        is_last = last is not None and last.next_offset == shared.committed_end
        shared.committed_link = last.link if last is not None and is_last else UNKNOWN
        for replica in self.of(key):
            replica.checked_to = min(replica.checked_to, from_offset)

    def of(self, key: Key) -> list[Replica]:
        """All replicas of a partition, by node."""
        return [replica for (_, known), replica in sorted(self.replicas.items()) if known == key]

    def check_all(self) -> None:
        """Look at everything once more."""
        for key in sorted(self.shared):
            self._check_electable(key)

    def follow_all(self) -> None:
        """Follow every replica of the newest metadata, where the hooks were not installed."""
        assert self.newest is not None
        for topic_id, topic in self.newest.topics_by_id.items():
            for row in topic.partitions:
                for member in row.replicas:
                    self._present(int(member), (topic_id, int(row.partition)))

    # Events

    def _after_event(self, life: Life) -> None:
        if self._after is not None:
            self._after(life)
        if TOUCHED:
            for node_id, age_s in TOUCHED:
                self.touched[node_id] = max(
                    self.touched.get(node_id, -math.inf), self.world.loop.now - age_s
                )
            TOUCHED.clear()
        newest_index = self.nodes.checker.newest[0]
        if newest_index != self.newest_index:
            self.newest_index = newest_index
            self._take_metadata(self.nodes.cores[life.node_id])
        core = self.nodes.cores.get(life.node_id)
        while self.deletions:
            self._check_electable(self.deletions.pop())
        if ACKED:
            for partition, end in ACKED:
                self._acks(partition, end, life, core)
            ACKED.clear()
        if MOVED:
            moved = dict.fromkeys(MOVED)
            cut = set(CUT)
            MOVED.clear()
            CUT.clear()
            if core is None:
                # Logs are opened before the node: they are checked after their first change.
                return
            for log in moved:
                self._look(life, core, log)
                if log in cut:
                    self._check_producers(life, log)

    def _acks(self, partition: Partition, end: int, life: Life, core: NodeCore | None) -> None:
        """A follower tells its leader that it has everything below `end` durably."""
        key = (str(partition.topic_id), int(partition.partition))
        if end > partition.durable_end:
            self._fail(f"{life} acknowledges {end} of {key}, and has {partition.durable_end}")
        if core is not None and core.permit.broker_epoch is not None:
            place = (key, life.node_id, int(core.permit.broker_epoch))
            self.acked[place] = max(self.acked.get(place, 0), end)

    def _take_metadata(self, core: NodeCore) -> None:
        self.newest = image = core.services.metadata.image
        term = core.quorum.status().term
        if term > self.term:
            self.term, self.term_since = term, self.world.loop.now
        epochs_before = dict(self.broker_epochs)
        for broker_id, broker in image.brokers.items():
            node_id, epoch = int(broker_id), int(broker.broker_epoch)
            if self.broker_epochs.get(node_id, epoch) != epoch:
                # Before the new epoch is applied: losses happened in the old one.
                for owner, key in self.replicas:
                    if owner == node_id:
                        self._look_at_disk(self.replicas[owner, key])
            self.broker_epochs[node_id] = epoch
        fenced = {int(each): broker.fenced for each, broker in image.brokers.items()}
        unfenced = {each for each, is_fenced in self.fenced.items() if is_fenced} - {
            each for each, is_fenced in fenced.items() if is_fenced
        }
        self.fenced = fenced
        for key in [each for each in self.shared if each[0] in image.deleted_topic_ids]:
            del self.shared[key]
        for topic_id, topic in image.topics_by_id.items():
            for row in topic.partitions:
                shared = self.shared.setdefault((topic_id, row.partition), Shared())
                before = shared.row
                key = (topic_id, int(row.partition))
                self._check_online(key, shared, row, image)
                if before is row and not unfenced.intersection(row.replicas):
                    continue
                shared.row = row
                self._note_removed(key, before, row)
                changes = 0 if before is None else row.partition_epoch - before.partition_epoch
                recent = self.churn.changed(key, changes, self.world.loop.now)
                if recent > self.churn.bound:
                    self._fail(f"{key}: the metadata does not come to rest: {row}")
                if row.unclean_epoch != shared.unclean_epoch:
                    shared.unclean_epoch = row.unclean_epoch
                    self._note_loss(key, shared, row)
                if before is not None and set(row.isr) - set(before.isr):
                    self._check_entry(key, before, row, epochs_before)
                self._check_electable(key)

    def _check_entry(
        self, key: Key, before: PartitionImage, row: PartitionImage, epochs_before: dict[int, int]
    ) -> None:
        if row.leader_epoch != before.leader_epoch or row.partition_epoch != (
            before.partition_epoch + 1
        ):
            # By an election, or by several changes in one.
            return
        core = self.nodes.cores.get(int(row.leader))
        partition = core and core.services.replicas.replica(TopicId(key[0]), PartitionId(key[1]))
        role = partition.leader_role if partition else None
        if role is None or role.state.row.leader_epoch != row.leader_epoch:
            # The leader that proposed it is gone.
            return
        for member in sorted(set(row.isr) - set(before.isr)):
            follower = role.state.followers.get(member)
            epoch = self.broker_epochs[int(member)]
            # The broker may have been registered again right after, in the same event.
            if follower is None or follower.broker_epoch not in (epoch, epochs_before.get(member)):
                self._fail(
                    f"{key}: broker {member} enters the ISR in broker epoch {epoch}, and has "
                    f"acknowledged in {None if follower is None else follower.broker_epoch}"
                )

    def _check_online(
        self, key: Key, shared: Shared, row: PartitionImage, image: MetadataImage
    ) -> None:
        candidates = row.isr or row.elr
        if row.leader != NO_LEADER_ID or not any(
            image.brokers[member].is_available for member in candidates if member in image.brokers
        ):
            shared.offline_since = None
            return
        now = self.world.loop.now
        if shared.offline_since is None:
            shared.offline_since = now
            return
        # A quorum without a leader elects none for its partitions.
        offline_s = now - max(shared.offline_since, self.term_since)
        if offline_s > OFFLINE_S:
            self._fail(f"{key} has had no leader for {offline_s:.1f} s: {row}")

    def _note_removed(self, key: Key, before: PartitionImage | None, row: PartitionImage) -> None:
        for member in set(before.replicas if before else ()).difference(row.replicas):
            if (replica := self.replicas.get((int(member), key))) is not None:
                replica.is_removed = True

    def _note_loss(self, key: Key, shared: Shared, row: PartitionImage) -> None:
        """The leader of an unclean election lacks committed batches from some offset on."""
        replica = self._present(int(row.leader), key)
        if (
            replica is None
            or replica.is_compacted
            or not replica.is_rooted
            or replica.is_removed
            or (replica.is_lost and not self._is_open(replica))
        ):
            # Its present records are not known.
            self.on_loss(key, 0)
            return
        # What an election before has given up may be back: this leader's log is right.
        shared.lost.difference_update(batch[:4] for batch in replica.batches)
        for base_offset, batch in sorted(shared.committed.items()):
            holding = replica.holding(base_offset)
            is_missing = holding is None and base_offset >= replica.start
            # Written, and not synced yet: a crash may still take it.
            is_missing = is_missing or batch.next_offset > replica.durable_end
            if is_missing or (holding is not None and holding.link != batch.link):
                self.on_loss(key, base_offset)
                return

    def _look(self, life: Life, core: NodeCore, log: LogCore) -> None:
        """Something has moved in a log of the node in which the event was."""
        if log.shared.disk is not self.world.disk(life.node_id):
            # Of a node that died in mid-event.
            return
        self.looks += 1
        parts = log.directory.split("/")
        key = (parts[1], int(parts[2]))
        found = core.services.logs.logs().get((TopicId(key[0]), PartitionId(key[1])))
        if found is None or found is not log:
            # The replica is in opening, or was given up.
            return
        known = self.replicas.get((life.node_id, key))
        is_same = known is not None and known.log is log
        end_before = known.end if known is not None and is_same else None
        # Epoch -1: only the log was looked at, before it had a role.
        has_mark = known is not None and is_same and known.epoch >= 0
        mark_before = known.high_watermark if known is not None and has_mark else None
        replica = self._follow(life.node_id, key, log)
        shared = self.shared.setdefault(key, Shared())
        if replica.end < shared.committed_end:
            self._check_electable(key)
        partition = core.services.replicas.replica(TopicId(key[0]), PartitionId(key[1]))
        if partition is None:
            return
        if partition.leader_role is not None:
            self._check_knowledge(key, partition.leader_role.state, life)
        is_leader, epoch = partition.is_leader, int(partition.image.leader_epoch)
        high_watermark = int(partition.high_watermark)
        # A truncation may end after the next unclean election, and the replica then leads at once.
        begins_unclean = epoch == shared.unclean_epoch > shared.begun_unclean
        truncates_losses = shared.unclean_epoch >= 0 and (begins_unclean or not is_leader)
        row = partition.image
        # A follower that compaction has outrun begins again, if no election counts on it.
        begins_again = (
            life.node_id not in (*row.isr, *row.elr)
            and high_watermark < log.deletion_horizon.offset
        )
        if (
            epoch == replica.epoch
            and high_watermark < replica.high_watermark
            and not truncates_losses
            and not begins_again
        ):
            self._fail(
                f"the high watermark of {key} on {life} fell from {replica.high_watermark} to "
                f"{high_watermark} in leader epoch {epoch}"
            )
        replica.epoch, replica.high_watermark = epoch, high_watermark
        if is_leader and core.permit.broker_epoch is not None:
            # Without space to register, a node only lets the records of its last metadata be read.
            self._acts(key, shared, epoch, life)
            if epoch == shared.unclean_epoch > shared.begun_unclean:
                # A truncation may have been under way when the leader was elected.
                shared.begun_unclean = epoch
                assert shared.row is not None
                self._note_loss(key, shared, shared.row)
            if end_before is not None and replica.end > end_before:
                self._check_touch(key, life, core, "appends to")
            if mark_before is not None and high_watermark > mark_before:
                self._check_touch(key, life, core, "commits in")
        if high_watermark > replica.checked_to and not replica.is_compacted:
            self._check_committed(key, shared, replica)
        if is_leader and high_watermark > shared.committed_end:
            last = replica.before(high_watermark)
            shared.committed_end = high_watermark
            is_known = last is not None and replica.is_rooted
            shared.committed_link = last.link if last is not None and is_known else UNKNOWN
            self._check_electable(key)

    def _follow(self, node_id: int, key: Key, log: LogCore) -> Replica:
        """The present state of a log, with a check of every new batch."""
        replica = self.replicas.get((node_id, key))
        if replica is None:
            links = self.shared.setdefault(key, Shared()).links
            replica = self.replicas[node_id, key] = Replica(
                node_id, key, link_before=lambda offset: links.get(offset, UNKNOWN)
            )
        disk = self.world.disk(node_id)
        self._look_at_disk(replica)
        if replica.log is not log:
            replica.opened(log)
        for batch in replica.follow(disk):
            self._check_link(key, batch, replica)
        if replica.is_compacted:
            shared = self.shared.setdefault(key, Shared())
            shared.compacted_end = max(shared.compacted_end, log.segments.active.base_offset)
        return replica

    def _present(self, node_id: int, key: Key) -> Replica | None:
        """A replica as its running node has it, or as it was when the node went down."""
        core = self.nodes.cores.get(node_id)
        if core is not None:
            log = core.services.logs.logs().get((TopicId(key[0]), PartitionId(key[1])))
            if log is not None:
                return self._follow(node_id, key, log)
        replica = self.replicas.get((node_id, key))
        if replica is not None:
            self._look_at_disk(replica)
        return replica

    def _is_open(self, replica: Replica) -> bool:
        """Whether its node runs and has opened the log that was looked at last."""
        core = self.nodes.cores.get(replica.node_id)
        place = (TopicId(replica.key[0]), PartitionId(replica.key[1]))
        return core is not None and core.services.logs.logs().get(place) is replica.log

    def _look_at_disk(self, replica: Replica) -> None:
        node_id = replica.node_id
        replica.look_at_disk(self.world.disk(node_id), self.broker_epochs.get(node_id, 0))

    def _is_excused(self, replica: Replica) -> bool:
        """Whether the disk has lost records, and the replica cannot lead before its report."""
        log, damaged = replica.log, replica.damaged_log
        if log is not None and log.state in (LogState.DAMAGED, LogState.FAILED):
            # The files are untouched, and no process acts by them.
            return True
        is_anew = damaged is not None and log is not None and log is not damaged
        if is_anew and log.shared is damaged.shared:  # type: ignore[union-attr]
            # Replaced, without a start of its node.
            return False
        epoch = self.broker_epochs.get(replica.node_id, 0)
        return replica.is_lost and (
            epoch == replica.lost_epoch or self.fenced.get(replica.node_id, True)
        )

    # Invariants

    def _acts(self, key: Key, shared: Shared, epoch: int, life: Life) -> None:
        known = shared.leaders.setdefault(epoch, repr(life))
        if known != repr(life):
            self._fail(f"{key} has the leaders {known} and {life} in epoch {epoch}")

    def _check_producers(self, life: Life, log: LogCore) -> None:
        end = log.segments.end_offset
        ahead = {each: last for each, last in log.producers.last_offsets().items() if last >= end}
        if ahead and log.failure is None:
            self._fail(f"{life}: {log.directory} ends at {end}, and remembers producers to {ahead}")

    def _check_knowledge(self, key: Key, state: LeaderState, life: Life) -> None:
        for member, follower in state.followers.items():
            epoch = int(follower.broker_epoch)
            acked = self.acked.get((key, int(member), epoch), 0)
            if follower.durable_end > acked:
                self._fail(
                    f"{life} counts {follower.durable_end} of {key} as durable on broker {member}, "
                    f"which has acknowledged {acked} in broker epoch {epoch}"
                )

    def _check_touch(self, key: Key, life: Life, core: NodeCore, does: str) -> None:
        if core.quorum.is_active and core.quorum.voters.ids == {life.node_id}:
            # A lone voter is in touch with the quorum: no other node could take its lead.
            return
        assert self.newest is not None
        bound_s = session_timeout_s(self.newest.cluster_settings)
        silent_s = self.world.loop.now - self.touched.get(life.node_id, -math.inf)
        if silent_s > bound_s:
            self._fail(
                f"{life} {does} {key} as its leader, {silent_s:.3f} s after its last touch "
                "with the quorum"
            )

    def _check_link(self, key: Key, batch: Batch, replica: Replica) -> None:
        if not replica.is_rooted:
            return
        place = (key, batch.leader_epoch, batch.base_offset)
        who = f"node {replica.node_id}"
        known = self.links.setdefault(place, (batch.link, who))
        if known[0] != batch.link:
            self._fail(
                f"{key} has two batches, or two histories, at {batch.base_offset} in epoch "
                f"{batch.leader_epoch}: on {known[1]}, and on {who}"
            )

    def _check_committed(self, key: Key, shared: Shared, replica: Replica) -> None:
        committed = shared.committed
        # Deleted records cannot be read any more.
        start = max(replica.checked_to, replica.start)
        # A truncation lowers the log end first: the offsets above get other records.
        end = min(replica.high_watermark, replica.end)
        for batch in replica.between(start, end):
            if batch[:4] in shared.lost:
                continue
            known = committed.setdefault(batch.base_offset, batch)
            if replica.is_rooted:
                shared.links[batch.next_offset] = batch.link
            if known[:4] != batch[:4]:
                self._fail(
                    f"{key}: node {replica.node_id} takes {batch} for committed, where {known} was"
                )
        replica.checked_to = max(replica.checked_to, end)

    def _check_electable(self, key: Key) -> None:
        """Electable replicas have all committed records, durably."""
        shared = self.shared[key]
        row, end = shared.row, shared.committed_end
        if row is None or end == 0:
            return
        deleted_before = shared.deleted_before
        for member in (*row.isr, *row.elr):
            replica = self._present(int(member), key)
            if replica is None:
                self._fail(f"{key}: broker {member} may be elected, and holds nothing of {end}")
            if self._is_excused(replica):
                continue
            replica.is_lost, replica.damaged_log = False, None
            if replica.durable_start < deleted_before:
                self._fail(
                    f"{key}: broker {member} may be elected, and begins at "
                    f"{replica.durable_start}: all below {deleted_before} is deleted"
                )
            if replica.start >= end:
                # All records were deleted on request: see the history.
                continue
            holding = replica.holding(end - 1)
            if replica.durable_end < end:
                self._fail(
                    f"{key}: broker {member} may be elected, and has {replica.durable_end} of "
                    f"{end} durably ({row})"
                )
            if replica.is_compacted:
                continue
            if holding is None or (
                shared.committed_link != UNKNOWN
                and replica.is_rooted
                and holding.link != shared.committed_link
            ):
                self._fail(
                    f"{key}: broker {member} may be elected, and has {holding} at {end - 1}, where "
                    f"another batch is committed ({row})"
                )

    def _fail(self, what: str) -> NoReturn:
        self.world.trace("invariant violated", what)
        raise InvariantError(what)
