"""The ssh driver with real nodes: hosts are loopback addresses, reached by a fake `ssh`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from raftlog_client import Admin

from raftlog.fleet.drivers.ssh import SshDriver
from raftlog.fleet.errors import FleetError
from raftlog.fleet.files import FleetFiles
from raftlog.fleet.reconciler import open_fleet
from raftlog.fleet.spec import ClusterSpec
from tests.fleet.hosts import HOSTS, Hosts


class FleetFile:
    """A fleet of one cluster on the hosts."""

    def __init__(self, hosts: Hosts, file: Path) -> None:
        self.hosts = hosts
        self.file = file
        self.said: list[str] = []

    def write(self, hosts: tuple[str, ...], more: str = "") -> None:
        names = ", ".join(f'"{host}"' for host in hosts)
        self.file.write_text(
            '[[cluster]]\nlog = "bills"\nname = "billing"\ndriver = "ssh"\n'
            f"port = {self.hosts.port}\nhosts = [{names}]\n{more}"
        )

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


@pytest.fixture
def fleet(hosts: Hosts, tmp_path: Path) -> FleetFile:
    return FleetFile(hosts, tmp_path / "fleet.toml")


async def test_hosts_are_created_upgraded_added_and_removed(hosts: Hosts, fleet: FleetFile) -> None:
    first, second, third = HOSTS
    fleet.write((first, second), 'version = "1"\n')
    assert await fleet.apply() == [
        f"+ billing: create the cluster: 2 voters on {first}, {second}",
        "+ billing: create topic bills: 1 partition, 2 replicas each",
    ], hosts.logs()
    assert await fleet.states() == [(1, first, "1", True), (2, second, "1", True)]
    secret = hosts.root / first / "etc/raftlog/cluster.secret"
    assert secret.read_text() == fleet.file.with_name("fleet.toml.secret").read_text()
    assert await fleet.apply() == []
    # One more host, another release, other settings: one node at a time.
    fleet.write(HOSTS, 'version = "2"\nsettings = { log.level = "warning" }\n')
    found = await fleet.apply()
    assert sorted(found[:2]) == [
        "~ billing: restart node 1: version 1 → 2, new settings",
        "~ billing: restart node 2: version 1 → 2, new settings",
    ], hosts.logs()
    assert found[2:4] == [
        f"+ billing: add a node, number 3, on {third}",
        "+ billing: give node 3 a vote",
    ]
    assert "~ billing: give each partition of bills 3 replicas" in found
    assert await fleet.states() == [(n, host, "2", True) for n, host in enumerate(HOSTS, 1)]
    # A lost disk is named, and replaced only on request: that of the controller, the worst case.
    async with Admin(bootstrap_servers=f"{first}:{hosts.port}") as admin:
        if (await admin.describe_quorum()).leader_id != 2:
            await admin.transfer_leadership(2)
    hosts.lose_disk(HOSTS[1], "billing-2")
    with pytest.raises(FleetError, match="node 2 has been a member, and its data") as caught:
        await fleet.apply()
    assert "--replace billing/2" in (caught.value.hint or "")
    assert await fleet.apply(lost={"billing": {2}}) == [
        "~ billing: start node 2 on an empty disk, and copy its replicas"
    ], hosts.logs()
    assert await fleet.states() == [(n, host, "2", True) for n, host in enumerate(HOSTS, 1)]
    settings = (hosts.root / second / "etc/raftlog/billing-2.toml").read_text()
    assert "replace" not in settings
    # A host leaves the file: its node is emptied, stopped and unregistered; its data is kept.
    fleet.write((first, third), 'version = "2"\nsettings = { log.level = "warning" }\n')
    assert await fleet.apply() == [
        "- billing: take the vote of node 2",
        "~ billing: give each partition of bills 2 replicas",
        "- billing: decommission node 2: move its replicas to others",
        "- billing: stop node 2 for good (its data directory is kept)",
        "- billing: unregister node 2",
    ], hosts.logs()
    kept = "/var/lib/raftlog/billing-2"
    assert any(text.endswith(f"is kept as {second}:{kept}") for text in fleet.said)
    assert (hosts.root / second / kept[1:] / "directory.json").exists()
    assert await fleet.states() == [(1, first, "2", True), (3, third, "2", True)]


async def test_lost_disk_and_lost_host_are_named_and_never_presumed(
    hosts: Hosts, fleet: FleetFile
) -> None:
    fleet.write(HOSTS[:1], 'version = "1"\n')
    await fleet.apply()
    host = hosts.root / HOSTS[0]
    # Not reachable by ssh.
    (host / "down").touch()
    with pytest.raises(FleetError, match="Connection refused"):
        await fleet.apply()
    for command, code in (("plan", 4), ("apply", 4), ("status", 1)):
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "raftlog.cli", "fleet", command, str(fleet.file)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode == code, ended.stderr
        assert "Connection refused" in ended.stderr
    (host / "down").unlink()
    # Stopped by an operator: started again.
    hosts.kill(HOSTS[0], "billing-1")
    assert await fleet.apply() == ["+ billing: start node 1"]
    # Without its data: not started.
    hosts.lose_disk(HOSTS[0], "billing-1")
    with pytest.raises(FleetError, match="data directory of every node is empty"):
        await fleet.apply()
    assert not (host / "var/lib/raftlog/billing-1").exists()


async def test_interrupted_creation_goes_on(hosts: Hosts, fleet: FleetFile) -> None:
    fleet.write(HOSTS[:2], 'version = "1"\n')
    release = hosts.root / HOSTS[1] / "opt/raftlog/releases/1/.complete"
    release.unlink()
    with pytest.raises(FleetError, match="the release is not installed"):
        await fleet.apply()
    # The first host has its node, which waits for the second voter.
    assert (hosts.root / HOSTS[0] / "etc/raftlog/billing-1.toml").exists()
    fleet.write((HOSTS[0], HOSTS[2]), 'version = "1"\n')
    with pytest.raises(FleetError, match="begun with other voters"):
        await fleet.apply()
    release.touch()
    fleet.write(HOSTS[:2], 'version = "1"\n')
    assert (await fleet.apply())[0].startswith("+ billing: create the cluster")
    assert [ready for *_, ready in await fleet.states()] == [True, True]


async def test_node_that_systemd_starts_again_and_again_does_not_stay_up(
    hosts: Hosts, tmp_path: Path
) -> None:
    spec = ClusterSpec(driver="ssh", name="billing", hosts=HOSTS[:1], port=hosts.port)
    driver = SshDriver(spec, None, (), FleetFiles(tmp_path / "fleet.toml"), print)
    settings = hosts.path(HOSTS[0], "etc/raftlog/billing-1.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text("node_id = 1\n")
    unit = hosts.path(HOSTS[0], "billing-1.unit")
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        found = []
        # Restarts of earlier weeks do not count.
        for restarts in (5, 7, 8):
            unit.write_text(json.dumps({"pid": process.pid, "ended": 1, "restarts": restarts}))
            await driver.inspect()
            found.append(await driver.failure(1))
        assert found[:2] == [None, None]
        assert "the end of its log" in (found[2] or "")
    finally:
        await driver.close()
        process.kill()
        await process.wait()
