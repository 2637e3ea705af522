from __future__ import annotations

from raftlog.controller.departures import DEPARTURES_MAX, Departures
from raftlog.record.types import BrokerEpoch, BrokerId

BROKER = BrokerId(1)
FIRST, SECOND = BrokerEpoch(5), BrokerEpoch(9)


def test_refused_connection_proves_the_incarnation_dead_that_had_it() -> None:
    departures = Departures()
    departures.ended(BROKER, FIRST)
    assert not departures.is_dead(BROKER, FIRST)
    assert departures.refused(BROKER, FIRST) == FIRST
    assert departures.is_dead(BROKER, FIRST)
    assert not departures.is_dead(BROKER, SECOND)


def test_refusal_without_an_end_before_it_counts_as_the_end() -> None:
    departures = Departures()
    assert departures.refused(BROKER, FIRST) == FIRST


def test_refusal_says_nothing_of_a_process_that_was_started_since() -> None:
    departures = Departures()
    departures.ended(BROKER, FIRST)
    assert departures.refused(BROKER, SECOND) is None
    assert not departures.is_dead(BROKER, FIRST)
    assert not departures.is_dead(BROKER, SECOND)


def test_node_that_is_no_broker_has_nothing_to_be_fenced() -> None:
    departures = Departures()
    departures.ended(BROKER, None)
    assert departures.refused(BROKER, None) is None
    # It registered elsewhere after its connection here had ended.
    departures.ended(BROKER, FIRST)
    assert departures.refused(BROKER, None) is None


def test_node_that_is_back_is_not_dead() -> None:
    departures = Departures()
    departures.refused(BROKER, FIRST)
    departures.returned(BROKER)
    assert not departures.is_dead(BROKER, FIRST)


def test_oldest_are_forgotten_first() -> None:
    departures = Departures()
    for number in range(1, DEPARTURES_MAX + 2):
        departures.ended(BrokerId(number), FIRST)
        departures.refused(BrokerId(number), FIRST)
    assert not departures.is_dead(BrokerId(1), FIRST)
    assert departures.is_dead(BrokerId(2), FIRST)
    assert departures.is_dead(BrokerId(DEPARTURES_MAX + 1), FIRST)
