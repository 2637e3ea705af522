"""A node under measurement: started as a user starts it, watched from outside."""

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
SERVE = (sys.executable, "-m", "raftlog.cli", "serve")


class NodeProcess:
    """One `raftlog serve` process and its data directory.

    `arguments` and `environment` are added to what every node is given at its first start.
    `program` may take the place of `raftlog serve`; then its input and output are pipes
    (bench/quorum_node.py). `prefix` goes before it: a command that ends in becoming the node, such
    as `ip netns exec NAME`; `host` is where the node listens then.
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
        prefix: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.data_dir = data_dir
        self.flush = flush
        self.host = host
        self.port = port or free_port()
        self.arguments = tuple(arguments)
        self.environment = dict(environment or {})
        self.program = tuple(program)
        self.prefix = tuple(prefix)
        self.is_paused = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port`, as clients take it."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The base of every path."""
        return f"http://{self.address}"

    @property
    def log(self) -> Path:
        """The file that holds what the processes of this node wrote, one life after the other."""
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None, "the node is not running"
        return self._process

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended; a paused one is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Whether the process was started and has ended without being told to by this object."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> float:
        """Start the process; return the seconds until it answered ready."""
        started = time.perf_counter()
        self.launch()
        self.wait_ready()
        return time.perf_counter() - started

    def launch(self) -> None:
        """Start the process as it is started first, and do not wait for it."""
        self._launch(
            ("--listen", self.address, "--flush", self.flush, *self.arguments), self.environment
        )

    def relaunch(self) -> None:
        """Start the process with nothing but its data directory, and do not wait for it."""
        self._launch((), {})

    def _launch(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        assert not self.is_running, "a data directory belongs to one process"
        self.kill()  # nothing, or what is left of a process that has ended by itself
        # Settings in the environment of whoever runs this must not become the node's.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("RAFTLOG_")
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *self.program, "--data-dir", str(self.data_dir), *arguments],
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL if self.program == SERVE else subprocess.PIPE,
                stdout=log if self.program == SERVE else subprocess.PIPE,
                stderr=log,
            )
        self.is_paused = False

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the node answers ready. Raises RuntimeError if it ends, or does not."""
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            if (code := self.process.poll()) is not None:
                raise RuntimeError(f"the node ended with {code}; see {self.log}")
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (OSError, HTTPException):
                time.sleep(0.005)
        raise RuntimeError(f"the node was not ready within {timeout_s} s; see {self.log}")

    def kill(self) -> None:
        """An unclean stop, also of a paused node."""
        self._stop(signal.SIGKILL)

    def stop(self) -> None:
        """A clean stop."""
        self.resume()
        self._stop(signal.SIGTERM)

    def pause(self) -> None:
        """Let the process stand still: it holds its connections and answers nobody."""
        self.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let a paused process go on. Harmless if it is not paused."""
        if self.is_paused and self.is_running:
            self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return int(self._inspect().memory_info().rss)

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system."""
        return sum(self.cpu_times())

    def cpu_times(self) -> tuple[float, float]:
        """Processor time used so far: user, system."""
        times = self._inspect().cpu_times()
        return float(times.user), float(times.system)

    def create_topic(
        self, name: str, partitions: int, configs: dict[str, str] | None = None
    ) -> None:
        """Create a topic by the admin API."""
        body = {"topic_name": name, "partitions_count": partitions}
        self.request("POST", "/v3/clusters/any/topics", body)

    def delete_topic(self, name: str) -> None:
        """Delete a topic by the admin API."""
        self.request("DELETE", f"/v3/clusters/any/topics/{name}", None)

    def request(self, method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> Any:
        """One JSON request. Raises urllib.error.URLError, HTTPError for an answer with an error."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def _inspect(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

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
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None


@contextmanager
def data_directory(parent: str | None = None) -> Iterator[Path]:
    """A fresh directory on the disk under test, removed afterwards."""
    root = Path(
        tempfile.mkdtemp(prefix="raftlog-bench-", dir=parent or os.environ.get("BENCH_DIR"))
    )
    try:
        yield root / "data"
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def running_node(flush: str) -> Iterator[NodeProcess]:
    """A node with an empty log, stopped and removed afterwards."""
    with data_directory() as directory:
        node = NodeProcess(directory, flush)
        node.start()
        try:
            yield node
        finally:
            node.stop()


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
