"""The nemesis: one fault after the other, each healed before the next one.

A fault may hit several nodes, even all of them: safety must not depend on a living majority. After
each fault, a leader must be active again in time, and all replicas must return to the ISR.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench.cluster import Cluster, NoLeaderError, NotWholeError
from bench.wires import Wires
from tests.soak.client_processes import ClientProcesses
from tests.soak.cuts import Cuts

WHOLE_TIMEOUT_S: Final = 90.0
ACTIVE_TIMEOUT_S: Final = 10.0
"""From the moment when all processes answer again to an active leader."""
FENCED_TIMEOUT_S: Final = 60.0
"""From the moment when a zombie goes on to its end."""
LOOKS_MAX: Final = 50
LOOK_S: Final = 0.2
STOP_POLL_S: Final = 0.1

Span = tuple[float, float]
"""Seconds: a uniform draw from the lower to the upper bound."""


class Fault(msgspec.Struct, frozen=True):
    """A fault and its times. Steps are monotonic nanoseconds, as in histories."""

    kind: str
    victims: tuple[int, ...]
    struck: int
    healed: int = 0
    """The nodes answer again, or their network is whole."""
    whole: int = 0
    """A leader is active, and every partition has a leader and all replicas in sync."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The lengths of faults and of the calm between them."""

    every_s: float = 0.0
    """From the start of a fault to the next, if the former is healed by then."""
    calm_s: Span = (3.0, 3.0)
    """At least, from the end of a fault to the next."""
    down_s: Span = (0.2, 4.0)
    pause_s: Span = (1.8, 5.0)
    """Most pauses outlast the session timeout of 1.5 s."""
    cut_s: Span = (2.0, 7.0)


