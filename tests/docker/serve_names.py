"""The names of `raftlog serve`: flags, variables, routes; and the names in a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import click

from raftlog.cli.serve import ServeSettings, serve
from raftlog.cli.settings import combine, from_environment, settings_of
from raftlog.http.health import ROUTES
from tests.language import ROOT

DOCKER: Final = ROOT / "docker"
KUBERNETES: Final = DOCKER / "kubernetes"
OVERLAYS: Final = ("single", "zones", "monitoring")

SETTINGS: Final = tuple(settings_of(ServeSettings))
FLAGS: Final = frozenset(
    name
    for parameter in serve.params
    if isinstance(parameter, click.Option)
    for name in (*parameter.opts, *parameter.secondary_opts)
)
VARIABLES: Final = frozenset({*(one.variable for one in SETTINGS), "RAFTLOG_CONFIG"})
HEALTH_PATHS: Final = frozenset(route.path for route in ROUTES)

_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_VARIABLE: Final = re.compile(r"\bRAFTLOG_[A-Z_]+\b")


def flags_in(text: str) -> set[str]:
    """The flags in a command line."""
    return set(_FLAG.findall(text))


def variables_in(text: str) -> set[str]:
    """The variables in a text with the prefix of settings."""
    return set(_VARIABLE.findall(text))


def unknown_flags(text: str) -> set[str]:
    """The flags in a command line unknown to `raftlog serve`."""
    return flags_in(text) - FLAGS


def unknown_variables(names: Iterable[str]) -> set[str]:
    """The variables with the prefix of settings, but no setting."""
    return {name for name in names if name.startswith("RAFTLOG_")} - VARIABLES


def settings_from(environment: Mapping[str, str]) -> ServeSettings:
    """The settings of a node with this environment, checked. Raises ValueError."""
    settings = combine(ServeSettings, from_environment(list(SETTINGS), environment))
    settings.check()
    return settings


def commands_of_unit(text: str) -> list[str]:
    """The command lines (`ExecStart` and its like) of a systemd unit, continued lines joined."""
    joined = text.replace("\\\n", " ")
    return re.findall(r"^Exec\w+=(.*)$", joined, re.MULTILINE)


def read(path: Path) -> str:
    """The text of a file."""
    return path.read_text(encoding="utf-8")
