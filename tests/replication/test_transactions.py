"""Transactions in replicas: where readers stop, changes of leader, verification, markers."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.batch import RecordBatch, iterate_batches
from raftlog.record.codec import BatchBuilder
from raftlog.record.control import Marker
from raftlog.record.errors import (
    COORDINATOR_FENCED,
    INVALID_PRODUCER_ID,
    INVALID_TXN_STATE,
    NO_CONTROLLER,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    PRODUCER_FENCED,
    RETRIABLE,
    TRANSACTION_NOT_VERIFIED,
    UNKNOWN_PRODUCER_ID,
    ErrorEntry,
    LogError,
)
from raftlog.record.header import parse_header
from raftlog.record.types import (
    AbortedTransaction,
    Offset,
    PartitionId,
    ProducerEpoch,
    ProducerId,
)
from raftlog.replication.leader import verification
from raftlog.replication.leader.verification import VerificationGuard, Verifications
from raftlog.replication.partition import Acks, Fetched, Isolation, Origin, wait_for_data
from raftlog.storage.types import AppendResult
from tests.replication.pair import (
    HandFeed,
    Node,
    ack,
    attach,
    catch_up,
    nodes,
    one,
    row,
    send,
)
from tests.storage.transactional import transactional, visible

COMMITTED = Isolation.READ_COMMITTED
EPOCH = ProducerEpoch(0)
COORDINATOR = PartitionId(3)


async def cluster() -> tuple[Node, Node, HandFeed]:
    first, second = nodes(1, 2)
    await first.open(row(1, 1))
    await second.open(row(1, 1))
    return first, second, attach(first, second)


def verified(leader: Node, producer: int, epoch: int = 0) -> VerificationGuard | None:
    return leader.partition.begin_verification(ProducerId(producer), ProducerEpoch(epoch))


async def write(
    leader: Node, producer: int, sequence: int, *values: bytes, epoch: int = 0
) -> AppendResult:
    guard = verified(leader, producer, epoch)
    batch = transactional(values, producer, sequence, epoch=epoch)
    (result,) = await leader.partition.append(
        [batch], acks=Acks.LEADER, timeout_s=60, verification=guard
    )
    await leader.partition.log.flush()
    return result


def ending(
    leader: Node,
    producer: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    coordinator: PartitionId | None = None,
    timeout_s: float = 60,
) -> asyncio.Task[None]:
    marker = Marker(commit, coordinator_epoch, coordinator=coordinator)
    writing = leader.partition.write_marker(
        ProducerId(producer), ProducerEpoch(epoch), marker, timeout_s=timeout_s
    )
    return asyncio.create_task(writing)


async def written(leader: Node) -> None:
    """The marker is in the log, durable there, and not committed."""
    await asyncio.sleep(0)
    await leader.partition.log.flush()


async def copy(leader: Node, follower: Node, feed: HandFeed) -> None:
    """The follower has all, and both know that all is committed."""
    await send(leader, follower)
    ack(leader, follower, feed)
    await send(leader, follower)
    mark(leader, follower)


def mark(leader: Node, follower: Node) -> None:
    follower.partition.follower_role.update_watermarks(
        leader_epoch=leader.partition.image.leader_epoch,
        high_watermark=leader.partition.high_watermark,
        log_start_offset=leader.partition.log_start_offset,
    )


async def read(
    node: Node, offset: int = 0, *, any_replica: bool = False, max_bytes: int = 1 << 20
) -> Fetched:
    return await node.partition.read(
        Offset(offset), max_bytes=max_bytes, any_replica=any_replica, isolation=COMMITTED
    )


def seen(fetched: Fetched) -> list[bytes | None]:
    return [value for _, value in visible(fetched.data, fetched.aborted, set())]


async def refused(attempt: object) -> ErrorEntry:
    with pytest.raises(LogError) as caught:
        await attempt  # type: ignore[misc]
    return caught.value.entry


# Where readers stop


async def test_readers_stop_at_an_open_transaction_and_go_on_once_its_marker_is_committed() -> None:
    leader, follower, feed = await cluster()
    await leader.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
    await write(leader, 1, 0, b"b")
    await leader.partition.append(one(b"c"), acks=Acks.LEADER, timeout_s=60)
    await leader.partition.log.flush()
    await copy(leader, follower, feed)
    fetched = await read(leader)
    assert seen(fetched) == [b"a"]
    assert (fetched.next_offset, fetched.high_watermark, fetched.last_stable_offset) == (1, 3, 1)
    assert await leader.partition.end_offset() == 3
    assert await leader.partition.end_offset(COMMITTED) == 1
    assert (await read(leader, 1)).data == b""
    everything = await leader.partition.read(Offset(0), max_bytes=1000)
    assert (everything.next_offset, everything.aborted) == (3, ())

    marker = ending(leader, 1, commit=True)
    await written(leader)
    assert leader.partition.log_end_offset == 4
    assert leader.partition.last_stable_offset == 1, "the marker is not committed yet"
    await send(leader, follower)
    assert not marker.done()
    ack(leader, follower, feed)
    await marker
    assert leader.partition.last_stable_offset == 4
    assert seen(await read(leader)) == [b"a", b"b", b"c"]
    assert follower.partition.last_stable_offset == 1, "not committed, as known there"
    mark(leader, follower)
    assert seen(await read(follower, any_replica=True)) == [b"a", b"b", b"c"]


async def test_a_marker_has_the_clusters_time_and_none_while_that_is_unknown() -> None:
    """Retention goes by it, and the clock of this node may be a month behind."""
    leader, follower, feed = await cluster()
    clock = leader.partition.host.cluster_clock
    clock.follow_cluster_time()
    for producer, time_ms in ((1, -1), (2, 1 << 45)):
        await write(leader, producer, 0, b"a")
        if time_ms > 0:
            clock.note_cluster_time(time_ms, time_ms)
        marker = ending(leader, producer, commit=True)
        await written(leader)
        await copy(leader, follower, feed)
        await marker
        end = leader.partition.log_end_offset
        result = await leader.partition.log.reader.read(Offset(end - 1), end=end, max_bytes=1000)
        (found,) = iterate_batches(result.data)
        assert found.header.is_control
        assert time_ms <= found.header.max_timestamp_ms <= (time_ms + 60_000 if time_ms > 0 else -1)


async def test_reads_name_the_aborted_transactions_in_their_range() -> None:
    leader, follower, feed = await cluster()
    await write(leader, 1, 0, b"a")
    await write(leader, 2, 0, b"b")
    for commit, producer in ((False, 1), (True, 2)):
        marker = ending(leader, producer, commit=commit, epoch=1)
        await written(leader)
        await copy(leader, follower, feed)
        await marker
    await write(leader, 1, 0, b"c", epoch=1)
    marker = ending(leader, 1, commit=False, epoch=1)
    await written(leader)
    await copy(leader, follower, feed)
    await marker
    for node, any_replica in ((leader, False), (follower, True)):
        fetched = await read(node, any_replica=any_replica)
        assert fetched.aborted == (
            AbortedTransaction(ProducerId(1), Offset(0)),
            AbortedTransaction(ProducerId(1), Offset(4)),
        )
        assert seen(fetched) == [b"b"]
        later = await read(node, 4, any_replica=any_replica)
        assert later.aborted == (AbortedTransaction(ProducerId(1), Offset(4)),)
        between = await read(node, 3, any_replica=any_replica, max_bytes=1)
        assert (between.next_offset, between.aborted) == (4, ())


@pytest.mark.parametrize("any_replica", [False, True])
async def test_long_polls_wait_for_the_last_stable_offset(any_replica: bool) -> None:
    leader, follower, feed = await cluster()
    node = follower if any_replica else leader
    polls = {
        isolation: asyncio.create_task(
            wait_for_data(
                [(node.partition, Offset(0))], min_bytes=1, timeout_s=60, isolation=isolation
            )
        )
        for isolation in Isolation
    }
    await asyncio.sleep(0)
    await write(leader, 1, 0, b"a")
    await copy(leader, follower, feed)
    await polls[Isolation.READ_UNCOMMITTED]
    marker = ending(leader, 1, commit=True)
    await written(leader)
    await asyncio.sleep(0)
    assert not polls[COMMITTED].done()
    await copy(leader, follower, feed)
    await marker
    await polls[COMMITTED]


async def test_a_long_poll_ends_when_the_lead_does() -> None:
    leader, _, _ = await cluster()
    wants = [(leader.partition, Offset(0))]
    polling = asyncio.create_task(
        wait_for_data(wants, min_bytes=1, timeout_s=60, isolation=COMMITTED)
    )
    await asyncio.sleep(0)
    leader.partition.update(row(2, 2), 2)
    await polling


async def test_deleted_records_of_an_open_transaction_hold_back_no_reader_below() -> None:
    leader, follower, feed = await cluster()
    await write(leader, 1, 0, b"a", b"b", b"c")
    await copy(leader, follower, feed)
    assert leader.partition.last_stable_offset == 0
    polling = asyncio.create_task(
        wait_for_data(
            [(leader.partition, Offset(0))], min_bytes=1, timeout_s=60, isolation=COMMITTED
        )
    )
    await asyncio.sleep(0)
    await leader.partition.log.operations.delete_records_before(Offset(2))
    await polling
    assert leader.partition.last_stable_offset == 2
    fetched = await read(leader, 2)
    assert (fetched.data, fetched.last_stable_offset, fetched.log_start_offset) == (b"", 2, 2)


# Changes of leader


async def test_a_new_leader_knows_the_open_transaction_and_ends_it() -> None:
    first, second, feed = await cluster()
    await first.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
    await write(first, 1, 0, b"b")
    await copy(first, second, feed)
    for node in (second, first):
        node.partition.update(row(2, 2), 2)
    feed = await catch_up(second, first)
    assert await second.partition.end_offset(COMMITTED) == 1
    assert verified(second, 1) is None, "the transaction is open in this log"
    await write(second, 1, 1, b"c")
    marker = ending(second, 1, commit=False)
    await written(second)
    await copy(second, first, feed)
    await marker
    for node, any_replica in ((second, False), (first, True)):
        fetched = await read(node, any_replica=any_replica)
        assert fetched.last_stable_offset == 4
        assert seen(fetched) == [b"a"]


async def test_a_marker_that_was_not_committed_leaves_the_transaction_open() -> None:
    first, second, feed = await cluster()
    await write(first, 1, 0, b"a")
    await copy(first, second, feed)
    marker = ending(first, 1, commit=True)
    await written(first)
    stable = first.partition.last_stable_offset
    for node in (second, first):
        node.partition.update(row(2, 2), 2)
    assert await refused(marker) is RETRIABLE, "its outcome is unknown"
    await second.partition.append(one(b"x"), acks=Acks.LEADER, timeout_s=60)
    await second.partition.log.flush()
    feed = await catch_up(second, first)
    await copy(second, first, feed)
    for node in (first, second):
        assert node.partition.high_watermark == 2
        assert node.partition.last_stable_offset == stable == 0
    marker = ending(second, 1, commit=True)
    await written(second)
    await copy(second, first, feed)
    await marker
    assert seen(await read(first, any_replica=True)) == [b"a", b"x"]


async def test_a_follower_that_begins_behind_deleted_records_knows_the_open_transaction() -> None:
    first, second, third = nodes(1, 2, 3)
    image = row(1, 1, replicas=(1, 2, 3), isr=(1, 2))
    for node in (first, second):
        await node.open(image)
    feed = attach(first, second)
    await write(first, 1, 0, b"a", b"b")
    await write(first, 1, 2, b"c")
    await copy(first, second, feed)
    await first.partition.log.operations.delete_records_before(Offset(2))
    await third.open(image)
    await catch_up(first, third)
    mark(first, third)
    assert third.partition.log_start_offset == 2
    assert third.partition.last_stable_offset == 2
    assert (await read(third, 2, any_replica=True)).data == b""
    image = row(3, 2, replicas=(1, 2, 3), isr=(1, 3))
    for node in (third, first, second):
        node.partition.update(image, 2)
    feed = await catch_up(third, first)
    assert verified(third, 1) is None
    marker = ending(third, 1, commit=False)
    await written(third)
    await copy(third, first, feed)
    await marker
    assert third.partition.last_stable_offset == 4
    assert seen(await read(third, 2)) == []


# Verification


async def test_a_transaction_begins_only_after_the_coordinator_was_asked() -> None:
    leader, _, _ = await cluster()
    batch = transactional([b"a"], 1, 0)
    append = leader.partition.append([batch], acks=Acks.LEADER, timeout_s=60)
    assert await refused(append) is TRANSACTION_NOT_VERIFIED
    assert leader.partition.log_end_offset == 0
    guard = verified(leader, 1)
    assert guard is not None
    assert verified(leader, 1) is guard, "questions at the same time share it"
    foreign = verified(leader, 2)
    append = leader.partition.append([batch], acks=Acks.LEADER, timeout_s=60, verification=foreign)
    assert await refused(append) is TRANSACTION_NOT_VERIFIED
    await leader.partition.append([batch], acks=Acks.LEADER, timeout_s=60, verification=guard)
    assert verified(leader, 1) is None
    await leader.partition.append([transactional([b"b"], 1, 1)], acks=Acks.LEADER, timeout_s=60)


async def test_a_marker_between_question_and_append_ends_the_guard() -> None:
    """A late batch of an ended transaction would open one without an end (KIP-890)."""
    leader, follower, feed = await cluster()
    guard = verified(leader, 1)
    marker = ending(leader, 1, commit=False)
    await written(leader)
    await copy(leader, follower, feed)
    await marker
    batch = transactional([b"a"], 1, 0)
    append = leader.partition.append([batch], acks=Acks.LEADER, timeout_s=60, verification=guard)
    assert await refused(append) is TRANSACTION_NOT_VERIFIED
    # Also if the marker is a repetition, which is not written.
    guard = verified(leader, 1)
    end = leader.partition.log_end_offset
    await ending(leader, 1, commit=False)
    assert leader.partition.log_end_offset == end
    append = leader.partition.append([batch], acks=Acks.LEADER, timeout_s=60, verification=guard)
    assert await refused(append) is TRANSACTION_NOT_VERIFIED
    assert leader.partition.last_stable_offset == end


async def test_a_guard_ends_with_the_leader_epoch() -> None:
    leader, follower, _ = await cluster()
    guard = verified(leader, 1)
    for node in (leader, follower):
        node.partition.update(row(1, 2), 2)
    batch = transactional([b"a"], 1, 0)
    append = leader.partition.append([batch], acks=Acks.LEADER, timeout_s=60, verification=guard)
    assert await refused(append) is TRANSACTION_NOT_VERIFIED


async def test_the_next_epoch_waits_for_the_marker_of_the_last() -> None:
    leader, follower, feed = await cluster()
    await write(leader, 1, 0, b"a")
    assert await refused(write(leader, 1, 0, b"b", epoch=1)) is TRANSACTION_NOT_VERIFIED
    plain = transactional([b"x"], 1, 1)
    header = plain.header._replace(attributes=0)
    append = leader.partition.append(
        [RecordBatch(header, plain.data)], acks=Acks.LEADER, timeout_s=60
    )
    assert await refused(append) is INVALID_TXN_STATE
    marker = ending(leader, 1, commit=True, epoch=1)
    await written(leader)
    await copy(leader, follower, feed)
    await marker
    assert await refused(write(leader, 1, 1, b"b")) is PRODUCER_FENCED
    assert (await write(leader, 1, 0, b"b", epoch=1)).base_offset == 2


def test_guards_are_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "GUARDS_MAX", 2)
    guards = Verifications()
    first = guards.begin(ProducerId(1), EPOCH)
    second = guards.begin(ProducerId(2), EPOCH)
    third = guards.begin(ProducerId(3), EPOCH)
    assert len(guards) == 2
    assert not guards.is_current(first, ProducerId(1), EPOCH)
    assert guards.is_current(second, ProducerId(2), EPOCH)
    assert guards.is_current(third, ProducerId(3), EPOCH)
    assert not guards.is_current(third, ProducerId(3), ProducerEpoch(1))
    newer = guards.begin(ProducerId(3), ProducerEpoch(1))
    assert not guards.is_current(third, ProducerId(3), EPOCH)
    with pytest.raises(LogError):
        guards.begin(ProducerId(3), EPOCH)
    guards.end(ProducerId(3))
    assert not guards.is_current(newer, ProducerId(3), ProducerEpoch(1))


# Coordinators


async def test_a_marker_is_written_once_and_never_by_an_older_coordinator() -> None:
    leader, follower, feed = await cluster()
    await write(leader, 1, 0, b"a")
    await copy(leader, follower, feed)
    first = ending(leader, 1, commit=True, coordinator_epoch=4)
    await written(leader)
    repeated = ending(leader, 1, commit=True, coordinator_epoch=4)
    await written(leader)
    assert leader.partition.log_end_offset == 2
    assert not repeated.done(), "it waits for the commit of the first"
    await copy(leader, follower, feed)
    await first
    await repeated
    assert await refused(ending(leader, 1, commit=True, coordinator_epoch=3)) is COORDINATOR_FENCED
    # A newer coordinator's is written: the older one's may still come, in the next transaction.
    newer = ending(leader, 1, commit=True, coordinator_epoch=5)
    await written(leader)
    await copy(leader, follower, feed)
    await newer
    assert leader.partition.log_end_offset == 3
    await write(leader, 1, 1, b"b")
    assert await refused(ending(leader, 1, commit=False, coordinator_epoch=4)) is COORDINATOR_FENCED


async def lone_leader(coordinators: dict[PartitionId | None, int]) -> Node:
    """A leader without followers, whose metadata has these coordinators' epochs."""
    leader = Node(1, {})
    leader.coordinators = coordinators
    await leader.open(row(1, 1, isr=(1,), replicas=(1,)))
    return leader


