"""One machine reached by the system's ssh, with releases, configurations and systemd units.

Each step is a shell script, run there as root (by `sudo -n` for another user), and may be repeated.
The machine needs an ssh server, systemd, and python3 of the release's version, nothing else. pip is
run from its wheel, and no package index is called. Contents travel on stdin, so that no process
list shows a secret.

Files there:

    /opt/raftlog/releases/VERSION   a virtual environment for each release, the last few kept
    /opt/raftlog/current            symbolic link to the release of the next start
    /etc/raftlog/NAME.toml          the settings of a node
    /etc/raftlog/cluster.secret     only for root, and systemd hands it to the nodes
    /var/lib/raftlog/NAME           files of the node, which no step deletes
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from raftlog.fleet.errors import HostError, UnreachableError
from raftlog.fleet.release import Release

SSH_OPTIONS_VARIABLE: Final = "RAFTLOG_SSH_OPTIONS"
"""Further options of ssh, as a shell would split them, such as `-i KEY -o
StrictHostKeyChecking=no`."""
CONFIGURATION: Final = "/etc/raftlog"
SECRET_PATH: Final = f"{CONFIGURATION}/cluster.secret"
RELEASES: Final = "/opt/raftlog/releases"
CURRENT: Final = "/opt/raftlog/current"
DATA: Final = "/var/lib/raftlog"
UNIT: Final = "raftlog@.service"
UNIT_PATH: Final = f"/etc/systemd/system/{UNIT}"

CONNECT_TIMEOUT_S: Final = 10
STEP_TIMEOUT_S: Final = 60.0
INSTALL_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 150.0
"""Seconds for a stop, above TimeoutStopSec of the unit, after which systemd kills the node."""
RELEASES_KEPT: Final = 3
"""Releases kept besides the current release, to return to."""
OUTPUT_BYTES_MAX: Final = 8 * 1024 * 1024
LOG_LINES_MAX: Final = 10_000
_SSH_FAILED: Final = 255
_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ADDRESS: Final = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^]\s]+]|[^:@\s]+)(?::(?P<port>\d+))?"
)
_AS_ROOT: Final = 'test "$(id -u)" = 0 || set -- sudo -n -- "$@"; exec "$@"'


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's unit, as systemd knows it."""

    state: str
    """systemd's ActiveState (active, activating, deactivating, failed, inactive)."""
    pid: int | None
    exit_status: int | None
    """Exit status of the last process, if a process has ended since the last start."""
    result: str
    """Reason of the last end by systemd (success, exit-code, signal, oom-kill, timeout)."""
    restarts: int
    version: str | None
    """The release that the process runs, or None without a process."""

    @property
    def is_active(self) -> bool:
        """Whether a process runs."""
        return self.pid is not None


