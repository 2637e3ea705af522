"""The leader's promises to producers and consumers, whatever the followers do."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import (
    ILLEGAL_STATE,
    NO_CONTROLLER,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    NOT_READY,
    OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER_SEQUENCE,
    RETRIABLE,
    UNKNOWN_PRODUCER_ID,
    LogError,
)
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from raftlog.replication.follower.divergence import Diverging, FetchPosition
from raftlog.replication.leader import role
from raftlog.replication.partition import Acks
from raftlog.storage.types import FlushMode, LogConfig
from tests.replication.pair import (
    HandFeed,
    Node,
    ack,
    attach,
    catch_up,
    nodes,
    one,
    restarted,
    row,
    send,
)
from tests.storage.logs import batch
from tests.waiting import DEADLINE_S


async def pair(*, flush: FlushMode = FlushMode.SYNC) -> tuple[Node, Node]:
    leader, follower = nodes(1, 2, flush=flush)
    await leader.open(row(1, 1))
    await follower.open(row(1, 1))
    return leader, follower


def refuse_writes(node: Node, error: LogError | None) -> None:
    node.partition.host.write_gate.refuse(error)
    node.partition.write_gate_moved()


async def begin(node: Node, *values: bytes, acks: Acks = Acks.ALL) -> asyncio.Task[list[object]]:
    """Start an append, and let it run until it waits for others."""
    append = asyncio.ensure_future(node.partition.append(one(*values), acks=acks, timeout_s=60))
    await asyncio.sleep(0)
    await node.partition.log.flush()
    await asyncio.sleep(0)
    return append  # type: ignore[return-value]


async def test_acks_all_waits_for_the_follower_to_have_it_durably() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    append = await begin(leader, b"a", b"b")
    assert feed.sent == [(0, 2)]
    await send(leader, follower, sync=False)
    leader.partition.require_leader().acked(feed, follower.partition.log.flushed_offset, Offset(0))
    assert not append.done()
    await follower.partition.log.flush()
    ack(leader, follower, feed)
    await append
    assert leader.partition.high_watermark == 2
    assert feed.marks == 1


async def test_acks_all_waits_for_the_leaders_own_sync() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    append = asyncio.ensure_future(leader.partition.append(one(b"a"), acks=Acks.ALL, timeout_s=60))
    await asyncio.sleep(0)
    leader.partition.require_leader().acked(feed, Offset(1), Offset(0))
    assert leader.partition.log.flushed_offset == 0
    assert leader.partition.high_watermark == 0
    await append
    assert leader.partition.log.flushed_offset == 1


async def test_with_flush_async_what_was_written_counts() -> None:
    leader, follower = await pair(flush=FlushMode.ASYNC)
    feed = attach(leader, follower)
    append = asyncio.ensure_future(leader.partition.append(one(b"a"), acks=Acks.ALL, timeout_s=60))
    await asyncio.sleep(0)
    await send(leader, follower, sync=False)
    ack(leader, follower, feed)
    await append
    assert follower.partition.high_watermark == 0


async def test_acks_leader_is_answered_and_not_yet_shown() -> None:
    leader, _ = await pair()
    await leader.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
    assert leader.partition.high_watermark == 0
    assert (await leader.partition.read(Offset(0), max_bytes=100)).data == b""


async def test_below_the_minimum_acks_all_is_refused_and_nothing_is_committed() -> None:
    leader, _ = await pair()
    leader.partition.update(row(1, 1, isr=(1,), partition_epoch=11), 2)
    with pytest.raises(LogError) as refused:
        await leader.partition.append(one(b"a"), acks=Acks.ALL, timeout_s=60)
    assert refused.value.entry is NOT_ENOUGH_REPLICAS
    assert leader.partition.log_end_offset == 0
    # KIP-966: a replica that left the ISR stays complete as long as no record is committed.
    await leader.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
    await leader.partition.log.flush()
    assert leader.partition.high_watermark == 0


async def test_without_the_lease_nothing_is_committed_and_with_it_the_rest_is() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    append = await begin(leader, b"a")
    await send(leader, follower)
    leader.may_act = False
    ack(leader, follower, feed)
    # The last ISR known here is this replica alone: elsewhere a loss may be accepted by now.
    leader.partition.update(row(1, 1, isr=(1,), partition_epoch=11), 1)
    await asyncio.sleep(0)
    assert leader.partition.high_watermark == 0
    assert feed.marks == 0
    assert not append.done()
    leader.may_act = True
    refuse_writes(leader, None)
    await append
    assert leader.partition.high_watermark == 1


async def test_a_leader_that_begins_without_the_lease_commits_nothing() -> None:
    leader, _ = nodes(1, 2)
    await leader.open(row(2, 1))
    leader.partition.update(row(1, 2), 1)
    await leader.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
    await leader.partition.log.flush()
    assert leader.partition.high_watermark == 0
    leader.partition.update(row(2, 3, isr=(1,)), 1)
    leader.may_act = False
    leader.partition.update(row(1, 4, isr=(1,)), 1)
    assert leader.partition.is_leader
    assert leader.partition.high_watermark == 0
    leader.partition.update(row(2, 5), 1)
    assert leader.partition.high_watermark == 0


async def test_an_epoch_that_ends_tells_its_writers_that_nobody_knows() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    append = await begin(leader, b"a")
    leader.partition.update(row(2, 2), 2)
    with pytest.raises(LogError) as caught:
        await append
    assert caught.value.entry is RETRIABLE
    assert feed.ended_by is not None
    assert leader.partition.leader_role is None
    with pytest.raises(LogError) as refused:
        await leader.partition.append(one(b"b"), acks=Acks.ALL, timeout_s=60)
    assert refused.value.entry is NO_LEADER
    assert "h2:8082" in refused.value.message


async def test_an_append_that_waited_for_a_segment_is_not_written_by_who_leads_no_more() -> None:
    leader, _ = nodes(1, 2)
    leader.config = LogConfig(segment_bytes=100)
    await leader.open(row(1, 1))
    await leader.partition.append(one(b"x" * 80), acks=Acks.LEADER, timeout_s=60)
    append = asyncio.ensure_future(
        leader.partition.append(one(b"y"), acks=Acks.LEADER, timeout_s=60)
    )
    await asyncio.sleep(0)
    leader.partition.update(row(2, 2), 2)
    with pytest.raises(LogError) as refused:
        await append
    assert refused.value.entry is NO_LEADER
    assert leader.partition.log_end_offset == 1


async def test_an_append_that_waited_for_a_segment_is_not_written_without_a_lease() -> None:
    leader, _ = nodes(1, 2)
    leader.config = LogConfig(segment_bytes=100)
    await leader.open(row(1, 1))
    await leader.partition.append(one(b"x" * 80), acks=Acks.LEADER, timeout_s=60)
    append = asyncio.ensure_future(
        leader.partition.append(one(b"y"), acks=Acks.LEADER, timeout_s=60)
    )
    await asyncio.sleep(0)
    leader.may_act = False
    with pytest.raises(LogError) as refused:
        await append
    assert refused.value.entry is NO_LEADER
    assert leader.partition.log_end_offset == 1


async def test_append_without_a_caller_is_committed_with_flush_async() -> None:
    (leader,) = nodes(1, flush=FlushMode.ASYNC)
    leader.config = LogConfig(segment_bytes=100, flush=FlushMode.ASYNC)
    await leader.open(row(1, 1, isr=(1,), replicas=(1,)))
    await leader.partition.append(one(b"x" * 80), acks=Acks.LEADER, timeout_s=60)
    append = asyncio.ensure_future(
        leader.partition.append(one(b"y"), acks=Acks.LEADER, timeout_s=60)
    )
    await asyncio.sleep(0)
    # The append waits for a segment, and goes on without its client.
    append.cancel()
    log = leader.partition.log
    async with asyncio.timeout(DEADLINE_S):
        while log.log_end_offset < 2:  # noqa: ASYNC110 - no event: nothing waits for the append
            await asyncio.sleep(0)
    assert log.flush_mode is FlushMode.ASYNC
    assert leader.partition.high_watermark == 2


async def test_a_leader_that_may_have_been_replaced_tells_no_end() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    append = await begin(leader, b"a")
    await send(leader, follower)
    ack(leader, follower, feed)
    await append
    woken: list[bool] = []
    leader.partition.readers.add(Offset(1), lambda: woken.append(True))
    leader.may_act = False
    refuse_writes(leader, LogError(NO_LEADER, "cut off"))
    assert woken == [True]
    assert (await leader.partition.read(Offset(0), max_bytes=100)).next_offset == 1
    for offset in (1, 7):
        with pytest.raises(LogError) as refused:
            await leader.partition.read(Offset(offset), max_bytes=100)
        assert refused.value.entry is NO_LEADER
    with pytest.raises(LogError) as refused:
        await leader.partition.end_offset()
    assert refused.value.entry is NO_LEADER


async def test_a_leader_that_was_moved_unawares_tells_no_end() -> None:
    """The old lease goes on: a planned move does not wait for its end."""
    leader, _ = await pair()
    assert await leader.partition.end_offset() == 0
    leader.newest = row(2, 2)
    with pytest.raises(LogError) as refused:
        await leader.partition.end_offset()
    assert refused.value.entry is NO_LEADER


async def test_a_leader_that_was_moved_unawares_calls_no_offset_out_of_range() -> None:
    """The next leader may have the offset, and a consumer would restart after OUT_OF_RANGE."""
    leader, _ = await pair()
    with pytest.raises(LogError) as refused:
        await leader.partition.read(Offset(7), max_bytes=100)
    assert refused.value.entry is OFFSET_OUT_OF_RANGE
    leader.newest = row(2, 2)
    with pytest.raises(LogError) as refused:
        await leader.partition.read(Offset(7), max_bytes=100)
    assert refused.value.entry is NO_LEADER


async def test_a_leader_that_cannot_make_sure_that_it_leads_tells_no_end() -> None:
    leader, _ = await pair()
    leader.nothing_learned = LogError(NO_CONTROLLER, "nobody")
    with pytest.raises(LogError) as refused:
        await leader.partition.end_offset()
    assert refused.value.entry is NO_LEADER
    assert "nobody" in refused.value.message


async def test_the_only_replica_tells_its_end_whoever_controls() -> None:
    (leader,) = nodes(1)
    await leader.open(row(1, 1, isr=(1,), replicas=(1,)))
    leader.may_act = False
    leader.nothing_learned = LogError(NO_CONTROLLER)
    assert await leader.partition.end_offset() == 0
    assert (await leader.partition.read(Offset(0), max_bytes=100)).data == b""


async def test_a_new_leader_does_not_say_where_the_end_is_before_it_knows() -> None:
    first, second = await pair()
    await catch_up(first, second)
    await begin(first, b"a", b"b")
    await send(first, second)
    assert second.partition.high_watermark == 0
    second.partition.update(row(2, 2), 2)
    with pytest.raises(LogError) as caught:
        await second.partition.end_offset()
    assert caught.value.entry is NOT_READY
    first.partition.update(row(2, 2), 2)
    await catch_up(second, first)
    assert await second.partition.end_offset() == 2


class TestFollowersThatDoNotCount:
    async def test_acks_of_another_start_of_the_broker(self) -> None:
        leader, follower = await pair()
        feed = attach(leader, follower)
        append = await begin(leader, b"a")
        await send(leader, follower)
        restarted(leader, 2)
        ack(leader, follower, feed)
        assert not append.done()
        assert leader.partition.high_watermark == 0
        append.cancel()

    async def test_acks_by_a_feed_that_was_replaced(self) -> None:
        leader, follower = await pair()
        old = attach(leader, follower)
        new = attach(leader, follower)
        assert old.ended_by is not None
        append = await begin(leader, b"a")
        leader.partition.require_leader().acked(old, Offset(1), Offset(0))
        assert not append.done()
        leader.partition.require_leader().acked(new, Offset(1), Offset(0))
        await append

    async def test_acks_of_the_epoch_before(self) -> None:
        leader, follower = await pair()
        feed = attach(leader, follower)
        await begin(leader, b"a", acks=Acks.LEADER)
        leader.partition.update(row(1, 2), 2)
        leader.partition.require_leader().acked(feed, Offset(1), Offset(0))
        assert leader.partition.high_watermark == 0

    async def test_who_is_no_replica_is_not_fed(self) -> None:
        leader, _ = await pair()
        with pytest.raises(LogError) as refused:
            leader.partition.attach(
                HandFeed(BrokerId(3)),
                FetchPosition(LeaderEpoch(1), Offset(0), LeaderEpoch(-1), Offset(0), Offset(0)),
            )
        assert refused.value.entry is ILLEGAL_STATE

    @pytest.mark.parametrize(("epoch", "entry"), [(0, NO_LEADER), (2, NOT_READY)])
    async def test_who_asks_in_another_epoch_is_not_fed(self, epoch: int, entry: object) -> None:
        leader, _ = await pair()
        position = FetchPosition(
            LeaderEpoch(epoch), Offset(0), LeaderEpoch(-1), Offset(0), Offset(0)
        )
        with pytest.raises(LogError) as refused:
            leader.partition.attach(HandFeed(BrokerId(2)), position)
        assert refused.value.entry is entry

    async def test_who_has_other_records_is_told_where_they_part(self) -> None:
        first, second = await pair()
        await catch_up(first, second)
        await begin(first, b"a")
        await send(first, second)
        await begin(first, b"lost", acks=Acks.LEADER)
        for node in (second, first):
            node.partition.update(row(2, 2), 2)
        await begin(second, b"new", acks=Acks.LEADER)
        feed = HandFeed(BrokerId(1))
        answer = second.partition.attach(feed, first.partition.follower_role.position())
        assert answer == Diverging(LeaderEpoch(1), Offset(1))
        assert second.partition.require_leader().feeds == {}


async def test_who_has_caught_up_is_wished_for_in_the_set() -> None:
    leader, follower = await pair()
    leader.partition.update(row(1, 1, isr=(1,), partition_epoch=11), 1)
    append = await begin(leader, b"a")
    await append
    feed = attach(leader, follower)
    assert leader.partition.require_leader().desired_isr(2.0) is None
    due = leader.isr_changes_due
    await send(leader, follower)
    ack(leader, follower, feed)
    assert leader.isr_changes_due == due + 1
    proposal = leader.partition.require_leader().desired_isr(2.0)
    assert proposal is not None
    assert [member for member, _ in proposal.isr] == [1, 2]


async def test_deleting_records_waits_for_the_in_sync_replicas() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    append = await begin(leader, b"a", b"b")
    await send(leader, follower)
    ack(leader, follower, feed)
    await append
    deletion = asyncio.ensure_future(leader.partition.require_leader().delete_records(Offset(1)))
    await leader.partition.log.operations.delete_records_before(Offset(1))
    follower.partition.follower_role.update_watermarks(
        leader_epoch=LeaderEpoch(1), high_watermark=Offset(2), log_start_offset=Offset(1)
    )
    assert not deletion.done()
    moved = asyncio.Event()
    follower.partition.follower_role.attach_fetcher(moved.set)
    await moved.wait()
    assert follower.partition.log_start_offset == 1
    ack(leader, follower, feed)
    assert await deletion == 1


async def test_a_closed_partition_tells_everybody_why() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    append = await begin(leader, b"a")
    woken: list[bool] = []
    leader.partition.readers.add(Offset(0), lambda: woken.append(True))
    leader.partition.close(LogError(NOT_READY, "stopping"))
    with pytest.raises(LogError):
        await append
    assert woken == [True]
    assert feed.ended_by is not None
    with pytest.raises(LogError) as refused:
        await leader.partition.read(Offset(0), max_bytes=1)
    assert refused.value.entry is NOT_READY


async def test_acks_of_a_feed_know_no_other_brokers_epoch() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    stranger = HandFeed(BrokerId(2), BrokerEpoch(99))
    leader.partition.require_leader().acked(stranger, Offset(0), Offset(0))
    assert leader.partition.require_leader().feeds[BrokerId(2)] is feed


async def test_deleted_records_do_not_wait_for_who_is_not_in_sync_any_more() -> None:
    leader, follower = await pair()
    feed = attach(leader, follower)
    append = await begin(leader, b"a", b"b")
    await send(leader, follower)
    ack(leader, follower, feed)
    await append
    deleting = asyncio.ensure_future(leader.partition.require_leader().delete_records(Offset(1)))
    # The leader's own log start is durable before it waits for others.
    await leader.partition.log.operations.delete_records_before(Offset(1))
    await asyncio.sleep(0)
    assert not deleting.done()
    leader.partition.update(row(1, 1, isr=(1,), partition_epoch=11), 1)
    assert await asyncio.wait_for(deleting, timeout=1) == 1


async def test_who_may_have_been_away_has_to_ask_anew() -> None:
    leader, follower, third = nodes(1, 2, 3)
    replicas = (1, 2, 3)
    await leader.open(row(1, 1, replicas=replicas))
    for node in (follower, third):
        await node.open(row(1, 1, replicas=replicas))
    stays, goes = attach(leader, follower), attach(leader, third)
    # A snapshot: two changes at once.
    leader.partition.update(row(1, 1, replicas=replicas, partition_epoch=12), 2)
    assert stays.ended_by is None
    assert goes.ended_by is not None
    assert goes.ended_by.entry is NOT_READY
    # The old acknowledgement would have let the broker into the ISR.
    assert leader.partition.require_leader().desired_isr(60) is None


async def test_a_look_right_after_an_append_finds_nobody_late() -> None:
    leader, follower = await pair()
    attach(leader, follower)
    state = leader.partition.require_leader().state
    assert state is not None
    # The follower has had the whole log for an hour.
    state.followers[BrokerId(2)].caught_up_s -= 3600
    append = await begin(leader, b"a")
    assert leader.partition.require_leader().desired_isr(60) is None
    leader.partition.close(LogError(NOT_READY))
    with pytest.raises(LogError):
        await append


@pytest.mark.parametrize(("epoch", "strict_s"), [(0, 60.0), (1, 60.0), (1, 0.0)])
async def test_an_unknown_producer_starts_anywhere_only_at_a_leader_without_a_recent_predecessor(
    epoch: int, strict_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older leader may just have rejected the producer's first batch."""
    monkeypatch.setattr(role, "STRICT_START_S", strict_s)
    (leader,) = nodes(1)
    await leader.open(row(1, epoch, isr=(1,), replicas=(1,)))

    async def send(sequence: int) -> None:
        sent = batch(
            [b"x"],
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            sequence=sequence,
        )
        await leader.partition.append(
            [sent], acks=Acks.LEADER, timeout_s=60, may_start_anywhere=True
        )

    if epoch and strict_s:
        with pytest.raises(LogError) as refused:
            await send(3)
        assert refused.value.entry is UNKNOWN_PRODUCER_ID
    else:
        await send(3)
        await send(4)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_only_the_real_leader_refuses_a_sequence(is_known: bool, is_replaced: bool) -> None:
    """A replaced leader that has not applied the change lacks the next one's records."""
    leader, _ = await pair()

    async def send(sequence: int) -> None:
        one = batch(
            [b"x"],
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            sequence=sequence,
        )
        await leader.partition.append([one], acks=Acks.LEADER, timeout_s=60)

    if is_known:
        await send(0)
    if is_replaced:
        leader.newest = row(2, 2)
    with pytest.raises(LogError) as refused:
        await send(3)
    refusal = OUT_OF_ORDER_SEQUENCE if is_known else UNKNOWN_PRODUCER_ID
    expected = NO_LEADER if is_replaced else refusal
    assert refused.value.entry is expected
