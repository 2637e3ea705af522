"""`scripts/deploy`: plans of hosts, real nodes on fake hosts, one real release."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from raftlog_client import Admin

from raftlog.cli.main import cli
from raftlog.cluster.manifest import NODES_MAX
from raftlog.cluster.membership import Probes
from raftlog.cluster.process import free_ports
from raftlog.fleet.deploy import Deployment, cluster_of, open_deployment
from raftlog.fleet.deploy_command import main
from raftlog.fleet.drivers.ssh_host import SECRET_PATH, SshHost
from raftlog.fleet.errors import FleetError
from raftlog.fleet.release import Release, Wheel, read_release
from tests.fleet.hosts import HOSTS, Hosts
from tests.fleet.wheels import copy_pip, write_wheel

PORT = 8082
TIMEOUT_S = 60.0
FOURTH = "127.0.0.5"
SECRET = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n"
REAL_PYTHON = Path(sys.executable).resolve()
SERVES = "def main():\n    from raftlog.cli.main import main\n    main()\n"
ENDS = """
def main():
    import sys
    sys.exit("this release is broken" if "serve" in sys.argv else 0)
"""


def installed(version: str) -> Release:
    """A release that every fake host has."""
    wheel = Wheel(Path(), "raftlog", version, "py3-none-any")
    return Release(version, wheel, wheel, ())


class Hand:
    """Opens deployments, as one command line after the other does."""

    def __init__(self, work: Path, port: int = PORT) -> None:
        self.port = port
        self.said: list[str] = []
        self._work = work
        self._count = 0

    @asynccontextmanager
    async def on(self, *words: str, rack_from: str | None = None) -> AsyncIterator[Deployment]:
        """A deployment on these hosts, which remembers nothing of earlier deployments."""
        self._count += 1
        work = self._work / f"work-{self._count}"
        work.mkdir()
        self.said.clear()
        spec = cluster_of(words, self.port)
        async with open_deployment(
            spec, work, self.said.append, rack_from=rack_from, timeout_s=TIMEOUT_S
        ) as deployment:
            yield deployment

    async def preview(self, *words: str, **options: Any) -> list[str]:
        async with self.on(*words, **options) as deployment:
            return await deployment.preview()


@pytest.fixture
def hand(tmp_path: Path, hosts: Hosts) -> Hand:
    return Hand(tmp_path)


def texts_of(lines: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The nodes of a preview by host: heading, and settings file."""
    found: dict[str, tuple[str, str]] = {}
    heads = [number for number, row in enumerate(lines) if row.endswith(("(new)", "(kept)"))]
    for start, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        host, _, head = lines[start].partition(": ")
        rows = [f"{row.removeprefix('    ')}\n" for row in lines[start + 1 : end]]
        found[host] = (head, "".join(rows))
    return found


