"""Failures of a fleet, worded for the operator."""

from __future__ import annotations

from types import UnionType
from typing import Final

DETAIL_CHARACTERS_MAX: Final = 2_000
"""Characters of a failed step's stderr. Its end names the cause."""


class FleetError(Exception):
    """A change that cannot continue. `str()` names the cause, `hint` the next step."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class SpecError(FleetError):
    """The fleet's file is wrong."""


def has_cause(error: BaseException | None, kinds: type | UnionType) -> bool:
    """Whether an error, or a cause of it, is of one of these kinds."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False


class HostError(FleetError):
    """A step that failed on one host."""

    def __init__(self, host: str, step: str, detail: str) -> None:
        """`detail` is the end of stderr, or the reason in words."""
        self.host = host
        self.step = step
        self.detail = detail.strip()[-DETAIL_CHARACTERS_MAX:]
        super().__init__(f"{host}: cannot {step}: {self.detail or 'no reason given'}")


class UnreachableError(HostError):
    """The host did not answer in time, or ssh could not log in."""
