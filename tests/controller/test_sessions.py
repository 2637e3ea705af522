"""The controller's table of sessions, by examples and against its rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.controller.messages import HEARTBEAT_S
from raftlog.controller.sessions import (
    DEAD_BROKERS_MAX,
    Action,
    DeadBrokers,
    Decision,
    Sessions,
)
from raftlog.metadata.apply.apply import apply
from raftlog.metadata.commands import (
    AlterClusterSettings,
    FenceBroker,
    RegisterBroker,
    UnfenceBroker,
    UnregisterBroker,
)
from raftlog.metadata.configs.broker import (
    SESSION_TIMEOUT,
    SESSION_TIMEOUT_S_DEFAULT,
    lease_bound_change,
)
from raftlog.metadata.image import MetadataImage
from raftlog.record.types import BrokerEpoch, BrokerId
from tests.examples import examples

TIMEOUT_S = SESSION_TIMEOUT_S_DEFAULT
TICK_S = 0.125


NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


@dataclass
class Table:
    """A table of sessions and its image, at a time that only moves on."""

    brokers: int = 2
    now: float = 100.0
    image: MetadataImage = field(default_factory=MetadataImage)

    def __post_init__(self) -> None:
        for number in range(1, self.brokers + 1):
            self.start(number)
            self.commit(UnfenceBroker, number)
        self.begin_term()

    def begin_term(self, *, unapplied: int = 0) -> None:
        first_index = self.image.applied_index + unapplied
        self.sessions = Sessions(self.image, self.now, first_index=first_index)

    def alter(self, values: dict[str, str], removals: tuple[str, ...] = ()) -> None:
        command = AlterClusterSettings(values=values, removals=removals)
        assert apply(self.image, self.image.applied_index + 1, command).refusal is None

    def set_timeout(self, seconds: float) -> None:
        """The operator changes the session timeout."""
        self.alter({SESSION_TIMEOUT: str(round(seconds * 1000))})

    def commit_bound(self, seconds: float) -> None:
        """The proposal of a lease bound is applied, and the controller knows."""
        self.alter(*lease_bound_change(seconds))
        self.sessions.lease_bound_applied(self.image, self.now)

    def bound_change(self) -> float | None:
        return self.sessions.due_lease_bound(self.image, self.now)

    def epoch(self, number: int) -> BrokerEpoch:
        return self.image.brokers[BrokerId(number)].broker_epoch

    def start(self, number: int) -> None:
        index = self.image.applied_index + 1
        registration = RegisterBroker(
            broker_id=BrokerId(number),
            directory_id=f"directory of {number}",
            incarnation=f"start at {index}",
            host="localhost",
            port=8082,
            software_version="0.1.0",
        )
        assert apply(self.image, index, registration).refusal is None

    def commit(
        self, kind: type[FenceBroker | UnfenceBroker | UnregisterBroker], number: int
    ) -> None:
        command = kind(broker_id=BrokerId(number), broker_epoch=self.epoch(number))
        assert apply(self.image, self.image.applied_index + 1, command).refusal is None

    def heard(
        self,
        number: int,
        *,
        applied_index: int | None = None,
        stopping: bool = False,
        time_ms: int | None = None,
    ) -> None:
        index = self.image.applied_index if applied_index is None else applied_index
        self.sessions.heartbeat_received(
            BrokerId(number),
            self.epoch(number),
            applied_index=index,
            stopping=stopping,
            time_ms=time_ms,
            image=self.image,
            now=self.now,
        )

    def lost(self, number: int, epoch: int | None = None) -> None:
        broker_epoch = self.epoch(number) if epoch is None else BrokerEpoch(epoch)
        self.sessions.proven_dead(BrokerId(number), broker_epoch, self.image, self.now)

    def passes(self, seconds: float, *heard: int) -> None:
        """Time passes, and these brokers are heard often enough."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + TICK_S)
            for number in heard:
                self.heard(number)
            self.due()

    def due(self) -> dict[int, Action]:
        decisions = self.sessions.due(self.image, self.now)
        assert all(each.broker_epoch == self.epoch(each.broker_id) for each in decisions)
        return {each.broker_id: each.action for each in decisions}

    def decision(self, action: Action, number: int) -> Decision:
        return Decision(action, BrokerId(number), self.epoch(number))

    def fence(self, number: int) -> None:
        """Carry out the due fencing."""
        assert self.due()[number] is Action.FENCE
        self.commit(FenceBroker, number)
        self.sessions.fenced(self.decision(Action.FENCE, number), self.image.applied_index)


