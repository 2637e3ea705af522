"""Gaps between acknowledgements when a node is killed, paused or cut off.

The figure of a trial is its worst partition: the longest time between two consecutive
acknowledgements, from the fault until all partitions acknowledge again, including partitions that
the victim only followed. The victim's return does not count, and is reported separately. Each
trial begins with a whole cluster.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from bench.cluster import (
    NODES,
    PARTITIONS,
    Cluster,
    NotWholeError,
    Row,
    cancelled,
    run_workload,
    running_cluster,
)
from bench.replication.probes import (
    FIRST_TIMEOUT_S,
    Acknowledgements,
    Prober,
    by_client,
    by_http,
    wait_all_since,
)
from bench.report import Options, Result, distribution
from bench.wires import NoWiresError, Wires

TOPIC: Final = "gaps"
RECOVERY_S_MAX: Final = 30.0
"""A trial in which some partition acknowledges nothing for so long has failed, and is the last."""
AFTERMATH_S: Final = 0.3
"""Events so soon after the recovery still belong to the fault."""
CALM_S: Final = (0.3, 0.9)
"""Before each fault, drawn, so that the fault meets the timers at any phase."""
TRIAL_TIMEOUT_S: Final = 240.0
SEED: Final = 4


@dataclass(slots=True)
class Trial:
    """One fault and its cost, in seconds."""

    victim: int
    was_controller: bool
    led: list[int]
    """Partitions led by the victim, or moved away from the victim."""
    gap_s: float = 0.0
    led_gap_s: float = 0.0
    """Of the partitions in `led`."""
    return_gap_s: float = 0.0
    """While the victim came back, until all was in sync again."""
    calm_gap_s: float = 0.0
    """Right before the fault: the share of the machine and the prober."""
    prober_late_s: float = 0.0
    whole_s: float = 0.0
    """From the healing until everything was in sync again."""
    errors: dict[str, int] = field(default_factory=dict)
    failure: str | None = None

    def as_document(self) -> dict[str, Any]:
        """For the JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


