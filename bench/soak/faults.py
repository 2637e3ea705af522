"""Who hurts the nodes of a soak: one fault after the other, each healed and waited for."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench.cluster_processes import NoLeaderError
from bench.replication.cluster import Cluster, NotWholeError
from bench.replication.wires import Wires
from bench.soak.cuts import Cuts

CALM_S: Final = 3.0
"""At least, from one fault's end to the next one."""
DOWN_S: Final = (0.2, 4.0)
PAUSE_S: Final = (1.8, 5.0)
"""Past the session timeout of 1.5 s, most of them."""
CUT_S: Final = (2.0, 7.0)
WHOLE_TIMEOUT_S: Final = 90.0
ACTIVE_TIMEOUT_S: Final = 10.0
LOOKS_MAX: Final = 50
LOOK_S: Final = 0.2
STOP_POLL_S: Final = 0.1


class Fault(msgspec.Struct, frozen=True):
    """What was done when. Steps are monotonic nanoseconds, as in histories."""

    kind: str
    victims: tuple[int, ...]
    struck: int
    healed: int = 0
    """The nodes answer again, or their network is whole."""
    whole: int = 0
    """Every partition has a leader, and all its replicas are in sync."""


@dataclass(slots=True)
class Nemesis:
    """Hurts a cluster; leaves it healed."""

    cluster: Cluster
    topics: Sequence[str]
    randomness: random.Random
    wires: Wires | None = None
    cuts: Cuts | None = None
    say: Callable[[str], None] = print
    faults: list[Fault] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)

    async def run(self, groups: Sequence[str], every_s: float, stop: asyncio.Event) -> None:
        """A fault of each group in turn, until told to stop, or the cluster does not recover."""
        due = time.monotonic() + every_s
        turn: list[str] = []
        while not stop.is_set() and not self.anomalies:
            if time.monotonic() < due:
                await asyncio.sleep(STOP_POLL_S)
                continue
            if not turn:
                # As often as each other, in an order of its own each time.
                turn = self.randomness.sample(list(groups), len(groups))
            await self.strike(self.randomness.choice(GROUPS[turn.pop()]))
            due = max(due + every_s, time.monotonic() + CALM_S)

    async def strike(self, kind: str, victims: Sequence[int] | None = None) -> Fault:
        """One fault, its healing, and the wait until all is whole."""
        act, whom = KINDS[kind]
        chosen = tuple(victims or await whom(self))
        struck = time.monotonic_ns()
        healed = whole = 0
        try:
            await act(self, chosen)
            await asyncio.to_thread(self.cluster.processes.wait_answering)
            healed = time.monotonic_ns()
            await asyncio.to_thread(self.cluster.processes.wait_active, ACTIVE_TIMEOUT_S)
            await self.cluster.wait_in_sync(self.topics, WHOLE_TIMEOUT_S)
            whole = time.monotonic_ns()
        except (NotWholeError, NoLeaderError, RuntimeError) as error:
            self.anomalies.append(f"after {kind} of {chosen}: {error}")
        fault = Fault(kind, chosen, struck, healed, whole)
        self.faults.append(fault)
        self.say(
            f"  {kind} of {', '.join(map(str, chosen))}: healed after "
            f"{(healed - struck) / 1e9:.1f} s, whole after {(whole - healed) / 1e9:.1f} s more"
        )
        return fault

    # Whom

    async def leader(self) -> tuple[int, ...]:
        """The node that leads most, one of them if several do."""
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
        """The active controller."""
        found = await asyncio.to_thread(self.cluster.processes.leader)
        return await self.any_node() if found is None else (found,)

    async def any_node(self) -> tuple[int, ...]:
        """Whichever."""
        return (self.randomness.choice(sorted(self.cluster.addresses)),)

    async def two(self) -> tuple[int, ...]:
        """Two of them: nothing can be acknowledged, and often there is no quorum."""
        return tuple(sorted(self.randomness.sample(sorted(self.cluster.addresses), 2)))

    async def everybody(self) -> tuple[int, ...]:
        """All nodes."""
        return tuple(sorted(self.cluster.addresses))


