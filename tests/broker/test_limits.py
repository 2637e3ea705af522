"""Bytes in flight, and the number of partitions of one request."""

from __future__ import annotations

import pytest

from raftlog.broker.limits import BytesInFlight
from raftlog.record.errors import INVALID_BODY, OVERLOADED, LogError
from tests.broker.harness import broker_settings


def test_bytes_over_the_limit_are_refused_and_leave_no_trace() -> None:
    bytes_in_flight = BytesInFlight(100)
    bytes_in_flight.take(60)
    with pytest.raises(LogError) as caught:
        bytes_in_flight.take(41)
    assert caught.value.entry is OVERLOADED
    assert (bytes_in_flight.used, bytes_in_flight.refused) == (60, 1)
    bytes_in_flight.take(40)
    bytes_in_flight.give(100)
    assert bytes_in_flight.used == 0


def test_finished_answer_is_held_over_the_limit_and_leaves_less_room() -> None:
    bytes_in_flight = BytesInFlight(100)
    bytes_in_flight.take_anyway(150)
    with pytest.raises(LogError):
        bytes_in_flight.take(1)
    bytes_in_flight.give(150)
    bytes_in_flight.take(100)


def test_more_given_back_than_taken_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError):
        BytesInFlight(100).give(1)


def test_partitions_of_a_request_are_bounded() -> None:
    settings = broker_settings(partitions_per_request_max=3)
    settings.check_partition_count(3)
    with pytest.raises(LogError, match="The request names 4 partitions; 3 may be") as caught:
        settings.check_partition_count(4)
    assert caught.value.entry is INVALID_BODY
