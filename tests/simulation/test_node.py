"""Whole nodes, without sockets, over simulated disks that crash: promises 1, 2 and 5.

One seed is one history of appends, flush modes, crashes and restarts; the same seed replays it.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from raftlog.node import Core, NodeSettings
from raftlog.record.batch import split_batches
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.compression import Compression
from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks, Partition
from raftlog.world.real_clock import SystemClock
from tests.simulation.disk import MachineStoppedError, SimulatedDisk

SEEDS = range(120)
LIVES = 6
STEPS = 12
TOPIC = "t"
PARTITIONS = 2


class SeededRandomness:
    """Randomness that replays."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, length: int) -> bytes:
        return self._random.randbytes(length)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


@dataclass
class Ledger:
    """What writers of one partition sent, and what they were told."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """By offset."""
    sent: set[bytes] = field(default_factory=set)


class World:
    """One node's disk and its users' memory, over many lives of the node."""

    def __init__(self, seed: int, flush: str) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed, yields=True)
        self.settings = NodeSettings(
            data_dir="unused",
            flush=flush,
            topic_defaults={"segment.bytes": "1024", "index.interval.bytes": "128"},
        )
        self.randomness = SeededRandomness(seed)
        self.ledgers = [Ledger() for _ in range(PARTITIONS)]
        self.counter = 0

    async def start(self) -> Core:
        fatal: list[str] = []
        core = await Core.open(
            self.settings, self.disk, SystemClock(), self.randomness, fatal.append
        )
        await core.serve("127.0.0.1", 1, None)
        return core

    async def append(self, partition: Partition, ledger: Ledger, acks: Acks) -> None:
        builder = BatchBuilder(Compression.NONE, 1 << 16)
        values = []
        for _ in range(self.random.randint(1, 4)):
            self.counter += 1
            values.append(b"%d-" % self.counter + b"x" * self.random.randint(0, 200))
            assert builder.append(self.counter, None, values[-1], [])
        ledger.sent.update(values)
        batches = split_batches(bytes(builder.build()), max_message_bytes=1 << 20)
        (result,) = await partition.append(batches, acks=acks, timeout_s=30)
        if acks is Acks.ALL:
            for position, value in enumerate(values):
                offset = result.base_offset + position
                assert offset not in ledger.acknowledged
                ledger.acknowledged[offset] = value

    async def check(self, core: Core) -> None:
        for partition, ledger in zip(
            core.services.replicas.partitions_of(TOPIC), self.ledgers, strict=True
        ):
            stored = await everything(partition)
            assert sorted(stored) == list(range(partition.log_end_offset)), "offsets contiguous"
            assert set(stored.values()) <= ledger.sent, "nobody wrote this"
            assert len(set(stored.values())) == len(stored), "a record is there twice"
            missing = ledger.acknowledged.items() - stored.items()
            if self.settings.flush == "async" and partition.log.possible_loss is not None:
                first = partition.log.possible_loss.from_offset
                assert all(offset >= first for offset, _ in missing)
                for offset, _ in missing:
                    del ledger.acknowledged[offset]
                # What was told lost may be written anew at the same offsets.
            else:
                assert not missing


async def everything(partition: Partition) -> dict[int, bytes]:
    stored: dict[int, bytes] = {}
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        fetched = await partition.read(offset, max_bytes=500)
        for batch in split_batches(bytes(fetched.data), max_message_bytes=1 << 20):
            for record in decode(batch, decompressed_bytes_max=1 << 20):
                assert record.value is not None
                stored[record.offset] = record.value
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    return stored


async def live(world: World, *, last: bool, power: bool) -> None:
    """One life of the node: check what is there, write, and die in the middle of it."""
    core = await world.start()
    if TOPIC not in core.services.metadata.image.topics_by_name:
        await core.services.metadata.create_topic(TOPIC, partitions=PARTITIONS)
    await world.check(core)
    if last:
        await core.close()
        return
    if world.random.random() < 0.7:
        world.disk.crash_in(world.random.randint(1, 40))
    writers: list[asyncio.Task[Any]] = []
    for _ in range(STEPS):
        number = world.random.randrange(PARTITIONS)
        partition = core.services.replicas.partition(TOPIC, number)
        acks = world.random.choice([Acks.ALL, Acks.ALL, Acks.LEADER])
        writers.append(asyncio.create_task(world.append(partition, world.ledgers[number], acks)))
        for _ in range(world.random.randint(0, 6)):
            await asyncio.sleep(0)
    clean = not world.disk.stopped and world.random.random() < 0.3
    if clean:
        await asyncio.gather(*writers, return_exceptions=True)
        if not world.disk.stopped:
            await core.close()
    world.disk.crash(power=power)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    outcomes = await asyncio.gather(*writers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, AssertionError):
            raise outcome
        assert outcome is None or isinstance(
            outcome, (LogError, MachineStoppedError, asyncio.CancelledError)
        )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_acknowledged_records_survive_every_crash(seed: int, flush: str) -> None:
    world = World(seed, flush)
    for life in range(LIVES):
        power = world.random.random() < 0.5
        try:
            asyncio.run(live(world, last=life == LIVES - 1, power=power))
        except MachineStoppedError:
            world.disk.crash(power=power)
