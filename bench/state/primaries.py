"""The time without an acknowledged put: a primary killed, paused, handed over."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from bench.cluster import run_workload, running_cluster
from bench.kept_connection import NoAnswerError
from bench.node import data_directory
from bench.report import Options, Result, distribution
from bench.state.processes import REPLICAS, Store, running_store

RETRY_S: Final = 0.005
CALM_S: Final = (0.3, 1.3)
SEED: Final = 16
TRIALS_MAX: Final = 40

Fault = Callable[[Store, str], Awaitable[None]]


async def _kill(store: Store, victim: str) -> None:
    store.signal(signal.SIGKILL, victim)


async def _pause(store: Store, victim: str) -> None:
    store.signal(signal.SIGSTOP, victim)


async def _hand_over(store: Store, victim: str) -> None:
    heir = next(name for name in REPLICAS if name != victim)
    answer = await store.call("POST", store.addresses[victim], f"/hand-over/{heir}")
    assert answer.status == 204, answer


def _measure(how: str, goal_s: float, fault: Fault, options: Options) -> list[Result]:
    gaps: list[float] = []

    async def trials(servers: str, directory: Path) -> None:
        randomness = random.Random(SEED)
        async with running_store(Store(servers, "takeover", directory)) as store:
            for _ in range(min(options.trials, TRIALS_MAX)):
                await store.caught_up()
                await asyncio.sleep(randomness.uniform(*CALM_S))
                victim = await store.primary()
                gaps.append(await _trial(store, victim, fault))
                print(f"   {how}: {gaps[-1]:.3f} s", flush=True)
                if fault is _kill:
                    store.start(victim)
                elif fault is _pause:
                    store.signal(signal.SIGCONT, victim)

    with data_directory() as directory, running_cluster(options.flush) as cluster:
        run_workload(trials(cluster.servers, directory.parent), 1_800)
    name = f"state: primary {how} to next put,"
    return distribution(name, gaps, {"p50": None, "p99": goal_s}, {})


async def _trial(store: Store, victim: str, fault: Fault) -> float:
    """From the fault to the next acknowledgement, by a client that follows redirects."""
    others = [store.addresses[name] for name in REPLICAS if name != victim]
    begun = time.perf_counter()
    await fault(store, victim)
    target, turn = others[0], 0
    while True:
        turn += 1
        with suppress(NoAnswerError):
            answer = await store.call("PUT", target, "/kv/probe", b"x")
            if answer.status == 200:
                return time.perf_counter() - begun
            if answer.status == 307 and answer.location is not None:
                primary = answer.location.split("/")[2]
                if primary in others and primary != target:
                    target = primary
                    continue
        target = others[turn % len(others)]
        await asyncio.sleep(RETRY_S)


killed: Final = partial(_measure, "killed", 0.6, _kill)
"""SIGKILL."""
paused: Final = partial(_measure, "paused", 2.0, _pause)
"""SIGSTOP, for longer than the lease."""
handed_over: Final = partial(_measure, "handed over", 0.1, _hand_over)
"""A planned change."""
