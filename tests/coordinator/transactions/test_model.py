"""The transaction coordinator against clients, zombies, lost answers, leaders and reloads.

The rules play clients and partition leaders; the leaders hold the values as a log would. The
invariants are checked on the outcome of each value, and on the records of each decision.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftlog.coordinator.shard.decision import CoordinatorRecord, Decision, Producer
from raftlog.coordinator.shard.records import SinkEpochKey, SinkEpochValue, TransactionLogKey
from raftlog.coordinator.transactions.messages import (
    NO_EPOCH,
    AbortTransaction,
    AddPartitions,
    CommitSinkEpoch,
    Done,
    Ended,
    EndTransaction,
    Failure,
    Initialized,
    InitProducer,
    PendingMarkers,
    PrepareTransaction,
    Request,
    Response,
    SinkEpoch,
    TopicPartition,
    Verified,
    VerifyOrAdd,
)
from raftlog.coordinator.transactions.shard import TransactionShard
from raftlog.coordinator.transactions.transaction import (
    COMPLETE,
    DECIDED,
    EPOCH_MAX,
    OPEN,
    State,
    Transaction,
)
from raftlog.record.errors import CONCURRENT_TRANSACTIONS, LogError
from tests.coordinator.transaction_harness import P0, P1, P2, Coordinator, addition, producer
from tests.examples import examples

IDS = ("a", "b")
SINK = "s"
CLIENTS_MAX = 10
TASKS_MAX = 6
LOST_REQUEST, NOT_APPENDED, LOST_ANSWER, OK = "lost request", "not appended", "lost answer", "ok"
FATES = st.sampled_from([OK, OK, OK, OK, LOST_ANSWER, LOST_ANSWER, LOST_REQUEST, NOT_APPENDED])
INDEX = st.integers(0, 99)
ACTORS = st.tuples(st.sampled_from(IDS), st.sampled_from([0, 0, 0, 0, 1, 2]))
"""A transactional id, and the age of an incarnation: 0 is the newest."""
PARTITIONS = st.sets(st.sampled_from([P0, P1, P2]), min_size=1)
Actor = tuple[str, int]
Owner = tuple[int, int]
"""A client (one incarnation of its transactional id), and the number of its transaction."""


@dataclass(frozen=True)
class Batch:
    """A batch of one value on its way to a leader."""

    producer: Producer
    version: int
    partition: TopicPartition
    value: int
    owner: Owner


@dataclass
class Client:
    """One incarnation of a producer, as it knows itself."""

    number: int
    transactional_id: str
    version: int
    producer: Producer | None = None
    transaction: int = 0
    values: int = 0
    """Acknowledged writes of its transaction."""
    added: set[TopicPartition] = field(default_factory=set)
    """Version 1: partitions that it added to its transaction."""
    must_end: bool | None = None
    """An end without an answer: only the same end may follow."""
    is_prepared: bool = False
    has_failed: bool = False
    """Only an abort may follow, or another initialization."""

    @property
    def owner(self) -> Owner:
        return self.number, self.transaction

    def begin_next(self) -> None:
        self.transaction += 1
        self.values, self.must_end = 0, None
        self.added = set()
        self.is_prepared = self.has_failed = False


@dataclass
class Leader:
    """The transactional side of one partition's log."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[tuple[int, Owner]]] = field(default_factory=lambda: defaultdict(list))
    markers: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Count of markers by producer: the guard of KIP-890."""

    def is_known(self, client: Producer) -> bool:
        """Whether a batch needs no verification."""
        return bool(self.open[client.producer_id]) and self.epoch(client) == client.producer_epoch

    def epoch(self, client: Producer) -> int:
        return self.epochs.get(client.producer_id, -1)

    def append(self, client: Producer, value: int, owner: Owner) -> bool:
        if client.producer_epoch < self.epoch(client):
            return False
        self.epochs[client.producer_id] = client.producer_epoch
        self.open[client.producer_id].append((value, owner))
        return True

    def write_marker(self, marker: Producer, version: int) -> list[tuple[int, Owner]]:
        """The values of the ended transaction; none for a repeated or late marker."""
        last = self.epoch(marker)
        is_open = bool(self.open[marker.producer_id])
        if marker.producer_epoch < last:
            return []
        if version == 2 and is_open and marker.producer_epoch == last:
            return []
        self.epochs[marker.producer_id] = marker.producer_epoch
        self.markers[marker.producer_id] += 1
        return self.open.pop(marker.producer_id, [])


class TransactionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.clients: list[Client] = []
        self.leaders = {partition: Leader() for partition in (P0, P1, P2)}
        self.values = 0
        self.outcomes: dict[int, bool] = {}
        self.owners: dict[int, Owner] = {}
        self.acked: dict[Owner, bool] = {}
        self.ended_together: dict[tuple[Producer, int, bool], set[Owner]] = defaultdict(set)
        """Owners of the values that ended by one marker; version 1 uses markers again."""
        self.appended: set[int] = set()
        self.verified: list[tuple[Batch, int]] = []
        """Batches with the answer of the coordinator, and the guard of their question."""
        self.sent: list[tuple[Request, Batch | None]] = []
        """Requests that the network may deliver again, or late for the first time. Version 1 has no
        defence against late additions and ends."""
        self.fenced: set[int] = set()
        """Clients older than an initialization of their transactional id."""
        self.sent_markers: list[tuple[TransactionShard, PendingMarkers, TopicPartition]] = []
        self.sink_epoch = -1
        self.sink_owners: dict[str, Owner] = {}
        self.replaced: set[Owner] = set()
        """Transactions of the sink that were prepared, and not part of the committed epoch."""
        self.checked = 0
        self.shadow: dict[str, Transaction] = {}
        self.producer_ids: set[int] = set()

    @initialize(left=st.integers(1, 5))
    def begin_near_the_last_epoch(self, left: int) -> None:
        worn = Transaction(producer(7, EPOCH_MAX - left), State.EMPTY, 60_000, 0)
        self.coordinator.append([CoordinatorRecord(TransactionLogKey("b"), worn.value())])

    # The network

    def send(
        self, request: Request, fate: str, batch: Batch | None = None, *, may_repeat: bool = True
    ) -> Response | LogError | None:
        """The outcome as the client sees it; None: unknown. `batch` waits for a verification."""
        if may_repeat:
            self.sent.append((request, batch))
        if fate == LOST_REQUEST:
            return None
        outcome: Response | LogError
        try:
            decision = self.coordinator.decide(request)
        except LogError as error:
            outcome = error
        else:
            if fate == NOT_APPENDED and decision.records:
                self.coordinator.reload()
                return None
            self.check_identity(request, decision)
            self.coordinator.append(decision.records)
            outcome = decision.response
        self.check_records()
        if isinstance(outcome, Failure):
            outcome = outcome.error()
        return None if fate == LOST_ANSWER else outcome

    def check_identity(self, request: Request, decision: Decision[Response]) -> None:
        """Only the living producer extends, prepares or ends a transaction."""
        match request:
            case VerifyOrAdd():
                (verification,) = request.verifications
                if decision.response != Verified((None,)):
                    return
                before = self.shadow[verification.transactional_id]
                assert verification.producer == before.client
                if not verification.is_addition:
                    assert before.state is State.ONGOING
                    assert before.partitions.issuperset(verification.partitions)
            case AddPartitions() | PrepareTransaction():
                assert request.producer == self.shadow[request.transactional_id].client
            case EndTransaction():
                before = self.shadow[request.transactional_id]
                assert request.producer == before.client or not decision.records
            case InitProducer():
                if request.known is not None and decision.records:
                    before = self.shadow[request.transactional_id]
                    assert request.known == before.client or before.state is not State.ONGOING

    @rule(index=INDEX)
    @precondition(lambda self: self.sent)
    def deliver_again(self, index: int) -> None:
        """A request comes late, or twice; the leader appends a batch with its verification."""
        request, batch = self.sent[index % len(self.sent)]
        outcome = self.send(request, OK, may_repeat=False)
        if outcome == Verified((None,)) and batch is not None and batch.version == 2:
            self.append_batch(batch)

    def client(self, actor: Actor) -> Client:
        """An incarnation of a transactional id; a new one if there is none."""
        transactional_id, age = actor
        mine = [one for one in self.clients if one.transactional_id == transactional_id]
        version = 1 if transactional_id == IDS[0] else 2
        return mine[-1 - age % len(mine)] if mine else self.new_client(transactional_id, version)

    def number_of(self, *, tasks: bool) -> int:
        return sum(one.transactional_id.startswith("sink/") == tasks for one in self.clients)

    # Clients

    @rule(transactional_id=st.sampled_from(IDS), version=st.sampled_from([1, 1, 2]), fate=FATES)
    @precondition(lambda self: self.number_of(tasks=False) < CLIENTS_MAX)
    def start(self, transactional_id: str, version: int, fate: str) -> None:
        self.initialize_client(self.new_client(transactional_id, version), fate, keep=False)

    @rule(actor=ACTORS, partition=st.sampled_from([P0, P1, P2]), commit=st.booleans(), fate=FATES)
    @precondition(lambda self: self.number_of(tasks=False) < CLIENTS_MAX)
    def recover(
        self,
        actor: Actor,
        partition: TopicPartition,
        commit: bool,
        fate: str,
    ) -> None:
        """A client prepares and dies; the next incarnation keeps the transaction, and ends it."""
        former = self.client(actor)
        self.write_value(former, partition, OK)
        self.prepare_transaction(former, fate)
        client = self.new_client(actor[0], version=2)
        self.initialize_client(client, fate, keep=True)
        self.initialize_client(client, OK, keep=True)
        if client.is_prepared:
            self.end_transaction(client, fate, commit=commit)

    def new_client(self, transactional_id: str, version: int) -> Client:
        self.clients.append(Client(len(self.clients), transactional_id, version))
        return self.clients[-1]

    @rule(actor=ACTORS, fate=FATES, keep=st.booleans())
    def init(self, actor: Actor, fate: str, *, keep: bool) -> None:
        self.initialize_client(self.client(actor), fate, keep=keep)

    def initialize_client(self, client: Client, fate: str, *, keep: bool) -> None:
        keep = keep and client.version == 2
        request = InitProducer(client.transactional_id, 60_000, client.producer, keep)
        records = len(self.coordinator.log)
        outcome = self.send(request, fate, may_repeat=client.producer is not None)
        if isinstance(outcome, Initialized):
            assert client.number not in self.fenced or request.known is None
            client.producer = outcome.producer
            client.begin_next()
            if outcome.prepared is not None:
                client.is_prepared = True
                self.adopt(client, outcome.prepared)
        elif client.producer is not None:
            client.has_failed = True
        if request.known is None and len(self.coordinator.log) > records:
            mine = [one for one in self.clients if one.transactional_id == client.transactional_id]
            self.fenced.update(one.number for one in mine)
            self.fenced.discard(client.number)

    def adopt(self, client: Client, prepared: Producer) -> None:
        """The client took over a prepared transaction, with its values."""
        former = {
            owner
            for leader in self.leaders.values()
            for _, owner in leader.open[prepared.producer_id]
        }
        assert len(former) <= 1, "a prepared transaction of two owners"
        for owner in former:
            for leader in self.leaders.values():
                leader.open[prepared.producer_id] = [
                    (value, client.owner) for value, _ in leader.open[prepared.producer_id]
                ]
            for value, value_owner in self.owners.items():
                if value_owner == owner:
                    self.owners[value] = client.owner
                    client.values += 1
            if self.sink_owners.get(client.transactional_id) == owner:
                self.sink_owners[client.transactional_id] = client.owner
        client.values = max(client.values, 1)

    @rule(
        actor=ACTORS,
        partition=st.sampled_from([P0, P1, P2]),
        fate=FATES,
        is_late=st.sampled_from([False, False, False, True]),
    )
    def write(self, actor: Actor, partition: TopicPartition, fate: str, *, is_late: bool) -> None:
        self.write_value(self.client(actor), partition, fate, is_late=is_late)

    def write_value(
        self, client: Client, partition: TopicPartition, fate: str, *, is_late: bool = False
    ) -> None:
        if client.producer is None or client.must_end is not None or client.has_failed:
            return
        if client.is_prepared:
            return
        leader = self.leaders[partition]
        self.values += 1
        self.owners[self.values] = client.owner
        batch = Batch(client.producer, client.version, partition, self.values, client.owner)
        if client.version == 1 and partition not in client.added:
            adding = AddPartitions(client.transactional_id, client.producer, (partition,))
            outcome = self.send(adding, fate, may_repeat=False)
            if not isinstance(outcome, Done):
                self.give_up(client, outcome)
                return
            client.added.add(partition)
        if not leader.is_known(client.producer):
            question = addition(
                client.transactional_id,
                client.producer,
                partition,
                is_addition=client.version == 2,
            )
            outcome = self.send(question, fate, batch)
            if not isinstance(outcome, Verified) or outcome.outcomes != (None,):
                refusal = outcome.outcomes[0] if isinstance(outcome, Verified) else None
                self.give_up(client, refusal.error() if refusal is not None else outcome)
                return
        if is_late:
            self.verified.append((batch, leader.markers[client.producer.producer_id]))
            client.has_failed = True
        elif self.append_batch(batch):
            client.values += 1
        else:
            client.has_failed = True

    @staticmethod
    def give_up(client: Client, outcome: object) -> None:
        """The coordinator did not confirm a write: after a retriable error try again, or abort."""
        is_concurrent = isinstance(outcome, LogError) and outcome.entry is CONCURRENT_TRANSACTIONS
        client.has_failed = outcome is not None and not is_concurrent

    @rule(index=INDEX)
    @precondition(lambda self: self.verified)
    def append_late(self, index: int) -> None:
        """The leader appends, if no marker came since its question."""
        batch, guard = self.verified.pop(index % len(self.verified))
        if self.leaders[batch.partition].markers[batch.producer.producer_id] == guard:
            self.append_batch(batch)

    def append_batch(self, batch: Batch) -> bool:
        if batch.value in self.appended:
            return True
        leader = self.leaders[batch.partition]
        if not leader.append(batch.producer, batch.value, self.owners[batch.value]):
            return False
        self.appended.add(batch.value)
        return True

    @rule(actor=ACTORS, commit=st.booleans(), fate=FATES)
    def end(self, actor: Actor, commit: bool, fate: str) -> None:
        self.end_transaction(self.client(actor), fate, commit=commit)

    @rule(
        actor=ACTORS,
        partitions=PARTITIONS,
        last=st.sampled_from(["commit", "commit", "abort", "prepare", "commit too late"]),
        fate=FATES,
    )
    def transact(self, actor: Actor, partitions: set[TopicPartition], last: str, fate: str) -> None:
        """A whole transaction, by a client without other requests in flight."""
        client = self.client(actor)
        self.write_markers()
        if client.producer is None:
            self.initialize_client(client, OK, keep=False)
            self.write_markers()
        for partition in sorted(partitions):
            self.write_value(client, partition, OK)
        if last == "commit too late":
            self.elapse(61_000)
            self.write_markers()
        if last == "prepare":
            self.prepare_transaction(client, fate)
        else:
            self.end_transaction(client, fate, commit=last.startswith("commit"))

    def end_transaction(self, client: Client, fate: str, *, commit: bool) -> None:
        if client.producer is None:
            return
        if client.must_end is not None:
            commit = client.must_end
        elif client.has_failed or not client.values:
            commit = False
        request = EndTransaction(client.transactional_id, client.producer, commit, client.version)
        outcome = self.send(request, fate, may_repeat=client.version == 2)
        if isinstance(outcome, Ended):
            assert client.number not in self.fenced, "a fenced producer goes on"
            assert self.acked.setdefault(client.owner, commit) == commit
            client.producer = outcome.producer
            client.begin_next()
        elif isinstance(outcome, LogError) and outcome.entry is not CONCURRENT_TRANSACTIONS:
            client.has_failed = True
        else:
            client.must_end = commit

    @rule(actor=ACTORS, fate=FATES)
    def prepare(self, actor: Actor, fate: str) -> None:
        self.prepare_transaction(self.client(actor), fate)

    def prepare_transaction(self, client: Client, fate: str) -> None:
        is_able = client.values and not client.has_failed and client.must_end is None
        if client.producer is None or not is_able or client.version == 1:
            return
        request = PrepareTransaction(client.transactional_id, client.producer)
        outcome = self.send(request, fate)
        if isinstance(outcome, Done):
            client.is_prepared = True
        else:
            client.has_failed = True

    @rule(transactional_id=st.sampled_from(IDS))
    def abort_by_operator(self, transactional_id: str) -> None:
        self.send(AbortTransaction(transactional_id), OK, may_repeat=False)

    @rule(duration_ms=st.sampled_from([1, 5_000, 61_000]))
    def elapse(self, duration_ms: int) -> None:
        self.coordinator.elapse(duration_ms)
        self.check_records()

    # Sinks

    @rule(partitions=PARTITIONS, fate=FATES)
    @precondition(lambda self: self.number_of(tasks=True) < TASKS_MAX)
    def run_task(self, partitions: set[TopicPartition], fate: str) -> None:
        """A task attempt writes in its own transaction, and prepares it."""
        client = self.new_client(f"sink/{SINK}/{len(self.clients)}", version=2)
        self.initialize_client(client, OK, keep=False)
        for partition in sorted(partitions):
            self.write_value(client, partition, OK)
        self.sink_owners[client.transactional_id] = client.owner
        self.prepare_transaction(client, fate)

    @rule(step=st.integers(0, 2), chosen=st.sets(INDEX, max_size=3), fate=FATES)
    def commit_sink_epoch(self, step: int, chosen: set[int], fate: str) -> None:
        names = sorted(self.sink_owners)
        named = tuple(sorted({names[index % len(names)] for index in chosen})) if names else ()
        epoch = self.sink_epoch + step
        if epoch < 0:
            return
        before = dict(self.coordinator.shard._transactions)
        states = {name: before[name].state if name in before else None for name in named}
        is_possible = all(state is State.PREPARED for state in states.values())
        records = len(self.coordinator.log)
        outcome = self.send(CommitSinkEpoch(SINK, epoch, named), fate, may_repeat=False)
        has_decided = len(self.coordinator.log) > records
        if step == 0:
            if isinstance(outcome, SinkEpoch):
                open_ids = self.coordinator.shard._open_of_sink.get(SINK, {})
                assert not open_ids.keys() & set(named), "a replayed epoch left a transaction open"
            for name, state in states.items():
                if state in OPEN and has_decided:
                    self.replaced.add(self.sink_owners[name])
        elif has_decided:
            assert is_possible, f"a sink epoch of {states} was committed"
            self.sink_epoch = epoch
            for name, owner in self.sink_owners.items():
                if name in named:
                    assert self.acked.setdefault(owner, True)
                elif name in before and before[name].state in OPEN:
                    self.replaced.add(owner)
        if isinstance(outcome, SinkEpoch):
            assert outcome.epoch == self.sink_epoch == max(epoch, self.sink_epoch)

    @rule(chosen=st.sets(INDEX, max_size=3), fate=FATES)
    def commit_sink_once(self, chosen: set[int], fate: str) -> None:
        names = sorted(self.sink_owners)
        named = tuple(sorted({names[index % len(names)] for index in chosen})) if names else ()
        before = dict(self.coordinator.shard._transactions)
        records = len(self.coordinator.log)
        self.send(CommitSinkEpoch(SINK, NO_EPOCH, named), fate, may_repeat=False)
        if len(self.coordinator.log) == records:
            return
        for name in named:
            committed = {State.PREPARED, State.PREPARE_COMMIT, State.COMPLETE_COMMIT}
            assert name in before and before[name].state in committed
            assert self.acked.setdefault(self.sink_owners[name], True)
        for name, owner in self.sink_owners.items():
            if name not in named and name in before and before[name].state in OPEN:
                self.replaced.add(owner)

    # Markers

    @rule(index=INDEX, is_confirmed=st.sampled_from([True, True, False]))
    @precondition(lambda self: self.coordinator.shard.pending_markers())
    def write_marker(self, index: int, *, is_confirmed: bool) -> None:
        self.write_one_marker(index, is_confirmed=is_confirmed)

    def write_one_marker(self, index: int, *, is_confirmed: bool) -> None:
        pending = self.coordinator.shard.pending_markers()
        chosen = pending[index % len(pending)]
        places = sorted(chosen.partitions)
        partition = places[index % len(places)]
        self.sent_markers.append((self.coordinator.shard, chosen, partition))
        self.append_marker(chosen, partition)
        if is_confirmed:
            self.coordinator.confirm(chosen, [partition])
            self.check_records()

    @rule()
    def write_markers(self) -> None:
        """All pending markers."""
        for _ in range(1_000):
            if not self.coordinator.shard.pending_markers():
                return
            self.write_one_marker(0, is_confirmed=True)
        raise AssertionError("markers without end")

    @rule(index=INDEX)
    @precondition(lambda self: self.sent_markers)
    def deliver_marker(self, index: int) -> None:
        """A late repetition of a marker and its answer; version 1 has no defence against it."""
        shard, marker, partition = self.sent_markers[index % len(self.sent_markers)]
        if marker.version == 2:
            self.append_marker(marker, partition)
        if shard is self.coordinator.shard:
            self.coordinator.confirm(marker, [partition])
            self.check_records()

    def append_marker(self, marker: PendingMarkers, partition: TopicPartition) -> None:
        ended = self.ended_together[marker.producer, marker.version, marker.is_commit]
        for value, owner in self.leaders[partition].write_marker(marker.producer, marker.version):
            assert value not in self.outcomes, "a value with two outcomes"
            self.outcomes[value] = marker.is_commit
            ended.add(owner)
            is_acked = self.acked.get(owner)
            assert is_acked in {None, marker.is_commit}, f"{owner} was acknowledged otherwise"
            assert not (owner in self.replaced and marker.is_commit), "a stray was committed"
        assert len({number for number, _ in ended}) <= 1, "one end for two incarnations"
        if marker.version == 2:
            contrary = self.ended_together[marker.producer, 2, not marker.is_commit]
            assert len(ended) <= 1, "one end for two transactions"
            assert not (ended and contrary), "a transaction committed and aborted"

    # Reloads

    @rule()
    def reload(self) -> None:
        live, fresh = self.coordinator.shard, self.coordinator.rebuilt()
        for name in ("_transactions", "_sinks", "_open_of_sink"):
            assert getattr(fresh, name) == getattr(live, name)
        for name in ("_idle_ids", "_idle_sink_ids", "_idle_sinks"):
            assert list(getattr(fresh, name).items()) == list(getattr(live, name).items())
        resumed = {one[2:5]: one.partitions for one in fresh.pending_markers()}
        left = {one[2:5]: one.partitions for one in live.pending_markers()}
        assert resumed.keys() == left.keys()
        assert all(left[key] <= resumed[key] for key in left)
        self.coordinator.shard = fresh

    # Checks

    def check_records(self) -> None:
        """Each new record against the one before it."""
        for batch in self.coordinator.log[self.checked :]:
            for key, value in batch:
                if isinstance(key, SinkEpochKey):
                    assert isinstance(value, SinkEpochValue)
                    continue
                assert isinstance(key, TransactionLogKey)
                if value is None:
                    gone = self.shadow.pop(key.transactional_id)
                    assert gone.state in IDLE
                    continue
                after = Transaction.of(value)
                before = self.shadow.get(key.transactional_id)
                self.shadow[key.transactional_id] = after
                if before is not None:
                    self.check_transition(before, after)
                self.producer_ids.add(after.client.producer_id)
        self.checked = len(self.coordinator.log)

    def check_transition(self, before: Transaction, after: Transaction) -> None:
        assert (before.state, after.state) in TRANSITIONS, f"{before.state} to {after.state}"
        if before.client.producer_id == after.client.producer_id:
            assert after.client.producer_epoch >= before.client.producer_epoch
        else:
            assert after.client.producer_epoch == 0
            assert after.client.producer_id not in self.producer_ids
        assert after.client.producer_epoch <= EPOCH_MAX + 1
        if before.state in OPEN and after.state not in DECIDED:
            assert before.partitions <= after.partitions
            assert after.producer == before.producer, "an open transaction changed its producer"
        if after.state in DECIDED:
            assert after.partitions == before.partitions, "partitions changed by the decision"
            assert after.producer.producer_id == before.producer.producer_id
            is_bumped = after.producer.producer_epoch == before.producer.producer_epoch + 1
            assert is_bumped or after.version == 1, "a marker of version 2 needs the next epoch"
        if after.state in IDLE:
            assert not after.partitions

    @invariant()
    def open_transactions_have_a_timer_but_prepared_ones_of_no_sink(self) -> None:
        shard = self.coordinator.shard
        for transactional_id, present in shard._transactions.items():
            has_timer = shard.timers.deadline_ms(transactional_id) is not None
            states = OPEN if transactional_id.startswith("sink/") else {State.ONGOING}
            assert has_timer == (present.state in states)

    def teardown(self) -> None:
        """All transactions end, and every value has the outcome of its transaction."""
        self.coordinator.reload()
        self.write_markers()
        for transactional_id, present in list(self.coordinator.shard._transactions.items()):
            if present.state is State.PREPARED:
                self.send(AbortTransaction(transactional_id), OK, may_repeat=False)
        self.elapse(60_001)
        self.write_markers()
        states = {present.state for present in self.coordinator.shard._transactions.values()}
        assert states <= IDLE
        by_owner: dict[Owner, set[bool]] = defaultdict(set)
        for leader in self.leaders.values():
            assert not any(leader.open.values()), "a hanging transaction"
        for value, outcome in self.outcomes.items():
            by_owner[self.owners[value]].add(outcome)
        for owner, outcomes in by_owner.items():
            assert len(outcomes) == 1, f"{owner} is committed in part"
            if owner in self.acked:
                assert outcomes == {self.acked[owner]}
        self.reload()


IDLE = {*COMPLETE, State.EMPTY}
TRANSITIONS = {
    *((idle, after) for idle in IDLE for after in (State.EMPTY, State.ONGOING)),
    *((idle, State.COMPLETE_ABORT) for idle in IDLE),
    *((before, after) for before in OPEN for after in DECIDED),
    (State.ONGOING, State.ONGOING),
    (State.ONGOING, State.PREPARED),
    (State.PREPARED, State.PREPARED),
    (State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
    (State.PREPARE_ABORT, State.COMPLETE_ABORT),
}

TestTransactionModel = TransactionModel.TestCase
TestTransactionModel.settings = settings(
    max_examples=examples(150), stateful_step_count=60, deadline=None
)
