"""The leader's partition: no record is acknowledged or shown before its commit."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from raftlog.metadata.image import NO_LEADER_ID, BrokerImage, PartitionImage
from raftlog.record.batch import RecordBatch, split_batches
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.record.errors import (
    DISK_FULL,
    MAYBE_WRITTEN,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    NOT_READY,
    OFFSET_OUT_OF_RANGE,
    RETRIABLE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from raftlog.replication.partition import Acks, Host, Partition, not_led_here
from raftlog.storage.leader_epochs import LeaderEpochs
from raftlog.storage.log.core import Listeners, TombstoneHold
from raftlog.storage.producers.entry import NO_TRANSACTIONS, Terms
from raftlog.storage.types import AppendResult, FlushMode, LogConfig, ReadResult
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.time import SystemClock
from tests.replication.permits import SwitchedPermit


class ManualLog:
    """A log with syncs that return when the test lets them."""

    def __init__(self, flush: FlushMode = FlushMode.SYNC) -> None:
        self.config = LogConfig(flush=flush)
        self.flush_mode = flush
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.flushed_offset = Offset(0)
        self.high_watermark = Offset(0)
        self.failure: LogError | None = None
        self.epochs: list[LeaderEpoch] = []
        self.leader_epochs = LeaderEpochs()
        self.possible_loss = None
        self.listeners = Listeners()
        self.appender = self.reader = self.operations = self

    def note_high_watermark(self, offset: Offset) -> None:
        self.high_watermark = offset

    def hold_tombstones(self, hold: TombstoneHold | None) -> None:
        """It never compacts."""

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        return high_watermark

    def become_leader(self, leader_epoch: LeaderEpoch) -> None:
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    async def append(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: LeaderEpoch,
        *,
        guard: Callable[[], None],
        terms: Terms = NO_TRANSACTIONS,
    ) -> list[AppendResult]:
        guard()
        start = self.log_end_offset
        results = []
        for batch in batches:
            base = self.log_end_offset
            self.log_end_offset = Offset(base + batch.header.record_count)
            results.append(AppendResult(base, Offset(self.log_end_offset - 1)))
        self.epochs.append(leader_epoch)
        for callback in self.listeners.appended:
            callback(start, self.log_end_offset, (), 0)
        return results

    async def read(self, start: Offset, *, end: Offset, max_bytes: int) -> ReadResult:
        return ReadResult(b"%d-%d" % (start, end), end)

    async def delete_records_before(self, offset: Offset) -> Offset:
        self.log_start_offset = offset
        return offset

    def sync_returns(self) -> None:
        self.flushed_offset = self.log_end_offset
        for callback in self.listeners.flushed:
            callback(self.flushed_offset)

    def sync_fails(self) -> None:
        for callback in self.listeners.failed:
            callback(LogError(STORAGE_FAILED))


def image(isr: tuple[int, ...] = (1,), epoch: int = 3) -> PartitionImage:
    return PartitionImage(
        partition=PartitionId(0),
        replicas=(BrokerId(1),),
        isr=tuple(BrokerId(b) for b in isr),
        elr=(),
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch),
    )


def host(may_act: Callable[[], bool] = lambda: True) -> Host:
    return Host(
        broker_id=BrokerId(1),
        clock=SystemClock(),
        cluster_clock=ClusterClock(SystemClock()),
        permit=SwitchedPermit(may_act),
        brokers=dict,
    )


def partition_over(log: ManualLog, min_insync_replicas: int = 1) -> Partition:
    return Partition(
        topic="t",
        topic_id=TopicId("0" * 32),
        log=log,  # type: ignore[arg-type]  # the part of Log's surface that a partition uses
        image=image(),
        min_insync_replicas=min_insync_replicas,
        host=host(),
    )


def batch_of(count: int) -> list[RecordBatch]:
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    for _ in range(count):
        assert builder.append(1, None, b"v", [])
    return split_batches(bytes(builder.build()), max_message_bytes=1 << 20)


async def test_acks_all_waits_for_the_sync() -> None:
    log = ManualLog()
    partition = partition_over(log)
    append = asyncio.ensure_future(partition.append(batch_of(3), acks=Acks.ALL, timeout_s=60))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not append.done()
    assert partition.high_watermark == 0
    log.sync_returns()
    assert [(r.base_offset, r.last_offset) for r in await append] == [(0, 2)]
    assert partition.high_watermark == 3


@pytest.mark.parametrize("acks", list(Acks))
async def test_an_append_is_refused_once_the_node_may_not_act_as_a_leader(acks: Acks) -> None:
    log, may_act = ManualLog(), True
    partition = Partition(
        topic="t",
        topic_id=TopicId("0" * 32),
        log=log,  # type: ignore[arg-type]  # the part of Log's surface that a partition uses
        image=image(),
        min_insync_replicas=1,
        host=host(lambda: may_act),
    )
    await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60)
    may_act = False
    with pytest.raises(LogError, match="lease has expired") as caught:
        await partition.append(batch_of(1), acks=acks, timeout_s=60)
    assert caught.value.entry is NO_LEADER
    assert log.log_end_offset == 1


async def test_a_writers_guard_refuses_right_before_the_write() -> None:
    log, calls = ManualLog(), 0

    def guard() -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise LogError(NOT_READY, "an earlier append failed")

    partition = partition_over(log)
    await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60, guard=guard)
    with pytest.raises(LogError, match="earlier append"):
        await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60, guard=guard)
    assert log.log_end_offset == 1


def test_listeners_learn_of_begin_and_end_of_a_leader_epoch_at_once() -> None:
    begun: list[tuple[TopicId, PartitionId]] = []
    ended: list[LogError] = []
    partition = Partition(
        topic="t",
        topic_id=TopicId("0" * 32),
        log=ManualLog(),  # type: ignore[arg-type]  # the part of Log's surface in use
        image=image(),
        min_insync_replicas=1,
        host=dataclasses.replace(host(), lead_listeners=[lambda *key: begun.append(key)]),
    )
    partition.require_leader().end_listeners.append(ended.append)
    partition.update(image(epoch=4), 1)
    assert len(ended) == 1
    assert begun == [(partition.topic_id, partition.partition)] * 2
    partition.require_leader().end_listeners.append(ended.append)
    partition.close(LogError(NOT_READY, "stopping"))
    assert ended[1].entry is NOT_READY


def test_what_an_append_would_be_refused_for_is_known_before() -> None:
    partition = partition_over(ManualLog())
    partition.require_appendable()
    partition.min_insync_replicas = 2
    with pytest.raises(LogError) as refused:
        partition.require_appendable()
    assert refused.value.entry is NOT_ENOUGH_REPLICAS
    partition.host.write_gate.refuse(LogError(DISK_FULL, "full"))
    with pytest.raises(LogError) as refused:
        partition.require_appendable()
    assert refused.value.entry is DISK_FULL
    partition.close(LogError(NOT_READY, "stopping"))
    with pytest.raises(LogError) as refused:
        partition.require_appendable()
    assert refused.value.entry is NOT_READY


async def test_acks_leader_is_answered_before_the_sync_but_readers_see_nothing_yet() -> None:
    log = ManualLog()
    partition = partition_over(log)
    await partition.append(batch_of(3), acks=Acks.LEADER, timeout_s=60)
    fetched = await partition.read(Offset(0), max_bytes=100)
    assert (fetched.data, fetched.next_offset, fetched.high_watermark) == (b"", 0, 0)
    log.sync_returns()
    assert (await partition.read(Offset(0), max_bytes=100)).data == b"0-3"


async def test_with_async_flush_the_operating_system_is_durable_enough() -> None:
    partition = partition_over(ManualLog(FlushMode.ASYNC))
    await partition.append(batch_of(2), acks=Acks.ALL, timeout_s=60)
    assert partition.high_watermark == 2


async def test_a_commit_that_does_not_come_in_time_is_of_unknown_outcome() -> None:
    partition = partition_over(ManualLog())
    with pytest.raises(LogError) as caught:
        await partition.append(batch_of(1), acks=Acks.ALL, timeout_s=0.01)
    assert caught.value.entry is RETRIABLE
    assert caught.value.entry.outcome_unknown
    assert caught.value.message.startswith(MAYBE_WRITTEN)


async def test_a_writer_whose_leader_moves_is_told_that_it_may_be_written() -> None:
    partition = partition_over(ManualLog())
    waiting = asyncio.ensure_future(partition.append(batch_of(1), acks=Acks.ALL, timeout_s=60))
    await asyncio.sleep(0)
    row = replace(
        partition.image,
        leader=NO_LEADER_ID,
        leader_epoch=LeaderEpoch(partition.image.leader_epoch + 1),
        partition_epoch=PartitionEpoch(partition.image.partition_epoch + 1),
    )
    partition.update(row, 1)
    with pytest.raises(LogError) as caught:
        await waiting
    assert caught.value.entry is RETRIABLE
    assert caught.value.message.startswith(MAYBE_WRITTEN)
    assert "is not led by this node" in caught.value.message
    with pytest.raises(LogError) as caught:
        await partition.append(batch_of(1), acks=Acks.ALL, timeout_s=60)
    assert caught.value.entry is NO_LEADER
    assert MAYBE_WRITTEN not in caught.value.message, "of this one nothing was written"


async def test_a_failed_sync_fails_every_waiting_and_every_later_writer() -> None:
    log = ManualLog()
    partition = partition_over(log)
    waiting = [
        asyncio.ensure_future(partition.append(batch_of(1), acks=Acks.ALL, timeout_s=60))
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    log.sync_fails()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, LogError)
        assert outcome.entry is STORAGE_FAILED
    with pytest.raises(LogError):
        await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60)
    with pytest.raises(LogError):
        await partition.read(Offset(0), max_bytes=1)


async def test_a_writer_whose_log_fails_behind_its_append_is_told_at_once() -> None:
    class FailsAfterwards(ManualLog):
        async def append(
            self,
            batches: Sequence[RecordBatch],
            leader_epoch: LeaderEpoch,
            *,
            guard: Callable[[], None],
            terms: Terms = NO_TRANSACTIONS,
        ) -> list[AppendResult]:
            results = await super().append(batches, leader_epoch, guard=guard)
            self.sync_fails()
            return results

    partition = partition_over(FailsAfterwards())
    with pytest.raises(LogError) as caught:
        await partition.append(batch_of(1), acks=Acks.ALL, timeout_s=60)
    assert caught.value.entry is STORAGE_FAILED


async def test_a_partition_that_closes_leaves_its_waiting_writers_in_doubt() -> None:
    partition = partition_over(ManualLog())
    waiting = asyncio.ensure_future(partition.append(batch_of(1), acks=Acks.ALL, timeout_s=60))
    await asyncio.sleep(0)
    partition.close(LogError(NOT_READY, "The node is stopping."))
    with pytest.raises(LogError, match="stopping") as caught:
        await waiting
    assert caught.value.entry.outcome_unknown, "the record is in the log, and may be committed"
    with pytest.raises(LogError) as caught:
        await partition.append(batch_of(1), acks=Acks.ALL, timeout_s=60)
    assert caught.value.entry is NOT_READY, "of this one nothing was written"


async def test_below_min_insync_replicas_nothing_is_written() -> None:
    log = ManualLog()
    partition = partition_over(log, min_insync_replicas=2)
    with pytest.raises(LogError) as caught:
        await partition.append(batch_of(1), acks=Acks.ALL, timeout_s=60)
    assert caught.value.entry is NOT_ENOUGH_REPLICAS
    assert log.log_end_offset == 0
    await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60)
    assert log.log_end_offset == 1


async def test_batches_carry_the_leader_epoch_of_the_newest_metadata() -> None:
    log = ManualLog()
    partition = partition_over(log)
    await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60)
    partition.update(image(epoch=4), 1)
    await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60)
    assert log.epochs == [3, 4]
    with pytest.raises(AssertionError):
        partition.update(image(epoch=3), 1)


async def test_a_reader_is_woken_when_the_high_watermark_passes_its_offset() -> None:
    log = ManualLog()
    partition = partition_over(log)
    woken: list[str] = []
    partition.readers.add(Offset(0), lambda: woken.append("at 0"))
    partition.readers.add(Offset(2), lambda: woken.append("at 2"))
    forgotten = partition.readers.add(Offset(0), lambda: woken.append("forgotten"))
    partition.readers.remove(forgotten)
    await partition.append(batch_of(2), acks=Acks.LEADER, timeout_s=60)
    assert woken == []
    log.sync_returns()
    assert woken == ["at 0"]
    await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60)
    log.sync_returns()
    assert woken == ["at 0", "at 2"]


@pytest.mark.parametrize("offset", [-1, 4])
async def test_an_offset_outside_the_log_is_refused_with_the_valid_range(offset: int) -> None:
    log = ManualLog()
    partition = partition_over(log)
    await partition.append(batch_of(3), acks=Acks.LEADER, timeout_s=60)
    log.sync_returns()
    with pytest.raises(LogError, match="0 to 3 can be read") as caught:
        await partition.read(Offset(offset), max_bytes=1)
    assert caught.value.entry is OFFSET_OUT_OF_RANGE


async def test_delete_records_reaches_the_high_watermark_and_no_further() -> None:
    log = ManualLog()
    partition = partition_over(log)
    await partition.append(batch_of(3), acks=Acks.LEADER, timeout_s=60)
    log.sync_returns()
    await partition.append(batch_of(1), acks=Acks.LEADER, timeout_s=60)
    with pytest.raises(LogError) as caught:
        await partition.require_leader().delete_records(Offset(4))
    assert caught.value.entry is OFFSET_OUT_OF_RANGE
    assert await partition.require_leader().delete_records(Offset(-1)) == 3


@pytest.mark.parametrize(
    ("host", "address"), [("10.0.0.7", "10.0.0.7:8082"), ("fd00::7", "[fd00::7]:8082")]
)
def test_who_asks_the_wrong_node_is_told_where_to_ask(host: str, address: str) -> None:
    leader = BrokerImage(
        broker_id=BrokerId(7),
        broker_epoch=BrokerEpoch(1),
        directory_id="d",
        incarnation="i",
        host=host,
        port=8082,
        rack=None,
        software_version="1",
        command_version=1,
        fenced=False,
    )
    row = replace(image(), leader=BrokerId(7), isr=(BrokerId(7),))
    error = not_led_here("t", row, {BrokerId(7): leader})
    assert error.entry is NO_LEADER
    assert "t-0" in error.message and address in error.message
    assert "no broker" in not_led_here("t", row, {}).message


def test_a_partition_whose_replicas_all_may_lack_records_names_the_next_step() -> None:
    row = replace(image(), leader=NO_LEADER_ID, isr=())
    error = not_led_here("t", row, {})
    assert error.entry is NO_LEADER
    assert "transfer-leadership --topic t --partition 0 --unclean" in error.message
    eligible = replace(row, elr=(BrokerId(1),))
    assert "unclean" not in not_led_here("t", eligible, {}).message
