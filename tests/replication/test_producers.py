"""Producer state of a replica that never had the records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from raftlog.record.errors import (
    CORRUPT_BATCH,
    INVALID_PRODUCER_ID,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE,
    LogError,
)
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from raftlog.replication.partition import Acks
from raftlog.storage.compaction.plan import NO_HORIZON
from raftlog.storage.types import AppendResult
from tests.replication.pair import Node, catch_up, nodes, restart, row, send
from tests.storage.logs import batch


async def write(leader: Node, producer: int, sequence: int, *values: bytes) -> AppendResult:
    one = batch(
        values,
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(0),
        sequence=sequence,
    )
    (result,) = await leader.partition.append([one], acks=Acks.LEADER, timeout_s=60)
    await leader.partition.log.flush()
    return result


async def committed(leader: Node, follower: Node) -> None:
    """Both have all records, and both know them to be committed."""
    feed = await catch_up(leader, follower)
    await send(leader, follower)
    assert leader.partition.high_watermark == leader.partition.log_end_offset
    leader.partition.require_leader().detach(feed)


async def cluster() -> tuple[Node, Node, Node]:
    """Two replicas with records of two producers, and a broker for a third replica."""
    first, second, third = nodes(1, 2, 3)
    image = row(1, 1, replicas=(1, 2, 3), isr=(1, 2))
    await first.open(image)
    await second.open(image)
    await write(first, 7, 0, b"a", b"b")
    await write(first, 8, 0, b"c")
    await write(first, 7, 2, b"d")
    await committed(first, second)
    return first, second, third


def lead(leader: Node, *followers: Node, epoch: int = 2) -> None:
    image = row(leader.number, epoch, replicas=(1, 2, 3), isr=(1, 2, 3))
    for node in (leader, *followers):
        node.partition.update(image, 2)


async def test_a_replica_behind_deleted_records_takes_a_producer_that_goes_on() -> None:
    first, second, third = await cluster()
    await first.partition.log.operations.delete_records_before(Offset(4))
    await third.open(first.partition.image)
    await catch_up(first, third)
    assert await third.values() == []
    lead(third, first, second)
    repeated = await write(third, 7, 2, b"d")
    assert (repeated.base_offset, repeated.duplicate) == (3, True)
    went_on = await write(third, 7, 3, b"e")
    assert (went_on.base_offset, went_on.duplicate) == (4, False)
    with pytest.raises(LogError) as refused:
        await write(third, 8, 2, b"x")
    assert refused.value.entry is OUT_OF_ORDER_SEQUENCE


async def test_what_is_left_is_not_counted_twice() -> None:
    first, second, third = await cluster()
    await first.partition.log.operations.delete_records_before(Offset(3))
    await third.open(first.partition.image)
    await catch_up(first, third)
    assert await third.values() == [b"d"]
    lead(third, first, second)
    assert (await write(third, 7, 0, b"a", b"b")).base_offset == 0
    assert (await write(third, 7, 2, b"d")).base_offset == 3
    assert (await write(third, 7, 3, b"e")).base_offset == 4


async def test_a_log_that_begins_in_a_batch_knows_the_others_and_learns_of_that_one() -> None:
    first, second, third = await cluster()
    await first.partition.log.operations.delete_records_before(Offset(1))
    await third.open(first.partition.image)
    await catch_up(first, third)
    assert await third.values() == [b"b", b"c", b"d"]
    lead(third, first, second)
    assert (await write(third, 7, 0, b"a", b"b")).duplicate
    assert (await write(third, 8, 1, b"e")).base_offset == 4


async def test_nothing_is_known_of_records_that_did_not_come() -> None:
    """The leader's producer state is ahead of the new log, which may be all that survives."""
    first, second, third = await cluster()
    await first.partition.log.operations.delete_records_before(Offset(3))
    await third.open(first.partition.image)
    await restart(first, third, Offset(3))
    lead(third, first, second)
    with pytest.raises(LogError) as refused:
        await write(third, 7, 3, b"e")
    assert refused.value.entry is OUT_OF_ORDER_SEQUENCE
    again = await write(third, 7, 2, b"d")
    assert (again.base_offset, again.duplicate) == (3, False)


