"""A fleet of real nodes on this machine, by the commands as a person would type them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raftlog_client import Admin, Consumer, Producer, TopicPartition

from raftlog.cluster.layout import Layout, manager_pid
from raftlog.cluster.process import start_ticks
from tests.waiting import wait_until

RAFTLOG = (sys.executable, "-m", "raftlog.cli", "fleet")
TIMEOUT_S = 240.0
HOME = '[fleet]\nhome = "home"\n[[cluster]]\nname = "home"\ndriver = "local"\nnodes = 1\n'
HOME += "base_port = 0\n"


class Commands:
    """Runs `raftlog fleet …` for one file."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "fleet.toml"
        self.directory = directory

    def write(self, orders: str | None) -> None:
        """The home cluster, and the cluster of log `orders` with these keys."""
        cluster = '[[cluster]]\nlog = "orders"\ndriver = "local"\nbase_port = 0\n'
        self.file.write_text(HOME + ("" if orders is None else f"{cluster}{orders}"))

    def run(self, command: str, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [*RAFTLOG, command, str(self.file), *options],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("RAFTLOG_")},
        )
        assert ended.returncode == code, (ended.stdout, ended.stderr, self.logs())
        return ended

    def document(self, command: str, *options: str, code: int = 0) -> Any:
        return json.loads(self.run(command, *options, "--format", "json", code=code).stdout)

    def apply(self, *options: str) -> list[str]:
        """The steps that it takes, without waits, which depend on the machine's speed."""
        said = self.run("apply", *options).stderr.splitlines()
        return [line for line in said if line[:2] in ("+ ", "~ ", "- ") and "wait" not in line]

    def servers(self, cluster: str) -> str:
        manifest = Layout.at(self.directory / "fleet" / cluster).require_manifest()
        return ",".join(manifest.addresses)

    def logs(self) -> str:
        logs = sorted(self.directory.glob("fleet/*/logs/*.log"))
        return "\n".join(f"--- {log}\n{log.read_text()[-2000:]}" for log in logs)

    async def catalog(self) -> dict[str, dict[str, Any] | None]:
        """The newest value of each log."""
        return {
            key.decode(): None if value is None else json.loads(value)
            for key, value in await records(self.servers("home"), "raftlog.catalog")
        }


async def records(servers: str, topic: str) -> list[tuple[bytes, bytes | None]]:
    place = TopicPartition(topic, 0)
    found: list[tuple[bytes, bytes | None]] = []
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            batch = (await consumer.getmany(timeout_ms=1_000)).get(place, [])
            found += [(record.key or b"", record.value) for record in batch]
    return found


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    commands.file.write_text("")
    commands.run("apply", "--prune")
    for directory in tmp_path.glob("fleet/*"):
        assert manager_pid(Layout.at(directory)) is None


