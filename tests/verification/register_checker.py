"""The checker: is there an order of the operations that one register could have gone through?

Linearizability is local (Herlihy and Wing 1990, theorem 1): a history is linearizable if its part
for each register is, so each register is checked alone.

For one register, Lowe's just-in-time linearization ("Testing for linearizability", 2017), a
breadth-first form of Wing and Gong's search. The search goes through calls and returns in the order
of time and keeps every *configuration* that is possible so far: the pending operations that have
taken effect, as a bit set, and the register's value. No operation takes effect before it must: only
the return of an operation without effect so far makes the search try the pending operations, in
every order, until that operation has taken effect. If no configuration is left, no order exists.
Where no operation is pending, all that remains of the past is the register's possible values:
histories fall apart at quiet moments by themselves.

Two reductions keep the set small, and lose nothing:

- a read changes nothing, so it takes effect as soon as the register holds its value;
- an operation of unknown outcome would stay pending for ever. If no other operation writes its
  value, it must have taken effect before the first return of an operation that saw the value; if no
  operation saw the value, a history without the write is possible whenever one with the write is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from tests.verification.register_history import Kind, Operation, Outcome, Value

CONFIGURATIONS_MAX: Final = 100_000
"""Most configurations kept or tried at one return; beyond, the search gives up."""


class Verdict(Enum):
    """The result of a check."""

    LINEARIZABLE = "linearizable"
    NOT_LINEARIZABLE = "not linearizable"
    TOO_HARD = "too hard to tell"


@dataclass(frozen=True, slots=True)
class RegisterReport:
    """The result for one register."""

    key: str
    verdict: Verdict
    operation_count: int
    prefix: tuple[Operation, ...] = ()
    """Unless linearizable: the operations called before the search ended."""
    last: Operation | None = None
    """Unless linearizable: the operation at which the search ended, by its return."""
    configurations_max: int = 0
    """The most configurations kept or tried at one return."""


def check(
    history: Iterable[Operation], *, configurations_max: int = CONFIGURATIONS_MAX
) -> list[RegisterReport]:
    """A report for each register of the history, by key."""
    by_key: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    return [
        check_register(operations, configurations_max=configurations_max)
        for _, operations in sorted(by_key.items())
    ]


def check_register(
    operations: Sequence[Operation], *, configurations_max: int = CONFIGURATIONS_MAX
) -> RegisterReport:
    """Check the history of a single register."""
    search = _Search(configurations_max)
    verdict = Verdict.LINEARIZABLE
    last: Operation | None = None
    settled = _settle(operations)
    for call in _calls_and_returns(settled):
        if not call.is_return:
            search.call(call.number, call.operation)
            continue
        verdict = search.end(call.number)
        if verdict is not Verdict.LINEARIZABLE:
            last = call.operation
            break
    prefix: tuple[Operation, ...] = ()
    if last is not None:
        end_ns = last.returned_ns
        prefix = tuple(operation for operation in operations if operation.invoked_ns <= end_ns)
    return RegisterReport(
        key=operations[0].key if operations else "",
        verdict=verdict,
        operation_count=len(operations),
        prefix=prefix,
        last=last,
        configurations_max=search.configurations_seen_max,
    )


def _settle(operations: Iterable[Operation]) -> list[Operation]:
    """The relevant operations; those of unknown outcome made certain where possible."""
    certain: list[Operation] = []
    unknown: list[Operation] = []
    for operation in operations:
        if operation.outcome is Outcome.OK:
            certain.append(operation)
        elif operation.outcome is Outcome.UNKNOWN and operation.kind is not Kind.READ:
            unknown.append(operation)
    writers = Counter(
        operation.value for operation in (*certain, *unknown) if operation.kind is not Kind.READ
    )
    alone = {operation.value: operation for operation in unknown if writers[operation.value] == 1}
    seen_ns = _first_sights(certain, alone)
    perhaps_seen = _perhaps_seen(unknown, alone)
    settled = certain
    for operation in unknown:
        value = operation.value
        if value in alone and value in seen_ns:
            end_ns = max(seen_ns[value], operation.invoked_ns)
            settled.append(
                msgspec.structs.replace(operation, outcome=Outcome.OK, returned_ns=end_ns)
            )
        elif value not in alone or value in perhaps_seen:
            settled.append(operation)
    return settled


def _first_sights(
    certain: Iterable[Operation], alone: Mapping[Value, Operation]
) -> dict[Value, int]:
    """The latest step at which each value was certainly there, by the operations that saw it."""
    seen_ns: dict[Value, int] = {}
    for operation in certain:
        if operation.kind is not Kind.WRITE:
            seen = operation.value if operation.kind is Kind.READ else operation.expected
            _note_seen(seen_ns, seen, operation.returned_ns)
    # A `cas` whose value was seen has taken effect, so the `cas` has seen its expected value.
    values = list(seen_ns)
    while values:
        value = values.pop()
        writer = alone.get(value)
        if (
            writer is not None
            and writer.kind is Kind.CAS
            and _note_seen(seen_ns, writer.expected, seen_ns[value])
        ):
            values.append(writer.expected)
    return seen_ns


def _perhaps_seen(unknown: Iterable[Operation], alone: Mapping[Value, Operation]) -> set[Value]:
    """Expected values of each `cas` that stays uncertain: their writers must stay."""
    found: set[Value] = set()
    uncertain = [operation for operation in unknown if operation.value not in alone]
    while uncertain:
        operation = uncertain.pop()
        if operation.kind is Kind.CAS and operation.expected not in found:
            found.add(operation.expected)
            if operation.expected in alone:
                uncertain.append(alone[operation.expected])
    return found


def _note_seen(seen_ns: dict[Value, int], value: Value, time_ns: int) -> bool:
    """Record the earliest sight of a value; return whether this one is the earliest."""
    known = seen_ns.get(value)
    if known is not None and known <= time_ns:
        return False
    seen_ns[value] = time_ns
    return True


@dataclass(frozen=True, slots=True)
class _CallOrReturn:
    number: int
    operation: Operation
    is_return: bool


def _calls_and_returns(operations: Sequence[Operation]) -> list[_CallOrReturn]:
    # At equal times calls come first: the clock cannot order them, so they are concurrent.
    events = []
    for number, operation in enumerate(operations):
        events.append((operation.invoked_ns, False, number))
        if operation.outcome is Outcome.OK:
            events.append((operation.returned_ns, True, number))
    events.sort()
    return [_CallOrReturn(number, operations[number], is_return) for _, is_return, number in events]


class _Search:
    """The configurations possible so far."""

    def __init__(self, configurations_max: int) -> None:
        self._configurations_max = configurations_max
        # The pending operations that have taken effect, and the register's value then.
        self._possible: set[tuple[int, Value]] = {(0, None)}
        self._bits: dict[int, int] = {}
        self._operations: dict[int, Operation] = {}
        self._free_bits: list[int] = []
        self._reads: defaultdict[Value, int] = defaultdict(int)
        self._writes: dict[int, Operation] = {}
        self.configurations_seen_max = 1

    def call(self, number: int, operation: Operation) -> None:
        """An operation is pending from here on."""
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._bits)
        self._bits[number] = bit
        self._operations[number] = operation
        if operation.kind is not Kind.READ:
            self._writes[bit] = operation
            return
        value = operation.value
        self._reads[value] |= bit
        self._possible = {
            (done | bit, held) if held == value else (done, held) for done, held in self._possible
        }

    def end(self, number: int) -> Verdict:
        """An operation has returned, so its effect has happened."""
        bit = self._bits.pop(number)
        ended, tried = self._until_done(bit)
        self.configurations_seen_max = max(self.configurations_seen_max, tried)
        if tried > self._configurations_max:
            return Verdict.TOO_HARD
        if not ended:
            return Verdict.NOT_LINEARIZABLE
        self._possible = {(done & ~bit, held) for done, held in ended}
        self._free_bits.append(bit)
        operation = self._operations.pop(number)
        if operation.kind is not Kind.READ:
            del self._writes[bit]
        elif not (left := self._reads[operation.value] & ~bit):
            del self._reads[operation.value]
        else:
            self._reads[operation.value] = left
        return Verdict.LINEARIZABLE

    def _until_done(self, bit: int) -> tuple[set[tuple[int, Value]], int]:
        """The configurations in which `bit` has just taken effect, and how many were tried."""
        ended = {configuration for configuration in self._possible if configuration[0] & bit}
        tried = self._possible - ended
        todo = list(tried)
        while todo and len(tried) + len(ended) <= self._configurations_max:
            done, held = todo.pop()
            for write_bit, operation in self._writes.items():
                if done & write_bit or (operation.kind is Kind.CAS and operation.expected != held):
                    continue
                then = operation.value
                configuration = (done | write_bit | self._reads.get(then, 0), then)
                if configuration[0] & bit:
                    ended.add(configuration)
                elif configuration not in tried:
                    tried.add(configuration)
                    todo.append(configuration)
        return ended, len(tried) + len(ended)
