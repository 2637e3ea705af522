"""Two logs lead and follow in turn, over a minimal replication, crashing anywhere.

The rules of replication are played here by hand: a batch is committed when durable on both; a
follower truncates by epochs (KIP-101, KIP-279), or restarts at its leader's start. Always, both end
with the same bytes, epochs and producers, with all committed records, and with the same records
for readers of committed transactions: those that the batches themselves show.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftlog.record.batch import iterate_batches
from raftlog.record.codec import decode
from raftlog.record.control import parse_marker
from raftlog.record.errors import LogError
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.types import LogConfig, LogState, StorageSettings
from raftlog.world import DiskError
from tests.examples import examples
from tests.simulation.clock import ManualClock
from tests.simulation.disk import MachineStoppedError, SimulatedDisk
from tests.storage.logs import BATCH_BYTES_MAX, PARTITION, TOPIC, all_bytes, batch
from tests.storage.transactional import Transactions, append, end, read_committed, transactional

CONFIG = LogConfig(segment_bytes=1200, index_interval_bytes=150, retention_ms=-1)
SETTINGS = StorageSettings(recovery_bytes_max=500, recovery_age_max_ms=3000, scrub_interval_s=5)
STOPPED = (MachineStoppedError, LogError, DiskError)
ROUNDS_MAX = 50


class Replica:
    """One disk with one log."""

    def __init__(self, seed: int) -> None:
        self.disk = SimulatedDisk(seed, yields=True)
        self.clock = ManualClock()
        self.log: Any = None
        self.manager: Any = None
        self.pushed: list[tuple[int, bytes]] = []

    async def start(self) -> None:
        self.manager = await LogManager.open(self.disk, self.clock, SETTINGS)
        self.log = await self.manager.open_replica(TOPIC, PARTITION, CONFIG, create=True)
        assert self.log.state is LogState.ONLINE, self.log.failure
        self.log.listeners.damaged.append(self._damaged)
        self.log.listeners.appended.append(self._appended)

    def _damaged(self, reason: str) -> None:
        raise AssertionError(reason)

    def _appended(self, base: Offset, end: Offset, buffers: Any, size_bytes: int) -> None:
        data = b"".join(buffers)
        assert len(data) == size_bytes
        self.pushed.append((base, data))

    async def crash(self, *, power: bool) -> None:
        self.disk.stopped = True
        for _ in range(60):
            await asyncio.sleep(0)
        self.disk.crash(power=power)
        self.pushed.clear()
        await self.start()


class Pair:
    """Two replicas: leader, leader epoch, and committed records."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.replicas = [Replica(seed), Replica(seed + 1)]
        self.leads = 0
        self.epoch = LeaderEpoch(0)
        self.agreed = False
        self.durable = Offset(0)
        """The follower's durable end, as acknowledged in this epoch."""
        self.alone = False
        """The follower is out of sync: the leader commits alone, and the follower may not lead."""
        self.committed: dict[int, bytes] = {}
        """Batches by base offset."""
        self.committed_end = 0
        self.deleted_to = 0
        self.count = 0
        self.producer_epochs: dict[int, int] = {}

    @property
    def leader(self) -> Log:
        log: Log = self.replicas[self.leads].log
        return log

    @property
    def follower(self) -> Log:
        log: Log = self.replicas[1 - self.leads].log
        return log

    async def start(self) -> None:
        for replica in self.replicas:
            await replica.start()
        self.elect()

    def elect(self) -> None:
        self.epoch = LeaderEpoch(self.epoch + 1)
        self.agreed = False
        self.durable = Offset(0)
        for replica in self.replicas:
            replica.pushed.clear()
        self.leader.appender.become_leader(self.epoch)

    # Operations

    async def append(self) -> None:
        producer_id = self.random.choice((1, 2))
        known = self.leader.producers._producers.get(producer_id)
        # Where deletion made a log forget an epoch, no producer of an older one goes on.
        newest = self.producer_epochs.get(producer_id)
        if known is None or known.epoch != newest or self.random.random() < 0.1:
            epoch, sequence = (newest or 0) + 1, 0
            self.producer_epochs[producer_id] = epoch
        else:
            epoch, sequence = known.epoch, known.next_sequence
        values = [b"%d-" % self.count + b"x" * self.random.randint(0, 200)] * self.random.choice(
            (1, 1, 4)
        )
        self.count += 1
        new = batch(
            values,
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(epoch),
            sequence=sequence,
        )
        await self.leader.appender.append([new], self.epoch)

    async def transact(self) -> None:
        """A batch of a transaction, or its end."""
        producer_id = self.random.choice((3, 4))
        known = self.leader.producers._producers.get(producer_id)
        newest = self.producer_epochs.get(producer_id, 0)
        is_open = known is not None and known.transaction_start is not None
        if is_open and self.random.random() < 0.5:
            epoch = self.producer_epochs[producer_id] = newest + self.random.randint(0, 1)
            commit = self.random.random() < 0.4
            await end(self.leader, producer_id, commit=commit, epoch=epoch, leader_epoch=self.epoch)
            return
        if not is_open and known is not None and known.epoch != newest:
            newest = self.producer_epochs[producer_id] = newest + 1
        if is_open and known is not None:
            newest = known.epoch
        self.producer_epochs.setdefault(producer_id, newest)
        sequence = known.next_sequence if known is not None and known.epoch == newest else 0
        new = transactional([b"t%d" % self.count], producer_id, sequence, epoch=newest)
        self.count += 1
        await append(self.leader, new, leader_epoch=self.epoch)

    async def push(self) -> None:
        """As appended, from memory."""
        pushed = self.replicas[self.leads].pushed
        while pushed and self.agreed:
            base, data = pushed.pop(0)
            if base == self.follower.log_end_offset:
                await self._take(data)

    async def fetch(self) -> None:
        if not self.agreed:
            await self.subscribe()
            return
        offset, end = self.follower.log_end_offset, self.leader.log_end_offset
        if offset < self.leader.log_start_offset:
            self.agreed = False
            return
        limit = self.random.choice((1, 300, 2000, 1 << 20))
        result = await self.leader.reader.read(offset, end=end, max_bytes=limit)
        if result.data:
            await self._take(result.data)
        start = min(self.leader.log_start_offset, self.follower.high_watermark)
        if start > self.follower.log_start_offset:
            await self.follower.operations.delete_records_before(start)

    async def _take(self, data: bytes | memoryview) -> None:
        if not self.follower.appender.append_fetched_now(data, self.epoch):
            await self.follower.appender.append_fetched(data, self.epoch)

    async def subscribe(self) -> None:
        leader, follower = self.leader, self.follower
        end, last_epoch = follower.log_end_offset, follower.last_epoch
        if end < leader.log_start_offset:
            await self.restart_follower()
            return
        oldest = leader.leader_epochs.epoch_for(leader.log_start_offset)
        if leader.log_start_offset > 0 and oldest is not None and 0 <= last_epoch < oldest:
            # As replication does: the logs may have diverged below the leader's start.
            await self.restart_follower()
            return
        if last_epoch >= 0:
            answer = leader.leader_epochs.end_offset_for(last_epoch, leader.log_end_offset)
            assert answer is not None, "the follower knows an epoch that its leader does not"
            if answer.epoch != last_epoch or answer.end_offset < end:
                own = follower.leader_epochs.end_offset_for(answer.epoch, end)
                cut = answer.end_offset if own is None else min(answer.end_offset, own.end_offset)
                assert cut < end or answer.epoch != last_epoch
                if cut < follower.log_start_offset:
                    await self.restart_follower()
                elif cut < end:
                    assert cut >= follower.high_watermark, "committed records would be cut"
                    await follower.operations.truncate_to(cut)
                    return
        elif end > leader.log_end_offset:
            await self.restart_follower()
        self.agreed = True

    async def restart_follower(self) -> None:
        start = self.leader.log_start_offset
        await self.follower.operations.restart_at(start, self.leader.producers_below(start))

    async def commit(self) -> None:
        if self.agreed:
            await self.follower.flush()
            self.durable = self.follower.flushed_offset
            if self.durable >= max(self.leader.high_watermark, self.committed_end):
                self.alone = False
        end = self.leader.flushed_offset
        if not self.alone:
            end = min(end, self.durable)
        if end > self.leader.high_watermark:
            offset = max(self.leader.high_watermark, self.leader.log_start_offset)
            while offset < end:
                result = await self.leader.reader.read(offset, end=end, max_bytes=1)
                self.committed[offset] = bytes(result.data)
                offset = result.next_offset
            self.leader.high_watermark = end
            self.committed_end = max(self.committed_end, end)
        if self.agreed:
            reached = min(self.leader.high_watermark, self.follower.log_end_offset)
            self.follower.high_watermark = max(self.follower.high_watermark, reached)

    async def shrink(self) -> None:
        self.alone = True
        await self.commit()

    async def flush(self) -> None:
        await self.leader.flush()

    async def elect_other(self) -> None:
        if not self.alone:
            assert self.follower.log_end_offset >= self.committed_end
            self.leads = 1 - self.leads
        self.elect()

    async def delete_records(self) -> None:
        to = self.random.randint(self.leader.log_start_offset, self.leader.high_watermark)
        self.deleted_to = max(self.deleted_to, to)
        await self.leader.operations.delete_records_before(Offset(to))

    async def tick(self) -> None:
        replica = self.random.choice(self.replicas)
        replica.clock.advance(self.random.choice((0.3, 1.1, 4.0)))
        await replica.manager.tick()

    async def crash(self, number: int, *, power: bool) -> None:
        await self.replicas[number].crash(power=power)
        assert self.leader.log_end_offset >= self.committed_end
        if number == self.leads:
            if not self.alone:
                self.leads = self.random.choice((number, 1 - number))
            self.elect()
        else:
            self.agreed = False

    async def live(self, number: int, steps: int, power: bool, operations: list[str]) -> None:
        """Run operations until one is hit by the crash of replica `number`."""
        self.replicas[number].disk.crash_in(steps)
        with suppress(*STOPPED):
            for operation in operations:
                await getattr(self, operation)()
        self.replicas[number].disk.forget_orders()
        await self.crash(number, power=power)

    # Final checks

    async def check(self) -> None:
        for _ in range(ROUNDS_MAX * 10):
            await self.fetch()
            if self.agreed and self.follower.log_end_offset == self.leader.log_end_offset:
                break
        leader, follower = self.leader, self.follower
        assert leader.log_end_offset == follower.log_end_offset
        await leader.flush()
        await self.commit()
        start = max(leader.log_start_offset, follower.log_start_offset)
        offset = start
        while offset < leader.log_end_offset:
            ours = await leader.reader.read(offset, end=leader.log_end_offset, max_bytes=1)
            theirs = await follower.reader.read(offset, end=leader.log_end_offset, max_bytes=1)
            assert bytes(ours.data) == bytes(theirs.data)
            assert leader.leader_epochs.epoch_for(offset) == follower.leader_epochs.epoch_for(
                offset
            )
            if offset in self.committed:
                assert bytes(ours.data) == self.committed[offset], f"offset {offset} has changed"
            offset = ours.next_offset
        assert self.committed_end <= leader.log_end_offset
        assert start <= self.deleted_to
        assert producers_of(leader, start) == producers_of(follower, start)
        assert self.sequences_of(leader) == self.sequences_of(follower)
        await self.check_transactions(Offset(start))
        if not self.deleted_to:
            assert producers_of(leader, 0, whole=True) == producers_of(follower, 0, whole=True)

    async def check_transactions(self, start: Offset) -> None:
        leader, follower = self.leader, self.follower
        model = Transactions()
        values: dict[int, bytes | None] = {}
        for found in iterate_batches(await all_bytes(leader)):
            header = found.header
            marker = parse_marker(header, found.data)
            if marker is not None:
                model.end(header.producer_id, header.base_offset, commit=marker.commit)
                continue
            if header.is_transactional:
                count = header.last_offset_delta + 1
                model.append(header.producer_id, header.base_offset, count)
            for record in decode(found, decompressed_bytes_max=BATCH_BYTES_MAX):
                values[record.offset] = record.value
        gone = model.aborted_offsets()
        mark = follower.high_watermark
        for log in (leader, follower):
            stable = log.last_stable_offset(mark)
            assert stable <= model.first_readable(mark, log.log_start_offset)
            expected = [
                (offset, value)
                for offset, value in values.items()
                if start <= offset < stable and offset not in gone
            ]
            assert await read_committed(log, start=start, end_offset=stable) == expected
        if not self.deleted_to:
            assert leader.last_stable_offset(mark) == follower.last_stable_offset(mark)
            assert leader.last_stable_offset(mark) == model.stable(mark)

    def sequences_of(self, log: Log) -> dict[int, int]:
        """Each producer's next batch, with or without its records in the log.

        A producer with a new epoch continues there, even if its records were lost.
        """
        return {
            known.producer_id: known.next_sequence
            for known in log.producers._producers.values()
            if known.epoch == self.producer_epochs[known.producer_id] and known.producer_id < 3
        }


