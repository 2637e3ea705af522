"""One replica on this node leads or follows, as the applied metadata orders.

=================  =====================================================================
`log_end_offset`   moves when a batch is written, owned by the log
`flushed_offset`   moves when a sync returns, owned by the log
`high_watermark`   leader: the smallest durable end over the effective ISR. follower: the leader's
                   mark, up to the follower's own log end. Never falls within a leader epoch
=================  =====================================================================

Roles, and the events that end them:

=========  ================================================================================
LEADER     the applied row names this node, in this epoch. Ends with any other row's epoch
FOLLOWER   the row names another broker, or none
WAITING    the row names this node, but a truncation or a fetched append is not over yet
CLOSED     the log failed, the topic is deleted, or the node stops. For good
=========  ================================================================================

Invariants: `log_start_offset <= high_watermark <= log_end_offset`. An `acks=all` append is
acknowledged only for offsets below the high watermark. A reader gets only offsets below the high
watermark. A change of a follower's log names the leader epoch that sent it, and is refused in any
other. No replica leads while such a change is under way.

Durable depends on the log's flush mode. With `sync` it means synced to disk, with `async` handed to
the operating system (promises 1 and 2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.metadata.image import PartitionImage
from raftlog.record.batch import RecordBatch
from raftlog.record.control import Marker
from raftlog.record.errors import (
    NO_LEADER,
    NOT_READY,
    OFFSET_OUT_OF_RANGE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import (
    AbortedTransaction,
    Buffer,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
)
from raftlog.replication.follower.divergence import BelowStart, Diverging, FetchPosition, Outrun
from raftlog.replication.follower.possible_loss import LossGate
from raftlog.replication.follower.role import FollowerRole
from raftlog.replication.leader.role import Feed, LeaderRole
from raftlog.replication.leader.verification import VerificationGuard
from raftlog.replication.replica import (
    Acks,
    Fetched,
    Host,
    Isolation,
    Origin,
    Replica,
    not_led_here,
)
from raftlog.replication.waiters import ReadWaiters
from raftlog.storage.leader_epochs import EpochEndOffset
from raftlog.storage.log.log import Log
from raftlog.storage.producers.state import ProducerDescription
from raftlog.storage.types import AppendResult, ReadResult

__all__ = [
    "Acks",
    "Fetched",
    "Host",
    "Isolation",
    "Origin",
    "Partition",
    "not_led_here",
    "wait_for_data",
]

REPAIR_WAIT_S: Final = 2.0
"""Longest wait of a read for the repair of the damage that it met."""

logger = logging.getLogger(__name__)


class Partition(Replica):
    """One replica with its roles. Lives in the event loop, not for other threads."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: TopicId,
        log: Log,
        image: PartitionImage,
        min_insync_replicas: int,
        host: Host,
        on_loss_cleared: Callable[[Partition], None] = lambda _partition: None,
    ) -> None:
        """Takes the role that `image` gives to the host's broker at once. `on_loss_cleared` is
        called when a replica that may have lost data takes part again."""
        # Set first, because taking a role may clear the loss.
        self._loss_cleared = on_loss_cleared
        super().__init__(
            topic=topic,
            topic_id=topic_id,
            log=log,
            image=image,
            min_insync_replicas=min_insync_replicas,
            host=host,
        )
        self.is_leaving = False
        """Whether the replica is about to leave the ISR for replacement, and must not follow."""
        self._write_gate = host.write_gate
        self.loss_gate = LossGate(
            self,
            may_have_lost_data=log.possible_loss is not None,
            on_cleared=self._on_loss_cleared,
        )
        self.leader_role: LeaderRole | None = None
        """The leader epoch that this replica leads. None if the replica does not lead."""
        self.follower_role = FollowerRole(
            self,
            may_have_lost_data=lambda: self.loss_gate.may_have_lost_data,
            on_rearranged=self._take_role,
        )
        """The follower role, kept for good. A log change may outlast the role that started it.
        Its calls raise LogError NO_LEADER while this replica leads."""
        self._opened_in_epoch = image.leader_epoch
        log.listeners.flushed.append(self._on_flushed)
        log.listeners.log_start_durable.append(self._on_log_start_durable)
        log.listeners.horizon_raised.append(self._on_horizon_raised)
        log.listeners.failed.append(self.close)
        log.listeners.appended.append(self._on_appended)
        self._take_role()

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads the partition."""
        return self.leader_role is not None

    # Roles

    def update(self, image: PartitionImage, min_insync_replicas: int) -> None:
        """Apply newer metadata of this partition."""
        before = self.image
        if image.partition_epoch < before.partition_epoch:
            raise AssertionError(f"{self.name}: metadata went back")
        self.image = image
        self.min_insync_replicas = min_insync_replicas
        self._take_role()

    def set_minimum(self, min_insync_replicas: int) -> None:
        """Apply a changed min.insync.replicas. The caller then has the leader commit by it."""
        self.min_insync_replicas = min_insync_replicas

    def set_leaving(self, *, leaving: bool) -> None:
        """Note whether the replica is about to leave the ISR for replacement."""
        self.is_leaving = leaving

    def _take_role(self) -> None:
        row, role = self.image, self.leader_role
        leads = self._may_lead()
        if leads and role is not None and role.state.row.leader_epoch == row.leader_epoch:
            role.update(row)
            return
        if role is not None:
            self._stop_leading(self.not_led_here())
        if self.is_closed or self.follower_role.is_busy:
            return
        # An epoch without records is no part of the log's history, as the next leader's records may
        # be of an older epoch.
        self.log.leader_epochs.truncate_from_end(self.log.log_end_offset)
        if leads:
            self._begin_leading()

    def _may_lead(self) -> bool:
        row = self.image
        if row.leader != self.host.broker_id or self.is_closed:
            return False
        if self.host.permit.broker_epoch is None:
            # Perhaps an election of long ago, which accepted an earlier loss.
            self._opened_in_epoch = row.leader_epoch
        is_elected_since = row.leader_epoch > self._opened_in_epoch
        if (
            self.loss_gate.may_have_lost_data
            and is_elected_since
            and row.unclean_epoch == row.leader_epoch
        ):
            # An unclean election accepted the loss. An epoch from before the start did not, because
            # the records that this log may lack were perhaps acknowledged in that very epoch.
            self.loss_gate.clear_loss()
        return not self.loss_gate.may_have_lost_data

    def _on_loss_cleared(self) -> None:
        self._take_role()
        self._loss_cleared(self)

    def _begin_leading(self) -> None:
        try:
            self.leader_role = role = LeaderRole(self)
            self.log.hold_tombstones(role)
            for listener in self.host.lead_listeners:
                listener(self.topic_id, self.partition)
        except LogError as error:
            if error.entry is NO_LEADER:
                # A start without the newest metadata knows less than its own log.
                logger.info("%s: its metadata is out of date: %s", self.name, error)
                return
            logger.error("%s cannot be led here: %s", self.name, error.message)
            self.close(error)

    def _stop_leading(self, error: LogError) -> None:
        role, self.leader_role = self.leader_role, None
        if role is not None:
            self.log.hold_tombstones(None)
            role.end(error)
            self.wake_all_readers()

    def close(self, error: LogError) -> None:
        """Stop serving. Every present and later request fails with `error`."""
        if self.close_error is None:
            self.close_error = error
        self._stop_leading(error)
        self.wake_all_readers()
        self.follower_role.close()
        self.loss_gate.close()

    def require_leader(self) -> LeaderRole:
        """The leader role. Raises LogError NO_LEADER, NOT_READY, or why the replica is closed."""
        if self.leader_role is None:
            self.require_open()
            raise self.not_led_here()
        return self.leader_role

    def _on_flushed(self, _flushed_offset: Offset) -> None:
        if self.leader_role is not None:
            self.leader_role.advance()
        else:
            self.follower_role.durable_moved()

    def _on_log_start_durable(self) -> None:
        # Also after a deletion by this node's own retention, perhaps long after the last record.
        # The leader takes a follower into the ISR only with its log start, and a follower with a
        # clock that is behind deletes by the leader's.
        self.wake_stable_readers()
        if self.leader_role is not None:
            self.leader_role.log_start_moved()
        else:
            self.follower_role.durable_moved()

    def _on_horizon_raised(self) -> None:
        if self.leader_role is not None:
            self.leader_role.end_outrun_feeds()

    def _on_appended(
        self, base: Offset, following: Offset, buffers: Sequence[Buffer], size_bytes: int
    ) -> None:
        self.committed_bytes.appended(following, size_bytes)
        if self.leader_role is not None:
            self.leader_role.on_appended(base, following, buffers, size_bytes)

    # Writers and readers

    def write_gate_moved(self) -> None:
        """Follow the node's write gate.

        If it refuses appends, waiting readers wake, and their next read reports whether the node
        still serves records. If it accepts them, a leader that may act again commits at once.
        """
        if self._write_gate.refusal is not None:
            self.wake_all_readers()
        else:
            self.maybe_commit()

    def maybe_commit(self) -> None:
        """Commit, as the leader, the records that the metadata and the lease allow."""
        if self.leader_role is not None:
            self.leader_role.advance()

    def require_appendable(self) -> None:
        """Raise the LogError that an `acks=all` append would raise now, before the write."""
        self.writer().require_appendable()

    def writer(self) -> LeaderRole:
        """The leader role, for one append. Raises the LogError that an append would raise."""
        role = self.leader_role or self.require_leader()
        if (refusal := self._write_gate.refusal) is not None:
            raise LogError(refusal.entry, refusal.message)
        return role

    async def append(
        self,
        batches: Sequence[RecordBatch],
        *,
        acks: Acks,
        timeout_s: float,
        guard: Callable[[], None] | None = None,
        origin: Origin = Origin.CLIENT,
        verification: VerificationGuard | None = None,
        may_start_anywhere: bool = False,
    ) -> list[AppendResult]:
        """Append batches, whole or not at all, and return once `acks` is fulfilled.

        A batch that opens a transaction here needs a `verification`, the guard from
        `begin_verification`, once the coordinator has confirmed the transaction. `guard` is called
        right before each attempt to write, and may refuse with a LogError. `may_start_anywhere` as
        for `LeaderRole.append`. Raises LogError.
        NO_LEADER, NOT_ENOUGH_REPLICAS, DISK_FULL, PRODUCER_FENCED, OUT_OF_ORDER_SEQUENCE,
        UNKNOWN_PRODUCER_ID, TRANSACTION_NOT_VERIFIED and the like mean that nothing was written.
        RETRIABLE (not committed within `timeout_s`) and STORAGE_FAILED mean that the outcome is
        unknown.
        """
        return await self.writer().append(
            batches,
            acks=acks,
            timeout_s=timeout_s,
            guard=guard,
            origin=origin,
            verification=verification,
            may_start_anywhere=may_start_anywhere,
        )

    def begin_verification(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> VerificationGuard | None:
        """See `LeaderRole.begin_verification`. Raises LogError NO_LEADER or PRODUCER_FENCED."""
        return self.require_leader().begin_verification(producer_id, producer_epoch)

    async def write_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        timeout_s: float,
        before_write: Callable[[], None] | None = None,
        newest_coordinator: int | None = None,
    ) -> None:
        """See `LeaderRole.write_marker`. Raises LogError."""
        role = self.writer()
        await role.write_marker(
            producer_id,
            producer_epoch,
            marker,
            timeout_s=timeout_s,
            before_write=before_write,
            newest_coordinator=newest_coordinator,
        )

    async def end_offset(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Offset:
        """The offset behind the last record for readers of this isolation. It never moves back.

        Raises LogError NO_LEADER, or NOT_READY while a new leader does not know yet which records
        of its predecessors were committed.
        """
        await self.require_leader().confirmed_end_offset()
        return self.readable_end(isolation)

    async def read(
        self,
        offset: Offset,
        *,
        max_bytes: int,
        end_offset: Offset | None = None,
        any_replica: bool = False,
        waits_for_repair: bool = True,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Fetched:
        """Committed batches from the batch that holds `offset`, at least one if there is any.

        Empty if no record at `offset` is known to be committed yet. READ_COMMITTED also excludes
        records from the first open transaction on. With `end_offset`, no batch that starts at or
        after it. With `any_replica`, a follower also reads, up to its own high watermark. Damage is
        repaired from other replicas. The read waits for that, unless another repair reads
        (`waits_for_repair`). Raises LogError NO_LEADER, OFFSET_OUT_OF_RANGE or STORAGE_FAILED.
        """
        if not any_replica:
            role = self.require_leader()
            if offset >= self.readable_end(isolation):
                # Records below are committed, whatever broker leads. Only a leader knows the end.
                role.require_lead_to_report_end()
            if offset > self.log.log_end_offset:
                # A newer leader, unknown here, may have committed as far as that. After
                # OFFSET_OUT_OF_RANGE a consumer would begin from the start.
                await self.confirm()
                self.require_leader()
        self.require_open()
        self._check_range(offset)
        high_watermark, stable = self.high_watermark, self.last_stable_offset
        end = high_watermark if isolation is Isolation.READ_UNCOMMITTED else stable
        if end_offset is not None:
            end = min(end_offset, end)
        if offset >= end:
            return Fetched(
                data=b"",
                next_offset=offset,
                high_watermark=high_watermark,
                log_start_offset=self.log.log_start_offset,
                last_stable_offset=stable,
            )
        try:
            result, aborted = await self._read(offset, end, max_bytes, isolation)
        except LogError as error:
            is_alone = len(self.image.replicas) == 1
            if error.entry is not STORAGE_FAILED or is_alone or not waits_for_repair:
                raise
            if not await self.log.wait_repaired(REPAIR_WAIT_S):
                raise
            result, aborted = await self._read(offset, end, max_bytes, isolation)
        start = self.log.log_start_offset
        return Fetched(
            data=result.data,
            next_offset=result.next_offset,
            high_watermark=high_watermark,
            log_start_offset=start,
            last_stable_offset=stable,
            aborted=aborted,
        )

    async def _read(
        self, offset: Offset, end: Offset, max_bytes: int, isolation: Isolation
    ) -> tuple[ReadResult, tuple[AbortedTransaction, ...]]:
        reader = self.log.reader
        if isolation is Isolation.READ_UNCOMMITTED:
            return await reader.read(offset, end=end, max_bytes=max_bytes), ()
        return await reader.read_committed(offset, end=end, max_bytes=max_bytes)

    async def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[Offset, int] | None:
        """Offset and timestamp of the first committed record at or after a time, else None.

        None holds for all records committed before the call. Raises LogError as `end_offset`,
        except for a record found, which needs no knowledge of the end.
        """
        found, end = await self.known_offset_for_timestamp(timestamp_ms, isolation)
        if found is None:
            confirmed_end = await self.end_offset(isolation)
            if confirmed_end > end:
                found = await self.log.reader.offset_for_timestamp(timestamp_ms, end=confirmed_end)
        return found

    async def known_offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> tuple[tuple[Offset, int] | None, Offset]:
        """Search like `offset_for_timestamp`, among the records known here to be committed. Also
        returns the end of these records. None does not exclude later records. Raises LogError."""
        self.require_leader()
        end = self.readable_end(isolation)
        return await self.log.reader.offset_for_timestamp(timestamp_ms, end=end), end

    async def newest_record(self, isolation: Isolation) -> tuple[Offset, int] | None:
        """Offset and timestamp of the first readable record with the largest timestamp. None if no
        record has a timestamp. Raises LogError as `end_offset`."""
        end = await self.end_offset(isolation)
        return await self.log.reader.offset_of_newest_timestamp(end=end)

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEndOffset | None:
        """End of the largest leader epoch not above `epoch`, in this leader's log (KIP-320). None:
        the log has no epoch that old, or `epoch` is newer than all. Raises LogError NO_LEADER."""
        self.require_leader()
        return self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset)

    def producers(self, count_max: int) -> list[ProducerDescription]:
        """The producers of this leader's log, of open transactions first. LogError NO_LEADER."""
        self.require_leader()
        return self.log.producers.described(count_max, self.log.shared.monotonic_ms())

    def _check_range(self, offset: Offset) -> None:
        if not self.log.log_start_offset <= offset <= self.log.log_end_offset:
            raise LogError(
                OFFSET_OUT_OF_RANGE,
                f"Offset {offset} of {self.name} is out of range: "
                f"{self.log.log_start_offset} to {self.high_watermark} can be read.",
            )

    def attach(self, feed: Feed, position: FetchPosition) -> Diverging | BelowStart | Outrun | None:
        """See `LeaderRole.attach`. Raises LogError NOT_READY for a leader epoch unknown here."""
        if position.leader_epoch > self.image.leader_epoch:
            raise LogError(NOT_READY, f"{self.name}: that leader epoch is not known yet.")
        return self.require_leader().attach(feed, position)


