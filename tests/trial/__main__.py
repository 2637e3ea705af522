"""`scripts/trial-deploy`: see the package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import msgspec

from raftlog.fleet.deploy import PORT_DEFAULT
from raftlog.fleet.errors import FleetError
from tests.trial import load, releases
from tests.trial.lab import Lab, LabError, Machine, lab
from tests.trial.steps import StepError, Steps, require, run_steps, say

ROOT: Final = Path(__file__).parents[2]
MACHINES: Final = 3
LOST: Final = 3
"""The node that loses its disk."""
DEPLOY_S_MAX: Final = 90.0
AGAIN_S_MAX: Final = 30.0
"""A repeated deployment reads, and changes nothing."""
GAP_MS_MAX: Final = 1_000.0
WHOLE_MB_PER_S_MIN: Final = 150.0
"""On a disk that writes twice as fast; else half of the disk's own rate."""
RATE_MEGABYTES: Final = 256
GROWTH_BYTES: Final = 1_000_000
"""More than a node writes before it copies replicas."""
EXPOSURE_MAX: Final = 2.0
DEPLOY_TIMEOUT_S: Final = 300.0
PULSE_AFTER_S: Final = 2.0
"""The load goes on for so long after an upgrade: its last restart counts, too."""
FILL_TIMEOUT_S: Final = 120.0
END_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Deployed:
    """One run of `scripts/deploy`."""

    code: int
    lines: list[tuple[float, str]]
    """Each line, and when it came."""
    took_s: float

    @property
    def output(self) -> str:
        """All lines."""
        return "".join(line for _, line in self.lines)

    def time_of(self, text: str) -> float:
        """When a line with this text came. Raises StepError."""
        for at_s, line in self.lines:
            if text in line:
                return at_s
        raise StepError(f"no line of the deployment has {text!r}")


