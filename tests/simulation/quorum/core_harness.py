"""One member of a `CoreCluster`: core, log, outbox and disk, nothing around these."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from raftlog.raft.core import RaftCore
from raftlog.raft.log.journal import PendingRecord
from raftlog.raft.log.log import REGULAR, RaftLog
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.messages import Message
from raftlog.raft.outbox import Outbox
from raftlog.raft.rules import Timing
from tests.simulation.disk import SimulatedDisk
from tests.simulation.quorum.recording_state_machine import RecordingStateMachine
from tests.simulation.world import SeededRandomness

if TYPE_CHECKING:
    from tests.simulation.quorum.core_cluster import CoreCluster

DIRECTORY = "metadata"
TIMING = Timing()


class HandClock:
    """Stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class CoreHarness:
    """One member, without event loop and network: the owner of a core."""

    def __init__(self, cores: CoreCluster, node_id: int) -> None:
        self.cores = cores
        self.node_id = node_id
        self.clock = HandClock()
        self.disk = SimulatedDisk(node_id)
        self.syncs_at_once = True
        self.waiting: dict[tuple[int, int], bytes] = {}
        """Index and term to the command of a waiting client."""
        self.wanted: set[int] = set()
        """Peers in need of the snapshot."""
        self.connected: set[int] = set()
        self.open()

    def open(self) -> None:
        """Begin a life with the content of the disk."""
        self.store = QuorumStore(self.disk, DIRECTORY)
        self.log = RaftLog(self.store.load(self.cores.voters))
        self.ledger = RecordingStateMachine(self.cores.checker.was_applied)
        applied_index = self.log.first_index
        restored = self.store.read_snapshot()
        if restored is not None:
            meta, pieces = restored
            self.ledger.restore(meta.index, pieces)()
            applied_index = meta.index
        self.outbox = Outbox(self.log, self._transmit)
        self._writing: tuple[list[PendingRecord], int] | None = None
        self.core = RaftCore(
            self.node_id,
            self.log,
            applied_index,
            send=self.send_message,
            apply=self.apply,
            snapshot_wanted=self.snapshot_wanted,
            clock=self.clock,  # type: ignore[arg-type]
            randomness=SeededRandomness(random.Random(self.node_id)),
            timing=TIMING,
        )
        self.disable_election()

    def disable_election(self) -> None:
        self.core.election_deadline = math.inf

    # Callbacks of the core

    def send_message(self, peer: int, message: Message) -> None:
        self.outbox.send(peer, message)

    def apply(self, index: int, term: int, command: bytes) -> None:
        if command[0] == REGULAR:
            self.ledger.apply(index, command[1:])
            mine = self.waiting.pop((index, term), None)
            if mine is not None:
                self.cores.checker.was_acknowledged(mine, index)

    def snapshot_wanted(self, peer: int) -> None:
        self.wanted.add(peer)

    # The disk

    def begin_write(self) -> None:
        """Hand the pending records to the disk; durable only after `end_write`."""
        self._writing = self.log.take_pending()

    def end_write(self) -> None:
        assert self._writing is not None
        records, lsn = self._writing
        self.store.write(records)
        self.log.written(lsn)
        self._writing = None

    def sync(self) -> None:
        """Make the log durable."""
        if self.log.rewrite_due:
            content, lsn = self.log.content()
            self.store.rewrite(content)
            self.log.written(lsn)
        else:
            self.begin_write()
            self.end_write()

    def _transmit(self, peer: int, message: Message) -> None:
        self.cores.checker.sent(self.node_id, peer, message)
        self.cores.sent += 1
        self.cores.on_way[self.node_id, peer].append(message)
