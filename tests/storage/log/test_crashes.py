"""Logs stopped anywhere, any number of times, against a model of the promises.

The model knows the record appended at each offset, and the flushed offset. After every start:
flushed records are there, unchanged; the rest is a prefix of the appended records; nothing counts
as damaged; indexes, times and producers give right results; and readers of committed records get
those of committed transactions, up to the first that is open, and no others.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftlog.record.batch import RecordBatch
from raftlog.record.errors import LogError
from raftlog.record.types import Offset, ProducerEpoch, ProducerId
from raftlog.storage.checkpoints.checkpoints import NodeCheckpoint
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.types import FlushMode, LogConfig, LogState, StorageSettings
from raftlog.world import DiskError
from tests.examples import examples
from tests.simulation.clock import ManualClock
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.logs import EPOCH, PARTITION, TOPIC, batch, read_all
from tests.storage.transactional import Transactions, append, end, read_committed, transactional

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=150, retention_ms=-1)
SETTINGS = StorageSettings(recovery_bytes_max=600, recovery_age_max_ms=3000)
MARKER_TIME = -10
"""No lookup by time finds a marker."""
STOPPED = (MachineStoppedError, LogError, DiskError)


@dataclass
class Model:
    """Appended records, and the promises about these."""

    values: list[bytes | None] = field(default_factory=list)
    """By offset, from 0; None for markers. The newest may never have arrived."""
    times: list[int] = field(default_factory=list)
    batches: list[tuple[int, RecordBatch]] = field(default_factory=list)
    """Base offset and batch, each of one idempotent producer's, in order."""
    flushed: int = 0
    start: int = 0
    """Deleted below this offset, by promise."""
    start_wanted: int = 0
    cut_wanted: int | None = None
    """An interrupted truncation."""
    transactions: Transactions = field(default_factory=Transactions)

    def cut(self, end: int) -> None:
        del self.values[end:]
        del self.times[end:]
        while self.batches and self.batches[-1][0] >= end:
            self.batches.pop()
        self.flushed = min(self.flushed, end)
        self.transactions.cut(end)


class CheckedManager(LogManager):
    """Compares the changes collected for the checkpoint file with all logs."""

    async def _collect(self) -> NodeCheckpoint:
        collected = await super()._collect()
        for (topic_id, partition), log in self._logs.items():
            present = msgspec.structs.replace(
                log.current_checkpoint(), boot_id=self.disk_boot_id, clean=False
            )
            found = collected.replicas[f"{topic_id}/{partition}"]
            # A high watermark may lag behind.
            assert found.high_watermark <= present.high_watermark
            assert present == msgspec.structs.replace(
                found, high_watermark=present.high_watermark, clean=False
            )
        return collected

    @property
    def disk_boot_id(self) -> str:
        return self._boot_id


