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
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

READY_TIMEOUT_S = 120.0


class NodeProcess:
    """One `raftlog serve` process and its data directory."""

    def __init__(self, data_dir: Path, flush: str, port: int | None = None) -> None:
        self.data_dir = data_dir
        self.flush = flush
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port`, as clients take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base of every path."""
        return f"http://{self.address}"

    def start(self) -> float:
        """Start the process; return the seconds until it answered ready."""
        started = time.perf_counter()
        log = (self.data_dir.parent / f"{self.data_dir.name}.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "raftlog.cli", "serve"),
                    *("--data-dir", str(self.data_dir), "--listen", self.address),
                    *("--flush", self.flush),
                ],
                stdout=log,
                stderr=log,
            )
        while time.perf_counter() - started < READY_TIMEOUT_S:
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"the node ended with {self._process.returncode}; see {log.name}"
                )
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - started
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.005)
        raise RuntimeError(f"the node was not ready within {READY_TIMEOUT_S} s")

    def kill(self) -> None:
        """An unclean stop."""
        self._stop(signal.SIGKILL)

    def stop(self) -> None:
        """A clean stop."""
        self._stop(signal.SIGTERM)

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return int(self._inspect().memory_info().rss)

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system."""
        times = self._inspect().cpu_times()
        return float(times.user + times.system)

    def create_topic(
        self, name: str, partitions: int, configs: dict[str, str] | None = None
    ) -> None:
        """Create a topic by the admin API."""
        body = {"topic_name": name, "partitions_count": partitions}
        self.request("POST", "/v3/clusters/any/topics", body)

    def delete_topic(self, name: str) -> None:
        """Delete a topic by the admin API."""
        self.request("DELETE", f"/v3/clusters/any/topics/{name}", None)

    def request(self, method: str, path: str, body: Any) -> Any:
        """One JSON request."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def _inspect(self) -> psutil.Process:
        assert self._process is not None, "the node is not running"
        return psutil.Process(self._process.pid)

    def _stop(self, signal_number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal_number)
        self._process.wait(timeout=60)
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
