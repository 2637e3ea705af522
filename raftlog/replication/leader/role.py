"""A leader epoch of a partition appends, streams and commits on the leading node.

A `LeaderRole` starts with its epoch and ends with it, for good. Order of an `acks=all` append:
write → stream to the followers and sync here → every replica in the effective ISR has the batch
durably → the high watermark passes → the append is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from raftlog.metadata.image import PartitionImage
from raftlog.record.batch import BATCHES_MAX, RecordBatch, too_many_batches
from raftlog.record.control import Marker, build_marker
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_PRODUCER_ID,
    MAYBE_DELETED,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    NOT_READY,
    OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER_SEQUENCE,
    RETRIABLE,
    UNKNOWN_PRODUCER_ID,
    LogError,
    outcome_unknown_error,
)
from raftlog.record.types import (
    NO_PRODUCER_ID,
    BrokerEpoch,
    BrokerId,
    Buffer,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from raftlog.replication.follower import divergence
from raftlog.replication.follower.divergence import BelowStart, Diverging, FetchPosition, Outrun
from raftlog.replication.leader.arrival_order import ArrivalOrder
from raftlog.replication.leader.state import IsrProposal, LeaderState
from raftlog.replication.leader.verification import VerificationGuard, Verifications
from raftlog.replication.replica import Acks, Origin, Replica
from raftlog.replication.waiters import CommitWaiters
from raftlog.storage.compaction.plan import DeletionHorizon
from raftlog.storage.compaction.retention import NO_TIMESTAMP
from raftlog.storage.producers.entry import NO_TRANSACTIONS, Terms
from raftlog.storage.types import AppendResult, FlushMode, ReadResult

SEQUENCE_ERRORS: Final = frozenset({OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID})
"""Refusals that a replaced leader also returns, as it lacks the producer's newest batches."""
COORDINATOR: Final = Terms(is_coordinator=True)
STARTING_ANYWHERE: Final = Terms(may_start_anywhere=True)
LOG_START_S: Final = 10.0
"""Longest wait of a deletion for the log start of the in-sync replicas."""
STRICT_START_S: Final = 60.0
"""Seconds of a new leader in which unknown producers must start with sequence 0. The older leader
may have rejected, or still hold, an earlier batch. Clients wait 30 s for its response."""
CATCH_UP_S: Final = 60.0
"""Seconds since its last move for which a follower below tombstones holds them, or
`delete.retention.ms` if longer. Otherwise a copy that takes longer than both would never end."""


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """One follower's stream of one partition, as its leader holds it. The callbacks must not raise,
    nor call back into the partition."""

    broker_id: BrokerId
    """The follower."""
    broker_epoch: BrokerEpoch
    """The follower's incarnation."""
    on_appended: Callable[[Offset, Offset, Sequence[Buffer], int], None]
    """Called when the leader's log has grown. The arguments are base offset, next offset, the
    stamped batches in their order, and their bytes."""
    on_watermarks: Callable[[], None]
    """Called when the high watermark or the log start offset has moved."""
    on_ended: Callable[[LogError], None]
    """Called once, when this leader epoch ends, or the follower may not follow any more."""


