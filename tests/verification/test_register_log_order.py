from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.verification.register_history import Kind, Operation, Outcome, Value
from tests.verification.register_log_order import ANOMALIES_MAX, log_order_anomalies
from tests.verification.register_oracles import Registers


def operation(
    kind: Kind,
    value: Value,
    index: int | None,
    times: tuple[int, int],
    *,
    key: str = "x",
) -> Operation:
    return Operation(
        process=1,
        kind=kind,
        key=key,
        value=value,
        invoked_ns=times[0],
        returned_ns=times[1],
        outcome=Outcome.OK if index is not None else Outcome.UNKNOWN,
        index=index,
    )


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32))
def test_registers_over_one_log_have_no_anomaly(seed: int) -> None:
    history = Registers(random.Random(seed), key_count=3, cas_share=0.2, unknown_share=0.1).run(300)
    assert log_order_anomalies(history) == []


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32))
def test_wrong_reads_of_a_faulty_register_are_found(seed: int) -> None:
    history = Registers(random.Random(seed), stale_read_share=0.2).run(100)
    assert log_order_anomalies(history)


def test_two_writes_at_one_index_are_a_fork() -> None:
    history = [operation(Kind.WRITE, 1, 5, (0, 9)), operation(Kind.WRITE, 2, 5, (0, 9))]
    (anomaly,) = log_order_anomalies(history)
    assert anomaly.startswith("Two writes have the same index")


def test_a_later_write_at_an_earlier_index_is_against_time_across_registers() -> None:
    history = [
        operation(Kind.WRITE, 1, 5, (0, 1), key="x"),
        operation(Kind.WRITE, 2, 4, (2, 3), key="y"),
    ]
    (anomaly,) = log_order_anomalies(history)
    assert "is before it in the log" in anomaly


def test_a_read_that_has_not_seen_what_was_acknowledged_before_it_is_against_time() -> None:
    history = [
        operation(Kind.WRITE, 1, 5, (0, 1), key="x"),
        operation(Kind.READ, None, 4, (2, 3), key="y"),
    ]
    (anomaly,) = log_order_anomalies(history)
    assert "is before it in the log" in anomaly


def test_a_read_may_have_seen_a_write_of_unknown_outcome_but_no_other() -> None:
    known = operation(Kind.WRITE, 1, 5, (0, 1))
    unknown = operation(Kind.WRITE, 2, None, (2, 3))
    assert log_order_anomalies([known, unknown, operation(Kind.READ, 2, 6, (4, 5))]) == []
    assert log_order_anomalies([known, unknown, operation(Kind.READ, 1, 6, (4, 5))]) == []
    (anomaly,) = log_order_anomalies([known, unknown, operation(Kind.READ, 3, 6, (4, 5))])
    assert anomaly.startswith("A read has not the value of the last write before it")


def test_only_some_of_many_anomalies_are_reported() -> None:
    history = [operation(Kind.READ, number, 1, (0, 9)) for number in range(100)]
    assert len(log_order_anomalies(history)) == ANOMALIES_MAX
