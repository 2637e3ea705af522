"""A nemesis: faults of all kinds, at random times, from the world's seed.

The rates are drawn per seed, so that some runs have one kind of fault only and others all kinds:
runs with all faults all the time are alike.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.simulation.world import World

RESTART_S_MEAN: Final = 0.6
"""Time of a dead node until its next start."""
SUPERVISION_S: Final = 0.1
PARTITION_S_MEAN: Final = 1.2
PAUSE_S_MAX: Final = 2.5
SLOW_LINK_S_MAX: Final = 3.0
SLOW_DISK_S_MAX: Final = 3.0
STUCK_S_MAX: Final = 2.0
JUMP_S_MAX: Final = 3600.0
WRONG_S: Final = (2 * 86_400.0, 20 * 86_400.0)
"""By how much a wrong clock is ahead, or behind."""
WRONG_MONTH_S: Final = (8 * 86_400.0, 30 * 86_400.0)
"""The same, longer than what groups and transactional ids are kept."""
WRONG_S_MEAN: Final = 2.0
"""Pause of the wrong clock until its next change."""
LINKS: Final = (0.15, 0.3, 0.5)
"""Share of the links that are cut at once."""
LINKS_S_MEANS: Final = (1.2, 4.0)
FUSE_S_MAX: Final = 1.0
"""Time after which a crash waiting for some point happens anyhow."""
FUSE_CALLBACKS_MAX: Final = 200
FUSE_STEPS_MAX: Final = 12


async def keep_wrong_clock(world: World, node_ids: Sequence[int]) -> None:
    """Let a single wall clock be wrong by up to 30 days, or right."""
    chance = world.random("wrong clock")
    victim, wrong_s = chance.choice(node_ids), 0.0
    while True:
        before, wrong_s = wrong_s, 0.0
        if chance.random() < 0.7:
            wrong_s = chance.uniform(*WRONG_MONTH_S) * chance.choice((1, -1))
        world.trace(f"clock {victim} is wrong by {wrong_s:.6f}")
        world.clock(victim).jump(wrong_s - before)
        await asyncio.sleep(chance.expovariate(1 / WRONG_S_MEAN))


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often things go wrong. `_per_s` is of the whole cluster; others are probabilities."""

    crash_per_s: float = 0.0
    power: float = 0.5
    """Share of crashes in which the machine loses power, not only the process its life."""
    everybody: float = 0.05
    """Share of crashes of all nodes at once."""
    crash_point: float = 0.5
    """Share of crashes in the middle of a change of the disk, or between callbacks."""
    partition_per_s: float = 0.0
    one_way: float = 0.3
    reset_per_s: float = 0.0
    """Of connections between two nodes."""
    half_open: float = 0.0
    pause_per_s: float = 0.0
    suspend_per_s: float = 0.0
    """Of machines, with their timers. Not drawn: set explicitly."""
    slow_link_per_s: float = 0.0
    slow_disk_per_s: float = 0.0
    stuck_disk_per_s: float = 0.0
    clock_jump_per_s: float = 0.0
    links_per_s: float = 0.0
    """Some of the links are cut, whatever the others do: who hears whom is not transitive. Not
    drawn: an ingredient."""
    wrong_clock_per_s: float = 0.0
    """The wall clock of one certain node becomes wrong by days, or right again; half of the time
    while the node is down. Not drawn: an ingredient."""
    failed_sync_per_s: float = 0.0
    """A node is expected to end after such a failure. Not drawn: set explicitly."""
    latency_s: float = 0.001
    focus: float = 0.5
    """Share of faults aimed at the node named by `focus`, such as the leader."""

    @classmethod
    def draw(cls, chance: random.Random, **fixed: float) -> FaultRates:
        """Rates of one run; those given by name are not left to chance."""
        pick = chance.choice
        drawn = cls(
            crash_per_s=pick((0.0, 0.15, 0.4, 1.0)),
            power=pick((0.0, 0.5, 1.0)),
            crash_point=pick((0.0, 0.5, 1.0)),
            partition_per_s=pick((0.0, 0.2, 0.6)),
            one_way=pick((0.0, 0.5)),
            reset_per_s=pick((0.0, 0.3, 1.5)),
            half_open=pick((0.0, 0.3)),
            pause_per_s=pick((0.0, 0.2)),
            slow_link_per_s=pick((0.0, 0.3)),
            slow_disk_per_s=pick((0.0, 0.2)),
            stuck_disk_per_s=pick((0.0, 0.0, 0.1)),
            clock_jump_per_s=pick((0.0, 0.1)),
            latency_s=pick((0.0005, 0.002, 0.01, 0.04)),
        )
        return replace(drawn, **fixed)


