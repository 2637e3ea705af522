"""The budget of one response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog.kafka import call
from raftlog.kafka.call import RESPONSE_BYTES_FREE, ROW_BYTES, ResponseBudget
from raftlog.record.errors import BAD_REQUEST, OVERLOADED, LogError
from tests.kafka.peers import KafkaNode, kafka_node

SHARE = 1 << 20
ADDRESS, OTHER = "10.0.0.1", "10.0.0.2"


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node(bytes_in_flight_max=4 * SHARE) as node:
        yield node


def give(budget: ResponseBudget) -> None:
    budget.broker.bytes_in_flight.release(budget.used, budget.address)


async def test_a_response_has_the_share_of_its_address_and_no_more(one: KafkaNode) -> None:
    budget = ResponseBudget(one.broker, ADDRESS)
    await budget.reserve(1, SHARE - ROW_BYTES)
    assert one.broker.bytes_in_flight.used_by(ADDRESS) == budget.used == SHARE
    with pytest.raises(LogError) as refused:
        await budget.reserve(1)
    assert refused.value.entry is BAD_REQUEST
    give(budget)


async def test_after_a_row_without_room_no_later_row_has_any(one: KafkaNode) -> None:
    budget = ResponseBudget(one.broker, ADDRESS)
    for size in (SHARE + 1, 1):
        with pytest.raises(LogError) as refused:
            await budget.reserve(0, size)
        assert refused.value.entry is BAD_REQUEST
    assert not budget.used


async def test_a_large_response_waits_for_room(one: KafkaNode) -> None:
    shared = one.broker.bytes_in_flight
    shared.reserve(SHARE, ADDRESS)
    budget = ResponseBudget(one.broker, ADDRESS)
    waiting = asyncio.ensure_future(budget.reserve(0, SHARE))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    shared.release(SHARE, ADDRESS)
    await waiting
    give(budget)


async def test_without_room_for_long_the_node_is_overloaded(
    one: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "ROOM_POLLS", 2)
    shared = one.broker.bytes_in_flight
    shared.reserve(SHARE, ADDRESS)
    budget = ResponseBudget(one.broker, ADDRESS)
    with pytest.raises(LogError) as refused:
        await budget.reserve(0, SHARE)
    assert refused.value.entry is OVERLOADED
    other = ResponseBudget(one.broker, OTHER)
    await other.reserve(0, SHARE)
    give(other)
    shared.release(SHARE, ADDRESS)


async def test_a_small_response_needs_no_room(one: KafkaNode) -> None:
    shared = one.broker.bytes_in_flight
    shared.reserve(SHARE, ADDRESS)
    budget = ResponseBudget(one.broker, ADDRESS)
    await budget.reserve(0, RESPONSE_BYTES_FREE)
    assert shared.used_by(ADDRESS) == SHARE + RESPONSE_BYTES_FREE
    give(budget)
    shared.release(SHARE, ADDRESS)
