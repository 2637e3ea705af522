"""Histories of registers: the operations of clients, with times and outcomes.

An operation is an interval of time on one clock, from its call to its return. Its outcome is the
client's *knowledge*:

- ok: the operation took effect, at one moment within the interval;
- fail: no effect, now or later, and no information (a `cas` that found another value, a refused
 write);
- unknown: the effect may have happened, may happen at any later time, or never.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

Value: TypeAlias = int | None
"""A register's value; None before the first write."""


class Kind(StrEnum):
    """The kinds of operations."""

    READ = "read"
    WRITE = "write"
    CAS = "cas"
    """Write `value` if the register holds `expected`."""


class Outcome(StrEnum):
    """The client's knowledge of an operation; see the module."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of one client on one register."""

    process: int
    """The client. One client's operations do not overlap."""
    kind: Kind
    key: str
    """The register."""
    value: Value = None
    """The value read (if ok), written, or to be written by a `cas`."""
    expected: Value = None
    """Of a `cas`: the value that the register must hold."""
    invoked_ns: int
    returned_ns: int
    """When the client stopped waiting, for whatever reason."""
    outcome: Outcome
    index: int | None = None
    """Log index in the answer, if any."""
    node: int | None = None
    """The node that served the client."""
    note: str = ""
    """The reason of a failure or unknown outcome, for people."""

    def __post_init__(self) -> None:
        if self.returned_ns < self.invoked_ns:
            raise ValueError("an operation returns after its call")
        if self.kind is not Kind.READ and self.value is None:
            raise ValueError("None stands for a register without a write, so it cannot be written")


DECODER: Final = msgspec.json.Decoder(Operation)
"""For history_file.load."""


def render(operations: Iterable[Operation]) -> str:
    """A table for people: in the order of their calls, times relative to the first."""
    ordered = sorted(operations, key=lambda operation: operation.invoked_ns)
    if not ordered:
        return "(no operations)"
    start_ns = ordered[0].invoked_ns
    lines = []
    for operation in ordered:
        called_ms = (operation.invoked_ns - start_ns) / 1e6
        returned_ms = (operation.returned_ns - start_ns) / 1e6
        words = [
            f"{called_ms:>11.3f} .. {returned_ms:>11.3f} ms",
            f"process {operation.process:<3}",
            f"{_what(operation):<28}",
            operation.outcome.value,
        ]
        if operation.index is not None:
            words.append(f"at index {operation.index}")
        if operation.node is not None:
            words.append(f"by node {operation.node}")
        if operation.note:
            words.append(f"({operation.note})")
        lines.append("  ".join(words))
    return "\n".join(lines)


def _what(operation: Operation) -> str:
    if operation.kind is Kind.CAS:
        return f"{operation.key}: cas {operation.expected} -> {operation.value}"
    if operation.kind is Kind.READ and operation.outcome is not Outcome.OK:
        return f"{operation.key}: read"
    return f"{operation.key}: {operation.kind.value} {operation.value}"
