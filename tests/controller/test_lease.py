"""The lease, and the argument of DESIGN.md that it ends before its holder is fenced."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.controller.lease import HEARTBEATS_IN_FLIGHT_MAX, Lease
from raftlog.controller.messages import HeartbeatAnswer
from raftlog.controller.settings import ControllerSettings
from raftlog.record.types import BrokerEpoch

CONTROLLER, OTHER = 1, 2


def answer(
    sequence: int, *, term: int = 1, fenced: bool = False, confirmed_age_s: float = 0.0
) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        sequence=sequence,
        broker_epoch=BrokerEpoch(1),
        term=term,
        applied_index=1,
        fenced=fenced,
        drained=False,
        confirmed_age_s=confirmed_age_s,
    )


def test_no_lease_before_the_first_answer() -> None:
    lease = Lease(1.0)
    lease.sent(CONTROLLER, 0.0)
    assert not lease.is_valid(0.0)


def test_lease_runs_from_the_sending_not_from_the_answer() -> None:
    lease = Lease(1.0)
    assert lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.0)))
    assert lease.is_valid(10.99)
    assert not lease.is_valid(11.0)


def test_lease_is_shorter_by_what_the_controller_cannot_prove() -> None:
    lease = Lease(1.0)
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.0), confirmed_age_s=0.4))
    assert lease.is_valid(10.59)
    assert not lease.is_valid(10.6)


def test_late_answer_does_not_shorten_a_lease() -> None:
    lease = Lease(1.0)
    first, second = lease.sent(CONTROLLER, 10.0), lease.sent(CONTROLLER, 10.5)
    lease.answered(CONTROLLER, answer(second))
    lease.answered(CONTROLLER, answer(first))
    assert lease.until == 11.5


def test_fenced_broker_has_no_lease_at_once() -> None:
    lease = Lease(1.0)
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.0)))
    lease.answered(CONTROLLER, answer(lease.sent(CONTROLLER, 10.1), fenced=True))
    assert not lease.is_valid(10.1)


def test_controller_that_was_replaced_does_not_undo_what_its_successor_said() -> None:
    lease = Lease(1.0)
    old = lease.sent(CONTROLLER, 10.0)
    lease.answered(OTHER, answer(lease.sent(OTHER, 10.1), term=2, fenced=True))
    assert not lease.answered(CONTROLLER, answer(old, term=1))
    assert not lease.is_valid(10.1)


def test_answer_counts_once_and_only_from_whom_was_asked() -> None:
    lease = Lease(1.0)
    sequence = lease.sent(CONTROLLER, 10.0)
    assert not lease.answered(OTHER, answer(sequence))
    assert not lease.answered(CONTROLLER, answer(sequence + 1))
    assert lease.answered(CONTROLLER, answer(sequence))
    assert not lease.answered(CONTROLLER, answer(sequence))
    assert not lease.refused(CONTROLLER, sequence)


def test_heartbeats_without_answer_are_given_up_oldest_first() -> None:
    lease = Lease(1.0)
    sequences = [lease.sent(CONTROLLER, float(n)) for n in range(HEARTBEATS_IN_FLIGHT_MAX + 1)]
    assert not lease.answered(CONTROLLER, answer(sequences[0]))
    assert lease.answered(CONTROLLER, answer(sequences[1]))


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
    settings = ControllerSettings()
    fenced_at = sent_at + transit_s + settings.session_timeout_s / controller_rate
    lease = Lease(settings.lease_s)
    # When the answer arrives makes no difference, so the lease is not even told.
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
    """The old controller, replaced after a majority last confirmed it, goes on answering."""
    settings = ControllerSettings()
    heard_at = confirmed_at + heard_after_s
    fenced_at = confirmed_at + successor_after_s + settings.grace_s / new_rate
    lease = Lease(settings.lease_s)
    sequence = lease.sent(CONTROLLER, (heard_at - sent_before_s) * node_rate)
    lease.answered(CONTROLLER, answer(sequence, confirmed_age_s=heard_after_s * old_rate))
    # A difference of rates over the age, which is below a session timeout where it counts.
    if heard_after_s <= settings.session_timeout_s:
        assert not lease.is_valid(fenced_at * node_rate)
