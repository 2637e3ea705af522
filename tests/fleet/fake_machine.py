"""Programs of a machine for tests of SshHost: `ssh`, `sudo`, `systemctl` and `journalctl`.

`ssh` runs the remote command by a real sh on this machine, with the machine's directories moved
below MACHINE_ROOT. `systemctl` keeps units in a file, and starts a real process for each: the
program of the installed unit, or `sleep` for a release without programs.
"""

from __future__ import annotations

import contextlib
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
LOG = ROOT / "node.log"
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
                _start(unit, state)
        case "disable":
            state["enabled"] = False
            if "--now" in arguments:
                _stop(state)
        case "restart":
            _stop(state)
            _start(unit, state)
        case "show" if "--value" in arguments:
            _say(str(state["pid"] if _is_alive(state) else 0))
        case "show":
            is_alive = _is_alive(state)
            has_failed = state["pid"] and not is_alive
            _say(f"ActiveState={'active' if is_alive else 'failed' if has_failed else 'inactive'}")
            _say(f"MainPID={state['pid'] if is_alive else 0}")
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


def _start(unit: str, state: dict[str, object]) -> None:
    command = _program(unit)
    with LOG.open("a") as log, Path(os.devnull).open() as null:
        process = subprocess.Popen(
            command,
            executable=None if "serve" in command else "/bin/sleep",
            stdin=null,
            stdout=log,
            stderr=log,
        )
    state["pid"] = process.pid


def _program(unit: str) -> list[str]:
    """The command line of a unit, as systemd expands it."""
    release = (ROOT / "opt/raftlog/current").resolve()
    if not (release / "bin/raftlog").exists():
        return [str(release / "bin/python"), "600"]
    lines = (ROOT / "etc/systemd/system/raftlog@.service").read_text().splitlines()
    start = next(line for line in lines if line.startswith("ExecStart="))
    name = unit.removeprefix("raftlog@").removesuffix(".service")
    words = start.partition("=")[2].replace("%i", name).split()
    words = [word.replace("${CREDENTIALS_DIRECTORY}", "/etc/raftlog") for word in words]
    words = [f"{ROOT}{word}" if word.startswith("/") else word for word in words]
    listen = ROOT / "listen"
    return [*words, "--listen", listen.read_text()] if listen.exists() else words


def _stop(state: dict[str, object]) -> None:
    pid = int(str(state["pid"]))
    if pid:
        state["pid"], state["ended"] = 0, 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline_s = time.monotonic() + 60
        while _is_alive({"pid": pid}) and time.monotonic() < deadline_s:
            time.sleep(0.02)


def _is_alive(state: dict[str, object]) -> bool:
    try:
        fields = Path(f"/proc/{state['pid']}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in ("Z", "X")


def journalctl(arguments: Sequence[str]) -> int:
    _say(f"the log, by {' '.join(arguments)}")
    _say(LOG.read_text() if LOG.exists() else "")
    return 0


if __name__ == "__main__":
    sys.exit(globals()[Path(sys.argv[0]).name](sys.argv[1:]))