@dataclass(slots=True)
class Trial:
    """The lab and the state between steps."""

    lab: Lab
    wheels: Path
    build_s: float
    """Time that the first release took to build."""

    @property
    def hosts(self) -> list[str]:
        """The addresses of all machines, in the order of their numbers."""
        return [machine.address for machine in self.lab.machines]

    @property
    def servers(self) -> str:
        """Where the nodes serve."""
        return ",".join(f"{host}:{PORT_DEFAULT}" for host in self.hosts)

    def deploy(self, *arguments: str, release: str = "this") -> Deployed:
        """Run `scripts/deploy` for all hosts, and show its output."""
        started_s = time.monotonic()
        lines: list[tuple[float, str]] = []
        with subprocess.Popen(
            self.lab.inside(
                *("timeout", str(DEPLOY_TIMEOUT_S)),
                *("env", f"RAFTLOG_SSH_OPTIONS={self.lab.ssh_options}"),
                *(str(ROOT / "scripts/deploy"), "--wheels", str(self.wheels / release)),
                *arguments,
                *self.hosts,
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    lines.append((time.monotonic(), line))
                    say(f"      {line.rstrip()}")
            except BaseException:
                process.terminate()
                raise
        return Deployed(process.returncode, lines, time.monotonic() - started_s)

    def must_deploy(self, *arguments: str, release: str = "this") -> float:
        """Like `deploy`, for a command that has to succeed; seconds. Raises StepError."""
        done = self.deploy(*arguments, release=release)
        require(done.code == 0, f"scripts/deploy ended with exit code {done.code}")
        return done.took_s

    def node(self, number: int) -> tuple[Machine, str]:
        """A machine, and the name of its node's unit."""
        return self.lab.machines[number - 1], f"raftlog@node-{number}.service"

    def pids(self) -> list[str]:
        """The processes of all nodes."""
        return [self.property(number, "MainPID") for number in range(1, MACHINES + 1)]

    def commands(self) -> list[str]:
        """The command lines of all nodes, each with the release that it runs."""
        return [
            self.node(number)[0].run("cat", f"/proc/{pid}/cmdline").split("\0")[0]
            for number, pid in enumerate(self.pids(), start=1)
        ]

    def property(self, number: int, name: str) -> str:
        """A property of a node's unit, by systemd."""
        machine, unit = self.node(number)
        return machine.run("systemctl", "show", unit, "-p", name, "--value").strip()

    def print_logs(self) -> None:
        """The end of every node's log."""
        for number in range(1, MACHINES + 1):
            machine, unit = self.node(number)
            print(f"--- {unit} on {machine.name}")
            print(machine.run("journalctl", "--unit", unit, "--output", "cat", "--lines", "30"))

    # Steps: each returns its verdict in words, or raises.

    def from_nothing(self) -> str:
        """Three empty machines become a cluster."""
        took_s = self.must_deploy() + self.build_s
        require(took_s <= DEPLOY_S_MAX, f"{took_s:.1f} s with the wheels, of {DEPLOY_S_MAX:.0f}")
        return f"{took_s:.1f} s, {self.build_s:.1f} of these to build the wheels"

    def again(self) -> str:
        """The same command again changes nothing."""
        before = self.pids()
        took_s = self.must_deploy()
        require(self.pids() == before, "a node was restarted")
        require(took_s <= AGAIN_S_MAX, f"{took_s:.1f} s, of {AGAIN_S_MAX:.0f}")
        return f"{took_s:.1f} s, no node restarted"

    def sandbox(self) -> str:
        """systemd rates the unit, and the kernel shows that the sandbox is applied."""
        machine, unit = self.node(1)
        pid = self.pids()[0]
        summary = machine.run("systemd-analyze", "security", unit).strip().splitlines()[-1]
        exposure = float(summary.partition(": ")[2].split()[0])
        require(exposure <= EXPOSURE_MAX, summary)
        status = dict(
            line.split(":\t", 1)
            for line in machine.run("cat", f"/proc/{pid}/status").splitlines()
            if ":\t" in line
        )
        for key, wanted in (("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapBnd", "0" * 16)):
            require(status[key] == wanted, f"{key} of the node is {status[key]}, not {wanted}")
        uid = status["Uid"].split()[0]
        require(uid != "0", "the node runs as root")
        mounts = machine.run("cat", f"/proc/{pid}/mountinfo").splitlines()
        writable = sorted(
            mount.split()[4] for mount in mounts if "rw" in mount.split()[5].split(",")
        )
        beyond = [path for path in writable if path.startswith(("/etc", "/usr", "/opt", "/home"))]
        require("/" not in writable and not beyond, f"the node may write to {writable}")
        data = machine.run("stat", "-L", "-c", "%a %u", "/var/lib/raftlog/node-1").split()
        require(data == ["700", uid], f"mode and owner of the data: {data}")
        return f"exposure {exposure}; user {uid}, no capabilities, read-only root, seccomp"

    def upgrade(self) -> str:
        """A rolling upgrade under load."""
        with tempfile.NamedTemporaryFile(prefix="raftlog-pulse-") as report:
            with self._client("pulse", self.servers, report.name) as client:
                assert client.stdout is not None
                require(client.stdout.readline() == load.FIRST_LINE, "nothing is acknowledged")
                done = self.deploy("--upgrade", release="next")
                time.sleep(PULSE_AFTER_S)
                require(client.poll() is None, "the load ended before the upgrade did")
                client.send_signal(signal.SIGTERM)
                require(client.wait(END_TIMEOUT_S) == 0, "the load failed")
            found = msgspec.json.decode(Path(report.name).read_bytes(), type=load.Pulse)
        require(done.code == 0, f"scripts/deploy ended with exit code {done.code}")
        require(f"{load.SINGLE_TOPIC}/0" in done.output, "the topic of one replica is not named")
        text = (
            f"{done.took_s:.1f} s; {found.acknowledged} records acknowledged, {found.error_count} "
            f"errors after retries, {found.lost} lost, {found.doubled} doubled; longest time "
            f"without an acknowledgement {found.gap_ms:.0f} ms, of one partition "
            f"{found.partition_gap_ms:.0f} ms"
        )
        is_clean = not (found.error_count or found.lost or found.doubled)
        require(is_clean and found.acknowledged > 0, f"{text} {found.errors}")
        require(found.gap_ms <= GAP_MS_MAX, text)
        versions = {command.split("/")[4] for command in self.commands()}
        require(len(versions) == 1 and ".post1-" in versions.pop(), f"nodes run {versions}")
        return text

    def broken_upgrade(self) -> str:
        """A release that does not start is taken back after the first node."""
        before = self.commands()
        done = self.deploy("--upgrade", release="broken")
        require(done.code == 1, f"exit code {done.code}, not 1")
        require("this release is broken" in done.output, "the log of the node is not shown")
        require(self.commands() == before, "a node runs another release than before")
        return f"refused in {done.took_s:.1f} s, all nodes run the release before"

    def replace(self, megabytes: int) -> str:
        """A machine loses its whole disk; one command makes the cluster whole."""
        machine, unit = self.node(LOST)
        with self._client("fill", self.servers, "orders", str(megabytes * 1_000_000)) as client:
            require(client.wait(FILL_TIMEOUT_S) == 0, "the topic could not be filled")
        machine.run("systemctl", "kill", "--signal=KILL", unit)
        machine.run("systemctl", "disable", "--now", unit)
        machine.run("sh", "-c", "rm -rf /opt/raftlog /etc/raftlog /var/lib/*/raftlog/node-*")
        disk_rate = _write_rate(machine.data)
        with _first_growth(machine.data) as began_s:
            done = self.deploy("--replace", str(LOST), release="next")
        require(done.code == 0, f"exit code {done.code}")
        require(bool(began_s), "the disk did not grow")
        # Every replica in sync: the deployment waited for that, and for no less.
        self._require_healthy()
        copied = int(machine.run("du", "-s", "-B", "1", "/var/lib/private/raftlog").split()[0])
        require(copied >= megabytes * 1_000_000, f"{copied} bytes on the new disk")
        whole_s = done.time_of("all nodes are ready") - began_s[0]
        rate, rate_min = copied / 1e6 / whole_s, min(WHOLE_MB_PER_S_MIN, disk_rate / 2)
        found = (
            f"{copied / 1e6:.0f} MB copied and in sync in {whole_s:.1f} s ({rate:.0f} MB/s; the "
            f"disk alone writes {disk_rate:.0f}); the command took {done.took_s:.1f} s"
        )
        require(rate >= rate_min, f"{found}; {rate_min:.0f} MB/s at least")
        return found

    def down(self) -> str:
        """All nodes stop cleanly, and keep their data."""
        took_s = self.must_deploy("--down")
        for number in range(1, MACHINES + 1):
            machine, unit = self.node(number)
            state = [self.property(number, name) for name in ("ActiveState", "Result")]
            require(state == ["inactive", "success"], f"{unit} is {state}")
            log = machine.run("journalctl", "--unit", unit, "--output", "cat", "--lines", "20")
            require("stopped cleanly" in log, f"the log of {unit} ends with {log[-500:]}")
            machine.run("test", "-s", f"/var/lib/raftlog/node-{number}/directory.json")
        return f"{took_s:.1f} s, every node stopped cleanly, every data directory is there"

    def up_again(self) -> str:
        """The stopped cluster starts again, with its records."""
        took_s = self.must_deploy(release="next")
        self._require_healthy()
        return f"{took_s:.1f} s"

    def _require_healthy(self) -> None:
        command = (sys.executable, "-m", "raftlog.cli", "cluster", "health")
        done = subprocess.run(
            self.lab.inside(*command, "--servers", self.servers),
            capture_output=True,
            text=True,
            timeout=END_TIMEOUT_S,
            check=False,
        )
        require(done.returncode == 0, f"the cluster is not healthy: {done.stdout}{done.stderr}")

    @contextmanager
    def _client(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A client among the machines; ended with the block."""
        client = subprocess.Popen(
            self.lab.inside(sys.executable, "-m", "tests.trial.load", *words),
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        try:
            yield client
        finally:
            client.kill()
            client.communicate()


@click.command()
@click.option("--megabytes", default=1_000, show_default=True, help="On the disk that is lost.")
def main(megabytes: int) -> None:
    """Deploy, upgrade and repair a cluster on three machines of this trial's own."""
    # As an exception, so that the lab is removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="raftlog-trial-wheels-") as temporary:
        wheels = Path(temporary)
        started_s = time.monotonic()
        try:
            releases.build(wheels / "this")
            build_s = time.monotonic() - started_s
            releases.build_next(wheels / "next", wheels / "this")
            releases.build_broken(wheels / "broken", wheels / "this")
            say(f"three releases built in {time.monotonic() - started_s:.1f} s")
            with lab() as made:
                made.boot(MACHINES)
                say(f"{MACHINES} machines booted after {time.monotonic() - started_s:.1f} s")
                is_ok = _run(Trial(made, wheels, build_s), megabytes)
        except (LabError, FleetError) as error:
            say(f"the trial cannot run: {error}")
            sys.exit(1)
    say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    say(f"{'all steps hold' if is_ok else 'FAILED'}; {time.monotonic() - started_s:.0f} s")
    sys.exit(0 if is_ok else 1)


def _run(trial: Trial, megabytes: int) -> bool:
    """Run all steps; whether they hold."""
    steps: Steps = (
        ("deploy on three machines from nothing", trial.from_nothing),
        ("deploy again", trial.again),
        ("the unit's sandbox", trial.sandbox),
        ("upgrade under load", trial.upgrade),
        ("upgrade to a release that does not start", trial.broken_upgrade),
        ("stop", trial.down),
        ("start again", trial.up_again),
        ("replace a lost disk", lambda: trial.replace(megabytes)),
    )
    return run_steps(steps, trial.print_logs)


def _write_rate(directory: Path) -> float:
    """MB/s of one sequential write with fdatasync: the bound of the machine."""
    path = directory / "rate"
    block = os.urandom(1_000_000)
    started_s = time.monotonic()
    with path.open("wb") as file:
        for _ in range(RATE_MEGABYTES):
            file.write(block)
        file.flush()
        os.fdatasync(file.fileno())
    took_s = time.monotonic() - started_s
    path.unlink()
    return RATE_MEGABYTES / took_s


@contextmanager
def _first_growth(directory: Path) -> Iterator[list[float]]:
    """Note when the files of a directory begin to grow."""
    found: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not found and not ended.wait(0.02):
            sizes = (Path(base, name) for base, _, names in os.walk(directory) for name in names)
            with suppress(FileNotFoundError):
                if sum(path.stat().st_size for path in sizes) >= GROWTH_BYTES:
                    found.append(time.monotonic())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
