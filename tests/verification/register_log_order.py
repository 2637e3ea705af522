"""A second check, for histories with log indexes in the answers.

If each write returns the log index of its effect, and each read the index up to which the log was
seen, then the order is known and no search is needed. The remaining checks:

- no two writes have one index: the log has not forked;
- the order of the log is the order of time: an operation called after another's return has a
 higher index if it writes, and at least the same index if it reads; across registers too;
- a read has the value of the last write at or below its index. Writes of unknown outcome are in
 the log at an unknown index, so a read may return such a value if its call came before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tests.verification.register_history import Kind, Operation, Outcome, Value, render

ANOMALIES_MAX: Final = 20
"""Most anomalies reported; more of them carry no new information."""


def log_order_anomalies(history: Iterable[Operation]) -> list[str]:
    """The anomalies of a history's indexes, as texts."""
    operations = list(history)
    indexed = [
        operation
        for operation in operations
        if operation.outcome is Outcome.OK and operation.index is not None
    ]
    found = [*_forks(indexed), *_against_time(indexed), *_wrong_reads(indexed, operations)]
    return found[:ANOMALIES_MAX]


def _forks(indexed: list[Operation]) -> list[str]:
    writes: dict[int, Operation] = {}
    found = []
    for operation in indexed:
        if operation.kind is Kind.READ or operation.index is None:
            continue
        other = writes.setdefault(operation.index, operation)
        if other is not operation:
            found.append(f"Two writes have the same index:\n{render((other, operation))}")
    return found


def _against_time(indexed: list[Operation]) -> list[str]:
    returns = sorted(indexed, key=lambda operation: operation.returned_ns)
    found = []
    newest: Operation | None = None
    position = 0
    for operation in sorted(indexed, key=lambda operation: operation.invoked_ns):
        while position < len(returns) and returns[position].returned_ns < operation.invoked_ns:
            returned = returns[position]
            if newest is None or (returned.index or 0) > (newest.index or 0):
                newest = returned
            position += 1
        if newest is None:
            continue
        lowest = (newest.index or 0) + (operation.kind is not Kind.READ)
        if (operation.index or 0) < lowest:
            found.append(
                "The second was called after the first had returned, but is before it in the "
                f"log:\n{render((newest, operation))}"
            )
    return found


def _wrong_reads(indexed: list[Operation], operations: list[Operation]) -> list[str]:
    writes: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in sorted(indexed, key=lambda operation: operation.index or 0):
        if operation.kind is not Kind.READ:
            writes[operation.key].append(operation)
    indexes = {key: [operation.index or 0 for operation in known] for key, known in writes.items()}
    perhaps: dict[tuple[str, Value], Operation] = {
        (operation.key, operation.value): operation
        for operation in operations
        if operation.outcome is Outcome.UNKNOWN and operation.kind is not Kind.READ
    }
    found = []
    for operation in indexed:
        if operation.kind is not Kind.READ:
            continue
        position = bisect_right(indexes.get(operation.key, []), operation.index or 0)
        last = writes[operation.key][position - 1] if position else None
        if operation.value == (last.value if last is not None else None):
            continue
        uncertain = perhaps.get((operation.key, operation.value))
        if uncertain is None or uncertain.invoked_ns > operation.returned_ns:
            shown = (operation,) if last is None else (last, operation)
            found.append(f"A read has not the value of the last write before it:\n{render(shown)}")
    return found