@pytest.mark.parametrize("coordinator", [None, COORDINATOR])
@pytest.mark.parametrize("epoch", [5, 1_000_000, 2**31 - 1])
async def test_an_epoch_of_no_coordinator_is_refused(
    coordinator: PartitionId | None, epoch: int
) -> None:
    leader = await lone_leader({None: 4, COORDINATOR: 4})
    await write(leader, 1, 0, b"a")
    for producer in (1, 2):
        refusal = ending(
            leader, producer, commit=True, coordinator_epoch=epoch, coordinator=coordinator
        )
        assert await refused(refusal) is COORDINATOR_FENCED
    assert leader.barriers == 2, "the quorum knows of no newer coordinator"
    assert leader.partition.log_end_offset == 1
    await ending(leader, 1, commit=True, coordinator_epoch=4, coordinator=coordinator)
    assert leader.barriers == 2


async def test_a_coordinator_newer_than_the_metadata_is_confirmed_by_the_quorum() -> None:
    leader = await lone_leader({COORDINATOR: 4})
    await write(leader, 1, 0, b"a")
    leader.nothing_learned = LogError(NO_CONTROLLER)
    newer = {"commit": True, "coordinator_epoch": 5, "coordinator": COORDINATOR}
    assert await refused(ending(leader, 1, **newer)) is NO_LEADER, "to be tried again"
    leader.nothing_learned = None
    leader.newest_coordinators[COORDINATOR] = 5
    await ending(leader, 1, **newer)
    assert leader.partition.log_end_offset == 2


