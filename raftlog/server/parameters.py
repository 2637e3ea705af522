"""Path and query parameters as numbers, choices and names; each failure is a typed error."""

from __future__ import annotations

from collections.abc import Collection

from raftlog.record.errors import BAD_REQUEST, UNKNOWN_PARTITION, LogError
from raftlog.record.types import PartitionId
from raftlog.server.request import Request

INT64_MAX = 2**63 - 1
_DIGITS_MAX = 20


def whole_number(text: str) -> int | None:
    """The integer that `text` writes in plain ASCII decimal, or None.

    Stricter than `int()`, which takes blanks, underscores, a plus sign and any script's digits.
    """
    digits = text[1:] if text.startswith("-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
        return None
    return int(text)


def integer_parameter(
    request: Request, name: str, default: int, *, minimum: int = 0, maximum: int = INT64_MAX
) -> int:
    """A whole number from the query; LogError BAD_REQUEST if it is none or outside its bounds."""
    text = request.query_parameters.get(name)
    if text is None:
        return default
    value = whole_number(text)
    if value is None:
        raise LogError(BAD_REQUEST, f"{name} must be a whole number, not {text[:40]!r}.")
    if not minimum <= value <= maximum:
        raise LogError(BAD_REQUEST, f"{name} is {value}; allowed is {minimum} to {maximum}.")
    return value


def choice_parameter(request: Request, name: str, default: str, choices: Collection[str]) -> str:
    """One of `choices` from the query; LogError BAD_REQUEST if it is none of them."""
    value = request.query_parameters.get(name, default)
    if value not in choices:
        allowed = ", ".join(sorted(choices))
        raise LogError(BAD_REQUEST, f"{name} must be one of {allowed}, not {value[:40]!r}.")
    return value


def partition_parameter(request: Request, name: str = "partition") -> PartitionId:
    """The partition number in the path; LogError UNKNOWN_PARTITION if it is no such number."""
    text = request.path_parameters[name]
    value = whole_number(text)
    if value is None or not 0 <= value < 2**31:
        raise LogError(UNKNOWN_PARTITION, f"{text[:40]!r} is not a partition number.")
    return PartitionId(value)