class Nemesis:
    """Lets things go wrong until `heal_all`. Belongs to the test's own code, not to a node.

    `restart(node_id)` starts a dead node, like a supervisor. `focus()` names the node with more
    faults than the others.
    """

    def __init__(
        self,
        world: World,
        node_ids: Iterable[int],
        restart: Callable[[int], object],
        rates: FaultRates | None = None,
        *,
        focus: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.world = world
        self.node_ids = sorted(node_ids)
        self.random = world.random("nemesis")
        self.rates = rates or FaultRates.draw(self.random)
        self._restart = restart
        self._focus = focus
        self._tasks: list[asyncio.Task[None]] = []
        self._restarting: set[int] = set()
        self._wrong: int | None = None
        """The node with the wrong clock: only one, as the others' clocks are believed."""
        self._wrong_s = 0.0
        world.network.latency_s = self.rates.latency_s
        world.network.half_open = self.rates.half_open

    def start(self) -> None:
        """Begin. Call this before connections are made: links keep their latency."""
        rates = self.rates
        self.world.trace(rates)
        self._tasks.append(self.world.loop.create_task(self._supervise(), name="supervisor"))
        for per_s, fault in (
            (rates.crash_per_s, self._crash),
            (rates.partition_per_s, self._partition),
            (rates.reset_per_s, self._reset),
            (rates.pause_per_s, self._pause),
            (rates.suspend_per_s, self._suspend),
            (rates.slow_link_per_s, self._slow_link),
            (rates.slow_disk_per_s, self._slow_disk),
            (rates.stuck_disk_per_s, self._stuck_disk),
            (rates.clock_jump_per_s, self._clock_jump),
            (rates.links_per_s, self._cut_links),
            (rates.wrong_clock_per_s, self._wrong_clock),
            (rates.failed_sync_per_s, self._failed_sync),
        ):
            if per_s:
                task = self.world.loop.create_task(self._repeat(per_s, fault), name=fault.__name__)
                self._tasks.append(task)

    def heal_all(self) -> None:
        """No more faults: everything is connected and fast, and every node is up."""
        self.world.trace("heal all")
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._restarting.clear()
        self.world.network.half_open = 0.0
        self.world.network.heal()
        for node_id in self.node_ids:
            self.world.disk(node_id).forget_orders()
            self.world.times(node_id).heal()
            process = self.world.processes.get(node_id)
            if process is not None:
                process.fuse = 0
                process.power = False
                self.world.resume(node_id)
            if not self.world.is_up(node_id):
                self._restart(node_id)

    async def _repeat(self, per_s: float, fault: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(per_s))
            fault()

    async def _supervise(self) -> None:
        while True:
            for node_id in self.node_ids:
                if not self.world.is_up(node_id) and node_id not in self._restarting:
                    self._restarting.add(node_id)
                    self._later(self.random.expovariate(1 / RESTART_S_MEAN), self._revive, node_id)
            await asyncio.sleep(SUPERVISION_S)

    def _revive(self, node_id: int) -> None:
        self._restarting.discard(node_id)
        if not self.world.is_up(node_id):
            self._restart(node_id)

    def _later(self, delay_s: float, action: Callable[..., object], *arguments: Any) -> None:
        async def wait() -> None:
            await asyncio.sleep(delay_s)
            action(*arguments)

        # A task, not a timer: `heal_all` must be able to cancel the crash.
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self.world.loop.create_task(wait()))

    def _victim(self) -> int:
        focused = self._focus() if self.random.random() < self.rates.focus else None
        return focused if focused is not None else self.random.choice(self.node_ids)

    # The faults

    def _crash(self) -> None:
        power = self.random.random() < self.rates.power
        if self.random.random() < self.rates.everybody:
            for node_id in self.node_ids:
                if node_id in self.world.processes:
                    self.world.crash(node_id, power=power)
            return
        victim = self._victim()
        if not self.world.is_up(victim):
            return
        if self.random.random() >= self.rates.crash_point:
            self.world.crash(victim, power=power)
            return
        if self.random.random() < 0.5:
            steps = self.random.randint(1, FUSE_STEPS_MAX)
            self.world.crash_in(victim, steps, power=power)
        else:
            callbacks = self.random.randint(1, FUSE_CALLBACKS_MAX)
            self.world.crash_after(victim, callbacks, power=power)
        incarnation = self.world.processes[victim].incarnation
        self._later(self.random.uniform(0.0, FUSE_S_MAX), self._crash_at_last, victim, incarnation)

    def _crash_at_last(self, node_id: int, incarnation: int) -> None:
        process = self.world.processes[node_id]
        if process.alive and process.incarnation == incarnation:
            self.world.crash(node_id, power=process.power)

    def _partition(self) -> None:
        shuffled = self.random.sample(self.node_ids, len(self.node_ids))
        size = self.random.randint(1, max(1, len(shuffled) - 1))
        one = shuffled[:size]
        if self.random.random() < 0.4:
            one = [self._victim()]
        other = [node_id for node_id in shuffled if node_id not in one]
        if self.random.random() < 0.5:
            one, other = other, one
        one_way = self.random.random() < self.rates.one_way
        self.world.network.partition(one, other, one_way=one_way)
        self._later(self.random.expovariate(1 / PARTITION_S_MEAN), self._rejoin, one, other)

    def _rejoin(self, one: list[int], other: list[int]) -> None:
        for source in one:
            for target in other:
                self.world.network.unblock(source, target)
                self.world.network.unblock(target, source)

    def _cut_links(self) -> None:
        share = self.random.choice(LINKS)
        both_ways = self.random.random() < 0.6
        cut = [
            (source, target)
            for source in self.node_ids
            for target in self.node_ids
            if source != target and self.random.random() < share
        ]
        for source, target in cut:
            self.world.network.partition([source], [target], one_way=not both_ways)
        seconds = self.random.expovariate(1 / self.random.choice(LINKS_S_MEANS))
        self._later(seconds, self._join_links, cut)

    def _join_links(self, cut: list[tuple[int, int]]) -> None:
        for source, target in cut:
            self.world.network.unblock(source, target)
            self.world.network.unblock(target, source)

    def _wrong_clock(self) -> None:
        if self._wrong is None:
            self._wrong = self.random.choice(self.node_ids)
        victim = self._wrong
        if self.random.random() < 0.5 and self.world.is_up(victim):
            # It starts with its clock.
            self.world.crash(victim)
        before, self._wrong_s = self._wrong_s, 0.0
        if not before:
            self._wrong_s = self.random.uniform(*WRONG_S) * self.random.choice((1, 1, -1))
        self.world.trace(f"clock {victim} is wrong by {self._wrong_s:.6f}")
        self.world.clock(victim).jump(self._wrong_s - before)

    def _reset(self) -> None:
        if len(self.node_ids) > 1:
            self.world.network.reset(*self.random.sample(self.node_ids, 2))

    def _pause(self) -> None:
        victim = self._victim()
        if self.world.is_up(victim):
            self.world.pause(victim)
            self._later(self.random.uniform(0.0, PAUSE_S_MAX), self.world.resume, victim)

    def _suspend(self) -> None:
        victim = self._victim()
        if self.world.is_up(victim):
            self.world.suspend(victim)
            self._later(self.random.uniform(0.0, PAUSE_S_MAX), self.world.resume, victim)

    def _slow_link(self) -> None:
        if len(self.node_ids) > 1:
            one, other = self.random.sample(self.node_ids, 2)
            self.world.network.slow(one, other, self.random.choice((0.1, 0.5, 1.5)))
            self._later(
                self.random.uniform(0.0, SLOW_LINK_S_MAX), self.world.network.slow, one, other, 0.0
            )

    def _slow_disk(self) -> None:
        victim = self._victim()
        times = self.world.times(victim)
        times.slow = self.random.choice((5.0, 50.0, 500.0))
        self.world.trace(f"disk {victim} slow {times.slow}")
        self._later(self.random.uniform(0.0, SLOW_DISK_S_MAX), times.heal)

    def _stuck_disk(self) -> None:
        victim = self._victim()
        times = self.world.times(victim)
        seconds = self.random.uniform(0.0, STUCK_S_MAX)
        self.world.trace(f"disk {victim} stuck for {seconds:.6f}")
        times.stick(seconds)

    def _clock_jump(self) -> None:
        victim = self._victim()
        seconds = self.random.uniform(-JUMP_S_MAX, JUMP_S_MAX)
        self.world.trace(f"clock {victim} jumps by {seconds:.6f}")
        self.world.clock(victim).jump(seconds)

    def _failed_sync(self) -> None:
        victim = self._victim()
        self.world.trace(f"disk {victim} fails its next sync")
        self.world.disk(victim).fail_next("sync")
