"""All transactional ids of a shard: batches of questions, sinks, expiry, queries, markers."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from raftlog.coordinator.shard.decision import CoordinatorRecord, Producer
from raftlog.coordinator.shard.records import (
    GroupMetadataKey,
    SinkEpochKey,
    SinkEpochValue,
    TransactionLogKey,
)
from raftlog.coordinator.transactions import shard as transaction_shard
from raftlog.coordinator.transactions import sink_epoch
from raftlog.coordinator.transactions.messages import (
    NO_EPOCH,
    CommitSinkEpoch,
    DescribeSink,
    DescribeTransaction,
    Ended,
    EndTransaction,
    Failure,
    Initialized,
    InitProducer,
    ListTransactions,
    PrepareTransaction,
    Request,
    Response,
    SinkEpoch,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
    Verification,
    Verified,
    VerifyOrAdd,
    shard_key,
    sink_of,
    sink_shard_key,
)
from raftlog.coordinator.transactions.shard import TransactionShard
from raftlog.coordinator.transactions.transaction import (
    ProducerIdRequiredError,
    State,
    TransactionSettings,
)
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TRANSACTIONAL_ID,
    INVALID_TXN_STATE,
    OVERLOADED,
    PRODUCER_FENCED,
    QUOTA_EXCEEDED,
    SINK_OWNED,
    TRANSACTION_ABORTABLE,
    TRANSACTION_TOO_LARGE,
    UNKNOWN_TRANSACTION,
    ErrorEntry,
    LogError,
)
from tests.coordinator.transaction_harness import P0, P1, P2, Coordinator, addition, producer

DAY_MS = 24 * 3_600_000


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def describe(coordinator: Coordinator, transactional_id: str) -> TransactionDescription:
    response = coordinator.ask(DescribeTransaction(transactional_id))
    assert isinstance(response, TransactionDescription)
    return response


def listed(coordinator: Coordinator, request: ListTransactions) -> list[str]:
    response = coordinator.ask(request)
    assert isinstance(response, TransactionListing)
    assert response.is_complete
    return [summary.transactional_id for summary in response.transactions]


# Questions of leaders


def test_questions_of_one_request_have_their_own_outcomes(coordinator: Coordinator) -> None:
    one, two = coordinator.init("a"), coordinator.init("b")
    fenced = two
    two = coordinator.init("b")
    batches = len(coordinator.log)
    response = coordinator.ask(
        VerifyOrAdd(
            (
                Verification("a", one, (P0,), True),
                Verification("b", fenced, (P0,), True),
                Verification("a", one, (P1, P2), True),
                Verification("a", one, (P2,), False),
                Verification("unknown", one, (P2,), True),
                Verification("b", two, (P0,), False),
            )
        )
    )
    assert isinstance(response, Verified)
    entries = [outcome and outcome.error().entry for outcome in response.outcomes]
    assert entries == [
        None,
        PRODUCER_FENCED,
        None,
        None,
        INVALID_PRODUCER_ID_MAPPING,
        TRANSACTION_ABORTABLE,
    ]
    (records,) = coordinator.log[batches:]
    assert [record.key for record in records] == [TransactionLogKey("a")], "one record an id"
    assert coordinator.transaction("a").partitions == {P0, P1, P2}
    assert coordinator.transaction("b").state is State.EMPTY


def test_records_of_one_decision_fit_a_batch(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_shard, "DECISION_BYTES_MAX", 400)
    one, two = coordinator.init("a"), coordinator.init("b")
    question = VerifyOrAdd(
        (
            Verification("a", one, (P0,), True),
            Verification("a", one, (P1,), True),
            Verification("b", two, tuple(TopicPartition("u", n) for n in range(20)), True),
        )
    )
    response = coordinator.ask(question)
    assert isinstance(response, Verified)
    entries = [outcome and outcome.error().entry for outcome in response.outcomes]
    assert entries == [None, None, OVERLOADED]
    assert coordinator.transaction("b").state is State.EMPTY


# Producer ids, bounds


def test_decision_without_a_needed_producer_id_changes_nothing() -> None:
    shard = TransactionShard(TransactionSettings())
    with pytest.raises(ProducerIdRequiredError):
        shard.decide(InitProducer("a", 1_000), 0, 0)
    assert len(shard) == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60_000 + 1])
def test_transaction_timeout_is_bounded(coordinator: Coordinator, timeout_ms: int) -> None:
    assert coordinator.refusal(InitProducer("a", timeout_ms)) is INVALID_TRANSACTION_TIMEOUT


def test_the_bounds_of_the_cluster_hold_from_their_change_on() -> None:
    shard = TransactionShard(TransactionSettings())
    asked = InitProducer("a", 100_000)
    with pytest.raises(ProducerIdRequiredError):
        shard.decide(asked, 0, 0)
    shard.follow_settings({"transaction.max.timeout.ms": "60000"})
    with pytest.raises(LogError) as refused:
        shard.decide(asked, 0, 0)
    assert refused.value.entry is INVALID_TRANSACTION_TIMEOUT
    shard.follow_settings({})
    with pytest.raises(ProducerIdRequiredError):
        shard.decide(asked, 0, 0)


@pytest.mark.parametrize("transactional_id", ["", "a" * 256])
def test_length_of_a_transactional_id_is_bounded(
    coordinator: Coordinator, transactional_id: str
) -> None:
    refused = coordinator.refusal(InitProducer(transactional_id, 1_000))
    assert refused is INVALID_TRANSACTIONAL_ID


def test_number_of_transactional_ids_is_bounded(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_shard, "IDS_MAX", 2)
    coordinator.init("a")
    coordinator.init("b")
    assert coordinator.refusal(InitProducer("c", 1_000)) is QUOTA_EXCEEDED
    coordinator.init("a")


# Markers


def test_transaction_completes_with_its_last_marker_in_any_order(coordinator: Coordinator) -> None:
    client = coordinator.init()
    coordinator.add(client, P0, P1, P2)
    coordinator.end(client)
    (pending,) = coordinator.shard.pending_markers()
    for partition in (P2, P0):
        coordinator.confirm(pending, [partition])
        coordinator.confirm(pending, [partition])
        assert coordinator.state("a") is State.PREPARE_COMMIT
    assert describe(coordinator, "a").unwritten == (P1,)
    coordinator.confirm(pending, [P1])
    assert coordinator.state("a") is State.COMPLETE_COMMIT
    assert coordinator.shard.pending_markers() == []


def test_load_begins_all_markers_of_a_decision_again(coordinator: Coordinator) -> None:
    client = coordinator.init()
    coordinator.add(client, P0, P1)
    coordinator.end(client, commit=False)
    (pending,) = coordinator.shard.pending_markers()
    coordinator.confirm(pending, [P0])
    coordinator.reload()
    (pending,) = coordinator.shard.pending_markers()
    assert (pending.partitions, pending.is_commit) == ({P0, P1}, False)
    coordinator.confirm(pending, pending.partitions)
    assert coordinator.state("a") is State.COMPLETE_ABORT


def test_late_confirmation_does_not_count_for_the_next_decision(coordinator: Coordinator) -> None:
    client = coordinator.init()
    coordinator.add(client, P0)
    coordinator.end(client, version=1)
    (first,) = coordinator.shard.pending_markers()
    coordinator.confirm(first, [P0])
    coordinator.add(client, P0)
    coordinator.end(client, version=1)
    (second,) = coordinator.shard.pending_markers()
    assert second.producer == first.producer
    coordinator.confirm(first, [P0])
    assert coordinator.state("a") is State.PREPARE_COMMIT


def test_decision_is_parked_until_its_rejected_markers_are_written(
    coordinator: Coordinator,
) -> None:
    client = coordinator.init()
    coordinator.add(client, P0, P1)
    coordinator.end(client, version=1)
    (first,) = coordinator.shard.pending_markers()
    assert coordinator.shard.parked() == 0
    coordinator.shard.park(first, P0)
    coordinator.confirm(first, [P1])
    assert coordinator.shard.parked() == 1
    coordinator.confirm(first, [P0])
    coordinator.shard.park(first, P0)
    assert coordinator.shard.parked() == 0
    coordinator.add(client, P0)
    coordinator.end(client, version=1)
    coordinator.shard.park(first, P0)
    assert coordinator.shard.parked() == 0, "a late rejection of the earlier decision"


def test_decision_without_partitions_completes_by_an_empty_confirmation(
    coordinator: Coordinator,
) -> None:
    """This shard never writes such a record; the log of another implementation may have it."""
    coordinator.init()
    decided = replace(coordinator.transaction("a"), state=State.PREPARE_ABORT)
    coordinator.append([CoordinatorRecord(TransactionLogKey("a"), decided.value())])
    coordinator.write_markers()
    assert coordinator.state("a") is State.COMPLETE_ABORT


# Expiry


def test_idle_ids_expire_seven_days_after_their_last_change(coordinator: Coordinator) -> None:
    coordinator.init("old")
    kept = coordinator.init("kept")
    open_client = coordinator.init("open")
    coordinator.elapse(4 * DAY_MS)
    coordinator.end(kept, commit=False, transactional_id="kept")
    coordinator.add(open_client, P0, transactional_id="open")
    coordinator.ask(PrepareTransaction("open", open_client))
    coordinator.reload()
    coordinator.elapse(3 * DAY_MS + 60_000)
    assert listed(coordinator, ListTransactions()) == ["kept", "open"]
    coordinator.elapse(4 * DAY_MS + 60_000)
    assert listed(coordinator, ListTransactions()) == ["open"]
    assert coordinator.refusal(addition("kept", kept, P0)) is INVALID_PRODUCER_ID_MAPPING
    assert coordinator.refusal(DescribeTransaction("kept")) is UNKNOWN_TRANSACTION


def test_expiry_takes_bounded_steps(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_shard, "EXPIRATIONS_MAX", 2)
    for number in range(5):
        coordinator.init(f"{number}")
    batches = len(coordinator.log)
    coordinator.elapse(8 * DAY_MS)
    assert [len(records) for records in coordinator.log[batches:]] == [2, 2, 1]
    assert len(coordinator.shard) == 0


def test_expired_id_returns_with_another_producer_id(coordinator: Coordinator) -> None:
    old = coordinator.init()
    coordinator.elapse(8 * DAY_MS)
    assert coordinator.init(known=old) == producer(old.producer_id + 1, 0)
    assert coordinator.refusal(addition("a", old, P0)) is PRODUCER_FENCED


def test_nothing_expires_while_the_cluster_time_is_unknown(coordinator: Coordinator) -> None:
    prepare(coordinator, "sink/s/1")
    commit_epoch(coordinator, 7, "sink/s/1")
    coordinator.write_markers()
    known = coordinator.init()
    coordinator.is_dated = False
    coordinator.elapse(400 * DAY_MS)
    assert set(listed(coordinator, ListTransactions())) == {"a", "sink/s/1"}
    assert coordinator.init(known=known).producer_id == known.producer_id
    assert coordinator.ask(DescribeSink("s")) == SinkEpoch("s", 7)


def test_a_use_ahead_of_the_time_counts_as_now_and_holds_back_no_other_id(
    coordinator: Coordinator,
) -> None:
    """A clock 30 days ahead wrote the first ids and the sink."""
    coordinator.wall_ms += 30 * DAY_MS
    prepare(coordinator, "sink/s/1")
    commit_epoch(coordinator, 7, "sink/s/1")
    coordinator.write_markers()
    first = coordinator.init("ahead")
    coordinator.wall_ms -= 30 * DAY_MS
    coordinator.init("right")
    coordinator.elapse(60_000)
    assert coordinator.state("sink/s/1") is State.COMPLETE_COMMIT
    coordinator.elapse(60_000)
    assert listed(coordinator, ListTransactions()) == ["ahead", "right"]
    coordinator.reload()
    coordinator.elapse(7 * DAY_MS - 90_000)
    assert listed(coordinator, ListTransactions()) == ["ahead"]
    assert coordinator.init("ahead", known=first).producer_id == first.producer_id
    coordinator.elapse(8 * DAY_MS)
    assert listed(coordinator, ListTransactions()) == []
    assert coordinator.ask(DescribeSink("s")) == SinkEpoch("s", 7)
    coordinator.elapse(365 * DAY_MS)
    assert coordinator.ask(DescribeSink("s")) == SinkEpoch("s", -1)


def test_a_transaction_without_a_time_is_open_for_no_known_time(coordinator: Coordinator) -> None:
    client = coordinator.init("a")
    coordinator.is_dated = False
    coordinator.add(client, P0, transactional_id="a")
    described = describe(coordinator, "a")
    assert (described.summary.open_ms, described.start_ms, described.last_update_ms) == (0, -1, -1)
    coordinator.is_dated = True
    described = describe(coordinator, "a")
    assert (described.summary.open_ms, described.start_ms) == (0, -1)


# Sink epochs


def prepare(coordinator: Coordinator, *names: str) -> None:
    for name in names:
        client = coordinator.init(name)
        coordinator.add(client, P0, transactional_id=name)
        coordinator.ask(PrepareTransaction(name, client))


def commit_epoch(coordinator: Coordinator, epoch: int, *names: str, sink: str = "s") -> Response:
    return coordinator.ask(CommitSinkEpoch(sink, epoch, names))


def states(coordinator: Coordinator, *names: str) -> list[State]:
    return [coordinator.state(name) for name in names]


def test_sink_epoch_is_one_decision(coordinator: Coordinator) -> None:
    prepare(coordinator, "sink/s/1", "sink/s/2", "sink/s/stray", "sink/other/1", "sink/s")
    ongoing = coordinator.init("sink/s/ongoing")
    coordinator.add(ongoing, P1, transactional_id="sink/s/ongoing")
    batches = len(coordinator.log)
    assert commit_epoch(coordinator, 7, "sink/s/1", "sink/s/2") == SinkEpoch("s", 7)
    assert len(coordinator.log) == batches + 1, "one batch of records"
    assert states(coordinator, "sink/s/1", "sink/s/2") == [State.PREPARE_COMMIT] * 2
    assert states(coordinator, "sink/s/stray", "sink/s/ongoing") == [State.PREPARE_ABORT] * 2
    assert states(coordinator, "sink/other/1", "sink/s") == [State.PREPARED] * 2
    coordinator.elapse(60_000)
    coordinator.write_markers()
    assert coordinator.state("sink/s/1") is State.COMPLETE_COMMIT
    late = EndTransaction("sink/s/ongoing", ongoing, True, 2)
    assert coordinator.refusal(late) is PRODUCER_FENCED


@pytest.mark.parametrize("epoch", [7, 6])
def test_committed_sink_epoch_has_the_same_answer_again(
    coordinator: Coordinator, epoch: int
) -> None:
    prepare(coordinator, "sink/s/1")
    commit_epoch(coordinator, 7, "sink/s/1")
    coordinator.reload()
    batches = len(coordinator.log)
    assert commit_epoch(coordinator, epoch, "sink/s/1") == SinkEpoch("s", 7)
    assert len(coordinator.log) == batches
    assert coordinator.ask(DescribeSink("s")) == SinkEpoch("s", 7)


def test_replayed_sink_epoch_aborts_what_it_prepared_and_nothing_else(
    coordinator: Coordinator,
) -> None:
    prepare(coordinator, "sink/s/1")
    commit_epoch(coordinator, 7, "sink/s/1")
    prepare(coordinator, "sink/s/replay", "sink/s/next")
    assert commit_epoch(coordinator, 7, "sink/s/replay") == SinkEpoch("s", 7)
    assert coordinator.state("sink/s/replay") is State.PREPARE_ABORT
    assert coordinator.state("sink/s/next") is State.PREPARED, "of the next epoch"


@pytest.mark.parametrize(
    ("missing", "entry"), [("sink/s/unknown", UNKNOWN_TRANSACTION), ("sink/s/2", INVALID_TXN_STATE)]
)
def test_sink_epoch_commits_nothing_if_one_transaction_is_not_prepared(
    coordinator: Coordinator, missing: str, entry: ErrorEntry
) -> None:
    prepare(coordinator, "sink/s/1", "sink/s/stray")
    ongoing = coordinator.init("sink/s/2")
    coordinator.add(ongoing, P0, transactional_id="sink/s/2")
    assert coordinator.refusal(CommitSinkEpoch("s", 7, ("sink/s/1", missing))) is entry
    assert states(coordinator, "sink/s/1", "sink/s/stray") == [State.PREPARED] * 2
    assert coordinator.ask(DescribeSink("s")) == SinkEpoch("s", -1)
    assert commit_epoch(coordinator, 7, "sink/s/1", "sink/s/1") == SinkEpoch("s", 7)


@pytest.mark.parametrize(
    ("sink", "name"),
    [("s", "sink/other/1"), ("s", "sink/s"), ("s", "s"), ("s/1", "sink/s/1"), ("", "sink//1")],
)
def test_sink_commits_only_its_own_transactions(
    coordinator: Coordinator, sink: str, name: str
) -> None:
    prepare(coordinator, name)
    assert coordinator.refusal(CommitSinkEpoch(sink, 0, (name,))) is INVALID_TRANSACTIONAL_ID


def test_sink_epoch_is_bounded(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(f"sink/s/{number}" for number in range(1_001))
    assert coordinator.refusal(CommitSinkEpoch("s", 0, many)) is TRANSACTION_TOO_LARGE
    monkeypatch.setattr(transaction_shard, "SINKS_MAX", 1)
    commit_epoch(coordinator, 0, sink="one")
    assert coordinator.refusal(CommitSinkEpoch("two", 0, ())) is QUOTA_EXCEEDED
    commit_epoch(coordinator, 1, sink="one")
    monkeypatch.setattr(sink_epoch, "DECISION_BYTES_MAX", 400)
    names = tuple(f"sink/one/{number}" for number in range(4))
    prepare(coordinator, *names)
    assert coordinator.refusal(CommitSinkEpoch("one", 2, names)) is TRANSACTION_TOO_LARGE
    commit_epoch(coordinator, 2, names[0], sink="one")
    found = states(coordinator, *names)
    assert found[0] is State.PREPARE_COMMIT
    assert sorted(found[1:]) == [State.PREPARE_ABORT, State.PREPARED, State.PREPARED]


def test_sink_epochs_belong_to_the_owner_of_the_first(coordinator: Coordinator) -> None:
    prepare(coordinator, "sink/s/1", "sink/s/2")
    first = CommitSinkEpoch("s", 0, ("sink/s/1",), owner="query")
    assert coordinator.ask(first) == SinkEpoch("s", 0, "query")
    coordinator.reload()
    prepare(coordinator, "sink/s/3")
    for epoch in (0, 1, NO_EPOCH):
        other = CommitSinkEpoch("s", epoch, ("sink/s/3",), owner="another")
        assert coordinator.refusal(other) is SINK_OWNED
    assert coordinator.state("sink/s/3") is State.PREPARED, "nothing is aborted either"
    assert coordinator.ask(DescribeSink("s")) == SinkEpoch("s", 0, "query")


def test_a_sink_commits_once_without_an_epoch(coordinator: Coordinator) -> None:
    prepare(coordinator, "sink/s/1", "sink/s/2", "sink/s/stray")
    once = CommitSinkEpoch("s", NO_EPOCH, ("sink/s/1", "sink/s/2"))
    assert coordinator.refusal(replace(once, transactional_ids=("sink/s/1", "sink/s/no"))) is (
        UNKNOWN_TRANSACTION
    )
    assert coordinator.ask(once) == SinkEpoch("s", NO_EPOCH)
    expected = [State.PREPARE_COMMIT] * 2 + [State.PREPARE_ABORT]
    assert states(coordinator, "sink/s/1", "sink/s/2", "sink/s/stray") == expected
    coordinator.reload()
    batches = len(coordinator.log)
    assert coordinator.ask(once) == SinkEpoch("s", NO_EPOCH), "again"
    coordinator.write_markers()
    assert coordinator.ask(once) == SinkEpoch("s", NO_EPOCH), "again, when it is complete"
    assert len(coordinator.log) == batches + 3, "the ends alone"


def test_a_sink_whose_transactions_are_forgotten_may_be_committed(coordinator: Coordinator) -> None:
    once = CommitSinkEpoch("s", NO_EPOCH, ("sink/s/1", "sink/s/2"))
    prepare(coordinator, "sink/s/1")
    with pytest.raises(LogError, match="Nothing of this sink epoch is committed"):
        coordinator.ask(once)
    prepare(coordinator, "sink/s/2")
    coordinator.ask(once)
    coordinator.write_markers()
    coordinator.elapse(120_000)
    with pytest.raises(LogError, match="The outcome of this sink is unknown") as refused:
        coordinator.ask(once)
    assert refused.value.entry is UNKNOWN_TRANSACTION


def test_a_sink_that_gives_up_aborts_all_that_is_open(coordinator: Coordinator) -> None:
    prepare(coordinator, "sink/s/1", "sink/other/1")
    ongoing = coordinator.init("sink/s/2")
    coordinator.add(ongoing, P0, transactional_id="sink/s/2")
    commit_epoch(coordinator, NO_EPOCH)
    assert states(coordinator, "sink/s/1", "sink/s/2") == [State.PREPARE_ABORT] * 2
    assert coordinator.state("sink/other/1") is State.PREPARED


def test_what_a_sink_has_prepared_ends_by_its_timeout(coordinator: Coordinator) -> None:
    """From the preparation on. Other prepared transactions wait for their end."""
    client = coordinator.init("sink/s/1")
    coordinator.add(client, P0, transactional_id="sink/s/1")
    coordinator.elapse(40_000)
    coordinator.ask(PrepareTransaction("sink/s/1", client))
    prepare(coordinator, "plain")
    coordinator.elapse(40_000)
    assert states(coordinator, "sink/s/1", "plain") == [State.PREPARED] * 2
    coordinator.reload()
    coordinator.elapse(59_999)
    assert coordinator.state("sink/s/1") is State.PREPARED, "anew, after a load"
    coordinator.elapse(1)
    assert states(coordinator, "sink/s/1", "plain") == [State.PREPARE_ABORT, State.PREPARED]
    commit = CommitSinkEpoch("s", 0, ("sink/s/1",))
    assert coordinator.refusal(commit) is INVALID_TXN_STATE
    late = EndTransaction("sink/s/1", client, True, 2)
    assert coordinator.refusal(late) is PRODUCER_FENCED


def test_complete_ids_of_sinks_expire_soon_and_their_epochs_do_not(
    coordinator: Coordinator,
) -> None:
    prepare(coordinator, "sink/s/1", "sink/s/2")
    coordinator.init("sink/s/empty")
    commit_epoch(coordinator, 7, "sink/s/1")
    coordinator.write_markers()
    coordinator.elapse(2 * 60_000)
    assert listed(coordinator, ListTransactions()) == ["sink/s/empty"]
    coordinator.elapse(100 * DAY_MS)
    assert commit_epoch(coordinator, 7, "sink/s/1") == SinkEpoch("s", 7)
    coordinator.elapse(300 * DAY_MS)
    assert coordinator.ask(DescribeSink("s")) == SinkEpoch("s", -1)


def test_transactional_ids_of_a_sink_share_a_shard() -> None:
    assert sink_of("sink/s/1/2") == "s"
    assert shard_key("sink/s/1") == shard_key("sink/s/2") == sink_shard_key("s")
    assert shard_key("sink/t/1") != sink_shard_key("s")
    for plain in ("sink/s", "sink//1", "sink/s/", "other/s/1", ""):
        assert sink_of(plain) is None
        assert shard_key(plain) == plain


# Queries


def test_queries_show_how_long_a_transaction_is_open(coordinator: Coordinator) -> None:
    client = coordinator.init("a")
    coordinator.init("b")
    started_ms = coordinator.wall_ms
    coordinator.add(client, P1, P0)
    coordinator.elapse(5_000)
    found = describe(coordinator, "a")
    assert (found.summary.producer, found.summary.state) == (client, "ongoing")
    assert (found.summary.open_ms, found.start_ms, found.timeout_ms) == (5_000, started_ms, 60_000)
    assert (found.partitions, found.unwritten) == ((P0, P1), ())
    assert describe(coordinator, "b").start_ms == -1
    assert listed(coordinator, ListTransactions(open_ms_min=5_000)) == ["a"]
    assert listed(coordinator, ListTransactions(open_ms_min=5_001)) == []
    assert listed(coordinator, ListTransactions(states=frozenset({"empty"}))) == ["b"]
    ids = frozenset({client.producer_id})
    assert listed(coordinator, ListTransactions(producer_ids=ids)) == ["a"]


def test_prepared_transaction_is_reported_as_overdue_after_a_day(coordinator: Coordinator) -> None:
    prepare(coordinator, "a")
    coordinator.elapse(DAY_MS)
    assert not describe(coordinator, "a").summary.is_overdue
    coordinator.elapse(1)
    assert describe(coordinator, "a").summary.is_overdue
    assert coordinator.state("a") is State.PREPARED


def test_listing_is_bounded(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_shard, "LISTED_MAX", 1)
    coordinator.init("a")
    coordinator.init("b")
    response = coordinator.ask(ListTransactions())
    assert isinstance(response, TransactionListing)
    assert (len(response.transactions), response.is_complete) == (1, False)


# Replay, messages


def test_replay_rejects_records_of_another_topic(coordinator: Coordinator) -> None:
    for key in (GroupMetadataKey("g"), TransactionLogKey("a")):
        record = CoordinatorRecord(key, SinkEpochValue(1, 2))
        with pytest.raises(TypeError, match="__transaction_state"):
            coordinator.shard.replay(record, position=0, producer=None)
    client = producer(1, 2)
    with pytest.raises(TypeError, match="__transaction_state"):
        coordinator.shard.replay_marker(*client, committed=True, position=0)
    coordinator.append([CoordinatorRecord(SinkEpochKey("s"), None)])


@pytest.mark.parametrize(
    "message",
    [
        InitProducer("a", 1, producer(1, 2), True),
        addition("a", producer(1, 2), P0, P1),
        EndTransaction("a", producer(1, 2), True, 2),
        CommitSinkEpoch("s", 1, ("sink/s/1",)),
        ListTransactions(frozenset({"empty"}), frozenset({1}), 5),
    ],
    ids=lambda message: type(message).__name__,
)
def test_requests_travel_between_nodes(message: Request) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Request) == message


@pytest.mark.parametrize(
    "message",
    [
        Failure(40940, "wait"),
        Initialized(producer(1, 2), producer(1, 1)),
        Verified((None, Failure(40940, "wait"))),
        Ended(producer(1, 2)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_responses_travel_between_nodes(message: Response) -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Response)
    assert decoded == message


def test_failure_is_the_error_that_it_was_made_of() -> None:
    error = Failure.of(LogError(CONCURRENT_TRANSACTIONS, "wait")).error()
    assert (error.entry, error.message) == (CONCURRENT_TRANSACTIONS, "wait")


def test_decoded_producer_is_a_named_tuple() -> None:
    sent = msgspec.msgpack.encode(Ended(producer(1, 2)))
    assert isinstance(msgspec.msgpack.decode(sent, type=Ended).producer, Producer)
