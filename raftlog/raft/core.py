"""One Raft member's decisions: pysyncobj's SyncObj, with its unsafe parts replaced.

SyncObj keeps: terms and votes, elections, the commit index, comparing and adding entries, stepping
down without a majority. Ours: the log (`RaftLog`), messages and their guards, the pre-vote before
an election, when and what is sent to whom, applying, snapshots, the set of voters.

Plain synchronous code: a message or a tick in; out come calls of `CoreHost`. Nothing here waits,
reads a clock of its own, or touches the disk. What is said through `CoreHost.send_message` rests on
what is in the log by then, and may leave the node only when that is durable (the host's duty); so
"in the log" means "durable" wherever another node is concerned. A leader counts itself only for
what is durable here, and nobody applies more than that.

Methods of SyncObj are replaced on the instance (`_replace`), attributes are reached by their
mangled names; binding.py checks both.
"""

from __future__ import annotations

import math
from typing import Any, Final

from raftlog.raft.core_host import (
    CoreHost,
    Outlet,
    Timing,
    UnknownEntryError,
    after_death_s,
)
from raftlog.raft.kernel import (
    ATTRIBUTES_RELIED_ON,
    Node,
    Scoped,
    SyncObj,
    configuration,
)
from raftlog.raft.log import RaftLog
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
from raftlog.raft.rules import Confirmations, Guards, PreVoteRounds, would_vote
from raftlog.world import Clock, Randomness

__all__ = ["CoreHost", "RaftCore", "Timing", "UnknownEntryError"]

APPLIES_PER_TICK_MAX: Final = 2_000
"""Entries applied before others get their turn on the event loop."""
ENTRIES_IN_FLIGHT_MAX: Final = 16_384
"""Entries sent to a peer and not yet answered; above it, it gets heartbeats only."""