class Run:
    """One disk, one log on it, many lives."""

    def __init__(self, seed: int, config: LogConfig = CONFIG) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed, yields=True)
        self.clock = ManualClock()
        self.config = config
        self.model = Model()
        self.count = 0
        self.producer_epoch = 0
        self.manager: LogManager | None = None
        self.log: Log | None = None

    async def start(self) -> None:
        self.manager = await CheckedManager.open(self.disk, self.clock, SETTINGS)
        self.log = await self.manager.open_replica(TOPIC, PARTITION, self.config, create=True)
        self.log.listeners.flushed.append(self._flushed)
        await self.check_start()

    def _flushed(self, offset: Offset) -> None:
        self.model.flushed = max(self.model.flushed, offset)
        assert self.log is not None
        self.log.high_watermark = Offset(offset)

    async def check_start(self) -> None:
        log, model = self.log, self.model
        assert log is not None
        assert log.state is LogState.ONLINE, log.failure
        low = model.flushed if model.cut_wanted is None else min(model.flushed, model.cut_wanted)
        assert low <= log.log_end_offset <= len(model.values), "flushed records are gone"
        assert log.flushed_offset == log.log_end_offset, "not durable after a start"
        model.cut(log.log_end_offset)
        model.flushed = log.log_end_offset
        model.cut_wanted = None
        assert model.start <= log.log_start_offset <= max(model.start_wanted, model.start)
        model.start = model.start_wanted = log.log_start_offset
        log.high_watermark = log.flushed_offset
        await self.check_content()
        await self.check_repeats()

    async def check_repeats(self) -> None:
        """The newest batches count as duplicates, and are not written again."""
        log = self.log
        assert log is not None
        known = [pair for pair in self.model.batches if pair[0] >= log.log_start_offset][-3:]
        if known and known[-1][1].header.producer_epoch == known[0][1].header.producer_epoch:
            results = await log.appender.append([repeated for _, repeated in known], EPOCH)
            assert [result.base_offset for result in results] == [base for base, _ in known]
            assert all(result.duplicate for result in results)

    def next_sequence(self) -> tuple[ProducerEpoch, int]:
        """The producer's next epoch and sequence. A possibly forgotten producer begins a new
        epoch."""
        batches = self.model.batches
        if batches and batches[-1][0] >= self.model.start_wanted:
            header = batches[-1][1].header
            return header.producer_epoch, header.base_sequence + header.record_count
        self.producer_epoch += 1
        return ProducerEpoch(self.producer_epoch), 0

    async def check_content(self) -> None:
        log, model = self.log, self.model
        assert log is not None
        assert len(model.values) == log.log_end_offset
        expected = model.values[log.log_start_offset :]
        assert await read_all(log, max_bytes=self.random.choice((1, 300, 5000))) == expected
        await self.check_committed()
        if expected:
            start = self.random.randrange(log.log_start_offset, log.log_end_offset)
            result = await log.reader.read(Offset(start), end=log.log_end_offset, max_bytes=1)
            assert result.next_offset > start
            times = [time_ms for time_ms in model.times if time_ms != MARKER_TIME] or [0]
            time_ms = self.random.choice(times) + self.random.randint(-1, 1)
            wanted = next(
                (
                    (offset, found)
                    for offset, found in enumerate(model.times)
                    if found >= time_ms and offset >= log.log_start_offset
                ),
                None,
            )
            assert await log.reader.offset_for_timestamp(time_ms, end=log.log_end_offset) == wanted

    async def check_committed(self) -> None:
        log, model = self.log, self.model
        assert log is not None
        end = log.high_watermark
        stable = log.last_stable_offset(end)
        if log.log_start_offset == 0:
            assert stable == model.transactions.stable(end)
        # A truncation below the high watermark may forget open transactions without a record left.
        assert stable >= model.transactions.stable(end, log.log_start_offset)
        assert stable <= model.transactions.first_readable(end, log.log_start_offset)
        start = self.random.randint(log.log_start_offset, max(log.log_start_offset, stable))
        gone = model.transactions.aborted_offsets()
        expected = [
            (offset, model.values[offset])
            for offset in range(start, stable)
            if model.values[offset] is not None and offset not in gone
        ]
        limit = self.random.choice((1, 300, 5000))
        assert await read_committed(log, start=Offset(start), max_bytes=limit) == expected

    async def transact(self) -> None:
        """A batch of a transaction, or its end."""
        log, model = self.log, self.model
        assert log is not None
        transactions = model.transactions
        end_offset = len(model.values)
        producer = self.random.choice((2, 3))
        known = log.producers._producers.get(producer)
        epoch = 0 if known is None else known.epoch
        if producer in transactions.opened and self.random.random() < 0.5:
            commit = self.random.random() < 0.4
            bump = self.random.randint(0, 1)
            model.values.append(None)
            model.times.append(MARKER_TIME)
            transactions.end(producer, end_offset, commit=commit)
            assert await end(log, producer, commit=commit, epoch=epoch + bump) == end_offset
            return
        sequence = 0 if known is None else known.next_sequence
        values = [b"t%d" % end_offset + b"x" * self.random.randint(0, 60)]
        model.values += values
        model.times.append(0)
        transactions.append(producer, end_offset, 1)
        new = transactional(values, producer, sequence, epoch=epoch, timestamp_ms=0)
        assert await append(log, new) == end_offset

    async def append(self) -> None:
        log, model = self.log, self.model
        assert log is not None
        batches = []
        for _ in range(self.random.randint(1, 3)):
            count = self.random.randint(1, 4)
            values = []
            time_ms = self.random.randint(1000, 1000 + self.count)
            for number in range(count):
                self.count += 1
                values.append(b"%d-" % self.count + b"x" * self.random.randint(0, 120))
                model.times.append(time_ms + number)
            epoch, sequence = self.next_sequence()
            new = batch(
                values,
                timestamp_ms=time_ms,
                producer_id=ProducerId(1),
                producer_epoch=epoch,
                sequence=sequence,
            )
            batches.append(new)
            model.batches.append((len(model.values), new))
            model.values += values
        last_offset = len(model.values) - 1
        results = await log.appender.append(batches, EPOCH)
        assert results[-1].last_offset == last_offset

    async def append_concurrently(self) -> None:
        await asyncio.gather(*(self.append() for _ in range(3)))

    async def flush(self) -> None:
        assert self.log is not None
        end = self.log.log_end_offset
        await self.log.flush()
        assert self.model.flushed >= end

    async def tick(self) -> None:
        assert self.manager is not None
        self.clock.advance(self.random.choice((0.3, 1.1, 4.0)))
        await self.manager.tick()

    async def truncate(self) -> None:
        log, model = self.log, self.model
        assert log is not None
        to = self.random.randint(log.log_start_offset, log.log_end_offset)
        model.cut_wanted = max(to - 4, log.log_start_offset)
        await log.operations.truncate_to(Offset(to))
        assert model.cut_wanted <= log.log_end_offset <= to
        model.cut(log.log_end_offset)
        model.cut_wanted = None
        await self.check_content()

    async def delete_records(self) -> None:
        log, model = self.log, self.model
        assert log is not None
        model.start_wanted = self.random.randint(model.start, log.log_end_offset)
        await log.operations.delete_records_before(Offset(model.start_wanted))
        model.start = model.start_wanted

    async def restart(self) -> None:
        assert self.manager is not None
        await self.manager.close()
        await self.start()

    async def live(self, steps: int, operations: list[str]) -> None:
        """Run operations until one is hit by the crash."""
        self.disk.crash_in(steps)
        with suppress(*STOPPED):
            await self.start()
            for operation in operations:
                await getattr(self, operation)()
        await self.settle()

    async def settle(self) -> None:
        """Let the tasks of a stopped machine fail, so that none outlives the machine."""
        self.disk.stopped = True
        for _ in range(60):
            await asyncio.sleep(0)


