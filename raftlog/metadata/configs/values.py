"""A config is a row of a table, and values are checked against the row.

Values are strings. The deciding node normalises a value before the proposal. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from raftlog.record.errors import INVALID_CONFIG, LogError, quoted

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
VALUE_CHARACTERS_MAX: Final = 256
"""Characters of a value. A longer value is rejected unread, and no legal value comes near. Lists of
replicas have another bound."""
NO_EFFECT: Final = "raftlog keeps this config of Kafka's, and does not act on it."

INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(
    r"[+-]?([0-9]{1,19}(\.[0-9]{0,19})?|\.[0-9]{1,19})([eE][+-]?[0-9]{1,3})?"
)


class ConfigType(StrEnum):
    """How a config's value is written, in the words of Kafka's admin interface."""

    BOOLEAN = "BOOLEAN"
    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    LIST = "LIST"


@dataclass(frozen=True, slots=True)
class WordForm:
    """The form of a list's words, where they cannot be enumerated."""

    pattern: re.Pattern[str]
    description: str
    """Form of a word, for the error."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One row of the table. `lower` and `upper` are inclusive. `choices` are all legal words.

    A list with a `word_form`, in place of choices, may be empty.
    """

    name: str
    type: ConfigType
    default: str
    doc: str
    lower: int | None = None
    upper: int | None = None
    choices: tuple[str, ...] = ()
    word_form: WordForm | None = None
    characters_max: int = VALUE_CHARACTERS_MAX
    has_effect: bool = True

    @property
    def note(self) -> str:
        """A note for the reader of a value. Empty for a config with effect."""
        return "" if self.has_effect else NO_EFFECT

    @property
    def documentation(self) -> str:
        """Meaning and note."""
        return self.doc if self.has_effect else f"{self.doc} {NO_EFFECT}"


def validate_entry(entry: ConfigEntry, value: str) -> str:
    """The normalised value for a row of the table. Raises LogError(INVALID_CONFIG)."""
    if len(value) > entry.characters_max:
        raise LogError(
            INVALID_CONFIG,
            f"The value of {entry.name} has more than {entry.characters_max} characters.",
        )
    normalised = _NORMALISERS[entry.type](entry, value.strip())
    if entry.type is not ConfigType.LIST and entry.choices and normalised not in entry.choices:
        raise _invalid(entry, value)
    return normalised


def _normalise_int(entry: ConfigEntry, value: str) -> str:
    number = parse_int(entry, value)
    _check_bounds(entry, number, value)
    return str(number)


def _normalise_float(entry: ConfigEntry, value: str) -> str:
    number = parse_float(entry, value)
    _check_bounds(entry, number, value)
    return repr(number)


def _normalise_bool(entry: ConfigEntry, value: str) -> str:
    return "true" if parse_bool(entry, value) else "false"


def _normalise_list(entry: ConfigEntry, value: str) -> str:
    found = set(split_words(value))
    form = entry.word_form
    if form is None:
        is_valid = bool(found) and found <= set(entry.choices)
    else:
        is_valid = all(form.pattern.fullmatch(word) for word in found)
    if not is_valid:
        raise _invalid(entry, value)
    return ",".join(sorted(found))


def _normalise_string(_entry: ConfigEntry, value: str) -> str:
    return value


_NORMALISERS: Final[Mapping[ConfigType, Callable[[ConfigEntry, str], str]]] = {
    ConfigType.BOOLEAN: _normalise_bool,
    ConfigType.INT: _normalise_int,
    ConfigType.LONG: _normalise_int,
    ConfigType.DOUBLE: _normalise_float,
    ConfigType.STRING: _normalise_string,
    ConfigType.LIST: _normalise_list,
}


def parse_int(entry: ConfigEntry, value: str) -> int:
    """Parse the number. Raises LogError(INVALID_CONFIG) for anything else. Bounds do not matter."""
    if INTEGER.fullmatch(value) is None:
        raise _invalid(entry, value)
    return int(value)


def parse_float(entry: ConfigEntry, value: str) -> float:
    """Parse a finite number. Raises LogError(INVALID_CONFIG) for anything else."""
    if _NUMBER.fullmatch(value) is None or not math.isfinite(number := float(value)):
        raise _invalid(entry, value)
    return number


def parse_bool(entry: ConfigEntry, value: str) -> bool:
    """Parse `true` or `false`, in any case. Raises LogError(INVALID_CONFIG)."""
    word = value.lower()
    if word not in {"true", "false"}:
        raise _invalid(entry, value)
    return word == "true"


def split_words(value: str) -> list[str]:
    """The words of a comma-separated list."""
    return [word.strip() for word in value.split(",")] if value else []


def _check_bounds(entry: ConfigEntry, number: float, value: str) -> None:
    below = entry.lower is not None and number < entry.lower
    if below or (entry.upper is not None and number > entry.upper):
        raise _invalid(entry, value)


def _invalid(entry: ConfigEntry, value: str) -> LogError:
    return LogError(
        INVALID_CONFIG,
        f"{quoted(value)} is not a valid value of {entry.name}: expected {_expected(entry)}.",
    )


def _expected(entry: ConfigEntry) -> str:
    match entry.type:
        case ConfigType.LIST if entry.word_form is not None:
            return f"a comma-separated list of {entry.word_form.description}"
        case ConfigType.LIST:
            return f"a comma-separated list of {_either(entry.choices)}"
        case ConfigType.STRING:
            return _either(entry.choices)
        case ConfigType.BOOLEAN:
            return "true or false"
        case ConfigType.DOUBLE:
            return f"a number from {entry.lower} to {entry.upper}"
        case _:
            return f"a whole number from {entry.lower} to {entry.upper}"


def _either(choices: Iterable[str]) -> str:
    return " or ".join(repr(choice) for choice in choices)