class RaftCore:
    """One member. `receive`, `tick` and the rest are for one owner, on one event loop."""

    def __init__(
        self,
        me: int,
        log: RaftLog,
        applied_index: int,
        *,
        host: CoreHost,
        clock: Clock,
        randomness: Randomness,
        timing: Timing,
    ) -> None:
        self.me = me
        self.log = log
        self.elections = 0
        """Begun by this member since it was made."""
        self._host = host
        self._clock = clock
        self._randomness = randomness
        self._timing = timing
        self._entered = Scoped(clock, randomness)
        self._guards = Guards()
        self._connected: set[int] = set()
        self._answering = 0
        self._sequence = 0
        self._confirmations = Confirmations()
        self._announced = (0, 0)
        self._leader_heard_at = -math.inf
        self._prevotes = PreVoteRounds(timing.election_min_s / 2)
        with self._entered:
            self._so: Any = SyncObj(
                Node(me), [], configuration(timing, log), nodeClass=Node, transport=Outlet(self)
            )
            missing = [name for name in ATTRIBUTES_RELIED_ON if not hasattr(self._so, name)]
            assert not missing, f"pysyncobj lacks {missing}"
            self._replace("_SyncObj__applyLogEntries", self._apply_entries)
            self._replace("_SyncObj__connectedToAnyone", self._may_campaign)
            self._replace("_SyncObj__generateRaftTimeout", self._patience_s)
            self._replace("_SyncObj__getEntries", self._entries)
            self._replace("_SyncObj__sendAppendEntries", self._send_appends)
            self._replace("_SyncObj__tryLogCompaction", _nothing)
            self._replace("_checkCommandsToApply", _nothing)
            self._so._SyncObj__needLoadDumpFile = False
            self._so._SyncObj__raftLastApplied = applied_index
            self._so._SyncObj__raftCommitIndex = applied_index
            log.setRaftCommitIndex(applied_index)
        log.on_voters_changed = self.refresh_members
        self.refresh_members()
        if self.log.voters.ids == {self.me}:
            # All that is durable is on the one voter there is: committed. It need not win an
            # election first, which takes room on the disk.
            self._set_commit_index(log.last_index)
            self._so._SyncObj__raftElectionDeadline = -math.inf

    # State

    @property
    def term(self) -> int:
        """The newest term this member knows."""
        return int(self._so._SyncObj__raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        """The newest entry known to be committed."""
        return int(self._so._SyncObj__raftCommitIndex)

    @property
    def applied_index(self) -> int:
        """The newest entry applied."""
        return int(self._so._SyncObj__raftLastApplied)

    @property
    def is_leader(self) -> bool:
        """Whether this member takes itself for the leader."""
        return bool(self._so._isLeader())

    @property
    def is_active(self) -> bool:
        """Whether it has, as the leader, applied an entry of its own term."""
        return self.is_leader and self.log.term_at(self.applied_index) == self.term

    @property
    def leader_id(self) -> int | None:
        """Whom this member takes for the leader of its term."""
        leader = self._so._SyncObj__raftLeader
        return None if leader is None else int(leader.id)

    @property
    def is_voter(self) -> bool:
        """Whether the newest voter set in the log has this member."""
        return self.me in self.log.voters.ids

    def match_index(self, peer: int) -> int | None:
        """As the leader: up to where a peer's log is known to match; None for a stranger."""
        return self._so._SyncObj__raftMatchIndex.get(Node(peer)) if self.is_leader else None

    def confirmed_age_s(self, peer: int) -> float:
        """For how long, at most, a voter can have followed another leader; inf if nobody knows."""
        return self._confirmations.age_s(peer, self._clock.monotonic())

    def heard_ago_s(self, peer: int) -> float | None:
        """As the leader: how long ago a peer answered."""
        at = self._so._SyncObj__lastResponseTime.get(Node(peer))
        return None if at is None or not self.is_leader else self._clock.monotonic() - at

    def is_fresh(self, node_id: int) -> bool:
        """As the leader: whether a member has answered of late; it does itself."""
        if node_id == self.me:
            return True
        ago_s = self.heard_ago_s(node_id)
        return ago_s is not None and node_id in self._connected and ago_s < self._timing.fallback_s

    def is_connected(self, peer: int) -> bool:
        """Whether what is said to a peer has a way to it."""
        return peer in self._connected

    def is_isolated(self, seconds: float) -> bool:
        """Whether neither a leader nor, as the leader, a majority was heard for so long."""
        if self.is_leader:
            return not self.has_majority()
        return self._clock.monotonic() - self._leader_heard_at > seconds

    def has_majority(self) -> bool:
        """As the leader: whether a majority has answered of late."""
        voters = self.log.voters
        return self.is_leader and sum(map(self.is_fresh, voters.ids)) >= voters.majority

    def is_confirmed(self, after: int) -> bool:
        """As the leader: whether a majority has answered appends that were sent after that one."""
        return self._confirmations.by_majority(self.log.voters, self.me, after)

    # What happens

    def tick(self) -> None:
        """Let time pass: elections, commitment, applying, heartbeats."""
        with self._entered:
            self._so.doTick(0)

    def append(self, kind: int, command: bytes) -> tuple[int, int]:
        """As the leader, add an entry; return its index and term. `tick` sends it."""
        assert self.is_leader
        index, term = self.log.last_index + 1, self.term
        self.log.add(bytes((kind,)) + command, index, term)
        return index, term

    def send_round(self) -> int:
        """As the leader, append to all at once; the number of the last append before these."""
        before = self._sequence
        with self._entered:
            self._send_appends()
        return before

    def apply_durable(self) -> bool:
        """Apply some of what is committed and durable; whether there is more."""
        self._apply_entries()
        return self.applied_index < min(self.commit_index, self.log.durable_index)

    def peer_up(self, peer: int) -> None:
        """A connection to a peer has been opened."""
        with self._entered:
            self._connected.add(peer)
            self.refresh_members()
            node = Node(peer)
            if self.is_leader:
                # What was under way on the old connection is lost; what was answered is there.
                match = self._so._SyncObj__raftMatchIndex[node]
                if match:
                    self._so._SyncObj__raftNextIndex[node] = match + 1
                self._replicate(peer)

    def peer_down(self, peer: int) -> None:
        """The connection to a peer has ended."""
        with self._entered:
            self._connected.discard(peer)
            self._guards.forget(peer)
            self._confirmations.forget(peer)
            self.refresh_members()

    def peer_dead(self, peer: int) -> None:
        """A peer's process is known to be gone: if it led, nobody need wait for it any longer."""
        with self._entered:
            if self.leader_id == peer and not self.is_leader:
                self._so._SyncObj__raftLeader = None
                self._leader_heard_at = -math.inf
                wait_s = after_death_s(self._place_after(peer)[0])
                self._so._SyncObj__raftElectionDeadline = self._clock.monotonic() + wait_s

    def receive(self, peer: int, message: Message) -> None:
        """Take a message of Raft's from a connected peer."""
        if peer not in self._connected:
            return
        with self._entered:
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
                    self._on_timeout_now(peer, message)
                case _:
                    raise AssertionError(f"not for the core: {message}")

    def hear_term(self, term: int) -> bool:
        """Raft's rule for all servers: whoever hears of a higher term leaves the lower one.

        Returns whether it did. For what `receive` does not look at itself.
        """
        with self._entered:
            return self._adopt_term(term)

    def heard_leader(self, peer: int, term: int) -> bool:
        """A leader's message outside of `receive` (a part of a snapshot); False if it is stale.

        It says nothing of this member's log, so that it moves no commit index.
        """
        if term < self.term:
            return False
        with self._entered:
            self._leader_heard_at = self._clock.monotonic()
            self._prevotes.end()
            self._deliver(peer, {"type": "append_entries", "term": term, "commit_index": 0})
        return True

    def heard_follower(self, peer: int, term: int) -> bool:
        """A follower's word outside of `receive`; False unless this member leads its term."""
        with self._entered:
            if self._adopt_term(term) or not self.is_leader or term != self.term:
                return False
            node = Node(peer)
            if node not in self._so._SyncObj__raftMatchIndex:
                return False
            self._so._SyncObj__lastResponseTime[node] = self._clock.monotonic()
            return True

    def covers(self, index: int, term: int) -> int | None:
        """Up to where this log matches a snapshot of that entry, if all of it is here already."""
        if index < self.log.first_index:
            return self.log.first_index
        if index <= self.log.last_index and self.log.term_at(index) == term:
            return index
        return None

    def answer_covered(self, peer: int, index: int) -> None:
        """Tell the leader that everything up to `index` is here."""
        answer = AppendAnswer(self.term, index + 1, True, False, 0)
        self._host.send_message(peer, answer)

    def installed(self, index: int) -> None:
        """The log was reset to a snapshot of everything up to `index`, and the state is that."""
        assert self.applied_index <= index == max(index, self.log.first_index)
        self._so._SyncObj__raftLastApplied = index
        self._set_commit_index(max(self.commit_index, index))

    def needs_snapshot(self, peer: int) -> bool:
        """As the leader: whether a peer's next entry is only in the snapshot."""
        next_index = self._so._SyncObj__raftNextIndex.get(Node(peer))
        return self.is_leader and next_index is not None and next_index <= self.log.first_index

    def transfer_to(self, peer: int) -> bool:
        """As the leader, hand over to a peer that has everything; False if it has not."""
        if not self.is_leader or self.match_index(peer) != self.log.last_index:
            return False
        if peer not in self._connected or peer not in self.log.voters.ids:
            return False
        self._host.send_message(peer, TimeoutNow(self.term))
        return True

    def refresh_members(self) -> None:
        """Bring SyncObj's sets of nodes in step with the newest voters and the connections."""
        so = self._so
        others = {Node(peer) for peer in self.log.voters.ids if peer != self.me}
        connected = {Node(peer) for peer in self._connected}
        so._SyncObj__otherNodes = others
        so._SyncObj__readonlyNodes = connected - others
        so._SyncObj__connectedNodes = connected
        followed = others | connected
        for table in (
            so._SyncObj__raftNextIndex,
            so._SyncObj__raftMatchIndex,
            so._SyncObj__lastResponseTime,
        ):
            for node in [node for node in table if node not in followed]:
                del table[node]
        now = self._clock.monotonic()
        for node in followed:
            so._SyncObj__raftNextIndex.setdefault(node, self.log.last_index + 1)
            so._SyncObj__raftMatchIndex.setdefault(node, 0)
            so._SyncObj__lastResponseTime.setdefault(node, now)

    # Incoming

    def _on_request_vote(self, peer: int, message: RequestVote) -> None:
        if message.term < self.term:
            # A candidate that cannot win should know why; Raft's answers to votes carry terms too.
            self._host.send_message(peer, AppendAnswer(self.term, 0, False, False, 0))
            return
        self._deliver(
            peer,
            {
                "type": "request_vote",
                "term": message.term,
                "last_log_index": message.last_index,
                "last_log_term": message.last_term,
            },
        )

    def _on_vote(self, peer: int, message: Vote) -> None:
        if peer in self.log.voters.ids and self._guards.counts_vote(message.term, peer):
            self._deliver(peer, {"type": "response_vote", "term": message.term})

    def _on_pre_vote(self, peer: int, message: PreVote) -> None:
        now = self._clock.monotonic()
        has_leader = self._so._SyncObj__raftLeader is not None
        ago_s = now - self._leader_heard_at if has_leader else math.inf
        if would_vote(
            candidate_log=(message.last_term, message.last_index),
            own_log=(self.log.last_term, self.log.last_index),
            leader_heard_ago_s=0.0 if self.is_leader else ago_s,
            election_min_s=self._timing.election_min_s,
        ):
            self._host.send_message(peer, PreVoteGranted(self.term, message.round))

    def _on_append(self, peer: int, message: Append) -> None:
        if message.term < self.term:
            answer = AppendAnswer(self.term, 0, False, False, message.sequence)
            self._host.send_message(peer, answer)
            return
        if not self._guards.entries_known(message):
            raise UnknownEntryError("The metadata log holds entries of a newer raftlog: upgrade.")
        assert not (self.is_leader and message.term == self.term), "two leaders of one term"
        self._leader_heard_at = self._clock.monotonic()
        self._prevotes.end()
        self._answering = message.sequence
        first = message.previous_index + 1
        self._deliver(
            peer,
            {
                "type": "append_entries",
                "term": message.term,
                "commit_index": self._guards.commit_index(message),
                "prevLogIdx": message.previous_index,
                "prevLogTerm": message.previous_term,
                "entries": [
                    (command, first + position, term)
                    for position, (term, command) in enumerate(message.entries)
                ],
            },
        )

    def _on_append_answer(self, peer: int, message: AppendAnswer) -> None:
        if self._adopt_term(message.term) or not self._guards.answer_counts(message, self.term):
            return
        self._confirmations.answered(peer, message.sequence)
        so, node = self._so, Node(peer)
        if not self.is_leader or node not in so._SyncObj__raftMatchIndex:
            return
        reset = message.reset and self._guards.counts_reset(peer, message, self._sequence)
        before = so._SyncObj__raftNextIndex[node]
        self._deliver(
            peer,
            {
                "type": "next_node_idx",
                "next_node_idx": message.next_index,
                "reset": reset,
                "success": message.success,
            },
        )
        if message.success:
            after = so._SyncObj__raftNextIndex[node]
            so._SyncObj__raftNextIndex[node] = self._guards.next_index(before, after)
        is_behind = so._SyncObj__raftNextIndex[node] <= self.log.last_index
        # A snapshot is sent at the pace of its own answers, and asked after with each heartbeat.
        if (reset or is_behind) and not self.needs_snapshot(peer):
            self._replicate(peer)

    def _on_timeout_now(self, peer: int, message: TimeoutNow) -> None:
        if self.is_voter:
            self._deliver(peer, {"type": "timeout_now", "term": message.term})

    def _adopt_term(self, term: int) -> bool:
        """Raft's rule for all servers: whoever hears of a higher term follows in it."""
        if term <= self.term:
            return False
        so = self._so
        so._SyncObj__setCurrentTerm(term, None)
        so._SyncObj__setState(0)
        so._SyncObj__raftLeader = None
        so._SyncObj__transferInProgress = False
        return True

    def _deliver(self, peer: int, message: dict[str, Any]) -> None:
        self._so._SyncObj__onMessageReceived(Node(peer), message)

    # Outgoing

    def say(self, peer: int, message: dict[str, Any]) -> None:
        """Send what SyncObj says."""
        match message["type"]:
            case "request_vote":
                index, term = message["last_log_index"], message["last_log_term"]
                self._host.send_message(peer, RequestVote(message["term"], index, term))
            case "response_vote":
                self._host.send_message(peer, Vote(message["term"]))
            case "next_node_idx":
                success, reset = message["success"], message["reset"]
                next_index = message["next_node_idx"]
                if reset and not success:
                    next_index = self._guards.hint(next_index, self.log, self.commit_index)
                answer = AppendAnswer(self.term, next_index, success, reset, self._answering)
                self._host.send_message(peer, answer)
            case kind:
                raise AssertionError(f"pysyncobj sends {kind}")

    def _send_appends(self) -> None:
        now = self._clock.monotonic()
        self._so._SyncObj__newAppendEntriesTime = now + self._timing.heartbeat_s
        self._announced = (self.log.last_index, self.commit_index)
        for peer in sorted(self._connected):
            self._replicate(peer)

    def _replicate(self, peer: int) -> None:
        """Send a peer all that it lacks, or a heartbeat."""
        if peer not in self._connected:
            return
        node, log = Node(peer), self.log
        next_index = self._so._SyncObj__raftNextIndex[node]
        match_index = self._so._SyncObj__raftMatchIndex[node]
        if next_index <= log.first_index:
            self._host.snapshot_wanted(peer)
            return
        next_index = min(next_index, log.last_index + 1)
        while True:
            room = ENTRIES_IN_FLIGHT_MAX - (next_index - 1 - max(match_index, log.first_index))
            count_max = max(0, min(room, ENTRIES_PER_APPEND_MAX))
            entries = log.entries_from(next_index, count_max=count_max, bytes_max=APPEND_BYTES_MAX)
            self._sequence += 1
            self._confirmations.sent(peer, self._sequence, self._clock.monotonic())
            self._host.send_message(
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
            self._so._SyncObj__raftNextIndex[node] = next_index
            if not entries or next_index > log.last_index:
                return

    # In place of SyncObj's methods

    def _may_campaign(self) -> bool:
        """Whether to begin an election: asked when a leader's silence has lasted too long."""
        others = {node.id for node in self._so._SyncObj__otherNodes}
        if not self.is_voter:
            return False
        if others and not self._so._SyncObj__transferInProgress and not self._prevotes.won(others):
            self._ask_for_prevotes(others)
            return False
        self._prevotes.end()
        self.elections += 1
        return True

    def _patience_s(self) -> float:
        """For how long to wait for a word from now on before an election is begun."""
        before, others = self._place_after(self.leader_id)
        return self._timing.patience_s(before, others, self._randomness.uniform(0.0, 1.0))

    def _place_after(self, leader: int | None) -> tuple[int, int]:
        """How many voters go before this member where that leader is to be replaced, and of how
        many voters it is one."""
        others = self.log.voters.ids - {leader}
        return sum(voter < self.me for voter in others), len(others)

    def _ask_for_prevotes(self, others: set[int]) -> None:
        now = self._clock.monotonic()
        if self._prevotes.is_open(now):
            return
        log, number = self.log, self._prevotes.begin(now)
        for peer in sorted(others & self._connected):
            question = PreVote(self.term, log.last_index, log.last_term, number)
            self._host.send_message(peer, question)

    def _entries(
        self, start: int, count: int | None = None, _bytes_max: int | None = None
    ) -> list[tuple[bytes, int, int]]:
        """Entries from `start` on; none if that is before the log.

        SyncObj looks at a single entry only to commit it, counting the leader itself: what is not
        durable here does not count.
        """
        position = start - self.log.first_index
        if position < 0 or (count == 1 and start > self.log.durable_index):
            return []
        return self.log[position:] if count is None else self.log[position : position + count]

    def _apply_entries(self) -> bool:
        """Apply what is committed and durable here; return whether there is news for others."""
        so, log = self._so, self.log
        applied = self.applied_index
        end = min(self.commit_index, log.durable_index, applied + APPLIES_PER_TICK_MAX)
        for index in range(applied + 1, end + 1):
            command, _, term = log.entry(index)
            # Moved first: what is told of the entry must find it applied.
            so._SyncObj__raftLastApplied = index
            self._host.apply(index, term, command)
        return (log.last_index, self.commit_index) != self._announced

    def _set_commit_index(self, index: int) -> None:
        self._so._SyncObj__raftCommitIndex = index
        self.log.setRaftCommitIndex(index)

    def _replace(self, name: str, method: Any) -> None:
        setattr(self._so, name, method)


def _nothing(*_arguments: Any) -> None:
    """In place of what SyncObj would do in a way of its own."""
