"""The table of one transactional id, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.coordinator.shard.decision import CoordinatorRecord, Producer
from raftlog.coordinator.shard.records import TransactionLogKey
from raftlog.coordinator.transactions.messages import (
    PARTITIONS_MAX,
    AbortTransaction,
    AddPartitions,
    EndTransaction,
    Initialized,
    InitProducer,
    PrepareTransaction,
    Request,
    TopicPartition,
)
from raftlog.coordinator.transactions.transaction import EPOCH_MAX, State, Transaction
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    TRANSACTION_TOO_LARGE,
    ErrorEntry,
)
from tests.coordinator.transaction_harness import (
    FIRST_PRODUCER_ID,
    P0,
    P1,
    Coordinator,
    addition,
    producer,
)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def epoch(number: int, producer_id: int = FIRST_PRODUCER_ID) -> Producer:
    return producer(producer_id, number)


def init(known: Producer | None = None, *, keep: bool = False) -> InitProducer:
    return InitProducer("a", 60_000, known, keep)


def commit(client: Producer, version: int = 2) -> EndTransaction:
    return EndTransaction("a", client, True, version)


def abort(client: Producer, version: int = 2) -> EndTransaction:
    return EndTransaction("a", client, False, version)


def opened(coordinator: Coordinator) -> Producer:
    client = coordinator.init()
    coordinator.add(client, P0)
    return client


def begin_at(coordinator: Coordinator, last: int) -> Producer:
    """An initialized producer with that epoch."""
    worn = Transaction(epoch(last - 1, 7), State.EMPTY, 60_000, coordinator.wall_ms)
    coordinator.append([CoordinatorRecord(TransactionLogKey("a"), worn.value())])
    return coordinator.init()


# Init


def test_first_init_takes_the_allocated_producer_id(coordinator: Coordinator) -> None:
    assert coordinator.init() == epoch(0)


def test_every_init_fences_the_producer_before(coordinator: Coordinator) -> None:
    old = coordinator.init()
    assert coordinator.init() == epoch(1)
    assert coordinator.refusal(addition("a", old, P0)) is PRODUCER_FENCED
    assert coordinator.refusal(init(old)) is PRODUCER_FENCED


def test_init_aborts_the_transaction_before_and_answers_once_that_is_complete(
    coordinator: Coordinator,
) -> None:
    old = opened(coordinator)
    assert coordinator.refusal(init()) is CONCURRENT_TRANSACTIONS
    (pending,) = coordinator.shard.pending_markers()
    assert (pending.producer, pending.is_commit) == (epoch(1), False)
    assert coordinator.refusal(init()) is CONCURRENT_TRANSACTIONS
    assert coordinator.refusal(commit(old)) is PRODUCER_FENCED
    assert coordinator.refusal(abort(old)) is PRODUCER_FENCED, "it would learn the new epoch"
    coordinator.write_markers()
    assert coordinator.init() == epoch(2)


def test_init_of_the_same_producer_is_answered_again(coordinator: Coordinator) -> None:
    client = coordinator.init()
    assert coordinator.init(known=client) == epoch(1)
    coordinator.reload()
    assert coordinator.init(known=client) == epoch(1)
    coordinator.add(epoch(1), P0)
    assert coordinator.refusal(init(client)) is PRODUCER_FENCED


def test_init_of_the_same_producer_aborts_its_transaction(coordinator: Coordinator) -> None:
    client = opened(coordinator)
    assert coordinator.refusal(init(client)) is CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.init(known=client) == epoch(1)


def test_epochs_used_up_give_another_producer_id(coordinator: Coordinator) -> None:
    last = begin_at(coordinator, EPOCH_MAX)
    assert coordinator.init(known=last) == epoch(0)
    coordinator.reload()
    assert coordinator.init(known=last) == epoch(0), "a retry"
    assert coordinator.refusal(addition("a", last, P0)) is PRODUCER_FENCED


def test_fence_at_the_last_epoch_leads_to_another_producer_id(coordinator: Coordinator) -> None:
    last = begin_at(coordinator, EPOCH_MAX)
    coordinator.add(last, P0)
    assert coordinator.refusal(init()) is CONCURRENT_TRANSACTIONS
    (pending,) = coordinator.shard.pending_markers()
    assert pending.producer == epoch(EPOCH_MAX + 1, 7)
    coordinator.write_markers()
    assert coordinator.init() == epoch(0)


# Additions


def test_partitions_join_until_the_end(coordinator: Coordinator) -> None:
    client = opened(coordinator)
    started_ms = coordinator.transaction("a").start_ms
    coordinator.elapse(5)
    coordinator.add(client, P1)
    present = coordinator.transaction("a")
    assert (present.state, present.partitions) == (State.ONGOING, {P0, P1})
    assert present.start_ms == started_ms
    assert present.last_update_ms == started_ms + 5


def test_partition_that_joined_already_costs_no_record(coordinator: Coordinator) -> None:
    client = opened(coordinator)
    batches = len(coordinator.log)
    coordinator.add(client, P0)
    assert len(coordinator.log) == batches


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        (epoch(0), PRODUCER_FENCED),
        (epoch(2), INVALID_PRODUCER_EPOCH),
        (epoch(1, FIRST_PRODUCER_ID - 1), PRODUCER_FENCED),
        (epoch(1, FIRST_PRODUCER_ID + 1), INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_only_the_newest_producer_is_served(
    coordinator: Coordinator, client: Producer, entry: ErrorEntry
) -> None:
    coordinator.init()
    coordinator.add(coordinator.init(), P0)
    for request in (
        addition("a", client, P1),
        addition("a", client, P0, is_addition=False),
        AddPartitions("a", client, (P1,)),
        commit(client),
        abort(client),
        PrepareTransaction("a", client),
        AbortTransaction("a", client),
    ):
        assert coordinator.refusal(request) is entry
    assert coordinator.transaction("a").partitions == {P0}


@pytest.mark.parametrize("is_commit", [True, False])
def test_nothing_joins_a_decided_transaction(coordinator: Coordinator, is_commit: bool) -> None:
    client = opened(coordinator)
    following = coordinator.end(client, commit=is_commit)
    assert coordinator.refusal(addition("a", client, P1)) is PRODUCER_FENCED
    assert coordinator.refusal(addition("a", following, P1)) is CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    coordinator.add(following, P1)
    assert coordinator.transaction("a").partitions == {P1}


def test_verification_accepts_only_partitions_of_the_open_transaction(
    coordinator: Coordinator,
) -> None:
    client = coordinator.init()
    question = addition("a", client, P0, is_addition=False)
    assert coordinator.refusal(question) is TRANSACTION_ABORTABLE
    coordinator.ask(AddPartitions("a", client, (P0,)))
    coordinator.ask(question)
    assert (
        coordinator.refusal(addition("a", client, P1, is_addition=False)) is TRANSACTION_ABORTABLE
    )
    coordinator.end(client, version=1)
    assert coordinator.refusal(question) is CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.refusal(question) is TRANSACTION_ABORTABLE, "a late batch"


def test_partitions_of_a_transaction_are_bounded(coordinator: Coordinator) -> None:
    client = opened(coordinator)
    many = tuple(TopicPartition("u", number) for number in range(PARTITIONS_MAX))
    assert coordinator.refusal(AddPartitions("a", client, many)) is TRANSACTION_TOO_LARGE
    coordinator.ask(AddPartitions("a", client, many[1:]))


# Ends


@pytest.mark.parametrize("is_commit", [True, False])
def test_end_of_version_2_gives_the_next_epoch(coordinator: Coordinator, is_commit: bool) -> None:
    client = opened(coordinator)
    assert coordinator.end(client, commit=is_commit) == epoch(1)
    (pending,) = coordinator.shard.pending_markers()
    assert (pending.producer, pending.is_commit) == (epoch(1), is_commit)
    assert (pending.version, pending.partitions) == (2, {P0})


@pytest.mark.parametrize("is_commit", [True, False])
def test_end_of_version_1_keeps_the_epoch(coordinator: Coordinator, is_commit: bool) -> None:
    client = coordinator.init()
    coordinator.ask(AddPartitions("a", client, (P0,)))
    assert coordinator.end(client, commit=is_commit, version=1) == client
    (pending,) = coordinator.shard.pending_markers()
    assert (pending.producer, pending.version) == (client, 1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_end_is_answered_again_once_it_is_complete(
    coordinator: Coordinator, is_commit: bool, version: int
) -> None:
    client = opened(coordinator)
    following = coordinator.end(client, commit=is_commit, version=version)
    again = EndTransaction("a", client, is_commit, version)
    assert coordinator.refusal(again) is CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    coordinator.reload()
    batches = len(coordinator.log)
    assert coordinator.end(client, commit=is_commit, version=version) == following
    assert len(coordinator.log) == batches


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize(
    ("version", "is_commit", "entry"),
    [
        (2, True, INVALID_TXN_STATE),
        # It may be the coordinator's own abort: the client can initialize again (KAFKA-20785).
        (2, False, PRODUCER_FENCED),
        (1, True, INVALID_TXN_STATE),
        (1, False, INVALID_TXN_STATE),
    ],
)
def test_contrary_end_is_refused(
    coordinator: Coordinator, version: int, is_commit: bool, entry: ErrorEntry, is_complete: bool
) -> None:
    client = opened(coordinator)
    coordinator.end(client, commit=is_commit, version=version)
    if is_complete:
        coordinator.write_markers()
    assert coordinator.refusal(EndTransaction("a", client, not is_commit, version)) is entry


def test_next_transaction_waits_for_the_markers(coordinator: Coordinator) -> None:
    following = coordinator.end(opened(coordinator))
    assert coordinator.refusal(abort(following)) is CONCURRENT_TRANSACTIONS
    assert coordinator.refusal(commit(following)) is CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.refusal(commit(following)) is INVALID_TXN_STATE, "nothing to commit"


def test_abort_of_an_empty_transaction_fences_its_late_batches(coordinator: Coordinator) -> None:
    client = coordinator.init()
    following = coordinator.end(client, commit=False)
    assert following == epoch(1)
    assert coordinator.state("a") is State.COMPLETE_ABORT
    assert coordinator.end(client, commit=False) == following, "a retry"
    assert coordinator.refusal(addition("a", client, P0)) is PRODUCER_FENCED


@pytest.mark.parametrize("request_of", [commit, abort])
def test_client_of_version_1_has_no_empty_end(
    coordinator: Coordinator, request_of: type[EndTransaction]
) -> None:
    assert coordinator.refusal(request_of(coordinator.init(), 1)) is INVALID_TXN_STATE


def test_end_at_the_last_epoch_gives_another_producer_id(coordinator: Coordinator) -> None:
    last = begin_at(coordinator, EPOCH_MAX)
    coordinator.add(last, P0)
    following = coordinator.end(last)
    assert following == epoch(0)
    (pending,) = coordinator.shard.pending_markers()
    assert pending.producer == epoch(EPOCH_MAX + 1, 7)
    assert coordinator.refusal(addition("a", following, P0)) is CONCURRENT_TRANSACTIONS
    coordinator.reload()
    coordinator.write_markers()
    assert coordinator.end(last) == following, "a retry"
    assert coordinator.refusal(abort(last)) is INVALID_TXN_STATE
    coordinator.add(following, P0)


# Timeouts and operators


def test_transaction_over_its_time_is_aborted_and_version_2_goes_on(
    coordinator: Coordinator,
) -> None:
    client = opened(coordinator)
    coordinator.elapse(59_999)
    assert coordinator.state("a") is State.ONGOING
    coordinator.elapse(1)
    assert coordinator.state("a") is State.PREPARE_ABORT
    coordinator.write_markers()
    assert coordinator.refusal(addition("a", client, P1)) is PRODUCER_FENCED
    assert coordinator.refusal(commit(client)) is PRODUCER_FENCED
    assert coordinator.end(client, commit=False) == epoch(1)


def test_timeout_fences_a_client_of_version_1(coordinator: Coordinator) -> None:
    client = coordinator.init()
    coordinator.ask(AddPartitions("a", client, (P0,)))
    coordinator.elapse(60_000)
    coordinator.write_markers()
    assert coordinator.refusal(abort(client, 1)) is PRODUCER_FENCED
    assert coordinator.refusal(init(client)) is PRODUCER_FENCED


def test_timeout_begins_with_the_first_partition_and_again_with_a_load(
    coordinator: Coordinator,
) -> None:
    client = coordinator.init()
    coordinator.elapse(100_000)
    coordinator.add(client, P0)
    coordinator.elapse(40_000)
    coordinator.add(client, P1)
    coordinator.reload()
    coordinator.elapse(59_999)
    assert coordinator.state("a") is State.ONGOING
    coordinator.elapse(1)
    assert coordinator.state("a") is State.PREPARE_ABORT


def test_operator_aborts_an_open_transaction_and_fences_its_producer(
    coordinator: Coordinator,
) -> None:
    client = opened(coordinator)
    coordinator.ask(AbortTransaction("a"))
    coordinator.ask(AbortTransaction("a"))
    coordinator.write_markers()
    assert coordinator.refusal(abort(client)) is PRODUCER_FENCED
    assert coordinator.refusal(AbortTransaction("a")) is INVALID_TXN_STATE


def test_operator_cannot_abort_a_commit(coordinator: Coordinator) -> None:
    coordinator.end(opened(coordinator))
    assert coordinator.refusal(AbortTransaction("a")) is INVALID_TXN_STATE


# Two phases


def prepared(coordinator: Coordinator) -> Producer:
    client = opened(coordinator)
    coordinator.ask(PrepareTransaction("a", client))
    return client


def test_prepared_transaction_outlives_its_timeout(coordinator: Coordinator) -> None:
    client = prepared(coordinator)
    coordinator.ask(PrepareTransaction("a", client))
    coordinator.reload()
    coordinator.elapse(7 * 24 * 3_600_000)
    assert coordinator.state("a") is State.PREPARED
    assert coordinator.refusal(addition("a", client, P1)) is INVALID_TXN_STATE
    assert coordinator.end(client) == epoch(1)


def test_new_producer_keeps_and_ends_what_is_prepared(coordinator: Coordinator) -> None:
    client = prepared(coordinator)
    response = coordinator.ask(init(keep=True))
    assert response == Initialized(epoch(1), prepared=epoch(0))
    assert coordinator.init(keep=True) == epoch(2)
    assert coordinator.refusal(commit(client)) is PRODUCER_FENCED
    coordinator.reload()
    assert coordinator.end(epoch(2)) == epoch(3)
    (pending,) = coordinator.shard.pending_markers()
    assert pending.producer == epoch(1), "the epoch after its batches"
    assert coordinator.refusal(commit(epoch(2))) is CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.end(epoch(2)) == epoch(3)
    coordinator.add(epoch(3), P0)


def test_takeovers_can_use_up_the_epochs(coordinator: Coordinator) -> None:
    last = begin_at(coordinator, EPOCH_MAX - 1)
    coordinator.add(last, P0)
    coordinator.ask(PrepareTransaction("a", last))
    assert coordinator.init(keep=True) == epoch(EPOCH_MAX, 7)
    assert coordinator.init(keep=True) == epoch(0)
    assert coordinator.end(epoch(0)) == epoch(1)
    (pending,) = coordinator.shard.pending_markers()
    assert pending.producer == epoch(EPOCH_MAX, 7)
    coordinator.write_markers()
    assert coordinator.transaction("a").producer == epoch(1)


def test_new_producer_that_does_not_keep_aborts_what_is_prepared(coordinator: Coordinator) -> None:
    prepared(coordinator)
    assert coordinator.refusal(init()) is CONCURRENT_TRANSACTIONS
    assert coordinator.state("a") is State.PREPARE_ABORT


def test_open_transaction_is_not_kept_unless_prepared(coordinator: Coordinator) -> None:
    opened(coordinator)
    assert coordinator.refusal(init(keep=True)) is CONCURRENT_TRANSACTIONS
    assert coordinator.state("a") is State.PREPARE_ABORT


@pytest.mark.parametrize("is_open", [True, False])
def test_prepare_needs_an_open_transaction_of_version_2(
    coordinator: Coordinator, is_open: bool
) -> None:
    client = coordinator.init()
    if is_open:
        coordinator.ask(AddPartitions("a", client, (P0,)))
    request: Request = PrepareTransaction("a", client)
    assert coordinator.refusal(request) is INVALID_TXN_STATE


# Records

producers = st.builds(producer, st.integers(0, 2**63 - 1), st.integers(0, EPOCH_MAX + 1))
partitions = st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 9))


@given(
    st.builds(
        Transaction,
        producer=producers,
        state=st.sampled_from(State),
        timeout_ms=st.integers(1, 2**31 - 1),
        last_update_ms=st.integers(0, 2**60),
        next_producer=st.none() | producers,
        previous_producer_id=st.integers(-1, 2**63 - 1),
        partitions=st.frozensets(partitions),
        start_ms=st.integers(-1, 2**60),
        version=st.integers(1, 2),
    )
)
def test_record_holds_the_whole_state(present: Transaction) -> None:
    if present.state is State.EMPTY:
        present = replace(present, partitions=frozenset())
    assert Transaction.of(present.value()) == present
