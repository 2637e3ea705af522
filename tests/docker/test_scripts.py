"""shellcheck over all shell scripts of the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.language import ROOT

DIRECTORIES: Final = ("scripts", ".ci", "docker")
PROGRAM: Final = Path(sys.executable).with_name("shellcheck")


def shell_scripts() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *DIRECTORIES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in files if path.is_file() and is_shell(path)]


def is_shell(path: Path) -> bool:
    if path.suffix == ".sh":
        return True
    with path.open("rb") as file:
        first = file.readline(100)
    return first.startswith(b"#!") and first.split()[-1].endswith((b"sh", b"bash"))


def test_scripts_have_no_finding() -> None:
    scripts = shell_scripts()
    names = {str(path.relative_to(ROOT)) for path in scripts}
    assert {"scripts/_venv.sh", "scripts/test", "scripts/trial-docker", ".ci/run"} <= names
    done = subprocess.run(
        [PROGRAM, "--external-sources", f"--source-path=SCRIPTDIR:{ROOT}", *scripts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_shellcheck_finds_a_fault(tmp_path: Path) -> None:
    script = tmp_path / "faulty"
    script.write_text("#!/bin/sh\nrm -rf $1/*\n")
    done = subprocess.run([PROGRAM, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "SC2086" in done.stdout
