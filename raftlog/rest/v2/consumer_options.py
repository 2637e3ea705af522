"""REST clients write a consumer instance's options with dotted names, and numbers as text."""

from __future__ import annotations

from typing import Final

import msgspec

from raftlog.api.common import INT32_MAX
from raftlog.broker.consumer_instances import InstanceOptions
from raftlog.broker.offsets import NamedOffset
from raftlog.http.request import whole_number
from raftlog.record.errors import INVALID_CONSUMER_CONFIG, LogError, quoted
from raftlog.rest.json.records import RecordFormat

DEFAULTS: Final = InstanceOptions(RecordFormat.BINARY)
NO_MINIMUM: Final = -1
"""A `fetch.min.bytes` of the REST Proxy that returns with the first record."""

_RENAMED: Final = {
    "auto_offset_reset": "auto.offset.reset",
    "auto_commit_enable": "auto.commit.enable",
    "enable_auto_commit": "enable.auto.commit",
    "auto_commit_interval_ms": "auto.commit.interval.ms",
    "fetch_min_bytes": "fetch.min.bytes",
    "request_timeout_ms": "consumer.request.timeout.ms",
}


class ConsumerInstanceRequest(msgspec.Struct, frozen=True, omit_defaults=True, rename=_RENAMED):
    """A consumer instance to create. Other fields, options of Kafka's consumers, are ignored."""

    name: str | None = None
    """Id of the instance. If null, the node generates it."""
    id: str | None = None
    """Ignored number. Proxies that keep instances to themselves number themselves by it."""
    format: str | None = None
    """binary (the default), json or text."""
    auto_offset_reset: str | None = None
    """Start without a committed offset, latest (the default) or earliest."""
    auto_commit_enable: bool | str | None = None
    """Whether a read commits the records of the reads before it. The default is true."""
    enable_auto_commit: bool | str | None = None
    """The same option, as Kafka's consumers name it."""
    auto_commit_interval_ms: int | str | None = None
    """Shortest milliseconds between two such commits. The default is 5000."""
    fetch_min_bytes: int | str | None = None
    """Bytes of a response to wait for, until the read's timeout. -1 stands for any record."""
    request_timeout_ms: int | str | None = None
    """Timeout of a read that names none, in milliseconds. The default is 1000."""


def instance_options(body: ConsumerInstanceRequest) -> InstanceOptions:
    """The options of a request. Raises LogError INVALID_CONSUMER_CONFIG."""
    commits = _flag("auto.commit.enable", body.auto_commit_enable)
    other = _flag("enable.auto.commit", body.enable_auto_commit)
    if commits is not None and other not in (None, commits):
        raise _invalid("auto.commit.enable and enable.auto.commit contradict each other")
    commits = other if commits is None else commits
    interval_ms = _number(
        "auto.commit.interval.ms",
        body.auto_commit_interval_ms,
        DEFAULTS.auto_commit_interval_ms,
        minimum=1,
    )
    min_bytes = _number(
        "fetch.min.bytes", body.fetch_min_bytes, DEFAULTS.fetch_min_bytes, minimum=NO_MINIMUM
    )
    return InstanceOptions(
        format=_choice("format", body.format, DEFAULTS.format, tuple(RecordFormat)),
        auto_offset_reset=NamedOffset(
            _choice(
                "auto.offset.reset",
                body.auto_offset_reset,
                DEFAULTS.auto_offset_reset,
                tuple(NamedOffset),
            )
        ),
        auto_commit_interval_ms=0 if commits is False else interval_ms,
        fetch_min_bytes=max(min_bytes, 1),
        request_timeout_ms=_number(
            "consumer.request.timeout.ms",
            body.request_timeout_ms,
            DEFAULTS.request_timeout_ms,
            minimum=0,
        ),
    )


def _invalid(reason: str) -> LogError:
    return LogError(INVALID_CONSUMER_CONFIG, f"Invalid consumer configuration: {reason}.")


def _choice(name: str, given: str | None, default: str, choices: tuple[str, ...]) -> str:
    if given is None:
        return default
    value = given.lower()
    if value not in choices:
        raise _invalid(f"{name} is one of {', '.join(choices)}, not {quoted(given)}")
    return value


def _flag(name: str, given: bool | str | None) -> bool | None:
    if given is None or isinstance(given, bool):
        return given
    value = given.lower()
    if value not in ("true", "false"):
        raise _invalid(f"{name} is true or false, not {quoted(given)}")
    return value == "true"


def _number(name: str, given: int | str | None, default: int, *, minimum: int) -> int:
    if given is None:
        return default
    value = whole_number(given) if isinstance(given, str) else given
    if value is None or not minimum <= value <= INT32_MAX:
        raise _invalid(f"{name} is a whole number from {minimum} to {INT32_MAX}, not {given!r:.40}")
    return value
