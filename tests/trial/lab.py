"""Machines of a trial: containers with systemd, sshd and an address each, on one bridge.

The trial runs in mount and process namespaces of its own (scripts/trial-deploy), so its mounts and
processes end with it. This module removes the rest: network namespaces and control groups.

A machine's root is an overlay of this machine's root on a tmpfs; what nodes write goes to a real
disk, for honest flushes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NETWORK: Final = "10.77.82"
"""Addresses of the lab; its namespaces have no way out."""
PREFIX: Final = "raftlog-trial"
BRIDGE: Final = "lab0"
BOOT_TIMEOUT_S: Final = 60.0
STEP_TIMEOUT_S: Final = 300.0
END_TIMEOUT_S: Final = 30.0
NAMESPACES: Final = Path("/run/netns")
DATA: Final = "var/lib/private"
"""Where systemd keeps the state directories of units with DynamicUser."""
CGROUPS: Final = Path("/sys/fs/cgroup")
TARGET: Final = "trial.target"
MASKED: Final = ("timers.target", "ssh.socket")
"""Enabled here, perhaps: updates would load the machines, and the socket would take sshd's port."""
_TARGET: Final = """[Unit]
Description=All services of a machine of the trial, and no other that is enabled here
Requires=basic.target
Wants=dbus.service ssh.service
After=basic.target
AllowIsolate=yes
"""
_SSHD: Final = """[Unit]
Description=The ssh server of the trial
After=network.target

[Service]
RuntimeDirectory=sshd
ExecStart=/usr/sbin/sshd -D -e -f /etc/ssh/sshd_config_trial
"""
_SSHD_CONFIGURATION: Final = """PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
HostKey /etc/ssh/trial_host_key
AuthorizedKeysFile /etc/ssh/trial_authorized_keys
"""


class LabError(Exception):
    """A lab that cannot be set up; `str()` says why."""


def run(
    *command: str, timeout_s: float = STEP_TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command; its output. Raises LabError with the end of its output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
            env=None if environment is None else {**os.environ, **environment},
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(command)} takes more than {timeout_s:.0f} s") from error
    if done.returncode:
        raise LabError(
            f"{' '.join(command)} ended with exit code {done.returncode}: {done.stdout[-2000:]}"
        )
    return done.stdout


@dataclass(frozen=True, slots=True)
class Machine:
    """A booted container."""

    name: str
    address: str
    root: Path
    """Its root directory, as this machine sees it."""
    data: Path
    """Its /var/lib/private, on this machine's disk."""
    pid: int
    """Of its systemd."""

    def run(self, *command: str, timeout_s: float = STEP_TIMEOUT_S) -> str:
        """Run a command inside. Raises LabError."""
        return run("nsenter", "-t", str(self.pid), "-a", "--", *command, timeout_s=timeout_s)


