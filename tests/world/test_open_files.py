"""Connections take a share of the open files, and storage has the rest."""

from __future__ import annotations

import json
import logging
import resource
import socket
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest

from bench.node import LoneNode
from raftlog.cluster.process import SERVE
from raftlog.world import open_files

FILES: Final = 256


class Limit:
    """Stands in place of the process's limit of open files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda _: self.now)
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, _: int, limits: tuple[int, int]) -> None:
        self.now = limits


def test_the_soft_limit_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = Limit(monkeypatch, 1024, 1 << 19)
    assert open_files.connections_max(4096) == 4096
    assert limit.now == (1 << 19, 1 << 19)
    limit = Limit(monkeypatch, 1024, resource.RLIM_INFINITY)
    assert open_files.connections_max(4096) == 4096
    assert limit.now == (open_files.OPEN_FILES_MAX, resource.RLIM_INFINITY)
    assert caplog.messages == []


def test_a_low_limit_leaves_most_files_to_storage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Limit(monkeypatch, FILES, FILES)
    with caplog.at_level(logging.WARNING):
        assert open_files.connections_max(4096) == FILES // open_files.LISTENER_SHARE
    assert "at most 64 connections instead of 4096" in caplog.text


def test_a_limit_that_cannot_be_raised_counts_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    Limit(monkeypatch, 1024, 1 << 19)
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert open_files.connections_max(4096) == 256


def test_idle_connections_up_to_the_limit_leave_a_node_its_files(tmp_path: Path) -> None:
    limited = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *SERVE)
    node = LoneNode(tmp_path / "data", "sync", program=limited)
    try:
        node.start()
        client = HTTPConnection("127.0.0.1", node.port, timeout=60)
        assert _create_topic(client, "before") == 201
        with ExitStack() as stack:
            stack.callback(client.close)
            held = [
                stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 60))
                for _ in range(FILES + 44)
            ]
            answer = held[FILES // 2].recv(4096)  # some are cut without an answer
            assert not answer or answer.startswith(b"HTTP/1.1 503")
            # The segments of a new log need descriptors.
            assert [_create_topic(client, f"meanwhile-{number}") for number in range(8)] == [
                201
            ] * 8
        assert not node.has_ended
    finally:
        node.stop()


def _create_topic(client: HTTPConnection, name: str) -> int:
    body = json.dumps({"topic_name": name, "partitions_count": 1})
    client.request("POST", "/v3/clusters/-/topics", body, {"Content-Type": "application/json"})
    answer = client.getresponse()
    answer.read()
    return answer.status
