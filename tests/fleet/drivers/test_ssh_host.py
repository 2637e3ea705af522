"""SshHost against a fake machine: a real sh runs each step here, with the directories moved."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raftlog.fleet.drivers import ssh_host
from raftlog.fleet.drivers.ssh_host import SECRET_PATH, UNIT_PATH, SshHost
from raftlog.fleet.errors import HostError, UnreachableError
from raftlog.fleet.release import read_release
from tests.fleet.conftest import units
from tests.fleet.wheels import copy_pip, write_wheel

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def host(machine: Path) -> AsyncIterator[SshHost]:
    async with SshHost("admin@vm1:2222") as opened:
        yield opened


def add_release(root: Path, version: str) -> None:
    """A release as an installation leaves it."""
    target = root / "opt/raftlog/releases" / version
    target.mkdir(parents=True)
    (target / ".complete").touch()


async def test_ssh_is_called_without_a_terminal_and_never_waits_for_a_password(
    host: SshHost, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await host.run("echo $((6 * 7)); echo two") == "42\ntwo"
    arguments = json.loads((machine / "ssh.log").read_text().splitlines()[0])
    assert arguments[:2] == ["-p", "2222"]
    assert arguments[-3:-1] == ["--", "admin@vm1"]
    assert "BatchMode=yes" in arguments
    monkeypatch.setenv(ssh_host.SSH_OPTIONS_VARIABLE, "-i '/a key' -o Port=1")
    async with SshHost("vm1") as other:
        await other.run("true")
    arguments = json.loads((machine / "ssh.log").read_text().splitlines()[-1])
    assert arguments[:4] == ["-i", "/a key", "-o", "Port=1"]


@pytest.mark.parametrize("address", ["", "a b", "-oProxyCommand=x", "h:port", "@h", "u@", "h:1:2"])
def test_bad_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not an ssh address"):
        SshHost(address)


def test_the_host_of_an_address_is_known_alone() -> None:
    assert SshHost("admin@[fd00::1]:22").host == "fd00::1"
    assert SshHost("vm1").host == "vm1"


async def test_a_failed_script_names_host_step_and_the_end_of_stderr(host: SshHost) -> None:
    with pytest.raises(HostError) as caught:
        await host.run("echo before; echo 'no space left on device' >&2; exit 3")
    error = caught.value
    assert (error.host, error.detail) == ("admin@vm1:2222", "no space left on device")
    assert "cannot run" in str(error) and not isinstance(error, UnreachableError)
    with pytest.raises(HostError, match="exit code 5"):
        await host.run("exit 5")


async def test_a_command_of_a_pipe_ends_the_script(host: SshHost) -> None:
    with pytest.raises(HostError):
        await host.run("false; echo too late")


async def test_an_unreachable_host_is_an_error_of_its_own(host: SshHost, machine: Path) -> None:
    (machine / "unreachable").touch()
    with pytest.raises(UnreachableError, match="Connection refused"):
        await host.configurations()


async def test_a_machine_without_ssh_is_named_as_such(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UnreachableError, match="ssh does not run"):
        await host.current()


async def test_a_silent_host_ends_the_step_after_its_timeout(
    host: SshHost, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "silent").touch()
    with pytest.raises(UnreachableError, match="no end within"):
        await host._run("wait", "true", timeout_s=0.2)


async def test_a_file_is_replaced_whole_with_its_mode_and_only_if_it_differs(
    host: SshHost, machine: Path
) -> None:
    path = machine / SECRET_PATH[1:]
    assert await host.read_file(SECRET_PATH) is None
    assert await host.write_file(SECRET_PATH, SECRET, 0o600)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (SECRET, 0o600)
    assert not await host.write_file(SECRET_PATH, SECRET, 0o600)
    assert await host.write_file(SECRET_PATH, "", 0o600)
    assert await host.read_file(SECRET_PATH) == ""
    path.chmod(0o644)
    assert await host.write_file(SECRET_PATH, "", 0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


async def test_no_command_line_shows_what_a_file_gets(host: SshHost, machine: Path) -> None:
    await host.write_file(SECRET_PATH, SECRET, 0o600)
    assert SECRET not in (machine / "ssh.log").read_text()


async def test_settings_of_all_nodes_are_read_back(host: SshHost, machine: Path) -> None:
    assert await host.configurations() == {}
    first, second = 'rack = "a\\nb"\n\n# ü\n', ""
    assert await host.configure("node-1", first)
    assert await host.configure("orders-2", second)
    assert not await host.configure("node-1", first)
    assert await host.configurations() == {"node-1": first, "orders-2": second}


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "-a", "a@b", "A", "a" * 64])
async def test_names_that_are_no_parts_of_paths_and_units_are_refused(
    host: SshHost, name: str
) -> None:
    with pytest.raises(ValueError, match="is not a node's name"):
        await host.configure(name, "")
    with pytest.raises(ValueError, match="is not a node's name"):
        await host.start(name)


async def test_a_node_starts_with_the_current_release_and_stops(
    host: SshHost, machine: Path
) -> None:
    for version in ("1.0-aa", "1.1-bb"):
        add_release(machine, version)
    assert await host.current() is None
    assert await host.activate("1.0-aa") is None
    assert not (await host.status("node-1")).is_active
    await host.start("node-1")
    first = await host.status("node-1")
    assert (first.state, first.version, first.exit_status) == ("active", "1.0-aa", None)
    await host.start("node-1")
    assert await host.status("node-1") == first
    assert await host.activate("1.1-bb") == "1.0-aa"
    assert await host.current() == "1.1-bb"
    assert await host.status("node-1") == first
    await host.restart("node-1")
    assert (await host.status("node-1")).version == "1.1-bb"
    await host.stop("node-1")
    stopped = await host.status("node-1")
    assert (stopped.pid, stopped.version, stopped.exit_status) == (None, None, 0)
    assert not units(machine)["raftlog@node-1.service"]["enabled"]
    await host.stop("node-1")


async def test_only_a_complete_release_is_activated_and_old_ones_go(
    host: SshHost, machine: Path
) -> None:
    (machine / "opt/raftlog/releases/0.9-cut").mkdir(parents=True)
    with pytest.raises(HostError, match="not installed"):
        await host.activate("0.9-cut")
    assert await host.current() is None
    versions = [f"1.{number}-aa" for number in range(6)]
    for number, version in enumerate(versions):
        add_release(machine, version)
        target = machine / "opt/raftlog/releases" / version
        os.utime(target, (number, number))
    await host.activate(versions[0])
    await host.activate(versions[5])
    left = {path.name for path in (machine / "opt/raftlog/releases").iterdir()}
    assert {versions[0], versions[5]} <= left and versions[1] not in left
    assert len(left) <= ssh_host.RELEASES_KEPT + 1


async def test_the_log_is_that_of_the_unit(host: SshHost) -> None:
    assert "--unit raftlog@node-1.service --lines 7" in await host.logs("node-1", 7)


async def test_the_unit_is_installed_and_systemd_reads_it(host: SshHost, machine: Path) -> None:
    assert await host.install_unit()
    assert not await host.install_unit()
    assert "DynamicUser=yes" in (machine / UNIT_PATH[1:]).read_text()
    assert units(machine)["calls"] == ["daemon-reload", "daemon-reload"]


async def test_uninstalling_never_removes_data_or_the_secret(host: SshHost, machine: Path) -> None:
    add_release(machine, "1.0-aa")
    await host.activate("1.0-aa")
    await host.install_unit()
    await host.write_file(SECRET_PATH, SECRET, 0o600)
    for name in ("node-1", "node-2"):
        await host.configure(name, "")
        data = machine / "var/lib/raftlog" / name
        data.mkdir(parents=True)
        assert not await host.has_data(name)
        (data / "directory.json").touch()
        assert await host.has_data(name)
        await host.start(name)
    await host.uninstall("node-1")
    assert await host.configurations() == {"node-2": ""}
    assert (await host.status("node-2")).is_active and await host.current() == "1.0-aa"
    await host.uninstall("node-2")
    assert not (await host.status("node-2")).is_active
    assert await host.current() is None and not (machine / UNIT_PATH[1:]).exists()
    assert await host.has_data("node-1") and await host.has_data("node-2")
    assert await host.read_file(SECRET_PATH) == SECRET


async def test_a_release_is_installed_from_its_wheels_alone(
    host: SshHost, machine: Path, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    copy_pip(wheels)
    write_wheel(wheels, "leaf", "2.0", code="ANSWER = 42\n")
    code = "import leaf\n\ndef main():\n    print(leaf.ANSWER)\n"
    write_wheel(wheels, "raftlog", code=code, requires="leaf", command="raftlog")
    release = read_release(wheels)
    target = machine / "opt/raftlog/releases" / release.version
    requirements = release.requirements
    with pytest.MonkeyPatch.context() as patch:
        # As if a wheel had been damaged on its way.
        patch.setattr(type(release), "requirements", requirements.replace("sha256:", "sha256:0"))
        with pytest.raises(HostError, match="install release"):
            await host.install(release)
    assert target.exists() and not (target / ".complete").exists()
    (target / "half").touch()
    assert await host.install(release)
    assert not (target / "half").exists() and not (target / "wheels").exists()
    assert not await host.install(release)
    await host.activate(release.version)
    assert await host.run("/opt/raftlog/current/bin/raftlog --version") == "42"


async def test_a_host_without_the_python_of_the_wheels_is_refused(
    host: SshHost, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "pip")
    write_wheel(wheels, "raftlog")
    write_wheel(wheels, "compiled", tags="cp399-cp399-manylinux_2_17_x86_64")
    with pytest.raises(HostError, match=r"no python3\.99 here"):
        await host.install(read_release(wheels))
