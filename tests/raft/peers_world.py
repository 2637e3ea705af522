"""Members reduced to their connections, in the simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from raftlog.raft.peers.hello import QuorumHello
from raftlog.raft.peers.identity import KnownPeers
from raftlog.raft.peers.peers import Peers, PeersLimits
from raftlog.raft.voters import NO_VOTERS, Voter, VoterSet
from tests.simulation.world import Process, World


def voter(node_id: int, directory_id: str | None = None) -> Voter:
    return Voter(node_id, f"n{node_id}.test", 8082, directory_id)


def voter_set(*node_ids: int) -> VoterSet:
    return VoterSet(tuple(voter(node_id) for node_id in sorted(node_ids)))


def hello_of(node_id: int, **changes: object) -> QuorumHello:
    hello = QuorumHello(
        node_id=node_id,
        directory_id=f"directory-{node_id}",
        cluster_id="cluster",
        bootstrap_id=None,
        address=f"n{node_id}.test:8082",
        software_version="1.0",
        voters=NO_VOTERS,
    )
    return msgspec.structs.replace(hello, **changes)


PING = b"ping"


@dataclass
class Event:
    """A call of the handler, with its time."""

    at: float
    node_id: int
    what: str
    frame: bytes = b""


@dataclass
class Member:
    """One node in all its lives. Its events are checked against the handler's contract."""

    world: World
    node_id: int
    voters: VoterSet
    is_voter: bool
    limits: PeersLimits | None = None
    """The machine's number is the node id, unless `machine_id` is set."""
    machine_id: int = 0
    changes: dict[str, object] = field(default_factory=dict)
    """Of its hello."""
    on_up: list[bytes] = field(default_factory=list)
    """Sent to every peer at `peer_up`."""
    events: list[Event] = field(default_factory=list)
    peers: Peers | None = None
    known: KnownPeers | None = None
    _state: dict[int, str] = field(default_factory=dict)

    # PeersHandler

    def hello(self) -> QuorumHello:
        machine = f"n{self.machine_id}.test:8082"
        settled: dict[str, object] = {"address": machine, "voters": self.voters}
        return hello_of(self.node_id, **(settled | self.changes))

    def peer_up(self, node_id: int) -> None:
        assert self._state.get(node_id, "dead") != "up", "peer_down comes before peer_up"
        directory_id = self.live.connected[node_id].directory_id
        noted = self.world.disk(self.machine_id).contents("peers.json").decode()
        assert f'"{node_id}":"{directory_id}"' in noted, "the pin is durable first"
        self._tell(node_id, "up")
        for frame in self.on_up:
            assert self.live.send(node_id, frame)

    def peer_down(self, node_id: int, *, refused: bool) -> None:
        before = self._state.get(node_id)
        assert before == ("down" if refused else "up"), f"refused={refused} after {before}"
        assert not self.live.send(node_id, b"lost")
        self._tell(node_id, "dead" if refused else "down")

    def ping(self, node_id: int) -> None:
        assert self.live.send(node_id, PING)

    def received(self, node_id: int, frame: bytes) -> None:
        if frame == PING:
            return
        assert self._state.get(node_id) == "up", "nothing is received but while it is up"
        self.events.append(Event(self.world.loop.now, node_id, "got", frame))

    def _tell(self, node_id: int, what: str) -> None:
        self._state[node_id] = what
        self.events.append(Event(self.world.loop.now, node_id, what))
        self.world.trace(f"{self.node_id} told {what} of {node_id}")

    def _fail(self, reason: str) -> None:
        raise AssertionError(reason)

    # Steps of tests

    @property
    def live(self) -> Peers:
        assert self.peers is not None
        return self.peers

    @property
    def connected(self) -> list[int]:
        return [] if self.peers is None else list(self.peers.connected)

    def start(self) -> None:
        self.machine_id = self.machine_id or self.node_id
        self._state.clear()
        self.peers = None
        self.world.start(self.machine_id, self._main)

    def crash(self, *, power: bool = False) -> None:
        self.world.crash(self.machine_id, power=power)

    async def _main(self, process: Process) -> None:
        self.known = await KnownPeers.open(process.disk, "")
        self.peers = Peers(
            network=process.network,
            clock=process.clock,
            randomness=process.randomness,
            handler=self,
            known=self.known,
            on_fatal=self._fail,
            limits=self.limits,
        )
        self.peers.start()
        self.peers.retarget(self.is_voter, self.voters)
        await asyncio.get_running_loop().create_future()

    def retarget(self, is_voter: bool, voters: VoterSet) -> None:
        """Change roles, as code of its process."""
        self.is_voter, self.voters = is_voter, voters
        process = self.world.processes[self.machine_id]
        if process.alive and self.peers is not None:
            process.context.copy().run(self.peers.retarget, is_voter, voters)

    def told(self, node_id: int) -> list[str]:
        """The handler's calls for a peer, without messages."""
        return [
            event.what for event in self.events if event.node_id == node_id and event.what != "got"
        ]

    def got(self, node_id: int) -> list[bytes]:
        return [
            event.frame for event in self.events if event.node_id == node_id and event.what == "got"
        ]

    def forget_events(self) -> None:
        self.events.clear()


def cluster(world: World, voters: int, observers: int = 0) -> dict[int, Member]:
    """So many members, started: voters from 1 on, then observers."""
    ids = range(1, voters + 1)
    members = {
        node_id: Member(world, node_id, voter_set(*ids), is_voter=node_id <= voters)
        for node_id in range(1, voters + observers + 1)
    }
    for member in members.values():
        member.start()
    return members


def all_connected(members: dict[int, Member], voters: int) -> bool:
    """Whether every pair with a voter is connected, as seen by both sides."""
    return all(
        member.peers is not None
        and member.connected
        == [other for other in members if other != node_id and min(other, node_id) <= voters]
        for node_id, member in members.items()
    )


def play(seed: int, main: Callable[[World], Coroutine[Any, Any, None]]) -> str:
    """Run one; returns the digest."""
    world = World(seed)
    world.run(main)
    return world.digest()
