from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from raftlog.raft.dead_peers import DeadPeerProbe
from raftlog.raft.identity import KNOWN_PEERS_MAX
from raftlog.raft.peer_link import Link, PeersLimits
from raftlog.world.network import Acceptor, Connection, Opened
from tests.raft.peers_world import hello_of
from tests.simulation.clock import ManualClock


class Scripted:
    """A network, and an owner of losses; the peer begins to refuse at a certain time."""

    def __init__(self, refuses_at_s: float) -> None:
        self.clock = ManualClock()
        self.start_s = self.clock.monotonic()
        self.refuses_at_s = refuses_at_s
        self.probes_s: list[float] = []
        self.dead: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.losses = DeadPeerProbe(self, self.clock, PeersLimits(), self.spawn, self.dead.append)

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

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work, name=name))
        return self.tasks[-1]

    async def done(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Owner:
    def on_received(self, link: Link, message: bytes) -> None:
        raise AssertionError

    def on_closed(self, link: Link) -> None:
        raise AssertionError


class NoConnection:
    hello = b""
    address = ""
    queued_bytes = 0

    def send(self, message: bytes) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def link(node_id: int) -> Link:
    connection: Connection = NoConnection()
    return Link(Owner(), connection, hello_of(node_id), dialled=False, opened_s=0.0)


async def test_a_listener_that_outlives_its_connections_a_little_is_found_dead_soon() -> None:
    for late_ms in range(25):
        scripted = Scripted(refuses_at_s=late_ms / 1000)
        scripted.losses.add(link(2))
        scripted.losses.start_probe(2, "a:1")
        await scripted.done()
        assert scripted.dead == [2]
        assert scripted.probes_s[-1] < 0.05


async def test_a_process_that_lives_is_asked_a_few_times_and_then_left_alone() -> None:
    scripted = Scripted(refuses_at_s=10.0)
    scripted.losses.add(link(2))
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
    assert scripted.tasks == []


async def test_a_probe_ends_when_a_connection_opens() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    scripted.losses.add(link(2))
    scripted.losses.start_probe(2, "a:1")
    await asyncio.sleep(0)
    scripted.losses.stop_probe(2)
    await scripted.done()
    assert scripted.dead == []


async def test_it_is_told_once_whoever_finds_it() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    lost = link(2)
    scripted.losses.add(lost)
    scripted.losses.start_probe(2, "a:1")
    scripted.losses.refused(lost)
    scripted.losses.refused(lost)
    await scripted.done()
    assert scripted.dead == [2]


async def test_who_is_back_or_was_lost_again_is_not_dead_by_an_older_refusal() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    lost = link(2)
    scripted.losses.add(lost)
    scripted.losses.discard(2)
    scripted.losses.refused(lost)
    scripted.losses.add(link(2))
    scripted.losses.refused(lost)
    assert scripted.dead == []


async def test_what_is_remembered_is_bounded() -> None:
    scripted = Scripted(refuses_at_s=0.0)
    for node_id in range(KNOWN_PEERS_MAX + 10):
        scripted.losses.add(link(node_id))
    assert scripted.losses.find(9) is None
    assert scripted.losses.find(10) is not None
    assert scripted.losses.find(KNOWN_PEERS_MAX + 9) is not None
