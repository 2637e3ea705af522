"""The soak of replicated states finds each mistake."""

from __future__ import annotations

import pytest

from tests.soak.state import PrimaryWatch, longest_gap_s
from tests.soak.state_clients import position_of
from tests.verification.register_history import Kind, Operation, Outcome
from tests.verification.register_minimal import impossible


def operation(
    process: int,
    kind: Kind,
    value: int | None,
    begun: int,
    ended: int,
    *,
    outcome: Outcome = Outcome.OK,
) -> Operation:
    return Operation(
        process=process,
        kind=kind,
        key="k0",
        value=value,
        invoked_ns=begun,
        returned_ns=ended,
        outcome=outcome,
    )


SOUND = [
    operation(0, Kind.WRITE, 1, 0, 10),
    operation(1, Kind.READ, 1, 20, 30),
    operation(0, Kind.WRITE, 2, 40, 50, outcome=Outcome.UNKNOWN),
    operation(1, Kind.READ, 2, 60, 70),
]


def test_a_sound_history_has_no_anomaly() -> None:
    assert impossible(SOUND) == []


@pytest.mark.parametrize(
    "last",
    [
        operation(1, Kind.READ, 1, 80, 90),  # stale: 2 was read before
        operation(1, Kind.READ, None, 80, 90),  # lost
        operation(1, Kind.READ, 7, 80, 90),  # from nowhere
    ],
)
def test_a_wrong_read_is_an_anomaly(last: Operation) -> None:
    assert impossible([*SOUND, last])


def test_a_write_that_was_refused_and_happened_is_an_anomaly() -> None:
    refused = operation(2, Kind.WRITE, 3, 80, 90, outcome=Outcome.FAIL)
    assert impossible([*SOUND, refused, operation(1, Kind.READ, 3, 100, 110)])


def test_two_primaries_of_a_term_are_an_anomaly() -> None:
    watch = PrimaryWatch({})
    watch.found["kv", 1].add("a")
    watch.found["kv", 2].add("b")
    watch.found["bank", 2].add("c")
    assert watch.anomalies() == []
    watch.found["kv", 2].add("c")
    assert watch.anomalies() == ["kv: term 2 has the primaries ['b', 'c']"]


def test_positions_and_gaps() -> None:
    assert [position_of(None), position_of("3-1041")] == [-1, 1041]
    assert longest_gap_s([operation(0, Kind.WRITE, n, 0, n * 10**9) for n in (1, 2, 5)]) == 3