async def test_fleet_is_created_changed_and_removed_as_the_file_says(fleet: Commands) -> None:
    # Nothing runs yet.
    fleet.write("nodes = 1\n")
    planned = fleet.run("plan", code=1).stdout.splitlines()
    assert planned[-1] == "6 steps to do"
    assert not fleet.document("status", code=1)["as_written"]
    assert [f"  {line}" for line in fleet.apply()] == planned[:-1]
    assert fleet.run("plan").stdout == "nothing to do\n"
    assert fleet.document("status")["as_written"]
    servers = fleet.servers("orders")
    entry = (await fleet.catalog())["orders"]
    assert entry is not None
    assert (entry["state"], entry["cluster"]) == ("online", "orders")
    assert entry["addresses"] == servers.split(",")
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait("orders", b"first", key=b"k")

    # A killed manager takes no node with it, and the next one takes the nodes over.
    before = pids(fleet)
    manager = manager_pid(Layout.at(fleet.directory / "fleet/orders"))
    assert manager
    os.kill(manager, signal.SIGKILL)
    wait_until(lambda: start_ticks(manager) is None, "the end of the manager")
    assert fleet.apply() == ["+ orders: start node 1"]
    assert pids(fleet) == before

    # Other settings, one node more, more partitions.
    fleet.write(
        'nodes = 2\npartitions = 2\nconfig = { "retention.ms" = -1 }\n'
        'settings = { log.level = "warning" }\n'
    )
    assert fleet.apply() == [
        "~ orders: restart node 1: new settings",
        "+ orders: add a node, number 2",
        "+ orders: give node 2 a vote",
        "~ orders: grow topic orders to 2 partitions",
        "~ orders: give each partition of orders 2 replicas",
        "~ orders: set retention.ms=-1 of topic orders",
        "~ orders: list log orders as online in the catalog",
    ]
    after = pids(fleet)
    assert after["home", 1] == before["home", 1]
    assert after["orders", 1] != before["orders", 1]
    # A second run has nothing to do, and restarts nothing.
    assert fleet.document("apply") == {"steps": 0}
    assert pids(fleet) == after
    servers = fleet.servers("orders")
    assert await records(servers, "orders") == [(b"k", b"first")]
    async with Admin(bootstrap_servers=servers) as admin:
        assert {len(one.isr) for one in (await admin.describe_topic("orders")).partitions} == {2}

    # One node less: emptied, stopped, unregistered; its data directory is kept.
    fleet.write('nodes = 1\npartitions = 2\nsettings = { log.level = "warning" }\n')
    steps = fleet.apply()
    assert [line for line in steps if "node 2" in line] == [
        "- orders: take the vote of node 2",
        "- orders: decommission node 2: move its replicas to others",
        "- orders: stop node 2 for good (its data directory is kept)",
        "- orders: unregister node 2",
    ]
    assert (fleet.directory / "fleet/orders/lost/node-2.1/directory.json").exists()

    # Out of the file: listed as removed, and stopped only by --prune; the data stays.
    fleet.write(None)
    assert fleet.apply() == ["- orders: list log orders as removed in the catalog"]
    entry = (await fleet.catalog())["orders"]
    assert entry is not None
    assert entry["state"] == "removed"
    assert await records(fleet.servers("orders"), "orders") == [(b"k", b"first")]
    assert fleet.apply("--prune") == [
        "- orders: stop the cluster (its data directories are kept)",
        "- orders: forget log orders in the catalog",
    ]
    assert (await fleet.catalog())["orders"] is None
    assert manager_pid(Layout.at(fleet.directory / "fleet/orders")) is None

    # Back in the file: started with its records.
    fleet.write('nodes = 1\npartitions = 2\nsettings = { log.level = "warning" }\n')
    assert fleet.apply() == [
        "~ orders: list log orders as degraded in the catalog",
        "+ orders: start node 1",
        "~ orders: list log orders as online in the catalog",
    ]
    assert await records(fleet.servers("orders"), "orders") == [(b"k", b"first")]


def test_wrong_files_and_a_second_apply_are_refused(tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    commands.write("nodez = 1\n")
    assert "nodez" in commands.run("plan", code=2).stderr
    commands.write('nodes = 1\nversion = "0.0.1"\n')
    assert "runs the installed version" in commands.run("plan", code=2).stderr
    commands.file.write_text("")
    assert "no cluster x" in commands.run("apply", "--replace", "x/1", code=2).stderr
    assert "CLUSTER/NODE" in commands.run("apply", "--replace", "x", code=2).stderr
    with commands.file.with_name("fleet.toml.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another apply" in commands.run("apply", code=1).stderr
    assert commands.document("apply") == {"steps": 0}


def pids(fleet: Commands) -> dict[tuple[str, int], int]:
    """The processes of all nodes."""
    found = {}
    for directory in fleet.directory.glob("fleet/*"):
        content = json.loads((directory / "processes.json").read_text())
        for node_id, record in content["nodes"].items():
            found[directory.name, int(node_id)] = record["pid"]
    return found
