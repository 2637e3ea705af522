"""Releases read from wheels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from raftlog.fleet.errors import FleetError
from raftlog.fleet.release import build_release, read_release
from tests.fleet.wheels import write_wheel


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    directory = tmp_path / "wheels"
    directory.mkdir()
    write_wheel(directory, "pip")
    return directory


def test_equal_code_is_the_same_release_however_it_was_built(wheels: Path) -> None:
    write_wheel(wheels, "raftlog", "0.4.0", code="a = 1\n")
    write_wheel(wheels, "leaf")
    first = read_release(wheels)
    built = {"built_at": (2027, 1, 1, 0, 0, 0), "generator": "another"}
    write_wheel(wheels, "raftlog", "0.4.0", code="a = 1\n", **built)
    assert read_release(wheels).version == first.version
    assert first.version.startswith("0.4.0-")
    write_wheel(wheels, "raftlog", "0.4.0", code="a = 2\n")
    second = read_release(wheels).version
    assert second != first.version
    write_wheel(wheels, "other-leaf")
    assert read_release(wheels).version not in (first.version, second)


def test_requirements_name_every_wheel_but_pips_by_its_hash(wheels: Path) -> None:
    paths = [
        write_wheel(wheels, "raftlog", "0.4.0"),
        write_wheel(wheels, "other-leaf", "2.0"),
    ]
    lines = read_release(wheels).requirements.splitlines()
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert lines == [
        f"raftlog==0.4.0 --hash=sha256:{digests[0]}",
        f"other-leaf==2.0 --hash=sha256:{digests[1]}",
    ]


def test_compiled_wheels_name_the_only_python(wheels: Path) -> None:
    write_wheel(wheels, "raftlog")
    write_wheel(wheels, "stable", tags="cp39-abi3-manylinux_2_17_x86_64")
    assert read_release(wheels).python == ""
    write_wheel(wheels, "compiled", tags="cp311-cp311-manylinux_2_17_x86_64")
    assert read_release(wheels).python == "3.11"


def test_a_directory_that_is_no_release_is_refused(wheels: Path) -> None:
    with pytest.raises(FleetError, match="no wheel of raftlog"):
        read_release(wheels)
    write_wheel(wheels, "raftlog", "0.4.0")
    write_wheel(wheels, "raftlog", "0.5.0")
    with pytest.raises(FleetError, match="several wheels of raftlog"):
        read_release(wheels)
    (wheels / "raftlog.whl").touch()
    with pytest.raises(FleetError, match="does not have the name of a wheel"):
        read_release(wheels)


def test_wheels_are_built_into_an_empty_directory_only(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="is not empty"):
        build_release(tmp_path, wheels)
