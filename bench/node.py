"""Nodes under measurement, observed from outside: over HTTP, and by the operating system.

A `LoneNode` has no voters and no secret, as a user starts the first node. The nodes of
`LocalCluster` are always voters of a cluster, or join it (bench/cluster.py).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import psutil

from raftlog.cluster.layout import tail
from raftlog.cluster.process import SERVE, clean_environment, free_ports

READY_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
LISTEN_TIMEOUT_S: Final = 30.0
PROGRAM_TIMEOUT_S: Final = 600.0
READY_POLL_S: Final = 0.005
LOG_LINES_SHOWN: Final = 15


class MeasuredNode(ABC):
    """A node with a process: HTTP requests, memory, processor time."""

    data_dir: Path

    @property
    @abstractmethod
    def address(self) -> str:
        """The address, `host:port`."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """The output of this node's processes, one life after the other."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The running process. AssertionError: there is none."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the process died without a kill or stop through this object."""

    @property
    def port(self) -> int:
        """The port of HTTP."""
        return int(self.address.rpartition(":")[2])

    @property
    def console(self) -> Path:
        """The socket of the console, if the node has one (bench/quorum_node.py)."""
        return console_of(self.data_dir)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the node is ready. Raises RuntimeError: it died, or takes too long."""
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            if self.has_ended:
                raise RuntimeError(f"the node ended by itself: {self.log_end()}")
            try:
                with urllib.request.urlopen(f"http://{self.address}/ready", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (OSError, HTTPException):
                time.sleep(READY_POLL_S)
        raise RuntimeError(f"the node was not ready within {timeout_s} s: {self.log_end()}")

    def log_end(self) -> str:
        """The output's path and last lines, for a message."""
        return "\n".join([str(self.log), *tail(self.log, LOG_LINES_SHOWN)])

    def request(self, method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> Any:
        """Send one JSON request. Raises urllib.error.URLError, HTTPError for an error answer."""
        request = urllib.request.Request(
            f"http://{self.address}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic by the admin API."""
        body = {"topic_name": name, "partitions_count": partitions}
        self.request("POST", "/v3/clusters/-/topics", body)

    def delete_topic(self, name: str) -> None:
        """Delete a topic by the admin API."""
        self.request("DELETE", f"/v3/clusters/-/topics/{name}", None)

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system."""
        return sum(self.cpu_times())

    def cpu_times(self) -> tuple[float, float]:
        """Processor time used so far: user, system."""
        return cpu_times(self.pid)


class LoneNode(MeasuredNode):
    """One `raftlog serve` process and its data directory.

    `arguments` and `environment` are added at the first start (`launch`); `program` may take the
    place of `raftlog serve`.
    """

    def __init__(
        self,
        data_dir: Path,
        flush: str,
        port: int | None = None,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = SERVE,
    ) -> None:
        self.data_dir = data_dir
        self._flush = flush
        self._port = port or free_port()
        self._arguments = tuple(arguments)
        self._environment = dict(environment or {})
        self._program = tuple(program)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address, `host:port`."""
        return f"127.0.0.1:{self._port}"

    @property
    def log(self) -> Path:
        """The output of this node's processes, one life after the other."""
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    @property
    def pid(self) -> int:
        """The running process. AssertionError: there is none."""
        assert self._process is not None, "the node is not running"
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process ended without a kill or stop through this object."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> float:
        """Start the process; return the seconds until the node is ready."""
        started = time.perf_counter()
        self.launch()
        self.wait_ready()
        return time.perf_counter() - started

    def launch(self) -> None:
        """Start the process with all arguments; do not wait until the node is ready."""
        self._launch(
            ("--listen", self.address, "--flush", self._flush, *self._arguments), self._environment
        )

    def relaunch(self) -> None:
        """Start the process with nothing but its data directory; do not wait."""
        self._launch((), {})

    def _launch(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        assert self._process is None or self.has_ended, "a data directory belongs to one process"
        self.kill()  # reaps a process that has ended by itself
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._program, "--data-dir", str(self.data_dir), *arguments],
                env={**clean_environment(os.environ), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def move_to(self, port: int) -> None:
        """Kill the process; listen on another port from the next `launch` on."""
        self.kill()
        self._port = port

    def kill(self) -> None:
        """Kill the process (SIGKILL), if there is one."""
        self._stop(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process cleanly (SIGTERM), if there is one."""
        self._stop(signal.SIGTERM)

    def _stop(self, signal_number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal_number)
        try:
            self._process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        self._process = None


@contextmanager
def data_directory(parent: str | None = None) -> Iterator[Path]:
    """A path in a fresh directory on the disk under test, removed afterwards."""
    root = Path(
        tempfile.mkdtemp(prefix="raftlog-bench-", dir=parent or os.environ.get("BENCH_DIR"))
    )
    try:
        yield root / "data"
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def running_node(flush: str, *arguments: str) -> Iterator[LoneNode]:
    """A node with an empty log, stopped and removed afterwards; `arguments` of `raftlog serve`."""
    with data_directory() as directory:
        node = LoneNode(directory, flush, arguments=arguments)
        node.start()
        try:
            yield node
        finally:
            node.stop()


@contextmanager
def listening(
    module: str, arguments: Sequence[Sequence[str]]
) -> Iterator[list[tuple[int, subprocess.Popen[bytes]]]]:
    """Programs once they listen on their ports, killed at the end. Raises RuntimeError.

    Each takes its port and some of the arguments.
    """
    ports = free_ports("127.0.0.1", len(arguments))
    found = []
    with ExitStack() as stack:
        for port, own in zip(ports, arguments, strict=True):
            process = subprocess.Popen([sys.executable, "-m", module, str(port), *own])
            stack.callback(process.wait)
            stack.callback(process.kill)
            found.append((port, process))
        for port, process in found:
            deadline = time.perf_counter() + LISTEN_TIMEOUT_S
            while not _is_open(port):
                if time.perf_counter() > deadline or process.poll() is not None:
                    raise RuntimeError(f"{module} does not listen on port {port}")
                time.sleep(READY_POLL_S)
        yield found


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def output_of(command: Sequence[str], timeout_s: float = PROGRAM_TIMEOUT_S) -> str:
    """Run a program and return its output. Raises RuntimeError, subprocess.TimeoutExpired."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    if done.returncode:
        raise RuntimeError(f"{command[:4]}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def cpu_times(pid: int) -> tuple[float, float]:
    """Processor time that a process has used so far: user, system."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user), float(times.system)


def free_port() -> int:
    """A loopback port that was free a moment ago, and that no outgoing connection is given."""
    return free_ports("127.0.0.1", 1)[0]


def console_of(data_dir: Path) -> Path:
    """The socket of a node's console, beside its data directory."""
    return data_dir.with_name(f"{data_dir.name}.console")
