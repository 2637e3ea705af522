"""The active controller's sessions, dead brokers, and a node's lease. Pure.

**Sessions.** A table is made at the start of a controller term and dropped at its end, so that no
entry rests on heartbeats of an earlier term. Times are monotonic seconds and never fall. Time in
which the controller itself was stopped does not count against the brokers. An observation that
comes much too late moves the ends of all sessions later by the gap.

**Session timeouts that change.** The metadata holds the timeout set by the operator, and the *lease
bound*, which only the active controller changes. A heartbeat is granted the smaller of both, and
the response states the granted timeout, so a node need not have applied the change. Promise 7 (a
leader without the quorum stops before another node leads) then holds in both directions, because no
lease outlasts the patience of a controller:

- *This controller* fences a silent broker at the latest end of all timeouts granted to the broker
  (`expires_at`), never by only the newest timeout.
- *A longer timeout* is granted only after the longer bound is applied. So each granted lease rests
  on a committed bound, which is in the log of every later controller.
- *The next controller* fences no silent broker within the bound after its term began. Leases of its
  predecessors were granted, less their unconfirmed age, before that term
  (docs/decisions/sessions-and-leases.md).
- *A shorter timeout* is granted at once, but the bound falls only after the old bound has passed
  since the last longer grant and since the term began. The operator may raise the timeout between
  the decision and its application. While a lower bound may be in the log, no longer timeout is
  granted (`_cap_s`). Proposals of one term are ordered. A later applied proposal settles all
  earlier proposals of unknown outcome. Proposals of an earlier term are below `first_index`.

**Dead brokers** are proven dead by a refused connection to their address. Every node keeps the
table, active controller or not, because the peers of a dying controller find the death before one
of them becomes its successor. A connection is known by node only, and a process may have been
restarted at the same address since the connection ended. So the proof counts for the incarnation in
the metadata at the end of the connection, and only while the metadata names the same incarnation
and no message has come from the node.

**A lease** begins when the heartbeat was *sent*, less the time for which the controller cannot
prove to be the only controller, and is shorter than a session.
docs/decisions/sessions-and-leases.md has the argument why a lease ends before any controller may
fence its holder for silence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from raftlog.controller.messages import HEARTBEAT_S, HeartbeatAnswer, answered_timeout_s
from raftlog.metadata.configs.broker import lease_bound_s, session_timeout_s
from raftlog.metadata.image import BrokerImage, MetadataImage
from raftlog.record.types import BrokerEpoch, BrokerId

STALL_S: Final = 2 * HEARTBEAT_S
"""Longest gap between two observations of a running controller, in seconds. After a longer gap the
controller was stopped, and could receive no heartbeat."""
CLUSTER_TIME_S: Final = 1.0
"""Seconds between two computations of the cluster time."""
DEAD_BROKERS_MAX: Final = 1_000
"""Most brokers with a remembered end of the connection. The oldest are forgotten first."""


class Action(Enum):
    """A reaction to the state of a broker. Decisions are listed in this order."""

    FENCE = auto()
    """Fence the broker unless it is fenced, and move its leaderships."""
    DRAIN = auto()
    """The broker is about to stop, so move its leaderships."""
    UNFENCE = auto()
    """The broker is back, so unfence it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Something to be done about one incarnation of a broker."""

    action: Action
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(slots=True)
class _Session:
    broker_epoch: BrokerEpoch
    expires_at: float
    """Time when silence becomes a reason to fence. No granted lease ends later."""
    required_index: int
    """The index to be applied by the broker before its unfencing. Covers its registration, and each
    change that took leaderships from it."""
    applied_index: int = -1
    """The broker's applied index, by its heartbeats. -1 before the first."""
    stopping: bool = False
    can_write: bool = True
    """Whether the broker's disk takes writes, by its heartbeats."""
    clock_ahead_ms: int | None = None
    """The broker's wall clock minus this node's monotonic clock, by its newest heartbeat."""
    drained: bool = False
    dead: bool = False
    """Proven dead, without waiting for the timeout."""
    fencing: bool = False
    """Whether the fencing is decided, and not known to be executed. The decision stands whatever
    heartbeat comes, because the command may be in the log already."""
    silent: bool = False
    """No heartbeat has come since the newest decision to fence."""
    done: bool = False
    """Executed, and nothing was heard since. Nothing is due until a heartbeat comes."""


