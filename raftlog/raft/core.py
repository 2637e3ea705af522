"""The decisions of one Raft member: pysyncobj's kernel with its unsafe parts replaced.

The kernel keeps terms and votes, elections, the commit index, comparing and adding entries, and
stepping down without a majority. The core has the log (`RaftLog`), messages and their guards, the
pre-vote before an election, when and which entries leave for each peer, applying, snapshots, and
the set of voters.

The core is plain synchronous code. Messages and ticks come in. Messages, applied entries and
requests for snapshots go out by the owner's callbacks. Nothing here waits, reads the system clock,
or touches the disk. Each message rests on the log as of the call of `send`, and may leave the node
only once the log is durable up to there (the owner's duty). So "in the log" means "durable"
wherever another node is concerned. A leader counts itself only for entries durable here, and no
member applies others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from raftlog.raft.kernel import PySyncObjKernel
from raftlog.raft.log.journal import LogEntry
from raftlog.raft.log.log import RaftLog
from raftlog.raft.messages import (
    APPEND_BYTES_MAX,
    ENTRIES_PER_APPEND_MAX,
    Append,
    AppendAnswer,
    Message,
    PreVote,
    PreVoteGranted,
    RequestVote,
    TimeoutNow,
    Vote,
)
from raftlog.raft.rules import (
    Confirmations,
    Guards,
    PreVoteRounds,
    Timing,
    after_death_s,
    would_vote,
)
from raftlog.world import Clock, Randomness

APPLIES_PER_TICK_MAX: Final = 64
"""Entries applied before other tasks of the event loop get their turn. For a topic of 10,000
partitions that is 20 ms, as each change copies the tuple of its rows."""
APPLIED_BYTES_PER_TICK_MAX: Final = 32 * 1024
"""Bytes of commands after which a tick applies no further entry. One command may change a thousand
partitions."""
ENTRIES_IN_FLIGHT_MAX: Final = 16_384
"""Entries sent to a peer without a response yet. At this bound, only heartbeats follow."""


class UnknownEntryError(Exception):
    """The log holds an entry of a kind unknown to this version. The node must stop."""


class RaftCore(PySyncObjKernel):
    """One member. `receive`, `tick` and the rest are for one owner, on one event loop.

    The owner's callbacks must not call back into the core.

    - `send` sends a message to a peer once everything in the log is durable, and drops it if the
      connection ends before that.
    - `apply` applies a committed entry, given its index, its term, its kind's byte and its command.
    - `snapshot_wanted` names a peer that needs the snapshot for its next entry, at each heartbeat
      while the need lasts.
    """

    def __init__(
        self,
        me: int,
        log: RaftLog,
        applied_index: int,
        *,
        send: Callable[[int, Message], None],
        apply: Callable[[int, int, bytes], None],
        snapshot_wanted: Callable[[int], None],
        clock: Clock,
        randomness: Randomness,
        timing: Timing,
    ) -> None:
        super().__init__(me, log, applied_index, clock=clock, randomness=randomness, timing=timing)
        self.elections = 0
        """Elections started by this member since it was made."""
        self._send = send
        self._apply = apply
        self._snapshot_wanted = snapshot_wanted
        self._guards = Guards()
        self._connected: set[int] = set()
        self._answering = 0
        self._sequence = 0
        self._confirmations = Confirmations()
        self._announced = (0, 0)
        self._leader_heard_at = -math.inf
        self._prevotes = PreVoteRounds(timing.election_min_s / 2)
        log.on_voters_changed(self.refresh_members)
        self.refresh_members()
        if self.log.voters.ids == {self.me}:
            # All durable entries are on the only voter, so they are committed. The voter need not
            # win an election first, which takes room on the disk.
            self._set_commit_index(log.last_index)
            self.election_deadline = -math.inf

    # State

    @property
    def is_active(self) -> bool:
        """Whether this member, as the leader, has applied an entry of its current term."""
        return self.is_leader and self.log.term_at(self.applied_index) == self.term

    @property
    def is_voter(self) -> bool:
        """Whether the newest voter set in the log has this member."""
        return self.me in self.log.voters.ids

    def match_index(self, peer: int) -> int | None:
        """Index up to which a peer's log is known to match. Only for the leader.

        None for an unknown node.
        """
        return self._match_index(peer) if self.is_leader else None

    def confirmed_age_s(self, peer: int) -> float:
        """Upper bound on how long a voter may have followed another leader. inf when unknown."""
        return self._confirmations.age_s(peer, self._clock.monotonic())

    def heard_ago_s(self, peer: int) -> float | None:
        """Seconds since a peer's last response. Only for the leader."""
        at = self._response_time(peer)
        return None if at is None or not self.is_leader else self._clock.monotonic() - at

    def is_fresh(self, node_id: int) -> bool:
        """Whether a member responded within the fallback time.

        Only for the leader, which is always fresh.
        """
        if node_id == self.me:
            return True
        ago_s = self.heard_ago_s(node_id)
        return ago_s is not None and node_id in self._connected and ago_s < self._timing.fallback_s

    def is_connected(self, peer: int) -> bool:
        """Whether there is a connection to a peer."""
        return peer in self._connected

    def is_isolated(self, seconds: float) -> bool:
        """Whether neither a leader nor, as the leader, a majority was heard for `seconds`."""
        if self.is_leader:
            return not self.has_majority()
        return self._clock.monotonic() - self._leader_heard_at > seconds

    def has_majority(self) -> bool:
        """Whether a majority responded to this leader within the fallback time."""
        voters = self.log.voters
        return self.is_leader and sum(map(self.is_fresh, voters.ids)) >= voters.majority

    def is_confirmed(self, after: int) -> bool:
        """Whether a majority responded to appends that this leader sent after append `after`."""
        return self._confirmations.by_majority(self.log.voters, self.me, after)

    def covers(self, index: int, term: int) -> int | None:
        """The index up to which this log covers a snapshot of that entry, or None.

        Not None only if all entries of the snapshot are here already.
        """
        if index < self.log.first_index:
            return self.log.first_index
        if index <= self.log.last_index and self.log.term_at(index) == term:
            return index
        return None

    def needs_snapshot(self, peer: int) -> bool:
        """Whether a peer's next entry is only in this leader's snapshot."""
        next_index = self._next_index(peer)
        return self.is_leader and next_index is not None and next_index <= self.log.first_index

    # Input from the owner

    def append(self, kind: int, command: bytes) -> tuple[int, int]:
        """Add an entry to the leader's log and return its index and term. `tick` sends it."""
        assert self.is_leader
        index, term = self.log.last_index + 1, self.term
        self.log.add(bytes((kind,)) + command, index, term)
        return index, term

    def send_round(self) -> int:
        """Append to all peers at once and return the last append's number before these."""
        before = self._sequence
        with self._scope:
            self._send_appends()
        return before

    def apply_durable(self) -> bool:
        """Apply some of the committed and durable entries. Return whether there are more."""
        self._apply_entries()
        return self.applied_index < min(self.commit_index, self.log.durable_index)

    def peer_up(self, peer: int) -> None:
        """Take note of a new connection to a peer."""
        with self._scope:
            self._connected.add(peer)
            self.refresh_members()
            if self.is_leader:
                # Appends in flight on the old connection are lost. Acknowledged entries are there.
                match_index = self._match_index(peer)
                if match_index:
                    self._set_next_index(peer, match_index + 1)
                self._replicate(peer)

    def peer_down(self, peer: int) -> None:
        """Take note of the end of the connection to a peer."""
        with self._scope:
            self._connected.discard(peer)
            self._guards.forget(peer)
            self._confirmations.forget(peer)
            self.refresh_members()

    def peer_dead(self, peer: int) -> None:
        """Take note of the death of a peer's process. If it led, campaign without a timeout."""
        with self._scope:
            if self.leader_id == peer and not self.is_leader:
                self._forget_leader()
                self._leader_heard_at = -math.inf
                wait_s = after_death_s(self._place_after(peer)[0])
                self.election_deadline = self._clock.monotonic() + wait_s

    def receive(self, peer: int, message: Message) -> None:
        """Handle a Raft message from a connected peer."""
        if peer not in self._connected:
            return
        with self._scope:
            match message:
                case RequestVote():
                    self._on_request_vote(peer, message)
                case Vote():
                    self._on_vote(peer, message)
                case PreVote():
                    self._on_pre_vote(peer, message)
                case PreVoteGranted():
                    if not self._adopt_term(message.term):
                        self._prevotes.granted(peer, message.round)
                case Append():
                    self._on_append(peer, message)
                case AppendAnswer():
                    self._on_append_answer(peer, message)
                case TimeoutNow():
                    if self.is_voter:
                        self._deliver_timeout_now(peer, message.term)
                case _:
                    raise AssertionError(f"not for the core: {message}")

    def hear_term(self, term: int) -> bool:
        """Leave the present term for a higher one (Raft's rule for all servers).

        Returns whether the term is higher. For messages outside of `receive`.
        """
        with self._scope:
            return self._adopt_term(term)

    def heard_leader(self, peer: int, term: int) -> bool:
        """Handle a leader's message outside of `receive` (a snapshot chunk). False if it is stale.

        Such a message compares no entries, and so it moves no commit index.
        """
        if term < self.term:
            return False
        with self._scope:
            self._leader_heard_at = self._clock.monotonic()
            self._prevotes.end()
            self._deliver_heartbeat(peer, term)
        return True

    def heard_follower(self, peer: int, term: int) -> bool:
        """Handle a follower's message outside of `receive`.

        False if this member does not lead `term`.
        """
        with self._scope:
            if self._adopt_term(term) or not self.is_leader or term != self.term:
                return False
            if self._match_index(peer) is None:
                return False
            self._set_response_time(peer, self._clock.monotonic())
            return True

    def answer_covered(self, peer: int, index: int) -> None:
        """Acknowledge to the leader that everything up to `index` is here."""
        answer = AppendAnswer(
            term=self.term, next_index=index + 1, success=True, reset=False, sequence=0
        )
        self._send(peer, answer)

    def installed(self, index: int) -> None:
        """Continue from a snapshot of everything up to `index`, to which the log was reset."""
        assert self.applied_index <= index == max(index, self.log.first_index)
        self._set_applied_index(index)
        self._set_commit_index(max(self.commit_index, index))

    def transfer_to(self, peer: int) -> bool:
        """Transfer leadership to a peer that has every entry. False if it lacks some."""
        if not self.is_leader or self.match_index(peer) != self.log.last_index:
            return False
        if peer not in self._connected or peer not in self.log.voters.ids:
            return False
        self._send(peer, TimeoutNow(self.term))
        return True

    def refresh_members(self) -> None:
        """Give the kernel the newest voters and the connected peers."""
        self._set_peers(self.log.voters.ids, self._connected)

    # Messages from peers

    def _on_request_vote(self, peer: int, message: RequestVote) -> None:
        if message.term < self.term:
            # A candidate that cannot win should know the reason. Raft's responses to votes carry
            # terms also.
            self._send(
                peer,
                AppendAnswer(term=self.term, next_index=0, success=False, reset=False, sequence=0),
            )
            return
        self._deliver_request_vote(peer, message)

    def _on_vote(self, peer: int, message: Vote) -> None:
        if peer in self.log.voters.ids and self._guards.counts_vote(message.term, peer):
            self._deliver_vote(peer, message.term)

    def _on_pre_vote(self, peer: int, message: PreVote) -> None:
        now = self._clock.monotonic()
        ago_s = now - self._leader_heard_at if self.leader_id is not None else math.inf
        if would_vote(
            candidate_log=(message.last_term, message.last_index),
            own_log=(self.log.last_term, self.log.last_index),
            leader_heard_ago_s=0.0 if self.is_leader else ago_s,
            election_min_s=self._timing.election_min_s,
        ):
            self._send(peer, PreVoteGranted(self.term, message.round))

    def _on_append(self, peer: int, message: Append) -> None:
        if message.term < self.term:
            answer = AppendAnswer(
                term=self.term, next_index=0, success=False, reset=False, sequence=message.sequence
            )
            self._send(peer, answer)
            return
        if not self._guards.entries_known(message):
            raise UnknownEntryError("The metadata log holds entries of a newer raftlog: upgrade.")
        assert not (self.is_leader and message.term == self.term), "two leaders of one term"
        self._leader_heard_at = self._clock.monotonic()
        self._prevotes.end()
        self._answering = message.sequence
        self._deliver_append(peer, message, self._guards.commit_index(message))

    def _on_append_answer(self, peer: int, message: AppendAnswer) -> None:
        if self._adopt_term(message.term) or not self._guards.answer_counts(message, self.term):
            return
        self._confirmations.answered(peer, message.sequence)
        before = self._next_index(peer)
        if not self.is_leader or before is None:
            return
        reset = message.reset and self._guards.counts_reset(peer, message, self._sequence)
        self._deliver_append_answer(peer, message, reset=reset)
        next_index = self._next_index(peer)
        assert next_index is not None
        if message.success:
            next_index = self._guards.next_index(before, next_index)
            self._set_next_index(peer, next_index)
        is_behind = next_index <= self.log.last_index
        # A snapshot is sent at the pace of its responses, and probed with each heartbeat.
        if (reset or is_behind) and not self.needs_snapshot(peer):
            self._replicate(peer)

    def _adopt_term(self, term: int) -> bool:
        """Follow in a higher term (Raft's rule for all servers). Return whether it is higher."""
        if term <= self.term:
            return False
        self._follow_in(term)
        return True

    # Messages to peers

    def _send_request_vote(self, peer: int, message: RequestVote) -> None:
        self._send(peer, message)

    def _send_vote(self, peer: int, term: int) -> None:
        self._send(peer, Vote(term))

    def _send_append_answer(
        self, peer: int, next_index: int, *, success: bool, reset: bool
    ) -> None:
        if reset and not success:
            next_index = self._guards.hint(next_index, self.log, self.commit_index)
        self._send(
            peer,
            AppendAnswer(
                term=self.term,
                next_index=next_index,
                success=success,
                reset=reset,
                sequence=self._answering,
            ),
        )

    def _send_appends(self) -> None:
        self._set_heartbeat_at(self._clock.monotonic() + self._timing.heartbeat_s)
        self._announced = (self.log.last_index, self.commit_index)
        for peer in sorted(self._connected):
            self._replicate(peer)

    def _replicate(self, peer: int) -> None:
        """Send a peer all missing entries, or a heartbeat."""
        if peer not in self._connected:
            return
        log = self.log
        next_index, match_index = self._next_index(peer), self._match_index(peer)
        assert next_index is not None and match_index is not None
        if next_index <= log.first_index:
            self._snapshot_wanted(peer)
            return
        next_index = min(next_index, log.last_index + 1)
        while True:
            room = ENTRIES_IN_FLIGHT_MAX - (next_index - 1 - max(match_index, log.first_index))
            count_max = max(0, min(room, ENTRIES_PER_APPEND_MAX))
            entries = log.entries_from(next_index, count_max=count_max, bytes_max=APPEND_BYTES_MAX)
            self._sequence += 1
            self._confirmations.sent(peer, self._sequence, self._clock.monotonic())
            self._send(
                peer,
                Append(
                    term=self.term,
                    previous_index=next_index - 1,
                    previous_term=log.term_at(next_index - 1),
                    commit_index=self.commit_index,
                    sequence=self._sequence,
                    entries=entries,
                ),
            )
            next_index += len(entries)
            self._set_next_index(peer, next_index)
            if not entries or next_index > log.last_index:
                return

    def _request_prevotes(self, others: set[int]) -> None:
        now = self._clock.monotonic()
        if self._prevotes.is_open(now):
            return
        log, number = self.log, self._prevotes.begin(now)
        for peer in sorted(others & self._connected):
            self._send(peer, PreVote(self.term, log.last_index, log.last_term, number))

    # Hooks of the kernel

    def _may_campaign(self) -> bool:
        others = self._other_voters
        if not self.is_voter:
            return False
        if others and not self._is_transfer_target and not self._prevotes.won(others):
            self._request_prevotes(others)
            return False
        self._prevotes.end()
        self.elections += 1
        return True

    def _election_timeout_s(self) -> float:
        before, others = self._place_after(self.leader_id)
        return self._timing.election_timeout_s(before, others, self._randomness.uniform(0.0, 1.0))

    def _place_after(self, leader: int | None) -> tuple[int, int]:
        """The place of this member among the voters that may replace `leader`, and their number."""
        others = self.log.voters.ids - {leader}
        return sum(voter < self.me for voter in others), len(others)

    def _entries(
        self, start: int, count: int | None = None, _bytes_max: int | None = None
    ) -> list[LogEntry]:
        """The entries from `start` on, or none if `start` is before the log.

        SyncObj reads a single entry only to commit it, and counts the leader itself. An entry that
        is not durable here does not count.
        """
        position = start - self.log.first_index
        if position < 0 or (count == 1 and start > self.log.durable_index):
            return []
        return self.log[position:] if count is None else self.log[position : position + count]

    def _apply_entries(self) -> bool:
        """Apply entries committed and durable here. Return whether there is news for peers."""
        log = self.log
        applied = self.applied_index
        end = min(self.commit_index, log.durable_index, applied + APPLIES_PER_TICK_MAX)
        applied_bytes = 0
        for index in range(applied + 1, end + 1):
            if applied_bytes >= APPLIED_BYTES_PER_TICK_MAX:
                break
            command, _, term = log.entry(index)
            applied_bytes += len(command)
            # The index moves first, since callbacks about the entry must find the entry applied.
            self._set_applied_index(index)
            self._apply(index, term, command)
        return (log.last_index, self.commit_index) != self._announced
