"""One shard: order, group commit, answers after commit, its end, its timers, held requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from raftlog.coordinator.shard import shard as shard_module
from raftlog.coordinator.shard.decision import UNDATED_MS, Decision, Producer
from raftlog.coordinator.shard.load import replay
from raftlog.coordinator.shard.shard import COMMIT_S, IN_FLIGHT_MAX
from raftlog.record.errors import (
    DISK_FULL,
    ILLEGAL_STATE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    OVERLOADED,
    PRODUCER_FENCED,
    RECORD_TOO_LARGE,
    RETRIABLE,
    STORAGE_FAILED,
    ErrorEntry,
    LogError,
)
from raftlog.record.header import parse_header
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog.replication.partition import Acks
from tests.controller.clock import settle
from tests.coordinator.harness import ShardHarness, marker
from tests.coordinator.registers import (
    CLIENT,
    KIND,
    REGISTER,
    SESSION_MS,
    Await,
    Get,
    Increment,
    Registers,
    RegisterShard,
    record,
)
from tests.waiting import until


@pytest.fixture
async def one() -> AsyncIterator[ShardHarness]:
    harness = await ShardHarness.start()
    yield harness
    await harness.close()


async def failure(waiting: asyncio.Task[Any]) -> ErrorEntry:
    with pytest.raises(LogError) as raised:
        await waiting
    return raised.value.entry


async def replayed(one: ShardHarness) -> Registers:
    """The state by the log alone."""
    state = Registers()
    await replay(KIND, state, b"".join(one.log.batches))
    return state


# Order and group commit


async def test_requests_of_one_turn_share_a_batch_in_their_order(one: ShardHarness) -> None:
    shard = await one.load()
    waiting = [one.increment(shard, client=f"c{n}", operation=f"o{n}") for n in range(5)]
    assert [(await each).value for each in waiting] == [1, 2, 3, 4, 5]
    assert one.written() == [["o0", "o1", "o2", "o3", "o4"]]


async def test_state_and_positions_equal_the_replay_of_the_log(one: ShardHarness) -> None:
    shard = await one.load()
    for n in range(20):
        one.increment(shard, register=f"r{n % 3}", client=f"c{n % 4}")
        if n % 7 == 0:
            await settle()
    await one.increment(shard)
    assert shard.state.content() == (await replayed(one)).content()
    again = await one.load()
    assert again.state.content() == shard.state.content()


async def test_batches_in_flight_are_bounded_and_the_next_one_collects(one: ShardHarness) -> None:
    shard = await one.load()
    one.log.hold_flush = True
    waiting = []
    for n in range(IN_FLIGHT_MAX + 3):
        waiting.append(one.increment(shard, operation=f"o{n}"))
        await settle()
    assert len(one.log.batches) == IN_FLIGHT_MAX
    one.log.flush_now()
    await settle()
    assert one.written()[-1] == [f"o{n}" for n in range(IN_FLIGHT_MAX, IN_FLIGHT_MAX + 3)]
    one.log.flush_now()
    assert [(await each).value for each in waiting] == list(range(1, IN_FLIGHT_MAX + 4))


async def test_a_large_turn_is_several_batches(
    one: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "BATCH_BYTES_MAX", 600)
    shard = await one.load()
    await asyncio.gather(*(one.increment(shard, client=f"c{n}") for n in range(40)))
    assert len(one.log.batches) > 5
    assert all(len(batch) <= 600 for batch in one.log.batches)
    assert shard.state.content() == (await replayed(one)).content()


async def test_records_of_a_transaction_have_a_batch_of_their_own(one: ShardHarness) -> None:
    shard = await one.load()
    producer = Producer(ProducerId(7), ProducerEpoch(3))

    def decide(_state: Registers) -> Decision[None]:
        return Decision(None, (record(REGISTER, "r", 9, "tx"),), producer)

    plain, inside, later = (
        one.increment(shard, operation="a"),
        asyncio.ensure_future(shard.execute(decide)),
        one.increment(shard, operation="b"),
    )
    await asyncio.gather(plain, inside, later)
    headers = [parse_header(batch) for batch in one.log.batches]
    assert [header.is_transactional for header in headers] == [False, True, False]
    assert (headers[1].producer_id, headers[1].producer_epoch) == producer
    assert shard.state.transactional == [(2, producer)]
    assert (await one.load()).state.content() == shard.state.content()


async def test_batches_of_transactions_do_not_wait_for_company(
    one: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "ALONE_IN_FLIGHT_MAX", 10)
    shard = await one.load()
    one.log.hold_flush = True

    def decide_for(number: int) -> Callable[[Registers], Decision[None]]:
        producer = Producer(ProducerId(number), ProducerEpoch(0))
        return lambda _state: Decision(
            None, (record(REGISTER, f"r{number}", 9, f"o{number}"),), producer
        )

    waiting = [asyncio.ensure_future(shard.execute(decide_for(number))) for number in range(12)]
    plain = one.increment(shard, operation="plain")
    await settle()
    assert len(one.log.batches) == 10
    one.log.flush_now()
    await settle()
    assert len(one.log.batches) == 13
    one.log.hold_flush = False
    one.log.flush_now()
    await asyncio.gather(*waiting, plain)
    assert shard.state.content() == (await replayed(one)).content()


class Markers:
    """The log's judgement of one producer's markers, and their writes."""

    def __init__(self, one: ShardHarness) -> None:
        self.one = one
        self.refusal: LogError | None = None
        self.is_written = False
        self.judged_at: list[int] = []

    def end(
        self, shard: RegisterShard, producer: Producer, *, committed: bool = True
    ) -> asyncio.Task[None]:
        def judge(_new_producers: int) -> bool:
            self.judged_at.append(self.one.log.log_end_offset)
            if self.refusal is not None:
                raise self.refusal
            return not self.is_written

        async def write(guard: Callable[[], None]) -> None:
            self.is_written = True
            batches = (marker(producer, committed=committed),)
            await self.one.partition.append(batches, acks=Acks.ALL, timeout_s=9, guard=guard)

        work = shard.append_marker(producer, committed=committed, judge=judge, write=write)
        return asyncio.ensure_future(work)


async def test_a_marker_has_its_place_among_the_decisions(one: ShardHarness) -> None:
    shard, markers = await one.load(), Markers(one)
    producer = Producer(ProducerId(4), ProducerEpoch(2))
    await asyncio.gather(
        one.increment(shard, operation="a"),
        markers.end(shard, producer),
        one.increment(shard, operation="b"),
    )
    assert [parse_header(batch).is_control for batch in one.log.batches] == [False, True, False]
    assert shard.state.markers == [(4, 2, True, 2)]
    assert shard.state.content() == (await replayed(one)).content()


async def test_a_marker_is_judged_behind_the_batches_of_its_producer(one: ShardHarness) -> None:
    shard, markers = await one.load(), Markers(one)
    producer = Producer(ProducerId(4), ProducerEpoch(2))
    inside = Decision(None, (record(REGISTER, "r", 9, "tx"),), producer)
    one.log.hold_flush = True
    waiting = asyncio.ensure_future(shard.execute(lambda _: inside))
    await settle()
    first, repeated = markers.end(shard, producer), markers.end(shard, producer)
    await settle()
    assert not markers.judged_at
    one.log.hold_flush = False
    one.log.flush_now()
    await asyncio.gather(waiting, first, repeated)
    assert markers.judged_at == [1, 2]
    assert shard.state.markers == [(4, 2, True, 1)]


async def test_a_marker_that_the_log_refuses_leaves_the_shard_as_it_is(one: ShardHarness) -> None:
    shard, markers = await one.load(), Markers(one)
    markers.refusal = LogError(PRODUCER_FENCED, "an older epoch")
    assert (
        await failure(markers.end(shard, Producer(ProducerId(4), ProducerEpoch(2))))
        is PRODUCER_FENCED
    )
    assert not shard.state.markers
    assert (await one.increment(shard)).value == 1


async def test_a_marker_that_fails_ends_the_shard(one: ShardHarness) -> None:
    shard, markers = await one.load(), Markers(one)
    one.log.append_error = LogError(DISK_FULL, "full")
    ending = markers.end(shard, Producer(ProducerId(4), ProducerEpoch(2)))
    assert await failure(ending) is NOT_COORDINATOR
    assert shard.ended is not None


async def test_a_failed_replay_ends_the_shard(one: ShardHarness) -> None:
    shard = await one.load()

    def broken(*_: object, **_named: object) -> None:
        raise AssertionError("broken")

    shard.state.replay = broken  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="broken"):
        await one.increment(shard)
    assert shard.ended is not None
    assert not one.log.batches


# Answers


async def test_no_answer_leaves_before_all_that_it_depends_on_is_committed(
    one: ShardHarness,
) -> None:
    shard = await one.load()
    one.log.hold_flush = True
    repeated = Increment("r", "c", "same")
    waiting: list[asyncio.Task[Any]] = [
        one.request(shard, repeated),
        one.request(shard, repeated),  # no records of its own
        one.request(shard, Get("r")),
        one.increment(shard, register="refused"),  # refused by the uncommitted state
    ]
    await settle()
    assert not any(each.done() for each in waiting)
    one.log.flush_now()
    first, second, read = await asyncio.gather(*waiting[:3])
    assert first.value == second.value == read.value == 1
    assert await failure(waiting[3]) is ILLEGAL_STATE
    assert one.written() == [["same"]]


async def test_an_idle_shard_answers_at_once_without_records(one: ShardHarness) -> None:
    shard = await one.load()
    assert await one.value(shard) == 0
    assert not one.log.batches


async def test_a_cancelled_request_leaves_its_records_and_the_others(one: ShardHarness) -> None:
    shard = await one.load()
    one.log.hold_flush = True
    cancelled, other = one.increment(shard), one.increment(shard, client="d")
    await settle()
    cancelled.cancel()
    await settle()
    one.log.flush_now()
    assert (await other).value == 2


async def test_uncommitted_changes_are_bounded(
    one: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "PENDING_RECORDS_MAX", 4)
    shard = await one.load()
    one.log.hold_flush = True
    admitted = [one.increment(shard), one.increment(shard)]
    await settle()
    assert await failure(one.increment(shard)) is OVERLOADED
    one.log.flush_now()
    await asyncio.gather(*admitted)
    one.log.hold_flush = False
    assert (await one.increment(shard)).value == 3


async def test_a_change_too_large_for_a_batch_is_refused_alone(one: ShardHarness) -> None:
    shard = await one.load()
    long = "x" * one.log.config.max_message_bytes
    assert await failure(one.increment(shard, operation=long)) is RECORD_TOO_LARGE
    assert shard.ended is None
    assert (await one.increment(shard)).value == 1


async def test_nothing_is_decided_below_the_minimum_of_replicas(one: ShardHarness) -> None:
    shard = await one.load()
    await one.increment(shard)
    one.set_isr(minimum=2)
    assert await failure(one.increment(shard)) is NOT_ENOUGH_REPLICAS
    assert await one.value(shard) == 1
    one.set_isr(minimum=1)
    assert (await one.increment(shard)).value == 2


# The end


async def test_refused_append_ends_the_shard_and_nothing_later_is_written(
    one: ShardHarness,
) -> None:
    shard = await one.load()
    one.log.append_error = LogError(DISK_FULL, "full")
    first = one.increment(shard)
    await until(first.done)
    assert await failure(first) is NOT_COORDINATOR
    assert shard.ended is not None
    one.log.append_error = None
    assert await failure(one.increment(shard)) is NOT_COORDINATOR
    assert await one.value(await one.load()) == 0


async def test_batches_behind_a_refused_one_are_not_written(one: ShardHarness) -> None:
    shard = await one.load()
    one.log.hold_flush = True
    append = one.log.append

    async def held(*arguments: Any, **named: Any) -> Any:
        # Waits for a segment, behind which later appends wait as well.
        await gate.wait()
        if refusals:
            raise refusals.pop()
        return await append(*arguments, **named)

    gate, refusals = asyncio.Event(), [LogError(DISK_FULL, "full")]
    one.log.append = held  # type: ignore[method-assign]
    waiting = []
    for _ in range(3):
        waiting.append(one.increment(shard))
        await settle()
    gate.set()
    # Nothing was written, which is certain for all three.
    assert [await failure(each) for each in waiting] == [NOT_COORDINATOR] * 3
    assert not one.log.batches


@pytest.mark.parametrize("entry", [STORAGE_FAILED, RETRIABLE])
async def test_append_of_unknown_outcome_ends_the_shard(
    one: ShardHarness, entry: ErrorEntry
) -> None:
    shard = await one.load()
    append = one.log.append

    async def written_all_the_same(*arguments: Any, **named: Any) -> Any:
        await append(*arguments, **named)
        raise LogError(entry, "lost")

    one.log.append = written_all_the_same  # type: ignore[method-assign]
    writer, reader = one.increment(shard), one.request(shard, Get("r"))
    assert await failure(writer) is RETRIABLE
    assert await failure(reader) is NOT_COORDINATOR
    one.log.append = append  # type: ignore[method-assign]
    again = await one.load()
    assert await one.value(again) == 1


async def test_end_of_the_lead_ends_the_shard_at_once(one: ShardHarness) -> None:
    shard = await one.load()
    one.log.hold_flush = True
    writer, reader = one.increment(shard), one.request(shard, Get("r"))
    held = one.request(shard, Await("r", 9, 60_000))
    await settle()
    one.lead(2)
    assert shard.ended is not None
    assert await failure(writer) is RETRIABLE
    assert await failure(reader) is NOT_COORDINATOR
    await until(held.done)
    assert await failure(held) is NOT_COORDINATOR
    assert await failure(one.increment(shard)) is NOT_COORDINATOR


@pytest.mark.parametrize("is_led_again", [False, True])
async def test_an_ended_shard_writes_nothing(one: ShardHarness, is_led_again: bool) -> None:
    shard = await one.load()
    append, gate = one.log.append, asyncio.Event()

    async def late(*arguments: Any, **named: Any) -> Any:
        await gate.wait()
        return await append(*arguments, **named)

    one.log.append = late  # type: ignore[method-assign]
    writer = one.increment(shard)
    await settle()
    if is_led_again:
        one.lead(2)
        one.lead(1)
    else:
        shard.end(LogError(RETRIABLE, "no commit in time"))
    assert await failure(writer) is NOT_COORDINATOR
    again = await one.load()
    gate.set()
    await settle()
    assert not one.log.batches
    assert (await one.increment(again)).value == 1


async def test_a_write_refused_by_the_disk_is_certain(one: ShardHarness) -> None:
    shard = await one.load()

    async def full(*_: Any, guard: Any, **_named: Any) -> Any:
        guard()
        raise LogError(DISK_FULL, "full")

    one.log.append = full  # type: ignore[method-assign]
    assert await failure(one.increment(shard)) is NOT_COORDINATOR


async def test_commit_that_takes_too_long_ends_the_shard(
    one: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert COMMIT_S > 10
    monkeypatch.setattr(shard_module, "COMMIT_S", 0.01)
    shard = await one.load()
    one.log.hold_flush = True
    assert await failure(one.increment(shard)) is RETRIABLE
    assert shard.ended is not None


async def test_a_foreign_record_in_the_log_is_found_and_loaded(one: ShardHarness) -> None:
    shard, other = await one.load(), await one.load()
    await one.increment(other)
    assert await failure(one.increment(shard)) is NOT_COORDINATOR
    assert one.written() == [["c/1"]]
    assert (await one.increment(await one.load())).value == 2


# Time


async def test_stored_times_are_the_clusters_and_nothing_expires_before_there_is_one(
    one: ShardHarness,
) -> None:
    one.cluster_clock.follow_cluster_time()
    shard = await one.load()
    moment = shard.moment()
    assert (moment.time_ms, moment.expiry_ms) == (UNDATED_MS, None)
    right_ms = one.clock.time_ms() + 30 * 86_400_000
    one.cluster_clock.note_cluster_time(right_ms - 1_000, right_ms)
    await one.clock.advance(1.0)
    moment = shard.moment()
    assert moment.time_ms == right_ms + 1_000
    assert moment.expiry_ms == one.clock.time_ms()
    await one.increment(shard)
    assert parse_header(one.log.batches[-1]).max_timestamp_ms == right_ms + 1_000


# Timers


async def test_a_silent_client_expires(one: ShardHarness) -> None:
    shard = await one.load()
    await one.increment(shard)
    await one.clock.advance(SESSION_MS / 1000 - 0.5)
    assert shard.state.clients
    await one.clock.advance(1.0)
    await until(lambda: not shard.state.clients)
    await settle()
    assert not (await replayed(one)).clients


async def test_a_nearer_deadline_is_noticed(one: ShardHarness) -> None:
    shard = await one.load()
    await one.increment(shard)
    await settle()

    def decide(state: Registers) -> Decision[None]:
        state.timers.set("c", shard.moment().now_ms + 100)
        return Decision(None)

    await shard.execute(decide)
    await one.clock.advance(0.2)
    await until(lambda: not shard.state.clients)


async def test_timers_begin_with_full_length_after_a_load(one: ShardHarness) -> None:
    await one.increment(await one.load())
    await one.clock.advance(SESSION_MS / 1000 - 0.1)
    one.lead(2)
    one.lead(1)
    shard = await one.load()
    await one.clock.advance(SESSION_MS / 1000 - 0.1)
    assert shard.state.clients
    await one.clock.advance(0.2)
    await until(lambda: not shard.state.clients)


async def test_nothing_expires_while_the_partition_takes_no_writes(one: ShardHarness) -> None:
    shard = await one.load()
    await one.increment(shard)
    one.set_isr(minimum=2)
    await one.clock.advance(3 * SESSION_MS / 1000)
    assert shard.state.clients
    one.set_isr(minimum=1)
    # Full length again.
    await one.clock.advance(SESSION_MS / 1000 - 1)
    assert shard.state.clients
    await one.clock.advance(2.0)
    await until(lambda: not shard.state.clients)
    assert record(CLIENT, "c", None).value is None


# Held requests


async def test_a_held_request_returns_with_the_awaited_change(one: ShardHarness) -> None:
    shard = await one.load()
    held = one.request(shard, Await("r", 2, 60_000))
    await one.increment(shard)
    await settle()
    assert not held.done()
    await one.increment(shard, register="other")
    await one.increment(shard)
    assert (await held).value == 2
    assert not shard._held
    assert not shard._held_count


async def test_a_held_request_ends_with_its_timeout(one: ShardHarness) -> None:
    shard = await one.load()
    held = one.request(shard, Await("r", 2, 10))
    assert (await held).value == 0
    cancelled = one.request(shard, Await("r", 2, 60_000))
    await settle()
    cancelled.cancel()
    await settle()
    assert not shard._held
    assert not shard._held_count


async def test_held_requests_of_one_length_end_in_one_turn(
    one: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await one.load()
    loop = asyncio.get_running_loop()
    call_at, deadlines = loop.call_at, []

    def record(when: float, *arguments: Any, **named: Any) -> asyncio.TimerHandle:
        deadlines.append(when)
        return call_at(when, *arguments, **named)

    monkeypatch.setattr(loop, "call_at", record)
    held = []
    for now in (160.0, 160.3, 160.9):
        monkeypatch.setattr(loop, "time", lambda now=now: now)
        held.append(one.request(shard, Await("r", 2, 16_000)))
        await settle()
    assert deadlines == [176.0] * 3
    monkeypatch.undo()
    await one.increment(shard)
    await one.increment(shard)
    await asyncio.gather(*held)


async def test_held_requests_are_bounded(
    one: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "WAITERS_MAX", 1)
    shard = await one.load()
    held = one.request(shard, Await("r", 1, 60_000))
    await settle()
    assert await failure(one.request(shard, Await("r", 1, 60_000))) is OVERLOADED
    await one.increment(shard)
    await held
