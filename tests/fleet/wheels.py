"""Small wheels for tests of releases."""

from __future__ import annotations

import ensurepip
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

PIP_PLACES = (Path(ensurepip.__file__).with_name("_bundled"), Path("/usr/share/python-wheels"))


def write_wheel(
    directory: Path,
    name: str,
    version: str = "1.0",
    *,
    tags: str = "py3-none-any",
    code: str = "",
    requires: str = "",
    command: str = "",
    module: str = "",
    generator: str = "one",
    built_at: tuple[int, int, int, int, int, int] = (2026, 1, 1, 0, 0, 0),
) -> Path:
    """A wheel with one module, and one command that calls its `main`, if named."""
    distribution = name.replace("-", "_")
    module = module or distribution
    info = f"{distribution}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if requires:
        metadata += f"Requires-Dist: {requires}\n"
    files = {
        f"{module}.py": code or "def main():\n    print('1.0')\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: {generator}\n"
        f"Root-Is-Purelib: true\nTag: {tags}\n",
    }
    if command:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{command} = {module}:main\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    path = directory / f"{distribution}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(zipfile.ZipInfo(member, built_at), content)
    return path


def copy_pip(directory: Path) -> Path:
    """A real wheel of pip; skips the test where this Python has none."""
    for place in PIP_PLACES:
        for wheel in sorted(place.glob("pip-*.whl")):
            return Path(shutil.copy(wheel, directory))
    pytest.skip(f"no wheel of pip comes with {sys.executable}")
