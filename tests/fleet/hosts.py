"""Hosts of tests: loopback addresses, reached by a fake `ssh`, with real nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cluster.process import free_ports, start_ticks, why_taken
from tests.fleet.fake_hosts import SSH
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_hosts.py")
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


class Hosts:
    """The machines."""

    def __init__(self, root: Path) -> None:
        self.root = root / "hosts"
        (self.root / "bin").mkdir(parents=True)
        python = f"#!{sys.executable} -S\n{FAKE.read_text()}"
        for name, text in (("ssh", SSH), ("systemctl", python), ("journalctl", python)):
            program = self.root / "bin" / name
            program.write_text(text)
            program.chmod(0o755)
        free = free_ports(HOSTS[0], 20)
        self.port = next(p for p in free if not any(why_taken(host, p) for host in HOSTS))
        (self.root / "port").write_text(json.dumps(self.port))
        for host in HOSTS:
            self.add(host)

    def add(self, host: str) -> None:
        """A machine that has releases 1 and 2 and nothing else."""
        for version in ("1", "2"):
            release = self.path(host, "opt/raftlog/releases") / version
            release.mkdir(parents=True)
            (release / ".complete").touch()

    def path(self, host: str, path: str) -> Path:
        """A path of a machine."""
        return self.root / host / path

    def kill(self, host: str, name: str) -> None:
        """Kill a node; return after its end."""
        pid = json.loads(self.path(host, f"{name}.unit").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: start_ticks(pid) is None, "the end of the node")

    def lose_disk(self, host: str, name: str) -> None:
        """Kill a node, and remove its data."""
        self.kill(host, name)
        shutil.rmtree(self.path(host, f"var/lib/raftlog/{name}"))

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {p}\n{p.read_text()[-1500:]}" for p in self.root.glob("*/*.log"))

    def pids(self) -> list[int]:
        """The processes of all nodes."""
        units = [json.loads(path.read_text() or "{}") for path in self.root.glob("*/*.unit")]
        return [unit["pid"] for unit in units if unit.get("pid")]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    monkeypatch.setenv("HOSTS_ROOT", str(found.root))
    monkeypatch.setenv("PATH", f"{found.root / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("RAFTLOG_TEST_PYTHON", sys.executable)
    # The nodes' interpreter has another name, so it does not find what is installed as editable.
    paths = [str(ROOT), str(ROOT / "client"), *filter(None, sys.path)]
    monkeypatch.setenv("RAFTLOG_TEST_PATH", os.pathsep.join(paths))
    monkeypatch.delenv("RAFTLOG_SSH_OPTIONS", raising=False)
    yield found
    for pid in found.pids():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
