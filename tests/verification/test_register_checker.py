from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.verification.register_checker import (
    RegisterReport,
    Verdict,
    check,
    check_register,
)
from tests.verification.register_history import Kind, Operation, Outcome, Value
from tests.verification.register_minimal import explain, smallest
from tests.verification.register_oracles import (
    Registers,
    is_possible_by_trying,
    is_possible_by_zones,
)

SEEDS = st.integers(0, 2**32)


def operation(
    kind: Kind,
    value: Value,
    called: int,
    returned: int,
    *,
    expected: Value = None,
    outcome: Outcome = Outcome.OK,
    key: str = "x",
) -> Operation:
    return Operation(
        process=called,
        kind=kind,
        key=key,
        value=value,
        expected=expected,
        invoked_ns=called,
        returned_ns=returned,
        outcome=outcome,
    )


def write(value: int, called: int, returned: int, outcome: Outcome = Outcome.OK) -> Operation:
    return operation(Kind.WRITE, value, called, returned, outcome=outcome)


def read(value: Value, called: int, returned: int) -> Operation:
    return operation(Kind.READ, value, called, returned)


def cas(
    expected: Value, value: int, called: int, returned: int, outcome: Outcome = Outcome.OK
) -> Operation:
    return operation(Kind.CAS, value, called, returned, expected=expected, outcome=outcome)


UNKNOWN = Outcome.UNKNOWN
FAIL = Outcome.FAIL

POSSIBLE = {
    "nothing": [],
    "a read before any write": [read(None, 0, 1)],
    "one after the other": [write(1, 0, 1), read(1, 2, 3), write(2, 4, 5), read(2, 6, 7)],
    "a read during a write sees either value": [
        write(1, 0, 1),
        write(2, 2, 9),
        read(1, 3, 4),
        read(2, 5, 6),
    ],
    "writes take effect in another order than they were called": [
        write(1, 0, 10),
        write(2, 1, 10),
        read(2, 2, 3),
        read(1, 4, 5),
    ],
    "what touches in time is concurrent": [write(1, 0, 5), read(None, 5, 6), read(1, 7, 8)],
    "an unknown write that never happens": [write(1, 0, 1), write(2, 2, 3, UNKNOWN), read(1, 4, 5)],
    "an unknown write that happens much later": [
        write(1, 0, 1, UNKNOWN),
        write(2, 2, 3),
        read(2, 4, 5),
        read(1, 6, 7),
    ],
    "an unknown write among others of its value": [
        write(1, 0, 1, UNKNOWN),
        write(1, 2, 3),
        write(2, 4, 5),
        read(2, 6, 7),
        read(1, 8, 9),
    ],
    "a failed write is never seen": [write(1, 0, 1), write(2, 2, 3, FAIL), read(1, 4, 5)],
    "a chain of cas": [cas(None, 1, 0, 1), cas(1, 2, 2, 3), read(2, 4, 5)],
    "concurrent cas in the only possible order": [cas(1, 2, 0, 9), cas(None, 1, 0, 9)],
    "a failed cas says nothing": [write(1, 0, 1), cas(1, 2, 2, 3, FAIL), read(1, 4, 5)],
    "unknown cas that were seen through each other": [
        cas(None, 1, 0, 1, UNKNOWN),
        cas(1, 2, 0, 1, UNKNOWN),
        read(2, 5, 6),
    ],
    "an unknown write that only an uncertain cas has seen": [
        write(5, 0, 1, UNKNOWN),
        cas(5, 7, 2, 3, UNKNOWN),
        write(7, 4, 5),
        write(8, 6, 7),
        read(7, 8, 9),
    ],
}

IMPOSSIBLE = {
    "a value from nowhere": [read(1, 0, 1)],
    "a stale read": [write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)],
    "a lost write": [write(1, 0, 1), read(None, 2, 3)],
    "a read before the write": [read(1, 0, 1), write(1, 2, 3)],
    "reads that go back": [write(1, 0, 1), write(2, 2, 9), read(2, 3, 4), read(1, 5, 6)],
    "reads that go back across an unknown write": [
        write(1, 0, 1),
        write(2, 2, 3, UNKNOWN),
        read(2, 4, 5),
        read(1, 6, 7),
    ],
    "an unknown write before its call": [
        write(1, 0, 1),
        read(2, 2, 3),
        write(2, 4, 5, UNKNOWN),
    ],
    "a failed write that is seen": [write(1, 0, 1), write(2, 2, 3, FAIL), read(2, 4, 5)],
    "two cas from the same value": [cas(None, 1, 0, 9), cas(None, 2, 0, 9)],
    "a cas from a value that is gone": [write(1, 0, 1), write(2, 2, 3), cas(1, 3, 4, 5)],
    "an unknown cas cannot have happened twice": [
        write(1, 0, 1),
        cas(1, 2, 2, 3, UNKNOWN),
        read(2, 4, 5),
        write(1, 6, 7),
        read(1, 8, 9),
        read(2, 10, 11),
    ],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_a_possible_history_is_accepted(name: str) -> None:
    assert is_possible_by_trying(POSSIBLE[name])
    assert check_register(POSSIBLE[name]).verdict is Verdict.LINEARIZABLE


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_history_is_rejected(name: str) -> None:
    history = IMPOSSIBLE[name]
    assert not is_possible_by_trying(history)
    report = check_register(history)
    assert report.verdict is Verdict.NOT_LINEARIZABLE
    core = smallest(report)
    assert not is_possible_by_trying(core)
    assert set(core) <= set(history)


