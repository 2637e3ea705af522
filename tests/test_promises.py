"""The promises of docs/promises.md, one test each, kept by whole nodes in the simulated world.

Every test can fail: it names a planted bug (tests/simulation/data/planted_bugs.py) that makes it
fail, and `test_every_promise_can_be_broken` plants that bug. The rows of
tests/simulation/data/FAULTS.md cover more; tests/integration keeps the promises with real
processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from raftlog.node.assembly import NodeCore
from raftlog.record.errors import NO_LEADER, NOT_ENOUGH_REPLICAS, LogError
from raftlog.replication.leader.role import LeaderRole
from raftlog.replication.partition import Acks, Partition
from tests.simulation.data.clients import ask, encode
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.simulation.data.planted_bugs import MISTAKES, Mistake
from tests.simulation.life import NodeDiedError
from tests.verification.log_history import Send

T = Part("t", 0)
SESSION_S: Final = 1.5
WAIT_S: Final = 1.0


def replica(data: DataWorld, node_id: int) -> Partition:
    found = data.replica(node_id, T)
    assert found is not None
    return found


async def end_of(core: NodeCore) -> int:
    """The partition's end offset, by its leader. Raises LogError."""
    return await core.services.replicas.partition("t", 0).end_offset()


def restart(data: DataWorld, *node_ids: int, power: bool) -> None:
    """All of these stop at the same moment, without warning."""
    for node_id in node_ids:
        data.nodes.kill(node_id, power=power)
    for node_id in node_ids:
        data.nodes.start(node_id)


def test_promise_1_what_all_in_sync_replicas_have_synced_survives_power_cuts_and_a_lost_disk() -> (
    None
):
    """acks=all, flush=sync. Fails with: acks before its disk."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 4]], small_segments=False)
        for _ in range(3):
            await data.in_sync()
            # One disk takes its time, not long enough for anybody to be missed.
            data.world.times(await data.led(T)).stick(0.4)
            send = await data.write(T, 2)
            assert send.offset is not None
            end = send.offset + 2
            synced = [
                node_id for node_id in (1, 2, 4) if replica(data, node_id).log.flushed_offset >= end
            ]
            assert set(data.row(T).isr) == set(synced) == {1, 2, 4}
            # Of all nodes at once, at the moment of the acknowledgement.
            restart(data, *data.nodes.node_ids, power=True)
        await data.in_sync()
        data.nodes.kill(4, power=True)
        data.world.wipe(4)
        restart(data, 1, 2, 3, power=True)
        await data.write(T)
        # The checker reads all acknowledged records from every remaining replica.
        await data.reassign(T, [1, 2, 3])
        await data.nodes.until(lambda: set(data.row(T).replicas) == {1, 2, 3})
        controller = await data.nodes.until(data.nodes.controller)
        await data.nodes.call(
            controller,
            lambda core: core.services.metadata.unregister_broker(4),  # type: ignore[arg-type]
        )

    simulate_data(test, node_count=4, may_end=True)


def test_promise_2_async_loses_nothing_in_process_crashes_and_says_so_after_power_cuts() -> None:
    """acks=all, flush=async. Fails with: trusts a restart after power loss."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]], {"flush": "async"})
        await data.write(T, 5)
        restart(data, *data.nodes.node_ids, power=False)
        await data.led(T)
        assert replica(data, await data.led(T)).log_end_offset >= 5
        # Of min.insync.replicas - 1 nodes.
        await data.in_sync()
        end = (await data.write(T, 5)).offset
        assert end is not None
        victim = await data.led(T)
        restart(data, victim, power=True)
        leader = await data.led(T, *data.nodes.others(victim))
        assert replica(data, leader).log_end_offset >= end + 5
        await data.in_sync()
        # Of all nodes: the remaining records may be complete or not, which no node can know.
        await data.write(T, 5)
        restart(data, *data.nodes.node_ids, power=True)
        await data.nodes.until(lambda: all(map(data.nodes.is_ready, data.nodes.node_ids)))
        await asyncio.sleep(3.0)
        for node_id in data.nodes.node_ids:
            reader = Consumer(data, f"c{node_id}", T)
            with pytest.raises(LogError) as offline:
                await ask(data, node_id, end_of)
            assert offline.value.entry is NO_LEADER
            assert await reader.poll(node_id) is None
        assert data.leader(T) is None, data.describe()
        # An operator accepts the loss, which the metadata shows from then on.
        data.lose(T, 0)
        await data.nodes.call(
            await data.nodes.until(data.nodes.controller),
            lambda core: core.services.metadata.operations.transfer_leader(
                "t", 0, None, unclean=True
            ),
        )
        await data.led(T)
        assert data.row(T).unclean_epoch == data.row(T).leader_epoch

    simulate_data(test)


