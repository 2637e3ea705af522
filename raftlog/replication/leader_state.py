"""What a leader knows of its followers, and what follows from it. Pure: no log, no clock, no I/O.

One `LeaderState` is one leader epoch of one partition; it ends with the epoch, and nothing of it
outlives it (mistake 4 of replication.md).

State of a follower:

===============  ====================================================================
`durable_end`    everything below it is durable there, by what it has acknowledged in this
                 leader epoch; UNHEARD before that, whatever it said to earlier leaders
`broker_epoch`   its incarnation when it said so
`caught_up_s`    the newest time of which it is known to have all that the log had then
===============  ====================================================================

Invariants:

1. Committed is what is durable on *every* member of the in-sync set in force, the leader included.
   In force is the union of the committed ISR and of every proposed one that may yet be committed:
   a proposal adds members at once, and removes none before it has been applied (mistake 5).
2. Nothing is committed while the committed ISR has fewer than min(min.insync.replicas, replicas)
   members: the safety of the ELR rests on that (KIP-966).
3. A follower enters only at or past the high watermark and the start of the leader's epoch, by
   acknowledgements of the incarnation that the metadata knows (mistake 6; KIP-903).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.metadata.apply_rules import in_order
from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.types import BrokerEpoch, BrokerId, Offset, PartitionEpoch

UNKNOWN_END: Final = Offset(-1)
"""The durable end of a follower that has acknowledged nothing in this leader epoch."""


@dataclass(slots=True)
class Follower:
    """What the leader knows of one other replica."""

    broker_epoch: BrokerEpoch
    durable_end: Offset
    log_start_offset: Offset
    caught_up_s: float
    goal: Offset
    """The log end at `goal_s`: once it is acknowledged, the follower had been caught up then."""
    goal_s: float


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """An ISR that the leader wants, and the partition epoch that it is decided on."""

    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]


class LeaderState:
    """One leader epoch of one partition, as its leader sees it."""

    __slots__ = (
        "_effective_isr",
        "_followers",
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
        self._effective_isr: tuple[BrokerId, ...] = ()
        self._others: tuple[BrokerId, ...] = ()
        self._take(row, now)

    def update(self, row: PartitionImage, now: float) -> tuple[BrokerId, ...]:
        """Newer metadata of the same leader epoch has been applied.

        Returns the followers that are unheard now, and have to ask for the partition anew.
        """
        assert row.leader_epoch == self.row.leader_epoch
        changes = row.partition_epoch - self.row.partition_epoch
        if changes:
            # Whatever was proposed on the epoch before is applied now, or never will be.
            self._proposed = frozenset()
        unheard: tuple[BrokerId, ...] = ()
        if changes > 1:
            # A snapshot has jumped over changes. Who is not in sync may have been taken out of the
            # replicas in between, with all it had, and be one again now, with nothing. Members of
            # the ISR were not: within a leader epoch only this leader lets anybody in.
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
                # Nobody is late before there was time to say anything.
                self._followers[member] = Follower(
                    BrokerEpoch(-1), UNKNOWN_END, UNKNOWN_END, now, Offset(0), now
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
        """A follower, of this leader epoch and incarnation, has everything below `durable_end`."""
        follower = self._followers.get(broker_id)
        if follower is None:
            return
        follower.broker_epoch = broker_epoch
        follower.durable_end = durable_end
        follower.log_start_offset = log_start_offset
        if durable_end >= log_end:
            follower.caught_up_s = now
        elif durable_end >= follower.goal:
            follower.caught_up_s = max(follower.caught_up_s, follower.goal_s)
        else:
            return
        follower.goal, follower.goal_s = log_end, now

    def appended(self, base: Offset, now: float) -> None:
        """The log has grown from `base` on: who had all until now has time for it from now on."""
        for follower in self._followers.values():
            if follower.durable_end >= base:
                follower.caught_up_s = now

    def committed_end(self, own_durable_end: Offset, *, min_insync_replicas: int) -> Offset | None:
        """Everything below is committed; None if nobody can say at the moment."""
        row = self.row
        if len(row.isr) < min_insync_replicas and len(row.isr) < len(row.replicas):
            return None
        end = own_durable_end
        for member in self._effective_isr:
            durable_end = self._followers[member].durable_end
            if durable_end < end:
                if durable_end < 0:
                    return None
                end = durable_end
        return end

    def all_begin_at(self, log_start_offset: Offset) -> bool:
        """Whether all in-sync followers have taken over that log start offset."""
        return all(
            self._followers[member].log_start_offset >= log_start_offset
            for member in self._effective_isr
        )

    # The in-sync set

    def is_late(
        self, broker_id: BrokerId, *, log_end: Offset, now: float, lag_max_s: float
    ) -> bool:
        """Whether a follower lacks records that it should have had for longer than allowed."""
        follower = self._followers[broker_id]
        return follower.durable_end < log_end and now - follower.caught_up_s > lag_max_s

    def may_enter(
        self, broker_id: BrokerId, broker: BrokerImage | None, high_watermark: Offset
    ) -> bool:
        """Whether a follower that is not in sync has come to be."""
        follower = self._followers.get(broker_id)
        return (
            follower is not None
            and broker is not None
            and broker.is_available
            and broker.broker_epoch == follower.broker_epoch
            and follower.durable_end >= max(high_watermark, self.epoch_start)
        )

    def desired_isr(
        self,
        brokers: Mapping[BrokerId, BrokerImage],
        *,
        high_watermark: Offset,
        log_end: Offset,
        now: float,
        lag_max_s: float,
    ) -> IsrProposal | None:
        """Who should be in sync from now on, if others than are."""
        row = self.row
        members: list[BrokerId] = []
        for member in row.replicas:
            broker = brokers.get(member)
            if member == self.me:
                members.append(member)
            elif member in row.isr:
                alive = broker is not None and not broker.fenced
                late = self.is_late(member, log_end=log_end, now=now, lag_max_s=lag_max_s)
                if alive and not late:
                    members.append(member)
            elif self.may_enter(member, broker, high_watermark):
                members.append(member)
        isr = in_order(row.replicas, members)
        if isr == row.isr or self.me not in brokers:
            return None
        return IsrProposal(
            row.partition_epoch, tuple((member, brokers[member].broker_epoch) for member in isr)
        )

    @property
    def has_pending_proposal(self) -> bool:
        """Whether a proposal on its way, or of unknown outcome, may yet add members."""
        return not self._proposed.issubset(self.row.isr)

    def propose(self, members: Collection[BrokerId]) -> bool:
        """An ISR of these members is about to be proposed: from now on it may be committed.

        It stays in force, beside the committed one, until the partition epoch changes or
        `withdraw`. Returns whether it is the only one that is.
        """
        is_only = not self._proposed
        self._proposed = self._proposed.union(members)
        self._recompute()
        return is_only

    def withdraw(self) -> None:
        """None of what was proposed on this partition epoch can be committed any more."""
        self._proposed = frozenset()
        self._recompute()
