"""The simulated network: machines, the links between them, and faults of links.

Per direction: a mean latency (exponentially distributed), an added delay, and blocking. Messages in
a blocked direction wait, as TCP retransmits; a connection without an acknowledgement for
`give_up_s` ends on the sending side. Running machines refuse connections at once when no process
listens; machines without power, or unreachable ones, do not answer. The operating system accepts
connections for a paused process, which is then silent.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from raftlog.world.network import Acceptor, NetworkError, Opened, RefusedError, RejectedError
from tests.simulation.connection import End
from tests.simulation.link import PACKET_BYTES, Link

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

LATENCY_S: Final = 0.001
NOT_FOUND_CODE: Final = 40400
"""Of the error table: no such channel here."""
NOTICE_S_MAX: Final = 0.5
"""Until a side learns of a reset."""
LATE_NOTICE_S_MAX: Final = 5.0
"""Until the late side of a half-open connection does."""


class Machine:
    """A node's machine, beyond its processes: an address, and power or none."""

    __slots__ = ("address", "node_id", "process", "up")

    def __init__(self, node_id: int, address: str) -> None:
        self.node_id = node_id
        self.address = address
        self.up = True
        self.process: Process | None = None

    def listener(self) -> Process | None:
        """The process accepting connections, if any."""
        process = self.process
        listens = process is not None and process.alive and process.network.acceptors
        return process if listens else None


class SimulatedNetwork:
    """All links between nodes. Nodes are named by their ids."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop
        self.random = world.random("network")
        self.latency_s = LATENCY_S
        """Mean latency of links created from now on; a link is created on first use."""
        self.half_open = 0.0
        """Chance that one side of a reset connection notices late or never by itself."""
        self.give_up_s = (2.0, 15.0)
        """Longest wait for an acknowledgement of sent messages."""
        self.machines: dict[int, Machine] = {}
        self.by_address: dict[str, Machine] = {}
        self.connections = 0
        self._links: dict[tuple[int, int], Link] = {}

    def machine(self, node_id: int) -> Machine:
        """The machine of a node. Created on first use."""
        machine = self.machines.get(node_id)
        if machine is None:
            machine = self.machines[node_id] = Machine(node_id, f"n{node_id}.test:8082")
            self.by_address[machine.address] = machine
        return machine

    def move(self, node_id: int, address: str) -> None:
        """Give a node without a running process another, unique address."""
        machine = self.machine(node_id)
        assert address not in self.by_address and machine.listener() is None
        del self.by_address[machine.address]
        machine.address = address
        self.by_address[address] = machine

    def link(self, source: int, target: int) -> Link:
        """The direction from one node to another."""
        link = self._links.get((source, target))
        if link is None:
            link = Link(source, target, self.loop, self.random, self.latency_s)
            self._links[source, target] = link
        return link

    # Faults

    def block(self, source: int, target: int) -> None:
        """Block one direction."""
        self.world.trace(f"block {source}>{target}")
        self.link(source, target).block()

    def unblock(self, source: int, target: int) -> None:
        """Let everything pass again."""
        self.world.trace(f"unblock {source}>{target}")
        self.link(source, target).unblock()

    def partition(self, one: Iterable[int], other: Iterable[int], *, one_way: bool = False) -> None:
        """Cut two groups off from each other; with `one_way`, the other only hears no more."""
        others = list(other)
        for source in one:
            for target in others:
                self.block(source, target)
                if not one_way:
                    self.block(target, source)

    def slow(self, source: int, target: int, extra_s: float) -> None:
        """Add so much to every delay in one direction; 0 ends the slowness."""
        self.world.trace(f"slow {source}>{target} {extra_s:.6f}")
        self.link(source, target).extra_s = extra_s

    def reset(self, one: int, other: int) -> None:
        """Break all connections between two nodes."""
        self.world.trace(f"reset {one}-{other}")
        for end in self._ends(one):
            if end.peer.life.node_id == other and not end.broken:
                self._break(end, end.peer)

    def _break(self, end: End, peer: End) -> None:
        first, second = (end, peer) if self.random.random() < 0.5 else (peer, end)
        for side in (first, second):
            side.broken = True
            side.lose_tail()
        if first.open:
            first.end_in(self.random.uniform(0.0, NOTICE_S_MAX))
        if second.open:
            if self.random.random() >= self.half_open:
                second.end_in(self.random.uniform(0.0, NOTICE_S_MAX))
            elif self.random.random() < 0.5:
                second.end_in(self.random.uniform(0.0, LATE_NOTICE_S_MAX))

    def heal(self) -> None:
        """No blocked and no slow direction any more."""
        for (source, target), link in list(self._links.items()):
            if link.blocked:
                self.unblock(source, target)
            link.extra_s = 0.0

    def _ends(self, node_id: int) -> list[End]:
        process = self.machine(node_id).process
        return [] if process is None else list(process.ends)

    # Processes

    def process_ended(self, process: Process, *, power: bool) -> None:
        """Let connections end as the operating system does for a killed process, or not at all."""
        if power:
            process.machine.up = False
        for end in list(process.ends):
            end.abandon()
            if power:
                end.lose_tail()
            else:
                end.tell_peer()
        greeted, process.network.greeted = process.network.greeted, {}
        for answer, back in greeted.items():
            if not power:
                self.loop.call_later(
                    back.delay(PACKET_BYTES), _break_off, answer, context=contextvars.Context()
                )

    def machine_up(self, machine: Machine) -> None:
        """Power is back: messages on earlier connections are answered with a reset."""
        if machine.up:
            return
        machine.up = True
        for other in list(self.machines.values()):
            for end in self._ends(other.node_id):
                if end.peer.life.machine is machine:
                    end.retry(self.random.uniform(0.0, 2 * NOTICE_S_MAX))

    def join(self, caller: Process, called: Process, hello: bytes, answer: bytes) -> End:
        """Make the two ends of a connection; return the called side's."""
        self.connections += 1
        mine = End(self, self.connections, caller, called, answer)
        theirs = End(self, self.connections, called, caller, hello)
        mine.peer, theirs.peer = theirs, mine
        theirs.waiting = True
        return theirs


