"""`scripts/trial-fleet`: `raftlog fleet` over ssh on machines of the trial's own, with systemd.

From nothing to three nodes, a second run without a step, an upgrade with other settings, a lost
disk that is named before it is replaced, a host that leaves for another one, the end by `--prune`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from raftlog.fleet.errors import FleetError
from tests.trial import releases
from tests.trial.lab import Lab, LabError, Machine, lab
from tests.trial.steps import Steps, require, run_steps, say

ROOT: Final = Path(__file__).parents[2]
MACHINES: Final = 4
"""Three nodes, and a host for the one that moves."""
COMMAND_TIMEOUT_S: Final = 300.0
QUICK_S_MAX: Final = 30.0
"""A run without a step reads, and changes nothing."""
CLUSTER: Final = "bills"
DATA: Final = "/var/lib/raftlog"


@dataclass(slots=True)
class Trial:
    """The lab, and the fleet's file."""

    lab: Lab
    work: Path

    @property
    def file(self) -> Path:
        """The fleet's file."""
        return self.work / "fleet.toml"

    def write(self, numbers: Sequence[int], release: str, more: str = "") -> None:
        """A cluster on machines by number, from 1."""
        hosts = ", ".join(f'"{self.machine(number).address}"' for number in numbers)
        self.file.write_text(
            f'[[cluster]]\nlog = "{CLUSTER}"\ndriver = "ssh"\nhosts = [{hosts}]\n'
            f'release = "{self.work / release}"\n{more}'
        )

    def machine(self, number: int) -> Machine:
        """A machine by its number."""
        return self.lab.machines[number - 1]

    def fleet(self, *arguments: str, code: int = 0) -> str:
        """Run a command for the file; its output and messages. Raises StepError."""
        command = (sys.executable, "-m", "raftlog.cli", "fleet", *arguments, str(self.file))
        done = subprocess.run(
            self.lab.inside("env", f"RAFTLOG_SSH_OPTIONS={self.lab.ssh_options}", *command),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if arguments[0] != "status":
            for line in done.stdout.splitlines():
                say(f"      {line}")
        require(done.returncode == code, f"exit code {done.returncode}, not {code}")
        return done.stdout

    def pids(self, numbers: Sequence[int]) -> list[str]:
        """The processes of nodes that have the number of their machine."""
        return [
            self.machine(number)
            .run("systemctl", "show", f"raftlog@{CLUSTER}-{number}", "-p", "MainPID", "--value")
            .strip()
            for number in numbers
        ]

    def require_as_written(self, node_ids: Sequence[int]) -> None:
        """`status` agrees, with exactly these nodes. Raises StepError."""
        document: Any = json.loads(self.fleet("status", "--format", "json"))
        found = [node["node_id"] for node in document["clusters"][0]["nodes"]]
        require(document["as_written"] and found == list(node_ids), f"{document}")

    # Steps: each returns its verdict in words, or raises.

    def from_nothing(self) -> str:
        """Three empty machines become a cluster of one log."""
        self.write((1, 2, 3), "this")
        self.fleet("plan", code=1)
        self.fleet("apply")
        self.require_as_written((1, 2, 3))
        return "three nodes and the log"

    def again(self) -> str:
        """A second run has nothing to do."""
        before, started_s = self.pids((1, 2, 3)), time.monotonic()
        require("after 0 steps" in self.fleet("apply"), "a second run took steps")
        took_s = time.monotonic() - started_s
        require(self.pids((1, 2, 3)) == before, "a node was restarted")
        require(took_s <= QUICK_S_MAX, f"{took_s:.1f} s, of {QUICK_S_MAX:.0f}")
        return f"{took_s:.1f} s, no node restarted"

    def upgrade(self) -> str:
        """Another release and other settings, one node after the other."""
        before = self.pids((1, 2, 3))
        self.write((1, 2, 3), "next", 'settings = { log.level = "warning" }\n')
        self.fleet("apply")
        self.require_as_written((1, 2, 3))
        require(not set(before) & set(self.pids((1, 2, 3))), "a node was not restarted")
        command = self.machine(1).run("cat", f"/proc/{self.pids((1,))[0]}/cmdline")
        require(".post1-" in command, f"node 1 runs {command!r}")
        return "three nodes restarted, each with the new release"

    def lost_disk(self) -> str:
        """A lost disk is named, and replaced only on request."""
        unit = f"raftlog@{CLUSTER}-3"
        machine = self.machine(3)
        machine.run("systemctl", "kill", "--signal=KILL", unit)
        machine.run("systemctl", "stop", unit)
        machine.run("sh", "-c", f"rm -rf /var/lib/private/raftlog/{CLUSTER}-3/*")
        said = self.fleet("apply", code=1)
        require("data directory is empty" in said, "the lost disk is not named")
        self.fleet("apply", "--replace", f"{CLUSTER}/3")
        self.require_as_written((1, 2, 3))
        return "named at first, then replaced"

    def moved(self) -> str:
        """A host leaves the file, and another one comes."""
        self.write((1, 3, 4), "next", 'settings = { log.level = "warning" }\n')
        self.fleet("apply")
        self.require_as_written((1, 3, 4))
        left = self.machine(2)
        left.run("test", "-s", f"{DATA}/{CLUSTER}-2/directory.json")
        require(not left.run("ls", "/etc/raftlog").count(".toml"), "the settings are still there")
        return "node 2 is gone, its data directory is kept, node 4 has its vote"

    def pruned(self) -> str:
        """A cluster that left the file stops on request, and keeps its data."""
        self.file.write_text("")
        self.fleet("apply")
        require(all(self.pids((1, 3, 4))), "the cluster was stopped without a request")
        self.fleet("apply", "--prune")
        for number in (1, 3, 4):
            require(self.pids((number,)) == ["0"], f"node {number} runs")
            self.machine(number).run("test", "-s", f"{DATA}/{CLUSTER}-{number}/directory.json")
        return "stopped, every data directory is there"


@click.command()
def main() -> None:
    """Keep a cluster on machines of this trial's own as a file says."""
    # As an exception, so that the lab is removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="raftlog-trial-fleet-") as temporary:
        work = Path(temporary)
        try:
            releases.build(work / "this")
            releases.build_next(work / "next", work / "this")
            say(f"two releases built in {time.monotonic() - started_s:.1f} s")
            with lab() as made:
                made.boot(MACHINES)
                say(f"{MACHINES} machines booted after {time.monotonic() - started_s:.1f} s")
                is_ok = _run(Trial(made, work))
        except (LabError, FleetError) as error:
            say(f"the trial cannot run: {error}")
            sys.exit(1)
    say(f"{'all steps hold' if is_ok else 'FAILED'}; {time.monotonic() - started_s:.0f} s")
    sys.exit(0 if is_ok else 1)


def _run(trial: Trial) -> bool:
    """Run all steps; whether they hold."""
    steps: Steps = (
        ("apply on three machines from nothing", trial.from_nothing),
        ("apply again", trial.again),
        ("another release and other settings", trial.upgrade),
        ("a lost disk", trial.lost_disk),
        ("a host for another", trial.moved),
        ("out of the file", trial.pruned),
    )
    return run_steps(steps)


if __name__ == "__main__":
    main()
