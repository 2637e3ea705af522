"""Programs of a machine for tests of SshHost: `ssh`, `sudo`, `systemctl` and `journalctl`.

`ssh` runs the remote command by a real sh on this machine, with the machine's directories moved
below MACHINE_ROOT. `systemctl` keeps units in a file, and starts a real process for each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(os.environ["MACHINE_ROOT"])
BIN = ROOT / "bin"
UNITS = ROOT / "units.json"
MOVED = ("/opt/raftlog", "/etc/raftlog", "/etc/systemd/system", "/var/lib/raftlog")


def ssh(arguments: Sequence[str]) -> int:
    with (ROOT / "ssh.log").open("a") as log:
        log.write(json.dumps(arguments) + "\n")
    if "-O" in arguments:
        return 0
    if (ROOT / "unreachable").exists():
        sys.stderr.write("ssh: connect to host vm1 port 22: Connection refused\n")
        return 255
    if (ROOT / "silent").exists():
        time.sleep(600)
    command = arguments[-1]
    for path in MOVED:
        command = command.replace(path, f"{ROOT}{path}")
    # Ahead of the machine's own programs, as the scripts put the system's directories first.
    command = command.replace("PATH=/usr/local/sbin", f"PATH={BIN}:/usr/local/sbin")
    return subprocess.run(("sh", "-c", command), check=False).returncode


def sudo(arguments: Sequence[str]) -> int:
    assert arguments[:2] == ["-n", "--"]
    return subprocess.run(arguments[2:], check=False).returncode


def systemctl(arguments: Sequence[str]) -> int:
    units = json.loads(UNITS.read_text()) if UNITS.exists() else {}
    words = [word for word in arguments if not word.startswith("-")]
    verb, unit = words[0], words[1] if len(words) > 1 else ""
    state = units.setdefault(unit, {"enabled": False, "pid": 0, "ended": 0})
    calls = units.setdefault("calls", [])
    calls.append(" ".join(arguments))
    match verb:
        case "enable":
            state["enabled"] = True
            if "--now" in arguments and not state["pid"]:
                _start(state)
        case "disable":
            state["enabled"] = False
            if "--now" in arguments:
                _stop(state)
        case "restart":
            _stop(state)
            _start(state)
        case "show" if "--value" in arguments:
            _say(str(state["pid"]))
        case "show":
            _say(f"ActiveState={'active' if state['pid'] else 'inactive'}")
            _say(f"MainPID={state['pid']}")
            _say(f"ExecMainStatus=0\nExecMainExitTimestampMonotonic={state['ended']}")
            _say("Result=success\nNRestarts=0")
        case "daemon-reload" | "reset-failed":
            pass
        case _:
            sys.stderr.write(f"Unknown command verb {verb}.\n")
            return 1
    UNITS.write_text(json.dumps(units))
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _start(state: dict[str, object]) -> None:
    program = (ROOT / "opt/raftlog/current").resolve() / "bin/python"
    with Path(os.devnull).open("r+") as null:
        process = subprocess.Popen(
            (str(program), "600"), executable="/bin/sleep", stdin=null, stdout=null, stderr=null
        )
    state["pid"] = process.pid


def _stop(state: dict[str, object]) -> None:
    if state["pid"]:
        os.kill(int(str(state["pid"])), signal.SIGKILL)
        state["pid"], state["ended"] = 0, 1


def journalctl(arguments: Sequence[str]) -> int:
    _say(f"the log, by {' '.join(arguments)}")
    return 0


if __name__ == "__main__":
    sys.exit(globals()[Path(sys.argv[0]).name](sys.argv[1:]))
