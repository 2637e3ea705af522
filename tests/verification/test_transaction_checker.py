"""Each anomaly of transactions: a history with the anomaly, and histories just without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pytest
from msgspec.structs import replace

from tests.verification import log_checker
from tests.verification.log_checker import HistoryError
from tests.verification.log_history import (
    TOMBSTONE,
    Assign,
    Compacted,
    Deletion,
    End,
    FinalRead,
    Poll,
    Send,
)
from tests.verification.transaction_checker import Kind, check, require_sound
from tests.verification.transaction_history import (
    CommittedOffset,
    Processed,
    Transaction,
    TransactionOperation,
)

P, Q = "t-0", "t-1"
History = list[TransactionOperation]


def send(
    values: str,
    offset: int | None,
    transaction: str = "T",
    partition: str = P,
    *,
    keys: str = "",
    at: int = 0,
    is_known: bool = True,
) -> Send:
    """A batch of one-letter values in a transaction, between the steps `at` and `at + 1`."""
    return Send(
        partition=partition,
        producer="p",
        values=tuple(values),
        keys=tuple(keys),
        invoked=at,
        completed=at + 1,
        outcome="ok" if is_known else "unknown",
        offset=offset,
        transaction=transaction,
    )


def commit(name: str = "T", at: int = 5, *processed: Processed) -> Transaction:
    """Acknowledged one step after the request."""
    return Transaction(
        name=name, ending=at, completed=at + 1, outcome="committed", processed=processed
    )


def unknown(name: str = "T", at: int = 5, *processed: Processed) -> Transaction:
    return Transaction(name=name, ending=at, processed=processed)


def abort(name: str = "T") -> Transaction:
    return Transaction(name=name, outcome="aborted")


def poll(
    values: str,
    start: int = 0,
    partition: str = P,
    *,
    at: int = 10,
    consumer: str = "c",
    is_committed: bool = True,
) -> Poll:
    """One letter for each offset; a dot for none."""
    return Poll(
        partition=partition,
        consumer=consumer,
        invoked=at,
        completed=at + 1,
        start=start,
        next_offset=start + len(values),
        records=pairs(values, start),
        is_committed=is_committed,
    )


def finals(values: str, partition: str = P, *, of_all: str | None = None) -> Sequence[FinalRead]:
    """The final reads of one replica, of committed records and (if others) of all."""
    return [
        FinalRead(
            partition=partition,
            node="n1",
            start=0,
            end=len(each),
            records=pairs(each, 0),
            is_committed=is_committed,
        )
        for is_committed, each in ((True, values), (False, values if of_all is None else of_all))
    ]


def pairs(values: str, start: int) -> tuple[tuple[int, str], ...]:
    return tuple((start + n, value) for n, value in enumerate(values) if value != ".")


def end(offset: int, at: int) -> End:
    return End(partition=P, invoked=at, completed=at, offset=offset, is_committed=True)


def took(start: int, following: int) -> Processed:
    return Processed("g", Q, start, following)


def stands(offset: int, at: int) -> CommittedOffset:
    return CommittedOffset(group="g", partition=Q, invoked=at, completed=at + 1, offset=offset)


@dataclass(frozen=True)
class Case:
    kind: StrEnum
    history: History


AB = send("ab", 0)
"""Offsets 0 and 1; the marker is at 2."""
ELSEWHERE = send("x", 0, partition=Q)
WRONG = {
    "a record of an aborted transaction is read": Case(
        Kind.ABORTED_READ, [AB, abort(), poll("ab."), *finals("...", of_all="ab.")]
    ),
    "a record of an aborted transaction is in the final read": Case(
        Kind.ABORTED_READ, [AB, abort(), *finals("ab.")]
    ),
    "a transaction without any request to commit is read": Case(
        Kind.ABORTED_READ, [AB, Transaction(name="T", outcome="aborted"), poll("a"), *finals("...")]
    ),
    "a record is read before its commit was requested": Case(
        Kind.UNDECIDED_READ, [AB, commit(at=20), poll("ab.", at=10), *finals("ab.")]
    ),
    "one of two records in a partition is passed": Case(
        Kind.HALF_SEEN, [AB, commit(), poll("a.."), *finals("ab.")]
    ),
    "the record in another partition is passed": Case(
        Kind.HALF_SEEN,
        [AB, ELSEWHERE, commit(), poll("ab."), *finals("ab."), *finals("..", Q, of_all="x.")],
    ),
    "half of a transaction of unknown outcome is seen": Case(
        Kind.HALF_SEEN, [AB, ELSEWHERE, unknown(), *finals("ab."), *finals("..", Q, of_all="x.")]
    ),
    "one reader sees a transaction of unknown outcome, and another passes it": Case(
        Kind.HALF_SEEN, [AB, unknown(), poll("ab."), *finals("...", of_all="ab.")]
    ),
    "an acknowledged transaction is passed by a reader": Case(
        Kind.LOST_COMMIT, [AB, commit(), poll("..."), *finals("...", of_all="ab.")]
    ),
    "an acknowledged transaction is in no final read, of unknown place": Case(
        Kind.LOST_COMMIT, [send("a", None), commit(), *finals("")]
    ),
    "a record is superseded by one of an aborted transaction alone": Case(
        Kind.LOST_COMMIT,
        [
            send("a", 0, keys="k"),
            commit(),
            send("b", 2, "U", keys="k"),
            abort("U"),
            Compacted(partition=P, end=4),
            *finals("...."),
        ],
    ),
    "a commit is there twice": Case(
        log_checker.Kind.DUPLICATE, [send("a", None), commit(), *finals("aa")]
    ),
    "a transaction's records are in another order": Case(
        log_checker.Kind.NON_MONOTONIC_SEND,
        [send("a", 1), send("b", 0, at=2), commit(), *finals("ba.")],
    ),
    "an acknowledged record is in no log, though its transaction is undecided": Case(
        log_checker.Kind.LOST_WRITE, [AB, unknown(), *finals("", of_all="a")]
    ),
    "a read_committed reader goes back": Case(
        log_checker.Kind.NON_MONOTONIC_POLL,
        [AB, commit(), poll("ab."), poll("ab.", at=12), *finals("ab.")],
    ),
    "a record outside of transactions is passed by a read_committed reader": Case(
        log_checker.Kind.LOST_WRITE, [send("a", 0, ""), poll("."), *finals("a")]
    ),
    "the last stable offset goes back": Case(
        log_checker.Kind.END_WENT_BACK, [AB, commit(), end(3, 8), end(2, 9), *finals("ab.")]
    ),
    "an offset that was never committed": Case(
        Kind.OFFSET_AHEAD, [commit("T", 5, took(0, 3)), stands(4, 10)]
    ),
    "an offset of an aborted transaction": Case(
        Kind.OFFSET_AHEAD,
        [Transaction(name="T", outcome="aborted", processed=(took(0, 3),)), stands(3, 10)],
    ),
    "an offset before its commit was requested": Case(
        Kind.OFFSET_AHEAD, [commit("T", 20, took(0, 3)), stands(3, 10)]
    ),
    "an offset below an acknowledged one": Case(
        Kind.OFFSET_WENT_BACK, [commit("T", 5, took(0, 3)), stands(0, 10)]
    ),
    "two transactions processed one record": Case(
        Kind.PROCESSED_TWICE, [commit("T", 5, took(0, 3)), commit("U", 9, took(2, 4))]
    ),
    "a transaction of unknown outcome is seen, and its input is processed again": Case(
        Kind.PROCESSED_TWICE,
        [
            send("a", 0),
            unknown("T", 5, took(0, 3)),
            commit("U", 9, took(0, 3)),
            *finals("a."),
        ],
    ),
    "records are left out": Case(
        Kind.NOT_PROCESSED, [commit("T", 5, took(0, 3)), commit("U", 9, took(4, 5))]
    ),
}

SOUND: dict[str, History] = {
    "a commit, read by all": [AB, ELSEWHERE, commit(), poll("ab."), *finals("ab."),
                              *finals("x.", Q)],
    "an abort, read by readers of all records alone":
        [AB, abort(), poll("..."), poll("ab.", consumer="d", is_committed=False),
         *finals("...", of_all="ab.")],
    "a transaction of unknown outcome, seen by none":
        [AB, ELSEWHERE, unknown(), poll("..."), *finals("...", of_all="ab."),
         *finals("..", Q, of_all="x.")],
    "a transaction of unknown outcome, seen by all":
        [AB, ELSEWHERE, unknown(), *finals("ab."), *finals("x.", Q)],
    "a reader that has not come to the other half yet":
        [AB, commit(), poll("a"), *finals("ab.")],
    "a record of unknown outcome in a committed transaction":
        [send("a", 0), send("b", None, at=2, is_known=False), commit(), *finals("a..")],
    "a record read while its commit is under way":
        [AB, commit(at=10), poll("ab.", at=10), *finals("ab.")],
    "records deleted on request":
        [AB, commit(), Deletion(partition=P, before=2), Assign(partition=P, consumer="c", offset=2),
         poll(".", 2), *[replace(each, start=2) for each in finals("...")]],
    "a record superseded by a committed one":
        [send("a", 0, keys="k"), commit(), send("b", 2, "U", keys="k"), commit("U", 9),
         Compacted(partition=P, end=4), *finals("..b.")],
    "a record superseded by one outside of transactions":
        [send("a", 0, keys="k"), commit(), send("b", 2, "", keys="k"),
         Compacted(partition=P, end=3), *finals("..b")],
    "a committed tombstone that is gone":
        [replace(send("a", 0, keys="k"), values=(f"a{TOMBSTONE}",)), commit(),
         Compacted(partition=P, end=4), *finals("....")],
    "an aborted record that compaction removed, read before by a reader of all records":
        [send("a", 0, keys="k"), abort(), poll("a", consumer="d", is_committed=False),
         Compacted(partition=P, end=2), *finals("..")],
    "the last stable offset stands below an acknowledged record":
        [AB, commit(), end(0, 3), end(3, 9), *finals("ab.")],
    "input processed once, in turn":
        [commit("T", 5, took(0, 3)), commit("U", 9, took(3, 5)), stands(3, 7), stands(5, 12)],
    "a retried input of an aborted transaction":
        [Transaction(name="T", outcome="aborted", processed=(took(0, 3),)),
         commit("U", 9, took(0, 2)), stands(0, 7), stands(2, 12)],
    "a commit of unknown outcome between two others":
        [commit("T", 5, took(0, 3)), unknown("U", 7, took(3, 4)), commit("V", 9, took(4, 5)),
         stands(4, 8), stands(5, 12)],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_anomaly_is_found(name: str) -> None:
    case = WRONG[name]
    assert case.kind in {anomaly.kind for anomaly in check(case.history)}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history_has_no_anomaly(name: str) -> None:
    assert check(SOUND[name]) == []


def test_every_anomaly_is_shown() -> None:
    shown = {case.kind for case in WRONG.values()}
    assert set(Kind) <= shown


def test_an_anomaly_names_reader_value_and_transaction() -> None:
    with pytest.raises(HistoryError, match=r"aborted read in t-0: n1 got 'a' of T, which was"):
        require_sound([AB, abort(), *finals("ab.")])


def test_two_transactions_of_one_name_are_no_history() -> None:
    with pytest.raises(HistoryError, match="two transactions"):
        check([commit(), abort()])


def test_a_large_history_is_judged_in_time_that_grows_with_it() -> None:
    """A loop over all pairs would take minutes here."""
    count = 5_000
    history: History = []
    for n in range(count):
        one = replace(send(".", 2 * n, f"T{n}"), values=(f"v{n}",), invoked=4 * n, completed=4 * n)
        history += [one, commit(f"T{n}", 4 * n + 1)]
        history.append(replace(poll(".", 2 * n, at=4 * n + 2), records=((2 * n, f"v{n}"),)))
        history.append(replace(poll(".", 2 * n + 1, at=4 * n + 2)))
    records = tuple((2 * n, f"v{n}") for n in range(count))
    history += [replace(each, records=records, end=2 * count) for each in finals("")]
    assert check(history) == []
