"""Other judges of histories than the checker, by other methods, and a register to make histories.

`is_possible_by_trying` tries every order; for a handful of operations. `is_possible_by_zones` is
Gibbons and Korach's test ("Testing Shared Memories", 1997) for histories of reads and certain
writes in which each value is written once, of any length.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.verification.register_history import Kind, Operation, Outcome, Value


def is_possible_by_trying(operations: Sequence[Operation]) -> bool:
    """Whether some order explains the history of one register. Takes exponential time."""
    relevant = [
        operation
        for operation in operations
        if operation.outcome is Outcome.OK
        or (operation.outcome is Outcome.UNKNOWN and operation.kind is not Kind.READ)
    ]

    def possible(left: frozenset[int], held: Value) -> bool:
        certain = [number for number in left if relevant[number].outcome is Outcome.OK]
        if not certain:
            return True
        first_return_ns = min(relevant[number].returned_ns for number in certain)
        for number in sorted(left):
            operation = relevant[number]
            if operation.invoked_ns > first_return_ns:
                continue
            must_hold = operation.value if operation.kind is Kind.READ else operation.expected
            if operation.kind is not Kind.WRITE and must_hold != held:
                continue
            if possible(left - {number}, operation.value):
                return True
        return False

    return possible(frozenset(range(len(relevant))), None)


def is_possible_by_zones(operations: Sequence[Operation]) -> bool:
    """Whether some order explains the history: no two values must each come before the other."""
    written: dict[Value, Operation] = {}
    returns_ns: dict[Value, float] = {None: float("-inf")}
    calls_ns: dict[Value, float] = {None: float("-inf")}
    for operation in operations:
        assert operation.outcome is Outcome.OK and operation.kind is not Kind.CAS
        if operation.kind is Kind.WRITE:
            assert operation.value not in written, "each value is written once"
            written[operation.value] = operation
        value = operation.value
        returns_ns[value] = min(returns_ns.get(value, float("inf")), operation.returned_ns)
        calls_ns[value] = max(calls_ns.get(value, float("-inf")), operation.invoked_ns)
    for operation in operations:
        if operation.kind is Kind.READ and operation.value is not None:
            write = written.get(operation.value)
            if write is None or write.invoked_ns > operation.returned_ns:
                return False
    values = list(returns_ns)
    return not any(
        returns_ns[one] < calls_ns[other] and returns_ns[other] < calls_ns[one]
        for position, one in enumerate(values)
        for other in values[:position]
    )


@dataclass(slots=True)
class Registers:
    """Atomic registers under concurrent clients, simulated; with mistakes if wanted."""

    randomness: random.Random
    client_count: int = 5
    key_count: int = 1
    value_count: int | None = None
    """Values are drawn from so many; None: each is written once."""
    cas_share: float = 0.0
    unknown_share: float = 0.0
    lost_write_share: float = 0.0
    """Acknowledged writes without effect."""
    stale_read_share: float = 0.0
    """Reads of the value before the present one."""
    history: list[Operation] = field(default_factory=list)
    _held: defaultdict[str, list[Value]] = field(
        default_factory=lambda: defaultdict(lambda: [None])
    )
    _index: int = 0

    def run(self, operation_count: int) -> list[Operation]:
        """The history of so many operations, in the order of their returns."""
        chance = self.randomness.random
        # Effects in the order of time; each client's next call is where its last one returned.
        effects: list[tuple[int, int, int, int]] = []
        for client in range(self.client_count):
            heapq.heappush(effects, self._call(client, 0))
        for number in range(operation_count):
            effect_ns, client, called_ns, returned_ns = heapq.heappop(effects)
            is_unknown = chance() < self.unknown_share
            self._take_effect(number, client, (called_ns, effect_ns, returned_ns), is_unknown)
            heapq.heappush(effects, self._call(client, returned_ns))
        self.history.sort(key=lambda operation: operation.returned_ns)
        return self.history

    def _call(self, client: int, free_ns: int) -> tuple[int, int, int, int]:
        called_ns = free_ns + self.randomness.randint(1, 20)
        effect_ns = called_ns + self.randomness.randint(0, 30)
        # Some clients wait long, so their operations overlap with many others.
        wait_ns = 300 if self.randomness.random() < 0.02 else 30
        return effect_ns, client, called_ns, effect_ns + self.randomness.randint(0, wait_ns)

    def _take_effect(
        self, number: int, client: int, times_ns: tuple[int, int, int], is_unknown: bool
    ) -> None:
        called_ns, effect_ns, returned_ns = times_ns
        chance = self.randomness.random
        key = f"register-{self.randomness.randrange(self.key_count)}"
        held = self._held[key]
        outcome = Outcome.OK
        expected: Value = None
        if is_unknown:
            # The client may have given up before or after the effect, or there is no effect.
            outcome = Outcome.UNKNOWN
            returned_ns = self.randomness.randint(called_ns, returned_ns)
        kind = Kind.READ
        value: Value = None
        if chance() < 0.5:
            kind = Kind.WRITE
            value = (
                number if self.value_count is None else self.randomness.randrange(self.value_count)
            )
            happens = not (is_unknown and chance() < 0.5)
            if chance() < self.cas_share:
                kind = Kind.CAS
                expected = held[-1] if chance() < 0.7 else self.randomness.choice(held)
                if expected != held[-1]:
                    happens = False
                    outcome = Outcome.UNKNOWN if is_unknown else Outcome.FAIL
            if happens and not chance() < self.lost_write_share:
                self._index += 1
                held.append(value)
        else:
            is_stale = len(held) > 1 and chance() < self.stale_read_share
            value = held[-2] if is_stale else held[-1]
            returned_ns = max(returned_ns, effect_ns)
        self.history.append(
            Operation(
                process=client,
                kind=kind,
                key=key,
                value=None if kind is Kind.READ and outcome is not Outcome.OK else value,
                expected=expected,
                invoked_ns=called_ns,
                returned_ns=returned_ns,
                outcome=outcome,
                index=self._index if outcome is Outcome.OK else None,
            )
        )
