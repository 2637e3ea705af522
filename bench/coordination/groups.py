"""`scripts/bench groups`: rebalances, a killed member, idle members, commits, reading.

    python -m bench.coordination.groups SERVERS TOPIC GROUP SESSION_MS

is a member of a group in a separate process, to be killed. It writes the numbers of its partitions
at each change, in one line.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import uvloop
from raftlog_client import Consumer, RebalanceListener, TopicPartition

from bench.cluster import (
    PARTITIONS,
    Cluster,
    Meter,
    cancelled,
    run_workload,
    running_cluster,
)
from bench.kept_connection import KeptConnection
from bench.report import Options, Percentiles, Result
from raftlog.record.coordinators import OFFSETS_TOPIC, partition_of
from raftlog.workloads import groups as load
from raftlog.workloads.latencies import Latencies
from raftlog.workloads.load import consume, send_many

MEMBERS: Final = 8
GROUP_PARTITIONS: Final = 64
TRIALS: Final = 20
"""Joins, and leaves, of one run."""
SESSION_MS: Final = 3_000
KILLS: Final = 5
IDLE_GROUPS: Final = 100
IDLE_MEMBERS_EACH: Final = 10
IDLE_S: Final = 30.0
STARTED_AT_ONCE: Final = 20
IDLE_SESSION_MS: Final = 10_000
SETTLE_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.01
CLIENTS: Final = 32
COMMIT_S: Final = 5.0
RECORDS: Final = 3_000_000
TOPIC: Final = "grouped"


def rebalance(options: Options) -> list[Result]:
    """A member joins and leaves a group of 8 on 64 partitions."""
    trials = max(3, int(TRIALS * options.scale))
    given = {"members": MEMBERS, "partitions": GROUP_PARTITIONS, "trials": trials}
    joins, leaves = (
        Percentiles(f"groups: member {what}, {{}}", {"p50": 0.15, "p99": 0.5}, given, unit="s")
        for what in ("joins", "leaves")
    )
    kept = Result("groups: kept partitions, gap", "s", parameters=given)
    calm = Result("groups: no rebalance, gap", "s", parameters=given)
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC, GROUP_PARTITIONS))
        for run in range(options.runs):
            found = run_workload(
                load.rebalances(
                    cluster.servers,
                    TOPIC,
                    GROUP_PARTITIONS,
                    f"rebalance-{run}",
                    members=MEMBERS,
                    trials=trials,
                )
            )
            joins.note(Latencies.from_seconds(found.joins))
            leaves.note(Latencies.from_seconds(found.leaves))
            kept.runs.append(statistics.median(found.kept_gaps))
            calm.runs.append(statistics.median(found.calm_gaps))
            kept.details[f"run {run + 1}"] = {"all": found.kept_gaps, "calm": found.calm_gaps}
    return [*joins.results, *leaves.results, kept, calm]


def member_kill(options: Options) -> list[Result]:
    """SIGKILL of a member: its partitions are delivered again, after its session."""
    given = {"members": MEMBERS, "partitions": GROUP_PARTITIONS, "session_ms": SESSION_MS}
    beyond = Result(
        "groups: member killed, delivered again after its session", "s", goal=0.3, parameters=given
    )
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC, GROUP_PARTITIONS))
        for kill in range(max(1, int(KILLS * min(options.scale, 1.0)))):
            beyond.runs.append(run_workload(_kill_member(cluster, f"killed-{kill}")))
            print(f"   after the session: {beyond.runs[-1]:.3f} s", flush=True)
    return [beyond]


async def _kill_member(cluster: Cluster, name: str) -> float:
    """Seconds beyond the session until every partition of the victim has delivered a record."""
    async with load.MeasuredGroup(
        cluster.servers, TOPIC, GROUP_PARTITIONS, name, session_timeout_ms=SESSION_MS
    ) as group:
        for _ in range(MEMBERS - 1):
            await (await group.add()).join()
        await group.settled()
        command = (sys.executable, "-m", "bench.coordination.groups")
        victim = await asyncio.create_subprocess_exec(
            *command, cluster.servers, TOPIC, name, str(SESSION_MS), stdout=subprocess.PIPE
        )
        try:
            assert victim.stdout is not None
            owned: list[int] = []
            while len(owned) != GROUP_PARTITIONS // MEMBERS:
                async with asyncio.timeout(SETTLE_TIMEOUT_S):
                    line = await victim.stdout.readline()
                assert line, "the member ended by itself"
                owned = list(map(int, line.split()))
            await group.settled(others=1)
            started = time.perf_counter()
        finally:
            victim.kill()
            await victim.wait()
        await _until(lambda: min(map(group.last_delivery, owned)) > started)
        return max(map(group.last_delivery, owned)) - started - SESSION_MS / 1000


async def _until(is_so: Callable[[], bool]) -> None:
    """Return soon after the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while not is_so():  # noqa: ASYNC110 - the clients notify nobody
            await asyncio.sleep(POLL_S)