def test_silent_broker_is_fenced_after_the_timeout_and_the_others_are_not() -> None:
    table = Table()
    table.passes(5.0, 1, 2)
    assert table.due() == {}
    table.passes(TIMEOUT_S - TICK_S, 1)
    assert table.due() == {}
    table.passes(TICK_S, 1)
    assert table.due() == {2: Action.FENCE}


def test_fencing_is_due_until_it_is_carried_out_and_then_no_more() -> None:
    table = Table()
    table.passes(TIMEOUT_S, 1)
    table.passes(1.0, 1)
    table.fence(2)
    table.passes(5.0, 1)
    assert table.due() == {}


def test_fencing_that_was_begun_is_finished_although_the_broker_is_back() -> None:
    table = Table()
    table.passes(TIMEOUT_S, 1)
    table.heard(2)
    assert table.sessions.is_fencing(BrokerId(2))
    table.fence(2)
    assert not table.sessions.is_fencing(BrokerId(2))
    # The broker has not applied its fencing yet.
    assert table.due() == {}
    table.heard(2)
    assert table.due() == {2: Action.UNFENCE}


def test_broker_heard_while_it_was_fenced_is_due_again_when_it_is_silent_again() -> None:
    table = Table()
    table.passes(TIMEOUT_S, 1)
    table.heard(2, applied_index=0)
    table.fence(2)
    table.passes(TIMEOUT_S - TICK_S, 1)
    assert table.due() == {}
    table.passes(TICK_S, 1)
    assert table.due() == {2: Action.FENCE}


def test_no_broker_is_fenced_for_silence_in_the_grace() -> None:
    table = Table()
    table.passes(TIMEOUT_S - TICK_S)
    assert table.due() == {}
    table.passes(TICK_S)
    assert table.due() == {1: Action.FENCE, 2: Action.FENCE}


def test_proven_dead_broker_is_fenced_at_once_in_the_grace_too() -> None:
    table = Table()
    table.lost(2)
    assert table.due() == {2: Action.FENCE}


def test_proof_of_death_of_an_older_incarnation_does_not_count() -> None:
    table = Table()
    dead = table.epoch(2)
    table.start(2)
    table.lost(2, dead)
    assert table.due() == {}


def test_broker_heard_after_its_proof_of_death_is_alive() -> None:
    table = Table()
    table.lost(2)
    table.heard(2)
    assert table.due() == {}


def test_new_incarnation_has_a_whole_session_to_be_heard() -> None:
    table = Table()
    table.passes(TIMEOUT_S - TICK_S, 1)
    table.start(2)
    table.passes(TIMEOUT_S - TICK_S, 1)
    assert table.due() == {}
    table.passes(2 * TICK_S, 1)
    assert table.due() == {2: Action.FENCE}


def test_outcome_of_a_fencing_does_not_touch_the_next_incarnation() -> None:
    table = Table()
    table.lost(2)
    table.due()
    decision = table.decision(Action.FENCE, 2)
    table.start(2)
    table.due()
    table.sessions.fenced(decision, table.image.applied_index + 100)
    table.heard(2)
    assert table.due() == {2: Action.UNFENCE}


def test_started_broker_is_unfenced_once_it_has_applied_its_registration() -> None:
    table = Table()
    table.start(2)
    assert table.due() == {}
    table.heard(2, applied_index=table.epoch(2) - 1)
    assert table.due() == {}
    table.heard(2, applied_index=table.epoch(2))
    assert table.due() == {2: Action.UNFENCE}


def test_fenced_broker_of_an_earlier_term_must_have_applied_all_of_its_log() -> None:
    table = Table()
    table.commit(FenceBroker, 2)
    table.start(1)
    table.begin_term()
    table.heard(2, applied_index=table.image.applied_index - 1)
    assert table.due() == {}
    table.heard(2)
    assert table.due() == {2: Action.UNFENCE}


def test_broker_whose_fencing_was_proposed_in_an_earlier_term_must_have_applied_it() -> None:
    """The same controller, active again: its earlier proposal is committed only now."""
    table = Table()
    begun = table.image.applied_index
    table.begin_term(unapplied=1)
    table.commit(FenceBroker, 2)
    table.heard(2, applied_index=begun)
    assert table.due() == {}
    table.heard(2)
    assert table.due() == {2: Action.UNFENCE}