async def test_a_marker_of_a_producer_id_that_was_never_issued_is_refused() -> None:
    leader = await lone_leader({})
    leader.next_producer_id = 7
    await ending(leader, 6, commit=True)
    leader.nothing_learned = LogError(NO_CONTROLLER)
    assert await refused(ending(leader, 7, commit=True)) is NO_LEADER
    leader.nothing_learned = None
    assert await refused(ending(leader, 7, commit=True)) is INVALID_PRODUCER_ID
    assert leader.partition.log_end_offset == 1
    leader.newest_producer_id = 8
    await ending(leader, 7, commit=True)
    assert leader.partition.log_end_offset == 2


async def left_by_an_operator(leader: Node, coordinator_epoch: int) -> None:
    """Write an operator's marker as an older release did, and restart."""
    await write(leader, 1, 0, b"a")
    metadata, leader.coordinators = leader.coordinators, {}
    await ending(leader, 1, commit=True, coordinator_epoch=coordinator_epoch)
    leader.coordinators = metadata
    await leader.partition.log.flush()
    await leader.logs.close()
    await leader.open(row(1, 2, isr=(1,), replicas=(1,)))


@pytest.mark.parametrize("left", [1_000_000, 6])
async def test_a_stored_epoch_of_no_coordinator_does_not_fence_the_coordinator(left: int) -> None:
    """Other coordinators may have reached epoch 6."""
    leader = await lone_leader({None: 7, COORDINATOR: 4})
    await left_by_an_operator(leader, left)
    mine = {"commit": True, "coordinator": COORDINATOR}
    old = ending(leader, 1, coordinator_epoch=3, **mine)
    assert await refused(old) is COORDINATOR_FENCED
    await ending(leader, 1, coordinator_epoch=4, **mine)
    assert leader.partition.log_end_offset == 3
    # The stored epoch is the coordinator's again.
    assert [each.coordinator_epoch for each in leader.partition.producers(1)] == [4]
    assert leader.barriers == 1


