"""The smallest impossible part of an impossible history, to show to people.

Removing a read, or a value with all operations that wrote, read or expected it, keeps a possible
history possible. So a still impossible rest of an impossible history is a true counterexample, and
not an effect of the removal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeAlias

from tests.verification.register_checker import RegisterReport, Verdict, check, check_register
from tests.verification.register_history import Kind, Operation, Outcome, Value, render

CHECKS_MAX: Final = 1_000
"""Most checks spent on shrinking; the history stays as small as it is by then."""
CONFIGURATIONS_MAX: Final = 10_000

_Parts: TypeAlias = list[list[Operation]]


def smallest(report: RegisterReport) -> list[Operation]:
    """The impossible core of a history that is not linearizable, in the order of the calls."""
    assert report.verdict is Verdict.NOT_LINEARIZABLE, "only an impossible history has a core"
    shrinker = _Shrinker()
    returned = [
        operation
        for operation in report.prefix
        if operation.outcome is Outcome.OK
        or (operation.outcome is Outcome.UNKNOWN and operation.kind is not Kind.READ)
    ]
    kept = shrinker.shrink(_by_connected_values(returned), [])
    reads = [operation for operation in kept if operation.kind is Kind.READ]
    others = [operation for operation in kept if operation.kind is not Kind.READ]
    core = [*others, *shrinker.shrink([[operation] for operation in reads], others)]
    return sorted(core, key=lambda operation: (operation.invoked_ns, operation.returned_ns))


def explain(report: RegisterReport) -> str:
    """The report in words, with the smallest impossible history if there is one."""
    text = f"{report.key}: {report.operation_count:,} operations, {report.verdict.value}"
    if report.verdict is Verdict.TOO_HARD and report.last is not None:
        return f"{text}: too many are possible when this returns:\n{render([report.last])}"
    if report.verdict is Verdict.NOT_LINEARIZABLE:
        core = render(smallest(report))
        return f"{text}: no order of these operations is possible:\n{core}"
    return text


def impossible(history: Sequence[Operation]) -> list[str]:
    """The registers with a history that is not linearizable, or too hard to check, in words."""
    return [
        explain(report) for report in check(history) if report.verdict is not Verdict.LINEARIZABLE
    ]


class _Shrinker:
    """Leaves out parts as long as the rest is impossible (Zeller's ddmin)."""

    def __init__(self) -> None:
        self._checks_left = CHECKS_MAX

    def shrink(self, parts: _Parts, always: Sequence[Operation]) -> list[Operation]:
        """The operations of the needed parts, given the operations that always stay."""
        size = max(1, len(parts) // 2)
        while parts and self._checks_left:
            start = 0
            left_out = False
            while start < len(parts) and self._checks_left:
                fewer = parts[:start] + parts[start + size :]
                if self._is_impossible([*always, *_flat(fewer)]):
                    parts = fewer
                    left_out = True
                else:
                    start += size
            if size == 1 and not left_out:
                break
            size = max(1, size // 2)
        return _flat(parts)

    def _is_impossible(self, operations: list[Operation]) -> bool:
        self._checks_left -= 1
        report = check_register(operations, configurations_max=CONFIGURATIONS_MAX)
        return report.verdict is Verdict.NOT_LINEARIZABLE


def _flat(parts: _Parts) -> list[Operation]:
    return [operation for part in parts for operation in part]


def _by_connected_values(operations: Sequence[Operation]) -> _Parts:
    """Operations by value; values that a `cas` connects belong together."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while (above := parent.setdefault(value, value)) != value:
            parent[value] = parent[above]
            value = above
        return value

    for operation in operations:
        if operation.kind is Kind.CAS:
            parent[root(operation.value)] = root(operation.expected)
    parts: defaultdict[Value, list[Operation]] = defaultdict(list)
    for operation in operations:
        parts[root(operation.value)].append(operation)
    return list(parts.values())