class Lab:
    """The machines and the namespace of their clients. Use `lab()`."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.name = work.name
        """Unique on this machine: of the namespace of the clients, and a prefix of others."""
        self.machines: list[Machine] = []
        self._boots: list[subprocess.Popen[bytes]] = []
        self._namespaces: list[str] = []
        self._groups: list[Path] = []

    @property
    def key(self) -> Path:
        """The private key that every machine accepts for root."""
        return self.work / "key"

    @property
    def ssh_options(self) -> str:
        """For RAFTLOG_SSH_OPTIONS."""
        return (
            f"-F none -i {self.key} -l root -o StrictHostKeyChecking=no "
            "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        )

    def inside(self, *command: str) -> tuple[str, ...]:
        """The command line that runs a command among the machines, with no other network."""
        return ("nsenter", f"--net={NAMESPACES / self.name}", "--", *command)

    def set_up(self) -> None:
        """Make the network and the layer with an ssh server. Raises LabError."""
        run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(self._layers))
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key))
        self._add_namespace(self.name)
        self._ip("link", "add", BRIDGE, "type", "bridge", "forward_delay", "0")
        self._ip("address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        self._ip("link", "set", BRIDGE, "up")
        self._make_base()

    def boot(self, count: int) -> None:
        """Boot machines, and wait until each accepts ssh. Raises LabError."""
        for _ in range(count):
            self._boot_one(len(self.machines) + len(self._boots) + 1)
        deadline_s = time.monotonic() + BOOT_TIMEOUT_S
        for number, boot in enumerate(self._boots, start=1):
            if number > len(self.machines):
                self.machines.append(self._wait_booted(number, boot, deadline_s))

    def tear_down(self) -> None:
        """End the machines and remove what does not end with the trial's own namespaces."""
        for boot in self._boots:
            pid = None if boot.poll() is not None else _only_child(boot.pid)
            if pid is not None:
                # The first process of a container: all others end with it.
                os.kill(pid, signal.SIGKILL)
        for boot in self._boots:
            boot.wait(END_TIMEOUT_S)
        for name in self._namespaces:
            run("ip", "netns", "delete", name)
        for group in self._groups:
            _remove_group(group)

    @property
    def _layers(self) -> Path:
        return self.work / "layers"

    def _ip(self, *words: str) -> None:
        run("ip", "-n", self.name, *words)

    def _add_namespace(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._namespaces.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def _make_base(self) -> None:
        """A layer over this machine's root: with sshd, without its identity."""
        base = self._overlay("base", "/")
        if not (base / "usr/sbin/sshd").exists():
            _install_sshd(base)
        for name in ("machine-id", "hostname"):
            # systemd inside makes an id of its own for an empty file.
            (base / "etc" / name).write_text("")
        units = base / "etc/systemd/system"
        (units / TARGET).write_text(_TARGET)
        (units / "ssh.service").unlink(missing_ok=True)
        (units / "ssh.service").write_text(_SSHD)
        for name in MASKED:
            (units / name).unlink(missing_ok=True)
            (units / name).symlink_to("/dev/null")
        shutil.copy2(f"{self.key}.pub", base / "etc/ssh/trial_authorized_keys")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{base}/etc/ssh/trial_host_key")
        (base / "etc/ssh/sshd_config_trial").write_text(_SSHD_CONFIGURATION)
        for name in ("opt/raftlog", "etc/raftlog", "var/lib/raftlog", DATA):
            shutil.rmtree(base / name, ignore_errors=True)
        run("umount", str(base))

    def _overlay(self, name: str, lower: str) -> Path:
        upper, scratch, root = (self._layers / f"{name}-{kind}" for kind in ("up", "work", "root"))
        for path in (upper, scratch, root):
            path.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={scratch}"
        run("mount", "-t", "overlay", "overlay", "-o", options, str(root))
        return root

    def _boot_one(self, number: int) -> None:
        name = f"vm{number}"
        root = self._overlay(name, f"{self._layers / 'base-up'}:/")
        (root / "etc/hostname").write_text(f"{name}\n")
        data = self.work / f"data-{name}"
        data.mkdir(mode=0o700)
        namespace = f"{self.name}-{name}"
        self._add_namespace(namespace)
        self._ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._ip("link", "set", name, "master", BRIDGE, "up")
        for words in (
            ("address", "add", f"{_address(number)}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            run("ip", "-n", namespace, *words)
        groups = _make_groups(f"{self.name}-{name}")
        self._groups += groups
        enter = "".join(f"echo $$ >{group}/cgroup.procs; " for group in groups)
        nspawn = (
            *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit"),
            *(f"--machine={name}", f"--directory={root}", "--console=pipe"),
            *(f"--bind={data}:/{DATA}", f"--network-namespace-path={NAMESPACES / namespace}"),
            *("--", f"--unit={TARGET}"),
        )
        with self._log(number).open("wb") as log:
            self._boots.append(
                subprocess.Popen(
                    ("sh", "-c", f'{enter}exec "$@"', "sh", *nspawn),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _log(self, number: int) -> Path:
        return self.work / f"vm{number}.log"

    def _wait_booted(
        self, number: int, boot: subprocess.Popen[bytes], deadline_s: float
    ) -> Machine:
        name, address = f"vm{number}", _address(number)
        probe = ("ssh", *self.ssh_options.split(), "-o", "BatchMode=yes", address, "true")
        reason = "no process"
        while time.monotonic() < deadline_s and boot.poll() is None:
            pid = _only_child(boot.pid)
            try:
                run(*self.inside(*probe), timeout_s=10)
            except LabError as error:
                reason = str(error)
                time.sleep(0.1)
                continue
            if pid is not None:
                root = self._layers / f"{name}-root"
                return Machine(name, address, root, self.work / f"data-{name}", pid)
        log = self._log(number).read_text(errors="replace")[-2000:]
        raise LabError(f"{name} did not boot: {reason}; {log}")


@contextlib.contextmanager
def lab() -> Iterator[Lab]:
    """A lab without machines yet; its exit removes all of it. Raises LabError."""
    work = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-"))
    (work / "layers").mkdir()
    made = Lab(work)
    try:
        made.set_up()
        yield made
    finally:
        made.tear_down()
        subprocess.run(("umount", "--lazy", str(work / "layers")), check=False)
        shutil.rmtree(work, ignore_errors=True)


def _address(number: int) -> str:
    return f"{NETWORK}.{10 + number}"


def _install_sshd(base: Path) -> None:
    """Into the layer only: this machine stays as it is."""
    policy = base / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    run("mount", "--bind", "/dev", str(base / "dev"))
    run("mount", "-t", "proc", "proc", str(base / "proc"))
    try:
        apt = ("chroot", str(base), "apt-get", "-qq")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(*apt, "update", environment=quiet)
        install = ("install", "-y", "--no-install-recommends", "openssh-server")
        run(*apt, *install, environment=quiet)
    finally:
        run("umount", str(base / "dev"))
        run("umount", str(base / "proc"))


def _make_groups(name: str) -> list[Path]:
    """A control group for a machine in each hierarchy that systemd manages."""
    if (CGROUPS / "cgroup.controllers").exists():
        parents: Sequence[Path] = (CGROUPS,)
    else:
        parents = [CGROUPS / "systemd", CGROUPS / "unified"]
    groups = [parent / name for parent in parents if parent.is_dir()]
    for group in groups:
        group.mkdir(exist_ok=True)
    return groups


def _remove_group(group: Path) -> None:
    """Remove a group, and those of systemd below, once their last process has ended."""
    deadline_s = time.monotonic() + END_TIMEOUT_S
    for path in (*sorted(group.rglob("*"), reverse=True), group):
        while path.is_dir():
            try:
                path.rmdir()
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)


def _only_child(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if len(children) == 1 else None