def test_fenced_broker_of_an_earlier_term_is_relieved_after_the_grace() -> None:
    """The controller before may have died between the fencing and the moves of leaderships."""
    table = Table()
    table.commit(FenceBroker, 2)
    table.begin_term()
    table.passes(TIMEOUT_S, 1)
    assert table.due() == {2: Action.FENCE}


def test_stopping_broker_is_drained_and_not_unfenced() -> None:
    table = Table()
    table.start(2)
    table.heard(2, stopping=True)
    assert table.due() == {2: Action.DRAIN}
    assert not table.sessions.is_drained(BrokerId(2))
    table.sessions.drained(table.decision(Action.DRAIN, 2))
    assert table.sessions.is_drained(BrokerId(2))
    table.heard(2)
    assert table.due() == {}


def test_unregistered_broker_is_forgotten() -> None:
    table = Table()
    table.commit(FenceBroker, 2)
    table.commit(UnregisterBroker, 2)
    table.passes(TIMEOUT_S, 1)
    assert table.due() == {}


def test_time_in_which_the_controller_was_stopped_does_not_count() -> None:
    table = Table()
    table.passes(5.0, 1, 2)
    table.now += 60.0
    assert table.due() == {}
    table.passes(TIMEOUT_S - TICK_S)
    assert table.due() == {}
    table.passes(2 * TICK_S)
    assert table.due() == {1: Action.FENCE, 2: Action.FENCE}


def test_next_deadline_is_when_a_broker_is_due_or_a_stall_would_show() -> None:
    table = Table()
    table.passes(TIMEOUT_S - TICK_S)
    assert table.sessions.next_deadline() == 100.0 + TIMEOUT_S
    table.passes(TICK_S)
    assert table.sessions.next_deadline() == table.now + HEARTBEAT_S


def test_decisions_come_by_action_then_by_id() -> None:
    table = Table(brokers=6)
    for number in (2, 1):
        table.start(number)
    for number in (5, 6, 2, 1):
        table.heard(number, stopping=number in {5, 6})
    for number in (4, 3):
        table.lost(number)
    assert list(table.due().items()) == [
        (3, Action.FENCE),
        (4, Action.FENCE),
        (5, Action.DRAIN),
        (6, Action.DRAIN),
        (1, Action.UNFENCE),
        (2, Action.UNFENCE),
    ]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait"] * 6 + ["heard"] * 3 + ["lost", "start", "carry out", "carry out", "begin_term"]
        ),
        st.integers(1, 3),
    ),
    max_size=120,
)


@settings(max_examples=examples(300))
@given(STEPS)
def test_brokers_are_fenced_exactly_if_dead_or_silent_for_the_timeout(
    steps: list[tuple[str, int]],
) -> None:
    """A model of each broker: the beginning of its silence in this term, and whether it is dead."""
    table = Table(brokers=3)
    grace_end = table.now + TIMEOUT_S
    silent_since = dict.fromkeys((1, 2, 3), table.now)
    dead: set[int] = set()
    pending: set[int] = set()
    """Fencing is decided, and not carried out."""
    spoke: set[int] = set()
    """Heard since the decision."""
    settled: set[int] = set()
    """Carried out, and not heard since."""
    for step, number in steps:
        if step == "wait":
            table.now += TICK_S * number
        elif step == "heard":
            table.heard(number)
            silent_since[number] = table.now
            dead.discard(number)
            settled.discard(number)
            spoke.add(number)
        elif step == "lost":
            table.lost(number)
            dead.add(number)
        elif step == "start":
            table.start(number)
            silent_since[number] = table.now
            for group in (dead, pending, settled):
                group.discard(number)
        elif step == "begin_term":
            table.begin_term()
            grace_end = table.now + TIMEOUT_S
            silent_since = dict.fromkeys(silent_since, table.now)
            dead, pending, settled = set(), set(), set()
        due = table.due()
        for broker in (1, 2, 3):
            late = table.now >= max(silent_since[broker] + TIMEOUT_S, grace_end)
            if broker not in settled | pending and (broker in dead or late):
                pending.add(broker)
                spoke.discard(broker)
            assert (due.get(broker) is Action.FENCE) == (broker in pending), broker
        if step == "carry out" and number in pending:
            table.fence(number)
            pending.discard(number)
            if number not in spoke:
                settled.add(number)


