"""Histories: what clients asked of registers, when, and what they were told.

An operation is an interval of time on one clock, from its call to its return. Its outcome is what
the client *knows*:

- ok: it took effect, at one moment within the interval;
- fail: it took no effect and never will, and nothing is learned from it (a `cas` that found
  another value, a write that was refused);
- unknown: it may have taken effect, may do so at any later time, or never will.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

Value: TypeAlias = int | None
"""What a register holds; None before anything was written to it."""


class Kind(StrEnum):
    """What was asked."""

    READ = "read"
    WRITE = "write"
    CAS = "cas"
    """Write `value` if the register holds `expected`."""


class Outcome(StrEnum):
    """What the client knows of it; see the module."""

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
    """What was read (if ok), written, or is to be written by a `cas`."""
    expected: Value = None
    """Of a `cas`: what the register must hold."""
    invoked_ns: int
    returned_ns: int
    """When the client stopped waiting, for whatever reason."""
    outcome: Outcome
    index: int | None = None
    """Position in the log that the answer named, if it named one."""
    node: int | None = None
    """Whom the client asked."""
    note: str = ""
    """Why it failed or is unknown, for people."""

    def __post_init__(self) -> None:
        if self.returned_ns < self.invoked_ns:
            raise ValueError("an operation returns after its call")
        if self.kind is not Kind.READ and self.value is None:
            raise ValueError("None stands for a register nobody has written: it is not written")


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
