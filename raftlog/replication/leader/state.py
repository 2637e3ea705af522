"""The leader's knowledge of its followers gives the committed end and the ISR.

Pure, with no log, clock or I/O.

One `LeaderState` is one leader epoch of one partition. It ends with the epoch, and no part of it
outlives the epoch (mistake 4, docs/decisions/ten-mistakes.md).

State of a follower:

===============  ====================================================================
`durable_end`    everything below is durable there, by the follower's acknowledgements in this
                 leader epoch, or UNKNOWN_END before the first, whatever earlier leaders heard
`broker_epoch`   the follower's incarnation at its last acknowledgement
`caught_up_s`    the newest time at which the follower is known to have had the whole log
`moved_s`        the time at which `durable_end` changed, or the replica became a follower
`is_attached`    the follower has a live stream of this leader epoch
`returns_at_s`   the follower may not enter before, as it was late again soon after it had entered
===============  ====================================================================

Invariants:

1. A record is committed once durable on *every* member of the effective ISR, the leader included.
   The effective ISR is the union of the committed ISR and of every proposed ISR that may yet be
   committed. A proposal adds members at once, and removes none before it is applied (mistake 5).
2. No record is committed while the committed ISR has fewer than min(min.insync.replicas, replicas)
   members, nor while the applied row has an ELR: each member of the ELR may be elected, and has all
   records committed until then (KIP-966). The second half holds whatever minimum made the ELR. A
   command planned before a change of the replication factor brings the default of the old factor.
3. A follower enters only at or past the high watermark and the start of the leader's epoch, with a
   log that begins, durably, no earlier than the leader's (deleted records must not return), by
   acknowledgements of the incarnation in the applied metadata (mistake 6; KIP-903).
4. A follower enters only with a sign of life, and not while it would be removed as late. Below
   min.insync.replicas the high watermark stands still, so a silent follower stays at it. A
   follower that is late again and again enters ever later, so it changes the metadata
   ever less often.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.metadata.apply.rules import in_order
from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.types import BrokerEpoch, BrokerId, Offset, PartitionEpoch

UNKNOWN_END: Final = Offset(-1)
"""The durable end of a follower without an acknowledgement in this leader epoch."""
STEADY_S: Final = 60.0
"""Seconds in sync after which a follower is not late *again* and returns without delay."""
RETURN_S_MIN: Final = 2.0
RETURN_DOUBLINGS_MAX: Final = 4
"""Most doublings of the delay of a return, up to 32 s. The second removal delays the return by
RETURN_S_MIN, each later removal by twice as much. The first return is not delayed, because below
min.insync.replicas writes wait for it.
"""


@dataclass(slots=True)
class Follower:
    """One other replica, as its acknowledgements show it."""

    broker_epoch: BrokerEpoch
    durable_end: Offset
    log_start_offset: Offset
    caught_up_s: float
    goal: Offset
    """The log end at `goal_s`. Once acknowledged, the follower counts as caught up at `goal_s`."""
    goal_s: float
    moved_s: float
    is_attached: bool = False
    entered_s: float = 0.0
    late_count: int = 0
    """Removals as late, each within STEADY_S after the follower had entered."""
    returns_at_s: float = -math.inf

    def removed_as_late(self, now: float) -> None:
        """Delay the next entry, if the follower was late before without steady service since."""
        self.late_count = 1 if now - self.entered_s > STEADY_S else self.late_count + 1
        if self.late_count > 1:
            exponent = min(self.late_count - 2, RETURN_DOUBLINGS_MAX)
            self.returns_at_s = now + RETURN_S_MIN * 2**exponent


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """An ISR to propose, and the partition epoch that it changes."""

    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    late: frozenset[BrokerId] = frozenset()
    """Members to be removed because they lack records for too long."""


class LeaderState:
    """One leader epoch of one partition, as its leader sees it."""

    __slots__ = (
        "_effective_isr",
        "_followers",
        "_late",
        "_others",
        "_proposed",
        "epoch_start",
        "me",
        "row",
    )

    def __init__(
        self, me: BrokerId, row: PartitionImage, *, epoch_start: Offset, now: float
    ) -> None:
        """`epoch_start` is the log end when this leader began."""
        self.me = me
        self.row = row
        self.epoch_start = epoch_start
        self._followers: dict[BrokerId, Follower] = {}
        self._proposed: frozenset[BrokerId] = frozenset()
        self._late: frozenset[BrokerId] = frozenset()
        """Members that pending proposals remove as late."""
        self._effective_isr: tuple[BrokerId, ...] = ()
        self._others: tuple[BrokerId, ...] = ()
        self._take(row, now)

    def update(self, row: PartitionImage, now: float) -> tuple[BrokerId, ...]:
        """Apply newer metadata of the same leader epoch. Returns the followers with unknown ends,
        each of which must subscribe again."""
        assert row.leader_epoch == self.row.leader_epoch
        changes = row.partition_epoch - self.row.partition_epoch
        if changes:
            for member in self._late.intersection(self.row.isr).difference(row.isr):
                self._followers[member].removed_as_late(now)
            for member in row.isr:
                if member not in self.row.isr and member in self._followers:
                    self._followers[member].entered_s = now
            # A proposal on the partition epoch before is applied now, or never will be.
            self._proposed = self._late = frozenset()
        unheard: tuple[BrokerId, ...] = ()
        if changes > 1:
            # A snapshot has jumped over changes. A replica outside the ISR may have been removed in
            # between, with its records, and added again empty. Members of the ISR were not, because
            # within a leader epoch only this leader adds members.
            unheard = tuple(member for member in self._others if member not in row.isr)
            for member in unheard:
                self._followers.pop(member, None)
        self._take(row, now)
        return unheard

    def _take(self, row: PartitionImage, now: float) -> None:
        self.row = row
        self._others = tuple(member for member in row.replicas if member != self.me)
        for gone in [member for member in self._followers if member not in self._others]:
            del self._followers[gone]
        for member in self._others:
            if member not in self._followers:
                # A new follower is not late before it had time to acknowledge.
                self._followers[member] = Follower(
                    broker_epoch=BrokerEpoch(-1),
                    durable_end=UNKNOWN_END,
                    log_start_offset=UNKNOWN_END,
                    caught_up_s=now,
                    goal=Offset(0),
                    goal_s=now,
                    moved_s=now,
                )
        self._recompute()

    def _recompute(self) -> None:
        members = self._proposed.union(self.row.isr)
        self._effective_isr = tuple(
            member for member in self.row.replicas if member in members and member != self.me
        )

    # Followers

    @property
    def followers(self) -> Mapping[BrokerId, Follower]:
        """The other replicas."""
        return self._followers

    def acked(
        self,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        *,
        durable_end: Offset,
        log_start_offset: Offset,
        log_end: Offset,
        now: float,
    ) -> None:
        """Count an acknowledgement of this leader epoch, from the registered incarnation."""
        follower = self._followers.get(broker_id)
        if follower is None:
            return
        follower.broker_epoch = broker_epoch
        if durable_end != follower.durable_end:
            follower.moved_s = now
        follower.durable_end = durable_end
        follower.log_start_offset = log_start_offset
        if durable_end >= log_end:
            follower.caught_up_s = now
        elif durable_end >= follower.goal:
            follower.caught_up_s = max(follower.caught_up_s, follower.goal_s)
        else:
            return
        follower.goal, follower.goal_s = log_end, now

    def set_attached(self, broker_id: BrokerId, *, attached: bool) -> None:
        """The follower's stream of this leader epoch has begun or ended."""
        follower = self._followers.get(broker_id)
        if follower is not None:
            follower.is_attached = attached

    def appended(self, base: Offset, now: float) -> None:
        """Restart the lag time of every follower that had the whole log until `base`."""
        for follower in self._followers.values():
            if follower.durable_end >= base:
                follower.caught_up_s = now

    def committed_end(self, own_durable_end: Offset, *, min_insync_replicas: int) -> Offset | None:
        """Everything below is committed. None while an end is unknown or the ISR is too small. None
        also beside an ELR, however large the ISR is."""
        if not self._has_enough_in_sync(min_insync_replicas):
            return None
        end = own_durable_end
        for member in self._effective_isr:
            durable_end = self._followers[member].durable_end
            if durable_end < end:
                if durable_end < 0:
                    return None
                end = durable_end
        return end

    def all_begin_at(self, log_start_offset: Offset, *, min_insync_replicas: int) -> bool:
        """Whether every replica that may lead next begins at or above the offset.

        As for commits, all members of the effective ISR count. Never beside an ELR, as its members
        may lead, and do not follow.
        """
        return self._has_enough_in_sync(min_insync_replicas) and all(
            self._followers[member].log_start_offset >= log_start_offset
            for member in self._effective_isr
        )

    def slowest_end(self, now: float, patience_s: float) -> Offset | None:
        """The smallest durable end of the followers that moved within that time, else None. 0 while
        such a follower has not acknowledged in this leader epoch."""
        ends = [
            follower.durable_end
            for follower in self._followers.values()
            if now - follower.moved_s <= patience_s
        ]
        return max(Offset(0), min(ends)) if ends else None

    def has_outdated_elr(self, min_insync_replicas: int) -> bool:
        """Whether the row has an ELR beside an ISR that is large enough.

        The command that made the ELR brought a higher minimum. Nothing is committed until another
        change of the partition empties the ELR.
        """
        return bool(self.row.elr) and self._reaches(min_insync_replicas)

    def _has_enough_in_sync(self, min_insync_replicas: int) -> bool:
        return not self.row.elr and self._reaches(min_insync_replicas)

    def _reaches(self, min_insync_replicas: int) -> bool:
        row = self.row
        return len(row.isr) >= min(min_insync_replicas, len(row.replicas))

    # The in-sync set

    def is_late(
        self, broker_id: BrokerId, *, log_end: Offset, now: float, lag_max_s: float
    ) -> bool:
        """Whether a follower has lacked records for longer than allowed."""
        follower = self._followers[broker_id]
        return follower.durable_end < log_end and now - follower.caught_up_s > lag_max_s

    def may_enter(
        self,
        broker_id: BrokerId,
        broker: BrokerImage | None,
        *,
        high_watermark: Offset,
        log_start: Offset,
        log_end: Offset,
        now: float,
        lag_max_s: float,
    ) -> bool:
        """Whether a follower outside the ISR has caught up and is not about to be late. Caught up
        includes the deletions of records."""
        follower = self._followers.get(broker_id)
        return (
            follower is not None
            and broker is not None
            and broker.is_available
            and broker.broker_epoch == follower.broker_epoch
            and follower.durable_end >= max(high_watermark, self.epoch_start)
            and follower.log_start_offset >= log_start
            and follower.is_attached
            and now >= follower.returns_at_s
            and not self.is_late(broker_id, log_end=log_end, now=now, lag_max_s=lag_max_s)
        )

    def desired_isr(
        self,
        brokers: Mapping[BrokerId, BrokerImage],
        *,
        high_watermark: Offset,
        log_start: Offset,
        log_end: Offset,
        now: float,
        lag_max_s: float,
    ) -> IsrProposal | None:
        """The ISR to propose, None if the committed ISR is right."""
        row = self.row
        members: list[BrokerId] = []
        leaving_late: list[BrokerId] = []
        for member in row.replicas:
            broker = brokers.get(member)
            if member == self.me:
                members.append(member)
            elif member in row.isr:
                alive = broker is not None and not broker.fenced
                late = self.is_late(member, log_end=log_end, now=now, lag_max_s=lag_max_s)
                if alive and not late:
                    members.append(member)
                elif alive:
                    leaving_late.append(member)
            elif self.may_enter(
                member,
                broker,
                high_watermark=high_watermark,
                log_start=log_start,
                log_end=log_end,
                now=now,
                lag_max_s=lag_max_s,
            ):
                members.append(member)
        isr = in_order(row.replicas, members)
        if isr == row.isr or self.me not in brokers:
            return None
        return IsrProposal(
            row.partition_epoch,
            tuple((member, brokers[member].broker_epoch) for member in isr),
            frozenset(leaving_late),
        )

    @property
    def has_pending_proposal(self) -> bool:
        """Whether a proposal in flight, or of unknown outcome, may yet add members."""
        return not self._proposed.issubset(self.row.isr)

    def propose(
        self, members: Collection[BrokerId], late: frozenset[BrokerId] = frozenset()
    ) -> bool:
        """Add an ISR that may be committed from now on. Call this before proposing it.

        The members count, beside the committed ISR, until the partition epoch changes or
        `withdraw`. `late` members are removed because they lack records for too long. Returns
        whether this is the only pending proposal.
        """
        is_only = not self._proposed
        self._proposed = self._proposed.union(members)
        self._late |= late
        self._recompute()
        return is_only

    def withdraw(self) -> None:
        """Drop all proposals. None on this partition epoch can be committed any more."""
        self._proposed = self._late = frozenset()
        self._recompute()
