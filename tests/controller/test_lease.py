"""The lease, and the argument of its end before the holder's fencing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.controller.heartbeat import RETRY_S
from raftlog.controller.messages import HEARTBEAT_S, HeartbeatAnswer, granted_timeout_ms
from raftlog.controller.sessions import HEARTBEATS_IN_FLIGHT_MAX, LEASE_SHARE, Lease
from raftlog.metadata.configs.broker import (
    BROKER_CONFIG_TABLE,
    SESSION_TIMEOUT,
    SESSION_TIMEOUT_S_DEFAULT,
)
from raftlog.record.types import BrokerEpoch

CONTROLLER, OTHER = 1, 2


def answer(
    sequence: int,
    *,
    term: int = 1,
    fenced: bool = False,
    confirmed_age_s: float = 0.0,
    timeout_s: float = SESSION_TIMEOUT_S_DEFAULT,
) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        sequence=sequence,
        broker_epoch=BrokerEpoch(1),
        term=term,
        applied_index=1,
        fenced=fenced,
        drained=False,
        confirmed_age_s=confirmed_age_s,
        session_timeout_ms=granted_timeout_ms(timeout_s),
    )


def test_no_lease_before_the_first_answer() -> None:
    lease = Lease()
    lease.sent(CONTROLLER, 0.0)
    assert not lease.is_valid(0.0)


def test_lease_runs_from_the_sending_not_from_the_answer() -> None:
    lease = Lease()
    assert lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.0)))
    assert lease.is_valid(11.34)
    assert not lease.is_valid(11.35)


def test_lease_is_shorter_by_what_the_controller_cannot_prove() -> None:
    lease = Lease()
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.0), confirmed_age_s=0.4))
    assert lease.is_valid(10.94)
    assert not lease.is_valid(10.951)


def test_late_answer_does_not_shorten_a_lease() -> None:
    lease = Lease()
    first, second = lease.sent(CONTROLLER, 10.0), lease.sent(CONTROLLER, 10.5)
    lease.answered(CONTROLLER, answer(second))
    lease.answered(CONTROLLER, answer(first))
    assert lease.until == 11.85


def test_fenced_broker_has_no_lease_at_once() -> None:
    lease = Lease()
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.0)))
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.1), fenced=True))
    assert not lease.is_valid(10.1)


def test_controller_that_was_replaced_does_not_undo_what_its_successor_said() -> None:
    lease = Lease()
    old = lease.sent(CONTROLLER, 10.0)
    lease.answered(OTHER, answer(lease.sent(OTHER, 10.1), term=2, fenced=True))
    assert not lease.answered(CONTROLLER, answer(old, term=1))
    assert not lease.is_valid(10.1)


def test_answer_counts_once_and_only_from_the_receiver_of_the_heartbeat() -> None:
    lease = Lease()
    sequence = lease.sent(CONTROLLER, 10.0)
    assert not lease.answered(OTHER, answer(sequence))
    assert not lease.answered(CONTROLLER, answer(sequence + 1))
    assert lease.answered(CONTROLLER, answer(sequence))
    assert not lease.answered(CONTROLLER, answer(sequence))
    assert not lease.refused(CONTROLLER, sequence)


def test_heartbeats_without_answer_are_given_up_oldest_first() -> None:
    lease = Lease()
    sequences = [lease.sent(CONTROLLER, float(n)) for n in range(HEARTBEATS_IN_FLIGHT_MAX + 1)]
    assert not lease.answered(CONTROLLER, answer(sequences[0]))
    assert lease.answered(CONTROLLER, answer(sequences[1]))


def test_answer_grants_the_timeout_that_it_states() -> None:
    lease = Lease()
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.0), timeout_s=10.0))
    assert lease.until == 19.0
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 11.0), timeout_s=1.0))
    # The controller still waits for the longer one.
    assert lease.until == 19.0


def test_two_lost_heartbeats_do_not_cost_the_shortest_lease() -> None:
    shortest = BROKER_CONFIG_TABLE[SESSION_TIMEOUT].lower
    assert shortest is not None
    assert LEASE_SHARE * shortest / 1000 > 2 * HEARTBEAT_S
    assert RETRY_S <= HEARTBEAT_S


times = st.floats(0, 3, allow_nan=False)
rates = st.floats(0.96, 1.04)


@given(sent_at=times, transit_s=times, node_rate=rates, controller_rate=rates)
def test_lease_ends_before_the_same_controller_can_fence(
    *,
    sent_at: float,
    transit_s: float,
    node_rate: float,
    controller_rate: float,
) -> None:
    """Times are real; a clock of rate r shows r * t. Silence begins with the arrival."""
    fenced_at = sent_at + transit_s + SESSION_TIMEOUT_S_DEFAULT / controller_rate
    lease = Lease()
    # The arrival of the answer makes no difference, so the lease does not get one.
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, sent_at * node_rate)))
    assert not lease.is_valid(fenced_at * node_rate)


@given(
    confirmed_at=times,
    heard_after_s=times,
    successor_after_s=times,
    sent_before_s=times,
    node_rate=rates,
    old_rate=rates,
    new_rate=rates,
)
def test_lease_ends_before_the_next_controller_can_fence(
    *,
    confirmed_at: float,
    heard_after_s: float,
    successor_after_s: float,
    sent_before_s: float,
    node_rate: float,
    old_rate: float,
    new_rate: float,
) -> None:
    """The old controller, replaced after the last confirmation by a majority, goes on answering."""
    heard_at = confirmed_at + heard_after_s
    fenced_at = confirmed_at + successor_after_s + SESSION_TIMEOUT_S_DEFAULT / new_rate
    lease = Lease()
    sequence = lease.sent(CONTROLLER, (heard_at - sent_before_s) * node_rate)
    lease.answered(CONTROLLER, answer(sequence, confirmed_age_s=heard_after_s * old_rate))
    # The clocks' rates differ over the age, which is below a session timeout where it counts.
    if heard_after_s <= SESSION_TIMEOUT_S_DEFAULT:
        assert not lease.is_valid(fenced_at * node_rate)