OPERATIONS = (
    "append",
    "append",
    "transact",
    "transact",
    "append_concurrently",
    "flush",
    "check_content",
    "tick",
    "truncate",
    "delete_records",
    "restart",
)


@pytest.mark.parametrize("mode", list(FlushMode))
@pytest.mark.parametrize("seed", range(30))
async def test_nothing_flushed_is_lost_whenever_the_machine_stops(
    seed: int, mode: FlushMode
) -> None:
    run = Run(seed, replace(CONFIG, flush=mode))
    for _ in range(8):
        operations = run.random.choices(OPERATIONS, k=run.random.randint(1, 25))
        await run.live(run.random.randint(1, 150), operations)
        run.disk.crash(power=run.random.random() < 0.5)
    await run.start()


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 30),
    lives=st.lists(
        st.tuples(
            st.integers(1, 250),
            st.booleans(),
            st.lists(st.sampled_from(sorted(set(OPERATIONS))), max_size=25),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_any_operations_survive_any_crashes(
    seed: int, lives: list[tuple[int, bool, list[str]]]
) -> None:
    async def run_all() -> None:
        run = Run(seed)
        for steps, power, operations in lives:
            await run.live(steps, operations)
            run.disk.crash(power=power)
        await run.start()

    asyncio.run(run_all())