def nodes_of(lines: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The nodes of a preview by host: heading, and settings."""
    return {host: (head, tomllib.loads(text)) for host, (head, text) in texts_of(lines).items()}


def write_node(hosts: Hosts, host: str, name: str, text: str) -> None:
    """The settings file of a node with data."""
    file = hosts.path(host, f"etc/raftlog/{name}.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    data = hosts.path(host, f"var/lib/raftlog/{name}")
    data.mkdir(parents=True)
    (data / "directory.json").touch()


def settings_before(node_id: int, address: str, origin: str) -> str:
    """A settings file as the deployer of release 0.4 wrote it."""
    return (
        "# Written by scripts/deploy at the first start; later changes here are kept.\n"
        f'node_id = {node_id}\nlisten = "0.0.0.0:{address.rpartition(":")[2]}"\n'
        f'advertised = "{address}"\n{origin}\n'
    )


# Plans


@pytest.mark.parametrize(
    ("word", "ssh", "host"),
    [
        ("h1", "h1", "h1"),
        ("admin@h1:22", "admin@h1:22", "h1"),
        ("admin@h1=10.0.0.1", "admin@h1", "10.0.0.1"),
        ("admin@[fd00::1]:22", "admin@[fd00::1]:22", "fd00::1"),
    ],
)
def test_a_host_has_an_ssh_address_and_one_for_nodes(word: str, ssh: str, host: str) -> None:
    (machine,) = cluster_of([word]).machines
    assert (machine.address, machine.name) == (ssh, host)


def test_hosts_are_named_once_and_are_not_too_many() -> None:
    for words in (["h1", "root@h1"], ["h1=10.0.0.1", "h1=10.0.0.2"]):
        with pytest.raises(FleetError, match="h1 is named more than once"):
            cluster_of(words)
    with pytest.raises(FleetError, match=f"hosts of a cluster: .*{NODES_MAX}"):
        cluster_of([f"h{number}" for number in range(NODES_MAX + 1)])
    with pytest.raises(FleetError, match="`hosts` names its machines"):
        cluster_of([])


@pytest.mark.parametrize("word", ["", "a b", "=10.0.0.1", "@h1"])
def test_a_word_that_is_no_host_fails_the_command(word: str) -> None:
    found = CliRunner().invoke(main, [word])
    assert found.exit_code == 1, found.output
    assert "deploy: " in found.output


async def test_the_first_three_hosts_vote_and_later_ones_join(hand: Hand) -> None:
    lines = await hand.preview("h1", "h2", "root@h3:22", "h4=10.0.0.4", "h5")
    assert [line.strip() for line in lines if line.startswith("  +")] == [
        "+ node: create the cluster: 3 voters on h1, h2, h3",
        "+ node: add a node, number 4, on 10.0.0.4",
        "+ node: add a node, number 5, on h5",
    ]
    nodes = nodes_of(lines)
    assert list(nodes) == ["h1", "h2", "root@h3:22", "h4", "h5"]
    assert [head for head, _ in nodes.values()] == [f"node-{n} (new)" for n in range(1, 6)]
    found = [settings for _, settings in nodes.values()]
    assert [settings["node_id"] for settings in found] == [1, 2, 3, 4, 5]
    assert found[3]["advertised"] == "10.0.0.4:8082"
    voters = "1@h1:8082,2@h2:8082,3@h3:8082"
    assert [settings.get("voters") for settings in found] == [voters] * 3 + [None] * 2
    joins = [settings.get("join") for settings in found]
    assert joins == [None] * 3 + ["h1:8082,h2:8082,h3:8082"] * 2


async def test_a_single_host_is_a_cluster(hand: Hand) -> None:
    hand.port = 9000
    ((_, settings),) = nodes_of(await hand.preview("h1")).values()
    assert settings["voters"] == "1@h1:9000"


@pytest.mark.parametrize("word", ["h1", "[fd00::1]"])
async def test_serve_understands_the_settings(word: str, hand: Hand, tmp_path: Path) -> None:
    lines = await hand.preview(word, "h2", "h3", "h4", rack_from="printf 'ü \"b\"'")
    for _, text in (nodes := texts_of(lines)).values():
        path = tmp_path / "node.toml"
        path.write_text(text)
        data = str(tmp_path / "d")
        command = ["serve", "--config", str(path), "--data-dir", data, "--show-settings"]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["rack"] == 'ü "b"'
    assert len(nodes) == 4


async def test_nodes_keep_number_port_and_settings_whatever_the_order(
    hosts: Hosts, hand: Hand
) -> None:
    texts = {}
    for number in (1, 2, 3):
        origin = 'voters = "1@h1:9000,2@h2:9000,3@h3:9000"\nrack = "mine" # of an operator'
        texts[f"h{number}"] = settings_before(number, f"h{number}:9000", origin)
        write_node(hosts, f"h{number}", f"node-{number}", texts[f"h{number}"])
    # A rack is that of new hosts only.
    lines = await hand.preview("h3", "h1", "h2", rack_from="echo other")
    assert lines[0].strip().startswith("+ node: start nodes 1, 2, 3")
    assert texts_of(lines) == {
        f"h{number}": (f"node-{number} (kept)", texts[f"h{number}"]) for number in (1, 2, 3)
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node_id =", "is not TOML"),
        ('node_id = 2\nadvertised = "h1:8082"', "`node_id = 1`"),
        ("node_id = 1", "`advertised`"),
    ],
)
async def test_settings_of_another_origin_are_refused(
    text: str, message: str, hosts: Hosts, hand: Hand
) -> None:
    write_node(hosts, "h1", "node-1", text)
    with pytest.raises(FleetError, match=message):
        await hand.preview("h1")


async def test_hosts_of_several_nodes_or_clusters_are_refused(hosts: Hosts, hand: Hand) -> None:
    text = settings_before(1, "h1:8082", 'voters = "1@h1:8082"')
    for host in ("h1", "h2"):
        write_node(hosts, host, "node-1", text)
    with pytest.raises(FleetError, match=r"h1 and h2 both run node 1.*different clusters"):
        await hand.preview("h1", "h2")
    write_node(hosts, "h1", "orders-1", "")
    with pytest.raises(FleetError, match=r"h1 runs node-1, orders-1.*one node a host"):
        await hand.preview("h1")
    write_node(hosts, "h3", "orders-1", "")
    with pytest.raises(FleetError, match=r"h3:/etc/raftlog/orders-1.toml is not of scripts/deploy"):
        await hand.preview("h3")


async def test_a_replacement_needs_one_host_for_it_and_others_to_join(
    hosts: Hosts, hand: Hand
) -> None:
    text = settings_before(1, "h1:8082", 'voters = "1@h1:8082"')
    write_node(hosts, "h1", "node-1", text)
    for words, lost, message in (
        (["h1"], 3, "there are 0"),
        (["h1", "h2", "h3"], 3, "there are 2"),
        (["h1"], 1, "no other node is left"),
    ):
        async with hand.on(*words) as deployment:
            with pytest.raises(FleetError, match=message):
                await deployment.preview(lost)
            with pytest.raises(FleetError, match=message):
                await deployment.replace(lost, installed("1"))
    with pytest.raises(FleetError, match="no other node is left"):
        async with hand.on("h2") as deployment:
            await deployment.replace(1, installed("1"))


async def test_different_secrets_are_refused_before_a_change(hosts: Hosts, hand: Hand) -> None:
    for host, secret in (("h2", "a"), ("h3", "b")):
        file = hosts.path(host, SECRET_PATH[1:])
        file.parent.mkdir(parents=True)
        file.write_text(secret)
    async with hand.on("h1", "h2", "h3") as deployment:
        with pytest.raises(FleetError, match="the secrets of h2, h3 differ"):
            await deployment.up(installed("1"))
    assert not hosts.path("h1", "etc").exists() and not hosts.path("h1", "opt").exists()


def test_exit_codes_name_the_kind_of_a_failure(hosts: Hosts) -> None:
    hosts.add("h1")
    (hosts.root / "h1/down").touch()
    assert CliRunner().invoke(main, ["h1", "--dry-run"]).exit_code == 4
    assert CliRunner().invoke(main, []).exit_code == 2
    assert CliRunner().invoke(main, ["--upgrade", "--down", "h1"]).exit_code == 2
    (hosts.root / "h1/down").unlink()
    assert CliRunner().invoke(main, ["h1", "--down"]).exit_code == 1
    found = CliRunner().invoke(main, ["h1", "--dry-run"])
    assert (found.exit_code, nodes_of(found.stdout.splitlines())["h1"][0]) == (0, "node-1 (new)")


# Nodes


async def voters_at(address: str) -> set[int]:
    async with Admin(bootstrap_servers=address) as admin:
        return {voter.node_id for voter in (await admin.describe_quorum()).voters}


async def ready(address: str, hosts: Hosts) -> None:
    probes = Probes()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while await probes.why_not_ready(address) is not None:  # noqa: ASYNC110 - a poll
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(hosts.logs()) from None
    finally:
        await probes.close()


async def versions(hosts: Sequence[str]) -> list[str | None]:
    found = []
    for number, name in enumerate(hosts, 1):
        async with SshHost(name) as host:
            found.append((await host.status(f"node-{number}")).version)
    return found


@pytest.mark.full  # three real nodes; drivers/test_ssh upgrades hosts
async def test_hosts_of_an_earlier_release_are_recognised_and_upgraded(
    hosts: Hosts, tmp_path: Path
) -> None:
    """The deployer before left settings, secret, unit and link, and nothing of a fleet."""
    addresses = [f"{host}:{hosts.port}" for host in HOSTS]
    voters = ",".join(f"{number}@{address}" for number, address in enumerate(addresses, 1))
    texts = {}
    for number, (name, address) in enumerate(zip(HOSTS, addresses, strict=True), 1):
        more = f'voters = "{voters}"\nlog.level = "warning" # of an operator'
        texts[name] = settings_before(number, address, more)
        async with SshHost(name) as host:
            await host.install_unit()
            await host.write_file(SECRET_PATH, SECRET, 0o600)
            await host.configure(f"node-{number}", texts[name])
            await host.activate("1")
            await host.start(f"node-{number}")
    hand = Hand(tmp_path)
    for address in addresses:
        await ready(address, hosts)
    async with hand.on(*reversed(HOSTS)) as deployment:
        pids = hosts.pids()
        assert await deployment.up(installed("2")) == addresses[::-1]
        assert hosts.pids() == pids
        assert [line for line in hand.said if "--upgrade brings it" in line] == [
            f"node-{n} on {HOSTS[n - 1]} runs 1, and the release here is 2: --upgrade brings it"
            for n in (1, 2, 3)
        ]
    assert await versions(HOSTS) == ["1", "1", "1"]
    probes = Probes()
    last = await probes.controller(*addresses)
    await probes.close()
    async with hand.on(*HOSTS) as deployment:
        await deployment.upgrade(installed("2"))
        restarts = [line for line in hand.said if line.startswith("~ node: restart")]
        order = [*(n for n in (1, 2, 3) if n != last), last]
        assert restarts == [f"~ node: restart node {n}: version 1 → 2" for n in order]
        assert await versions(HOSTS) == ["2", "2", "2"]
        await deployment.upgrade(installed("2"))
        assert "nothing to do" in hand.said[-1]
    for name in HOSTS:
        broken = hosts.path(name, "opt/raftlog/releases/3")
        broken.mkdir()
        (broken / ".complete").touch()
        (broken / "broken").touch()
    async with hand.on(*HOSTS) as deployment:
        with pytest.raises(FleetError, match="runs 2 again") as caught:
            await deployment.upgrade(installed("3"))
        assert "this release is broken" in str(caught.value)
    assert await versions(HOSTS) == ["2", "2", "2"]
    # Stopped nodes: what does not start with the release goes back, and what serves stays.
    hosts.path(HOSTS[0], "opt/raftlog/releases/3/broken").unlink()
    async with hand.on(*HOSTS) as deployment:
        hosts.kill(HOSTS[0], "node-1")
        hosts.kill(HOSTS[1], "node-2")
        with pytest.raises(FleetError, match="node 2 runs 2 again") as caught:
            await deployment.upgrade(installed("3"))
        assert "node 1 runs" not in str(caught.value)
    assert await versions(HOSTS) == ["3", "2", "2"]
    for number, name in enumerate(HOSTS, 1):
        async with SshHost(name) as host:
            assert await host.current() == ("3" if number == 1 else "2")
            assert await host.read_file(SECRET_PATH) == SECRET
            assert await host.configurations() == {f"node-{number}": texts[name]}


@pytest.mark.full  # five real nodes; drivers/test_ssh adds hosts and loses their disks
async def test_a_cluster_from_nothing_grows_loses_a_disk_and_stops(
    hosts: Hosts, tmp_path: Path
) -> None:
    hand = Hand(tmp_path, hosts.port)
    async with hand.on(*HOSTS) as deployment:
        with pytest.raises(FleetError, match="runs no node"):
            await deployment.upgrade(installed("1"))
        addresses = await deployment.up(installed("1"))
    assert addresses == [f"{host}:{hosts.port}" for host in HOSTS]
    assert await voters_at(addresses[0]) == {1, 2, 3}
    secrets = {hosts.path(host, SECRET_PATH[1:]).read_text() for host in HOSTS}
    assert len(secrets) == 1 and len(secrets.pop().strip()) == 64
    # The port is that of new nodes only.
    hand.port = PORT
    async with hand.on(*HOSTS) as deployment:
        pids = hosts.pids()
        assert await deployment.up(installed("1")) == addresses
        assert hosts.pids() == pids
    # A host without settings that had a voter is a lost node, and no new node.
    lost = HOSTS[2]
    hosts.lose_disk(lost, "node-3")
    hosts.path(lost, "etc/raftlog/node-3.toml").unlink()
    hosts.path(lost, "opt/raftlog/current").unlink()
    async with hand.on(*HOSTS) as deployment:
        for change in (deployment.up, deployment.upgrade):
            with pytest.raises(FleetError, match=r"no settings any more|runs no node"):
                await change(installed("1"))
        with pytest.raises(FleetError, match="there is no node 9"):
            await deployment.replace(9, installed("1"))
        lines = await deployment.preview(3)
        assert any(line.strip() == '"replace" = 3' for line in lines), lines
    with pytest.raises(FleetError, match="node 3 was at") as caught:
        async with hand.on(*HOSTS) as deployment:
            await deployment.up(installed("1"))
    assert "scripts/deploy --replace 3" in (caught.value.hint or "")
    # It comes back on another host, with its number and its vote.
    hosts.add(FOURTH)
    hand.port = hosts.port
    words = (*HOSTS[:2], FOURTH)
    async with hand.on(*words) as deployment:
        addresses = await deployment.replace(3, installed("1"))
        assert addresses == [f"{host}:{hosts.port}" for host in words], hosts.logs()
    assert await voters_at(addresses[0]) == {1, 2, 3}
    settings = tomllib.loads(hosts.path(FOURTH, "etc/raftlog/node-3.toml").read_text())
    assert (settings["node_id"], settings["advertised"]) == (3, addresses[2])
    assert settings["join"].split(",") == addresses[:2] and "replace" not in settings
    async with hand.on(*words) as deployment:
        with pytest.raises(FleetError, match="there is nothing to replace"):
            await deployment.replace(3, installed("1"))
    # One more host joins without a vote. A decommission by an operator stays.
    async with hand.on(*words, lost) as deployment:
        await deployment.up(installed("1"))
    assert tomllib.loads(hosts.path(lost, "etc/raftlog/node-4.toml").read_text())["node_id"] == 4
    assert await voters_at(addresses[0]) == {1, 2, 3}
    async with Admin(bootstrap_servers=addresses) as admin:
        await admin.decommission_node(4)
        for named in ((*words, lost), words):
            async with hand.on(*named) as deployment:
                await deployment.up(installed("1"))
        found = {node.node_id: node for node in await admin.describe_nodes()}
        assert found[4].decommissioning and found[4].broker_epoch is not None
        last = (await admin.describe_quorum()).leader_id
    async with hand.on(*words) as deployment:
        await deployment.down()
        stopped = [line.split()[2] for line in hand.said if line.startswith("stopping node")]
        assert stopped == [*(str(n) for n in (1, 2, 3) if n != last), str(last)]
        assert await versions(words) == [None] * 3
    async with hand.on(*words) as deployment:
        assert await deployment.up(installed("1")) == addresses, hosts.logs()


def release(directory: Path, version: str, code: str) -> Release:
    """A release with this checkout's raftlog, or with a command that only ends."""
    directory.mkdir()
    copy_pip(directory)
    write_wheel(directory, "raftlog", version, code=code, command="raftlog", module="launcher")
    # The environment's compiled modules need its own Python.
    python = f"cp3{sys.version_info[1]}"
    write_wheel(directory, "needs-python", tags=f"{python}-{python}-linux_{os.uname().machine}")
    return read_release(directory)


async def test_a_node_is_set_up_upgraded_taken_back_and_stopped(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deploy uses releases that are installed from wheels, and the unit's own command line."""
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    python = machine / f"bin/python3.{sys.version_info[1]}"
    python.symlink_to(REAL_PYTHON)
    (port,) = free_ports("127.0.0.1", 1)
    (machine / "listen").write_text(f"127.0.0.1:{port}")
    old = release(tmp_path / "old", "1.0", SERVES)
    new = release(tmp_path / "new", "1.1", SERVES)
    broken = release(tmp_path / "broken", "1.2", ENDS)
    hand = Hand(tmp_path, port)
    word = "vm1=127.0.0.1"
    async with SshHost("vm1") as host:
        async with hand.on(word) as deployment:
            with pytest.raises(FleetError, match="runs no node"):
                await deployment.upgrade(old)
            assert await deployment.up(old) == [f"127.0.0.1:{port}"]
        first = await host.status("node-1")
        assert first.version == old.version
        settings = (await host.configurations())["node-1"] + "# Kept.\n"
        await host.configure("node-1", settings)
        secret = await host.read_file(SECRET_PATH)
        assert secret is not None and len(secret.strip()) == 64

        async with hand.on(word) as deployment:
            await deployment.up(new)
            assert await host.status("node-1") == first
            assert "--upgrade brings it" in hand.said[-1]
            await deployment.upgrade(new)
            assert (await host.status("node-1")).version == new.version
            await deployment.upgrade(new)
            assert "nothing to do" in hand.said[-1]

            with pytest.raises(FleetError, match=f"runs {new.version} again") as caught:
                await deployment.upgrade(broken)
            assert "this release is broken" in str(caught.value)
            running = await host.status("node-1")
            assert (running.version, await host.current()) == (new.version, new.version)

            await deployment.down()
        assert not (await host.status("node-1")).is_active
        assert "stopped cleanly" in (machine / "node.log").read_text()
        probes = Probes()
        assert await probes.why_not_ready(f"127.0.0.1:{port}") is not None
        await probes.close()

        async with hand.on(word) as deployment:
            assert await deployment.up(new) == [f"127.0.0.1:{port}"]
            assert await host.read_file(SECRET_PATH) == secret
            assert await host.configurations() == {"node-1": settings}
            with pytest.raises(FleetError, match="no other node is left"):
                await deployment.replace(1, new)
            await deployment.down()
    assert os.listdir(machine / "var/lib/raftlog") == ["node-1"]  # noqa: PTH208 - names alone
