"""Each anomaly: a history with the anomaly, and histories just without."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from tests.verification.log_checker import HistoryError, Kind, check, require_sound
from tests.verification.log_history import (
    TOMBSTONE,
    Assign,
    Compacted,
    Deletion,
    End,
    FinalRead,
    Lookup,
    Loss,
    Operation,
    Outcome,
    Pairs,
    Poll,
    Send,
)

P = "t-0"


def send(
    values: str,
    offset: int | None = None,
    at: tuple[int, int] = (0, 1),
    outcome: Outcome = "ok",
    *,
    producer: str = "p",
    acks: int = -1,
    idempotent: bool = True,
    repeated: bool = False,
) -> Send:
    """A send of one-letter values."""
    return Send(
        partition=P,
        producer=producer,
        values=tuple(values),
        invoked=at[0],
        completed=at[1],
        outcome=outcome,
        offset=offset,
        acks=acks,
        idempotent=idempotent,
        repeated=repeated,
    )


def unknown(values: str, at: int = 0, **arguments: bool) -> Send:
    return send(values, None, (at, at + 1), "unknown", **arguments)  # type: ignore[arg-type]


def pairs(values: str, start: int) -> Pairs:
    """One letter for each offset; a dot for none."""
    return tuple((start + n, value) for n, value in enumerate(values) if value != ".")


def poll(values: str, start: int = 0, at: tuple[int, int] = (10, 11), consumer: str = "c") -> Poll:
    return Poll(
        partition=P,
        consumer=consumer,
        invoked=at[0],
        completed=at[1],
        start=start,
        next_offset=start + len(values),
        records=pairs(values, start),
        node="n1",
    )


def final(values: str, start: int = 0, node: str = "n1") -> FinalRead:
    return FinalRead(
        partition=P, node=node, start=start, end=start + len(values), records=pairs(values, start)
    )


def assign(offset: int, consumer: str = "c") -> Assign:
    return Assign(partition=P, consumer=consumer, offset=offset)


def end(offset: int, at: tuple[int, int]) -> End:
    return End(partition=P, invoked=at[0], completed=at[1], offset=offset)


@dataclass(frozen=True)
class Case:
    kind: Kind
    history: list[Operation]


AB = send("ab", 0)
WRONG = {
    "an acknowledged value is not in the final read": Case(Kind.LOST_WRITE, [AB, final("a")]),
    "one replica of two lacks an acknowledged value": Case(
        Kind.LOST_WRITE, [AB, final("ab"), final("a", node="n2")]
    ),
    "a reader went past an acknowledged offset": Case(
        Kind.LOST_WRITE, [AB, send("c", 2, (2, 3)), poll("a.c"), final("abc")]
    ),
    "two readers saw two values at one offset": Case(
        Kind.INCONSISTENT_OFFSET,
        [unknown("a"), unknown("b"), poll("a"), poll("b", consumer="d"), final("a")],
    ),
    "a reader saw another value than was acknowledged there": Case(
        Kind.INCONSISTENT_OFFSET, [send("a", 0), unknown("b"), poll("b"), final("a")]
    ),
    "two replicas differ at the end": Case(
        Kind.INCONSISTENT_OFFSET, [unknown("a"), unknown("b"), final("a"), final("b", node="n2")]
    ),
    "two sends were acknowledged at one offset": Case(
        Kind.INCONSISTENT_OFFSET, [send("a", 0), send("b", 0), final("a")]
    ),
    "an idempotent value is there twice": Case(
        Kind.DUPLICATE, [unknown("a", repeated=True), final("aa")]
    ),
    "a value that was sent once is there twice": Case(
        Kind.DUPLICATE, [unknown("a", idempotent=False), final("aa")]
    ),
    "a value was acknowledged at one offset and read at another": Case(
        Kind.DUPLICATE, [unknown("x"), send("a", 1), final("aa")]
    ),
    "a value comes from nowhere": Case(Kind.UNWRITTEN_READ, [final("a")]),
    "a value was read before it was sent": Case(
        Kind.UNWRITTEN_READ, [poll("a", at=(1, 2)), send("a", 0, (3, 4)), final("a")]
    ),
    "a refused value was read": Case(
        Kind.REFUSED_READ, [send("a", None, outcome="refused"), poll("a"), final("a")]
    ),
    "a refused value is in the log": Case(
        Kind.REFUSED_READ, [send("a", None, outcome="refused"), final("a")]
    ),
    "a consumer was given an offset again": Case(
        Kind.NON_MONOTONIC_POLL,
        [AB, poll("ab"), poll("b", start=1, at=(12, 13)), final("ab")],
    ),
    "a poll is not in order": Case(
        Kind.NON_MONOTONIC_POLL,
        [
            AB,
            Poll(
                partition=P,
                consumer="c",
                invoked=5,
                completed=6,
                start=0,
                next_offset=2,
                records=((1, "b"), (0, "a")),
            ),
            final("ab"),
        ],
    ),
    "a consumer goes on below what it was given": Case(
        Kind.NON_MONOTONIC_POLL,
        [
            AB,
            Poll(
                partition=P,
                consumer="c",
                invoked=5,
                completed=6,
                start=0,
                next_offset=1,
                records=((0, "a"), (1, "b")),
            ),
            final("ab"),
        ],
    ),
    "a consumer went past a value between two polls": Case(
        Kind.SKIPPED_POLL,
        [send("abc", 0), poll("a"), poll("c", start=2, at=(12, 13)), final("abc")],
    ),
    "a consumer went past the first value behind its seek": Case(
        Kind.SKIPPED_POLL, [unknown("ab"), assign(0), poll("b", start=1), final("ab")]
    ),
    "a poll has a hole where another reader saw a value": Case(
        Kind.SKIPPED_POLL, [unknown("abc"), poll("a.c"), final("abc")]
    ),
    "a later send of a producer lies below an earlier one": Case(
        Kind.NON_MONOTONIC_SEND,
        [unknown("a", at=0), unknown("b", at=2), final("ba")],
    ),
    "a send begun after an acknowledgement lies below it": Case(
        Kind.REAL_TIME_ORDER,
        [send("a", 1, (0, 1)), send("b", 0, (2, 3), producer="q"), final("ba")],
    ),
    "a send of unknown outcome lies below what was acknowledged before it": Case(
        Kind.REAL_TIME_ORDER,
        [
            send("a", 1, (0, 1)),
            send("b", None, (2, 9), "unknown", producer="q"),
            final("ba"),
        ],
    ),
    "a value was read once and is gone at the end": Case(
        Kind.WITHDRAWN_READ, [unknown("a"), poll("a"), final("")]
    ),
    "a value was read once, and a later reader went past its place": Case(
        Kind.WITHDRAWN_READ,
        [unknown("ab"), poll("ab"), poll(".b", at=(12, 13), consumer="d"), final("ab")],
    ),
    "an acknowledged partition has no final read": Case(Kind.UNSEEN, [AB]),
    "a value acknowledged without its offset is nowhere": Case(
        Kind.UNSEEN, [send("a", None), final("")]
    ),
    "the end offset is below an acknowledged offset": Case(
        Kind.END_WENT_BACK, [AB, end(1, (2, 3)), final("ab")]
    ),
    "the end goes back": Case(
        Kind.END_WENT_BACK, [unknown("ab"), end(2, (2, 3)), end(1, (4, 5)), final("ab")]
    ),
    "records are gone from the start": Case(Kind.SHORT_START, [unknown("ab"), final("b", start=1)]),
}

SOUND: dict[str, list[Operation]] = {
    "nothing": [],
    "all is well": [
        AB,
        send("cd", 2, (2, 3)),
        assign(0),
        poll("ab"),
        poll("cd", start=2, at=(12, 13)),
        end(4, (14, 15)),
        final("abcd"),
        final("abcd", node="n2"),
    ],
    "an unanswered send is there": [unknown("a"), final("a")],
    "an unanswered send is not there": [unknown("a"), send("b", 0), final("b")],
    "a send with acks=1 was acknowledged and is lost": [send("a", 0, acks=1), final("")],
    "another value is where a send with acks=1 was": [
        send("a", 0, acks=1),
        send("b", 0, (2, 3)),
        final("b"),
    ],
    "a refused value is not there": [send("a", None, outcome="refused"), final("")],
    "a send that could be doubled is": [
        unknown("a", repeated=True, idempotent=False),
        final("aa"),
    ],
    "a value is read while it is being sent": [
        send("a", 0, (1, 9)),
        poll("a", at=(2, 3)),
        final("a"),
    ],
    "a consumer seeks back": [AB, poll("ab"), assign(0), poll("ab", at=(12, 13)), final("ab")],
    "a consumer seeks on": [AB, assign(1), poll("b", start=1), final("ab")],
    "a consumer passes an offset without a known value": [
        unknown("ac"),
        poll("a.c"),
        final("a.c"),
    ],
    "sends of one producer that carry no sequence change places": [
        unknown("a", at=0, idempotent=False),
        unknown("b", at=2, idempotent=False),
        final("ba"),
    ],
    "sends of two producers change places": [
        send("a", 1, (0, 5)),
        send("b", 0, (2, 3), producer="q"),
        final("ba"),
    ],
    "sends overlap by a step": [
        send("a", 1, (0, 2)),
        send("b", 0, (2, 3), producer="q"),
        final("ba"),
    ],
    "the end offset is read while a send is being acknowledged": [
        send("a", 0, (0, 5)),
        end(0, (5, 6)),
        final("a"),
    ],
    "ends that were read at once": [
        unknown("a"),
        end(1, (1, 4)),
        end(0, (2, 5)),
        final("a"),
    ],
    "deleted records are gone": [
        AB,
        Deletion(partition=P, before=1),
        poll("b", start=1),
        final("b", start=1),
    ],
    "deleted records are still there": [AB, Deletion(partition=P, before=1), final("ab")],
    "records reported as lost are lost": [
        send("abc", 0),
        poll("abc"),
        Loss(partition=P, step=20, offset=1),
        final("a"),
    ],
    "an offset reported as lost is written again": [
        send("ab", 0),
        poll("ab"),
        Loss(partition=P, step=20, offset=1),
        send("c", 1, (21, 22)),
        poll("c", start=1, at=(23, 24), consumer="d"),
        final("ac"),
    ],
    "records reported as lost are there all the same": [
        send("ab", 0),
        Loss(partition=P, step=20, offset=1),
        final("ab"),
    ],
    "two partitions": [
        AB,
        final("ab"),
        FinalRead(partition="t-1", node="n1", start=0, end=0, records=()),
    ],
}

LOST_ALL_THE_SAME: dict[str, Case] = {
    "below a reported loss": Case(
        Kind.LOST_WRITE, [AB, Loss(partition=P, step=20, offset=1), final("")]
    ),
    "acknowledged after the loss was reported": Case(
        Kind.LOST_WRITE, [Loss(partition=P, step=0, offset=0), send("a", 0, (1, 2)), final("")]
    ),
    "in another partition": Case(
        Kind.LOST_WRITE, [AB, Loss(partition="t-1", step=20, offset=0), final("a")]
    ),
    "above what was deleted": Case(
        Kind.LOST_WRITE, [AB, Deletion(partition=P, before=1), final("", start=1)]
    ),
}


def keyed(values: str, keys: str, offset: int, at: tuple[int, int] = (0, 1)) -> Send:
    return replace(send(values, offset, at), keys=tuple(keys))


def final_of(*records: tuple[int, str]) -> FinalRead:
    """A replica of four offsets with these records."""
    return FinalRead(partition=P, node="n1", start=0, end=4, records=records)


def timed(values: str, times: tuple[int, ...], offset: int) -> Send:
    return replace(send(values, offset), times=times)


def of_epoch(values: str, offset: int, epoch: int, producer: str) -> Send:
    return replace(send(values, offset, producer=producer), identity=(7, epoch))


def lookup(time_ms: int, offset: int | None, found_ms: int | None, at: int = 2) -> Lookup:
    return Lookup(
        partition=P, invoked=at, completed=at + 1, time_ms=time_ms, offset=offset, found_ms=found_ms
    )


KEYED: list[Operation] = [keyed("ab", "xy", 0), keyed("c", "x", 2, (2, 3))]
BURIED: list[Operation] = [
    keyed("a", "x", 0),
    replace(keyed("b", "x", 1, (2, 3)), values=(f"b{TOMBSTONE}",)),
    keyed("cd", "yy", 2, (4, 5)),
]
TIMED: list[Operation] = [timed("abc", (10, 30, 20), 0), final("abc")]
DELETED: list[Operation] = [send("abc", 0), Deletion(partition=P, before=2)]
EPOCHS: list[Operation] = [of_epoch("a", 0, 0, "p"), of_epoch("b", 1, 1, "q")]
ZOMBIE = of_epoch("c", 2, 0, "z")
UNSEEN = replace(
    keyed("b", "x", 1, (2, 3)), values=(f"b{TOMBSTONE}",), acks=1, producer="leader-only"
)
COMPACTED = Compacted(partition=P, end=3)
ACKNOWLEDGED = Deletion(partition=P, before=2, completed=3)

WRONG |= {
    "a superseded record, without compaction": Case(Kind.LOST_WRITE, [*KEYED, final(".bc")]),
    "the newest record of a key": Case(Kind.LOST_WRITE, [*KEYED, final("ab."), COMPACTED]),
    "a key whose tombstone is gone": Case(
        Kind.UNDELETED, [*BURIED, Compacted(partition=P, end=4), final_of((0, "a"), (3, "d"))]
    ),
    "a tombstone, without compaction": Case(Kind.LOST_WRITE, [*BURIED, final_of((3, "d"))]),
    "a value whose tombstone lost its place": Case(
        Kind.LOST_WRITE,
        [keyed("a", "x", 0), UNSEEN, keyed("c", "y", 1), COMPACTED, final_of((1, "c"))],
    ),
    "a value below a tombstone of another key": Case(
        Kind.LOST_WRITE, [keyed("a", "y", 0), UNSEEN, COMPACTED, final_of()]
    ),
    "superseded above the compacted end only": Case(
        Kind.LOST_WRITE, [*KEYED, final(".bc"), Compacted(partition=P, end=2)]
    ),
    "back after a deletion": Case(Kind.UNDELETED, [*DELETED, ACKNOWLEDGED, final("bc", 1)]),
    "a later record for a time": Case(Kind.LOOKUP_PASSED, [*TIMED, lookup(11, 2, 20)]),
    "no record for a time": Case(Kind.LOOKUP_PASSED, [*TIMED, lookup(11, None, None)]),
    "an older record for a time": Case(Kind.LOOKUP_WRONG, [*TIMED, lookup(11, 0, 10)]),
    "another timestamp": Case(Kind.LOOKUP_WRONG, [*TIMED, lookup(11, 1, 31)]),
    "behind its next epoch": Case(Kind.ZOMBIE, [*EPOCHS, ZOMBIE, final("abc")]),
}
SOUND |= {
    "a tombstone and all before it": [
        *BURIED,
        Compacted(partition=P, end=4),
        final_of((3, "d")),
    ],
    "a tombstone that no reader saw": [keyed("a", "x", 0), UNSEEN, COMPACTED, final_of()],
    "a tombstone at an unknown place": [
        keyed("a", "x", 0),
        replace(UNSEEN, offset=None, outcome="unknown"),
        COMPACTED,
        final_of(),
    ],
    "superseded and compacted": [*KEYED, final(".bc"), COMPACTED],
    "a poll past superseded records": [*KEYED, poll(".bc"), final(".bc"), COMPACTED],
    "deleted, not known to be": [*DELETED, final("abc")],
    "deleted and acknowledged": [*DELETED, ACKNOWLEDGED, final("c", 2)],
    "times": [*TIMED, lookup(5, 0, 10), lookup(11, 1, 30), lookup(31, None, None)],
    "a lookup before any record was known": [*TIMED, lookup(5, None, None, at=0)],
    "a lookup past deleted records": [*TIMED, Deletion(partition=P, before=2), lookup(11, 2, 20)],
    "epochs in their order": [*EPOCHS, final("ab")],
    "an older epoch of another producer": [
        *EPOCHS,
        replace(ZOMBIE, identity=(8, 0)),
        final("abc"),
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_the_anomaly_is_found(name: str) -> None:
    case = WRONG[name]
    assert case.kind in {anomaly.kind for anomaly in check(case.history)}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history_has_no_anomaly(name: str) -> None:
    assert check(SOUND[name]) == []


@pytest.mark.parametrize("name", LOST_ALL_THE_SAME)
def test_a_reported_loss_excuses_no_other(name: str) -> None:
    case = LOST_ALL_THE_SAME[name]
    assert case.kind in {anomaly.kind for anomaly in check(case.history)}


def test_every_anomaly_is_shown() -> None:
    assert {case.kind for case in WRONG.values()} == set(Kind)


def test_anomalies_name_partition_and_offset() -> None:
    with pytest.raises(HistoryError, match=r"lost write in t-0: n1, 0 to 1, lacks 1 \('b'\)"):
        require_sound([AB, final("a")])


def test_a_history_that_sends_a_value_twice_is_no_history() -> None:
    with pytest.raises(HistoryError, match="sent twice"):
        check([AB, send("a", 5)])


def test_a_large_history_is_judged_in_time_that_grows_with_it() -> None:
    """A loop over all pairs would take hours here."""
    count = 20_000
    values = [f"v{n}" for n in range(count)]
    history: list[Operation] = [
        Send(partition=P, producer="p", values=(value,), invoked=2 * n, completed=2 * n + 1,
             outcome="ok", offset=n)
        for n, value in enumerate(values)
    ]  # fmt: skip
    history += [
        Poll(partition=P, consumer=f"c{k}", invoked=3 * count, completed=3 * count, start=n,
             next_offset=n + 1, records=((n, values[n]),))
        for k in range(3)
        for n in range(count)
    ]  # fmt: skip
    history.append(
        FinalRead(partition=P, node="n1", start=0, end=count, records=tuple(enumerate(values)))
    )
    assert check(history) == []