def test_promise_3_with_acks_1_only_the_leader_has_it_and_nobody_is_shown_it() -> None:
    """acks=1 and acks=0. Fails with: acks before its followers."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 2)
        await data.in_sync()
        data.nodes.cut_off(1)
        for acks in (Acks.LEADER, Acks.NONE):
            send = await data.producer(f"p{int(acks)}", acks=acks, idempotent=False).send(T, node=1)
            assert send is not None and send.outcome == "ok"
        assert replica(data, 1).log_end_offset == 4
        assert replica(data, 1).high_watermark == 2
        await data.led(T, 2, 3)
        await data.write(T, 1)
        data.world.network.heal()
        await data.in_sync()
        # The records are lost, as promised for acks=1; the new leader's are at their offsets.
        assert replica(data, 1).log_end_offset == 3

    simulate_data(test)


def test_promise_4_a_retry_after_an_unknown_outcome_never_duplicates() -> None:
    """Same producer id, epoch and sequence. Fails with: forgets producers at failover."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T)
        await data.in_sync()
        identity = await ask(data, 2, lambda core: core.services.metadata.allocate_producer_id())
        batches = encode(["once"], identity, 0)

        async def send(node_id: int, timeout_s: float) -> Any:
            return await ask(
                data,
                node_id,
                lambda core: core.services.replicas.partition("t", 0).append(
                    batches, acks=Acks.ALL, timeout_s=timeout_s
                ),
            )

        begun = data.step()
        # One follower gets the record, and the producer never gets an answer.
        data.world.network.partition([1], [3])
        with pytest.raises(LogError) as unknown:
            await send(1, 0.3)
        assert unknown.value.entry.outcome_unknown
        sending = asyncio.ensure_future(send(1, 10.0))
        await data.nodes.until(lambda: replica(data, 2).log_end_offset == 2)
        await asyncio.sleep(0.1)
        data.nodes.kill(1)
        with pytest.raises(NodeDiedError):
            await sending
        data.world.network.heal()
        offsets = []
        for _ in range(3):
            leader = await data.led(T)
            await data.nodes.until(lambda n=leader: data.nodes.is_ready(n))  # type: ignore[misc]
            (result,) = await send(leader, 5.0)
            offsets.append(int(result.base_offset))
            if not data.world.is_up(1):
                data.nodes.start(1)
            await data.in_sync()
            data.nodes.kill(leader)
            await data.led(T, *data.nodes.others(leader))
            data.nodes.start(leader)
            await data.in_sync()
        assert offsets == [1, 1, 1], "it is where it was written first"
        assert replica(data, 1).log_end_offset == 2
        # The checker must find the record exactly once.
        data.history.append(
            Send(
                partition=str(T),
                producer="once",
                values=("once",),
                invoked=begun,
                completed=data.step(),
                outcome="ok",
                offset=offsets[0],
                repeated=True,
            )
        )

    simulate_data(test)


def test_promise_5_consumers_see_committed_records_only_and_none_is_withdrawn() -> None:
    """Nor damage. Fails with: fetches without epochs."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        for _ in range(20):
            await data.write(T, 2)
        await data.in_sync()
        readers = {
            node_id: Consumer(data, f"c{node_id}", T, near=1.0) for node_id in data.nodes.node_ids
        }

        async def read(*node_ids: int) -> None:
            for node_id in node_ids:
                for _ in range(30):
                    await readers[node_id].poll(node_id, near=True)

        for reader in readers.values():
            reader.seek(0)
        # Records of an isolated leader are never visible, on any node, now or later.
        data.nodes.cut_off(1)
        for number in range(4):
            await data.producer(f"p{number}", acks=Acks.LEADER, idempotent=False).send(T, node=1)
        await read(1)
        assert readers[1].position == 40
        await data.led(T, 2, 3)
        for _ in range(6):
            await data.write(T)
        await read(2, 3)
        data.world.network.heal()
        await data.in_sync()
        await read(1)
        assert readers[1].position == 46
        # A damaged record is refused, and whole records are read from other replicas.
        data.rot(3, T, segment=1)
        readers[3].seek(0)
        await read(3)
        readers[2].seek(0)
        await read(2)
        assert readers[2].position == 46

    simulate_data(test)


def test_promise_6_below_the_minimum_writes_are_refused_and_nothing_half_written_is_shown() -> None:
    """min.insync.replicas. Fails with: acks before its followers; without the refusal."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[4, 5, 1]])
        await data.write(T, 2)
        await data.in_sync()
        data.nodes.kill(5)
        data.nodes.kill(1)
        # These were begun while enough were in sync: their writers do not know.
        half = await data.producer("half", idempotent=False).send(T, within_s=0.5, node=4)
        assert half is not None and half.outcome == "unknown"
        await data.isr(T, 4)
        end = replica(data, 4).log_end_offset
        with pytest.raises(LogError) as refused:
            await ask(
                data,
                4,
                lambda core: core.services.replicas.partition("t", 0).append(
                    encode(["refused"]), acks=Acks.ALL, timeout_s=0.5
                ),
            )
        assert refused.value.entry is NOT_ENOUGH_REPLICAS
        assert "in-sync" in refused.value.message
        assert replica(data, 4).log_end_offset == end, "before anything was written"
        lone = await data.producer("lone", acks=Acks.LEADER, idempotent=False).send(T, node=4)
        assert lone is not None and lone.outcome == "ok"
        await asyncio.sleep(WAIT_S)
        assert replica(data, 4).high_watermark == 2, "nothing is committed below the minimum"
        data.nodes.start(5)
        await data.nodes.until(lambda: replica(data, 4).high_watermark > end)

    simulate_data(test, node_count=5)


