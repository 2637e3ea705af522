"""Answers of leaders that are new, deposed or cut off: deletions, and lookups by time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.record.errors import NOT_ENOUGH_REPLICAS, LogError
from raftlog.record.types import Offset
from tests.simulation.data.clients import TIME_MS, ask
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.verification.log_history import Deletion

T = Part("t", 0)


def begin_deletion(data: DataWorld, node_id: int, before: int) -> asyncio.Task[Offset]:
    """Delete the records below an offset, by that node's own replica."""
    data.history.append(Deletion(partition=str(T), before=before))

    async def delete(core: Any) -> Offset:
        role = core.services.replicas.partition("t", 0).require_leader()
        return await role.delete_records(Offset(before))  # type: ignore[no-any-return]

    return asyncio.ensure_future(data.nodes.call(node_id, delete))


async def transfer(data: DataWorld, node_id: int) -> None:
    """Move the leadership to that node."""
    controller = await data.nodes.until(data.nodes.controller)
    await data.nodes.call(
        controller,
        lambda core: core.services.metadata.operations.transfer_leader("t", 0, node_id),
    )
    await data.led(T, node_id)


def found_at(data: DataWorld, node_id: int, time_ms: int = TIME_MS) -> Any:
    """The answer of that node to a lookup by time."""
    return ask(
        data,
        node_id,
        lambda core: core.services.replicas.partition("t", 0).offset_for_timestamp(time_ms),
    )


def test_a_deletion_of_a_leader_deposed_meanwhile_has_an_unknown_outcome() -> None:
    """The records below the new start are back: the next leader has not deleted them."""

    async def test(data: DataWorld) -> None:
        # Node 1 is the only voter: the metadata does not wait for the leader's disk.
        await data.create("t", [[2, 3, 4]])
        for _ in range(10):
            await data.write(T, 3)
        await data.in_sync()
        data.world.times(2).stick(1.0)
        deletion = begin_deletion(data, 2, 20)
        await asyncio.sleep(0.2)
        await transfer(data, 3)
        with pytest.raises(LogError) as caught:
            await deletion
        assert caught.value.entry.outcome_unknown
        assert data.replica(3, T).log_start_offset == 0  # type: ignore[union-attr]

    simulate_data(test, node_count=4, voter_count=1)


def test_deleted_records_stay_deleted_though_the_next_leader_was_away() -> None:
    """A follower enters the ISR only with a log that begins, durably, at the leader's start."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[2, 3, 4]])
        for _ in range(10):
            await data.write(T, 3)
        await data.in_sync()
        data.nodes.kill(4)
        await data.isr(T, 2, 3)
        assert await begin_deletion(data, 2, 20) == 20
        # From here on the returning follower's disk makes no log start durable for a while.
        data.nodes.start(4)
        await data.nodes.until(lambda: data.replica(4, T) is not None)
        data.world.times(4).stick(1.5)
        await data.isr(T, 2, 3, 4)
        # Its power fails right then, and it alone has the lead afterwards.
        data.cut_power(2, 3, 4)
        data.nodes.start(4)
        await data.nodes.until(lambda: data.replica(4, T) is not None)
        assert data.replica(4, T).log_start_offset == 20  # type: ignore[union-attr]
        data.nodes.start(2)
        data.nodes.start(3)
        await data.in_sync()

    simulate_data(test, node_count=4, voter_count=1)


def test_below_the_minimum_no_deletion_is_answered_as_done() -> None:
    """An eligible replica outside the ISR may lead next, and knows nothing of the deletion."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[2, 3]], {"min.insync.replicas": "2"})
        for _ in range(10):
            await data.write(T, 3)
        await data.in_sync()
        data.nodes.kill(3)
        await data.isr(T, 2)
        with pytest.raises(LogError) as caught:
            await begin_deletion(data, 2, 20)
        assert caught.value.entry is NOT_ENOUGH_REPLICAS
        assert data.replica(2, T).log_start_offset == 0  # type: ignore[union-attr]
        data.nodes.start(3)
        await data.in_sync()
        assert await begin_deletion(data, 2, 20) == 20

    simulate_data(test, node_count=4, voter_count=1)


def test_a_new_leader_denies_no_committed_record_of_a_time() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[2, 3, 4]])
        await data.in_sync()
        await data.write(T, 3)
        assert await found_at(data, 2) == (0, TIME_MS)
        # The leader dies before its high watermark has spread.
        assert data.replica(3, T).high_watermark == 0  # type: ignore[union-attr]
        assert data.replica(4, T).high_watermark == 0  # type: ignore[union-attr]
        data.world.network.slow(3, 4, 1.0)
        data.nodes.kill(2)
        leader = await data.led(T, 3, 4)
        with pytest.raises(LogError, match="not up to date yet"):
            await found_at(data, leader)
        data.world.network.slow(3, 4, 0.0)
        data.nodes.start(2)
        await data.in_sync()
        assert await found_at(data, leader) == (0, TIME_MS)

    simulate_data(test, node_count=4, voter_count=1)


def test_a_deposed_leader_denies_no_committed_record_of_a_time() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.in_sync()
        data.nodes.cut_off(1)
        await data.led(T, 2, 3)
        await data.write(T, 3)
        answers: list[Any] = []
        for _ in range(20):
            await asyncio.sleep(0.5)
            try:
                answers.append(await found_at(data, 1))
            except (LogError, TimeoutError):
                continue
        data.world.network.heal()
        assert None not in answers

    simulate_data(test)


def test_a_lookup_by_time_finds_records_committed_while_the_lead_is_confirmed() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.in_sync()
        leader = await data.led(T)
        looking = asyncio.ensure_future(found_at(data, leader))
        await data.write(T, 1)
        assert await looking in {None, (0, TIME_MS)}
        assert await found_at(data, leader) == (0, TIME_MS)
        assert await found_at(data, leader, TIME_MS + 1) is None

    simulate_data(test)
