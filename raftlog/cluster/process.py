"""One process of a node: started or taken over, signalled, and its end heard of.

By pidfd: a signal through it cannot hit another process that has been given the same number, and
the end of a process is heard of that is not our child, because the manager that started it is gone.

Ports for nodes: free ones found, taken ones named.
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

SERVE: Final = (sys.executable, "-m", "raftlog.cli", "serve")
SETTINGS_PREFIX: Final = "RAFTLOG_"
_LOG_MODE: Final = 0o644
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_START_TIME_FIELD: Final = 19
"""Of /proc/PID/stat, counted after the name in parentheses: proc(5), field 22."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """Which process a node had: number and start time together never name two."""

    pid: int
    start_ticks: int


class _Records(msgspec.Struct, frozen=True):
    boot_id: str
    nodes: dict[int, ProcessRecord]


class Ended(NamedTuple):
    """The end of a process. `code` is None if only its parent could have learned it."""

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
    """A process that runs or has ended. Belongs to one event loop."""

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
        """Start a command that appends what it says to a file. Raises OSError."""
        pid = spawn(command, stdout=log, stderr=log, new_session=new_session)
        # Nobody waits for it but we, below: until then the number cannot mean another process.
        return cls(pid, os.pidfd_open(pid))

    @classmethod
    def adopt(cls, record: ProcessRecord) -> NodeProcess | None:
        """Take over a process that an earlier manager started; None if it has ended."""
        try:
            pidfd = os.pidfd_open(record.pid)
        except OSError:
            return None
        # After the descriptor is open: from now on the number cannot come to mean another process.
        if start_ticks(record.pid) != record.start_ticks:
            os.close(pidfd)
            return None
        return cls(record.pid, pidfd)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a paused one runs."""
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
        """How the process ended, once it has."""
        return await asyncio.shield(self._ended)

    async def stop(self, timeout_s: float) -> bool:
        """End it by SIGTERM, or by SIGKILL after the timeout; return whether the first did."""
        # Also for one that an earlier manager, or somebody else, has paused.
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
        """Hear no more of the process, which goes on if it runs."""
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
    """Start a process, in a session of its own by default, without our environment's settings.

    So Ctrl-C at our terminal, and its end, are ours to tell it of. Output is appended to files, or
    goes to a descriptor. Not `subprocess`, which wants to see its children end. Raises OSError.
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
    """Descriptors that whoever started us left open: a lock, say, that a script holds."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - not a path that is used as one
        with suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without settings: those of whoever starts the cluster are not the node's."""
    return {
        name: value for name, value in environment.items() if not name.startswith(SETTINGS_PREFIX)
    }


def start_ticks(pid: int) -> int | None:
    """When the process started, in ticks since the machine did; None if it is gone."""
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
    """What `save_records` wrote last, if it was since the machine started."""
    content = read_file(path)
    if content is None:
        return {}
    try:
        records = msgspec.json.decode(content, type=_Records)
    except msgspec.DecodeError:
        # It is there to save a restart; without it, a port that is taken will tell.
        return {}
    return records.nodes if records.boot_id == _boot_id() else {}


def is_alive(record: ProcessRecord) -> bool:
    """Whether that very process still runs."""
    return start_ticks(record.pid) == record.start_ticks


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


FREE_PORTS: Final = range(20_000, 32_000)
"""Below what Linux gives to outgoing connections: a port whose node is down must stay free."""
SEARCH_MAX: Final = 200
PORT_MAX: Final = 65_535


def why_taken(host: str, port: int) -> str | None:
    """Why nobody can listen there; None: the port is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: a port that only waits for old connections to be forgotten is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def require_free(host: str, ports: Iterable[int], hint: str) -> None:
    """Raise ClusterError, naming the port, if one of them is taken."""
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


def free_ports(host: str, count: int) -> list[int]:
    """So many ports that were free a moment ago. Raises ClusterError."""
    found: list[int] = []
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        if len(found) == count:
            break
        if why_taken(host, port) is None:
            found.append(port)
    if len(found) < count:
        raise ClusterError(f"{host} has no {count} free ports")
    return found


def next_port(host: str, used: Collection[int]) -> int:
    """The first free port after those that the cluster uses. Raises ClusterError."""
    first = max(used) + 1
    for port in range(first, min(first + SEARCH_MAX, PORT_MAX + 1)):
        if why_taken(host, port) is None:
            return port
    raise ClusterError(f"{host} has no free port among the {SEARCH_MAX} from {first} on")
