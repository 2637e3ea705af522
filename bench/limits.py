"""The machine's own limits, measured in the same run: bounds for any log here."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from bench.node import data_directory
from bench.report import Options, Result
from raftlog.workloads.latencies import Latencies

SYNCS = 300
SEQUENTIAL_BYTES = 1 << 30
CHUNK_BYTES = 4 << 20


def sync_latency(directory: Path) -> Latencies:
    """Append 200 bytes and fdatasync, again and again: the floor of a lone produce."""
    block = os.urandom(200)
    samples = []
    descriptor = os.open(directory / "sync", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(SYNCS):
            started = time.perf_counter()
            os.write(descriptor, block)
            os.fdatasync(descriptor)
            samples.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
    return Latencies.from_seconds(samples)


def sequential_write(directory: Path, total_bytes: int) -> float:
    """Bytes a second of writing and syncing 4 MiB at a time."""
    block = os.urandom(CHUNK_BYTES)
    descriptor = os.open(directory / "sequential", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    started = time.perf_counter()
    try:
        for _ in range(total_bytes // CHUNK_BYTES):
            os.write(descriptor, block)
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return total_bytes / (time.perf_counter() - started)


def fresh_memory(total_bytes: int) -> float:
    """Bytes a second of touching memory for the first time, as every new page of a log is.

    Can be slower than the disk on a virtual machine whose host takes free pages back.
    """
    started = time.perf_counter()
    with mmap.mmap(-1, total_bytes) as memory:
        for position in range(0, total_bytes, mmap.PAGESIZE):
            memory[position] = 1
    return total_bytes / (time.perf_counter() - started)


def run(options: Options) -> list[Result]:
    """Disk and memory, to read the other figures against."""
    total_bytes = max(CHUNK_BYTES, int(SEQUENTIAL_BYTES * options.scale))
    p50 = Result("limit: append 200 B + fdatasync p50", "ms")
    p99 = Result("limit: append 200 B + fdatasync p99", "ms")
    write = Result("limit: sequential write + fdatasync", "MB/s")
    memory = Result("limit: first touch of memory", "MB/s")
    for _ in range(options.runs):
        with data_directory() as directory:
            latencies = sync_latency(directory.parent)
            p50.runs.append(latencies.percentiles["50pct"])
            p99.runs.append(latencies.percentiles["99pct"])
            write.runs.append(sequential_write(directory.parent, total_bytes) / 1e6)
        memory.runs.append(fresh_memory(total_bytes) / 1e6)
    return [p50, p99, write, memory]
