"""Measurements under attack, and the bounds for these. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

LOOP_HELD_S_MAX: Final = 0.05
"""No synchronous step of the event loop is longer, whatever a client sends."""
HOLDS_SPARE: Final = 1
"""Holds that a phase may have without a finding: a collection of garbage on a slow processor."""
RSS_BYTES_MAX: Final = 640 * (1 << 20)
"""Of a node: its own memory, and some times `bytes_in_flight_max` for batches in decoding."""
P99_FACTOR_MAX: Final = 3.0
"""The other clients' p99 under attack, in those beside honest clients as busy as an attacker."""
P99_FLOOR_S: Final = 0.05
"""Below this, a p99 is good in any case: the scheduler's turns are milliseconds."""
SHARED_P99_FLOOR_S: Final = 0.2
"""The floor of a run with `slack`, before `slack` multiplies it. Such a run shares the disk with
other programs. Their syncs were seen to delay appends by 0.9 s."""


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


class Work(msgspec.Struct, frozen=True):
    """The summary that a hostile process prints: what it did, and what came of that.

    Counts by name: `connections`, `open` (the most at one time), `requests`, `cut` (connections
    ended by the node), each status of an answer, `breaches` (answers that a bound of the node must
    have prevented), and counts of single attacks.
    """

    counts: Mapping[str, int]

    def lacks(self, least: Mapping[str, int], slack: float = 1.0) -> list[str]:
        """The counts below their least, in words. `slack` divides the least, down to 1."""
        bounds = {name: math.ceil(count / slack) for name, count in least.items()}
        return [
            f"{self.counts.get(name, 0)} of {name} (at least {count})"
            for name, count in bounds.items()
            if self.counts.get(name, 0) < count
        ]

    def __str__(self) -> str:
        return " ".join(f"{name}={count}" for name, count in sorted(self.counts.items()))


@dataclass(frozen=True, slots=True)
class Observed:
    """One phase: an attack, or the calm before."""

    name: str
    operations: Sequence[Operation]
    rss_bytes: int
    """The largest of any node."""
    seconds: float
    """Length of the phase."""
    loop_holds: int
    """Steps of a node's event loop with more processor time than the bound."""
    internal_errors: int
    """Answers of status 500, and tracebacks in the nodes' logs."""
    ended: Sequence[int]
    """Nodes without their process."""
    elections: int
    """Of the metadata quorum."""
    work: Work | None = None
    """None: the hostile process printed no summary."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Counts of `work` without which the attack attacked nothing."""
    leftovers: Sequence[str] = ()
    """Connections and bytes in flight that a node still held a while after the attack."""

    @property
    def p99_s(self) -> float:
        """Of all successful operations."""
        return p99([one.seconds for one in self.operations if one.seconds is not None])

    @property
    def failures(self) -> list[Operation]:
        """The failed operations."""
        return [one for one in self.operations if one.seconds is None]


_OF_TIME: Final = (
    "the other clients' p99",
    "the attack did too little",
    "the attack ended without its summary",
    "the metadata quorum",
)


def may_be_the_machine(found: Sequence[str]) -> bool:
    """Whether a machine that stood still for a second may be behind all of the findings.

    Then the attack is repeated: a defect shows again.
    """
    return all(one.startswith(_OF_TIME) for one in found)


def findings(calm: Observed, attacked: Observed, slack: float = 1.0) -> list[str]:
    """Every bound that was broken, in words; empty: none was.

    Bounds of time are `slack` times as wide, and `slack` divides the least work. With `slack`, the
    p99 has a higher floor.
    """
    p99_floor_s = P99_FLOOR_S if slack == 1.0 else SHARED_P99_FLOOR_S
    found = []
    if attacked.work is None:
        found.append("the attack ended without its summary")
    else:
        if lacks := attacked.work.lacks(attacked.least, slack):
            found.append(f"the attack did too little: {', '.join(lacks)}")
        if breaches := attacked.work.counts.get("breaches", 0):
            found.append(f"{breaches} answers that a bound of the node must prevent")
    if attacked.ended:
        found.append(f"ended: nodes {', '.join(map(str, attacked.ended))}")
    if attacked.elections:
        found.append(f"the metadata quorum elected {attacked.elections} times")
    if attacked.internal_errors:
        found.append(f"{attacked.internal_errors} answers of status 500, or tracebacks")
    found += [f"left over: {one}" for one in attacked.leftovers]
    calm_holds = calm.loop_holds * attacked.seconds / calm.seconds
    holds_max = HOLDS_SPARE + math.ceil(P99_FACTOR_MAX * calm_holds)
    if attacked.loop_holds > holds_max:
        found.append(
            f"event loops were held for over {LOOP_HELD_S_MAX * slack * 1000:.0f} ms of processor "
            f"time {attacked.loop_holds} times; without an attack {holds_max} would be"
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
    elif not attacked.p99_s <= slack * max(p99_floor_s, P99_FACTOR_MAX * calm.p99_s):
        found.append(
            f"the other clients' p99 was {attacked.p99_s * 1000:.0f} ms; "
            f"without an attack {calm.p99_s * 1000:.0f} ms"
        )
    return found
