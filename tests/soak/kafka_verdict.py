"""The verdict on a history of Kafka's clients: pure functions.

The checkers of tests/verification judge records and transactions. Here, beside these:

- an error that ends a client is an anomaly, but for a zombie that is fenced, and for a known fault
  of librdkafka;
- all doors and all replicas show the same records at the end;
- each topic of copies has every committed input record once, in the order of the partition.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from confluent_kafka import KafkaError

from tests.soak.chain import judge_output
from tests.soak.kafka_history import ClientError, Event, OffsetEvent, TransactionEvent
from tests.soak.kafka_producers import FENCED
from tests.soak.kafka_topics import (
    INPUT,
    PARTITIONS,
    PROTOCOLS,
    copies_of,
    source_of,
    source_text,
)
from tests.soak.nemesis import Fault
from tests.soak.recording import partition_name
from tests.soak.verdict import longest_gap
from tests.verification import transaction_checker
from tests.verification.log_history import FinalRead, Operation, Send
from tests.verification.transaction_history import Transaction

ANOMALIES_OF_A_KIND_MAX: Final = 20
RESETS: Final = frozenset(["_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"])
"""Errors of consumers whose positions were read before: the log went back."""


@dataclass(slots=True)
class KafkaVerdict:
    """The findings in one run's history."""

    anomalies: list[str] = field(default_factory=list)
    records: Counter[str] = field(default_factory=Counter)
    """Values by outcome."""
    transactions: Counter[str] = field(default_factory=Counter)
    """Transactions by outcome."""
    processed: int = 0
    """Transactions with committed input."""
    final_records: Counter[str] = field(default_factory=Counter)
    """Of the final reads, by door or replica."""
    errors: Counter[str] = field(default_factory=Counter)
    fenced: int = 0
    """Zombies."""
    empty_aborts: int = 0
    """Sessions that librdkafka ended; see `_is_empty_abort`."""
    commit_gap_s: dict[str, float] = field(default_factory=dict)
    """By kind of fault, the longest time without a committed transaction."""


def judge(
    history: Sequence[Operation],
    events: Sequence[Event],
    zombies: Collection[int],
    faults: Sequence[Fault] = (),
) -> KafkaVerdict:
    """Check a whole history, with one send for each value. `zombies`: ids of processes."""
    verdict = KafkaVerdict()
    transactions = [one.transaction for one in events if isinstance(one, TransactionEvent)]
    offsets = [one.offset for one in events if isinstance(one, OffsetEvent)]
    found = transaction_checker.check([*transactions, *offsets, *history])
    verdict.anomalies += _shortened((str(one.kind), str(one)) for one in found)
    finals = [one for one in history if isinstance(one, FinalRead)]
    verdict.anomalies += _shortened(("doors", text) for text in _differences(finals))
    verdict.anomalies += _shortened(
        (kind, f"{kind}: {text}")
        for protocol in PROTOCOLS
        for kind, text in _judge_copies(finals, protocol)
    )
    acknowledged = {
        one.transaction for one in history if isinstance(one, Send) and one.outcome == "ok"
    }
    for error in (one for one in events if isinstance(one, ClientError)):
        verdict.errors[f"{error.session.partition('-')[0]} {error.during}: {error.name}"] += 1
        if error.name in RESETS:
            verdict.anomalies.append(f"{error.session} lost its position: {error.text}")
        elif error.is_fatal and error.code in FENCED and error.process in zombies:
            verdict.fenced += 1
        elif error.is_fatal and _is_empty_abort(error, acknowledged):
            verdict.empty_aborts += 1
        elif error.is_fatal:
            verdict.anomalies.append(
                f"fatal error of {error.session} at {error.step}, {error.during}: "
                f"{error.name} ({error.code}): {error.text}"
            )
    for operation in history:
        if isinstance(operation, Send):
            verdict.records[operation.outcome] += 1
    for transaction in transactions:
        verdict.transactions[transaction.outcome] += 1
        verdict.processed += transaction.outcome == "committed" and bool(transaction.processed)
    for final in finals:
        verdict.final_records[final.node] += len(final.records)
    _measure_commits(verdict, transactions, faults)
    return verdict


def _is_empty_abort(error: ClientError, acknowledged: Collection[str]) -> bool:
    """Whether librdkafka ended a transaction that no partition had joined (its issue 4849).

    Its abort does not wait for the answer about the first partition. While markers of the
    transaction before wait for a leader, that answer is CONCURRENT_TRANSACTIONS: there is nothing
    to abort.
    """
    return (
        error.during == "abort_transaction"
        and error.code == KafkaError.INVALID_TXN_STATE
        and error.transaction not in acknowledged
    )


def _shortened(found: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The texts, of each kind so many at most."""
    counts: Counter[str] = Counter()
    for kind, text in found:
        counts[kind] += 1
        if counts[kind] <= ANOMALIES_OF_A_KIND_MAX:
            yield text
    for kind, count in counts.items():
        if count > ANOMALIES_OF_A_KIND_MAX:
            yield f"{kind}: {count} in all"


def _differences(finals: Iterable[FinalRead]) -> Iterator[str]:
    """The doors and replicas that do not show the same records, by isolation level."""
    views: dict[tuple[str, bool], list[FinalRead]] = defaultdict(list)
    for final in finals:
        views[final.partition, final.is_committed].append(final)
    for (partition, _), (first, *others) in sorted(views.items()):
        for other in others:
            if other.records == first.records:
                continue
            mine, theirs = dict(first.records), dict(other.records)
            offsets = [
                offset
                for offset in sorted(mine.keys() | theirs.keys())
                if mine.get(offset) != theirs.get(offset)
            ]
            yield (
                f"{first.node} and {other.node} differ in {partition} at {len(offsets)} offsets, "
                f"the first {offsets[:3]}"
            )


def _judge_copies(finals: Iterable[FinalRead], protocol: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each difference between the committed input and its copies."""
    committed = {one.partition: one.records for one in finals if one.is_committed}
    for number in range(PARTITIONS):
        topic = copies_of(protocol)
        source, target = partition_name(INPUT, number), partition_name(topic, number)
        if source not in committed:
            continue
        wanted = [source_text(number, *record).encode() for record in committed[source]]
        copied = [source_of(value).encode() for _, value in committed.get(target, ())]
        yield from judge_output(topic, number, wanted, copied)


def _measure_commits(
    verdict: KafkaVerdict, transactions: Iterable[Transaction], faults: Sequence[Fault]
) -> None:
    ends = sorted(one.completed for one in transactions if one.completed is not None)
    if not ends:
        return
    for fault, following in zip_longest(faults, faults[1:]):
        limit = ends[-1] if following is None else following.struck
        after = min(fault.whole or fault.healed or fault.struck, limit)
        gap_s = longest_gap(ends, fault.struck, after, limit) / 1e9
        verdict.commit_gap_s[fault.kind] = max(verdict.commit_gap_s.get(fault.kind, 0.0), gap_s)
