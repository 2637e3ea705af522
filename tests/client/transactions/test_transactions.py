"""Transactions against an honest coordinator: all or nothing, through faults, fencing, restarts."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest
from raftlog_client import (
    DeliveryTimeoutError,
    FencedError,
    GroupMetadata,
    IllegalStateError,
    Producer,
    RaftlogClientError,
    ServerError,
    TopicPartition,
    TransactionAbortableError,
)

from raftlog.record.errors import (
    CORRUPT_BATCH,
    INVALID_BODY,
    NOT_ENOUGH_REPLICAS,
    OVERLOADED,
    RETRIABLE,
)
from tests.client.fake_node import FakeCluster, Fault
from tests.client.fake_partition import FakePartition
from tests.client.groups.test_groups import member
from tests.client.test_consumer import append, consumer, take
from tests.waiting import DEADLINE_S

P0 = TopicPartition("t", 0)
INIT, COMMIT, ABORT, OFFSETS = (
    f"/v1/transactions/{{id}}/{verb}" for verb in ("init", "commit", "abort", "offsets")
)
PRODUCE = "/v1/produce"


def producer(cluster: FakeCluster, **settings: Any) -> Producer:
    defaults = {"transactional_id": "x", "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
    return Producer(bootstrap_servers=cluster.bootstrap, **(defaults | settings))


def log(cluster: FakeCluster, topic: str = "t") -> FakePartition:
    return cluster.topics[topic].partitions[0]


def transaction(cluster: FakeCluster) -> Any:
    return cluster.coordinator.transactions.by_id["x"]


async def test_a_transaction_is_seen_whole_or_not_at_all(single: FakeCluster) -> None:
    async with producer(single) as sending, consumer(single, "t") as reading:
        async with sending.transaction():
            futures = [await sending.send("t", b"%d" % n) for n in range(3)]
            await sending.flush()
            assert log(single).committed_values() == []
            assert await reading.getmany(timeout_ms=50) == {}
        assert [future.result().offset for future in futures] == [0, 1, 2]
        with pytest.raises(ZeroDivisionError):
            async with sending.transaction():
                await sending.send_and_wait("t", b"aborted")
                raise ZeroDivisionError
        async with sending.transaction():
            await sending.send_many("t", [b"3", b"4"])
        assert await take(reading, 5) == [b"0", b"1", b"2", b"3", b"4"]
        assert log(single).committed_values() == [b"0", b"1", b"2", b"3", b"4"]
        async with consumer(single, "t", isolation="read_uncommitted") as dirty:
            assert b"aborted" in await take(dirty, 6)
    assert single.requests["/v1/producer-ids"] == 0


async def test_read_process_write_exactly_once(single: FakeCluster) -> None:
    """The whole loop, as an application has it; it is stopped and started again and again."""
    single.create_topic("out", 1)
    for number in range(40):
        append(log(single), b"%d" % number)

    async def run(stop_after: int) -> None:
        async with (
            Producer(bootstrap_servers=single.bootstrap, transactional_id="x") as sending,
            member(single, auto_commit_interval_ms=None, max_poll_records=4) as reading,
        ):
            while batches := await reading.getmany(timeout_ms=300):
                async with sending.transaction() as tx:
                    for record in (one for records in batches.values() for one in records):
                        await sending.send("out", record.value)
                    await tx.commit_offsets(reading)
                    stop_after -= 1
                    if not stop_after:
                        raise ZeroDivisionError

    for stop_after in (3, 1, 2):
        with pytest.raises(ZeroDivisionError):
            await run(stop_after)
    single.fail(COMMIT, Fault(drop_after=True), Fault(error=OVERLOADED))
    single.fail(OFFSETS, Fault(drop_after=True))
    await run(-1)
    assert log(single, "out").committed_values() == [b"%d" % number for number in range(40)]
    assert single.coordinator.group("g").offsets["t", 0].offset == 40


@pytest.mark.parametrize(
    ("path", "faults"),
    [
        (INIT, [Fault(drop_after=True), Fault(error=RETRIABLE)]),
        (COMMIT, [Fault(drop_before=True), Fault(drop_after=True), Fault(drop_after=True)]),
        (COMMIT, [Fault(error=OVERLOADED)]),
        (PRODUCE, [Fault(drop_after=True), Fault(frame_errors={0: NOT_ENOUGH_REPLICAS})]),
        (OFFSETS, [Fault(drop_after=True), Fault(error=RETRIABLE)]),
    ],
)
async def test_faults_that_pass_neither_lose_nor_duplicate(
    single: FakeCluster, path: str, faults: list[Fault]
) -> None:
    single.fail(path, *faults)
    async with producer(single) as sending:
        for number in range(3):
            async with sending.transaction() as tx:
                await sending.send("t", b"%d" % number)
                group = "g" if number else GroupMetadata("g", "", -1)
                await tx.commit_offsets({P0: number + 1}, group)
    assert log(single).committed_values() == [b"0", b"1", b"2"]
    assert single.coordinator.group("g").offsets["t", 0].offset == 3


async def test_the_next_transaction_waits_for_the_end_of_the_one_before(
    single: FakeCluster,
) -> None:
    async with producer(single) as sending:
        async with sending.transaction():
            await sending.send("t", b"0")
        transaction(single).slow_answers = 3
        async with sending.transaction():
            await sending.send("t", b"1")
            await sending.flush()
            transaction(single).slow_answers = 3
    assert log(single).committed_values() == [b"0", b"1"]


async def test_a_newer_producer_fences_the_older_one_for_good(single: FakeCluster) -> None:
    async with producer(single) as old:
        tx = old.transaction()
        await tx.begin()
        await old.send_and_wait("t", b"old")
        async with producer(single) as new:
            async with new.transaction():
                await new.send("t", b"new")
            for _ in range(2):
                with pytest.raises(FencedError, match="has taken over"):
                    await tx.commit()
            with pytest.raises(FencedError):
                await old.send("t", b"later")
            with pytest.raises(FencedError):
                await old.transaction().begin()
            async with new.transaction():
                await new.send("t", b"newer")
    assert log(single).committed_values() == [b"new", b"newer"]


async def test_a_write_of_a_fenced_producer_ends_its_block_with_a_fenced_error(
    single: FakeCluster,
) -> None:
    async with producer(single) as old, producer(single):
        with pytest.raises(FencedError):
            async with old.transaction():
                await old.send_and_wait("t", b"old")
    assert log(single).committed_values() == []


async def test_a_transaction_that_lasts_too_long_is_aborted_and_the_producer_goes_on(
    single: FakeCluster,
) -> None:
    async with producer(single, transaction_timeout_ms=50) as sending:
        for is_late_write in (False, True):
            with pytest.raises((TransactionAbortableError, ServerError)):
                async with sending.transaction():
                    await sending.send_and_wait("t", b"slow")
                    await asyncio.sleep(0.1)
                    if is_late_write:
                        await sending.send_and_wait("t", b"late")
        async with sending.transaction():
            await sending.send("t", b"fast")
    assert log(single).committed_values() == [b"fast"]


async def test_a_refused_batch_breaks_its_transaction_only(single: FakeCluster) -> None:
    async with producer(single) as sending:
        single.fail(PRODUCE, Fault(), Fault(frame_errors={0: CORRUPT_BATCH}))
        with pytest.raises(TransactionAbortableError, match=r"refused|damaged"):
            async with sending.transaction():
                await sending.send_and_wait("t", b"0")
                refused = await sending.send("t", b"1")
                await sending.flush()
                with pytest.raises(TransactionAbortableError):
                    await sending.send("t", b"2")
        assert isinstance(refused.exception(), ServerError)
        async with sending.transaction():
            await sending.send("t", b"3")
    assert log(single).committed_values() == [b"3"]


async def test_calls_at_the_wrong_time_are_refused(single: FakeCluster) -> None:
    async with producer(single) as sending:
        for call in (
            sending.send("t", b"x"),
            sending.send_many("t", [b"x"]),
            sending.send_batch("t", 0, bytearray()),
        ):
            with pytest.raises(IllegalStateError, match="no transaction is open"):
                await call
        tx = sending.transaction()
        with pytest.raises(IllegalStateError, match="no transaction is open"):
            await tx.commit()
        await tx.abort()
        async with tx:
            with pytest.raises(IllegalStateError, match="one at a time"):
                await sending.transaction().begin()
        assert single.requests[COMMIT] == 0
        assert sending.prepared_transaction() is None
        async with member(single) as reading:
            await asyncio.sleep(0)
            with pytest.raises(TransactionAbortableError, match="auto_commit_interval_ms=None"):
                async with sending.transaction() as tx:
                    await tx.commit_offsets(reading)
    async with Producer(bootstrap_servers=single.bootstrap) as plain:
        with pytest.raises(IllegalStateError, match="transactional_id"):
            plain.transaction()
    for settings in ({"acks": 1}, {"idempotent": False}, {"transactional_id": ""}):
        with pytest.raises(ValueError, match="transactional_id"):
            producer(single, **settings)


async def test_a_commit_without_an_answer_says_that_its_outcome_is_unknown(
    single: FakeCluster,
) -> None:
    async with producer(single, delivery_timeout_ms=300) as sending:
        tx = sending.transaction()
        await tx.begin()
        await sending.send("t", b"0")
        single.fail(COMMIT, *[Fault(drop_after=True)] * 500)
        with pytest.raises(DeliveryTimeoutError, match="may or may not be done") as failed:
            await tx.commit()
        assert failed.value.outcome_unknown
        with pytest.raises(IllegalStateError, match=r"call commit\(\) again"):
            await tx.abort()
        with pytest.raises(IllegalStateError, match=r"call commit\(\) again"):
            await sending.transaction().begin()
        single.faults[COMMIT].clear()
        await tx.commit()
        async with sending.transaction():
            await sending.send("t", b"1")
    assert log(single).committed_values() == [b"0", b"1"]


async def test_a_commit_that_certainly_did_not_happen_is_aborted(single: FakeCluster) -> None:
    async with producer(single, delivery_timeout_ms=200) as sending:
        single.fail(COMMIT, *[Fault(error=OVERLOADED)] * 500)
        with pytest.raises(DeliveryTimeoutError, match="is not done") as failed:
            async with sending.transaction():
                await sending.send("t", b"0")
        assert not failed.value.outcome_unknown
        single.faults[COMMIT].clear()
        async with sending.transaction():
            await sending.send("t", b"1")
        single.fail(COMMIT, Fault(error=INVALID_BODY))
        with pytest.raises(ServerError, match="not valid"):
            async with sending.transaction():
                await sending.send("t", b"2")
    assert log(single).committed_values() == [b"1"]


async def test_an_abort_that_fails_is_tried_again_by_the_next_transaction(
    single: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer(single, delivery_timeout_ms=200) as sending:
        single.fail(ABORT, *[Fault(error=OVERLOADED)] * 500)
        with pytest.raises(ZeroDivisionError):
            async with sending.transaction():
                await sending.send_and_wait("t", b"0")
                raise ZeroDivisionError
        assert "could not be aborted" in caplog.text
        single.faults[ABORT].clear()
        async with sending.transaction():
            await sending.send("t", b"1")
    assert log(single).committed_values() == [b"1"]


async def test_a_cancelled_block_and_a_closed_producer_leave_nothing_open(
    single: FakeCluster,
) -> None:
    async with producer(single) as sending:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), sending.transaction():
                await sending.send_and_wait("t", b"0")
                await asyncio.sleep(60)
        assert not log(single).open_transactions
        tx = sending.transaction()
        await tx.begin()
        await sending.send_and_wait("t", b"1")
        future = await sending.send("t", b"2")
    assert not log(single).open_transactions
    assert isinstance(future.exception(), TransactionAbortableError)
    assert log(single).committed_values() == []


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_prepared_transaction_outlives_its_process(
    single: FakeCluster, is_commit: bool
) -> None:
    async with producer(single) as sending, sending.transaction() as tx:
        await sending.send("t", b"0")
        await tx.prepare()
        with pytest.raises(IllegalStateError, match="prepared"):
            await sending.send("t", b"1")
    assert log(single).open_transactions
    async with producer(single, keeps_prepared=True) as later:
        with pytest.raises(IllegalStateError, match="prepared"):
            await later.transaction().begin()
        prepared = later.prepared_transaction()
        assert prepared is not None
        await (prepared.commit() if is_commit else prepared.abort())
        assert later.prepared_transaction() is None
        async with later.transaction():
            await later.send("t", b"2")
    expected = [b"0", b"2"] if is_commit else [b"2"]
    assert log(single).committed_values() == expected


async def test_a_producer_that_keeps_nothing_aborts_what_is_prepared(single: FakeCluster) -> None:
    async with producer(single) as sending, sending.transaction() as tx:
        await sending.send("t", b"0")
        await tx.prepare()
    async with producer(single):
        assert not log(single).open_transactions


async def test_records_of_a_partition_that_was_lost_meanwhile_are_not_committed(
    cluster: FakeCluster,
) -> None:
    for partition in cluster.topics["t"].partitions:
        append(partition, b"x")
    async with (
        producer(cluster) as sending,
        member(cluster, auto_commit_interval_ms=None) as reading,
    ):
        async with asyncio.timeout(DEADLINE_S):
            seen = 0
            while seen < 3:
                seen += sum(map(len, (await reading.getmany(timeout_ms=100)).values()))
        with pytest.raises(TransactionAbortableError, match=r"other members|any more"):
            async with sending.transaction() as tx:
                cluster.coordinator.group("g").members.clear()
                async with asyncio.timeout(DEADLINE_S):
                    while len(reading.assignment()) == 3 and not await _is_back(cluster):
                        await reading.getmany(timeout_ms=10)
                    await reading.getmany(timeout_ms=10)
                await tx.commit_offsets(reading)
        await reading.seek_to_committed()
        async with sending.transaction() as tx:
            async with asyncio.timeout(DEADLINE_S):
                while not await reading.getmany(timeout_ms=100):
                    pass
            await tx.commit_offsets(reading)
    assert not any(one.pending for one in cluster.coordinator.groups.values())


async def _is_back(cluster: FakeCluster) -> bool:
    return bool(cluster.coordinator.group("g").members)


async def test_every_transaction_counts_sequences_from_0_in_an_epoch_of_its_own(
    single: FakeCluster,
) -> None:
    async with producer(single) as sending:
        for number in range(3):
            async with sending.transaction():
                await sending.send_and_wait("t", b"%da" % number)
                await sending.send_and_wait("t", b"%db" % number)
            state = log(single).producers[transaction(single).producer_id]
            assert state.producer_epoch == transaction(single).epoch == number + 1


async def test_transactional_ids_are_encoded_in_paths(
    single: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    name = "a/b c?&ä"
    with caplog.at_level(logging.WARNING):
        async with producer(single, transactional_id=name) as sending, sending.transaction():
            await sending.send("t", b"0")
    assert list(single.coordinator.transactions.by_id) == [name]
    assert log(single).committed_values() == [b"0"]


async def test_raw_batches_belong_to_the_transaction(single: FakeCluster) -> None:
    from raftlog.record.codec import BatchBuilder

    async with producer(single) as sending:
        with pytest.raises(RaftlogClientError):
            async with sending.transaction():
                builder = BatchBuilder()
                builder.append(0, None, b"raw")
                await (await sending.send_batch("t", 0, builder.build()))
                raise RaftlogClientError("no")
        async with sending.transaction():
            builder = BatchBuilder()
            builder.append(0, None, b"raw2")
            await sending.send_batch("t", 0, builder.build())
    assert log(single).committed_values() == [b"raw2"]


async def test_offsets_committed_by_a_transaction_count_when_partitions_move(
    cluster: FakeCluster,
) -> None:
    for partition in cluster.topics["t"].partitions:
        append(partition, b"x")
    settings = {"auto_commit_interval_ms": None}
    async with producer(cluster) as sending, member(cluster, **settings) as reading:
        for is_shared in (False, True):
            async with asyncio.timeout(DEADLINE_S):
                seen = 0
                while seen < 3 and not is_shared:
                    seen += sum(map(len, (await reading.getmany(timeout_ms=100)).values()))
            async with sending.transaction() as tx:
                await tx.commit_offsets(reading)
            if not is_shared:
                async with member(cluster, **settings) as other, asyncio.timeout(DEADLINE_S):
                    while not other.assignment():
                        await reading.getmany(timeout_ms=5)
                        await other.getmany(timeout_ms=5)
    assert {found.offset for found in cluster.coordinator.group("g").offsets.values()} == {1}


async def test_an_abort_before_anything_is_sent_does_not_hold_up_the_next_transaction(
    single: FakeCluster,
) -> None:
    async with producer(single) as sending:
        for number in range(3):
            with pytest.raises(ZeroDivisionError):
                async with sending.transaction():
                    await sending.send("t", b"aborted")
                    raise ZeroDivisionError
            # The sender's turn comes between the two transactions.
            await asyncio.sleep(0)
            async with asyncio.timeout(DEADLINE_S), sending.transaction():
                await sending.send("t", b"%d" % number)
    assert log(single).committed_values() == [b"0", b"1", b"2"]


async def test_futures_of_an_aborted_transaction_need_not_be_awaited(
    single: FakeCluster,
) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    async with producer(single) as sending:
        with pytest.raises(ZeroDivisionError):
            async with sending.transaction():
                await sending.send("t", b"aborted")
                raise ZeroDivisionError
        single.fail(PRODUCE, Fault(frame_errors={0: CORRUPT_BATCH}))
        with pytest.raises(TransactionAbortableError):
            async with sending.transaction():
                await sending.send("t", b"refused")
    gc.collect()
    assert unseen == []


async def test_no_request_of_an_aborted_transaction_begins_while_others_are_given_up(
    single: FakeCluster,
) -> None:
    """Its answer would settle a batch of the next transaction, which may never be written."""
    single.create_topic("two", 2)
    async with producer(single) as sending:
        async with sending.transaction():
            for number in range(2):
                await sending.send_and_wait("two", b"before", partition=number)
        single.fail(PRODUCE, Fault(delay_s=1), Fault(delay_s=1))
        nodes = sending._sender._nodes.values()
        with pytest.raises(ZeroDivisionError):
            async with sending.transaction():
                await sending.send("two", b"aborted", partition=0)
                for _ in range(100):
                    if any(node.requests for node in nodes):
                        break
                    await asyncio.sleep(0)
                await sending.send("two", b"aborted", partition=1)
                raise ZeroDivisionError
        assert not any(node.requests for node in nodes)
        async with asyncio.timeout(DEADLINE_S), sending.transaction():
            for number in range(2):
                await sending.send("two", b"after", partition=number)
    for number in range(2):
        found = single.topics["two"].partitions[number].committed_values()
        assert found == [b"before", b"after"]
