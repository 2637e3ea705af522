"""A release is raftlog's wheel and those of its dependencies, each named by its hash.

Wheels are built once, on the deploying machine, with the versions that its environment runs. Hosts
need no package index and no compiler, and all run the same code.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raftlog.fleet.errors import DETAIL_CHARACTERS_MAX, FleetError

DISTRIBUTION: Final = "raftlog"
PIP: Final = "pip"
"""Package that installs the other wheels, run from its wheel, as hosts may lack it."""
SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "raftlog", "client")
"""All that the wheel is made of."""
BUILD_TIMEOUT_S: Final = 600.0
WHEELS_MAX: Final = 200
_DIGEST_CHARACTERS: Final = 10
_NOT_CODE: Final = ("RECORD", "WHEEL")
"""Files of a wheel that differ with the tool that built it."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel file."""

    path: Path
    name: str
    version: str
    tags: str
    """Python, ABI and platform, such as `cp311-cp311-manylinux_2_17_x86_64`."""

    @property
    def requirement(self) -> str:
        """The line of a requirements file that accepts this very file only."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return f"{self.name}=={self.version} --hash=sha256:{digest}"


@dataclass(frozen=True, slots=True)
class Release:
    """Wheels in one directory."""

    version: str
    """raftlog's version and a digest of the code. Equal code has an equal version."""
    wheel: Wheel
    pip: Wheel
    dependencies: tuple[Wheel, ...]
    """Wheels of the dependencies. Empty if hosts take them from the package index of their pip."""

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """All wheels to copy."""
        return (self.pip, self.wheel, *self.dependencies)

    @property
    def python(self) -> str:
        """The only CPython that compiled wheels fit, such as `3.11`. Empty if any does."""
        for wheel in self.dependencies:
            python, abi, _ = wheel.tags.split("-", 2)
            if python == abi and python.startswith("cp3"):
                return f"3.{python.removeprefix('cp3')}"
        return ""

    @property
    def requirements(self) -> str:
        """The content of a requirements file, with every wheel except pip's, by hash."""
        return "".join(f"{wheel.requirement}\n" for wheel in (self.wheel, *self.dependencies))


def read_release(directory: Path) -> Release:
    """The release in a directory of wheels. Blocks. Raises FleetError, OSError."""
    paths = sorted(directory.glob("*.whl"))
    if len(paths) > WHEELS_MAX:
        raise FleetError(f"{directory} holds {len(paths)} wheels: a release has {WHEELS_MAX} most")
    wheels = [_wheel(path) for path in paths]
    repeated = sorted(
        {wheel.name for wheel in wheels if [w.name for w in wheels].count(wheel.name) > 1}
    )
    if repeated:
        raise FleetError(f"{directory} holds several wheels of {', '.join(repeated)}: keep one")
    by_name = {wheel.name: wheel for wheel in wheels}
    for name in (DISTRIBUTION, PIP):
        if name not in by_name:
            raise FleetError(
                f"{directory} holds no wheel of {name}: `scripts/deploy --wheels` makes a release "
                "in an empty directory"
            )
    wheel, pip = by_name.pop(DISTRIBUTION), by_name.pop(PIP)
    dependencies = tuple(by_name.values())
    digest = _digest(wheel, dependencies)
    return Release(f"{wheel.version}-{digest}", wheel, pip, dependencies)


def build_release(source: Path, directory: Path) -> Release:
    """Build the wheels of a checkout and of its dependencies into an empty directory. Blocks.

    The dependencies have the versions of this environment. Raises FleetError, OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FleetError(f"{directory} is not empty: name another directory for the wheels")
    with tempfile.TemporaryDirectory(prefix="raftlog-build-") as temporary:
        copy = Path(temporary) / "source"
        # A build leaves files behind, which a later build would pack again, so it is never in the
        # checkout.
        _copy_sources(source, copy)
        installed = _pip("freeze", "--all", "--exclude-editable", "--exclude", DISTRIBUTION)
        pins = Path(temporary) / "constraints.txt"
        exact = [line for line in installed.splitlines() if "==" in line]
        pins.write_text("\n".join(exact) + "\n", encoding="utf-8")
        wheel = ("wheel", "--quiet", "--wheel-dir", str(directory), "--constraint", str(pins))
        _pip(*wheel, str(copy), PIP)
    return read_release(directory)


def _copy_sources(source: Path, target: Path) -> None:
    target.mkdir()
    for name in SOURCES:
        origin = source / name
        if origin.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
            shutil.copytree(origin, target / name, ignore=ignored)
        else:
            shutil.copy2(origin, target / name)


def _pip(*arguments: str) -> str:
    """Run this environment's pip. Return its output. Raises FleetError."""
    try:
        done = subprocess.run(
            (sys.executable, "-m", PIP, "--disable-pip-version-check", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FleetError(f"pip {arguments[0]} takes more than {BUILD_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        detail = done.stderr.strip()[-DETAIL_CHARACTERS_MAX:]
        raise FleetError(f"pip {arguments[0]} failed: {detail}")
    return done.stdout


def _wheel(path: Path) -> Wheel:
    parts = path.stem.split("-")
    # Name, version, an optional build number, Python, ABI, platform (PEP 427).
    if len(parts) not in (5, 6):
        raise FleetError(f"{path} does not have the name of a wheel")
    return Wheel(path, parts[0].replace("_", "-").lower(), parts[1], "-".join(parts[-3:]))


def _digest(wheel: Wheel, dependencies: tuple[Wheel, ...]) -> str:
    """A digest of raftlog's code and of the names of its dependencies' wheels."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel.path) as archive:
        for member in sorted(archive.infolist(), key=lambda one: one.filename):
            if member.filename.rpartition("/")[2] not in _NOT_CODE:
                digest.update(f"{member.filename} {member.CRC}\n".encode())
    for dependency in dependencies:
        digest.update(f"{dependency.path.name}\n".encode())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]
