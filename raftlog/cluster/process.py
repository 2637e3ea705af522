"""A node's process, started or adopted, signalled, and its end observed. Free ports.

Processes are observed by pidfd. A signal cannot hit another process with a reused pid, and the end
of an adopted process, not a child of this process, is also observed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from raftlog.cluster.errors import ClusterError
from raftlog.cluster.layout import read_file, replace_file
from raftlog.record.decoders import json_decoder

SERVE: Final = (sys.executable, "-m", "raftlog.cli", "serve")
SETTINGS_PREFIX: Final = "RAFTLOG_"
_LOG_MODE: Final = 0o600
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_START_TIME_FIELD: Final = 19
"""Index of the start time in /proc/PID/stat, after the name in parentheses (proc(5), field 22)."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """Record of a node's process. Number and start time together never name two."""

    pid: int
    start_ticks: int


class _Records(msgspec.Struct, frozen=True):
    boot_id: str
    nodes: dict[int, ProcessRecord]


class Ended(NamedTuple):
    """The end of a process. `code` is None if only its parent knows it."""

    code: int | None

    def __str__(self) -> str:
        if self.code is None:
            return "ended"
        if self.code < 0:
            try:
                return f"was ended by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"was ended by signal {-self.code}"
        return f"ended with exit code {self.code}"


class NodeProcess:
    """A process, running or ended. Belongs to one event loop."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.is_paused = False
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self.started_s = self._loop.time()
        self._ended: asyncio.Future[Ended] = self._loop.create_future()
        self._loop.add_reader(pidfd, self._on_end)

    @classmethod
    def launch(cls, command: Sequence[str], log: Path, *, new_session: bool = True) -> NodeProcess:
        """Start a command with its output appended to a file. Raises OSError."""
        pid = spawn(command, stdout=log, stderr=log, new_session=new_session)
        # Only this object reaps the process, below. Until then its pid is not reused.
        return cls(pid, os.pidfd_open(pid))

    @classmethod
    def adopt(cls, record: ProcessRecord) -> NodeProcess | None:
        """Adopt an earlier manager's process. None if ended."""
        try:
            pidfd = os.pidfd_open(record.pid)
        except OSError:
            return None
        # The descriptor is open, so from now on the number cannot come to mean another process.
        if start_ticks(record.pid) != record.start_ticks:
            os.close(pidfd)
            return None
        return cls(record.pid, pidfd)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended. A paused process runs."""
        return not self._ended.done()

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Harmless if the process has ended."""
        if not self.is_running:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return
        if number is signal.SIGSTOP:
            self.is_paused = True
        elif number is signal.SIGCONT:
            self.is_paused = False

    async def ended(self) -> Ended:
        """The end of the process, or None while running."""
        return await asyncio.shield(self._ended)

    async def stop(self, timeout_s: float) -> bool:
        """End the process by SIGTERM, or by SIGKILL after the timeout.

        Returns whether SIGTERM sufficed.
        """
        # The signal is also for a process paused by an earlier manager, or by a user.
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self.ended()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self.ended()
            return False
        return True

    def let_go(self) -> None:
        """Stop observing the process. If running, it keeps running."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _on_end(self) -> None:
        try:
            found = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        except ChildProcessError:
            code = None
        else:
            assert found is not None
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self.let_go()
        self._ended.set_result(Ended(code))


def spawn(
    command: Sequence[str], *, stdout: Path | int, stderr: Path, new_session: bool = True
) -> int:
    """Start a process, by default in a new session, without settings from this environment.

    So Ctrl-C at this terminal, and the terminal's end, do not reach the process. Output is appended
    to files, or goes to a descriptor. It does not use `subprocess`, which reaps its children
    itself. Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    error = os.open(stderr, flags, _LOG_MODE)
    try:
        output = os.open(stdout, flags, _LOG_MODE) if isinstance(stdout, Path) else os.dup(stdout)
        try:
            return os.posix_spawn(
                command[0],
                list(command),
                clean_environment(os.environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, error, 2),
                    *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()),
                ],
                setsid=new_session,
            )
        finally:
            os.close(output)
    finally:
        os.close(error)


def _inheritable() -> list[int]:
    """Descriptors inherited from the starting program, for example a script's lock."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - not used as a path
        with suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without settings, as the starting user's are not the node's."""
    return {
        name: value for name, value in environment.items() if not name.startswith(SETTINGS_PREFIX)
    }


def start_ticks(pid: int) -> int | None:
    """Start of the process, in ticks since boot. None after its end."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        fields = text.rpartition(")")[2].split()
        is_gone = fields[0] in ("Z", "X")
        return None if is_gone else int(fields[_START_TIME_FIELD])
    except (OSError, IndexError, ValueError):
        return None


def save_records(path: Path, pids: Mapping[int, int]) -> None:
    """Write down which processes run, by node, for the next manager. Raises OSError."""
    nodes = {
        node_id: ProcessRecord(pid, ticks)
        for node_id, pid in sorted(pids.items())
        if (ticks := start_ticks(pid)) is not None
    }
    replace_file(path, msgspec.json.encode(_Records(_boot_id(), nodes)) + b"\n")


def load_records(path: Path) -> dict[int, ProcessRecord]:
    """The records of the last `save_records` since boot."""
    content = read_file(path)
    if content is None:
        return {}
    try:
        records = json_decoder(_Records).decode(content)
    except msgspec.DecodeError:
        # The file only saves a restart. Without records, a taken port shows a running node.
        return {}
    return records.nodes if records.boot_id == _boot_id() else {}


def is_alive(record: ProcessRecord) -> bool:
    """Whether this very process still runs."""
    return start_ticks(record.pid) == record.start_ticks


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


FREE_PORTS: Final = range(20_000, 32_000)
"""Ports below what Linux gives to outgoing connections. A stopped node's port must stay free."""
SEARCH_MAX: Final = 200
PORT_MAX: Final = 65_535


def why_taken(host: str, port: int) -> str | None:
    """The reason why no process can listen there, or None if the port is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # Servers do the same. A port with only old connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def require_free(host: str, ports: Iterable[int], hint: str) -> None:
    """Raise ClusterError, naming the port, if a port is taken."""
    for port in ports:
        reason = why_taken(host, port)
        if reason is not None:
            raise ClusterError(f"port {port} of {host} cannot be used: {reason}", hint)


def consecutive(base_port: int, count: int) -> list[int]:
    """So many ports from `base_port` on. Raises ClusterError."""
    if base_port + count - 1 > PORT_MAX:
        raise ClusterError(
            f"there are no {count} ports from {base_port} on: the last is {PORT_MAX}"
        )
    return list(range(base_port, base_port + count))


def free_ports(host: str, count: int, avoid: Collection[int] = ()) -> list[int]:
    """So many ports, free a moment ago, and none to avoid. Raises ClusterError."""
    found: list[int] = []
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        if len(found) == count:
            break
        if port not in avoid and why_taken(host, port) is None:
            found.append(port)
    if len(found) < count:
        raise ClusterError(f"{host} has no {count} free ports")
    return found


def next_port(host: str, used: Collection[int], avoid: Collection[int] = ()) -> int:
    """The first free port after the cluster's ports, and none to avoid. Raises ClusterError."""
    first = max(used) + 1
    for port in range(first, min(first + SEARCH_MAX, PORT_MAX + 1)):
        if port not in avoid and why_taken(host, port) is None:
            return port
    raise ClusterError(f"{host} has no free port among the {SEARCH_MAX} from {first} on")
