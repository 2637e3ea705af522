"""The releases of a trial: this checkout's, one to upgrade to, and one that does not start."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raftlog.fleet.release import DISTRIBUTION, SOURCES, build_release
from tests.trial.lab import LabError

SOURCE: Final = Path(__file__).parents[2]


def build(directory: Path) -> Path:
    """The wheels of this checkout. Raises FleetError."""
    build_release(SOURCE, directory)
    return directory


def build_next(directory: Path, base: Path) -> Path:
    """A release like `base` with another version number. Raises LabError."""

    def edit(source: Path) -> None:
        project = source / "pyproject.toml"
        text = project.read_text()
        line = next(one for one in text.splitlines() if one.startswith("version = "))
        project.write_text(text.replace(line, f'{line[:-1]}.post1"', 1))

    return _variant(directory, base, edit)


def build_broken(directory: Path, base: Path) -> Path:
    """A release like `base` with a node that ends at its start. Raises LabError."""

    def edit(source: Path) -> None:
        module = source / "raftlog/node/process.py"
        module.write_text(f'{module.read_text()}\nraise SystemExit("this release is broken")\n')

    return _variant(directory, base, edit)


def _variant(directory: Path, base: Path, edit: Callable[[Path], None]) -> Path:
    directory.mkdir()
    for wheel in base.glob("*.whl"):
        if not wheel.name.startswith(f"{DISTRIBUTION}-"):
            shutil.copy2(wheel, directory / wheel.name)
    with tempfile.TemporaryDirectory(prefix="raftlog-variant-") as temporary:
        source = Path(temporary) / "source"
        source.mkdir()
        for name in SOURCES:
            origin = SOURCE / name
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(origin, source / name, ignore=ignored)
            else:
                shutil.copy2(origin, source / name)
        edit(source)
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
        done = subprocess.run(
            (*pip, "--wheel-dir", str(directory), str(source)),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise LabError(f"a variant of the release cannot be built: {done.stderr[-2000:]}")
    return directory
