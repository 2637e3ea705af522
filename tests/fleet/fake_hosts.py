"""Programs of machines for tests of the ssh driver: `ssh`, `systemctl` and `journalctl`.

Each host is a loopback address with a directory of its own below HOSTS_ROOT. `ssh` runs the remote
command by a real sh, with the machine's directories moved there. `systemctl` starts the real
command of the unit: `raftlog serve`, of this environment, listening on the host's address alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("HOSTS_ROOT", "/nonexistent"))
STOP_TIMEOUT_S = 60.0
SSH = r"""#!/bin/bash
# Usage: ssh OPTION… HOST COMMAND
[[ " $* " == *" -O "* ]] && exit 0
HOST=${*: -2:1} command=${*: -1} root=$HOSTS_ROOT/${*: -2:1}
export HOST
if [[ -e $root/down ]]; then
  echo "ssh: connect to host $HOST port 22: Connection refused" >&2
  exit 255
fi
for moved in /opt/raftlog /etc/raftlog /etc/systemd/system /var/lib/raftlog; do
  command=${command//"$moved"/"$root$moved"}
done
unset PYTHONPATH
exec sh -c "${command//PATH=\/usr\/local\/sbin/PATH=$HOSTS_ROOT\/bin:\/usr\/local\/sbin}"
"""
"""A shell script, because each step of a test starts it several times."""


def systemctl(arguments: Sequence[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    if words[0] == "daemon-reload":
        return 0
    name = words[1].partition("@")[2].removesuffix(".service")
    with _unit(name) as unit:
        if unit["pid"] and not _is_alive(unit["pid"]):
            unit["pid"], unit["ended"] = 0, 1
        match words[0]:
            case "enable" if "--now" in arguments and not unit["pid"]:
                unit["pid"] = _start(name)
            case "disable" if "--now" in arguments and unit["pid"]:
                _stop(unit["pid"])
                unit["pid"], unit["ended"] = 0, 1
            case "restart":
                if unit["pid"]:
                    _stop(unit["pid"])
                unit["pid"] = _start(name)
            case "show" if "--value" in arguments:
                _say(str(unit["pid"]))
            case "show":
                _say(
                    f"ActiveState={'active' if unit['pid'] else 'inactive'}\nMainPID={unit['pid']}"
                )
                _say(f"ExecMainStatus=0\nExecMainExitTimestampMonotonic={unit['ended']}")
                _say(f"Result=success\nNRestarts={unit.get('restarts', 0)}")
            case "enable" | "disable" | "reset-failed":
                pass
            case _:
                sys.stderr.write(f"Unknown command verb {words[0]}.\n")
                return 1
    return 0


def journalctl(arguments: Sequence[str]) -> int:
    name = arguments[arguments.index("--unit") + 1].partition("@")[2].removesuffix(".service")
    log = ROOT / os.environ["HOST"] / f"{name}.log"
    _say(log.read_text(errors="replace")[-4000:] if log.exists() else "")
    return 0


@contextmanager
def _unit(name: str) -> Iterator[dict[str, Any]]:
    path = ROOT / os.environ["HOST"] / f"{name}.unit"
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        unit = json.loads(file.read() or '{"pid": 0, "ended": 0}')
        yield unit
        file.truncate(0)
        file.write(json.dumps(unit))


def _start(name: str) -> int:
    host = ROOT / os.environ["HOST"]
    settings, data = host / f"etc/raftlog/{name}.toml", host / f"var/lib/raftlog/{name}"
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    port = json.loads((ROOT / "port").read_text())
    # The first word names the release, as the interpreter of a virtual environment would.
    interpreter = str((host / "opt/raftlog/current").resolve() / "bin/python")
    command = [interpreter, "-m", "raftlog.cli", "serve", "--config", str(settings)]
    command += ["--data-dir", str(data), "--listen", f"{host.name}:{port}"]
    command += ["--cluster-secret-file", str(host / "etc/raftlog/cluster.secret")]
    if (host / "opt/raftlog/current/broken").exists():
        command[1:] = ["-S", "-c", "import sys; sys.exit('this release is broken')"]
    with (host / f"{name}.log").open("a") as log, Path(os.devnull).open() as null:
        return subprocess.Popen(
            command,
            executable=os.environ["RAFTLOG_TEST_PYTHON"],
            stdin=null,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={"PYTHONPATH": os.environ["RAFTLOG_TEST_PATH"], "PATH": os.environ["PATH"]},
        ).pid


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _is_alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(globals()[Path(sys.argv[0]).name](sys.argv[1:]))
