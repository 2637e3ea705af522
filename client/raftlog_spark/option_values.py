"""Values of options: text as it was given, into what it means. All raise ValueError otherwise."""

from __future__ import annotations

import re

VALUE_SHOWN_MAX = 80
_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def topics(value: str) -> tuple[str, ...]:
    """Topics with commas between them; each once, in the order given."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    if not all(found):
        raise ValueError("must be topics, with commas between them")
    return found


def pattern(value: str) -> str:
    """A regular expression, not empty."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    if not value:
        raise ValueError("must not be empty")
    return value


def name(value: str) -> str:
    """Text that is not empty."""
    if not value:
        raise ValueError("must not be empty")
    return value


def count(value: str) -> int:
    """A whole number above 0."""
    if not re.fullmatch(r"\+?\d{1,18}", value) or int(value) == 0:
        raise ValueError("must be a whole number above 0")
    return int(value)


def timestamp_ms(value: str) -> int:
    """Milliseconds since 1970-01-01 UTC."""
    if not re.fullmatch(r"\d{1,18}", value):
        raise ValueError("must be milliseconds since 1970-01-01 UTC")
    return int(value)


def duration_ms(value: str) -> int:
    """A time with its unit, in milliseconds; without one it is in milliseconds."""
    match = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", value.lower())
    unit = match and (match[2] or "ms")
    if not match or unit not in _UNITS_MS:
        raise ValueError("must be a time such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[str(unit)]


def boolean(value: str) -> bool:
    """true or false, in any case."""
    if value.lower() not in {"true", "false"}:
        raise ValueError("must be true or false")
    return value.lower() == "true"


def short(value: str) -> str:
    """A value for an error's text, quoted, and cut if it is long."""
    return repr(value if len(value) <= VALUE_SHOWN_MAX else value[: VALUE_SHOWN_MAX - 3] + "...")
