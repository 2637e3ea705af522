"""The part of the Compose specification that docker/compose.yaml uses, as plain data. Pure.

An unknown key or form raises ComposeError: a trial that ignored a key would prove something else
than the file says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

SECRETS_DIRECTORY: Final = "/run/secrets"
RestartPolicy: TypeAlias = Literal["no", "always", "unless-stopped"]

_UNITS: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"(\d+)([bkmg])b?")
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_TOP_KEYS: Final = frozenset({"name", "services", "volumes", "secrets"})
_SERVICE_KEYS: Final = frozenset(
    {
        "image",
        "build",
        "hostname",
        "user",
        "command",
        "environment",
        "volumes",
        "secrets",
        "ports",
        "read_only",
        "cap_drop",
        "security_opt",
        "restart",
        "stop_grace_period",
        "mem_limit",
        "pids_limit",
        "ulimits",
        "healthcheck",
    }
)
_HEALTH_KEYS: Final = frozenset({"test", "interval", "timeout", "retries", "start_period"})


class ComposeError(ValueError):
    """The file has an unknown key or form; the message names the place."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The probe of a service: a command; its exit code 0 means healthy."""

    command: tuple[str, ...]
    interval_s: int
    timeout_s: int
    retries: int
    start_period_s: int


@dataclass(frozen=True, slots=True)
class Build:
    """The build of the image, by paths relative to the compose file."""

    context: str
    dockerfile: str


@dataclass(frozen=True, slots=True)
class Port:
    """A published port: a listener on the host, and the service's port."""

    host: str
    host_port: int
    port: int


@dataclass(frozen=True, slots=True)
class Service:
    """One service. None stands for the image's own value."""

    name: str
    image: str
    build: Build
    hostname: str
    user: str | None
    command: tuple[str, ...] | None
    environment: dict[str, str]
    volumes: dict[str, str]
    """Path in the container → name of the volume."""
    secrets: tuple[str, ...]
    ports: tuple[Port, ...]
    is_read_only: bool
    dropped_capabilities: tuple[str, ...]
    has_new_privileges: bool
    """Whether a program may gain privileges that its parent lacks."""
    restart: RestartPolicy
    stop_grace_s: int
    memory_bytes_max: int | None
    processes_max: int | None
    limits: dict[str, int]
    """Resource limit, such as `nofile` → its soft and hard value."""
    health: HealthCheck | None


@dataclass(frozen=True, slots=True)
class Project:
    """A whole compose file."""

    name: str
    services: tuple[Service, ...]
    volumes: tuple[str, ...]
    secret_files: dict[str, str]
    """Secret → its file, relative to the compose file."""


def parse_project(document: Any) -> Project:
    """The file, as read by a YAML parser. Raises ComposeError."""
    top = _table(document, "the file")
    # Keys that begin with x- hold fragments for YAML anchors, by the specification.
    _check_keys({key for key in top if not key.startswith("x-")}, _TOP_KEYS, "the file")
    volumes = _table(top.get("volumes", {}), "volumes")
    for name, options in volumes.items():
        if options is not None:
            raise ComposeError(f"volumes.{name}: only a volume without options is understood")
    secrets = {
        name: _text(_only_key(value, "file", f"secrets.{name}"), f"secrets.{name}.file")
        for name, value in _table(top.get("secrets", {}), "secrets").items()
    }
    services = tuple(
        _service(name, _table(value, f"services.{name}"))
        for name, value in _table(top.get("services"), "services").items()
    )
    for service in services:
        unknown = {*service.volumes.values()} - {*volumes} | {*service.secrets} - {*secrets}
        if unknown:
            raise ComposeError(f"services.{service.name} uses undeclared {sorted(unknown)}")
    return Project(_text(top.get("name"), "name"), services, tuple(volumes), secrets)