async def test_a_replaced_coordinator_does_not_overrule_a_stored_epoch() -> None:
    """The leader's metadata may lag behind its replacement."""
    leader = await lone_leader({COORDINATOR: 4})
    await left_by_an_operator(leader, 5)
    leader.newest_coordinators[COORDINATOR] = 5
    old = {"commit": True, "coordinator_epoch": 4, "coordinator": COORDINATOR}
    assert await refused(ending(leader, 1, **old)) is COORDINATOR_FENCED
    leader.nothing_learned = LogError(NO_CONTROLLER)
    leader.coordinators[COORDINATOR] = 4
    assert await refused(ending(leader, 1, **old)) is NO_LEADER


async def test_an_operator_ends_a_transaction_with_the_stored_epoch() -> None:
    """As `kafka-transactions.sh` does it, which reads the epoch from the leader."""
    leader = await lone_leader({None: 4})
    await left_by_an_operator(leader, 1_000_000)
    await write(leader, 1, 1, b"b")
    assert await refused(ending(leader, 1, commit=False, coordinator_epoch=3)) is COORDINATOR_FENCED
    await ending(leader, 1, commit=False, coordinator_epoch=1_000_000)
    assert leader.partition.last_stable_offset == leader.partition.log_end_offset == 4


async def test_a_marker_needs_the_lead_and_enough_replicas() -> None:
    leader, follower, _ = await cluster()
    await write(leader, 1, 0, b"a")
    assert await refused(ending(follower, 1, commit=True)) is NO_LEADER
    leader.partition.update(row(1, 1, isr=(1,), partition_epoch=11), 2)
    assert await refused(ending(leader, 1, commit=True)) is NOT_ENOUGH_REPLICAS
    leader.partition.update(row(1, 1, isr=(1, 2), partition_epoch=12), 2)
    assert await refused(ending(leader, 1, commit=True, timeout_s=0.01)) is RETRIABLE
    leader.may_act = False
    assert await refused(ending(leader, 1, commit=True, coordinator_epoch=1)) is NO_LEADER


