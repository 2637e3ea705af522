"""The metadata quorum: commits, failover, idle cost, and the cost of much metadata.

Commits are measured inside the leader (bench/quorum_node.py), from proposal to application. A
failover lasts from the SIGKILL to the first change that any survivor acknowledges to a client.
Probes leave every ten milliseconds, whether or not earlier probes were answered: a probe that waits
for the dead leader must not hide a survivor that would have served another.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections.abc import Sequence
from itertools import count, cycle
from typing import Any, Final

from bench.cluster import NODES, Cluster, Meter, running_cluster
from bench.kept_connection import NoAnswerError, request_once
from bench.node import MeasuredNode
from bench.report import Options, Percentiles, Result, distribution
from raftlog.workloads.latencies import Latencies

CLIENTS: Final = 32
COMMITS: Final = 3_000
THROUGHPUT_S: Final = 5.0
FAILOVERS: Final = 50
IDLE_S: Final = 20.0
SETTLE_S: Final = 3.0
SETTLE_ROUNDS_MAX: Final = 40
PARTITIONS: Final = 100_000
SNAPSHOTS: Final = 2
STALLS_S: Final = (5.0, 20.0)
"""Watch of the followers' loops while the leader commits until its snapshots are taken."""
ANSWER_TIMEOUT_S: Final = 240.0
FIRST_VALUE: Final = 1_000
"""Valid for the setting that the probes write, as is every larger value."""
SETTINGS_PATH: Final = "/v1/cluster/settings"
WITH_CONSOLE: Final = (sys.executable, "-m", "bench.quorum_node")


class ConsoleError(Exception):
    """A node with a console did not execute a command."""