def producers_of(log: Log, start: int, *, whole: bool = False) -> dict[int, Any]:
    """State of the producers with a newest batch in both logs."""
    return {
        known.producer_id: (
            known.epoch,
            known.next_sequence,
            known.last_offset,
            [one for one in known.batches if whole or one.base_offset >= start],
            known.written_run if whole else 0,
        )
        for known in log.producers._producers.values()
        if known.last_offset >= start
        and (whole or (known.batches and known.batches[-1].base_offset >= start))
    }


OPERATIONS = (
    "append",
    "append",
    "transact",
    "transact",
    "push",
    "fetch",
    "fetch",
    "commit",
    "flush",
    "tick",
    "elect_other",
    "shrink",
    "delete_records",
)


async def play(seed: int, lives: list[tuple[int, int, bool, list[str]]]) -> None:
    pair = Pair(seed)
    await pair.start()
    for number, steps, power, operations in lives:
        await pair.live(number, steps, power, operations)
    await pair.check()


@pytest.mark.parametrize("seed", range(40))
async def test_leader_and_follower_agree_after_any_crash(seed: int) -> None:
    chance = random.Random(seed)
    operations = [name for name in OPERATIONS if seed % 3 or name != "delete_records"]
    lives = [
        (
            chance.randint(0, 1),
            chance.randint(1, 200),
            chance.random() < 0.5,
            chance.choices(operations, k=chance.randint(5, 60)),
        )
        for _ in range(6)
    ]
    await play(seed, lives)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 30),
    lives=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(1, 300),
            st.booleans(),
            st.lists(st.sampled_from(sorted(set(OPERATIONS))), max_size=40),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_any_operations_leave_equal_replicas(
    seed: int, lives: list[tuple[int, int, bool, list[str]]]
) -> None:
    asyncio.run(play(seed, lives))
