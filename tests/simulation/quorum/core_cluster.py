"""Raft's cores, with every message, write, tick and election timeout made by hand.

For directed traces that depend on the order of single messages. Logs, guards, outboxes and journals
are the shipped ones; there is no event loop, no member and no network. Clocks stand still unless a
test moves one, so that no member begins an election or sends a heartbeat by itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from raftlog.raft.core import RaftCore
from raftlog.raft.log.log import REGULAR, VOTERS, RaftLog
from raftlog.raft.messages import Message
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.raft.voters import Voter, VoterSet, encode_voters
from tests.simulation.quorum.checker import Checker
from tests.simulation.quorum.core_harness import TIMING, CoreHarness

ROUNDS = 6
"""Rounds of pre-votes: the first may only bring a newer term."""
TURNS_MAX = 10_000
"""Of one exchange: a defect must not make a test run for ever."""


def voter_set(*node_ids: int) -> VoterSet:
    return VoterSet(tuple(Voter(node_id, f"n{node_id}.test", 8082) for node_id in node_ids))


class Blind(Checker):
    """Checks nothing: for tests with made-up messages, of logs that no member has."""

    def recovered(self, node_id: int, log: RaftLog) -> None:
        pass

    def sent(self, node_id: int, peer: int, message: Message) -> None:
        pass

    def was_applied(self, index: int, command: bytes, state: str) -> None:
        pass

    def after_event(self, node_id: int, core: RaftCore) -> None:
        pass


class CoreCluster:
    """A few members and the messages between these."""

    def __init__(
        self,
        voters: Iterable[int],
        observers: Iterable[int] = (),
        *,
        checker: Checker | None = None,
    ) -> None:
        self.voters = voter_set(*voters)
        self.checker = checker or Checker()
        self.sent = 0
        self.delivered: list[tuple[int, int, Message]] = []
        node_ids = sorted({*self.voters.ids, *observers})
        self.on_way: dict[tuple[int, int], deque[Message]] = {
            (one, other): deque() for one in node_ids for other in node_ids if one != other
        }
        self.candidate: int | None = None
        self.seats = {node_id: CoreHarness(self, node_id) for node_id in node_ids}
        for one in node_ids:
            for other in node_ids:
                if one < other:
                    self.connect(one, other)

    def __getitem__(self, node_id: int) -> CoreHarness:
        return self.seats[node_id]

    # Connections and lives

    def connect(self, one: int, other: int) -> None:
        for me, peer in ((one, other), (other, one)):
            self[me].connected.add(peer)
            self[me].outbox.connected(peer)
            self[me].core.peer_up(peer)
        self.pump(one)
        self.pump(other)

    def disconnect(self, one: int, other: int) -> None:
        """Messages under way are lost."""
        for me, peer in ((one, other), (other, one)):
            self.on_way[me, peer].clear()
            if peer in self[me].connected:
                self[me].connected.discard(peer)
                self[me].outbox.disconnected(peer)
                self[me].core.peer_down(peer)

    def reconnect(self, one: int, other: int) -> None:
        self.disconnect(one, other)
        self.connect(one, other)

    def restart(self, node_id: int, *, connect: bool = True) -> None:
        """Cut a member's power and start the member again."""
        peers = sorted(self[node_id].connected)
        for peer in peers:
            self.disconnect(node_id, peer)
        self[node_id].disk.crash(power=True)
        self[node_id].waiting.clear()
        self[node_id].open()
        self.checker.recovered(node_id, self[node_id].log)
        for peer in peers if connect else ():
            self.connect(node_id, peer)

    def fill(self, node_id: int, terms: Iterable[int], term: int = 0) -> None:
        """Give a member's log entries of these terms, and restart the member."""
        log = self[node_id].log
        for index, entry_term in enumerate(terms, log.last_index + 1):
            log.add(bytes((REGULAR,)) + b"%d of %d" % (index, entry_term), index, entry_term)
        if term:
            log.setCurrentTerm(term, None)
        self[node_id].sync()
        self.restart(node_id)

    # Turns

    def pump(self, node_id: int) -> None:
        """A turn of a member, like RaftMember's."""
        seat = self[node_id]
        for _ in range(TURNS_MAX):
            if node_id != self.candidate:
                seat.disable_election()
            seat.core.tick()
            seat.outbox.release()
            self.checker.after_event(node_id, seat.core)
            if not seat.syncs_at_once or seat.log.lsn == seat.log.durable_lsn:
                return
            seat.sync()
        raise AssertionError("no end of it")

    def sync(self, node_id: int) -> None:
        self[node_id].sync()
        self.pump(node_id)

    def heartbeat(self, node_id: int) -> None:
        """Move a leader's clock until heartbeats leave."""
        self[node_id].clock.now += TIMING.heartbeat_s + 0.001
        self.pump(node_id)

    def take(self, source: int, target: int, message: Message) -> None:
        """Let a message arrive, from any sender."""
        self.delivered.append((source, target, message))
        self[target].core.receive(source, message)
        self.pump(target)

    def deliver(self, source: int, target: int, count: int = 1) -> list[Message]:
        """Deliver and return the first messages under way."""
        taken = [self.on_way[source, target].popleft() for _ in range(count)]
        for message in taken:
            self.take(source, target, message)
        return taken

    def drop(self, source: int, target: int) -> None:
        """Lose the messages under way."""
        self.on_way[source, target].clear()

    def isolate(self, node_id: int, *kept: tuple[int, int]) -> None:
        """Lose messages under way to and from a member, but for the `kept` directions."""
        for pair in self.on_way:
            if node_id in pair and pair not in kept:
                self.drop(*pair)

    def exchange(
        self,
        *group: int,
        without: Iterable[tuple[int, int]] = (),
        until: Callable[[], bool] = lambda: False,
    ) -> int:
        """Deliver all there is among a group until nothing is left; return how many there were."""
        members = group or tuple(self.seats)
        count, held = 0, set(without)
        pairs = [
            pair
            for pair in self.on_way
            if pair[0] in members and pair[1] in members and pair not in held
        ]
        while busy := [pair for pair in pairs if self.on_way[pair]]:
            for pair in busy:
                if until():
                    return count
                self.deliver(*pair)
                count += 1
            assert count < TURNS_MAX, "messages without end"
        return count

    # Actions of members

    def campaign(self, node_id: int, *others: int) -> None:
        """A member begins an election; `others` have heard no leader for long enough to vote.

        Its requests for votes are on their way then.
        """
        for other in others:
            self[other].clock.now += TIMING.election_min_s + 0.001
            if self[other].core.is_leader:
                # Without answers of a majority for too long, the leader steps down.
                self[other].clock.now += TIMING.fallback_s
                self.pump(other)
        seat = self[node_id]
        seat.clock.now += TIMING.election_max_s
        self.candidate = node_id
        before = seat.core.term

        def has_begun() -> bool:
            log = seat.log
            return log.getVotedForNodeId() == node_id and log.getCurrentTerm() > before

        for _ in range(ROUNDS):
            seat.clock.now += TIMING.election_min_s
            seat.core.election_deadline = -math.inf
            self.pump(node_id)
            self.exchange(node_id, *others, until=has_begun)
            if has_begun():
                break
        self.candidate = None

    def expire_election_timeout(self, node_id: int) -> None:
        """Let a member's election timeout expire once: it requests pre-votes."""
        seat = self[node_id]
        seat.clock.now += TIMING.election_max_s
        seat.core.election_deadline = -math.inf
        self.candidate = node_id
        self.pump(node_id)
        self.candidate = None

    def elect(self, node_id: int, *others: int) -> None:
        """Let a member win with the votes of `others`, and deliver all messages that follow."""
        self.campaign(node_id, *others)
        self.exchange(node_id, *others)
        assert self[node_id].core.is_leader, f"{node_id} was not elected by {others}"

    def elect_briefly(self, node_id: int, *voters: int) -> None:
        """Let a member win, and deliver nothing after that: its appends are under way."""
        self.campaign(node_id, *voters)
        for voter in voters:
            self.deliver(node_id, voter)
            self.deliver(voter, node_id)
        assert self[node_id].core.is_leader, f"{node_id} was not elected by {voters}"

    def propose(self, node_id: int, *commands: bytes) -> None:
        """Clients of the leader: each command is a turn of its own."""
        seat = self[node_id]
        for command in commands:
            seat.waiting[seat.core.append(REGULAR, command)] = command
            self.pump(node_id)

    def append_voters(self, node_id: int, *voters: int) -> None:
        """The leader appends a voter set, asking no rule."""
        self[node_id].core.append(VOTERS, encode_voters(voter_set(*voters)))
        self.pump(node_id)

    # Snapshots

    def snapshot(self, node_id: int) -> SnapshotMeta:
        """Take a snapshot of the applied entries, and drop the log up to there."""
        seat = self[node_id]
        index = seat.core.applied_index
        meta = SnapshotMeta(index, seat.log.term_at(index), seat.log.voters_at(index))
        seat.store.save_snapshot(meta, seat.ledger.snapshot()())
        seat.log.trim(index)
        seat.store.rewrite(seat.log.content()[0])
        self.checker.after_event(node_id, seat.core)
        return meta

    def install(self, source: int, target: int) -> None:
        """Put a leader's snapshot in place of the state, as SnapshotManager does in the end."""
        reader, seat = self[source].store.open_snapshot(), self[target]
        assert reader is not None
        seat.store.begin_received()
        seat.store.append_received(reader.read(0, reader.size))
        meta = seat.store.finish_received()
        found = seat.store.read_snapshot()
        assert meta is not None and found is not None
        if meta.index > seat.core.applied_index:
            seat.ledger.restore(meta.index, found[1])()
            seat.log.reset(meta.index, meta.term, meta.voters)
            seat.core.installed(meta.index)
        seat.core.answer_covered(source, meta.index)
        self.pump(target)

    def serve_snapshots(self, leader: int) -> None:
        """Give the leader's snapshot to the peers in need of one."""
        for peer in sorted(self[leader].wanted):
            self[leader].wanted.discard(peer)
            core, mine = self[peer].core, self[leader].core
            if not mine.needs_snapshot(peer) or peer not in self[leader].connected:
                continue
            meta, own = self[leader].store.snapshot, self[peer].store.snapshot
            if meta is None or not core.heard_leader(leader, mine.term):
                continue
            covered = core.covers(meta.index, meta.term)
            if covered is not None:
                core.answer_covered(leader, covered)
                self.pump(peer)
            elif own is None or own.index < meta.index:
                self.install(leader, peer)

    # State

    def commands(self, node_id: int) -> list[bytes]:
        """The regular commands in a log, in order."""
        return [command[1:] for command, _, _ in self[node_id].log[1:] if command[0] == REGULAR]

    def terms(self, node_id: int) -> list[int]:
        """The terms of a log's entries after the base."""
        return [term for _, _, term in self[node_id].log[1:]]

    def last_said(self, source: int, target: int) -> Message | None:
        """The newest message under way."""
        said = self.on_way[source, target]
        return said[-1] if said else None

    def settle(self, leader: int) -> None:
        """Let everybody talk until nothing is left to say: all must agree with the leader."""
        self.exchange()
        self.heartbeat(leader)
        self.exchange()
        digests = {seat.ledger.digest for seat in self.seats.values()}
        assert len(digests) == 1, {node: self.commands(node) for node in self.seats}
        self.checker.check_outcomes()
