"""Measure the storage layer alone, without HTTP: `python -m bench.storage_probe [--dir D]`.

Appends with group commit, lone small appends, sequential reads from the page cache, and the time to
open logs again after a clean and an unclean stop. Figures: docs/decisions/group-commit.md.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from raftlog.record.batch import RecordBatch, split_batches
from raftlog.record.codec import BatchBuilder
from raftlog.record.types import LeaderEpoch, Offset, PartitionId, TopicId
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.types import FlushMode, LogConfig
from raftlog.world.real_disk import FileSystemDisk
from raftlog.world.time import SystemClock

TOPIC = TopicId("0" * 32)
EPOCH = LeaderEpoch(1)
CONFIG = LogConfig(max_message_bytes=2 << 20)


def make_batch(size_bytes: int) -> RecordBatch:
    """One batch of about `size_bytes`."""
    builder = BatchBuilder(size_bytes_max=2 << 20)
    value = b"v" * min(1000, size_bytes)
    while builder.size_bytes + len(value) + 20 < size_bytes or not builder.record_count:
        builder.append(1_700_000_000_000, None, value, [])
    return split_batches(builder.build(), max_message_bytes=2 << 20)[0]


async def open_logs(disk: FileSystemDisk, count: int, config: LogConfig = CONFIG) -> LogManager:
    """A manager with `count` replicas, made if need be."""
    manager = await LogManager.open(disk, SystemClock())
    await asyncio.gather(
        *(
            manager.open_replica(TOPIC, PartitionId(number), config, create=True)
            for number in range(count)
        )
    )
    await manager.start()
    return manager


async def appends(directory: Path, partitions: int, size_bytes: int, flush: FlushMode) -> None:
    """Append with eight writers a partition, each waiting for durability."""
    disk = FileSystemDisk(directory)
    manager = await open_logs(disk, partitions, LogConfig(max_message_bytes=2 << 20, flush=flush))
    batch = make_batch(size_bytes)
    total = max((1 << 30) // batch.header.size_bytes, 1) if size_bytes > 10_000 else 20_000
    left = total

    async def write(log: Log) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await log.appender.append([batch], EPOCH)
            if flush is FlushMode.SYNC:
                await log.flush()
            else:
                await asyncio.sleep(0)

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write(log) for log in manager.logs().values() for _ in range(8)))
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    size = total * batch.header.size_bytes
    print(
        f"append {flush:5} {batch.header.size_bytes:8} B x {partitions:2} partitions: "
        f"{size / elapsed / 1e6:6.0f} MB/s {total / elapsed:8.0f} batches/s, "
        f"{manager.totals().syncs / elapsed:6.0f} syncs/s, cpu {cpu / elapsed * 100:3.0f} %"
    )
    await manager.close()
    disk.close()


async def lone(directory: Path) -> None:
    """One small append at a time, each durable before the next."""
    disk = FileSystemDisk(directory)
    manager = await open_logs(disk, 1)
    log = next(iter(manager.logs().values()))
    batch = make_batch(200)
    times = []
    for _ in range(2000):
        started = time.perf_counter()
        await log.appender.append([batch], EPOCH)
        await log.flush()
        times.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(0.0005)
    times.sort()
    print(
        f"lone append + flush of {batch.header.size_bytes} B: p50 {statistics.median(times):.2f} "
        f"p99 {times[int(len(times) * 0.99)]:.2f} max {times[-1]:.2f} ms"
    )
    await manager.close()
    disk.close()


async def fill(directory: Path, partitions: int, total_bytes: int, size_bytes: int) -> None:
    """Write `total_bytes` of log and stop without closing."""
    disk = FileSystemDisk(directory)
    manager = await open_logs(disk, partitions, LogConfig(flush=FlushMode.ASYNC))
    batch = make_batch(size_bytes)
    logs = list(manager.logs().values())
    for number in range(total_bytes // batch.header.size_bytes):
        await logs[number % partitions].appender.append([batch], EPOCH)
        if number % 64 == 0:
            await asyncio.sleep(0)


async def reads(directory: Path) -> None:
    """A consumer reads everything in order, 1 MB at a time; then reads at random offsets."""
    disk = FileSystemDisk(directory)
    manager = await open_logs(disk, 6)
    for chunk_bytes in (1 << 20, 1 << 17):
        read_bytes = count = 0
        started, cpu = time.perf_counter(), time.process_time()
        for log in manager.logs().values():
            offset, end = log.log_start_offset, log.log_end_offset
            while offset < end and read_bytes < 4 << 30:
                result = await log.reader.read(offset, end=end, max_bytes=chunk_bytes)
                read_bytes += len(result.data)
                offset = result.next_offset
                count += 1
        elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
        print(
            f"read in order by {chunk_bytes} B: {read_bytes / elapsed / 1e9:.2f} GB/s, "
            f"{elapsed / count * 1e6:.0f} us each, cpu {cpu / elapsed * 100:.0f} %, "
            f"rss {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB"
        )
    log = next(iter(manager.logs().values()))
    started = time.perf_counter()
    end = log.log_end_offset
    for number in range(2000):
        await log.reader.read(Offset((number * 7919) % end), end=end, max_bytes=1)
    elapsed = time.perf_counter() - started
    print(f"read at random offsets: {elapsed / 2000 * 1e6:.0f} us each")
    await manager.close()
    disk.close()


async def reopen(directory: Path, label: str, partitions: int) -> None:
    """Time from the start to all logs open."""
    disk = FileSystemDisk(directory)
    started = time.perf_counter()
    manager = await open_logs(disk, partitions)
    elapsed = time.perf_counter() - started
    totals = manager.totals()
    print(
        f"open {label}: {totals.replicas} replicas, {totals.size_bytes / 1e9:.2f} GB: "
        f"{elapsed * 1000:.0f} ms"
    )
    await manager.close()
    disk.close()


async def many(directory: Path, count: int) -> None:
    """Make many replicas with a few records each, stop cleanly, open again."""
    disk = FileSystemDisk(directory)
    started = time.perf_counter()
    manager = await open_logs(disk, count)
    print(f"create {count} replicas: {(time.perf_counter() - started) * 1000:.0f} ms")
    batch = make_batch(200)
    for log in manager.logs().values():
        await log.appender.append([batch], EPOCH)
    started = time.perf_counter()
    await manager.close()
    print(f"close {count} replicas: {(time.perf_counter() - started) * 1000:.0f} ms")
    disk.close()
    await reopen(directory, "after a clean stop", count)


def main() -> None:
    """Run everything, each in an empty directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dir", type=Path, default=None, help="where to write (default: a new one)"
    )
    parser.add_argument("--recovery-gb", type=int, default=10)
    parser.add_argument("--only", default="append,lone,recovery,many")
    parser.add_argument("--fill", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill is not None:
        uvloop.run(fill(options.fill, 6, options.recovery_gb << 30, 128 << 10))
        return
    root = options.dir or Path(tempfile.mkdtemp(prefix="storage-probe-"))
    only = options.only.split(",")
    try:
        if "append" in only:
            for flush in FlushMode:
                for size_bytes in (128 << 10, 1 << 20, 200):
                    for partitions in (1, 6, 16):
                        uvloop.run(appends(root / "append", partitions, size_bytes, flush))
                        shutil.rmtree(root / "append")
        if "lone" in only:
            uvloop.run(lone(root / "lone"))
        if "recovery" in only:
            command = [sys.executable, "-m", "bench.storage_probe", "--fill", str(root / "fill")]
            subprocess.run([*command, "--recovery-gb", str(options.recovery_gb)], check=True)
            uvloop.run(reopen(root / "fill", "after an unclean stop", 6))
            uvloop.run(reopen(root / "fill", "after a clean stop", 6))
            uvloop.run(reads(root / "fill"))
        if "many" in only:
            uvloop.run(many(root / "many", 1000))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
