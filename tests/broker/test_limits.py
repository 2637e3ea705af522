"""Budgets by address, turns of long work, minimum rates, and the partitions of one request."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.limits import (
    ADDRESSES_REMEMBERED_MAX,
    AddressBudget,
    RateGuard,
    WorkTurns,
)
from raftlog.record.errors import INVALID_BODY, OVERLOADED, QUOTA_EXCEEDED, LogError
from raftlog.world.time import SystemClock
from tests.broker.harness import broker_settings
from tests.simulation.clock import ManualClock


def test_amounts_over_the_total_are_refused_and_leave_no_trace() -> None:
    budget = AddressBudget(100, "bytes in flight")
    for number in range(4):
        budget.reserve(20, f"10.0.0.{number}")
    with pytest.raises(LogError) as caught:
        budget.reserve(21, "10.0.0.9")
    assert caught.value.entry is OVERLOADED
    assert (budget.used, budget.refused) == (80, 1)
    budget.reserve(8, "10.0.0.9")
    for number in range(4):
        budget.release(20, f"10.0.0.{number}")
    budget.release(8, "10.0.0.9")
    assert budget.used == 0


def test_the_last_eighth_is_for_addresses_that_hold_little() -> None:
    budget = AddressBudget(640, "bytes in flight")
    for number in range(4):
        budget.reserve(140, f"10.0.0.{number}")
    assert budget.used == 560, "all but the eighth"
    for address, size in (("10.0.0.0", 1), ("10.0.1.0", 11)):
        with pytest.raises(LogError) as caught:
            budget.reserve(size, address)
        assert caught.value.entry is OVERLOADED
        assert budget.room(address) == (0 if address == "10.0.0.0" else 10)
    for number in range(8):
        budget.reserve(4, f"10.0.1.{number}")
        budget.reserve(6, f"10.0.1.{number}")
        with pytest.raises(LogError):
            budget.reserve(1, f"10.0.1.{number}")
    assert budget.used == 640
    assert budget.room("10.0.1.8") == 0
    with pytest.raises(LogError):
        budget.reserve(1, "10.0.1.8")


def test_one_address_has_a_quarter_at_most() -> None:
    budget = AddressBudget(100, "bytes in flight")
    budget.reserve(20, "10.0.0.1")
    with pytest.raises(LogError) as caught:
        budget.reserve(6, "10.0.0.1")
    assert caught.value.entry is QUOTA_EXCEEDED
    assert "10.0.0.1 hold 20 bytes in flight" in caught.value.message
    assert "25 are allowed" in caught.value.message
    budget.reserve(25, "10.0.0.2")
    budget.reserve(5, "10.0.0.1")
    assert budget.used_by("10.0.0.1") == 25


def test_answer_of_a_finished_write_is_held_over_the_limit_and_leaves_less_room() -> None:
    budget = AddressBudget(100, "bytes in flight")
    budget.force_reserve(150, "10.0.0.1")
    with pytest.raises(LogError):
        budget.reserve(1, "10.0.0.2")
    budget.release(150, "10.0.0.1")
    budget.reserve(25, "10.0.0.2")


def test_a_request_without_bytes_leaves_no_trace_of_its_address() -> None:
    budget = AddressBudget(100, "bytes in flight")
    for number in range(1_000):
        budget.reserve(0, f"2001:db8:0:{number:x}::/64")
    assert sys.getsizeof(budget._by_address) == sys.getsizeof({})


def test_more_given_back_than_taken_is_a_broken_invariant() -> None:
    budget = AddressBudget(100, "bytes in flight")
    budget.reserve(1, "10.0.0.1")
    with pytest.raises(AssertionError):
        budget.release(1, "10.0.0.2")


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcdef"), st.booleans())))
def test_no_sequence_exceeds_total_or_share(steps: list[tuple[int, str, bool]]) -> None:
    budget = AddressBudget(100, "bytes in flight")
    held: Counter[str] = Counter()
    for size, address, is_take in steps:
        if is_take:
            try:
                budget.reserve(size, address)
            except LogError:
                assert held[address] + size > 25 or held.total() + size > 88
            else:
                held[address] += size
        elif held[address]:
            budget.release(held[address], address)
            held[address] = 0
        assert budget.used == held.total() <= 100
        assert all(budget.used_by(each) == held[each] <= 25 for each in "abcdef")


async def test_one_piece_of_long_work_runs_in_an_iteration_of_the_loop() -> None:
    turns = WorkTurns(SystemClock())
    iteration = 0
    pieces: Counter[int] = Counter()
    is_done = False

    async def count_iterations() -> None:
        nonlocal iteration
        while not is_done:
            iteration += 1
            await asyncio.sleep(0)

    async def work() -> None:
        for _ in range(20):
            await turns.wait()
            pieces[iteration] += 1

    counting = asyncio.create_task(count_iterations())
    await asyncio.gather(*(work() for _ in range(10)))
    is_done = True
    await counting
    assert pieces.total() == 200
    assert max(pieces.values()) == 1


async def test_cancelled_wait_for_a_turn_lets_the_others_go_on() -> None:
    turns = WorkTurns(SystemClock())
    waiting = [asyncio.create_task(turns.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await asyncio.wait_for(waiting[2], 5)


async def test_addresses_take_turns_however_many_requests_one_has() -> None:
    turns = WorkTurns(SystemClock())
    order: list[str] = []

    async def request(address: str) -> None:
        turns.work_for(address)
        for _ in range(3):
            await turns.wait()
            order.append(address)

    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(request("many"))
        for address in ("one", "two"):
            group.create_task(request(address))
    assert len(order) == 306
    assert max(index for index, address in enumerate(order) if address != "many") < 12


async def test_tasks_of_a_request_wait_for_its_address() -> None:
    turns = WorkTurns(SystemClock())
    order: list[str] = []

    async def piece(name: str) -> None:
        await turns.wait()
        order.append(name)

    async def request(address: str, count: int) -> None:
        turns.work_for(address)
        await asyncio.gather(*(piece(address) for _ in range(count)))

    await asyncio.gather(request("many", 50), request("one", 1))
    assert order.index("one") == 1


PIECE_S = 0.003


class LongWork:
    """Pieces of work of PIECE_S by a manual clock, with the loop's iterations between these."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.turns = WorkTurns(self.clock)
        self.iterations = 0

    async def gaps(self, address: str, count: int) -> list[int]:
        """Iterations of the loop from each of `count` pieces to the next."""
        self.turns.work_for(address)
        at = []
        for _ in range(count + 1):
            await self.turns.wait()
            at.append(self.iterations)
            self.clock.advance(PIECE_S)
        return [after - before for before, after in itertools.pairwise(at)]

    async def count_iterations(self) -> None:
        while True:
            self.iterations += 1
            await asyncio.sleep(0)


