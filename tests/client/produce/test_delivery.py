"""The rules of delivery.py: order, repeats, identities; and a model of them under random faults."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftlog_client.errors import (
    ConnectionLostError,
    DeliveryTimeoutError,
    RaftlogClientError,
    ServerError,
    server_error,
)
from raftlog_client.produce.batches import Acknowledged, PendingBatch, ProducerIdentity
from raftlog_client.produce.delivery import BATCHES_REMEMBERED, PartitionQueue, base_offsets
from raftlog_client.types import TopicPartition

from raftlog.record.batch import split_batches
from raftlog.record.compression import Compression
from raftlog.record.errors import (
    CORRUPT_BATCH,
    DUPLICATE_SEQUENCE,
    INVALID_PRODUCER_ID,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    RECORD_TOO_LARGE,
    RETRIABLE,
    UNKNOWN_PRODUCER_ID,
    ErrorEntry,
    LogError,
)
from raftlog.record.header import parse_header
from raftlog.record.types import ProducerEpoch, ProducerId
from tests.client.fake_partition import FakePartition
from tests.examples import examples

TARGET = TopicPartition("t", 0)
NO_ROOM_LIMIT = 1 << 30


def identity(number: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(number), ProducerEpoch(0))


class Listener:
    """Remembers the outcomes of batches."""

    def __init__(self) -> None:
        self.acknowledged: dict[PendingBatch, int] = {}
        self.failed: dict[PendingBatch, RaftlogClientError] = {}

    def batch_acknowledged(self, batch: PendingBatch, base_offset: int) -> None:
        assert batch not in self.acknowledged and batch not in self.failed
        self.acknowledged[batch] = base_offset

    def batch_failed(self, batch: PendingBatch, error: RaftlogClientError) -> None:
        assert batch not in self.acknowledged and batch not in self.failed
        self.failed[batch] = error

    def batch_split(self, batch: PendingBatch, parts: Sequence[PendingBatch]) -> None:
        pass


def put(
    queue: PartitionQueue, listener: Listener, *values: bytes, deadline: float = 1e9
) -> PendingBatch:
    batch = PendingBatch(
        TARGET,
        compression=Compression.NONE,
        size_bytes_max=100_000,
        deadline=deadline,
        bulk=listener,
        on_change=lambda _, __: None,
    )
    for value in values or (b"x",):
        assert batch.append(0, None, value)
    queue.sealed.append(batch)
    return batch


@pytest.fixture
def queue() -> PartitionQueue:
    return PartitionQueue(TARGET, is_idempotent=True)


@pytest.fixture
def listener() -> Listener:
    return Listener()


LOST = ConnectionLostError("lost", outcome_unknown=True)
REFUSED_FOR_GOOD = server_error(CORRUPT_BATCH.code)
REFUSED = server_error(NOT_ENOUGH_REPLICAS.code)
MOVED = server_error(NO_LEADER.code)
BROKEN = server_error(CORRUPT_BATCH.code)


def sequences(batches: Sequence[PendingBatch]) -> list[tuple[int, int]]:
    headers = [parse_header(batch.data()) for batch in batches]
    return [(header.producer_id, header.base_sequence) for header in headers]


def test_sequences_count_records_within_an_identity(
    queue: PartitionQueue, listener: Listener
) -> None:
    put(queue, listener, b"1", b"2")
    put(queue, listener, b"3")
    assert sequences(queue.take(NO_ROOM_LIMIT, identity=identity(7))) == [(7, 0), (7, 2)]
    queue.settle(Acknowledged(10, 12), 0)
    assert list(listener.acknowledged.values()) == [10, 12]
    put(queue, listener)
    assert sequences(queue.take(NO_ROOM_LIMIT, identity=identity(8))) == [(7, 3)]


def test_a_frame_that_may_be_written_is_repeated_as_it_was(
    queue: PartitionQueue, listener: Listener
) -> None:
    first = [put(queue, listener), put(queue, listener)]
    before = [bytes(batch.data()) for batch in queue.take(NO_ROOM_LIMIT, identity=identity(1))]
    assert queue.settle(LOST, 0).must_retry
    later = put(queue, listener)
    again = queue.take(0, identity=identity(2))
    assert list(again) == first
    assert [bytes(batch.data()) for batch in again] == before
    queue.settle(Acknowledged(0, 1), 0)
    assert queue.take(NO_ROOM_LIMIT, identity=identity(2)) == [later]


def test_a_frame_that_was_refused_may_take_on_more(
    queue: PartitionQueue, listener: Listener
) -> None:
    put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    assert queue.settle(REFUSED, 0).must_retry
    put(queue, listener)
    assert sequences(queue.take(NO_ROOM_LIMIT, identity=identity(1))) == [(1, 0), (1, 1)]


def test_a_refusal_does_not_make_an_earlier_doubt_certain(
    queue: PartitionQueue, listener: Listener
) -> None:
    put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    queue.settle(LOST, 0)
    put(queue, listener)
    assert len(queue.take(NO_ROOM_LIMIT, identity=identity(1))) == 1
    queue.settle(REFUSED, 0)
    assert len(queue.take(NO_ROOM_LIMIT, identity=identity(1))) == 1


def test_a_frame_has_no_more_batches_than_a_node_remembers(
    queue: PartitionQueue, listener: Listener
) -> None:
    for _ in range(BATCHES_REMEMBERED + 1):
        put(queue, listener)
    assert len(queue.take(NO_ROOM_LIMIT, identity=identity(1))) == BATCHES_REMEMBERED


def test_a_frame_has_at_least_one_batch_and_else_keeps_to_its_size(
    queue: PartitionQueue, listener: Listener
) -> None:
    put(queue, listener, b"x" * 1000)
    put(queue, listener, b"x" * 1000)
    assert len(queue.take(10, identity=identity(1))) == 1
    queue.settle(Acknowledged(0, 0), 0)
    put(queue, listener, b"x" * 1000)
    assert len(queue.take(2500, identity=identity(1))) == 2


def test_what_is_refused_for_good_fails_and_gives_its_sequences_back(
    queue: PartitionQueue, listener: Listener
) -> None:
    bad = put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    good = put(queue, listener)
    queue.settle(server_error(CORRUPT_BATCH.code, "bad"), 0)
    error = listener.failed[bad]
    assert isinstance(error, ServerError)
    assert not error.outcome_unknown
    assert queue.take(NO_ROOM_LIMIT, identity=identity(2)) == [good]
    # Nothing was written: the sequence has no gap.
    assert sequences([good]) == [(1, 0)]


def test_a_fenced_producer_takes_a_new_identity(queue: PartitionQueue, listener: Listener) -> None:
    fenced = put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    queue.settle(server_error(PRODUCER_FENCED.code), 0)
    assert listener.failed[fenced]
    good = put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(2))
    assert sequences([good]) == [(2, 0)]


def test_a_frame_too_large_for_the_topic_is_taken_apart(
    queue: PartitionQueue, listener: Listener
) -> None:
    put(queue, listener, b"1")
    put(queue, listener, b"2", b"3", b"4")
    too_large = server_error(RECORD_TOO_LARGE.code)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    assert not queue.settle(too_large, 0).must_retry
    frames = []
    while queue.has_due:
        frame = queue.take(NO_ROOM_LIMIT, identity=identity(1))
        frames.append([batch.record_count for batch in frame])
        offset = sum(count for counts in frames for count in counts)
        is_too_large = sum(frames[-1]) > 2
        queue.settle(too_large if is_too_large else Acknowledged(offset, offset + 1), 0)
    assert frames == [[1], [3], [1], [2]]
    assert not listener.failed
    assert sequences(list(listener.acknowledged)) == [(1, 0), (1, 1), (1, 2)]
    alone = put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    queue.settle(too_large, 0)
    assert listener.failed[alone] is too_large


def test_a_batch_never_sent_says_so_when_its_time_is_over(
    queue: PartitionQueue, listener: Listener
) -> None:
    batch = put(queue, listener, deadline=5)
    queue.expire(4.9)
    assert not listener.failed
    queue.expire(5)
    error = listener.failed[batch]
    assert isinstance(error, DeliveryTimeoutError)
    assert not error.outcome_unknown
    assert "never sent" in str(error)


def test_a_frame_that_may_be_written_expires_whole_with_its_outcome_unknown(
    queue: PartitionQueue, listener: Listener
) -> None:
    first = put(queue, listener, deadline=5)
    second = put(queue, listener, deadline=9)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    third = put(queue, listener, deadline=9)
    queue.settle(LOST, 6)
    assert listener.failed[first].outcome_unknown
    assert listener.failed[second].outcome_unknown
    assert queue.take(NO_ROOM_LIMIT, identity=identity(2)) == [third]
    assert sequences([third]) == [(2, 0)]


def test_a_refused_batch_expires_as_not_written(queue: PartitionQueue, listener: Listener) -> None:
    first = put(queue, listener, deadline=5)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    queue.settle(REFUSED, 6)
    error = listener.failed[first]
    assert not error.outcome_unknown
    assert error.__cause__ is REFUSED


@pytest.mark.parametrize(
    "refusal", [OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_ID]
)
def test_a_forgotten_producer_begins_anew_with_what_is_not_written(
    queue: PartitionQueue, listener: Listener, refusal: ErrorEntry
) -> None:
    put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    queue.settle(Acknowledged(0, 0), 0)
    batch = put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    assert sequences([batch]) == [(1, 1)]
    assert queue.settle(server_error(refusal.code), 0).must_retry
    queue.take(NO_ROOM_LIMIT, identity=identity(2))
    assert sequences([batch]) == [(2, 0)]
    assert not listener.failed


@pytest.mark.parametrize(
    "refusal", [OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_ID]
)
def test_a_forgotten_producer_gives_up_what_may_be_written(
    queue: PartitionQueue, listener: Listener, refusal: ErrorEntry
) -> None:
    batch = put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    queue.settle(LOST, 0)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    assert not queue.settle(server_error(refusal.code), 0).must_retry
    assert listener.failed[batch].outcome_unknown


@pytest.mark.parametrize("error", [LOST, server_error(RETRIABLE.code, "t-0 is led elsewhere.")])
def test_what_is_given_up_says_in_words_whether_its_outcome_is_known(
    listener: Listener, error: RaftlogClientError
) -> None:
    queue = PartitionQueue(TARGET, is_idempotent=False)
    for refusal, words in (
        (error, "t-0: not acknowledged; it may or may not be written."),
        (REFUSED_FOR_GOOD, ""),
    ):
        batch = put(queue, listener)
        queue.take(NO_ROOM_LIMIT, identity=None)
        queue.settle(refusal, 0)
        told = listener.failed[batch]
        assert (type(told), told.outcome_unknown) == (type(refusal), bool(words))
        assert str(refusal) in str(told)
        assert str(told).startswith(words)
        if isinstance(told, ServerError) and isinstance(refusal, ServerError):
            assert told.entry is refusal.entry


def test_a_repeat_too_old_to_be_placed_counts_as_written(
    queue: PartitionQueue, listener: Listener
) -> None:
    batch = put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=identity(1))
    queue.settle(server_error(DUPLICATE_SEQUENCE.code), 0)
    assert listener.acknowledged == {batch: -1}


def test_without_idempotence_a_doubtful_outcome_is_not_repeated(listener: Listener) -> None:
    queue = PartitionQueue(TARGET, is_idempotent=False)
    batch = put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=None)
    assert parse_header(batch.data()).producer_id == -1
    assert not queue.settle(LOST, 0).must_retry
    assert listener.failed[batch].outcome_unknown
    put(queue, listener)
    queue.take(NO_ROOM_LIMIT, identity=None)
    assert queue.settle(REFUSED, 0).must_retry


def test_sequences_go_on_from_zero_after_the_largest(
    queue: PartitionQueue, listener: Listener
) -> None:
    put(queue, listener, b"1", b"2", b"3")
    put(queue, listener)
    queue.identity = identity(1)
    queue._next_sequence = 2**31 - 2
    assert sequences(queue.take(NO_ROOM_LIMIT, identity=None)) == [(1, 2**31 - 2), (1, 1)]


def test_a_frame_cut_in_two_by_a_crash_names_only_the_offsets_it_knows(
    queue: PartitionQueue, listener: Listener
) -> None:
    batches = [put(queue, listener, b"1", b"2") for _ in range(3)]
    assert base_offsets(batches, Acknowledged(10, 15)) == [10, 12, 14]
    assert base_offsets(batches, Acknowledged(10, 25)) == [10, -1, 24]
    assert base_offsets(batches, Acknowledged(-1, -1)) == [-1, -1, -1]


FAULTS = st.sampled_from(
    ["ok", "ok", "ok", "lost before", "lost after", "refused", "moved", "broken", "forgotten"]
)


@settings(max_examples=examples(150), deadline=None)
@given(
    steps=st.lists(
        st.tuples(FAULTS, st.integers(0, 4), st.integers(1, 3), st.integers(1, 4)), max_size=25
    )
)
def test_no_fault_reorders_duplicates_or_loses_silently(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Against a node that appends honestly: acknowledged once and at its place, in order; a
    batch failed with a known outcome is not in the log; none is in the log twice."""
    queue, listener, node = PartitionQueue(TARGET, is_idempotent=True), Listener(), _partition()
    put_batches: list[tuple[PendingBatch, bytes]] = []
    ids = iter(range(1, 10_000))
    current = identity(next(ids))
    now = 0.0
    for fault, new_count, frame_kb, life in [*steps, *[("ok", 0, 4, 1)] * 60]:
        for _ in range(new_count):
            value = b"%04d" % len(put_batches)
            put_batches.append((put(queue, listener, value, deadline=now + life), value))
        now += 0.5 if new_count else 0.0
        queue.expire(now)
        if not queue.has_due:
            continue
        if queue.identity is None:
            current = identity(next(ids))
        frame = queue.take(frame_kb * 100, identity=current)
        queue.settle(_answer(node, frame, fault), now)
    values = node.values()
    places = {value: offset for offset, _, value in node.records()}
    assert len(places) == len(values)
    assert values == sorted(values, key=lambda value: value or b"")
    for batch, value in put_batches:
        if batch in listener.acknowledged:
            assert places[value] == listener.acknowledged[batch]
        else:
            assert listener.failed[batch].outcome_unknown or value not in places


def _partition() -> FakePartition:
    return FakePartition("t", 0, leader=1)


def _answer(
    node: FakePartition, frame: Sequence[PendingBatch], fault: str
) -> Acknowledged | RaftlogClientError:
    refusals = {"lost before": LOST, "refused": REFUSED, "moved": MOVED, "broken": BROKEN}
    if fault in refusals:
        return refusals[fault]
    if fault == "forgotten" and not frame[0].outcome_unknown:
        # A node forgets a producer after long silence, not in the middle of a repeat.
        node.producers.clear()
    data = b"".join(bytes(batch.data()) for batch in frame)
    try:
        written = node.append_frame(split_batches(data, max_message_bytes=1 << 20))
    except LogError as error:
        return server_error(error.entry.code)
    return LOST if fault == "lost after" else Acknowledged(*written)
