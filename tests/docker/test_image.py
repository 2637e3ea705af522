"""The Dockerfile: names of `raftlog serve`, pinned dependencies, lint."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.docker.serve_names import (
    DOCKER,
    FLAGS,
    HEALTH_PATHS,
    VARIABLES,
    commands_of_unit,
    flags_in,
    read,
    settings_from,
    unknown_flags,
    unknown_variables,
    variables_in,
)
from tests.language import ROOT

DOCKERFILE: Final = DOCKER / "Dockerfile"
REGENERATE: Final = "docker/requirements.txt begins with the command that writes it again"
UNITS: Final = sorted((DOCKER / "systemd").glob("*.service"))
_PIN: Final = re.compile(r"^([\w.-]+)==([\w.]+)(?: ; ([^\\]+))? \\$", re.MULTILINE)


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of the last stage, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    stage = joined[joined.rindex("\nFROM ") :]
    found = [line.partition(" ") for line in stage.splitlines() if line]
    return [(name, rest.strip()) for name, _, rest in found]


def only(found: list[tuple[str, str]], name: str) -> str:
    (value,) = [rest for one, rest in found if one == name]
    return value


def environment(found: list[tuple[str, str]]) -> dict[str, str]:
    return dict(re.findall(r"([A-Z_]+)=(\S*)", only(found, "ENV")))


def test_dockerfile_names_only_what_serve_has() -> None:
    found = instructions(read(DOCKERFILE))
    variables = environment(found)
    assert unknown_variables(variables) == set()
    settings = settings_from(variables)
    assert only(found, "ENTRYPOINT") == '["raftlog", "serve"]'
    ports = {int(port) for port in only(found, "EXPOSE").split()}
    port = settings.listen_address()[1]
    assert ports == {port, 9092}
    probe = only(found, "HEALTHCHECK")
    assert [
        (int(one), path) for one, path in re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", probe)
    ] == [(port, "/healthy")]
    assert "/healthy" in HEALTH_PATHS
    # The mount point belongs to the engine: the node makes its own directory below.
    assert PurePosixPath(settings.data_dir).parent == PurePosixPath(only(found, "VOLUME"))


def test_the_image_runs_as_a_user_without_a_name() -> None:
    found = instructions(read(DOCKERFILE))
    assert only(found, "USER") == "10001:10001"
    assert only(found, "STOPSIGNAL") == "SIGTERM"
    assert {"title", "description", "licenses"} <= set(
        re.findall(r"org\.opencontainers\.image\.(\w+)=", only(found, "LABEL"))
    )


def test_only_the_build_stage_runs_pip() -> None:
    last = instructions(read(DOCKERFILE))
    commands = [rest for name, rest in last if name == "RUN"]
    assert all("install" not in command.replace("install -d", "") for command in commands)
    assert len([name for name, _ in last if name == "COPY"]) == 1


@pytest.mark.parametrize(
    ("file", "wanted"),
    [("requirements.txt", "dependencies"), ("requirements-build.txt", "build")],
)
def test_dependencies_are_pinned_by_hash_as_the_project_asks(file: str, wanted: str) -> None:
    project = tomllib.loads(read(ROOT / "pyproject.toml"))
    asked = (
        project["project"]["dependencies"]
        if wanted == "dependencies"
        else project["build-system"]["requires"]
    )
    pins = pinned(read(DOCKER / file))
    for text in asked:
        requirement = Requirement(text)
        version, _ = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text}, pinned {version}: {REGENERATE}"
    assert all(hashes for _, hashes in pins.values())


def pinned(text: str) -> dict[str, tuple[Version, int]]:
    """Name → version, and the number of hashes. Raises ValueError for a line without a hash."""
    found: dict[str, tuple[Version, int]] = {}
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    for block in re.split(r"\n(?=\S)", lines.strip()):
        pin = _PIN.match(block)
        if pin is None:
            raise ValueError(f"no pin with a hash: {block!r}")
        name = canonicalize_name(pin[1])
        assert name not in found
        found[name] = Version(pin[2]), len(re.findall(r"--hash=sha256:[0-9a-f]{64}", block))
    return found


def test_a_pin_without_a_hash_is_found() -> None:
    with pytest.raises(ValueError, match="no pin with a hash"):
        pinned("aiohttp==3.14.5\n")


def test_the_build_context_has_what_the_build_copies_and_little_else() -> None:
    ignored = read(ROOT / ".dockerignore").splitlines()
    assert "*" in ignored
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", read(DOCKERFILE), re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert kept == copied
    assert all((ROOT / source).exists() for source in copied)


def test_hadolint_has_no_finding() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_hadolint_finds_a_fault(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("hadolint")
    faulty = tmp_path / "Dockerfile"
    faulty.write_text("FROM debian:12\nRUN cd /tmp && sudo ls\n")
    done = subprocess.run([program, faulty], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "DL3004" in done.stdout


def unit_faults(text: str) -> set[str]:
    """The flags and variables of a unit's node unknown to `raftlog serve`."""
    commands = [one for one in commands_of_unit(text) if " serve" in one]
    assert commands, "the unit starts no node"
    flags = {flag for command in commands for flag in unknown_flags(command)}
    return flags | unknown_variables(variables_in(text))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_unit_names_only_what_serve_has(unit: Path) -> None:
    assert unit_faults(read(unit)) == set()


def test_a_unit_with_a_renamed_flag_is_found() -> None:
    text = (
        "[Service]\nEnvironment=RAFTLOG_FLUSCH=sync\n"
        "ExecStart=/opt/raftlog/current/bin/raftlog serve \\\n"
        "  --config /etc/raftlog/%i.toml --datadir /var/lib/raftlog/%i\n"
    )
    assert unit_faults(text) == {"--datadir", "RAFTLOG_FLUSCH"}


def test_names_of_serve_are_those_of_its_help() -> None:
    # The names come from the command itself: these stand for all.
    known: dict[str, Any] = {"--data-dir": FLAGS, "--no-auto-create-topics": FLAGS}
    assert all(name in names for name, names in known.items())
    assert {"RAFTLOG_DATA_DIR", "RAFTLOG_LIMITS_SHUTDOWN_S", "RAFTLOG_CONFIG"} <= VARIABLES
    assert flags_in("--a-b=1 x--y -- --c") == {"--a-b", "--c"}