_T = TypeVar("_T")
Act = Callable[[Cluster, Trial], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: strike, heal, and the goal for its gap."""

    name: str
    goal_s: float
    strike: Act
    heal: Act


async def _kill(cluster: Cluster, trial: Trial) -> None:
    await asyncio.to_thread(cluster.kill, trial.victim)


async def _revive(cluster: Cluster, trial: Trial) -> None:
    await asyncio.to_thread(cluster.revive, trial.victim)


async def _pause(cluster: Cluster, trial: Trial) -> None:
    cluster.pause(trial.victim)


async def _resume(cluster: Cluster, trial: Trial) -> None:
    cluster.resume(trial.victim)


async def _move(cluster: Cluster, trial: Trial) -> None:
    (partition,) = trial.led
    rows = await cluster.known([TOPIC])
    target = random.choice([one for one in rows[partition].isr if one != trial.victim])
    path = f"/v1/topics/{TOPIC}/partitions/{partition}/leader"
    await cluster.change("POST", path, {"broker": target})


async def _nothing(_cluster: Cluster, _trial: Trial) -> None:
    """A planned move needs no healing."""


KILL: Final = Fault("kill -9", 0.5, _kill, _revive)
PAUSE: Final = Fault("pause", 2.5, _pause, _resume)
MOVE: Final = Fault("planned move", 0.1, _move, _nothing)


def gap_kill(options: Options) -> list[Result]:
    """SIGKILL of the node with most leaderships."""
    return _on_loopback(KILL, options)


def gap_pause(options: Options) -> list[Result]:
    """SIGSTOP of the node with most leaderships."""
    return _on_loopback(PAUSE, options)


def gap_move(options: Options) -> list[Result]:
    """A planned move of one partition's leadership."""
    return _on_loopback(MOVE, options)


def gap_cut(options: Options) -> list[Result]:
    """A network cut of the node with most leaderships."""
    try:
        with Wires(NODES) as wires:

            async def cut(_cluster: Cluster, trial: Trial) -> None:
                wires.cut(trial.victim)

            async def mend(_cluster: Cluster, trial: Trial) -> None:
                wires.mend(trial.victim)

            fault = Fault("network cut", 2.5, cut, mend)
            with running_cluster(options.flush, wires.places) as cluster:
                return _both_ways(fault, cluster, options)
    except NoWiresError as error:
        print(f"   skipped: {error}", flush=True)
        return []


def _on_loopback(fault: Fault, options: Options) -> list[Result]:
    with running_cluster(options.flush) as cluster:
        return _both_ways(fault, cluster, options)


def _both_ways(fault: Fault, cluster: Cluster, options: Options) -> list[Result]:
    run_workload(cluster.create_topic(TOPIC))
    results: list[Result] = []
    for how, prober in (("client", by_client), ("any node by HTTP", by_http)):
        trials = run_workload(
            _trials(fault, cluster, prober, options.trials), options.trials * TRIAL_TIMEOUT_S
        )
        results += gap_results(fault, how, trials)
        if any(trial.failure for trial in trials):
            break
    return results


def gap_results(fault: Fault, how: str, trials: list[Trial]) -> list[Result]:
    """The distribution of all trials."""
    found = distribution(
        f"cluster: gap, {fault.name}, {how}:",
        [trial.gap_s for trial in trials],
        {"p50": None, "p99": fault.goal_s, "max": None},
        {"partitions": PARTITIONS, "replicas": NODES},
    )
    found[0].details["trials"] = [trial.as_document() for trial in trials]
    return found


async def _trials(fault: Fault, cluster: Cluster, prober: Prober, count: int) -> list[Trial]:
    randomness = random.Random(SEED)
    done: list[Trial] = []
    await cluster.wait_settled([TOPIC])
    seen = Acknowledgements(PARTITIONS)
    probing = asyncio.create_task(prober(cluster.addresses, TOPIC, seen, PARTITIONS))
    try:
        await _while_probing(probing, wait_all_since(seen, time.perf_counter(), FIRST_TIMEOUT_S))
        while len(done) < count and not (done and done[-1].failure):
            trial = await _while_probing(probing, _trial(fault, cluster, seen, randomness))
            done.append(trial)
            print(
                f"   {fault.name} of node {trial.victim}"
                f"{' (controller)' if trial.was_controller else ''}: "
                f"{trial.gap_s * 1000:,.0f} ms, led partitions {trial.led_gap_s * 1000:,.0f} ms, "
                f"calm {trial.calm_gap_s * 1000:,.0f} ms, "
                f"return {trial.return_gap_s * 1000:,.0f} ms, whole after {trial.whole_s:.1f} s"
                f"{' FAILED: ' + trial.failure if trial.failure else ''}",
                flush=True,
            )
    finally:
        await cancelled(probing)
    return done


async def _while_probing(probing: asyncio.Task[None], work: Coroutine[Any, Any, _T]) -> _T:
    """Await the work; raise the prober's error if the prober ends first."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({probing, working}, return_when=asyncio.FIRST_COMPLETED)
        if probing.done() and not working.done():
            probing.result()
        return await working
    finally:
        await cancelled(working)


async def _recovered(seen: Acknowledgements, moment: float) -> None:
    if not await wait_all_since(seen, moment, RECOVERY_S_MAX):
        raise NotWholeError(f"not every partition acknowledged anything in {RECOVERY_S_MAX} s")


def _choose_trial(
    fault: Fault, rows: Sequence[Row], controller: int | None, randomness: random.Random
) -> Trial:
    """Choose the victim: the node with most leaderships, or the leader of a partition."""
    if fault is MOVE:
        row = randomness.choice(rows)
        return Trial(row.leader, row.leader == controller, [row.partition])
    led = {
        node_id: [row.partition for row in rows if row.leader == node_id]
        for node_id in range(1, NODES + 1)
    }
    most = max(map(len, led.values()))
    victim = randomness.choice([one for one, own in led.items() if len(own) == most])
    return Trial(victim, victim == controller, led[victim])


async def _trial(
    fault: Fault, cluster: Cluster, seen: Acknowledgements, randomness: random.Random
) -> Trial:
    await cluster.wait_settled([TOPIC])
    seen.clear()
    calm = time.perf_counter()
    await asyncio.sleep(randomness.uniform(*CALM_S))
    calm_gap_s = max(seen.gaps(calm, time.perf_counter()))
    controller = await asyncio.to_thread(cluster.leader)
    trial = _choose_trial(fault, await cluster.known([TOPIC]), controller, randomness)
    trial.calm_gap_s = calm_gap_s
    seen.clear()
    started = time.perf_counter()
    try:
        await fault.strike(cluster, trial)
        struck = time.perf_counter()
        await _recovered(seen, struck)
        await asyncio.sleep(AFTERMATH_S)
        await _recovered(seen, time.perf_counter())
    except NotWholeError as error:
        trial.failure = str(error)
    ended = time.perf_counter()
    gaps = seen.gaps(started, ended)
    trial.gap_s, trial.led_gap_s = max(gaps), max((gaps[one] for one in trial.led), default=0.0)
    if fault is MOVE:
        trial.gap_s = trial.led_gap_s
    healed = time.perf_counter()
    try:
        await fault.heal(cluster, trial)
        await cluster.wait_settled([TOPIC])
        await _recovered(seen, time.perf_counter())
    except NotWholeError as error:
        trial.failure = trial.failure or str(error)
    trial.whole_s = time.perf_counter() - healed
    trial.return_gap_s = max(seen.gaps(healed, time.perf_counter()))
    trial.prober_late_s, trial.errors = seen.late_s_max, dict(seen.errors.most_common(10))
    return trial
