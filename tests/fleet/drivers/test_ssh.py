"""The ssh driver with real nodes: hosts are loopback addresses, reached by a fake `ssh`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raftlog_client import Admin

from raftlog.cluster.process import free_ports, start_ticks, why_taken
from raftlog.fleet.errors import FleetError
from raftlog.fleet.reconciler import open_fleet
from tests.fleet.fake_hosts import SSH
from tests.integration.waiting import wait_for

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_hosts.py")
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


class Hosts:
    """The machines, and the fleet's file."""

    def __init__(self, root: Path) -> None:
        self.root = root / "hosts"
        self.file = root / "fleet.toml"
        self.said: list[str] = []
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
            for version in ("1", "2"):
                release = self.root / host / "opt/raftlog/releases" / version
                release.mkdir(parents=True)
                (release / ".complete").touch()

    def write(self, hosts: tuple[str, ...], more: str = "") -> None:
        names = ", ".join(f'"{host}"' for host in hosts)
        self.file.write_text(
            f'[[cluster]]\nlog = "bills"\nname = "billing"\ndriver = "ssh"\nport = {self.port}\n'
            f"hosts = [{names}]\n{more}"
        )

    def kill(self, host: str, node_id: int) -> None:
        """Kill a node; return after its end."""
        unit = self.root / host / f"billing-{node_id}.unit"
        pid = json.loads(unit.read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for("the end of the node", lambda: start_ticks(pid) is None)

    def lose_disk(self, host: str, node_id: int) -> None:
        """Kill a node, and remove its data."""
        self.kill(host, node_id)
        shutil.rmtree(self.root / host / f"var/lib/raftlog/billing-{node_id}")

    async def apply(self, **options: Any) -> list[str]:
        """The steps that an apply takes, without waits, which depend on the machine's speed."""
        self.said.clear()
        async with open_fleet(self.file, self.said.append) as fleet:
            await fleet.apply(**options)
        taken = [text for text in self.said if not text.startswith((" ", "waiting for "))]
        return [text for text in taken if "wait until ready" not in text]

    async def states(self) -> list[tuple[int, str, str | None, bool]]:
        """Node, host, version and readiness of each node."""
        async with open_fleet(self.file, self.said.append) as fleet:
            (report,) = await fleet.report()
            assert report.state is not None, report.error
            return [(n.node_id, n.host, n.version, n.is_ready) for n in report.state.nodes]

    def logs(self) -> str:
        return "\n".join(f"--- {p}\n{p.read_text()[-1500:]}" for p in self.root.glob("*/*.log"))

    def pids(self) -> list[int]:
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


async def test_hosts_are_created_upgraded_added_and_removed(hosts: Hosts) -> None:
    first, second, third = HOSTS
    hosts.write((first, second), 'version = "1"\n')
    assert await hosts.apply() == [
        f"+ billing: create the cluster: 2 voters on {first}, {second}",
        "+ billing: create topic bills: 1 partition, 2 replicas each",
    ], hosts.logs()
    assert await hosts.states() == [(1, first, "1", True), (2, second, "1", True)]
    secret = hosts.root / first / "etc/raftlog/cluster.secret"
    assert secret.read_text() == hosts.file.with_name("fleet.toml.secret").read_text()
    assert await hosts.apply() == []
    # One more host, another release, other settings: one node at a time.
    hosts.write(HOSTS, 'version = "2"\nsettings = { log.level = "warning" }\n')
    found = await hosts.apply()
    assert sorted(found[:2]) == [
        "~ billing: restart node 1: version 1 → 2, new settings",
        "~ billing: restart node 2: version 1 → 2, new settings",
    ], hosts.logs()
    assert found[2:4] == [
        f"+ billing: add a node, number 3, on {third}",
        "+ billing: give node 3 a vote",
    ]
    assert "~ billing: give each partition of bills 3 replicas" in found
    assert await hosts.states() == [(n, host, "2", True) for n, host in enumerate(HOSTS, 1)]
    # A lost disk is named, and replaced only on request: that of the controller, the worst case.
    async with Admin(bootstrap_servers=f"{first}:{hosts.port}") as admin:
        if (await admin.describe_quorum()).leader_id != 2:
            await admin.transfer_leadership(2)
    hosts.lose_disk(HOSTS[1], 2)
    with pytest.raises(FleetError, match="node 2 has been a member, and its data") as caught:
        await hosts.apply()
    assert "--replace billing/2" in (caught.value.hint or "")
    assert await hosts.apply(lost={"billing": {2}}) == [
        "~ billing: start node 2 on an empty disk, and copy its replicas"
    ], hosts.logs()
    assert await hosts.states() == [(n, host, "2", True) for n, host in enumerate(HOSTS, 1)]
    settings = (hosts.root / second / "etc/raftlog/billing-2.toml").read_text()
    assert "replace" not in settings
    # A host leaves the file: its node is emptied, stopped and unregistered; its data is kept.
    hosts.write((first, third), 'version = "2"\nsettings = { log.level = "warning" }\n')
    assert await hosts.apply() == [
        "- billing: take the vote of node 2",
        "~ billing: give each partition of bills 2 replicas",
        "- billing: decommission node 2: move its replicas to others",
        "- billing: stop node 2 for good (its data directory is kept)",
        "- billing: unregister node 2",
    ], hosts.logs()
    kept = "/var/lib/raftlog/billing-2"
    assert any(text.endswith(f"is kept as {second}:{kept}") for text in hosts.said)
    assert (hosts.root / second / kept[1:] / "directory.json").exists()
    assert await hosts.states() == [(1, first, "2", True), (3, third, "2", True)]


async def test_lost_disk_and_lost_host_are_named_and_never_presumed(hosts: Hosts) -> None:
    hosts.write(HOSTS[:1], 'version = "1"\n')
    await hosts.apply()
    host = hosts.root / HOSTS[0]
    # Not reachable by ssh.
    (host / "down").touch()
    with pytest.raises(FleetError, match="Connection refused"):
        await hosts.apply()
    for command, code in (("plan", 4), ("apply", 4), ("status", 1)):
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "raftlog.cli", "fleet", command, str(hosts.file)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode == code, ended.stderr
        assert "Connection refused" in ended.stderr
    (host / "down").unlink()
    # Stopped by an operator: started again.
    hosts.kill(HOSTS[0], 1)
    assert await hosts.apply() == ["+ billing: start node 1"]
    # Without its data: not started.
    hosts.lose_disk(HOSTS[0], 1)
    with pytest.raises(FleetError, match="data directory of every node is empty"):
        await hosts.apply()
    assert not (host / "var/lib/raftlog/billing-1").exists()


async def test_interrupted_creation_goes_on(hosts: Hosts) -> None:
    hosts.write(HOSTS[:2], 'version = "1"\n')
    release = hosts.root / HOSTS[1] / "opt/raftlog/releases/1/.complete"
    release.unlink()
    with pytest.raises(FleetError, match="the release is not installed"):
        await hosts.apply()
    # The first host has its node, which waits for the second voter.
    assert (hosts.root / HOSTS[0] / "etc/raftlog/billing-1.toml").exists()
    hosts.write((HOSTS[0], HOSTS[2]), 'version = "1"\n')
    with pytest.raises(FleetError, match="begun with other voters"):
        await hosts.apply()
    release.touch()
    hosts.write(HOSTS[:2], 'version = "1"\n')
    assert (await hosts.apply())[0].startswith("+ billing: create the cluster")
    assert [ready for *_, ready in await hosts.states()] == [True, True]
