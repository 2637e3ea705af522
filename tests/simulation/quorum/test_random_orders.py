"""Random orders of single messages, writes, restarts, snapshots and changes of voters.

Where the simulated world's faults follow time, here any event may come next: a member's disk lags
for any time, messages of one pair wait while all others arrive. The checker watches every event; in
the end all must agree.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from raftlog.raft import core
from raftlog.raft.membership import VoterChanges
from raftlog.record.errors import LogError
from tests.simulation.quorum.core_cluster import CoreCluster

SEEDS = range(15)
ENTRIES_PER_APPEND = 3


class Disorder:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"orders {seed}")
        voters = self.chance.choice((3, 3, 5))
        observers = self.chance.choice((0, 1, 2))
        self.all = range(1, voters + observers + 1)
        self.cores = CoreCluster(self.all[:voters], self.all[voters:])
        self.commands = 0

    def run(self) -> None:
        works: list[tuple[Callable[[], None], int]] = [
            (self.deliver, 45), (self.propose, 20), (self.campaign, 7), (self.reconnect, 5),
            (self.restart, 3), (self.stall_disk, 6), (self.sync, 3), (self.snapshot, 3),
            (self.heartbeat, 3), (self.change_voters, 5),
        ]  # fmt: skip
        kinds, weights = zip(*works, strict=True)
        for work in self.chance.choices(kinds, weights, k=self.chance.choice((60, 150, 300))):
            work()
        self.heal()

    @property
    def leaders(self) -> list[int]:
        return [node for node in self.all if self.cores[node].core.is_leader]

    def others(self, node: int) -> list[int]:
        return [other for other in self.all if other != node]

    # Events

    def deliver(self) -> None:
        for _ in range(self.chance.choice((1, 3, 8))):
            busy = [pair for pair, messages in self.cores.on_way.items() if messages]
            if busy:
                self.cores.deliver(*self.chance.choice(busy))

    def propose(self) -> None:
        for leader in self.leaders[:2]:
            self.commands += 1
            self.cores.propose(leader, b"%d" % self.commands)

    def campaign(self) -> None:
        node = self.chance.choice(self.all)
        if self.cores[node].core.is_voter:
            others = self.others(node)
            self.cores.campaign(
                node, *self.chance.sample(others, self.chance.randint(0, len(others)))
            )

    def reconnect(self) -> None:
        self.cores.reconnect(*self.chance.sample(self.all, 2))

    def restart(self) -> None:
        self.cores.restart(self.chance.choice(self.all))

    def stall_disk(self) -> None:
        node = self.chance.choice(self.all)
        self.cores[node].syncs_at_once ^= True
        self.cores.pump(node)

    def sync(self) -> None:
        node = self.chance.choice(self.all)
        if self.cores[node].log.lsn > self.cores[node].log.durable_lsn:
            self.cores.sync(node)

    def snapshot(self) -> None:
        seat = self.cores[self.chance.choice(self.all)]
        own = seat.store.snapshot
        is_new = own is None or own.index < seat.core.applied_index
        is_written = seat.log.lsn == seat.log.durable_lsn
        if is_new and is_written and seat.core.applied_index > seat.log.first_index + 2:
            self.cores.snapshot(seat.node_id)

    def heartbeat(self) -> None:
        for leader in self.leaders[:1]:
            self.cores.heartbeat(leader)
            self.cores.serve_snapshots(leader)

    def change_voters(self) -> None:
        for leader in self.leaders[:1]:
            seat, node = self.cores[leader], self.chance.choice(self.all)
            changes = VoterChanges(
                seat.core,
                seat.clock,  # type: ignore[arg-type]
                lambda _node_id: None,
                lambda: None,
            )
            try:
                changes._check_may_change()
            except LogError:
                return
            voters = seat.log.voters.ids
            if node != leader:
                self.cores.append_voters(leader, *sorted(voters ^ {node}))

    # The end

    def heal(self) -> None:
        for node in self.all:
            self.cores[node].syncs_at_once = True
            self.cores.pump(node)
        for node in self.all:
            for other in self.all:
                if node < other:
                    self.cores.reconnect(node, other)
        self.cores.exchange()
        for attempt in range(4 * len(self.all)):
            if self.leaders and self.agree(max(self.leaders, key=self.term)):
                self.cores.checker.check_outcomes()
                return
            node = self.all[attempt % len(self.all)]
            if not self.leaders and self.cores[node].core.is_voter:
                self.cores.campaign(node, *self.others(node))
                self.cores.exchange()
        raise AssertionError("no progress after healing")

    def term(self, node: int) -> int:
        return int(self.cores[node].core.term)

    def agree(self, leader: int) -> bool:
        self.propose()
        for _ in range(4):
            self.cores.exchange()
            if not self.cores[leader].core.is_leader:
                return False
            self.cores.heartbeat(leader)
            self.cores.serve_snapshots(leader)
        return len({seat.ledger.digest for seat in self.cores.seats.values()}) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_members_agree_after_any_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(core, "ENTRIES_PER_APPEND_MAX", ENTRIES_PER_APPEND)
    Disorder(seed).run()
