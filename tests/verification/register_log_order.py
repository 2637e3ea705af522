"""A second opinion, where answers name their position in the log.

If each write says at which index of one log it took effect, and each read up to which index it has
seen the log, then the order is known and need not be searched for. What remains to be checked:

- no index was given to two writes: the log has not forked;
- the order of the log is that of time: whoever is called after another's return comes later in the
  log if it writes, and has seen at least as much if it reads. This holds across registers too;
- a read has the value of the last write at or below its index. Writes of unknown outcome are in
  the log at an unknown index, so reading the value of one that was called by then is possible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tests.verification.register_history import Kind, Operation, Outcome, Value, render

ANOMALIES_MAX: Final = 20
"""Anomalies told; more of them say nothing new."""


def log_order_anomalies(history: Iterable[Operation]) -> list[str]:
    """What is wrong with the indexes of a history, in words; empty if nothing is."""
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
            found.append(f"Two writes were told the same index:\n{render((other, operation))}")
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
