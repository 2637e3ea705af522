"""Markers of decided transactions: after the commit of the decision, until all are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog.coordinator.transactions.markers import PARKED, RETRIES
from raftlog.record.control import Marker
from raftlog.record.errors import (
    COORDINATOR_FENCED,
    INTERNAL,
    INVALID_TOPIC,
    NO_CONTROLLER,
    NO_LEADER,
    PRODUCER_FENCED,
    RETRIABLE,
    ErrorEntry,
    LogError,
)
from tests.controller.clock import settle
from tests.coordinator.transaction_partition import A, B, TransactionPartition
from tests.waiting import until


@pytest.fixture
async def one() -> AsyncIterator[TransactionPartition]:
    partition = await TransactionPartition.start()
    yield partition
    await partition.close()


@pytest.mark.parametrize("is_commit", [True, False])
async def test_all_partitions_get_a_marker_with_the_next_producer_epoch(
    one: TransactionPartition, *, is_commit: bool
) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A, B)
    following = await one.end(shard, producer, is_commit=is_commit)
    assert following.producer_epoch == producer.producer_epoch + 1
    await until(lambda: len(one.leaders.written) == 2)
    marker = Marker(
        is_commit,
        one.partition.image.leader_epoch,
        is_epoch_next=True,
        coordinator=one.partition.partition,
    )
    assert sorted(one.leaders.written) == [(A, following, marker), (B, following, marker)]
    await settle()
    assert await one.state(shard) == ("complete-commit" if is_commit else "complete-abort")


async def test_no_marker_is_written_before_the_decision_is_committed(
    one: TransactionPartition,
) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A)
    one.log.hold_flush = True
    ending = asyncio.ensure_future(one.end(shard, producer))
    await settle()
    assert not one.leaders.attempts
    one.log.hold_flush = False
    one.log.flush_now()
    await ending
    await until(lambda: one.leaders.written)


async def test_a_load_writes_the_markers_that_the_coordinator_before_left(
    one: TransactionPartition,
) -> None:
    shard = await one.load(writes_markers=False)
    await one.end(shard, await one.begin(shard, A, B))
    await settle()
    assert not one.leaders.attempts
    loaded = await one.load()
    await until(lambda: len(one.leaders.written) == 2)
    await settle()
    assert await one.state(loaded) == "complete-commit"


async def test_a_marker_is_tried_again_until_it_is_written(one: TransactionPartition) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A)
    one.leaders.failures.extend(LogError(entry) for entry in 10 * [NO_LEADER, RETRIABLE])
    await one.end(shard, producer)
    for _ in range(21):
        await one.clock.advance(RETRIES.max_s)
    assert one.leaders.attempts == 21
    assert len(one.leaders.written) == 1
    assert await one.state(shard) == "complete-commit"


async def test_a_deleted_topic_needs_no_marker(one: TransactionPartition) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A, B)
    one.leaders.unknown.add(A)
    await one.end(shard, producer)
    await settle()
    assert [place for place, _, _ in one.leaders.written] == [B]
    assert await one.state(shard) == "complete-commit"


async def test_a_newer_epoch_in_the_partition_needs_no_marker(one: TransactionPartition) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A)
    one.leaders.failures.append(LogError(PRODUCER_FENCED))
    await one.end(shard, producer)
    await settle()
    assert await one.state(shard) == "complete-commit"


async def test_a_coordinator_that_the_quorum_has_replaced_is_over(
    one: TransactionPartition,
) -> None:
    one.replicate()
    shard = await one.load()
    producer = await one.begin(shard, A)
    one.leaders.failures.append(LogError(COORDINATOR_FENCED))
    one.newest = one.row(leader=2)
    await one.end(shard, producer)
    await until(lambda: shard.ended is not None)
    await one.clock.advance(60.0)
    assert one.leaders.attempts == 1


@pytest.mark.parametrize("entry", [COORDINATOR_FENCED, INVALID_TOPIC, INTERNAL])
@pytest.mark.parametrize("quorum", [None, LogError(NO_CONTROLLER)])
async def test_a_refused_marker_parks_its_transaction_and_no_other(
    one: TransactionPartition,
    caplog: pytest.LogCaptureFixture,
    entry: ErrorEntry,
    quorum: LogError | None,
) -> None:
    one.replicate()
    shard = await one.load()
    refused, other = await one.begin(shard, A, B), await one.begin(shard, A, transactional_id="u")
    one.leaders.refusals[refused.producer_id] = LogError(entry, "no such number")
    one.nothing_learned = quorum
    await one.end(shard, refused)
    await settle()
    one.nothing_learned = None
    await one.end(shard, other, transactional_id="u")
    await one.clock.advance(PARKED.max_s)
    assert shard.ended is None
    assert await one.state(shard, "u") == "complete-commit"
    assert await one.state(shard) == "prepare-commit"
    assert shard.state.parked() == 1
    (first, second) = [each.message for each in caplog.records if "is parked" in each.message][:2]
    assert "one-0 rejects" in first
    assert "no such number" in first
    assert "six-5 rejects" in second
    before = one.leaders.attempts
    for _ in range(10):
        await one.clock.advance(PARKED.max_s)
    assert one.leaders.attempts - before <= 2 * 10
    one.leaders.refusals.clear()
    await one.clock.advance(PARKED.max_s)
    assert await one.state(shard) == "complete-commit"
    assert shard.state.parked() == 0


async def test_only_a_fenced_coordinator_confirms_its_lead(one: TransactionPartition) -> None:
    one.replicate()
    shard = await one.load()
    producer = await one.begin(shard, A)
    one.leaders.failures.extend(map(LogError, (NO_LEADER, INTERNAL)))
    before = one.barriers
    await one.end(shard, producer)
    await one.clock.advance(RETRIES.max_s)
    await one.clock.advance(PARKED.max_s)
    assert one.leaders.written
    assert one.barriers == before


async def test_the_end_of_the_shard_ends_all_attempts(one: TransactionPartition) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A, B)
    entries: list[ErrorEntry] = 100 * [NO_LEADER]
    one.leaders.failures.extend(map(LogError, entries))
    await one.end(shard, producer)
    await settle()
    shard.end(LogError(NO_LEADER))
    await one.clock.advance(RETRIES.max_s)
    attempts = one.leaders.attempts
    await one.clock.advance(60.0)
    assert one.leaders.attempts == attempts


async def test_a_confirmation_waits_while_the_partition_takes_no_writes(
    one: TransactionPartition,
) -> None:
    shard = await one.load()
    producer = await one.begin(shard, A)
    one.leaders.failures.append(LogError(NO_LEADER))
    await one.end(shard, producer)
    one.partition.min_insync_replicas = 2
    await one.clock.advance(RETRIES.max_s)
    assert len(one.leaders.written) == 1
    assert await one.state(shard) == "prepare-commit"
    one.partition.min_insync_replicas = 1
    await one.clock.advance(2 * RETRIES.max_s)
    assert await one.state(shard) == "complete-commit"