def test_promise_7_two_nodes_never_both_commit_and_one_that_is_cut_off_stops_in_time() -> None:
    """In one leader epoch; within a session timeout. Fails with: leads without asking."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T)
        await data.in_sync()
        cut_at = data.world.loop.now
        data.nodes.cut_off(1)
        pending = asyncio.ensure_future(
            data.producer("p", idempotent=False).send(T, node=1, within_s=SESSION_S)
        )
        await data.nodes.until(lambda: not data.nodes.takes_writes(1, "t", 0))
        assert data.world.loop.now - cut_at <= SESSION_S
        late = await data.producer("q", idempotent=False).send(T, node=1, within_s=0.1)
        assert late is not None and late.outcome == "refused"
        second = await data.led(T, 2, 3)
        await data.write(T)
        unknown = await pending
        assert unknown is not None and unknown.outcome != "ok"
        data.world.network.heal()
        await data.in_sync()
        # A resumed leader meets a producer before any of its timers fires.
        data.world.pause(second)
        await data.led(T, *data.nodes.others(second))
        await data.write(T)
        data.world.resume(second)
        late = await data.producer("r", idempotent=False).send(T, node=second, within_s=0.01)
        assert late is not None and late.outcome == "refused"

    simulate_data(test)


NO_MINIMUM: Final = Mistake(
    0,
    "takes writes that it should refuse",
    LeaderRole,
    "_require_enough_in_sync",
    lambda _self: None,
)
BREAKS: Final[list[tuple[str | Mistake, Callable[[], None]]]] = [
    (
        "acks before its disk",
        test_promise_1_what_all_in_sync_replicas_have_synced_survives_power_cuts_and_a_lost_disk,
    ),
    (
        "trusts a restart after power loss",
        test_promise_2_async_loses_nothing_in_process_crashes_and_says_so_after_power_cuts,
    ),
    (
        "acks before its followers",
        test_promise_3_with_acks_1_only_the_leader_has_it_and_nobody_is_shown_it,
    ),
    (
        "forgets producers at failover",
        test_promise_4_a_retry_after_an_unknown_outcome_never_duplicates,
    ),
    (
        "fetches without epochs",
        test_promise_5_consumers_see_committed_records_only_and_none_is_withdrawn,
    ),
    (
        "acks before its followers",
        test_promise_6_below_the_minimum_writes_are_refused_and_nothing_half_written_is_shown,
    ),
    (
        NO_MINIMUM,
        test_promise_6_below_the_minimum_writes_are_refused_and_nothing_half_written_is_shown,
    ),
    (
        "leads without asking",
        test_promise_7_two_nodes_never_both_commit_and_one_that_is_cut_off_stops_in_time,
    ),
]


def _named(value: object) -> str:
    return str(value) if isinstance(value, str | Mistake) else value.__name__[5:14]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("what", "promise"), BREAKS, ids=_named)
def test_every_promise_can_be_broken(what: str | Mistake, promise: Callable[[], None]) -> None:
    found = [each for each in (*MISTAKES, what) if what in (each, getattr(each, "what", None))]
    assert isinstance(found[0], Mistake)
    with found[0].planted(), pytest.raises(AssertionError):
        promise()