Act = Callable[[Nemesis, tuple[int, ...]], Awaitable[None]]
Whom = Callable[[Nemesis], Awaitable[tuple[int, ...]]]


async def _kill(nemesis: Nemesis, victims: tuple[int, ...]) -> None:
    processes = nemesis.cluster.processes
    await asyncio.to_thread(processes.kill, *victims)
    await asyncio.sleep(nemesis.randomness.uniform(*DOWN_S))
    await asyncio.to_thread(processes.restart, *victims)


async def _pause(nemesis: Nemesis, victims: tuple[int, ...]) -> None:
    processes = nemesis.cluster.processes
    processes.pause(*victims)
    await asyncio.sleep(nemesis.randomness.uniform(*PAUSE_S))
    processes.resume(*victims)


async def _roll(nemesis: Nemesis, victims: tuple[int, ...]) -> None:
    for node_id in victims:
        node = nemesis.cluster.processes.nodes[node_id]
        await asyncio.to_thread(node.stop)
        node.relaunch()
        await asyncio.to_thread(node.wait_ready)
        # The next one only when it would not be missed.
        await nemesis.cluster.wait_in_sync(nemesis.topics, WHOLE_TIMEOUT_S)


async def _unplug(nemesis: Nemesis, victims: tuple[int, ...]) -> None:
    assert nemesis.wires is not None
    for victim in victims:
        nemesis.wires.cut(victim)
    await asyncio.sleep(nemesis.randomness.uniform(*CUT_S))
    for victim in victims:
        nemesis.wires.mend(victim)


async def _mute(nemesis: Nemesis, victims: tuple[int, ...]) -> None:
    await _lose(nemesis, victims, is_mute=True, is_deaf=False)


async def _deafen(nemesis: Nemesis, victims: tuple[int, ...]) -> None:
    await _lose(nemesis, victims, is_mute=False, is_deaf=True)


async def _part(nemesis: Nemesis, victims: tuple[int, ...]) -> None:
    await _lose(nemesis, victims, is_mute=True, is_deaf=True)


async def _lose(
    nemesis: Nemesis, victims: tuple[int, ...], *, is_mute: bool, is_deaf: bool
) -> None:
    cuts = nemesis.cuts
    assert cuts is not None
    try:
        for victim in victims:
            others = cuts.others(victim)
            if is_mute:
                await asyncio.to_thread(cuts.lose, [victim], others)
            if is_deaf:
                await asyncio.to_thread(cuts.lose, others, [victim])
        await asyncio.sleep(nemesis.randomness.uniform(*CUT_S))
    finally:
        await asyncio.to_thread(cuts.mend)


KINDS: Final[dict[str, tuple[Act, Whom]]] = {
    "kill leader": (_kill, Nemesis.leader),
    "kill node": (_kill, Nemesis.any_node),
    "kill controller": (_kill, Nemesis.controller),
    "kill two": (_kill, Nemesis.two),
    "kill all": (_kill, Nemesis.everybody),
    "pause leader": (_pause, Nemesis.leader),
    "pause controller": (_pause, Nemesis.controller),
    "pause two": (_pause, Nemesis.two),
    "rolling restart": (_roll, Nemesis.everybody),
    "cut off": (_unplug, Nemesis.leader),
    "cut one-way: cannot send": (_mute, Nemesis.leader),
    "cut one-way: cannot hear": (_deafen, Nemesis.leader),
    "cut from the others, not from clients": (_part, Nemesis.leader),
    "cut controller from the others": (_part, Nemesis.controller),
    "cut everybody from everybody": (_part, Nemesis.everybody),
}
GROUPS: Final[dict[str, list[str]]] = {
    "kill": [kind for kind in KINDS if kind.startswith("kill ")],
    "pause": [kind for kind in KINDS if kind.startswith("pause ")],
    "cut": [kind for kind in KINDS if kind.startswith("cut ")],
    "roll": ["rolling restart"],
}
