"""Options of consumer instances: as clients write them, in numbers and in text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.consumer_instances import InstanceOptions
from raftlog.broker.offsets import NamedOffset
from raftlog.record.errors import INVALID_CONSUMER_CONFIG, LogError
from raftlog.rest.json.records import RecordFormat
from raftlog.rest.v2.consumer_options import ConsumerInstanceRequest, instance_options

INT32 = st.integers(0, 2**31 - 1)
NAMES = [
    "format",
    "auto.offset.reset",
    "auto.commit.enable",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "fetch.min.bytes",
    "consumer.request.timeout.ms",
]


def options(**fields: Any) -> InstanceOptions:
    body = msgspec.json.encode({name.replace("_", "."): value for name, value in fields.items()})
    return instance_options(msgspec.json.decode(body, type=ConsumerInstanceRequest))


def test_defaults_are_those_of_kafka() -> None:
    assert options() == InstanceOptions("binary", NamedOffset.LATEST, 5_000, 1, 1_000)


@given(
    record_format=st.sampled_from(RecordFormat),
    reset=st.sampled_from(NamedOffset),
    commits=st.booleans(),
    interval_ms=st.integers(1, 2**31 - 1),
    min_bytes=st.integers(-1, 2**31 - 1),
    timeout_ms=INT32,
    is_text=st.booleans(),
    is_upper=st.booleans(),
    name=st.sampled_from(["auto.commit.enable", "enable.auto.commit"]),
)
def test_options_in_any_spelling(
    *,
    record_format: RecordFormat,
    reset: NamedOffset,
    commits: bool,
    interval_ms: int,
    min_bytes: int,
    timeout_ms: int,
    is_text: bool,
    is_upper: bool,
    name: str,
) -> None:
    def spelt(value: str) -> str:
        return value.upper() if is_upper else value

    def number(value: int) -> int | str:
        return str(value) if is_text else value

    fields: dict[str, Any] = {
        "format": spelt(record_format),
        "auto.offset.reset": spelt(reset),
        name: spelt(str(commits)) if is_text else commits,
        "auto.commit.interval.ms": number(interval_ms),
        "fetch.min.bytes": number(min_bytes),
        "consumer.request.timeout.ms": number(timeout_ms),
        "topic.metadata.refresh.interval.ms": 100,
        "id": "7",
    }
    assert options(**fields) == InstanceOptions(
        record_format, reset, interval_ms if commits else 0, max(min_bytes, 1), timeout_ms
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"auto.commit.enable": True, "enable.auto.commit": "false"},
        {"auto.commit.interval.ms": 0},
        {"fetch.min.bytes": -2},
        {"fetch.min.bytes": "+1"},
        {"fetch.min.bytes": 2**31},
        {"consumer.request.timeout.ms": -1},
        {"consumer.request.timeout.ms": "1.5"},
        {"format": "protobuf"},
        {"auto.offset.reset": "none"},
    ],
)
def test_contradictions_and_values_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(LogError) as raised:
        options(**fields)
    assert raised.value.entry is INVALID_CONSUMER_CONFIG


@given(
    st.dictionaries(st.sampled_from(NAMES), st.text() | st.integers() | st.booleans() | st.none())
)
def test_no_option_makes_another_error(fields: dict[str, Any]) -> None:
    try:
        found = options(**fields)
    except LogError as error:
        assert error.entry is INVALID_CONSUMER_CONFIG
    except msgspec.ValidationError:
        pass
    else:
        assert found.format in tuple(RecordFormat)
        assert found.fetch_min_bytes >= 1
        assert 0 <= found.request_timeout_ms < 2**31
        assert 0 <= found.auto_commit_interval_ms < 2**31
