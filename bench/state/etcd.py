"""etcd of three nodes, the peer of the key-value store: over its HTTP gateway, JSON and base64."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from typing import Any, Final, NamedTuple

from bench.node import data_directory
from raftlog.cluster.process import free_ports

NODES: Final = 3
START_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.1
PUT_GOOD: Final = b'"revision"'
GET_GOOD: Final = b'"value"'


class Etcd(NamedTuple):
    """A running cluster."""

    version: str
    leader_port: int
    """Of the leader's gateway: no request is passed on."""


@contextmanager
def running_etcd() -> Iterator[Etcd]:
    """Three nodes with empty logs, fsync on, ended and removed afterwards."""
    with ExitStack() as stack:
        directory = stack.enter_context(data_directory()).parent
        clients = free_ports("127.0.0.1", NODES)
        peers = free_ports("127.0.0.1", NODES, clients)
        members = ",".join(f"n{one}=http://127.0.0.1:{port}" for one, port in enumerate(peers))
        for number in range(NODES):
            peer, client = (f"http://127.0.0.1:{ports[number]}" for ports in (peers, clients))
            log = stack.enter_context((directory / f"{number}.log").open("wb"))
            process = subprocess.Popen(
                [
                    *("etcd", "--name", f"n{number}", "--data-dir", f"{directory}/{number}"),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--initial-cluster", members, "--log-level", "error"),
                ],
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield _ready(clients)


def _ready(ports: list[int]) -> Etcd:
    """Wait for a leader. Raises TimeoutError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for port in ports:
            try:
                status = _call(port, "/v3/maintenance/status", {})
            except (OSError, HTTPException, ValueError):
                continue
            if status.get("leader", "0") == status["header"]["member_id"]:
                return Etcd(status["version"], port)
        time.sleep(POLL_S)
    raise TimeoutError(f"etcd has no leader after {START_TIMEOUT_S:g} s")


def _call(port: int, path: str, body: dict[str, object]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=1) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def put_request(port: int, key: str, value: bytes) -> bytes:
    """A put, as bytes of HTTP."""
    return _request(port, "/v3/kv/put", {"key": _text(key.encode()), "value": _text(value)})


def get_request(port: int, key: str, *, serializable: bool) -> bytes:
    """A get, linearizable or from the node's own state."""
    return _request(
        port, "/v3/kv/range", {"key": _text(key.encode()), "serializable": serializable}
    )


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _request(port: int, path: str, fields: dict[str, object]) -> bytes:
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
