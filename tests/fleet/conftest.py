"""A fake machine: its programs are fake_machine.py's, its directories are below one of the test."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raftlog.fleet.drivers import ssh_host
from tests.fleet.hosts import hosts

__all__ = ["hosts"]

FAKE = Path(__file__).with_name("fake_machine.py")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root directory of the machine."""
    root = tmp_path / "machine"
    (root / "bin").mkdir(parents=True)
    for name in ("ssh", "sudo", "systemctl", "journalctl"):
        program = root / "bin" / name
        program.write_text(f"#!{sys.executable} -S\n{FAKE.read_text()}")
        program.chmod(0o755)
    monkeypatch.setenv("MACHINE_ROOT", str(root))
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv(ssh_host.SSH_OPTIONS_VARIABLE, raising=False)
    yield root
    for state in units(root).values():
        if isinstance(state, dict) and state["pid"]:
            with suppress(ProcessLookupError):
                os.kill(state["pid"], signal.SIGKILL)


def units(root: Path) -> dict[str, dict[str, int]]:
    path = root / "units.json"
    return json.loads(path.read_text()) if path.exists() else {}