async def gaps_beside(address: str | None, later_s: float = 0.0) -> list[int]:
    """Gaps of long work of "many", after a request of `address` arrived during its turns."""
    work = LongWork()
    counting = asyncio.create_task(work.count_iterations())
    many = asyncio.create_task(work.gaps("many", 1))
    while not many.done():
        if address is not None:
            work.turns.work_for(address)
        await asyncio.sleep(0)
    work.clock.advance(later_s)
    found = await work.gaps("many", 10)
    counting.cancel()
    return found


async def test_long_work_leaves_half_of_the_time_to_short_requests_of_others() -> None:
    assert min(await gaps_beside("few")) > 5


@pytest.mark.parametrize(("address", "later_s"), [(None, 0.0), ("many", 0.0), ("few", 0.2)])
async def test_long_work_goes_on_at_once_without_requests_of_others(
    address: str | None, later_s: float
) -> None:
    assert max(await gaps_beside(address, later_s)) <= 3


async def test_requests_with_long_work_are_not_waited_for() -> None:
    work = LongWork()
    counting = asyncio.create_task(work.count_iterations())
    await asyncio.gather(work.gaps("one", 40), work.gaps("two", 40))
    gaps = await asyncio.gather(work.gaps("one", 10), work.gaps("two", 10))
    counting.cancel()
    assert max(map(max, gaps)) <= 6


async def test_addresses_with_long_work_are_remembered_within_a_bound() -> None:
    turns = WorkTurns(SystemClock())
    for number in range(200):
        turns.work_for(f"2001:db8:0:{number:x}::/64")
        await turns.wait()
    assert len(turns._worked) == ADDRESSES_REMEMBERED_MAX


def test_bytes_of_an_earlier_window_earn_no_time() -> None:
    guard = RateGuard(100, 10.0)
    guard.moved(1_000_000, 1.0)
    assert guard.patience_s == 10.0
    guard.moved(999, 4.0)
    assert guard.patience_s == 6.0
    guard.moved(0, 7.0)
    assert guard.patience_s == 0.0


def test_transfer_at_the_minimum_rate_goes_on_without_end() -> None:
    guard = RateGuard(100, 10.0)
    for _ in range(1000):
        guard.moved(100, 1.0)
        assert guard.patience_s > 0


def test_partitions_of_a_request_are_bounded() -> None:
    settings = broker_settings(partitions_per_request_max=3)
    settings.check_partition_count(3)
    with pytest.raises(LogError, match="The request names 4 partitions; 3 may be") as caught:
        settings.check_partition_count(4)
    assert caught.value.entry is INVALID_BODY