class SshHost:
    """A machine by its ssh address. As an async context manager, it keeps its connection.

    Every method raises HostError, with the host, the step and the end of stderr.
    """

    def __init__(self, address: str, *, options: Sequence[str] | None = None) -> None:
        """`address` is `[user@]host[:port]`, or a name of ~/.ssh/config.

        `options` are further options of ssh, by default those of RAFTLOG_SSH_OPTIONS. Raises
        ValueError.
        """
        found = _ADDRESS.fullmatch(address)
        if found is None or found["host"].startswith("-"):
            raise ValueError(f"{address!r} is not an ssh address of the form [user@]host[:port]")
        self.address = address
        self.host = found["host"].removeprefix("[").removesuffix("]")
        """The machine's name or IP address."""
        if options is None:
            options = shlex.split(os.environ.get(SSH_OPTIONS_VARIABLE, ""))
        self._options = tuple(options)
        if found["port"]:
            self._options += ("-p", found["port"])
        self._login = f"{found['user']}@{self.host}" if found["user"] else self.host
        self._sockets: Path | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the kept connection. Closing twice is allowed."""
        if self._sockets is None:
            return
        sockets, self._sockets = self._sockets, None
        try:
            if any(sockets.iterdir()):
                process = await asyncio.create_subprocess_exec(
                    *("ssh", "-o", f"ControlPath={sockets}/c", "-O", "exit", self._login),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                await process.wait()
        finally:
            shutil.rmtree(sockets, ignore_errors=True)

    # Releases

    async def install(self, release: Release) -> bool:
        """Bring a release to the host, without using it yet. False if it was there."""
        version = _checked_version(release.version)
        if await self._run("look for the release", _HAS_RELEASE, version) == "yes\n":
            return False
        archive = await asyncio.to_thread(_archive, release)
        await self._run(
            f"install release {version}",
            _INSTALL,
            *(version, release.python, release.pip.path.name, release.wheel.version),
            "yes" if release.dependencies else "no",
            stdin=archive,
            timeout_s=INSTALL_TIMEOUT_S,
        )
        return True

    async def activate(self, version: str) -> str | None:
        """Have the next start of each node use this release.

        Returns the release before, or None. Older releases except the last few are removed.
        """
        script, kept = _ACTIVATE, str(RELEASES_KEPT)
        output = await self._run(
            f"activate release {version}", script, _checked_version(version), kept
        )
        return output.strip() or None

    async def current(self) -> str | None:
        """The release of the next start, or None."""
        return (await self._run("read the current release", _READ_CURRENT)).strip() or None

    # Files

    async def write_file(self, path: str, content: str | bytes, mode: int) -> bool:
        """Replace a file of root's in one step, durably. False if it was just so."""
        data = content.encode() if isinstance(content, str) else content
        output = await self._run(f"write {path}", _WRITE, path, f"{mode:04o}", stdin=data)
        return output == "changed\n"

    async def read_file(self, path: str) -> str | None:
        """Read a small text file. None without a file."""
        output = await self._run(f"read {path}", _READ, path)
        return output.removeprefix("+") if output else None

    async def install_unit(self) -> bool:
        """Install `raftlog@.service`. False if it was there."""
        unit = resources.files("raftlog.fleet").joinpath(UNIT).read_bytes()
        has_changed = await self.write_file(UNIT_PATH, unit, 0o644)
        # This is always done, as an earlier deployment may have ended between the two steps.
        await self._run("reload systemd", "systemctl daemon-reload")
        return has_changed

    async def configure(self, name: str, settings: str) -> bool:
        """Write the settings of a node (TOML) for its next start. False if they were just so."""
        path = f"{CONFIGURATION}/{_checked_name(name)}.toml"
        return await self.write_file(path, settings, 0o644)

    async def configurations(self) -> dict[str, str]:
        """The settings of all nodes of this host, by name."""
        words = (await self._run("read the settings", _CONFIGURATIONS)).split("\0")[:-1]
        return dict(zip(words[::2], words[1::2], strict=True))

    # Nodes

    async def start(self, name: str) -> None:
        """Start a node now and at each boot. No change for a running node."""
        await self._run(f"start {name}", _START, _unit(name))

    async def stop(self, name: str) -> None:
        """Stop a node cleanly, now and at the next boot. Its data stays."""
        step = f"stop {name}"
        await self._run(step, _STOP, _unit(name), timeout_s=STOP_TIMEOUT_S)

    async def restart(self, name: str) -> None:
        """Stop a node cleanly and start it with the current release."""
        step = f"restart {name}"
        await self._run(step, _RESTART, _unit(name), timeout_s=STOP_TIMEOUT_S)

    async def status(self, name: str) -> NodeStatus:
        """The state of a node's unit."""
        output = await self._run(f"read the status of {name}", _STATUS, _unit(name))
        values = dict(line.partition("=")[::2] for line in output.splitlines())
        return _status(values)

    async def logs(self, name: str, lines: int = 50) -> str:
        """The last lines of a node's log."""
        count = str(min(lines, LOG_LINES_MAX))
        return await self._run(f"read the log of {name}", _LOGS, _unit(name), count)

    async def has_data(self, name: str) -> bool:
        """Whether the node has begun its data directory."""
        path = f"{DATA}/{_checked_name(name)}/directory.json"
        return await self._run(f"look for the data of {name}", _EXISTS, path) == "yes\n"

    async def uninstall(self, name: str) -> None:
        """Stop a node and remove its settings.

        With the last node, the releases and the unit are also removed. The data directory and the
        secret stay.
        """
        await self.stop(name)
        await self._run(f"uninstall {name}", _UNINSTALL, _checked_name(name))

    async def run(self, command: str) -> str:
        """Run a shell command of the operator's. Return its output, without the last line's end."""
        return (await self._run(f"run {command!r}", command)).rstrip("\n")

    # ssh

    async def _run(
        self,
        step: str,
        script: str,
        *arguments: str,
        stdin: bytes = b"",
        timeout_s: float = STEP_TIMEOUT_S,
    ) -> str:
        """Run a script as root. Return its output."""
        inner = ("sh", "-c", f"{_PREAMBLE}{script}", "raftlog", *arguments)
        remote = shlex.join(("sh", "-c", _AS_ROOT, "sh", *inner))
        # It is a file, not a pipe, as old ssh keeps stderr open in its background process.
        with tempfile.TemporaryFile() as errors:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._ssh(),
                    remote,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                )
            except OSError as error:
                raise UnreachableError(self.address, step, f"ssh does not run: {error}") from error
            try:
                async with asyncio.timeout(timeout_s):
                    output, _ = await process.communicate(stdin)
            except TimeoutError:
                reason = f"no end within {timeout_s:.0f} s"
                raise UnreachableError(self.address, step, reason) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            errors.seek(0)
            detail = errors.read().decode(errors="replace")
        if process.returncode == _SSH_FAILED:
            raise UnreachableError(self.address, step, detail or "ssh failed")
        if process.returncode:
            raise HostError(self.address, step, detail or f"exit code {process.returncode}")
        if len(output) > OUTPUT_BYTES_MAX:
            raise HostError(self.address, step, f"more than {OUTPUT_BYTES_MAX} bytes of output")
        return output.decode(errors="replace")

    def _ssh(self) -> list[str]:
        if self._sockets is None:
            # The path is short, for the length of a socket's path, and only for this user.
            self._sockets = Path(tempfile.mkdtemp(prefix="raftlog-ssh-", dir="/tmp"))
        return [
            "ssh",
            *self._options,
            *("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"),
            *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6"),
            *("-o", "ControlMaster=auto", "-o", "ControlPersist=60"),
            *("-o", f"ControlPath={self._sockets}/c"),
            *("-T", "--", self._login),
        ]


