"""Ceilings for what the tree still has too much of: a count may fall and never rise.

`tests/ceilings.txt` has a line `RULE PLACE COUNT` for each rule that a place does not meet yet. A
count above its ceiling is a fault. A ceiling well above its count is a fault as well, so that it is
lowered as work lands: `python -m tests.tidy --lower` rewrites the file. Merges of the file keep the
lines of both sides (`.gitattributes`), and the lowest line of a place counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CEILINGS: Final = Path(__file__).parent / "ceilings.txt"
SLACK: Final = 15
"""Percent of a count by which its ceiling may exceed it."""
SLACK_MIN: Final = 10
"""Faults by which a ceiling may always exceed its count."""
CODE_RULES: Final = frozenset({"long-function", "unreferenced", "positional", "outside"})
"""Rules without a tolerance. Counts of prose also change when two branches merge."""
TOLERANCE: Final = 3
"""Faults of prose above a ceiling that pass. It cannot add up, since no ceiling rises."""
WORDS_TOLERANCE: Final = 2
"""Percent of words above a ceiling that pass."""

Key = tuple[str, str]
"""A rule and a place: a package or a page, relative to the repository."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a rule counts in a place, and the most that the rule itself allows there."""

    rule: str
    place: str
    count: int
    allowed: int = 0


def read(path: Path = CEILINGS) -> dict[Key, int]:
    """The ceilings, by rule and place."""
    ceilings: dict[Key, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            rule, place, count = line.split()
            ceilings[rule, place] = min(int(count), ceilings.get((rule, place), int(count)))
    return ceilings


def faults(figures: Iterable[Figure], ceilings: Mapping[Key, int]) -> list[str]:
    """Each figure above its ceiling, and each ceiling that is too high."""
    found: list[str] = []
    for figure in figures:
        ceiling = ceilings.get((figure.rule, figure.place))
        most = max(figure.allowed, _tolerated(figure.rule, ceiling or 0))
        if figure.count > most:
            found.append(f"{figure.rule} {figure.place}: {figure.count}, at most {most}")
        elif ceiling is not None and ceiling > _highest(figure):
            found.append(
                f"{figure.rule} {figure.place}: {figure.count}, ceiling {ceiling}: "
                "run `python -m tests.tidy --lower`"
            )
    return found


def _tolerated(rule: str, ceiling: int) -> int:
    """The highest count that passes below a ceiling. A place without a ceiling has no tolerance."""
    if rule in CODE_RULES or ceiling == 0:
        return ceiling
    return ceiling + (ceiling * WORDS_TOLERANCE // 100 if rule == "words" else TOLERANCE)


def _highest(figure: Figure) -> int:
    """The highest ceiling that the figure may keep."""
    count = max(figure.count, figure.allowed)
    return max(count + SLACK_MIN, count + count * SLACK // 100)


def write(figures: Iterable[Figure], ceilings: Mapping[Key, int], path: Path = CEILINGS) -> None:
    """Lower each ceiling to its count. A ceiling that a rule no longer needs is removed."""
    lines: list[str] = []
    for figure in sorted(figures, key=lambda figure: (figure.rule, figure.place)):
        count = min(figure.count, ceilings.get((figure.rule, figure.place), 0))
        if count > figure.allowed:
            lines.append(f"{figure.rule} {figure.place} {count}\n")
    path.write_text("# RULE PLACE COUNT: see tests/ratchet.py\n" + "".join(lines))