async def test_only_the_leader_of_that_epoch_tells() -> None:
    first, second, _ = await cluster()
    lead(first, second)
    for node, epoch in ((first, 1), (second, 2)):
        with pytest.raises(LogError) as refused:
            node.partition.require_leader().producers_below(
                Offset(3), leader_epoch=LeaderEpoch(epoch)
            )
        assert refused.value.entry is NO_LEADER
    assert (
        first.partition.require_leader().producers_below(Offset(0), leader_epoch=LeaderEpoch(2))
        == b""
    )


async def test_what_cannot_be_read_changes_nothing() -> None:
    first, second, _ = await cluster()
    told = first.partition.require_leader().producers_below(Offset(4), leader_epoch=LeaderEpoch(1))
    for producers in (told[:-1], first.partition.log.producers_below(Offset(3))):
        with pytest.raises(LogError) as refused:
            await second.partition.follower_role.restart_at(
                Offset(4),
                producers=producers,
                leader_epoch=LeaderEpoch(1),
                horizon=NO_HORIZON,
                is_outrun=False,
            )
        assert refused.value.entry is CORRUPT_BATCH
        assert await second.values() == [b"a", b"b", b"c", b"d"]


async def test_producer_ids_that_the_cluster_has_not_issued_are_refused() -> None:
    node = nodes(1)[0]
    issued, barriers = 5, 0

    async def confirm() -> None:
        nonlocal issued, barriers
        barriers += 1
        issued = 8  # another node's block, not applied here before

    def send(producer_id: int, sequence: int = 0) -> Awaitable[object]:
        batches = [
            batch(
                [b"v"],
                producer_id=ProducerId(producer_id),
                producer_epoch=ProducerEpoch(0),
                sequence=sequence,
            )
        ]
        return node.partition.append(batches, acks=Acks.LEADER, timeout_s=60)

    await node.open(row(1, 1, replicas=(1,), isr=(1,)))
    node.partition.host = replace(
        node.partition.host, confirm=confirm, next_producer_id=lambda: issued
    )
    await send(4)
    assert barriers == 0
    await send(7)
    assert barriers == 1
    with pytest.raises(LogError) as refused:
        await send(8)
    assert not node.partition.require_leader().waiting_producers
    assert refused.value.entry is INVALID_PRODUCER_ID
    assert node.partition.log_end_offset == 2
    issued = 0
    await send(7, 1)  # a known producer goes on, whatever the metadata says


async def test_the_minimum_in_sync_is_checked_after_the_wait_for_a_producer_id() -> None:
    node = nodes(1, 2)[0]
    issued = 0

    async def confirm() -> None:
        nonlocal issued
        issued = 8
        node.partition.update(row(1, 1, isr=(1,), partition_epoch=11), 2)

    await node.open(row(1, 1))
    node.partition.host = replace(
        node.partition.host, confirm=confirm, next_producer_id=lambda: issued
    )
    one = batch([b"v"], producer_id=ProducerId(7), producer_epoch=ProducerEpoch(0), sequence=0)
    with pytest.raises(LogError) as refused:
        await node.partition.append([one], acks=Acks.ALL, timeout_s=0.1)
    assert refused.value.entry is NOT_ENOUGH_REPLICAS
    assert node.partition.log_end_offset == 0


async def test_pipelined_appends_of_a_new_producer_keep_their_order() -> None:
    """The second arrives when its id is known, while the first waits for the confirmation."""
    node = nodes(1)[0]
    issued = 0
    confirmed = asyncio.Event()

    async def confirm() -> None:
        await confirmed.wait()

    def send(producer_id: int, sequence: int) -> asyncio.Task[AppendResult]:
        return asyncio.create_task(write(node, producer_id, sequence, b"%d" % sequence))

    await node.open(row(1, 1, replicas=(1,), isr=(1,)))
    node.partition.host = replace(
        node.partition.host, confirm=confirm, next_producer_id=lambda: issued
    )
    first = send(7, 0)
    await asyncio.sleep(0)
    issued = 8
    second, third, other = send(7, 1), send(7, 2), send(6, 0)
    assert (await other).base_offset == 0  # another producer does not wait
    third.cancel()
    await asyncio.sleep(0)
    fourth = send(7, 2)
    confirmed.set()
    offsets = [(await one).base_offset for one in (first, second, fourth)]
    assert offsets == [1, 2, 3]
    assert not node.partition.require_leader().waiting_producers
