"""Failover of the quorum: the time without commits after the leader is killed.

From the SIGKILL to the first change acknowledged by any survivor. Probes leave every ten
milliseconds, whether or not earlier probes were answered: a probe that waits for the dead leader
must not hide a survivor that would have served another.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from itertools import count, cycle
from typing import Final

from bench.cluster_processes import ClusterProcesses
from bench.kept_connection import KeptConnection, NotSentError, OutcomeLostError
from bench.soak.register_clients import FIRST_VALUE, SETTINGS_PATH

PROBE_INTERVAL_S: Final = 0.01
PROBE_TIMEOUT_S: Final = 5.0
PROBES_MAX: Final = 1_000
"""Of one trial; after ten seconds the trial has failed."""
CALM_S: Final = (0.3, 0.9)
"""Between two trials, drawn, so that the kill meets the leader's timers at any phase."""


class FailoverError(Exception):
    """No survivor acknowledged anything in time."""


def trials(cluster: ClusterProcesses, trial_count: int, seed: int) -> list[float]:
    """Run so many failovers; return the seconds of each. The cluster is whole after each trial."""
    randomness = random.Random(seed)
    values = count(FIRST_VALUE)
    seconds = []
    for _ in range(trial_count):
        leader = cluster.wait_quiet()
        time.sleep(randomness.uniform(*CALM_S))
        survivors = [node.address for node_id, node in cluster.nodes.items() if node_id != leader]
        seconds.append(asyncio.run(_failover(cluster, leader, survivors, values)))
        cluster.restart(leader)
        cluster.nodes[leader].wait_ready()
    return seconds


async def _failover(
    cluster: ClusterProcesses, leader: int, survivors: Sequence[str], values: count[int]
) -> float:
    acknowledged: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    probes: set[asyncio.Task[None]] = set()
    started = time.perf_counter()
    killing = asyncio.create_task(asyncio.to_thread(cluster.kill, leader))
    try:
        for address, _ in zip(cycle(survivors), range(PROBES_MAX), strict=False):
            probes.add(asyncio.create_task(_probe(address, next(values), acknowledged)))
            await asyncio.wait({acknowledged}, timeout=PROBE_INTERVAL_S)
            if acknowledged.done():
                return acknowledged.result() - started
    finally:
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await killing
    raise FailoverError(f"nothing was acknowledged within {PROBES_MAX * PROBE_INTERVAL_S} s")


async def _probe(address: str, value: int, acknowledged: asyncio.Future[float]) -> None:
    connection = KeptConnection(address)
    body = json.dumps({"values": {"retention.ms": str(value)}}).encode()
    try:
        answer = await connection.request("PUT", SETTINGS_PATH, body, timeout_s=PROBE_TIMEOUT_S)
    except (NotSentError, OutcomeLostError):
        return
    finally:
        connection.close()
    if answer.status == 200 and not acknowledged.done():
        acknowledged.set_result(time.perf_counter())
