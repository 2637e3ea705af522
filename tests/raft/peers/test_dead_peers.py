from __future__ import annotations

import asyncio

from raftlog.peer.channel import PEERS_MAX, Session
from raftlog.peer.tasks import TaskGroup
from raftlog.raft.peers.dead_peers import DeadPeerProbe
from raftlog.world.network import Acceptor, Opened
from tests.simulation.clock import ManualClock


class Scripted:
    """A network, and an owner of losses; the peer begins to refuse at a certain time."""

    def __init__(self, refuses_at_s: float) -> None:
        self.clock = ManualClock()
        self.start_s = self.clock.monotonic()
        self.refuses_at_s = refuses_at_s
        self.probes_s: list[float] = []
        self.dead: list[int] = []
        self.fatal: list[str] = []
        self.tasks = TaskGroup(self.fatal.append)
        self.losses = DeadPeerProbe[Lost](self, self.clock, self.tasks, self.dead.append)

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        now_s = self.clock.monotonic() - self.start_s
        self.probes_s.append(now_s)
        await asyncio.sleep(0)
        return now_s >= self.refuses_at_s

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        raise AssertionError

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        raise AssertionError

    async def done(self) -> None:
        await self.tasks.wait()
        assert self.fatal == []


class Lost(Session):
    def received(self, message: bytes) -> None:
        raise AssertionError

    def on_ended(self, reason: str) -> None:
        raise AssertionError


async def test_a_listener_that_outlives_its_connections_a_little_is_found_dead_soon() -> None:
    for late_ms in range(25):
        scripted = Scripted(refuses_at_s=late_ms / 1000)
        scripted.losses.add(Lost(2))
        scripted.losses.start_probe(2, "a:1")
        await scripted.done()
        assert scripted.dead == [2]
        assert scripted.probes_s[-1] < 0.05


async def test_a_process_that_lives_is_asked_a_few_times_and_then_left_alone() -> None:
    scripted = Scripted(refuses_at_s=10.0)
    scripted.losses.add(Lost(2))
    scripted.losses.start_probe(2, "a:1")
    await scripted.done()
    assert scripted.dead == []
    assert 5 <= len(scripted.probes_s) <= 10
    assert 0.25 < scripted.probes_s[-1] < 0.5
    # And again, when there is reason to.
    scripted.losses.start_probe(2, "a:1")
    await scripted.done()


async def test_a_peer_that_was_never_connected_is_not_asked() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    scripted.losses.start_probe(2, "a:1")
    assert not len(scripted.tasks)


async def test_a_probe_ends_when_a_connection_opens() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    scripted.losses.add(Lost(2))
    scripted.losses.start_probe(2, "a:1")
    await asyncio.sleep(0)
    scripted.losses.stop_probe(2)
    await scripted.done()
    assert scripted.dead == []


async def test_it_is_told_once_whoever_finds_it() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    lost = Lost(2)
    scripted.losses.add(lost)
    scripted.losses.start_probe(2, "a:1")
    scripted.losses.refused(lost)
    scripted.losses.refused(lost)
    await scripted.done()
    assert scripted.dead == [2]


async def test_who_is_back_or_was_lost_again_is_not_dead_by_an_older_refusal() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    lost = Lost(2)
    scripted.losses.add(lost)
    scripted.losses.discard(2)
    scripted.losses.refused(lost)
    scripted.losses.add(Lost(2))
    scripted.losses.refused(lost)
    assert scripted.dead == []


async def test_what_is_remembered_is_bounded() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    for node_id in range(PEERS_MAX + 10):
        scripted.losses.add(Lost(node_id))
    assert scripted.losses.find(9) is None
    assert scripted.losses.find(10) is not None
    assert scripted.losses.find(PEERS_MAX + 9) is not None