class LeaderRole:
    """Acts as the leader of one epoch. Lives in the event loop."""

    def __init__(self, replica: Replica) -> None:
        """Starts the epoch in the log's history. Raises LogError(NO_LEADER) for an older epoch."""
        row = replica.image
        replica.log.appender.become_leader(row.leader_epoch)
        self._replica = replica
        self._log = replica.log
        self._ended: LogError | None = None
        self._feeds: dict[BrokerId, Feed] = {}
        self._commits = CommitWaiters(replica.name)
        self.waiting_producers: ArrivalOrder[ProducerId] = ArrivalOrder()
        """Producers with appends that wait until their producer id is known to be issued."""
        self._verifications = Verifications()
        self._strict_until_s = 0.0
        """Monotonic time up to which unknown producers must start with sequence 0."""
        if row.leader_epoch > 0:
            self._strict_until_s = replica.host.clock.monotonic() + STRICT_START_S
        self._start_waiters: list[tuple[Offset, asyncio.Future[None]]] = []
        self.end_listeners: list[Callable[[LogError], None]] = []
        """Called once, with the reason, when this leader epoch ends. Must not raise."""
        self.state = LeaderState(
            replica.host.broker_id,
            row,
            epoch_start=replica.log.log_end_offset,
            now=replica.host.clock.monotonic(),
        )
        self.advance()

    @property
    def feeds(self) -> Mapping[BrokerId, Feed]:
        """The attached followers."""
        return self._feeds

    def update(self, row: PartitionImage) -> None:
        """Apply newer metadata of this epoch."""
        unheard = self.state.update(row, self._replica.host.clock.monotonic())
        for broker_id in list(self._feeds):
            if broker_id not in row.replicas:
                self._end_feed(broker_id, self._replica.not_led_here())
            elif broker_id in unheard:
                self._end_feed(
                    broker_id, LogError(NOT_READY, "Subscribe again: the replica may be new.")
                )
        self.advance()
        self._wake_start_waiters()

    def end(self, error: LogError) -> None:
        """End the epoch. Feeds end with `error`, waiting writers with an unknown outcome."""
        self._ended = error
        for broker_id in list(self._feeds):
            self._end_feed(broker_id, error)
        self._commits.fail(error)
        awaited, self._start_waiters = self._start_waiters, []
        for _, future in awaited:
            if not future.done():
                future.set_exception(outcome_unknown_error(error, MAYBE_DELETED))
        for listener in self.end_listeners:
            listener(error)

    def known_end_offset(self) -> Offset:
        """The end offset by the metadata that this node has applied.

        Without `Replica.confirm` before, it may be behind an end that the next leader has reported,
        because a planned move does not wait until this node has applied it. Raises LogError
        NO_LEADER, or NOT_READY while a new leader does not know yet which records of its
        predecessors were committed.
        """
        self.require_lead_to_report_end()
        if self._replica.high_watermark < self.state.epoch_start:
            raise LogError(
                NOT_READY, f"{self._replica.name}: its new leader is not up to date yet."
            )
        return self._replica.high_watermark

    async def confirmed_end_offset(self) -> Offset:
        """The end of all records committed before the call, which never moves back. Raises LogError
        as `known_end_offset`."""
        self.known_end_offset()
        await self._replica.confirm()
        return self.known_end_offset()

    def require_lead_to_report_end(self) -> None:
        """Raise LogError if a newer leader may have committed more than is known here. A replaced
        leader that has not applied the change would report an end that readers are past."""
        if self._replica.may_be_led_elsewhere:
            self._require_lead()

    # Writers

    def require_appendable(self) -> None:
        """Raise the LogError that an `acks=all` append would raise now, before the write."""
        self._require_lead()
        self._require_enough_in_sync()

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

        Appends of each producer, and those without a producer, take their places in the log in the
        order of the calls. A batch that opens a transaction here needs a current `verification`.
        `guard` is called right before each attempt to write, and may refuse with a LogError.
        `may_start_anywhere` lets an unknown producer start with any sequence (KIP-360), unless this
        leader is new. Raises LogError. NO_LEADER, NOT_ENOUGH_REPLICAS, DISK_FULL, PRODUCER_FENCED,
        OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_ID, TRANSACTION_NOT_VERIFIED,
        QUOTA_EXCEEDED and the like mean that nothing was written. RETRIABLE (not committed within
        `timeout_s`) and STORAGE_FAILED mean that the outcome is unknown.
        """
        if len(batches) > BATCHES_MAX:
            raise too_many_batches()
        # The transaction's coordinator has confirmed the producers of a coordinator's batches.
        if origin is Origin.CLIENT and (self.waiting_producers or not self._are_issued(batches)):
            await self._wait_issued(batches)
        if acks is Acks.ALL:
            self._require_enough_in_sync()
            self._commits.require_room()
        try:
            results = await self._log.appender.append(
                batches,
                self.state.row.leader_epoch,
                guard=self._require_lead
                if guard is None
                else partial(self._require_lead_and, guard),
                terms=self._terms(origin, verification, may_start_anywhere=may_start_anywhere),
            )
        except LogError as error:
            if error.entry in SEQUENCE_ERRORS and self._replica.may_be_led_elsewhere:
                await self._confirm_lead()
            raise
        if verification is not None:
            # An open transaction needs no verification.
            self._verifications.end(verification.producer_id)
        if acks is Acks.ALL:
            await self._wait_committed(results, timeout_s)
        return results

    async def _wait_committed(self, results: Sequence[AppendResult], timeout_s: float) -> None:
        # The append may have waited for a new segment while this epoch ended. A commit waiter added
        # now would never be woken.
        if self._ended is not None:
            raise outcome_unknown_error(self._ended)
        last_offset = max(result.last_offset for result in results)
        if last_offset >= self._replica.high_watermark:
            await self._commits.wait(last_offset, timeout_s)

    # Transactions

    def begin_verification(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> VerificationGuard | None:
        """A guard for the append that opens a transaction. Verify it with the coordinator next.

        None if the transaction is open in this log in this epoch and needs no verification. The
        guard ends with the producer's next marker, and with this leader epoch. Raises LogError
        PRODUCER_FENCED.
        """
        if self._log.producers.is_in_transaction(producer_id, producer_epoch):
            return None
        return self._verifications.begin(producer_id, producer_epoch)

    def check_coordinator_append(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        verification: VerificationGuard | None,
        *,
        new_producers: int,
    ) -> None:
        """Raise the LogError that the append of a coordinator's transactional batch would raise.

        `new_producers`: those not in the log, with batches on their way there, and this one. Raises
        TRANSACTION_NOT_VERIFIED, PRODUCER_FENCED, QUOTA_EXCEEDED.
        """
        self._log.appender.check_coordinator(
            producer_id,
            producer_epoch,
            new_producers=new_producers,
            may_begin=self._terms(Origin.COORDINATOR, verification).may_begin,
        )

    def needs_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        marker: Marker,
        *,
        newest_coordinator: int,
        new_producers: int,
    ) -> bool:
        """Whether `write_marker` has to write it. If not, the producer's guard also ends here.

        `newest_coordinator` is the result of that method, after `confirm_marker`, and
        `new_producers` as for `check_coordinator_append`. Raises LogError COORDINATOR_FENCED or
        PRODUCER_FENCED.
        """
        if self._log.appender.needs_marker(
            producer_id,
            producer_epoch,
            marker,
            newest_coordinator=newest_coordinator,
            new_producers=new_producers,
        ):
            return True
        self._verifications.end(producer_id)
        return False

    def _terms(
        self,
        origin: Origin,
        verification: VerificationGuard | None,
        *,
        may_start_anywhere: bool = False,
    ) -> Terms:
        if may_start_anywhere:
            may_start_anywhere = self._replica.host.clock.monotonic() >= self._strict_until_s
        if verification is not None:
            return Terms(
                partial(self._verifications.is_current, verification),
                is_coordinator=origin is Origin.COORDINATOR,
                may_start_anywhere=may_start_anywhere,
            )
        if origin is Origin.COORDINATOR:
            return COORDINATOR
        return STARTING_ANYWHERE if may_start_anywhere else NO_TRANSACTIONS

    def newest_coordinator(self, marker: Marker) -> int:
        """The newest epoch of the marker's coordinator, by the applied metadata."""
        return self._replica.host.newest_coordinator(marker.coordinator)

    async def confirm_marker(self, producer_id: ProducerId, marker: Marker) -> None:
        """Return once the applied metadata is new enough to judge the marker.

        The coordinator and the producer id may be newer than this node's metadata. So the quorum
        confirms the metadata before it refuses a marker, or overrules a stored epoch. Raises
        LogError NO_LEADER or INVALID_PRODUCER_ID.
        """
        newest = self.newest_coordinator(marker)
        is_outdated = self._log.producers.may_be_outdated(producer_id, marker, newest)
        if is_outdated or not self._is_issued(producer_id):
            await self._replica.confirm_metadata()
            if not self._is_issued(producer_id):
                raise _never_issued(producer_id)

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
        """End the producer's transaction and return once the marker is committed.

        `before_write` is called right before each attempt to write, and may refuse with a LogError.
        `newest_coordinator` is the argument of the `needs_marker` before, or None without it.

        The epoch is the transaction's, or the next epoch. A repeated call is harmless and returns
        once the first marker is committed. Appends called before are written before. Raises
        LogError. COORDINATOR_FENCED, PRODUCER_FENCED, NO_LEADER, NOT_ENOUGH_REPLICAS, DISK_FULL and
        the like mean that nothing was written. RETRIABLE and STORAGE_FAILED mean that the outcome
        is unknown.
        """
        self._require_enough_in_sync()
        self._commits.require_room()
        if newest_coordinator is None:
            await self.confirm_marker(producer_id, marker)

        def newest() -> int:
            # The marker of a newer coordinator may have overtaken this marker.
            return (
                self.newest_coordinator(marker)
                if newest_coordinator is None
                else newest_coordinator
            )

        def guard() -> None:
            self._require_lead()
            if before_write is not None:
                before_write()
            # The transaction has ended, even if no marker is written because nothing is open.
            self._verifications.end(producer_id)

        # A segment expires by it. Without a timestamp, the segment's first append counts.
        time_ms = self._replica.host.cluster_clock.time_ms()
        timestamp_ms = NO_TIMESTAMP if time_ms is None else time_ms
        batch = build_marker(producer_id, producer_epoch, marker, timestamp_ms=timestamp_ms)
        results = await self._log.appender.append(
            [batch],
            self.state.row.leader_epoch,
            guard=guard,
            terms=Terms(marker=marker, newest_coordinator=newest),
        )
        await self._wait_committed(results, timeout_s)

    async def _wait_issued(self, batches: Sequence[RecordBatch]) -> None:
        """Wait until the producer ids are issued, behind earlier appends of the same producers.

        The next append of a producer runs in a later step of the loop than the return of this call,
        so the caller appends first. Raises LogError INVALID_PRODUCER_ID.
        """
        producers = {batch.header.producer_id for batch in batches} - {NO_PRODUCER_ID}
        if self._are_issued(batches) and not self.waiting_producers.is_held(producers):
            return
        place = self.waiting_producers.enter(producers)
        try:
            await place.reached()
            if not self._are_issued(batches):
                # Another node may have issued the id just now, ahead of this one.
                await self._replica.host.confirm()
                self._require_issued(batches)
        finally:
            place.leave()

    def _are_issued(self, batches: Sequence[RecordBatch]) -> bool:
        """Whether each producer id is known to the log, or issued by the cluster."""
        next_id = self._replica.host.next_producer_id()
        for batch in batches:
            producer_id = batch.header.producer_id
            if producer_id >= next_id and producer_id not in self._log.producers:
                return False
        return True

    def _require_issued(self, batches: Sequence[RecordBatch]) -> None:
        """Made-up producer ids would take the room that retries of the others need."""
        if not self._are_issued(batches):
            highest = max(batch.header.producer_id for batch in batches)
            raise _never_issued(highest)

    def _is_issued(self, producer_id: ProducerId) -> bool:
        """Whether a marker's producer id is known to the log, or issued by the cluster."""
        known = self._log.producers
        return producer_id in known or producer_id < self._replica.host.next_producer_id()

    def _require_enough_in_sync(self) -> None:
        replica = self._replica
        if len(replica.image.isr) < replica.min_insync_replicas:
            raise LogError(
                NOT_ENOUGH_REPLICAS,
                f"{replica.name} has {len(replica.image.isr)} in-sync replicas; "
                f"min.insync.replicas is {replica.min_insync_replicas}.",
            )

    def _require_lead(self) -> None:
        """Raise LogError if the lead is over. Called right before the write of each append."""
        if self._ended is not None:
            raise LogError(self._ended.entry, self._ended.message)
        if not self._replica.host.permit.may_act():
            # Checked here, not signalled. A process that was stopped finds its waiting requests
            # before any timer ends its lease (promise 7).
            raise LogError(
                NO_LEADER,
                f"{self._replica.name}: this node's lease has expired: no answer from "
                "the controller.",
            )

    def _require_lead_and(self, guard: Callable[[], None]) -> None:
        self._require_lead()
        guard()

    async def _confirm_lead(self) -> None:
        """Raise LogError if another node leads, or the quorum does not confirm the lead.

        A replaced leader that has not applied the change lacks the records written since. A
        producer that continues its sequence would look out of order, and could not recover.
        """
        await self._replica.host.confirm()
        if self._ended is not None:
            raise LogError(self._ended.entry, self._ended.message)

    async def delete_records(self, before: Offset) -> Offset:
        """Make the records below `before` unreadable for good. Returns the new log start offset.

        -1 means all committed records. On return the new start is durable here and on every in-sync
        replica of this leader epoch, so on every replica that may lead next. Raises LogError.
        NO_LEADER, NOT_READY, NOT_ENOUGH_REPLICAS and OFFSET_OUT_OF_RANGE mean that nothing was
        deleted. RETRIABLE means that the outcome is unknown, and the next leader may still have the
        records.
        """
        self._require_lead()
        # An eligible replica outside a small ISR may lead next, and does not follow (KIP-966).
        self._require_enough_in_sync()
        target = before
        if not 0 <= before <= self._replica.high_watermark:
            end = await self.confirmed_end_offset()
            target = end if before == -1 else before
            if not 0 <= target <= end:
                raise LogError(
                    OFFSET_OUT_OF_RANGE,
                    f"Records of {self._replica.name} can be deleted up to the high watermark "
                    f"{end}, not up to {before}.",
                )
        start = await self._log.operations.delete_records_before(target)
        if self._ended is not None:
            raise outcome_unknown_error(self._ended, MAYBE_DELETED)
        if not self._all_begin_at(target):
            await self._wait_all_begin_at(target)
        return start

    def _all_begin_at(self, target: Offset) -> bool:
        return self.state.all_begin_at(
            target, min_insync_replicas=self._replica.min_insync_replicas
        )

    async def _wait_all_begin_at(self, target: Offset) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start_waiters.append((target, future))
        try:
            async with asyncio.timeout(LOG_START_S):
                await future
        except TimeoutError:
            raise LogError(
                RETRIABLE,
                f"{self._replica.name}: not every in-sync replica has deleted the records yet.",
            ) from None
        finally:
            self._start_waiters = [each for each in self._start_waiters if each[1] is not future]

    # Committing

    def on_appended(
        self, base: Offset, following: Offset, buffers: Sequence[Buffer], size_bytes: int
    ) -> None:
        """Send the new batches to the followers, and commit what is durable by being written."""
        self.state.appended(base, self._replica.host.clock.monotonic())
        for feed in self._feeds.values():
            feed.on_appended(base, following, buffers, size_bytes)
        if self._log.flush_mode is FlushMode.ASYNC:
            self.advance()

    def withdraw_proposals(self) -> None:
        """Drop all proposed ISRs, none of which can be committed any more."""
        self.state.withdraw()
        if self._ended is None:
            self.advance()

    def log_start_moved(self) -> None:
        """Send the followers the log start offset, which is durable here."""
        for feed in self._feeds.values():
            feed.on_watermarks()

    def advance(self) -> None:
        """Move the high watermark after a change of durable ends, effective ISR or lease.

        Without the lease nothing is committed. After an unclean election the last ISR known here
        may be only this replica, and another leader commits (promise 7). Waiting writers wait on.
        """
        replica = self._replica
        end = self.state.committed_end(
            replica.durable_end, min_insync_replicas=replica.min_insync_replicas
        )
        if end is None or end <= replica.high_watermark or not replica.host.permit.may_act():
            return
        replica.move_high_watermark(end)
        self._commits.committed(end)
        for feed in self._feeds.values():
            feed.on_watermarks()

    # Followers of this leader

    def attach(self, feed: Feed, position: FetchPosition) -> Diverging | BelowStart | Outrun | None:
        """Attach a follower at `position`. Returns None if its log is a prefix of this log.

        Any other result attaches no feed, and the follower truncates or restarts first. Raises
        LogError NO_LEADER for an older leader epoch, NOT_READY for a newer epoch, ILLEGAL_STATE for
        a broker without a replica.
        """
        epoch = self.state.row.leader_epoch
        if position.leader_epoch > epoch:
            raise LogError(NOT_READY, f"{self._replica.name}: that leader epoch is not known yet.")
        if position.leader_epoch < epoch:
            raise LogError(NO_LEADER, f"{self._replica.name}: that leader epoch is over.")
        if feed.broker_id not in self.state.followers:
            raise LogError(
                ILLEGAL_STATE, f"{self._replica.name} has no replica on {feed.broker_id}."
            )
        answer = divergence.compare(
            self._log.leader_epochs,
            log_start=self._log.log_start_offset,
            log_end=self._log.log_end_offset,
            horizon=self._log.deletion_horizon,
            position=position,
        )
        if answer is not None:
            return answer
        before = self._feeds.get(feed.broker_id)
        if before is not None:
            self._end_feed(feed.broker_id, LogError(NO_LEADER, "The follower subscribed again."))
        self._feeds[feed.broker_id] = feed
        self.state.set_attached(feed.broker_id, attached=True)
        self.acked(feed, position.durable_end, position.log_start_offset)
        return None

    @property
    def deletion_horizon(self) -> DeletionHorizon:
        """Bounds of tombstones that may be gone from this log, and from a copy that starts now."""
        return self._log.deletion_horizon

    def tombstones_held_from(self) -> Offset | None:
        """The offset from which tombstones stay for a follower that catches up.

        None if all may go. A follower that is away holds them only for a bounded time, and starts
        again when it comes back.
        """
        patience_s = max(CATCH_UP_S, self._log.config.delete_retention_ms / 1000)
        return self.state.slowest_end(self._replica.host.clock.monotonic(), patience_s)

    def end_outrun_feeds(self) -> None:
        """End the feeds of followers that would miss tombstones which are about to go."""
        horizon = self._log.deletion_horizon
        for broker_id, feed in list(self._feeds.items()):
            follower = self.state.followers[broker_id]
            is_known = follower.broker_epoch == feed.broker_epoch
            if not is_known or follower.durable_end < horizon.offset:
                self._end_feed(
                    broker_id,
                    LogError(
                        NOT_READY,
                        f"Subscribe again: tombstones below {horizon.offset} are about to go.",
                    ),
                )

    def detach(self, feed: Feed) -> None:
        """Detach a feed. Harmless if the feed is not attached."""
        if self._feeds.get(feed.broker_id) is feed:
            del self._feeds[feed.broker_id]
            self.state.set_attached(feed.broker_id, attached=False)

    def _end_feed(self, broker_id: BrokerId, error: LogError) -> None:
        self.state.set_attached(broker_id, attached=False)
        self._feeds.pop(broker_id).on_ended(error)

    def acked(self, feed: Feed, durable_end: Offset, log_start_offset: Offset) -> None:
        """Count a follower's acknowledged durable end and log start offset."""
        if self._feeds.get(feed.broker_id) is not feed:
            return
        state = self.state
        broker = self._replica.host.brokers().get(feed.broker_id)
        if broker is None or broker.broker_epoch != feed.broker_epoch:
            # The disk of another incarnation proves nothing about the registered incarnation's.
            return
        state.acked(
            feed.broker_id,
            feed.broker_epoch,
            durable_end=durable_end,
            log_start_offset=log_start_offset,
            log_end=self._log.log_end_offset,
            now=self._replica.host.clock.monotonic(),
        )
        self.advance()
        self._wake_start_waiters()
        if feed.broker_id not in state.row.isr:
            self._replica.host.on_isr_change_due(self._replica.topic_id, self._replica.partition)

    def _wake_start_waiters(self) -> None:
        if not self._start_waiters:
            return
        for target, future in self._start_waiters:
            if self._all_begin_at(target) and not future.done():
                future.set_result(None)
        self._start_waiters = [each for each in self._start_waiters if not each[1].done()]

    def producers_below(self, offset: Offset, *, leader_epoch: LeaderEpoch) -> bytes:
        """The idempotent producers of the records below `offset`, for a restart of a follower.
        Raises LogError NO_LEADER in another leader epoch."""
        if leader_epoch != self.state.row.leader_epoch:
            raise LogError(NO_LEADER, f"{self._replica.name}: that leader epoch is over.")
        return self._log.producers_below(offset)

    async def read_uncommitted(self, offset: Offset, *, max_bytes: int) -> ReadResult:
        """Batches up to the end of the log, for followers. Raises LogError."""
        return await self._log.reader.read(
            offset, end=self._log.log_end_offset, max_bytes=max_bytes
        )

    def desired_isr(self, lag_max_s: float) -> IsrProposal | None:
        """The ISR to propose, None if the committed ISR is right."""
        return self.state.desired_isr(
            self._replica.host.brokers(),
            high_watermark=self._replica.high_watermark,
            log_start=self._log.log_start_offset,
            log_end=self._log.log_end_offset,
            now=self._replica.host.clock.monotonic(),
            lag_max_s=lag_max_s,
        )


def _never_issued(producer_id: ProducerId) -> LogError:
    return LogError(
        INVALID_PRODUCER_ID,
        f"Producer id {producer_id} was not issued by this cluster: ask for one with "
        "POST /v1/producer-ids.",
    )