def of_coordinator(*values: bytes, epoch: int = 0) -> RecordBatch:
    builder = BatchBuilder(
        producer_id=ProducerId(1), producer_epoch=ProducerEpoch(epoch), transactional=True
    )
    for value in values:
        builder.append(0, b"k", value)
    data = bytes(builder.build())
    return RecordBatch(parse_header(data), data)


async def test_a_coordinator_writes_for_a_producer_without_sequences() -> None:
    leader, follower, feed = await cluster()
    guard = leader.partition.begin_verification(ProducerId(1), ProducerEpoch(0))
    for origin, known, entry in (
        (Origin.CLIENT, guard, UNKNOWN_PRODUCER_ID),
        (Origin.COORDINATOR, None, TRANSACTION_NOT_VERIFIED),
        (Origin.COORDINATOR, guard, None),
    ):
        append = leader.partition.append(
            [of_coordinator(b"a", b"b")],
            acks=Acks.LEADER,
            timeout_s=60,
            origin=origin,
            verification=known,
        )
        if entry is not None:
            assert await refused(append) is entry
        else:
            await append
    await leader.partition.append(
        [of_coordinator(b"c")], acks=Acks.LEADER, timeout_s=60, origin=Origin.COORDINATOR
    )
    await leader.partition.log.flush()
    await copy(leader, follower, feed)
    assert leader.partition.last_stable_offset == 0
    marker = ending(leader, 1, commit=True, epoch=1)
    await written(leader)
    await copy(leader, follower, feed)
    await marker
    assert seen(await read(follower, any_replica=True)) == [b"a", b"b", b"c"]
    late = leader.partition.append(
        [of_coordinator(b"d")], acks=Acks.LEADER, timeout_s=60, origin=Origin.COORDINATOR
    )
    assert await refused(late) is PRODUCER_FENCED
