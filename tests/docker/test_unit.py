"""The unit of systemd: flags of serve, paths of SshHost, and the exposure of the sandbox."""

from __future__ import annotations

import configparser
import re
import shutil
import stat
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from raftlog.cli.common.errors import ExitCode
from raftlog.cli.serve import serve
from raftlog.fleet.drivers import ssh_host

UNIT = Path(__file__).parents[2] / "docker/systemd/raftlog@.service"
EXPOSURE_MAX = 20
"""Tenths, as systemd-analyze counts: 2.0."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture(scope="module")
def sections() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def test_the_installed_unit_is_the_one_in_docker() -> None:
    packaged = resources.files("raftlog.fleet").joinpath(ssh_host.UNIT).read_text()
    assert packaged == UNIT.read_text()


def test_the_node_is_started_with_flags_of_serve(sections: configparser.ConfigParser) -> None:
    program, command, *arguments = sections["Service"]["ExecStart"].split()
    assert (program, command) == (f"{ssh_host.CURRENT}/bin/raftlog", "serve")
    known = {flag for option in serve.params for flag in option.opts}
    flags = [word for word in arguments if word.startswith("--")]
    assert set(flags) <= known
    assert set(flags) == {"--config", "--data-dir", "--cluster-secret-file"}


def test_paths_are_those_that_a_deployment_writes(sections: configparser.ConfigParser) -> None:
    service = sections["Service"]
    assert f"--config {ssh_host.CONFIGURATION}/%i.toml" in service["ExecStart"]
    assert f"--data-dir {ssh_host.DATA}/%i" in service["ExecStart"]
    assert f"/var/lib/{service['StateDirectory']}" == f"{ssh_host.DATA}/%i"
    name, _, path = service["LoadCredential"].partition(":")
    assert path == ssh_host.SECRET_PATH
    assert f"${{CREDENTIALS_DIRECTORY}}/{name}" in service["ExecStart"]


def test_wrong_settings_are_not_tried_again(sections: configparser.ConfigParser) -> None:
    service = sections["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == str(int(ExitCode.USAGE))
    stop_s = int(service["TimeoutStopSec"].removesuffix("s"))
    assert stop_s + ssh_host.CONNECT_TIMEOUT_S < ssh_host.STOP_TIMEOUT_S


@needs_systemd
def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    program = tmp_path / "bin/raftlog"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    # Only a program that exists passes.
    copy.write_text(UNIT.read_text().replace(ssh_host.CURRENT, str(tmp_path)))
    assert _analyze("verify", str(copy)) == ""
    copy.write_text(copy.read_text().replace("UMask=", "Umask="))
    assert "Umask" in _analyze("verify", str(copy))


@needs_systemd
def test_the_sandbox_is_as_closed_as_promised(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text())
    security = ("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(copy))
    found = re.search(r"exposure level for .*: (\d+\.\d)", _analyze(*security))
    assert found is not None and float(found[1]) <= EXPOSURE_MAX / 10
    open_unit = "".join(
        line
        for line in UNIT.read_text().splitlines(keepends=True)
        if not line.startswith(("Protect", "Private", "SystemCall", "Capability"))
    )
    copy.write_text(open_unit)
    with pytest.raises(subprocess.CalledProcessError):
        _analyze(*security)


def _analyze(*arguments: str) -> str:
    """Both outputs of systemd-analyze; fails with its exit code."""
    done = subprocess.run(
        ("systemd-analyze", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def test_scripts_of_a_deployment_are_executable() -> None:
    for name in ("deploy", "trial-deploy"):
        mode = (UNIT.parents[2] / "scripts" / name).stat().st_mode
        assert mode & stat.S_IXUSR