class ConsoleCall:
    """A command under way on a node with a console."""

    def __init__(self, node: MeasuredNode, command: str) -> None:
        self._node = node
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        self._socket.connect(str(node.console))
        self._socket.sendall(command.encode() + b"\n")

    def result(self) -> dict[str, Any]:
        """Wait for the answer. Raises ConsoleError."""
        log = self._node.log
        try:
            with self._socket, self._socket.makefile("rb") as answers:
                line = answers.readline()
        except OSError as error:
            raise ConsoleError(f"{error}; see {log}") from error
        if not line:
            raise ConsoleError(f"the node ended; see {log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ConsoleError(f"{answer['error']}; see {log}")
        return answer


def execute(node: MeasuredNode, command: str) -> dict[str, Any]:
    """Send a command and wait for its answer. Raises ConsoleError, OSError."""
    return ConsoleCall(node, command).result()


def commits(options: Options) -> list[Result]:
    """Commit latency one at a time, and commands a second of many proposers."""
    count = max(200, int(COMMITS * options.scale))
    seconds = max(1.0, THROUGHPUT_S * options.scale)
    commit = Percentiles(
        "quorum: commit {}, 3 nodes", {"p50": 1.5, "p99": None}, {"commands": count}
    )
    rate = Result(
        f"quorum: commands/s, {CLIENTS} proposers",
        "1/s",
        goal=10_000,
        parameters={"seconds": seconds},
    )
    with running_cluster(options.flush, program=WITH_CONSOLE) as cluster:
        for _ in range(options.runs):
            leader = cluster.nodes[cluster.wait_quiet()]
            commit.note(Latencies.from_seconds(execute(leader, f"latency {count}")["seconds"]))
            counted = execute(leader, f"throughput {CLIENTS} {seconds}")
            rate.runs.append(counted["committed"] / counted["seconds"])
    return [*commit.results, rate]


def failovers(options: Options) -> list[Result]:
    """Leader killed → a change acknowledged by a new one."""
    trial_count = max(3, int(FAILOVERS * options.scale))
    with running_cluster(options.flush) as cluster:
        seconds = failover_trials(cluster, trial_count, seed=trial_count)
    return failover_results(seconds)


def failover_results(seconds: list[float]) -> list[Result]:
    """The distribution of all trials."""
    goals = {"p50": 0.4, "p90": None, "p99": 1.0, "max": None}
    return distribution("quorum: failover", seconds, goals, {"nodes": NODES})


def idle(options: Options) -> list[Result]:
    """Processor time of idle nodes: the most expensive node of each run."""
    seconds = max(2.0, IDLE_S * options.scale)
    cpu = Result(
        "quorum: idle CPU a node", "% of a core", goal=2.0, parameters={"seconds": seconds}
    )
    rss = Result("quorum: idle RSS a node", "MiB")
    with running_cluster(options.flush) as cluster:
        time.sleep(SETTLE_S)
        for number in range(options.runs):
            meter = Meter(cluster)
            time.sleep(seconds)
            used = meter.percent(seconds)
            cpu.runs.append(max(used.values()))
            cpu.details[f"run {number}"] = {"leader": cluster.leader(), "percent": used}
            rss.runs.append(max(cluster.rss_mib().values()))
    return [cpu, rss]


def much_metadata(options: Options) -> list[Result]:
    """Memory, stalls while snapshots are taken, and the restart of a node, with many partitions."""
    count = max(1_000, int(PARTITIONS * options.scale))
    memory = Result(f"quorum: {count:,} partitions, RSS grown a node", "MiB", goal=200)
    stall = Result(f"quorum: {count:,} partitions, longest stall", "ms", goal=20.0)
    follower_stall = Result(
        f"quorum: {count:,} partitions, longest stall of followers", "ms", goal=20.0
    )
    restart = Result(f"quorum: {count:,} partitions, restart to ready", "s", goal=3.0)
    with running_cluster(options.flush, program=WITH_CONSOLE) as cluster:
        empty = cluster.rss_mib()
        leader = cluster.nodes[cluster.wait_quiet()]
        created = execute(leader, f"partitions {count}")
        memory.details["seconds to create"] = created["seconds"]
        leader_id = _wait_settled(cluster)
        grown = {node_id: rss - empty[node_id] for node_id, rss in cluster.rss_mib().items()}
        memory.runs.append(max(grown.values()))
        memory.details["RSS grown, MiB"] = grown

        followers = [node_id for node_id in cluster.nodes if node_id != leader_id]
        watches = {
            node_id: ConsoleCall(
                cluster.nodes[node_id], f"stalls {max(STALLS_S[0], STALLS_S[1] * options.scale)}"
            )
            for node_id in followers
        }
        taken = execute(cluster.nodes[leader_id], f"snapshot {SNAPSHOTS}")
        stall.runs.append(taken["stall_s_max"] * 1000)
        stall.details["leader"] = taken
        found = {node_id: watch.result() for node_id, watch in watches.items()}
        follower_stall.runs.append(max(one["stall_s_max"] for one in found.values()) * 1000)
        follower_stall.details["followers"] = found

        for node_id in followers:
            cluster.kill(node_id)
            started = time.perf_counter()
            cluster.revive(node_id)
            restart.runs.append(time.perf_counter() - started)
            cluster.wait_quiet()
        memory.details["RSS after the restart, MiB"] = cluster.rss_mib()
    return [memory, stall, follower_stall, restart]


def _wait_settled(cluster: Cluster) -> int:
    """The leader, once nothing is committed any more: the absent brokers are fenced first."""
    applied = -1
    for _ in range(SETTLE_ROUNDS_MAX):
        leader_id = cluster.wait_quiet()
        now = int(execute(cluster.nodes[leader_id], "status")["applied_index"])
        if now == applied:
            return leader_id
        applied = now
        time.sleep(SETTLE_S)
    raise ConsoleError(f"the cluster was still committing after {SETTLE_ROUNDS_MAX * SETTLE_S} s")


PROBE_INTERVAL_S: Final = 0.01
PROBE_TIMEOUT_S: Final = 5.0
PROBES_MAX: Final = 1_000
"""Of one trial; after ten seconds the trial has failed."""
CALM_S: Final = (0.3, 0.9)
"""Between two trials, drawn, so that the kill meets the leader's timers at any phase."""


class FailoverError(Exception):
    """No survivor acknowledged anything in time."""


def failover_trials(cluster: Cluster, trial_count: int, seed: int) -> list[float]:
    """Run so many failovers; return the seconds of each. The cluster is whole after each trial."""
    randomness = random.Random(seed)
    values = count(FIRST_VALUE)
    seconds = []
    for _ in range(trial_count):
        leader = cluster.wait_quiet()
        time.sleep(randomness.uniform(*CALM_S))
        survivors = [node.address for node_id, node in cluster.nodes.items() if node_id != leader]
        seconds.append(asyncio.run(_failover(cluster, leader, survivors, values)))
        cluster.revive(leader)
    return seconds


async def _failover(
    cluster: Cluster, leader: int, survivors: Sequence[str], values: count[int]
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
    body = json.dumps({"values": {"retention.ms": str(value)}}).encode()
    try:
        answer = await request_once(address, "PUT", SETTINGS_PATH, body, timeout_s=PROBE_TIMEOUT_S)
    except NoAnswerError:
        return
    if answer.status == 200 and not acknowledged.done():
        acknowledged.set_result(time.perf_counter())