async def wait_for_data(
    wants: Sequence[tuple[Partition, Offset]],
    *,
    min_bytes: int,
    timeout_s: float,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> None:
    """Return when any partition has a readable record at its offset, or on timeout.

    With `min_bytes` > 1, wait until about that many bytes have been committed during the wait, in
    open transactions or not, whenever the records were written. Records readable before the call
    count as enough. Also returns when a partition stops serving, and the caller's next read raises
    the reason.
    """
    if any(one.is_closed or one.readable_end(isolation) > offset for one, offset in wants):
        return
    deadline = asyncio.get_running_loop().time() + timeout_s
    before = [partition.committed_bytes.total for partition, _ in wants]
    while await _any_moves(wants, deadline, isolation):
        committed = sum(
            partition.committed_bytes.total - count
            for (partition, _), count in zip(wants, before, strict=True)
        )
        has_moved = any(one.readable_end(isolation) > offset for one, offset in wants)
        if min_bytes <= 1 or committed >= min_bytes or not has_moved:
            return
        wants = [(one, max(offset, one.readable_end(isolation))) for one, offset in wants]


async def _any_moves(
    wants: Sequence[tuple[Partition, Offset]], deadline: float, isolation: Isolation
) -> bool:
    """Wait until a readable end passes its offset. False when the deadline came first."""
    loop = asyncio.get_running_loop()
    moved: asyncio.Future[bool] = loop.create_future()

    def settle(outcome: bool) -> None:
        if not moved.done():
            moved.set_result(outcome)

    timer = loop.call_at(deadline, settle, False)
    handles: list[tuple[ReadWaiters, int]] = []
    try:
        for partition, offset in wants:
            waiters = partition.waiters(isolation)
            handles.append((waiters, waiters.add(offset, lambda: settle(True))))
        return await moved
    finally:
        timer.cancel()
        for waiters, handle in handles:
            waiters.remove(handle)