BROKER = BrokerId(1)
FIRST, SECOND = BrokerEpoch(5), BrokerEpoch(9)


def test_refused_connection_proves_the_incarnation_dead_that_had_it() -> None:
    dead_brokers = DeadBrokers()
    dead_brokers.ended(BROKER, FIRST)
    assert not dead_brokers.is_dead(BROKER, FIRST)
    assert dead_brokers.refused(BROKER, FIRST) == FIRST
    assert dead_brokers.is_dead(BROKER, FIRST)
    assert not dead_brokers.is_dead(BROKER, SECOND)


def test_refusal_without_an_end_before_it_counts_as_the_end() -> None:
    dead_brokers = DeadBrokers()
    assert dead_brokers.refused(BROKER, FIRST) == FIRST


def test_refusal_says_nothing_of_a_process_that_was_started_since() -> None:
    dead_brokers = DeadBrokers()
    dead_brokers.ended(BROKER, FIRST)
    assert dead_brokers.refused(BROKER, SECOND) is None
    assert not dead_brokers.is_dead(BROKER, FIRST)
    assert not dead_brokers.is_dead(BROKER, SECOND)


def test_node_that_is_no_broker_has_nothing_to_be_fenced() -> None:
    dead_brokers = DeadBrokers()
    dead_brokers.ended(BROKER, None)
    assert dead_brokers.refused(BROKER, None) is None
    # The broker registered elsewhere after its connection here had ended.
    dead_brokers.ended(BROKER, FIRST)
    assert dead_brokers.refused(BROKER, None) is None


def test_node_that_is_back_is_not_dead() -> None:
    dead_brokers = DeadBrokers()
    dead_brokers.refused(BROKER, FIRST)
    dead_brokers.returned(BROKER)
    assert not dead_brokers.is_dead(BROKER, FIRST)


def test_oldest_are_forgotten_first() -> None:
    dead_brokers = DeadBrokers()
    for number in range(1, DEAD_BROKERS_MAX + 2):
        dead_brokers.ended(BrokerId(number), FIRST)
        dead_brokers.refused(BrokerId(number), FIRST)
    assert not dead_brokers.is_dead(BrokerId(1), FIRST)
    assert dead_brokers.is_dead(BrokerId(2), FIRST)
    assert dead_brokers.is_dead(BrokerId(DEAD_BROKERS_MAX + 1), FIRST)


# -- Changes of the session timeout


def test_longer_timeout_is_granted_once_the_metadata_holds_the_bound() -> None:
    table = Table()
    table.passes(5.0, 1, 2)
    table.set_timeout(10.0)
    assert table.bound_change() == 10.0
    table.heard(1)
    assert table.sessions.timeout_s == TIMEOUT_S
    table.commit_bound(10.0)
    assert table.bound_change() is None
    table.heard(1)
    assert table.sessions.timeout_s == 10.0
    table.passes(TIMEOUT_S)
    # Leases granted before the change end as granted.
    assert table.due() == {2: Action.FENCE}
    table.passes(10.0 - TIMEOUT_S)
    assert table.due() == {1: Action.FENCE, 2: Action.FENCE}


def test_shorter_timeout_is_granted_at_once_and_the_bound_follows_when_old_leases_ended() -> None:
    table = Table()
    table.set_timeout(10.0)
    table.commit_bound(10.0)
    table.passes(20.0, 1, 2)
    table.set_timeout(1.0)
    table.heard(1)
    assert table.sessions.timeout_s == 1.0
    # Both were granted ten seconds a moment ago.
    table.passes(10.0 - TICK_S, 1)
    assert table.due() == {}
    assert table.bound_change() is None
    table.passes(TICK_S, 1)
    assert table.due() == {2: Action.FENCE}
    assert table.bound_change() == 1.0
    table.commit_bound(1.0)
    table.passes(5.0, 1)
    assert table.bound_change() is None
    table.passes(1.0)
    assert table.due() == {1: Action.FENCE, 2: Action.FENCE}


def test_next_controller_waits_for_the_leases_of_the_bound() -> None:
    table = Table()
    table.set_timeout(10.0)
    table.commit_bound(10.0)
    table.set_timeout(1.0)
    table.begin_term()
    table.passes(10.0 - TICK_S)
    assert table.due() == {}
    assert table.bound_change() is None
    table.passes(TICK_S)
    assert table.due() == {1: Action.FENCE, 2: Action.FENCE}
    assert table.bound_change() == 1.0