def test_registers_are_judged_by_themselves() -> None:
    good = [operation(Kind.WRITE, 1, 0, 1, key="a"), operation(Kind.READ, 1, 2, 3, key="a")]
    bad = [operation(Kind.WRITE, 1, 0, 1, key="b"), operation(Kind.READ, None, 2, 3, key="b")]
    assert [(report.key, report.verdict) for report in check([*bad, *good])] == [
        ("a", Verdict.LINEARIZABLE),
        ("b", Verdict.NOT_LINEARIZABLE),
    ]


def test_too_hard_is_neither_possible_nor_impossible() -> None:
    concurrent = [write(number, 0, 100) for number in range(1, 20)]
    report = check_register([*concurrent, read(7, 101, 102)], configurations_max=1_000)
    assert report.verdict is Verdict.TOO_HARD
    assert "too hard to tell" in explain(report)


@st.composite
def small_histories(draw: st.DrawFn) -> list[Operation]:
    """Any operations at all: mostly impossible together."""
    history = []
    for _ in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(Kind))
        called = draw(st.integers(0, 12))
        history.append(
            operation(
                kind,
                draw(st.integers(1, 3) if kind is not Kind.READ else st.sampled_from([None, 1, 2])),
                called,
                called + draw(st.integers(0, 6)),
                expected=draw(st.sampled_from([None, 1, 2, 3])) if kind is Kind.CAS else None,
                outcome=draw(st.sampled_from([Outcome.OK, Outcome.OK, UNKNOWN, FAIL])),
            )
        )
    return history


@settings(max_examples=examples(1_500), deadline=None)
@given(small_histories())
def test_the_verdict_is_that_of_trying_every_order(history: list[Operation]) -> None:
    report = check_register(history)
    assert (report.verdict is Verdict.LINEARIZABLE) == is_possible_by_trying(history)


@settings(max_examples=examples(300), deadline=None)
@given(SEEDS, st.integers(2, 7), st.booleans())
def test_a_faulty_register_of_few_operations_is_judged_as_by_trying(
    seed: int, count: int, unique: bool
) -> None:
    history = Registers(
        random.Random(seed),
        client_count=3,
        value_count=None if unique else 2,
        cas_share=0.3,
        unknown_share=0.3,
        lost_write_share=0.2,
        stale_read_share=0.2,
    ).run(count)
    report = check_register(history)
    assert (report.verdict is Verdict.LINEARIZABLE) == is_possible_by_trying(history)


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS, st.integers(1, 10), st.booleans())
def test_an_atomic_register_is_always_accepted(seed: int, clients: int, unique: bool) -> None:
    history = Registers(
        random.Random(seed),
        client_count=clients,
        key_count=3,
        value_count=None if unique else 5,
        cas_share=0.2,
        unknown_share=0.1 if unique else 0.01,
    ).run(400)
    assert {report.verdict for report in check(history)} == {Verdict.LINEARIZABLE}


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS, st.sampled_from([(0.0, 0.02), (0.02, 0.0), (0.01, 0.01)]))
def test_the_verdict_on_a_faulty_register_is_that_of_zones(
    seed: int, shares: tuple[float, float]
) -> None:
    history = Registers(
        random.Random(seed), lost_write_share=shares[0], stale_read_share=shares[1]
    ).run(150)
    report = check_register(history)
    assert (report.verdict is Verdict.LINEARIZABLE) == is_possible_by_zones(history)


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_one_stale_read_is_found_and_shown_by_few_operations(seed: int) -> None:
    randomness = random.Random(seed)
    history = Registers(randomness, client_count=6, unknown_share=0.05).run(600)
    planted = plant_stale_read(history, randomness)
    assume(planted is not None)
    assert planted is not None
    report = check_register(planted)
    assert report.verdict is Verdict.NOT_LINEARIZABLE
    core = smallest(report)
    assert check_register(core).verdict is Verdict.NOT_LINEARIZABLE
    assert len(core) <= 6
    assert "no order of these operations is possible" in explain(report)


def plant_stale_read(history: list[Operation], randomness: random.Random) -> list[Operation] | None:
    """Make one read return a value that was certainly overwritten before the call."""
    writes = [
        known for known in history if known.kind is Kind.WRITE and known.outcome is Outcome.OK
    ]
    reads = [number for number, known in enumerate(history) if known.kind is Kind.READ]
    randomness.shuffle(reads)
    for number in reads:
        victim = history[number]
        if victim.outcome is not Outcome.OK:
            continue
        newest = [known for known in writes if known.returned_ns < victim.invoked_ns]
        if not newest:
            continue
        newer = max(newest, key=lambda known: known.invoked_ns)
        older = [known for known in newest if known.returned_ns < newer.invoked_ns]
        if older:
            stale = operation(
                Kind.READ,
                randomness.choice(older).value,
                victim.invoked_ns,
                victim.returned_ns,
                key=victim.key,
            )
            return [*history[:number], stale, *history[number + 1 :]]
    return None


def busy_history(operation_count: int) -> list[Operation]:
    return Registers(random.Random(7), client_count=10, key_count=5, unknown_share=0.02).run(
        operation_count
    )


def test_a_long_busy_history_is_judged_in_little_work() -> None:
    reports: list[RegisterReport] = check(busy_history(40_000))
    assert {report.verdict for report in reports} == {Verdict.LINEARIZABLE}
    # The cost of a check, independent of the machine: configurations tried at a return.
    assert max(report.configurations_max for report in reports) < 2_000