@dataclass(slots=True)
class Nemesis:
    """Strikes a cluster, and leaves it healed."""

    cluster: Cluster
    topics: Sequence[str]
    """Topics that must be fully in sync after each fault; none: the quorum counts."""
    randomness: random.Random
    pace: Pace = field(default_factory=Pace)
    wires: Wires | None = None
    cuts: Cuts | None = None
    clients: ClientProcesses | None = None
    log: Callable[[str], None] = print
    faults: list[Fault] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)

    async def run(self, kinds: Iterable[str], stop: asyncio.Event) -> None:
        """Strike by these kinds until `stop` is set, or the cluster does not recover."""
        remaining = iter(kinds)
        due = time.monotonic() + max(self.pace.every_s, self._draw(self.pace.calm_s))
        while not stop.is_set() and not self.anomalies:
            if time.monotonic() < due:
                await asyncio.sleep(STOP_POLL_S)
                continue
            kind = next(remaining, None)
            if kind is None:
                return
            await self.strike(kind)
            due = max(due + self.pace.every_s, time.monotonic() + self._draw(self.pace.calm_s))

    async def strike(self, kind: str) -> Fault:
        """Inflict one fault, heal it, and wait until the cluster is whole."""
        act, choose = KINDS[kind]
        victims = await choose(self)
        struck = time.monotonic_ns()
        healed = whole = 0
        try:
            await act(self, victims)
            await asyncio.to_thread(self.cluster.wait_answering)
            healed = time.monotonic_ns()
            await asyncio.to_thread(self.cluster.wait_active, ACTIVE_TIMEOUT_S)
            await self.wait_in_sync()
            whole = time.monotonic_ns()
        except (NotWholeError, NoLeaderError, RuntimeError) as error:
            self.anomalies.append(f"after {kind} of {victims}: {error}\n{self.cluster.log_ends()}")
        fault = Fault(kind, victims, struck, healed, whole)
        self.faults.append(fault)
        self.log(
            f"  {kind} of {', '.join(map(str, victims))}: healed after "
            f"{(healed - struck) / 1e9:.1f} s, whole after {(whole - healed) / 1e9:.1f} s more"
        )
        return fault

    async def wait_in_sync(self) -> None:
        """Wait until all replicas of the topics are in sync. Raises NotWholeError."""
        if self.topics:
            await self.cluster.wait_in_sync(self.topics, WHOLE_TIMEOUT_S)

    # Victims

    async def leader(self) -> tuple[int, ...]:
        """The node that leads most partitions, one of them if several do."""
        for _ in range(LOOKS_MAX):
            with suppress(NotWholeError):
                rows = await self.cluster.known(self.topics)
                led = Counter(row.leader for row in rows if row.leader >= 0)
                if led:
                    most = max(led.values())
                    return (self.randomness.choice([n for n in sorted(led) if led[n] == most]),)
            await asyncio.sleep(LOOK_S)
        return await self.any_node()

    async def controller(self) -> tuple[int, ...]:
        """The active controller; any node if there is none."""
        found = await asyncio.to_thread(self.cluster.leader)
        return await self.any_node() if found is None else (found,)

    async def quorum_follower(self) -> tuple[int, ...]:
        """A node that is not the active controller."""
        controller = await self.controller()
        return (self.randomness.choice([n for n in self._nodes if n not in controller]),)

    async def any_node(self) -> tuple[int, ...]:
        """Any one node."""
        return (self.randomness.choice(self._nodes),)

    async def two_nodes(self) -> tuple[int, ...]:
        """Two nodes: no append is acknowledged, and often there is no quorum."""
        return tuple(sorted(self.randomness.sample(self._nodes, 2)))

    async def some_nodes(self) -> tuple[int, ...]:
        """Any number of nodes, one to all."""
        count = self.randomness.randint(1, len(self._nodes))
        return tuple(sorted(self.randomness.sample(self._nodes, count)))

    async def all_nodes(self) -> tuple[int, ...]:
        """All nodes."""
        return tuple(self._nodes)

    async def coordinator(self) -> tuple[int, ...]:
        """A coordinator of a group or of a transactional id of the client processes."""
        with suppress(NotWholeError):
            places = self._clients.coordinated()
            rows = await self.cluster.known(sorted({topic for topic, _ in places}))
            nodes = {r.leader for r in rows if r.leader >= 0 and (r.topic, r.partition) in places}
            if nodes:
                return (self.randomness.choice(sorted(nodes)),)
        return await self.any_node()

    async def any_client(self) -> tuple[int, ...]:
        """Any one client process, by its number."""
        return (self.randomness.choice(self._clients.numbers),)

    async def all_clients(self) -> tuple[int, ...]:
        """All client processes."""
        return tuple(self._clients.numbers)

    async def transactional_client(self) -> tuple[int, ...]:
        """Any one client process with a transactional id."""
        return (self.randomness.choice(self._clients.transactional),)

    @property
    def _nodes(self) -> list[int]:
        return sorted(self.cluster.addresses)

    @property
    def _clients(self) -> ClientProcesses:
        assert self.clients is not None
        return self.clients

    # Acts

    async def kill(self, victims: tuple[int, ...]) -> None:
        """Kill the nodes, and start them again after a while."""
        await asyncio.to_thread(self.cluster.kill, *victims)
        await asyncio.sleep(self._draw(self.pace.down_s))
        await asyncio.to_thread(self.cluster.restart, *victims)

    async def pause(self, victims: tuple[int, ...]) -> None:
        """Pause the nodes for a while."""
        await asyncio.to_thread(self.cluster.pause, *victims)
        await asyncio.sleep(self._draw(self.pace.pause_s))
        await asyncio.to_thread(self.cluster.resume, *victims)

    async def kill_clients(self, victims: tuple[int, ...]) -> None:
        """Kill client processes, and start them again after a while."""
        await self._clients.kill(victims)
        await asyncio.sleep(self._draw(self.pace.down_s))
        await self._clients.start(victims)

    async def pause_clients(self, victims: tuple[int, ...]) -> None:
        """Pause client processes for a while."""
        self._clients.pause(victims)
        await asyncio.sleep(self._draw(self.pace.pause_s))
        self._clients.resume(victims)

    async def double_clients(self, victims: tuple[int, ...]) -> None:
        """Pause client processes while others take their transactional ids; then let them go on.

        A zombie that is not fenced is an anomaly.
        """
        for victim in victims:
            await self._clients.double(victim)
            await asyncio.sleep(self._draw(self.pace.pause_s))
            anomaly = await self._clients.resume_zombie(victim, FENCED_TIMEOUT_S)
            if anomaly is not None:
                self.anomalies.append(anomaly)

    async def roll(self, victims: tuple[int, ...]) -> None:
        """Restart the nodes cleanly, each once all replicas are in sync."""
        for node_id in victims:
            node = self.cluster.nodes[node_id]
            await asyncio.to_thread(node.stop)
            await asyncio.to_thread(node.relaunch)
            await asyncio.to_thread(node.wait_ready)
            await self.wait_in_sync()

    async def unplug(self, victims: tuple[int, ...]) -> None:
        """Take the nodes off the network for a while, clients included."""
        assert self.wires is not None
        for victim in victims:
            self.wires.cut(victim)
        await asyncio.sleep(self._draw(self.pace.cut_s))
        for victim in victims:
            self.wires.mend(victim)

    async def mute(self, victims: tuple[int, ...]) -> None:
        """Lose the packets of the nodes to all others for a while."""
        await self._lose(victims, is_mute=True, is_deaf=False)

    async def deafen(self, victims: tuple[int, ...]) -> None:
        """Lose the packets of all others to the nodes for a while."""
        await self._lose(victims, is_mute=False, is_deaf=True)

    async def partition(self, victims: tuple[int, ...]) -> None:
        """Lose the packets between the nodes and all others for a while."""
        await self._lose(victims, is_mute=True, is_deaf=True)

    async def _lose(self, victims: tuple[int, ...], *, is_mute: bool, is_deaf: bool) -> None:
        cuts = self.cuts
        assert cuts is not None
        try:
            for victim in victims:
                others = cuts.others(victim)
                if is_mute:
                    await asyncio.to_thread(cuts.lose, [victim], others)
                if is_deaf:
                    await asyncio.to_thread(cuts.lose, others, [victim])
            await asyncio.sleep(self._draw(self.pace.cut_s))
        finally:
            await asyncio.to_thread(cuts.mend)

    def _draw(self, span: Span) -> float:
        return self.randomness.uniform(*span)