def test_bound_that_a_new_controller_had_not_applied_yet_counts_from_its_beginning() -> None:
    table = Table()
    table.begin_term(unapplied=2)
    table.passes(1.0)
    table.set_timeout(10.0)
    table.alter(*lease_bound_change(10.0))
    table.passes(9.0 - TICK_S)
    assert table.due() == {}
    table.passes(TICK_S)
    assert table.due() == {1: Action.FENCE, 2: Action.FENCE}


def test_no_longer_lease_is_granted_while_a_lower_bound_may_be_in_the_log() -> None:
    table = Table()
    table.set_timeout(10.0)
    table.commit_bound(10.0)
    table.set_timeout(2.0)
    table.passes(11.0, 1, 2)
    assert table.bound_change() == 2.0
    # Applied before the proposal, which was decided without it.
    table.set_timeout(10.0)
    table.heard(1)
    assert table.sessions.timeout_s == 2.0
    assert table.bound_change() == 10.0
    table.alter(*lease_bound_change(2.0))
    table.heard(1)
    assert table.sessions.timeout_s == 2.0
    assert table.bound_change() == 10.0
    table.commit_bound(10.0)
    assert table.sessions.timeout_s == 10.0


def test_default_timeout_needs_no_bound_in_the_metadata() -> None:
    table = Table()
    assert table.bound_change() is None
    table.set_timeout(10.0)
    table.commit_bound(10.0)
    table.alter({}, (SESSION_TIMEOUT,))
    table.passes(11.0, 1, 2)
    assert table.bound_change() == TIMEOUT_S
    table.commit_bound(TIMEOUT_S)
    assert table.image.cluster_settings == {}


def test_lease_of_an_earlier_incarnation_may_be_longer_than_the_new_timeout() -> None:
    table = Table()
    table.set_timeout(10.0)
    table.commit_bound(10.0)
    table.passes(20.0, 1, 2)
    table.set_timeout(1.0)
    table.start(2)
    table.passes(10.0 - TICK_S, 1)
    assert table.due().get(2) is None
    table.passes(TICK_S, 1)
    assert table.due()[2] is Action.FENCE


@settings(deadline=None, max_examples=examples(50))
@given(
    st.lists(st.sampled_from([-2 * DAY_MS, 0, 2 * DAY_MS]), min_size=1, max_size=7),
    st.integers(0, 7),
)
def test_the_cluster_time_is_ahead_only_if_most_clocks_are(skews: list[int], heard: int) -> None:
    table = Table(len(skews))
    for number, skew in list(enumerate(skews, 1))[:heard]:
        table.heard(number, time_ms=NOW_MS + skew)
    found = table.sessions.cluster_times_ms(table.image, table.now)
    known = skews[:heard]
    if 2 * len(known) <= len(skews) or len(known) < min(2, len(skews)):
        assert found is None
        return
    assert found is not None
    lower, upper = found
    # Most clocks have reached the lower one, whatever the clocks not heard yet show.
    assert 2 * sum(NOW_MS + skew >= lower for skew in known) > len(skews)
    # And most have not passed the upper one, so no half that is behind holds it back.
    assert 2 * sum(NOW_MS + skew <= upper for skew in known) > len(skews)
    if len(known) == len(skews):
        assert 2 * sum(NOW_MS + skew > lower for skew in known) <= len(known)
        assert 2 * sum(NOW_MS + skew < upper for skew in known) <= len(known)
    later = table.sessions.cluster_times_ms(table.image, table.now + 0.5)
    assert later == (lower + 500, upper + 500)


def test_fenced_brokers_neither_have_a_clock_nor_hold_the_cluster_time_up() -> None:
    table = Table(4)
    for number in (1, 2):
        table.heard(number, time_ms=NOW_MS)
    table.heard(4, time_ms=NOW_MS + 2 * DAY_MS)
    table.commit(FenceBroker, 3)
    table.commit(FenceBroker, 4)
    assert table.sessions.cluster_times_ms(table.image, table.now) == (NOW_MS, NOW_MS)
    table.commit(FenceBroker, 2)
    table.now += 1.0
    assert table.sessions.cluster_times_ms(table.image, table.now) is None
