"""Gaps between acknowledgements when a node is killed, paused or cut off.

The figure of a trial is the longest time between two acknowledgements in any partition, from the
fault until all partitions acknowledge again, including partitions that the victim only followed.
The victim's return is reported separately. Each trial begins with a whole cluster.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench.cluster import (
    NODES,
    PARTITIONS,
    Cluster,
    NotWholeError,
    Place,
    Row,
    cancelled,
    leads_most,
    run_workload,
    running_cluster,
)
from bench.replication.probes import (
    Acknowledgements,
    Prober,
    by_client,
    by_http,
    wait_all_since,
    while_probing,
)
from bench.report import Options, Result, distribution
from bench.wires import NoWiresError, Wires

TOPIC: Final = "gaps"
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


Act = Callable[[Cluster, Trial], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: strike, heal, and the goal for its gap."""

    name: str
    goal_s: float
    strike: Act
    heal: Act


def _on_victim(act: Callable[[Cluster, int], None]) -> Act:
    """An act on the victim that blocks, in a thread."""
    return lambda cluster, trial: asyncio.to_thread(act, cluster, trial.victim)


async def _move(cluster: Cluster, trial: Trial) -> None:
    (partition,) = trial.led
    rows = await cluster.known([TOPIC])
    target = random.choice([one for one in rows[partition].isr if one != trial.victim])
    path = f"/v1/topics/{TOPIC}/partitions/{partition}/leader"
    await cluster.change("POST", path, {"broker": target})


async def _nothing(_cluster: Cluster, _trial: Trial) -> None:
    """A planned move needs no healing."""


KILL: Final = Fault("kill -9", 0.5, _on_victim(Cluster.kill), _on_victim(Cluster.revive))
PAUSE: Final = Fault("pause", 2.5, _on_victim(Cluster.pause), _on_victim(Cluster.resume))
MOVE: Final = Fault("planned move", 0.1, _move, _nothing)


def gap_cut(options: Options) -> list[Result]:
    """A network cut of the node with most leaderships."""
    try:
        with Wires(NODES) as wires:
            cut = _on_victim(lambda _, victim: wires.cut(victim))
            mend = _on_victim(lambda _, victim: wires.mend(victim))
            fault = Fault("network cut", 2.5, cut, mend)
            return _both_ways(fault, options, wires.places)
    except NoWiresError as error:
        print(f"   skipped: {error}", flush=True)
        return []


def _both_ways(fault: Fault, options: Options, places: Sequence[Place] = ()) -> list[Result]:
    results: list[Result] = []
    with running_cluster(options.flush, places) as cluster:
        run_workload(cluster.create_topic(TOPIC))
        for how, prober in (("client", by_client), ("any node by HTTP", by_http)):
            trials = run_workload(
                _trials(fault, cluster, prober, options.trials), options.trials * TRIAL_TIMEOUT_S
            )
            results += gap_results(fault, how, trials)
            if any(trial.failure for trial in trials):
                break
    return results


gap_kill: Final = partial(_both_ways, KILL)
"""SIGKILL of the node with most leaderships."""
gap_pause: Final = partial(_both_ways, PAUSE)
"""SIGSTOP of the node with most leaderships."""
gap_move: Final = partial(_both_ways, MOVE)
"""A planned move of one partition's leadership."""


def gap_results(fault: Fault, how: str, trials: list[Trial]) -> list[Result]:
    """The distribution of all trials."""
    found = distribution(
        f"cluster: gap, {fault.name}, {how}:",
        [trial.gap_s for trial in trials],
        {"p50": None, "p99": fault.goal_s, "max": None},
        {"partitions": PARTITIONS, "replicas": NODES},
    )
    found[0].details["trials"] = trials
    return found


async def _trials(fault: Fault, cluster: Cluster, prober: Prober, count: int) -> list[Trial]:
    randomness = random.Random(SEED)
    done: list[Trial] = []
    await cluster.wait_settled([TOPIC])
    seen = Acknowledgements(PARTITIONS)
    probing = asyncio.create_task(prober(cluster.addresses, TOPIC, seen, PARTITIONS))
    try:
        await while_probing(probing, wait_all_since(seen, time.perf_counter()))
        while len(done) < count and not (done and done[-1].failure):
            trial = await while_probing(probing, _trial(fault, cluster, seen, randomness))
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


def _choose_trial(
    fault: Fault, rows: Sequence[Row], controller: int | None, randomness: random.Random
) -> Trial:
    """Choose the victim: the node with most leaderships, or the leader of a partition."""
    if fault is MOVE:
        row = randomness.choice(rows)
        return Trial(row.leader, row.leader == controller, [row.partition])
    victim = leads_most(rows, randomness)
    led = [row.partition for row in rows if row.leader == victim]
    return Trial(victim, victim == controller, led)


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
        await wait_all_since(seen, struck)
        await asyncio.sleep(AFTERMATH_S)
        await wait_all_since(seen, time.perf_counter())
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
        await wait_all_since(seen, time.perf_counter())
    except NotWholeError as error:
        trial.failure = trial.failure or str(error)
    trial.whole_s = time.perf_counter() - healed
    trial.return_gap_s = max(seen.gaps(healed, time.perf_counter()))
    trial.prober_late_s, trial.errors = seen.late_s_max, dict(seen.errors.most_common(10))
    return trial
