"""A cluster of real processes: formed, hurt and healed as its operators and its enemies would.

Every node is a `raftlog serve` of its own, on loopback, with its data directory and its log below
one directory. The first start names the voters and the secret; a restart names the data directory
and nothing else.
"""

from __future__ import annotations

import random
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from bench.node import SERVE, NodeProcess

ACTIVE_TIMEOUT_S: Final = 30.0
START_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02
STATUS_TIMEOUT_S: Final = 1.0
PORTS: Final = range(20_000, 32_000)
"""Below what Linux gives to outgoing connections: a port whose node is down must stay free."""
SECRET_VARIABLE: Final = "RAFTLOG_CLUSTER_SECRET"


class Place(NamedTuple):
    """Where a node runs: its address, and the command that takes it there."""

    host: str
    prefix: tuple[str, ...] = ()


LOOPBACK: Final = Place("127.0.0.1")


class NoLeaderError(Exception):
    """No leader became active in time. `str()` tells what each node said last."""


class ClusterProcesses:
    """`count` voters, numbered from 1, and whoever joined since. Use it as a context manager.

    The first of them run in `places`, all others on loopback.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        flush: str = "sync",
        secret: str | None = None,
        program: Sequence[str] = SERVE,
        arguments: Sequence[str] = (),
        places: Sequence[Place] = (),
    ) -> None:
        self.directory = directory
        self.secret = secret or secrets.token_hex(16)
        self._flush = flush
        self._program = tuple(program)
        self._arguments = tuple(arguments)
        self._places = tuple(places)
        self._used_ports: set[int] = set()
        ports = [self._free_port() for _ in range(count)]
        self.voters = ",".join(
            f"{node_id}@{self._place(node_id).host}:{port}"
            for node_id, port in enumerate(ports, start=1)
        )
        self.nodes: dict[int, NodeProcess] = {
            node_id: self.process(node_id, "--voters", self.voters, port=port)
            for node_id, port in enumerate(ports, start=1)
        }

    def process(
        self,
        node_id: int,
        *arguments: str,
        port: int | None = None,
        secret: str | None = None,
        name: str | None = None,
    ) -> NodeProcess:
        """A process that is neither started nor among `nodes`. It knows the cluster's secret."""
        return NodeProcess(
            self.directory / (name or f"node{node_id}"),
            self._flush,
            port or self._free_port(),
            arguments=("--node-id", str(node_id), *self._arguments, *arguments),
            environment={SECRET_VARIABLE: secret or self.secret},
            program=self._program,
            prefix=self._place(node_id).prefix,
            host=self._place(node_id).host,
        )

    def start(self) -> int:
        """Start all nodes; return the leader once it is active and every node is ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for node in self.nodes.values():
            node.launch()
        self.wait_answering()
        leader = self.wait_active()
        for node in self.nodes.values():
            node.wait_ready()
        return leader

    def join(self, node_id: int) -> NodeProcess:
        """Start a new node that joins by the others' addresses; return it once it is ready."""
        addresses = ",".join(node.address for node in self.nodes.values())
        node = self.process(node_id, "--join", addresses)
        self.nodes[node_id] = node
        node.start()
        return node

    def kill(self, *node_ids: int) -> None:
        """End nodes by SIGKILL, paused ones too."""
        for node_id in node_ids:
            self.nodes[node_id].kill()

    def pause(self, *node_ids: int) -> None:
        """Stop the time of nodes by SIGSTOP."""
        for node_id in node_ids:
            self.nodes[node_id].pause()

    def resume(self, *node_ids: int) -> None:
        """Let paused nodes go on."""
        for node_id in node_ids:
            self.nodes[node_id].resume()

    def restart(self, *node_ids: int) -> None:
        """Start nodes that have ended with nothing but their data directories; do not wait."""
        for node_id in node_ids:
            self.nodes[node_id].relaunch()

    def heal(self) -> None:
        """Let paused nodes go on and start the killed ones. RuntimeError: one ended by itself."""
        self._check_alive()
        for node_id, node in self.nodes.items():
            node.resume()
            if not node.is_running:
                self.restart(node_id)

    def quorum(self, node_id: int) -> dict[str, Any] | None:
        """What a node says of the quorum (GET /v1/quorum); None if it says nothing in time."""
        try:
            answer = self.nodes[node_id].request("GET", "/v1/quorum", timeout_s=STATUS_TIMEOUT_S)
        except (OSError, HTTPException, ValueError):
            return None
        assert isinstance(answer, dict)
        return answer

    def leader(self) -> int | None:
        """The node that leads and is active by its own word, in the highest term; None if none."""
        found: tuple[int, int] | None = None
        for node_id, node in self.nodes.items():
            if not node.is_running or node.is_paused:
                continue
            said = self.quorum(node_id)
            if said is not None and said["is_active"] and said["leader_id"] == node_id:
                found = max(found or (0, 0), (said["term"], node_id))
        return None if found is None else found[1]

    def wait_answering(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every running node's process answers. Raises RuntimeError: ended, or silent.

        A process that starts on a busy machine is not yet part of the cluster that must recover.
        """
        deadline = time.perf_counter() + timeout_s
        silent = {node_id for node_id, node in self.nodes.items() if node.is_running}
        while silent:
            silent = {node_id for node_id in silent if not self._answers(node_id)}
            self._check_alive()
            if silent and time.perf_counter() > deadline:
                raise RuntimeError(f"nodes {sorted(silent)} did not answer within {timeout_s} s")
            time.sleep(POLL_S if silent else 0)

    def wait_active(self, timeout_s: float = ACTIVE_TIMEOUT_S) -> int:
        """The leader, once there is an active one. Raises NoLeaderError, or RuntimeError: ended."""
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            leader = self.leader()
            if leader is not None:
                return leader
            self._check_alive()
            time.sleep(POLL_S)
        said = {node_id: self.quorum(node_id) for node_id in self.nodes}
        raise NoLeaderError(f"no leader became active within {timeout_s} s: {said}")

    def wait_quiet(self, timeout_s: float = ACTIVE_TIMEOUT_S) -> int:
        """The leader, once every node is connected to it and has all that it has."""
        deadline = time.perf_counter() + timeout_s
        said: dict[str, Any] | None = None
        while time.perf_counter() < deadline:
            leader = self.wait_active(timeout_s)
            said = self.quorum(leader)
            if said is not None:
                members = [*said["voters"], *said["observers"]]
                others = [member for member in members if member["node_id"] != leader]
                if len(others) + 1 >= len(self.nodes) and all(
                    member["connected"] and member["lag"] == 0 for member in others
                ):
                    return leader
            time.sleep(POLL_S)
        raise NoLeaderError(f"the nodes did not catch up within {timeout_s} s: {said}")

    def log_ends(self, lines: int = 15) -> str:
        """The last lines of every node's log, for an error's reader."""
        parts = []
        for node_id, node in sorted(self.nodes.items()):
            text = node.log.read_text(errors="replace") if node.log.exists() else ""
            parts.append(
                f"--- node {node_id}: {node.log}\n" + "\n".join(text.splitlines()[-lines:])
            )
        return "\n".join(parts)

    def close(self) -> None:
        """End all processes, whatever state they are in. Data and logs stay."""
        with ExitStack() as stack:
            # All of them, even if one of them does not end.
            for node in self.nodes.values():
                stack.callback(node.kill)

    def __enter__(self) -> ClusterProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _place(self, node_id: int) -> Place:
        return self._places[node_id - 1] if node_id <= len(self._places) else LOOPBACK

    def _answers(self, node_id: int) -> bool:
        try:
            self.nodes[node_id].request("GET", "/healthy", timeout_s=STATUS_TIMEOUT_S)
        except (OSError, HTTPException, ValueError):
            return False
        return True

    def _check_alive(self) -> None:
        for node_id, node in self.nodes.items():
            # One that was killed on purpose has no process any more.
            if node.has_ended:
                raise RuntimeError(f"node {node_id} has ended by itself; see {node.log}")

    def _free_port(self) -> int:
        for port in random.sample(PORTS, len(PORTS)):
            if port in self._used_ports:
                continue
            with socket.socket() as probe:
                # As servers do: a port that only waits for old connections to be forgotten is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            self._used_ports.add(port)
            return port
        raise RuntimeError("no port is free")
