"""One replica on this node, in the role that the applied metadata gives it: leader or follower.

=================  =====================================================================
`log_end_offset`   moves when a batch is written; owned by the log
`flushed_offset`   moves when a sync returns; owned by the log
`high_watermark`   leader: the smallest durable end over the in-sync replicas; follower: what its
                   leader says, as far as its own log goes; never falls within a leader epoch
=================  =====================================================================

Roles, and what moves a replica from one to another:

=========  ================================================================================
LEADER     the applied row names this node, in this epoch; ends with any other row's epoch
FOLLOWER   the row names another broker, or none
WAITING    this node is to lead, but a cut or a fetched append is not over yet
CLOSED     the log failed, the topic is gone, or the node stops; for good
=========  ================================================================================

Invariants: `log_start_offset <= high_watermark <= log_end_offset`; an `acks=all` answer is given
only for offsets below the high watermark; a reader is given only offsets below it; what changes a
follower's log names the leader epoch it comes from, and is refused in any other; nobody leads while
such a change is under way.

What counts as durable is the log's flush mode: with `sync` what was synced to disk, with `async`
what was handed to the operating system (promises 1 and 2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from raftlog.metadata.image import PartitionImage
from raftlog.record.batch import RecordBatch
from raftlog.record.errors import NO_LEADER, NOT_READY, OFFSET_OUT_OF_RANGE, LogError
from raftlog.record.types import BrokerId, Buffer, LeaderEpoch, Offset, PartitionId, TopicId
from raftlog.replication.divergence import BelowStart, Diverging, Feed, FetchPosition
from raftlog.replication.follower_role import FollowerRole
from raftlog.replication.leader_role import LeaderRole
from raftlog.replication.leader_state import IsrProposal, LeaderState
from raftlog.replication.possible_loss import LossGate
from raftlog.replication.replica import Acks, Fetched, Host, Replica, not_led_here
from raftlog.storage.log import Log
from raftlog.storage.types import AppendResult, ReadResult

__all__ = ["Acks", "Fetched", "Host", "Partition", "not_led_here"]

logger = logging.getLogger(__name__)


class Partition:
    """One replica. Lives in the event loop; not for other threads."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: TopicId,
        log: Log,
        image: PartitionImage,
        min_insync_replicas: int,
        host: Host,
    ) -> None:
        """Takes the role that `image` gives to the host's broker at once."""
        self.topic = topic
        self.topic_id = topic_id
        self.log = log
        self.write_refusal: LogError | None = None
        """Why the node takes no appends, if it takes none."""
        self._replica = Replica(
            topic=topic,
            topic_id=topic_id,
            log=log,
            image=image,
            min_insync_replicas=min_insync_replicas,
            host=host,
        )
        self._trust = LossGate(
            self._replica,
            may_have_lost_data=log.possible_loss is not None and len(image.replicas) > 1,
            on_trusted=self._trusted,
        )
        self._opened_in_epoch = image.leader_epoch
        self.on_trusted: Callable[[], None] = lambda: None
        """Told when it takes part after all."""
        self._leading: LeaderRole | None = None
        self._following = FollowerRole(
            self._replica,
            may_have_lost_data=lambda: self._trust.may_have_lost_data,
            on_rearranged=self._take_role,
        )
        log.listeners.flushed.append(self._on_flushed)
        log.listeners.failed.append(self.close)
        log.listeners.appended.append(self._on_appended)
        self._take_role()

    # What is known of it

    @property
    def image(self) -> PartitionImage:
        """The partition's row of the applied metadata."""
        return self._replica.image

    @property
    def min_insync_replicas(self) -> int:
        """In-sync replicas that `acks=all` needs."""
        return self._replica.min_insync_replicas

    @property
    def partition(self) -> PartitionId:
        """The partition's number in its topic."""
        return self._replica.image.partition

    @property
    def leader(self) -> BrokerId:
        """The broker that leads, as of the applied metadata."""
        return self._replica.image.leader

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch that batches appended now are stamped with."""
        return self._replica.image.leader_epoch

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads the partition."""
        return self._leading is not None

    @property
    def is_closed(self) -> bool:
        """Whether it serves nobody any more."""
        return self._replica.closed is not None

    @property
    def state(self) -> LeaderState | None:
        """What the leader knows of its followers; None if this is none."""
        return None if self._leading is None else self._leading.state

    @property
    def feeds(self) -> Mapping[BrokerId, Feed]:
        """The followers that are being fed."""
        return {} if self._leading is None else self._leading.feeds

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not known here to be committed."""
        return self._replica.high_watermark

    @property
    def committed_bytes(self) -> int:
        """Bytes that have become committed here since the replica was opened, more or less."""
        return self._replica.bytes.total

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can still be read."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return self.log.log_end_offset

    @property
    def durable_end(self) -> Offset:
        """Everything below is durable on this node, as the flush mode has it."""
        return self._replica.durable_end

    @property
    def durable_start(self) -> Offset:
        """The log start offset, as far as it holds after a crash, too."""
        return self.log.durable_log_start

    @property
    def on_durable(self) -> Callable[[], None] | None:
        """Called when `durable_end` of a follower, or its log start, has moved."""
        return self._following.on_durable

    @on_durable.setter
    def on_durable(self, callback: Callable[[], None] | None) -> None:
        self._following.on_durable = callback

    # Roles

    def update(self, image: PartitionImage, min_insync_replicas: int) -> None:
        """Take over newer applied metadata of this partition."""
        replica = self._replica
        before = replica.image
        if image.partition_epoch < before.partition_epoch:
            raise AssertionError(f"{replica.name}: metadata went back")
        is_joined = len(before.replicas) == 1 < len(image.replicas)
        if is_joined and self.log.possible_loss is not None and not self._trust.may_have_lost_data:
            # Alone it could only say what it may have lost. Others will copy what it has now.
            self.trust()
        replica.image = image
        replica.min_insync_replicas = min_insync_replicas
        self._take_role()

    def _take_role(self) -> None:
        row, leading = self._replica.image, self._leading
        leads = self._may_lead()
        if leads and leading is not None and leading.state.row.leader_epoch == row.leader_epoch:
            leading.update(row)
            return
        if leading is not None:
            self._stop_leading(self._replica.not_led_here())
        if self.is_closed or self._following.is_busy:
            return
        # An epoch in which nothing was written is no part of the log's history: what a new leader
        # sends may be older.
        self.log.leader_epochs.truncate_from_end(self.log.log_end_offset)
        if leads:
            self._begin_leading()

    def _may_lead(self) -> bool:
        row = self._replica.image
        if row.leader != self._replica.host.broker_id or self.is_closed:
            return False
        is_elected_since = row.leader_epoch > self._opened_in_epoch
        if (
            self._trust.may_have_lost_data
            and is_elected_since
            and row.unclean_epoch == row.leader_epoch
        ):
            # Elected for want of anyone better, by who knows what that means. Not in an epoch from
            # before: what this log may lack was perhaps acknowledged in that very epoch.
            self.trust()
        return not self._trust.may_have_lost_data

    @property
    def may_have_lost_data(self) -> bool:
        """Whether this log may lack what it had acknowledged, and the metadata does not know yet.

        Until it does, this replica neither leads nor follows.
        """
        return self._trust.may_have_lost_data

    def trust(self) -> asyncio.Task[None]:
        """The metadata knows: this replica is in sync no more, and may be again.

        It takes part once that is durable. Returns who sees to that, for who wants to wait.
        """
        return self._trust.restore()

    @property
    def is_being_trusted(self) -> bool:
        """Whether `trust` is at work."""
        return self._trust.is_at_work

    def _trusted(self) -> None:
        self._take_role()
        self.on_trusted()

    def _begin_leading(self) -> None:
        try:
            self._leading = LeaderRole(self._replica)
        except LogError as error:
            if error.entry is NO_LEADER:
                # A start that could not hear of the newest metadata knows less than its own log.
                logger.info("%s: its metadata is out of date: %s", self._replica.name, error)
                return
            logger.error("%s cannot be led here: %s", self._replica.name, error.message)
            self.close(error)

    def _stop_leading(self, error: LogError) -> None:
        leading, self._leading = self._leading, None
        if leading is not None:
            leading.end(error)
            self._replica.readers.wake_all()

    async def until_idle(self) -> None:
        """Return when no change of the log is under way: only then may another replica use it."""
        await self._following.until_idle()

    def close(self, error: LogError) -> None:
        """Stop serving: every present and later caller gets `error`."""
        if self._replica.closed is None:
            self._replica.closed = error
        self._stop_leading(error)
        self._replica.readers.wake_all()
        self._following.close()
        self._trust.close()

    def _require_leading(self) -> LeaderRole:
        if self._leading is None:
            self._replica.require_open()
            raise self._replica.not_led_here()
        return self._leading

    def _on_flushed(self, _flushed_offset: Offset) -> None:
        if self._leading is not None:
            self._leading.advance()
        elif self._following.on_durable is not None:
            self._following.on_durable()

    def _on_appended(
        self, base: Offset, following: Offset, buffers: Sequence[Buffer], size_bytes: int
    ) -> None:
        self._replica.bytes.appended(following, size_bytes)
        if self._leading is not None:
            self._leading.on_appended(base, following, buffers, size_bytes)

    # Writers and readers

    def refuse_writes(self, error: LogError | None) -> None:
        """Refuse all appends with `error`, of this node, not of this partition; None: take them.

        Who waits for records finds out by reading whether the node may still tell of any.
        """
        self.write_refusal = error
        if error is not None:
            self._replica.readers.wake_all()

    async def append(
        self, batches: Sequence[RecordBatch], *, acks: Acks, timeout_s: float
    ) -> list[AppendResult]:
        """Append batches, whole or not at all, and return once `acks` is fulfilled.

        Raises LogError: NO_LEADER, NOT_ENOUGH_REPLICAS, DISK_FULL, PRODUCER_FENCED,
        OUT_OF_ORDER_SEQUENCE and the like mean that nothing was written; RETRIABLE (not committed
        within `timeout_s`) and STORAGE_FAILED mean that the outcome is unknown.
        """
        leading = self._require_leading()
        if self.write_refusal is not None:
            raise LogError(self.write_refusal.entry, self.write_refusal.message)
        return await leading.append(batches, acks=acks, timeout_s=timeout_s)

    async def delete_records(self, before: Offset) -> Offset:
        """Make the records below `before` unreadable for good; return the new log start offset.

        -1 means all committed records. When it returns it is durable here, and every in-sync
        replica has done the same. Raises LogError; RETRIABLE: not all replicas have, yet.
        """
        return await self._require_leading().delete_records(before)

    async def end_offset(self) -> Offset:
        """The offset behind the last committed record, which never moves back.

        Raises LogError: NO_LEADER; NOT_READY while a new leader does not know yet how much of
        what its predecessors wrote was committed.
        """
        self.known_end_offset()
        await self.confirm()
        return self.known_end_offset()

    async def confirm(self) -> None:
        """Return once this node has applied all metadata that was committed before the call.

        So it does for all its partitions. Raises LogError NO_LEADER.
        """
        await self._replica.confirm()

    @property
    def may_be_led_elsewhere(self) -> bool:
        """Whether another node could be elected without this one's knowledge."""
        return self._replica.may_be_led_elsewhere

    def known_end_offset(self) -> Offset:
        """The `end_offset` as far as this node knows the metadata. Raises LogError as that does.

        Told to somebody without `confirm` before, it may be behind what the next leader has told:
        one that is moved does not wait until this one has heard of it.
        """
        return self._require_leading().known_end_offset()

    async def read(
        self,
        offset: Offset,
        *,
        max_bytes: int,
        end_offset: Offset | None = None,
        any_replica: bool = False,
    ) -> Fetched:
        """Committed batches from the one that holds `offset`; at least one if there is any.

        Empty if nothing at `offset` is known to be committed yet. With `end_offset`, no batch that
        starts at or after it. `any_replica`: also if this replica only follows, from what it knows.
        Raises LogError: NO_LEADER, OFFSET_OUT_OF_RANGE, STORAGE_FAILED.
        """
        if not any_replica:
            leading = self._require_leading()
            if offset >= self._replica.high_watermark:
                # What is below is committed, whoever leads. Where it ends only a leader can tell.
                leading.require_lead_to_tell()
            if offset > self.log.log_end_offset:
                # So much may have been committed by a leader of which this one has not heard yet.
                # Told that it is out of range, a consumer would begin anew.
                await self.confirm()
                self._require_leading()
        self._replica.require_open()
        self._check_range(offset)
        high_watermark = self._replica.high_watermark
        end = high_watermark if end_offset is None else min(end_offset, high_watermark)
        if offset >= end:
            return Fetched(b"", offset, high_watermark, self.log.log_start_offset)
        result = await self.log.reader.read(offset, end=end, max_bytes=max_bytes)
        return Fetched(result.data, result.next_offset, high_watermark, self.log.log_start_offset)

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        """Offset and timestamp of the first committed record at or after a time; None if none."""
        self._require_leading()
        return await self.log.reader.offset_for_timestamp(
            timestamp_ms, end=self._replica.high_watermark
        )

    def add_read_waiter(self, offset: Offset, wake: Callable[[], None]) -> int:
        """Call `wake` once when the high watermark passes `offset`; return a handle to forget it.

        Never called at once: look at `high_watermark` first. Also called when the partition closes,
        fails, or is not led here any more, so that the reader finds out by reading.
        """
        return self._replica.readers.add(offset, wake)

    def remove_read_waiter(self, handle: int) -> None:
        """Forget a waiter, woken or not."""
        self._replica.readers.remove(handle)

    def _check_range(self, offset: Offset) -> None:
        if not self.log.log_start_offset <= offset <= self.log.log_end_offset:
            raise LogError(
                OFFSET_OUT_OF_RANGE,
                f"Offset {offset} of {self._replica.name} is out of range: "
                f"{self.log.log_start_offset} to {self._replica.high_watermark} can be read.",
            )

    # Followers of this leader

    def attach(self, feed: Feed, position: FetchPosition) -> Diverging | BelowStart | None:
        """Begin to feed a follower that stands at `position`; None if its log is a part of ours.

        Otherwise nothing has begun. Raises LogError: NO_LEADER if this is not the leader of that
        epoch any more, NOT_READY if it is not yet, ILLEGAL_STATE for who is no replica.
        """
        if position.leader_epoch > self.leader_epoch:
            raise LogError(NOT_READY, f"{self._replica.name}: that leader epoch is not known yet.")
        return self._require_leading().attach(feed, position)

    def detach(self, feed: Feed) -> None:
        """Stop feeding; harmless if that is done already."""
        if self._leading is not None:
            self._leading.detach(feed)

    def acked(self, feed: Feed, durable_end: Offset, log_start_offset: Offset) -> None:
        """A follower has everything below `durable_end` durably, and begins at that offset."""
        if self._leading is not None:
            self._leading.acked(feed, durable_end, log_start_offset)

    def producers_below(self, offset: Offset, *, leader_epoch: LeaderEpoch) -> bytes:
        """What a follower that begins anew at `offset` is to know of idempotent producers.

        Raises LogError: NO_LEADER if this is not, or not in that epoch any more, its leader.
        """
        return self._require_leading().producers_below(offset, leader_epoch=leader_epoch)

    async def read_uncommitted(self, offset: Offset, *, max_bytes: int) -> ReadResult:
        """Batches up to the end of the log, for followers. Raises LogError."""
        return await self._require_leading().read_uncommitted(offset, max_bytes=max_bytes)

    def isr_wish(self, lag_max_s: float) -> IsrProposal | None:
        """The in-sync set that this leader wants now, if it is another one."""
        return None if self._leading is None else self._leading.isr_wish(lag_max_s)

    # As a follower: see following.py

    def position(self) -> FetchPosition:
        """Where this follower stands. Raises LogError: NO_LEADER, NOT_READY while it changes."""
        return self._following.position()

    def append_fetched_now(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log_start_offset: Offset,
    ) -> bool:
        """Append what the leader of that epoch has sent, if it can be done without waiting.

        Raises LogError: NO_LEADER, CORRUPT_BATCH, DISK_FULL, STORAGE_FAILED.
        """
        return self._following.append_fetched_now(
            data,
            leader_epoch=leader_epoch,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
        )

    async def append_fetched(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        high_watermark: Offset,
        log_start_offset: Offset,
    ) -> None:
        """As `append_fetched_now`, also where a segment must be begun first."""
        await self._following.append_fetched(
            data,
            leader_epoch=leader_epoch,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
        )

    def learned(
        self, *, leader_epoch: LeaderEpoch, high_watermark: Offset, log_start_offset: Offset
    ) -> None:
        """Take over the leader's marks. Raises LogError(NO_LEADER)."""
        self._following.learned(
            leader_epoch=leader_epoch,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
        )

    async def truncate_for(self, diverging: Diverging, *, leader_epoch: LeaderEpoch) -> None:
        """Cut what the leader of that epoch does not have, as far as its answer tells.

        Raises LogError: NO_LEADER; ILLEGAL_STATE if committed records would be lost by it, or
        nothing would come of it; STORAGE_FAILED.
        """
        await self._following.truncate_for(diverging, leader_epoch=leader_epoch)

    async def restart_at(
        self, offset: Offset, *, producers: bytes, leader_epoch: LeaderEpoch
    ) -> None:
        """Empty the log, and begin anew at `offset`: what is below, the leader has deleted.

        `producers` are its `producers_below`. Raises LogError: NO_LEADER, ILLEGAL_STATE if
        committed records would be lost by it, CORRUPT_BATCH, DISK_FULL, STORAGE_FAILED.
        """
        await self._following.restart_at(offset, producers=producers, leader_epoch=leader_epoch)
