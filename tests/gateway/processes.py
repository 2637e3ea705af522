"""Gateways and clusters as processes of their own, on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from raftlog_client import Producer

from bench.node import STOP_TIMEOUT_S, LoneNode, MeasuredNode, free_port
from raftlog.api.catalog import CATALOG_TOPIC, CatalogEntry, encode_entry
from raftlog.cluster.process import SERVE, clean_environment

COMMAND = SERVE[:-1]
"""`serve` is the last word of the command for a node."""


class GatewayProcess(MeasuredNode):
    """One `raftlog gateway` process."""

    def __init__(self, directory: Path, name: str, home: Sequence[str]) -> None:
        self.data_dir = directory / name
        self._home = tuple(home)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def log(self) -> Path:
        return self.data_dir.with_suffix(".log")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the gateway is not running"
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def launch(self) -> None:
        """Start the process; do not wait."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "gateway", "--home", ",".join(self._home), "--listen", self.address],
                env=clean_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and wait for the end: the exit code."""
        assert self._process is not None, "the gateway is not running"
        self._process.send_signal(number)
        code = self._process.wait(timeout=STOP_TIMEOUT_S)
        self._process = None
        return code

    def kill(self) -> None:
        """Kill the process (SIGKILL), if there is one."""
        if self._process is not None:
            self.end(signal.SIGKILL)

    def error(self, method: str, path: str, body: Any = None) -> tuple[int, int, str]:
        """Status, error code and message of a failing request."""
        try:
            answer = self.request(method, path, body)
        except HTTPError as error:
            found = json.loads(error.read())
            return error.code, found["error_code"], found["message"]
        raise AssertionError(f"{method} {path} was answered: {answer!r}")


class Fleet:
    """A home cluster of one node, clusters of one log and one node each, and gateways."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.home = self._node("home")
        self.clusters: dict[str, LoneNode] = {}

    def start(self, *logs: str) -> None:
        """Start home and the clusters of these logs together."""
        nodes = [self.home]
        for log in logs:
            self.clusters[log] = self._node(log)
            nodes.append(self.clusters[log])
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_ready()
        self.home.request(
            "POST",
            "/v3/clusters/-/topics",
            {
                "topic_name": CATALOG_TOPIC,
                "partitions_count": 1,
                "configs": [{"name": "cleanup.policy", "value": "compact"}],
            },
        )

    def entry(self, log: str, /, **changes: Any) -> CatalogEntry:
        """The entry of a log with a running cluster."""
        node = self.clusters[log]
        values = {
            "log": log,
            "cluster": f"{log}-1",
            "cluster_id": node.request("GET", "/v1/metadata")["cluster_id"],
            "addresses": (node.address,),
            "state": "online",
            **changes,
        }
        return CatalogEntry(**values)

    async def write(self, log: str, entry: CatalogEntry | None) -> None:
        """Write an entry, or a tombstone, to the catalog."""
        async with Producer(bootstrap_servers=self.home.address) as producer:
            value = None if entry is None else encode_entry(entry)
            await producer.send_and_wait(CATALOG_TOPIC, key=log.encode(), value=value)

    def gateway(self, name: str) -> GatewayProcess:
        """A starting gateway."""
        process = GatewayProcess(self._directory, name, [self.home.address])
        self._stack.callback(process.kill)
        process.launch()
        return process

    def _node(self, name: str) -> LoneNode:
        node = LoneNode(self._directory / name, flush="async")
        self._stack.callback(node.kill)
        return node


@contextmanager
def fleet(directory: Path) -> Iterator[Fleet]:
    """A fleet; its processes end with the block."""
    with ExitStack() as stack:
        yield Fleet(directory, stack)