def duration_s(value: Any, place: str) -> int:
    """Seconds of a duration such as `1m30s`. Raises ComposeError."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None or not found[0]:
        raise ComposeError(f"{place}: {value!r} is no duration such as 90s or 1m30s")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def size_bytes(value: Any, place: str) -> int:
    """Bytes of a size such as `2g`. Raises ComposeError."""
    found = _SIZE.fullmatch(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise ComposeError(f"{place}: {value!r} is no size such as 512m or 2g")
    return int(found[1]) * _UNITS[found[2]]


def _service(name: str, table: Mapping[str, Any]) -> Service:
    place = f"services.{name}"
    _check_keys(table, _SERVICE_KEYS, place)
    build = _table(table.get("build"), f"{place}.build")
    _check_keys(build, frozenset({"context", "dockerfile"}), f"{place}.build")
    options = _texts(table.get("security_opt", []), f"{place}.security_opt")
    if unknown := set(options) - {"no-new-privileges:true"}:
        raise ComposeError(f"{place}.security_opt: {sorted(unknown)} is not understood")
    restart = table.get("restart", "no")
    if restart not in get_args(RestartPolicy):
        raise ComposeError(f"{place}.restart: {restart!r} is not one of {get_args(RestartPolicy)}")
    command = table.get("command")
    memory, health = table.get("mem_limit"), table.get("healthcheck")
    return Service(
        name=name,
        image=_text(table.get("image"), f"{place}.image"),
        build=Build(
            _text(build.get("context"), f"{place}.build.context"),
            _text(build.get("dockerfile"), f"{place}.build.dockerfile"),
        ),
        hostname=_text(table.get("hostname", name), f"{place}.hostname"),
        user=None if "user" not in table else _text(table["user"], f"{place}.user"),
        command=None if command is None else _texts(command, f"{place}.command"),
        environment={
            key: _text(value, f"{place}.environment.{key}")
            for key, value in _table(table.get("environment", {}), f"{place}.environment").items()
        },
        volumes=dict(
            _volume(text, f"{place}.volumes")
            for text in _texts(table.get("volumes", []), f"{place}.volumes")
        ),
        secrets=_texts(table.get("secrets", []), f"{place}.secrets"),
        ports=tuple(
            _port(text, f"{place}.ports")
            for text in _texts(table.get("ports", []), f"{place}.ports")
        ),
        is_read_only=_truth(table.get("read_only", False), f"{place}.read_only"),
        dropped_capabilities=_texts(table.get("cap_drop", []), f"{place}.cap_drop"),
        has_new_privileges=not options,
        restart=restart,
        stop_grace_s=duration_s(table.get("stop_grace_period", "10s"), f"{place}.stop_grace"),
        memory_bytes_max=None if memory is None else size_bytes(memory, f"{place}.mem_limit"),
        processes_max=_number_or_none(table.get("pids_limit"), f"{place}.pids_limit"),
        limits={
            key: _number(value, f"{place}.ulimits.{key}")
            for key, value in _table(table.get("ulimits", {}), f"{place}.ulimits").items()
        },
        health=None if health is None else _health(health, f"{place}.healthcheck"),
    )


def _health(value: Any, place: str) -> HealthCheck:
    table = _table(value, place)
    _check_keys(table, _HEALTH_KEYS, place)
    test = _texts(table.get("test"), f"{place}.test")
    if len(test) < 2 or test[0] != "CMD":
        raise ComposeError(f"{place}.test: only [CMD, program, …] is understood")
    return HealthCheck(
        test[1:],
        duration_s(table.get("interval", "30s"), f"{place}.interval"),
        duration_s(table.get("timeout", "30s"), f"{place}.timeout"),
        _number(table.get("retries", 3), f"{place}.retries"),
        duration_s(table.get("start_period", "0s"), f"{place}.start_period"),
    )


def _volume(text: str, place: str) -> tuple[str, str]:
    name, separator, path = text.partition(":")
    if not separator or not re.fullmatch(r"[\w.-]+", name) or not re.fullmatch(r"/[^:]*", path):
        raise ComposeError(f"{place}: {text!r} is not VOLUME:/PATH")
    return path, name


def _port(text: str, place: str) -> Port:
    found = re.fullmatch(r"([\d.]+):(\d+):(\d+)", text)
    if found is None:
        raise ComposeError(f"{place}: {text!r} is not ADDRESS:PORT:PORT")
    return Port(found[1], int(found[2]), int(found[3]))


def _check_keys(keys: Any, known: frozenset[str], place: str) -> None:
    if unknown := set(keys) - known:
        raise ComposeError(f"{place}: {sorted(unknown)} is not understood")


def _only_key(value: Any, key: str, place: str) -> Any:
    table = _table(value, place)
    _check_keys(table, frozenset({key}), place)
    return table.get(key)


def _table(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ComposeError(f"{place} is no table")
    return value


def _text(value: Any, place: str) -> str:
    # YAML reads 1 as a number, where a command line or an environment has text: Compose quotes it.
    if not isinstance(value, str):
        raise ComposeError(f"{place}: {value!r} is no text; quote it")
    return value


def _texts(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ComposeError(f"{place} is no list")
    return tuple(_text(one, place) for one in value)


def _truth(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise ComposeError(f"{place}: {value!r} is neither true nor false")
    return value


def _number(value: Any, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ComposeError(f"{place}: {value!r} is no number")
    return value


def _number_or_none(value: Any, place: str) -> int | None:
    return None if value is None else _number(value, place)