class NodeNetwork:
    """`Network` of one process."""

    def __init__(self, network: SimulatedNetwork, process: Process) -> None:
        self.acceptors: dict[str, Acceptor] = {}
        self.greeted: dict[asyncio.Future[End | RejectedError], Link] = {}
        """Callers waiting for an answer, and the link back to each."""
        self._network = network
        self._process = process

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        assert channel not in self.acceptors, f"channel {channel} is taken"
        self.acceptors[channel] = acceptor

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                machine, _, back = await self._reach(address)
                refused = machine.listener() is None
                await back.cross()
                return refused
        except (TimeoutError, NetworkError):
            return False

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                theirs = await self._greet(address, channel, hello)
        except TimeoutError:
            raise NetworkError(f"{address} did not answer within {timeout_s:g} s") from None
        if isinstance(theirs, RejectedError):
            # Not the other side's exception object, which has its own traceback.
            raise RejectedError(theirs.code, theirs.message)
        mine = theirs.peer
        if not mine.open:
            raise NetworkError(f"{address} broke the connection off")
        # The answer arrives before any message of `opened`.
        confirmation = None
        if theirs.receiver is None:
            confirmation = mine.confirm(theirs.life.network.acceptors[channel])
        try:
            mine.receiver = opened(mine)
        except RejectedError:
            if confirmation is not None:
                confirmation.cancel()
            mine.close()
            raise
        self._network.world.trace(f"{mine!r} connected")
        theirs.waiting = False
        theirs.flush(0.0)

    async def _reach(self, address: str) -> tuple[Machine, Link, Link]:
        """Return when the attempt has reached the machine at that address; raise if none has."""
        me = self._process.node_id
        machine = self._network.by_address.get(address)
        if machine is None:
            raise NetworkError(f"{address}: no such host")
        there = self._network.link(me, machine.node_id)
        back = self._network.link(machine.node_id, me)
        await there.cross()
        if not machine.up:
            await self._network.loop.create_future()
        return machine, there, back

    async def _greet(self, address: str, channel: str, hello: bytes) -> End | RejectedError:
        loop = self._network.loop
        machine, _, back = await self._reach(address)
        called = machine.listener()
        if called is None:
            await back.cross()
            self._network.world.trace(f"{self._process!r} refused by {machine.node_id}")
            raise RefusedError(f"nobody listens at {address}")
        answer: asyncio.Future[End | RejectedError] = loop.create_future()
        called.network.greeted[answer] = back
        loop.call_soon(
            called.network.answer, channel, hello, self._process, answer, context=called.context
        )
        theirs: End | RejectedError | None = None
        try:
            theirs = await answer
            await back.cross()
        except BaseException:
            called.network.greeted.pop(answer, None)
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                theirs = answer.result()
            if isinstance(theirs, End):
                # Timed out or cancelled: this end has no owner.
                theirs.peer.close()
            raise
        return theirs

    def answer(
        self,
        channel: str,
        hello: bytes,
        caller: Process,
        answer: asyncio.Future[End | RejectedError],
    ) -> None:
        """The called side: answer a caller's hello. Runs in its life."""
        self.greeted.pop(answer, None)
        if answer.done() or not caller.alive:
            return
        world = self._network.world
        acceptor = self.acceptors.get(channel)
        if acceptor is None:
            answer.set_result(RejectedError(NOT_FOUND_CODE, f"no channel {channel} here"))
            return
        theirs: End | None = None
        try:
            theirs = self._network.join(caller, self._process, hello, acceptor.hello(hello))
            # The interface leaves open which side takes the connection first, so both orders must
            # work.
            if self._network.random.random() < 0.5:
                theirs.receiver = acceptor.opened(theirs)
                world.trace(f"{theirs!r} accepted early")
        except RejectedError as error:
            world.trace(f"{caller!r} rejected by {self._process!r}: {error.code}")
            if theirs is not None:
                theirs.abandon()
                theirs.peer.abandon()
            answer.set_result(error)
            return
        answer.set_result(theirs)


def _break_off(answer: asyncio.Future[End | RejectedError]) -> None:
    if not answer.done():
        answer.set_exception(NetworkError("the connection was reset"))
