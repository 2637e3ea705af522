from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tests.verification.history_file import load, save
from tests.verification.register_history import (
    DECODER,
    Kind,
    Operation,
    Outcome,
    render,
)
from tests.verification.register_oracles import Registers


def test_a_history_survives_the_disk(tmp_path: Path) -> None:
    made = Registers(random.Random(1), cas_share=0.3, unknown_share=0.2).run(500)
    save(tmp_path / "history", made)
    assert list(load(tmp_path / "history", DECODER)) == made
    assert {operation.outcome for operation in made} == set(Outcome)
    assert {operation.kind for operation in made} == set(Kind)


def test_a_line_that_is_no_operation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history").write_text('{"process":1}\n')
    with pytest.raises(msgspec.DecodeError):
        list(load(tmp_path / "history", DECODER))


def test_an_operation_never_returns_before_its_call() -> None:
    with pytest.raises(ValueError, match="returns after its call"):
        Operation(
            process=1,
            kind=Kind.READ,
            key="x",
            invoked_ns=2,
            returned_ns=1,
            outcome=Outcome.OK,
        )


def test_a_table_shows_calls_in_order_with_what_is_known_of_them() -> None:
    late = Operation(
        process=2,
        kind=Kind.CAS,
        key="x",
        value=3,
        expected=1,
        invoked_ns=5_000_000,
        returned_ns=6_000_000,
        outcome=Outcome.UNKNOWN,
        node=3,
        note="timeout",
    )
    early = Operation(
        process=1,
        kind=Kind.WRITE,
        key="x",
        value=1,
        invoked_ns=4_000_000,
        returned_ns=7_000_000,
        outcome=Outcome.OK,
        index=9,
    )
    first, second = render([late, early]).splitlines()
    assert "0.000 ..       3.000 ms" in first
    assert "x: write 1" in first
    assert "ok  at index 9" in first
    assert "x: cas 1 -> 3" in second
    assert "unknown  by node 3  (timeout)" in second