class Sessions:
    """The sessions of all registered brokers in one controller term."""

    def __init__(self, image: MetadataImage, now: float, *, first_index: int) -> None:
        """`first_index`: the last index of proposals from before this controller term, applied or
        not. Before that index is applied, no heartbeat counts, and nothing is due."""
        self._sessions: dict[BrokerId, _Session] = {}
        self._observed_at = now
        self._bound_s = lease_bound_s(image.cluster_settings)
        """The lease bound in the image, as of the last look."""
        self._cap_s = math.inf
        """Longest timeout to grant, while a lowering of the bound may be in the log."""
        self.timeout_s = 0.0
        """The session timeout granted to heartbeats now."""
        self._timeout_since = now
        self._grace_end = now + self._bound_s
        self.first_index = first_index
        """Index that must be applied before the table knows anything."""
        self._followed_index = -1
        self._clusters_ahead_ms: tuple[int, int] | None = None
        self._cluster_time_due = -math.inf
        self.unwritable: frozenset[BrokerId] = frozenset()
        """The brokers that report a disk without writes."""
        self._observe(image, now)

    def heartbeat_received(
        self,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        *,
        applied_index: int,
        stopping: bool,
        can_write: bool = True,
        time_ms: int | None = None,
        image: MetadataImage,
        now: float,
    ) -> None:
        """Record a heartbeat of the incarnation in the image."""
        self._observe(image, now)
        session = self._sessions[broker_id]
        assert session.broker_epoch == broker_epoch
        session.expires_at = max(session.expires_at, now + self.timeout_s)
        session.applied_index = max(session.applied_index, applied_index)
        session.stopping = session.stopping or stopping
        if session.can_write != can_write:
            session.can_write = can_write
            self._note_unwritable()
        if time_ms is not None:
            session.clock_ahead_ms = time_ms - int(now * 1000)
        session.dead = False
        session.silent = False
        session.done = False

    def cluster_times_ms(self, image: MetadataImage, now: float) -> tuple[int, int] | None:
        """Both medians of the unfenced brokers' wall clocks. None while too few are known.

        Data expires by the lower median, so no minority of clocks may run it ahead, nor a single
        clock in a cluster of several brokers. What is stored is dated by the upper median, which
        for the same reason no such clock holds back. A clock that is not known yet counts as the
        earliest for the lower median, and as the latest for the upper median. Computed at most
        every CLUSTER_TIME_S, because all brokers request it.
        """
        if now >= self._cluster_time_due:
            self._cluster_time_due = now + CLUSTER_TIME_S
            clocks = [
                session.clock_ahead_ms
                for broker_id, session in self._sessions.items()
                if broker_id in image.brokers and not image.brokers[broker_id].fenced
            ]
            known = sorted(clock for clock in clocks if clock is not None)
            is_enough = 2 * len(known) > len(clocks) and len(known) >= min(2, len(self._sessions))
            count, unknown = len(clocks), len(clocks) - len(known)
            self._clusters_ahead_ms = (
                (known[(count - 1) // 2 - unknown], known[count // 2]) if is_enough else None
            )
        if self._clusters_ahead_ms is None:
            return None
        lower_ms, upper_ms = self._clusters_ahead_ms
        now_ms = int(now * 1000)
        return lower_ms + now_ms, upper_ms + now_ms

    def proven_dead(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, image: MetadataImage, now: float
    ) -> None:
        """The incarnation is proven dead."""
        self._observe(image, now)
        session = self._sessions.get(broker_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.dead = True

    def due(self, image: MetadataImage, now: float) -> list[Decision]:
        """The due decisions, by action, then by id. FENCE is due until `fenced` is called, DRAIN
        until `drained`, UNFENCE until the image shows the broker unfenced."""
        self._observe(image, now)
        decisions = []
        for broker_id, session in self._sessions.items():
            action = self._action(session, image.brokers[broker_id], now)
            if action is None:
                continue
            if action is Action.FENCE and not session.fencing:
                session.fencing = True
                session.silent = True
            decisions.append(Decision(action, broker_id, session.broker_epoch))
        return sorted(decisions, key=lambda each: (each.action.value, each.broker_id))

    def is_fencing_due(self, image: MetadataImage, now: float) -> bool:
        """Whether `due` would name a broker to be fenced."""
        self._observe(image, now)
        return any(
            self._action(session, image.brokers[broker_id], now) is Action.FENCE
            for broker_id, session in self._sessions.items()
        )

    def due_lease_bound(self, image: MetadataImage, now: float) -> float | None:
        """The lease bound, in seconds, to propose now. None if the present bound is right.

        Call `lease_bound_applied` once the proposal is applied. Until then, and so also after an
        unknown outcome, no session timeout above a lowered bound is granted.
        """
        self._observe(image, now)
        wanted_s = session_timeout_s(image.cluster_settings)
        bound_s = self._bound_s
        is_lower = wanted_s < bound_s and now >= max(self._timeout_since + bound_s, self._grace_end)
        is_capped = self._cap_s < min(wanted_s, bound_s)
        if not (wanted_s > bound_s or is_lower or is_capped):
            return None
        if is_lower:
            self._cap_s = min(self._cap_s, wanted_s)
        return wanted_s

    def lease_bound_applied(self, image: MetadataImage, now: float) -> None:
        """The proposed lease bound is applied, and with it every earlier change of the bound."""
        self._observe(image, now)
        self._cap_s = math.inf
        self._follow_timeout(image, now)

    def next_deadline(self) -> float:
        """Latest time of the next `due` call, if nothing is heard or lost before."""
        # Often enough, even without work, for a late observation to prove a stall.
        return min(
            self._observed_at + HEARTBEAT_S,
            min(
                (
                    self._deadline(session)
                    for session in self._sessions.values()
                    if not session.done and not session.fencing
                ),
                default=math.inf,
            ),
        )

    def fenced(self, decision: Decision, applied_index: int) -> None:
        """A FENCE was executed. `applied_index` is after its last change."""
        session = self._of(decision)
        if session is not None:
            session.fencing = False
            session.done = session.silent
            session.required_index = max(session.required_index, applied_index)

    def drained(self, decision: Decision) -> None:
        """A DRAIN was carried out."""
        session = self._of(decision)
        if session is not None:
            session.drained = True

    def is_fencing(self, broker_id: BrokerId) -> bool:
        """Whether the broker may be fenced at any moment."""
        return self._sessions[broker_id].fencing

    def is_drained(self, broker_id: BrokerId) -> bool:
        """Whether a stopping broker leads no partition with another eligible leader."""
        return self._sessions[broker_id].drained

    def _observe(self, image: MetadataImage, now: float) -> None:
        gap_s = now - self._observed_at
        assert gap_s >= 0, "monotonic time fell"
        if gap_s > STALL_S:
            self._grace_end += gap_s
            for session in self._sessions.values():
                session.expires_at += gap_s
        self._observed_at = now
        if image.applied_index != self._followed_index:
            self._follow_timeout(image, now)
            self._followed_index = image.applied_index
            self._follow(image, now)

    def _follow_timeout(self, image: MetadataImage, now: float) -> None:
        bound_s = lease_bound_s(image.cluster_settings)
        if bound_s > self._bound_s and self._followed_index < self.first_index:
            # The bound is an earlier controller's, and its leases may last for so long.
            self._grace_end += bound_s - self._bound_s
        self._bound_s = bound_s
        timeout_s = min(session_timeout_s(image.cluster_settings), bound_s, self._cap_s)
        if timeout_s != self.timeout_s:
            self.timeout_s = timeout_s
            self._timeout_since = now

    def _follow(self, image: MetadataImage, now: float) -> None:
        """Begin and end sessions as brokers came, were started again and went."""
        for broker_id, broker in image.brokers.items():
            known = self._sessions.get(broker_id)
            if known is None or known.broker_epoch != broker.broker_epoch:
                self._sessions[broker_id] = _Session(
                    broker_epoch=broker.broker_epoch,
                    expires_at=max(
                        now + self.timeout_s,
                        # The lease of the incarnation before may be of a longer timeout.
                        -math.inf if known is None else known.expires_at,
                    ),
                    required_index=max(broker.broker_epoch, self.first_index),
                )
        if len(self._sessions) > len(image.brokers):
            for broker_id in sorted(self._sessions.keys() - image.brokers.keys()):
                del self._sessions[broker_id]
        if self.unwritable:
            self._note_unwritable()

    def _note_unwritable(self) -> None:
        self.unwritable = frozenset(
            broker_id for broker_id, session in self._sessions.items() if not session.can_write
        )

    def _action(self, session: _Session, broker: BrokerImage, now: float) -> Action | None:
        if session.fencing:
            return Action.FENCE
        if session.dead or now >= self._deadline(session):
            return None if session.done else Action.FENCE
        if session.stopping:
            return None if session.drained else Action.DRAIN
        if broker.fenced and session.applied_index >= session.required_index:
            return Action.UNFENCE
        return None

    def _deadline(self, session: _Session) -> float:
        return max(session.expires_at, self._grace_end)

    def _of(self, decision: Decision) -> _Session | None:
        """The decision's session. None after a restart of the broker."""
        session = self._sessions.get(decision.broker_id)
        if session is None or session.broker_epoch != decision.broker_epoch:
            return None
        return session


class DeadBrokers:
    """The ends of connections to brokers."""

    def __init__(self) -> None:
        self._ended: dict[BrokerId, BrokerEpoch] = {}
        """Brokers with an ended connection, and their epoch at that time."""
        self._dead: dict[BrokerId, BrokerEpoch] = {}

    def returned(self, broker_id: BrokerId) -> None:
        """The node is connected, or sent a message."""
        self._ended.pop(broker_id, None)
        self._dead.pop(broker_id, None)

    def ended(self, broker_id: BrokerId, broker_epoch: BrokerEpoch | None) -> None:
        """The connection has ended. `broker_epoch` is by the metadata, None for no broker."""
        if broker_epoch is not None:
            _put(self._ended, broker_id, broker_epoch)

    def refused(self, broker_id: BrokerId, broker_epoch: BrokerEpoch | None) -> BrokerEpoch | None:
        """The broker's address refused a connection. Returns the epoch proven dead, if any.

        `broker_epoch` is by the present metadata. Without an earlier end of the connection, the
        connection counts as ended now.
        """
        epoch = self._ended.get(broker_id, broker_epoch)
        if epoch is None or epoch != broker_epoch:
            return None
        _put(self._dead, broker_id, epoch)
        return epoch

    def is_dead(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Whether the incarnation is proven dead."""
        return self._dead.get(broker_id) == broker_epoch


def _put(
    table: dict[BrokerId, BrokerEpoch], broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> None:
    table.pop(broker_id, None)
    table[broker_id] = broker_epoch
    if len(table) > DEAD_BROKERS_MAX:
        del table[next(iter(table))]


LEASE_SHARE: Final = 0.9
"""Length of a lease, as a share of the session timeout. The rest is a margin for clocks
(docs/decisions/sessions-and-leases.md)."""
HEARTBEATS_IN_FLIGHT_MAX: Final = 64
"""Most heartbeats without a response. Beyond, the oldest are forgotten first."""


class Lease:
    """The lease granted by the answers to one incarnation's heartbeats."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._term = 0
        self._sequence = 0
        self._sent: dict[int, tuple[int, float]] = {}
        """The receiver and the sending time of each heartbeat, by sequence number."""

    @property
    def until(self) -> float:
        """The monotonic time at which the lease ends, or has ended."""
        return self._until

    def is_valid(self, now: float) -> bool:
        """Whether the node may act as a leader at this time."""
        return now < self._until

    def sent(self, node_id: int, now: float) -> int:
        """Note a heartbeat to be sent. Returns its number. `now` must not be after the send."""
        self._sequence += 1
        self._sent[self._sequence] = (node_id, now)
        if len(self._sent) > HEARTBEATS_IN_FLIGHT_MAX:
            del self._sent[next(iter(self._sent))]
        return self._sequence

    def refused(self, sender: int, sequence: int) -> bool:
        """Record a rejection. Returns whether a heartbeat waited for it."""
        return self._take(sender, sequence) is not None

    def answered(self, sender: int, answer: HeartbeatAnswer) -> bool:
        """Record a response. Returns whether it counts."""
        sent_at = self._take(sender, answer.sequence)
        if sent_at is None or answer.term < self._term:
            return False
        self._term = answer.term
        if answer.fenced:
            # Other brokers may lead this node's partitions by now.
            self._until = -math.inf
        else:
            lease_s = LEASE_SHARE * answered_timeout_s(answer)
            self._until = max(self._until, sent_at - answer.confirmed_age_s + lease_s)
        return True

    def _take(self, sender: int, sequence: int) -> float | None:
        node_id, sent_at = self._sent.get(sequence, (None, 0.0))
        if node_id != sender:
            return None
        del self._sent[sequence]
        return sent_at
