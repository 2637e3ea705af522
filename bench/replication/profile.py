"""Processor time by function: `perf` on leader, follower and client, if installed.

One node leads all partitions, so that leader and follower show apart. The nodes also run a sampler
of Python frames (bench/replication/sampled.py): `perf` knows the interpreter's C functions only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.cluster_processes import ClusterProcesses
from bench.node import data_directory
from bench.replication.cluster import (
    NODES,
    PARTITIONS,
    Cluster,
    Meter,
    Options,
    run_workload,
)
from bench.replication.sampled import SERVE_SAMPLED, samples_of, sampling
from raftlog.workloads.load import send_many

FREQUENCY: Final = 499
RECORD: Final = ("perf", "record", "-F", str(FREQUENCY), "-g")
REPORT: Final = (
    *("perf", "report", "--stdio", "--no-children", "-g", "none", "--percent-limit", "0.5"),
    *("--sort", "dso,symbol"),
)
ROWS: Final = 25
PERF_TIMEOUT_S: Final = 120.0
TOPIC: Final = "profiled"
LEADER: Final = 1
FOLLOWER: Final = 2


def produce(options: Options) -> None:
    """Print the profiles of leader, follower and client during produce."""
    for size_bytes, count in ((1_000, 500_000), (100, 2_000_000)):
        with data_directory() as directory:
            _profile(directory, options, size_bytes, max(10_000, int(count * options.scale)))


def _profile(directory: Path, options: Options, size_bytes: int, count: int) -> None:
    directory.mkdir(parents=True)
    with ClusterProcesses(
        directory, NODES, flush=options.flush, program=SERVE_SAMPLED
    ) as processes:
        processes.start()
        cluster = Cluster(processes)
        run_workload(_prepare(cluster))
        pids = {
            "leader": processes.nodes[LEADER].pid,
            "follower": processes.nodes[FOLLOWER].pid,
            "client": os.getpid(),
        }
        own: dict[str, int] = {}
        with _perf(pids, directory), _node_frames(processes), sampling(own):
            meter = Meter(cluster)
            seconds = run_workload(send_many(cluster.servers, TOPIC, size_bytes, count))
            used = meter.used()
        megabytes = count * size_bytes / 1e6
        print(f"\n-- send_many {size_bytes} B, node {LEADER} leads: {megabytes / seconds:.0f} MB/s")
        for name, (user, system) in used.items():
            print(
                f"   {name}: {user / megabytes * 1e3:.1f}+{system / megabytes * 1e3:.1f} ms/MB, "
                f"{(user + system) / seconds:.0%} of a core"
            )
        paths = {node_id: samples_of(node.data_dir) for node_id, node in processes.nodes.items()}
        for node in processes.nodes.values():
            node.stop()
    frames = {
        "leader": json.loads(paths[LEADER].read_text()),
        "follower": json.loads(paths[FOLLOWER].read_text()),
        "client": own,
    }
    for role in pids:
        _print_perf(role, directory)
        _print_frames(role, frames[role])


async def _prepare(cluster: Cluster) -> None:
    await cluster.create_topic(TOPIC, PARTITIONS)
    await cluster.lead_by(LEADER, TOPIC)
    await cluster.wait_in_sync([TOPIC])


@contextmanager
def _node_frames(processes: ClusterProcesses) -> Iterator[None]:
    """Let the nodes sample their frames while the block runs."""
    for node in processes.nodes.values():
        os.kill(node.pid, signal.SIGUSR1)
    try:
        yield
    finally:
        for node in processes.nodes.values():
            os.kill(node.pid, signal.SIGUSR1)


@contextmanager
def _perf(pids: dict[str, int], directory: Path) -> Iterator[None]:
    """Record the processes while the block runs; nothing if there is no `perf`."""
    if shutil.which("perf") is None:
        print("   no perf here: Python frames only")
        yield
        return
    with ExitStack() as stack:
        for role, pid in pids.items():
            recorder = subprocess.Popen(
                (*RECORD, "-p", str(pid), "-o", str(directory / f"{role}.perf")),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(_end, recorder)
        yield


def _end(recorder: subprocess.Popen[bytes]) -> None:
    # SIGINT makes perf write its file.
    recorder.send_signal(signal.SIGINT)
    try:
        recorder.wait(PERF_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        recorder.kill()
        recorder.wait()
        raise


def _print_perf(role: str, directory: Path) -> None:
    path = directory / f"{role}.perf"
    if not path.exists():
        return
    done = subprocess.run(
        (*REPORT, "-i", str(path)),
        capture_output=True,
        text=True,
        timeout=PERF_TIMEOUT_S,
        check=False,
    )
    rows = [line for line in done.stdout.splitlines() if line.strip() and line[0] != "#"]
    print(f"\n   perf, {role}:" + "".join(f"\n   {row.rstrip()}" for row in rows[:ROWS]))


def _print_frames(role: str, samples: dict[str, int]) -> None:
    total = sum(samples.values()) or 1
    rows = sorted(samples.items(), key=lambda item: -item[1])[:ROWS]
    print(f"\n   Python frames, {role} ({total} samples):")
    for where, number in rows:
        print(f"   {number / total:6.1%}  {where}")