def _archive(release: Release) -> bytes:
    """The wheels and their requirements file as an archive of tar's."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for wheel in release.wheels:
            archive.add(wheel.path, arcname=wheel.path.name)
        content = release.requirements.encode()
        entry = tarfile.TarInfo("requirements.txt")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def _checked_name(name: str) -> str:
    """A node's name, which is part of paths and unit names. Raises ValueError."""
    if not _NODE_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a node's name: up to 63 lower-case letters, digits and hyphens"
        )
    return name


def _checked_version(version: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,99}", version):
        raise ValueError(f"{version!r} is not the version of a release")
    return version


def _unit(name: str) -> str:
    return UNIT.replace("@", f"@{_checked_name(name)}")


def _status(values: Mapping[str, str]) -> NodeStatus:
    """The status by the lines of `systemctl show`, and by the command line of the process."""

    def number(key: str) -> int:
        with contextlib.suppress(ValueError):
            return int(values.get(key, ""))
        return 0

    pid = number("MainPID") or None
    has_ended = pid is None and number("ExecMainExitTimestampMonotonic") > 0
    _, _, program = values.get("Interpreter", "").partition(f"{RELEASES}/")
    return NodeStatus(
        state=values.get("ActiveState", "unknown"),
        pid=pid,
        exit_status=number("ExecMainStatus") if has_ended else None,
        result=values.get("Result", ""),
        restarts=number("NRestarts"),
        version=program.partition("/")[0] or None,
    )


_PREAMBLE: Final = """set -eu
umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
"""

_HAS_RELEASE: Final = f"""
if [ -e "{RELEASES}/$1/.complete" ]; then echo yes; fi
"""