def endless_kinds(
    groups: Mapping[str, Mapping[str, float]], randomness: random.Random
) -> Iterator[str]:
    """Kinds of faults: every group as often as the others, within a group by weight."""
    while groups:
        for group in randomness.sample(list(groups), len(groups)):
            weights = groups[group]
            yield randomness.choices(list(weights), list(weights.values()))[0]


Victims = Callable[[Nemesis], Awaitable[tuple[int, ...]]]
Act = Callable[[Nemesis, tuple[int, ...]], Awaitable[None]]
KINDS: Final[dict[str, tuple[Act, Victims]]] = {
    "kill leader": (Nemesis.kill, Nemesis.leader),
    "kill node": (Nemesis.kill, Nemesis.any_node),
    "kill controller": (Nemesis.kill, Nemesis.controller),
    "kill quorum follower": (Nemesis.kill, Nemesis.quorum_follower),
    "kill two": (Nemesis.kill, Nemesis.two_nodes),
    "kill some": (Nemesis.kill, Nemesis.some_nodes),
    "kill all": (Nemesis.kill, Nemesis.all_nodes),
    "kill coordinator": (Nemesis.kill, Nemesis.coordinator),
    "kill client": (Nemesis.kill_clients, Nemesis.any_client),
    "kill all clients": (Nemesis.kill_clients, Nemesis.all_clients),
    "pause client": (Nemesis.pause_clients, Nemesis.any_client),
    "zombie client": (Nemesis.double_clients, Nemesis.transactional_client),
    "pause coordinator": (Nemesis.pause, Nemesis.coordinator),
    "pause leader": (Nemesis.pause, Nemesis.leader),
    "pause controller": (Nemesis.pause, Nemesis.controller),
    "pause quorum follower": (Nemesis.pause, Nemesis.quorum_follower),
    "pause two": (Nemesis.pause, Nemesis.two_nodes),
    "pause some": (Nemesis.pause, Nemesis.some_nodes),
    "rolling restart": (Nemesis.roll, Nemesis.all_nodes),
    "cut off": (Nemesis.unplug, Nemesis.leader),
    "cut one-way: cannot send": (Nemesis.mute, Nemesis.leader),
    "cut one-way: cannot receive": (Nemesis.deafen, Nemesis.leader),
    "cut from the others, not from clients": (Nemesis.partition, Nemesis.leader),
    "cut controller from the others": (Nemesis.partition, Nemesis.controller),
    "cut all nodes from each other": (Nemesis.partition, Nemesis.all_nodes),
}
RECORD_GROUPS: Final[Mapping[str, Mapping[str, float]]] = {
    "kill": dict.fromkeys(
        ["kill leader", "kill node", "kill controller", "kill two", "kill all"], 1
    ),
    "pause": dict.fromkeys(["pause leader", "pause controller", "pause two"], 1),
    "cut": dict.fromkeys([kind for kind in KINDS if kind.startswith("cut ")], 1),
    "roll": {"rolling restart": 1},
}
"""Faults of a soak of records."""
REGISTER_GROUPS: Final[Mapping[str, Mapping[str, float]]] = {
    act: {f"{act} controller": 0.5, f"{act} quorum follower": 0.35, f"{act} some": 0.15}
    for act in ("kill", "pause")
}
"""Faults of a soak of registers, which live in the metadata quorum."""
CHAIN_GROUPS: Final[Mapping[str, Mapping[str, float]]] = {
    "kill": dict.fromkeys(
        ["kill leader", "kill coordinator", "kill controller", "kill two", "kill all"], 1
    ),
    "pause": dict.fromkeys(["pause leader", "pause coordinator", "pause two"], 1),
    "clients": dict.fromkeys(["kill client", "kill all clients", "pause client"], 1),
    "roll": {"rolling restart": 1},
}
"""Faults of a soak of the exactly-once chain."""
STATE_GROUPS: Final[Mapping[str, Mapping[str, float]]] = {
    "kill": CHAIN_GROUPS["kill"],
    "pause": CHAIN_GROUPS["pause"],
    "clients": {"kill client": 2, "pause client": 2, "kill all clients": 1},
    "roll": {"rolling restart": 1},
}
"""Faults of a soak of replicated states: the client processes are the replicas."""
KAFKA_GROUPS: Final[Mapping[str, Mapping[str, float]]] = {
    "kill": dict.fromkeys(
        ["kill leader", "kill node", "kill coordinator", "kill controller", "kill two", "kill all"],
        1,
    ),
    "pause": dict.fromkeys(
        ["pause leader", "pause coordinator", "pause controller", "pause two"], 1
    ),
    "cut": RECORD_GROUPS["cut"],
    "clients": dict.fromkeys(
        ["kill client", "kill all clients", "pause client", "zombie client"], 1
    ),
    "roll": {"rolling restart": 1},
}
"""Faults of a soak of Kafka's clients."""
