"""Each message in each version against kio, which was made of Kafka's definitions, too."""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from kio.serial import entity_reader, entity_writer
from msgspec.structs import fields, replace

from raftlog.kafka import messages
from raftlog.schema.codec import ELEMENTS_MAX, codec_of
from tests.schema import strategies

EXAMPLES: Final = (10, pytest.param(50, marks=pytest.mark.full))  # 50: half a minute
"""Examples of each message in each version."""
ERROR_CODES: Final = 90
"""kio knows no codes beyond Kafka's."""
TIMES: Final = frozenset(
    {
        "log_append_time_ms",
        "transaction_start_time_ms",
        "retention_time_ms",
        "session_lifetime_ms",
    }
)
TIME_MS_MAX: Final = 1 << 40
"""kio makes them times and durations of Python."""


def message_types() -> list[type[msgspec.Struct]]:
    """All requests and responses."""
    modules = [
        importlib.import_module(f"{messages.__name__}.{one.name}")
        for one in pkgutil.iter_modules(messages.__path__)
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and hasattr(value, "VERSIONS")
    ]


def judged(value: Any) -> Any:
    """The message, with values that kio can hold."""
    if isinstance(value, tuple):
        return tuple(judged(one) for one in value)
    if not isinstance(value, msgspec.Struct):
        return value
    changes: dict[str, Any] = {}
    for field in fields(value):
        found = getattr(value, field.name)
        if field.name.endswith("error_code"):
            changes[field.name] = found % ERROR_CODES
        elif field.name in TIMES and found != field.default:
            changes[field.name] = found % TIME_MS_MAX
        elif isinstance(found, tuple | msgspec.Struct):
            changes[field.name] = judged(found)
    return replace(value, **changes)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("message_type", message_types(), ids=lambda one: one.__name__)
def test_kio_reads_and_writes_the_same_bytes(
    message_type: type[msgspec.Struct], examples: int
) -> None:
    versions: Any = message_type.VERSIONS  # type: ignore[attr-defined]
    for version in range(versions.first, versions.last + 1):
        check_version(message_type, version, examples)


def check_version(message_type: type[msgspec.Struct], version: int, examples: int) -> None:
    name = message_type.__name__
    api = re.sub(r"(?<!^)(?=[A-Z])", "_", re.sub(r"(Request|Response)$", "", name)).lower()
    theirs = getattr(importlib.import_module(f"kio.schema.{api}.v{version}"), name)
    read, write, codec = (
        entity_reader(theirs),
        entity_writer(theirs),
        codec_of(message_type, version),
    )

    @given(drawn=strategies.messages(message_type, version))
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    def same_bytes(drawn: Any) -> None:
        message = judged(drawn)
        found = codec.encode(message)
        assert codec.decode(found, 0, ELEMENTS_MAX) == message
        entity, size = read(found, 0)
        assert size == len(found)
        written = io.BytesIO()
        write(written, entity)
        assert written.getvalue() == found

    same_bytes()