_INSTALL: Final = f"""
version=$1 python=$2 pip=$3 package=$4 is_offline=$5
mkdir -p {RELEASES}
exec 9>{RELEASES}/.lock
flock -n 9 || {{ echo "another deployment installs a release here" >&2; exit 1; }}
target={RELEASES}/$version
[ ! -e "$target/.complete" ] || {{ cat >/dev/null; exit 0; }}
rm -rf "$target"
mkdir "$target"
mkdir "$target/wheels"
tar -x -f - -C "$target/wheels" --no-same-owner

interpreter=
for candidate in ${{python:+"python$python"}} python3; do
  found=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    continue
  if [ -z "$python" ] || [ "$found" = "$python" ]; then interpreter=$candidate; break; fi
done
[ -n "$interpreter" ] || {{
  echo "no python$python here (python3 is ${{found:-missing}}), and the wheels fit no other:" \\
    "install it, or build the release with this host's Python" >&2
  exit 1
}}
# Gently: nodes of this host serve meanwhile.
"$interpreter" -m venv --without-pip "$target"
set -- --no-index --find-links "$target/wheels" --require-hashes \\
  -r "$target/wheels/requirements.txt"
[ "$is_offline" = yes ] || set -- "$target/wheels/raftlog-$package-py3-none-any.whl"
nice -n 19 "$target/bin/python" "$target/wheels/$pip/pip" install --quiet --no-cache-dir \\
  --disable-pip-version-check --no-input --root-user-action=ignore "$@" 2>"$target/errors" || {{
  cat "$target/errors" >&2
  exit 1
}}
"$target/bin/raftlog" --version >/dev/null
rm -rf "$target/wheels" "$target/errors"
sync -f "$target"
: >"$target/.complete"
"""

_ACTIVATE: Final = f"""
version=$1 kept=$2
[ -e "{RELEASES}/$version/.complete" ] || {{ echo "the release is not installed" >&2; exit 1; }}
before=$(readlink {CURRENT} || true)
before=${{before#releases/}}
if [ "$before" != "$version" ]; then
  ln -s -f -n "releases/$version" {CURRENT}.next
  mv -T -f {CURRENT}.next {CURRENT}
  touch "{RELEASES}/$version"
fi
echo "$before"
cd {RELEASES}
for old in $(ls -t | tail -n "+$((kept + 2))"); do
  case $old in
    "$version" | "$before") ;;
    *) rm -rf "./$old" ;;
  esac
done
"""

_READ_CURRENT: Final = f"""
link=$(readlink {CURRENT} || true)
echo "${{link#releases/}}"
"""

_WRITE: Final = """
path=$1 mode=$2
mkdir -p "$(dirname "$path")"
# In the same directory, and for root alone until it has its mode.
next=$(mktemp "$path.XXXXXX")
trap 'rm -f "$next"' EXIT
cat >"$next"
chmod "$mode" "$next"
if [ -e "$path" ] && cmp -s "$path" "$next" &&
  [ "$(stat -c %a:%u "$path")" = "${mode#0}:$(id -u)" ]; then
  exit 0
fi
sync "$next"
mv -f "$next" "$path"
sync -f "$(dirname "$path")"
echo changed
"""

_READ: Final = """
if [ -e "$1" ]; then printf +; cat "$1"; fi
"""

_EXISTS: Final = """
if [ -e "$1" ]; then echo yes; fi
"""

_CONFIGURATIONS: Final = f"""
for path in {CONFIGURATION}/*.toml; do
  [ -e "$path" ] || continue
  name=${{path##*/}}
  printf '%s\\0' "${{name%.toml}}"
  cat "$path"
  printf '\\0'
done
"""

_START: Final = """
systemctl reset-failed "$1" 2>/dev/null || true
systemctl enable --quiet --now "$1"
"""

_STOP: Final = """
systemctl disable --quiet --now "$1"
"""

_RESTART: Final = """
systemctl reset-failed "$1" 2>/dev/null || true
systemctl enable --quiet "$1"
systemctl restart "$1"
"""

_STATUS: Final = """
systemctl show "$1" \\
  -p ActiveState,MainPID,ExecMainStatus,ExecMainExitTimestampMonotonic,Result,NRestarts
pid=$(systemctl show "$1" -p MainPID --value)
# The first word of the command line is the interpreter of the release.
[ "$pid" = 0 ] || printf 'Interpreter=%s\\n' "$(tr '\\0' '\\n' <"/proc/$pid/cmdline" | head -n 1)"
"""

_LOGS: Final = """
journalctl --unit "$1" --lines "$2" --output cat --no-pager
"""

_UNINSTALL: Final = f"""
rm -f "{CONFIGURATION}/$1.toml"
for path in {CONFIGURATION}/*.toml; do
  [ ! -e "$path" ] || exit 0
done
rm -rf {CURRENT} {RELEASES}
rm -f {UNIT_PATH}
systemctl daemon-reload
"""