def members_idle(options: Options) -> list[Result]:
    """1,000 idle members in 100 groups: processor time of the nodes."""
    groups = max(2, int(IDLE_GROUPS * min(options.scale, 1.0)))
    seconds = max(5.0, IDLE_S * min(options.scale, 1.0))
    given = {"groups": groups, "members": groups * IDLE_MEMBERS_EACH, "seconds": seconds}
    name = f"groups: {groups * IDLE_MEMBERS_EACH:,} idle members, CPU of 3 nodes"
    loaded = Result(name, "% of a core", goal=10.0, parameters=given)
    empty = Result("groups: no members, CPU of 3 nodes", "% of a core", parameters=given)
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC, IDLE_MEMBERS_EACH))
        time.sleep(5.0)
        for _ in range(options.runs):
            meter = Meter(cluster)
            time.sleep(seconds)
            empty.runs.append(sum(meter.percent(seconds).values()))
        loaded.runs += run_workload(_idle(cluster, groups, seconds, options.runs), 1_800)
        loaded.details["load average"] = os.getloadavg()[0]
        loaded.details["rss MiB"] = cluster.rss_mib()
    return [loaded, empty]


class _IdleMember:
    """A member as the client is one, with held heartbeats to the coordinator, and no fetches."""

    def __init__(self, address: str, group: str, member_id: str) -> None:
        self._assigned: list[dict[str, Any]] = []
        self._connection = KeptConnection(address)
        self._path = f"/v1/groups/{group}/heartbeat"
        self._member_id = member_id

    async def run(self) -> None:
        """Join, then heartbeat for ever. AssertionError: refused."""
        answer = await self._heartbeat(
            {"topics": [TOPIC], "session_timeout_ms": IDLE_SESSION_MS, "owned": []}
        )
        while True:
            body = {
                "member_epoch": answer["member_epoch"],
                "max_wait_ms": answer["heartbeat_interval_ms"],
            }
            if answer.get("assignment") is not None:
                self._assigned = answer["assignment"]
                body["owned"] = [
                    {"topic_id": one["topic_id"], "partitions": one["partitions"]}
                    for one in self._assigned
                ]
            answer = await self._heartbeat(body)

    async def _heartbeat(self, body: dict[str, Any]) -> Any:
        data = json.dumps({"member_id": self._member_id, **body}).encode()
        answer = await self._connection.request("POST", self._path, data, timeout_s=60.0)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    @property
    def count(self) -> int:
        """Assigned partitions."""
        return sum(len(one["partitions"]) for one in self._assigned)

    def close(self) -> None:
        """Close the connection: the session ends later."""
        self._connection.close()


