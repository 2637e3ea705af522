"""One definition of a node's settings becomes flags, environment variables and file keys.

The settings are a msgspec structure, where nested structures are tables of the file. The field
`body_bytes_max` of the nested `server` is `server.body_bytes_max` in the file,
`--server-body-bytes-max` as a flag and `RAFTLOG_SERVER_BODY_BYTES_MAX` in the environment.
Precedence: flags, the environment, the file, the settings remembered from the node's last start,
the default. Each setting is listed once, so none can be forgotten.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import msgspec

from raftlog.node.settings import NOT_SHOWN, is_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ENVIRONMENT_PREFIX = "RAFTLOG_"
# Understood by other commands and by the scripts, so no misspelt settings.
OTHER_VARIABLES = frozenset(
    {"RAFTLOG_SERVERS", "RAFTLOG_CONFIG", "RAFTLOG_VENV", "RAFTLOG_PYTHON", "RAFTLOG_SSH_OPTIONS"}
)

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


class SettingsError(ValueError):
    """An unusable setting. The message names its source."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of the settings, by its path from the top."""

    path: tuple[str, ...]
    type: Any
    default: Any
    is_required: bool
    owner: type[msgspec.Struct]

    @property
    def key(self) -> str:
        """The setting's name in the file, with the tables before it."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """Its command line flag."""
        return "--" + "-".join(self.path).replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return ENVIRONMENT_PREFIX + "_".join(self.path).upper()

    @property
    def is_switch(self) -> bool:
        """Whether the value is yes or no."""
        return self.type is bool

    @property
    def is_mapping(self) -> bool:
        """Whether the value holds names and values, as repeated NAME=VALUE."""
        return get_origin(self.type) is dict

    @property
    def is_secret(self) -> bool:
        """Whether the value must not be shown, not even in an error about it."""
        return is_secret(self.path[-1])

    @property
    def choices(self) -> tuple[str, ...]:
        """The legal words, if they are few."""
        words = get_args(self.type)
        return words if words and all(isinstance(word, str) for word in words) else ()


@dataclass(frozen=True, slots=True)
class Given:
    """A given value, and the name of its source."""

    setting: Setting
    value: Any
    origin: str
    is_typed: bool = False
    """Whether its type is explicit, as in TOML, and no text stands for a number."""


def settings_of(
    structure: type[msgspec.Struct], *, path: tuple[str, ...] = ()
) -> Iterator[Setting]:
    """Every setting of the structure, those of nested structures after their own names."""
    for field in msgspec.structs.fields(structure):
        here = (*path, field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from settings_of(field.type, path=here)
            continue
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield Setting(
            path=here,
            type=field.type,
            default=default,
            is_required=default is msgspec.NODEFAULT,
            owner=structure,
        )


def from_flags(settings: list[Setting], flags: Mapping[str, Any]) -> Iterator[Given]:
    """Values given on the command line. `flags` has None or nothing for absent values."""
    for setting in settings:
        value = flags.get(setting.key)
        if value is not None and value != ():
            if setting.is_mapping:
                value = _pairs(value, setting.flag)
            yield Given(setting, value, setting.flag)


def from_environment(settings: list[Setting], environment: Mapping[str, str]) -> Iterator[Given]:
    """Values from `RAFTLOG_…` variables. An empty variable counts as unset, as shells make them."""
    for setting in settings:
        value: Any = environment.get(setting.variable)
        if value:
            if setting.is_mapping:
                value = _pairs(value.split(","), setting.variable)
            yield Given(setting, value, setting.variable)


def unknown_variables(settings: list[Setting], environment: Mapping[str, str]) -> list[str]:
    """Variables with the prefix of settings but no setting, which are probably misspelt."""
    known = {setting.variable for setting in settings} | OTHER_VARIABLES
    return sorted(
        name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known
    )


def from_file(settings: list[Setting], path: Path) -> Iterator[Given]:
    """Values of a TOML file. SettingsError names an unknown key, with the likeliest key."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    by_path = {setting.path: setting for setting in settings}
    yield from _from_table(by_path, document, (), path)


def _from_table(
    by_path: dict[tuple[str, ...], Setting],
    table: dict[str, Any],
    prefix: tuple[str, ...],
    file: Path,
) -> Iterator[Given]:
    for name, value in table.items():
        here = (*prefix, name)
        key = ".".join(here)
        if setting := by_path.get(here):
            if setting.is_mapping and isinstance(value, dict):
                mapping = {str(word): _text(item) for word, item in value.items()}
                yield Given(setting, mapping, f"{key} in {file}", is_typed=True)
                continue
            yield Given(setting, value, f"{key} in {file}", is_typed=True)
        elif any(path[: len(here)] == here for path in by_path):
            if not isinstance(value, dict):
                raise SettingsError(f"{key} in {file} is a table: [{key}]")
            yield from _from_table(by_path, value, here, file)
        else:
            close = get_close_matches(key, [setting.key for setting in by_path.values()], 1)
            advice = f"; did you mean {close[0]}?" if close else ""
            raise SettingsError(f"{file} has the unknown key {key}{advice}")


def from_memory(
    settings: list[Setting], values: Mapping[str, Any], directory: str
) -> Iterator[Given]:
    """Values remembered by the node's data directory, by `Setting.key`."""
    for setting in settings:
        if setting.key in values:
            origin = f"{setting.key} remembered in {directory}"
            yield Given(setting, values[setting.key], origin, is_typed=True)


def combine(structure: type[_Settings], *sources: Iterator[Given]) -> _Settings:
    """Combine the settings of all sources. The first source with a value wins.

    SettingsError names the source of a bad value, or the missing settings.
    """
    chosen: dict[tuple[str, ...], Given] = {}
    for source in sources:
        for given in source:
            chosen.setdefault(given.setting.path, given)
    for setting in settings_of(structure):
        if setting.is_required and setting.path not in chosen:
            raise SettingsError(
                f"{setting.flag} is missing (or {setting.variable}, or {setting.key} in the file)"
            )
    tree: dict[str, Any] = {}
    for given in chosen.values():
        table = tree
        for name in given.setting.path[:-1]:
            table = table.setdefault(name, {})
        table[given.setting.path[-1]] = _converted(given)
    try:
        return msgspec.convert(tree, structure)
    except msgspec.ValidationError as error:
        raise SettingsError(str(error)) from error


def _converted(given: Given) -> Any:
    try:
        return msgspec.to_builtins(
            msgspec.convert(given.value, given.setting.type, strict=given.is_typed)
        )
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        if given.setting.choices:
            reason = f"Expected one of {', '.join(given.setting.choices)}"
        value = NOT_SHOWN if given.setting.is_secret else repr(given.value)
        raise SettingsError(f"{given.origin}: {value}: {reason}") from error


def _pairs(words: Any, origin: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, separator, value = word.strip().partition("=")
        if not (separator and name):
            raise SettingsError(f"{origin}: {word!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def _text(value: Any) -> Any:
    # Topic settings are text throughout, but people write `"retention.ms" = 1000` in TOML.
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def descriptions(structure: type[msgspec.Struct]) -> dict[str, str]:
    """The purpose of each field, from the string below the field in the source."""
    found: dict[str, str] = {}
    for owner in structure.__mro__:
        if issubclass(owner, msgspec.Struct) and owner is not msgspec.Struct:
            for name, text in _descriptions(owner):
                found.setdefault(name, text)
    return found


def _descriptions(structure: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    body = ast.parse(textwrap.dedent(inspect.getsource(structure))).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            yield statement.target.id, " ".join(following.value.value.split())
