from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from raftlog.cli.settings import (
    SettingsError,
    combine,
    descriptions,
    from_environment,
    from_file,
    from_flags,
    settings_of,
    unknown_variables,
)


class Limits(msgspec.Struct, frozen=True):
    bytes_max: Annotated[int, Meta(ge=1, le=100)] = 50
    """How many bytes."""
    ratio: float = 0.5


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: str
    """The directory of all data."""
    rack: str | None = None
    flush: Literal["sync", "async"] = "sync"
    is_open: bool = False
    defaults: dict[str, str] = {}
    limits: Limits = Limits()


ALL = list(settings_of(Settings))


def combined(
    tmp_path: Path,
    *,
    flags: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    path = tmp_path / "node.toml"
    if file is not None:
        path.write_text(file)
    return combine(
        Settings,
        from_flags(ALL, flags or {}),
        from_environment(ALL, environment or {}),
        from_file(ALL, path) if file is not None else iter(()),
    )


def test_names_follow_from_the_field() -> None:
    setting = next(setting for setting in ALL if setting.path == ("limits", "bytes_max"))
    assert setting.flag == "--limits-bytes-max"
    assert setting.variable == "RAFTLOG_LIMITS_BYTES_MAX"
    assert setting.key == "limits.bytes_max"


def test_flag_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = 'data_dir = "f"\nrack = "f"\nflush = "async"\n[limits]\nbytes_max = 1\nratio = 0.1\n'
    environment = {
        "RAFTLOG_DATA_DIR": "e", "RAFTLOG_RACK": "e", "RAFTLOG_LIMITS_BYTES_MAX": "2",
    }  # fmt: skip
    settings = combined(
        tmp_path,
        flags={"data_dir": "a", "rack": None, "limits.bytes_max": "3"},
        environment=environment,
        file=file,
    )
    assert settings == Settings(
        data_dir="a", rack="e", flush="async", is_open=False, limits=Limits(3, 0.1)
    )


def test_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    settings = combined(tmp_path, flags={"data_dir": "a"}, environment={"RAFTLOG_RACK": ""})
    assert settings.rack is None


def test_switches_and_mappings_from_every_source(tmp_path: Path) -> None:
    base = {"data_dir": "a"}
    expected = Settings(data_dir="a", is_open=True, defaults={"x": "1", "y": "a=b"})
    assert expected == combined(
        tmp_path, flags={**base, "is_open": True, "defaults": ("x=1", "y=a=b")}
    )
    assert expected == combined(
        tmp_path,
        flags=base,
        environment={"RAFTLOG_IS_OPEN": "true", "RAFTLOG_DEFAULTS": "x=1, y=a=b"},
    )
    file = 'is_open = true\n[defaults]\nx = 1\ny = "a=b"\n'
    assert expected == combined(tmp_path, flags=base, file=file)


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ({}, r"--data-dir is missing \(or RAFTLOG_DATA_DIR, or data_dir in the file\)"),
        ({"flags": {"data_dir": "a", "limits.bytes_max": "0"}}, "--limits-bytes-max: '0': .*>= 1"),
        ({"flags": {"data_dir": "a", "limits.bytes_max": "x"}}, "--limits-bytes-max: 'x': .*int"),
        ({"flags": {"data_dir": "a", "defaults": ("x",)}}, "--defaults: 'x' is not NAME=VALUE"),
        (
            {"environment": {"RAFTLOG_FLUSH": "never"}},
            "RAFTLOG_FLUSH: 'never': Expected one of sync, async",
        ),
        (
            {"file": "[limits]\nbytes_mx = 1"},
            r"unknown key limits.bytes_mx; did you mean limits.bytes_max\?",
        ),
        ({"file": "zzz = 1"}, "unknown key zzz$"),
        ({"file": "[zzz]\na = 1"}, "unknown key zzz$"),
        ({"file": "limits = 5"}, r"is a table: \[limits\]"),
        ({"file": '[limits]\nbytes_max = "5"'}, "limits.bytes_max in .*: '5': Expected int"),
        ({"file": "= 1"}, "is not TOML: .*line 1"),
    ],
)
def test_complaint_names_the_origin(
    tmp_path: Path, sources: dict[str, Any], complaint: str
) -> None:
    if sources and "flags" not in sources:
        sources = {**sources, "flags": {"data_dir": "a"}}
    with pytest.raises(SettingsError, match=complaint):
        combined(tmp_path, **sources)


def test_misspelt_variables_are_found() -> None:
    environment = {"RAFTLOG_FLUSHH": "", "RAFTLOG_FLUSH": "", "RAFTLOG_SERVERS": "", "HOME": ""}
    assert unknown_variables(ALL, environment) == ["RAFTLOG_FLUSHH"]


def test_descriptions_come_from_the_source() -> None:
    assert descriptions(Settings) == {"data_dir": "The directory of all data."}
    assert descriptions(Limits) == {"bytes_max": "How many bytes."}