async def _idle(cluster: Cluster, groups: int, seconds: float, runs: int) -> list[float]:
    async with Consumer(
        bootstrap_servers=cluster.servers, group_id="first", auto_commit_interval_ms=None
    ) as consumer:
        await consumer.commit({TopicPartition(TOPIC, 0): 0})
    await cluster.wait_in_sync([OFFSETS_TOPIC])
    shards = await cluster.known([OFFSETS_TOPIC])
    members = []
    for number in range(groups * IDLE_MEMBERS_EACH):
        group = f"idle-{number % groups}"
        leader = shards[partition_of(group, len(shards))].leader
        members.append(_IdleMember(cluster.addresses[leader], group, f"member-{number}"))
    running: list[asyncio.Task[None]] = []

    def is_settled() -> bool:
        for task in running:
            if task.done():
                task.result()
        return all(member.count == 1 for member in members)

    try:
        for start in range(0, len(members), STARTED_AT_ONCE):
            some = members[start : start + STARTED_AT_ONCE]
            running += [asyncio.create_task(member.run()) for member in some]
            await asyncio.sleep(0.1)
        await _until(is_settled)
        await asyncio.sleep(10.0)
        found = []
        for _ in range(runs):
            meter = Meter(cluster)
            await asyncio.sleep(seconds)
            found.append(sum(meter.percent(seconds).values()))
            print(f"   {len(members):,} members: {found[-1]:.1f} % of a core", flush=True)
        assert is_settled(), "members lost their sessions"
        return found
    finally:
        await cancelled(*running)
        for member in members:
            member.close()


def commits(options: Options) -> list[Result]:
    """Offset commits of 32 clients, and of one."""
    seconds = max(1.0, COMMIT_S * options.scale)
    given = {"clients": CLIENTS, "seconds": seconds}
    rate = Result(
        f"groups: commits of {CLIENTS} clients", "commits/s", goal=10_000, parameters=given
    )
    many = Percentiles(f"groups: commits of {CLIENTS} clients, {{}}", {"p99": None}, given)
    lone = Percentiles("groups: lone commit {}", {"p50": 1.5, "p99": None}, given)
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC))
        for run in range(options.runs):
            for figures, clients in ((many, CLIENTS), (lone, 1)):
                meter = Meter(cluster)
                found = run_workload(
                    load.commits(
                        cluster.servers,
                        TOPIC,
                        PARTITIONS,
                        f"{clients}-{run}",
                        clients=clients,
                        seconds=seconds,
                    )
                )
                each = meter.microseconds_each(len(found.latencies))
                figures.note(Latencies.from_seconds(found.latencies), **each)
                if clients == CLIENTS:
                    rate.runs.append(len(found.latencies) / found.seconds)
    return [rate, *many.results, *lone.results]


def consume_in_group(options: Options) -> list[Result]:
    """Reading as the only member of a group, against partitions assigned by hand, in turn."""
    count = max(10_000, int(RECORDS * options.scale))
    given = {"records": count, "record_bytes": 100, "partitions": PARTITIONS}
    ratio = Result("groups: consume in a group / by hand, 100 B", "", goal=0.97, parameters=given)
    by_hand = Result("groups: consume by hand", "records/s", parameters=given)
    in_group = Result("groups: consume in a group", "records/s", parameters=given)
    with running_cluster(options.flush) as cluster:
        run_workload(cluster.create_topic(TOPIC))
        run_workload(send_many(cluster.servers, TOPIC, 100, count))
        for run in range(options.runs):
            for result, group in ((by_hand, None), (in_group, f"read-{run}")):
                found = run_workload(consume(cluster.servers, TOPIC, PARTITIONS, group=group))
                result.runs.append(found.records / found.seconds)
        ratio.runs.append(in_group.median / by_hand.median)
    return [ratio, in_group, by_hand]


class _Printer(RebalanceListener):
    def __init__(self) -> None:
        self._owned: set[int] = set()

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._owned |= {place.partition for place in assigned}
        print(*sorted(self._owned), flush=True)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._owned -= {place.partition for place in revoked}
        print(*sorted(self._owned), flush=True)


async def _consume(servers: str, topic: str, group: str, session_ms: int) -> None:
    async with Consumer(
        bootstrap_servers=servers, group_id=group, session_timeout_ms=session_ms
    ) as consumer:
        await consumer.subscribe([topic], listener=_Printer())
        while True:
            await consumer.getmany(timeout_ms=500)


def main() -> None:
    servers, topic, group, session_ms = sys.argv[1:]
    uvloop.run(_consume(servers, topic, group, int(session_ms)))


if __name__ == "__main__":
    main()
