"""Measurements under attack, and the bounds for these. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

LOOP_HELD_S_MAX: Final = 0.05
"""No synchronous step of the event loop is longer, whatever a client sends."""
RSS_BYTES_MAX: Final = 640 * (1 << 20)
"""Of a node: its own memory, and some times `bytes_in_flight_max` for batches in decoding."""
P99_FACTOR_MAX: Final = 3.0
"""The other clients' p99 under attack, in those of a busy machine without one."""
P99_FLOOR_S: Final = 0.05
"""Below this, a p99 is good in any case: the scheduler's turns are milliseconds."""


class Operation(NamedTuple):
    """One operation of the other clients."""

    name: str
    due: float
    seconds: float | None
    """None: failed."""
    error: str = ""


def parse(lines: Iterable[str]) -> Iterator[Operation]:
    """The operations printed by `victims`; a torn last line is left out."""
    for line in lines:
        if not line.endswith("\n"):
            return
        name, due, seconds, *error = line.rstrip("\n").split(" ", 3)
        if seconds == "failed":
            yield Operation(name, float(due), None, " ".join(error))
        else:
            yield Operation(name, float(due), float(seconds))


def p99(seconds: Sequence[float]) -> float:
    """The 99th percentile; NaN of nothing."""
    ordered = sorted(seconds)
    return ordered[math.ceil(len(ordered) * 0.99) - 1] if ordered else math.nan


@dataclass(frozen=True, slots=True)
class Observed:
    """One phase: an attack, or the calm before."""

    name: str
    operations: Sequence[Operation]
    rss_bytes: int
    """The largest of any node."""
    seconds: float
    """Length of the phase."""
    loop_pauses: int
    """Holds of a node's event loop for longer than LOOP_HELD_S_MAX."""
    internal_errors: int
    """Answers of status 500."""
    ended: Sequence[int]
    """Nodes without their process."""
    elections: int
    """Of the metadata quorum."""

    @property
    def p99_s(self) -> float:
        """Of all successful operations."""
        return p99([one.seconds for one in self.operations if one.seconds is not None])

    @property
    def failures(self) -> list[Operation]:
        """The failed operations."""
        return [one for one in self.operations if one.seconds is None]


def findings(calm: Observed, attacked: Observed) -> list[str]:
    """Every bound that was broken, in words; empty: none was."""
    found = []
    if attacked.ended:
        found.append(f"ended: nodes {', '.join(map(str, attacked.ended))}")
    if attacked.elections:
        found.append(f"the metadata quorum elected {attacked.elections} times")
    if attacked.internal_errors:
        found.append(f"{attacked.internal_errors} answers of status 500")
    pauses_max = math.ceil(P99_FACTOR_MAX * calm.loop_pauses * attacked.seconds / calm.seconds)
    if attacked.loop_pauses > pauses_max:
        found.append(
            f"event loops were held for over {LOOP_HELD_S_MAX * 1000:.0f} ms "
            f"{attacked.loop_pauses} times; the machine's own pauses explain {pauses_max}"
        )
    if attacked.rss_bytes > RSS_BYTES_MAX:
        found.append(f"a node took {attacked.rss_bytes >> 20} MiB of memory")
    if attacked.failures:
        first = attacked.failures[0]
        found.append(
            f"{len(attacked.failures)} operations of other clients failed; the first: "
            f"{first.name}: {first.error}"
        )
    if not attacked.operations:
        found.append("the other clients did nothing")
    elif not attacked.p99_s <= max(P99_FLOOR_S, P99_FACTOR_MAX * calm.p99_s):
        found.append(
            f"the other clients' p99 was {attacked.p99_s * 1000:.0f} ms; "
            f"without an attack {calm.p99_s * 1000:.0f} ms"
        )
    return found
