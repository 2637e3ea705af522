from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from raftlog.cluster import process
from raftlog.cluster.errors import ClusterError

HOST = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_port_that_is_taken_is_named(taken: int) -> None:
    with pytest.raises(ClusterError, match=rf"port {taken} of {HOST}") as caught:
        process.require_free(HOST, [taken], "do this")
    assert caught.value.hint == "do this"


def test_ports_found_are_free_and_distinct() -> None:
    found = process.free_ports(HOST, 5)
    assert len(set(found)) == 5
    process.require_free(HOST, found, "")


def test_next_port_comes_after_all_used_and_is_free(taken: int) -> None:
    found = process.next_port(HOST, [taken - 1, taken - 7])
    assert found > taken
    assert process.why_taken(HOST, found) is None


def test_ports_to_avoid_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped node's ports are free, and yet its own."""
    first = process.FREE_PORTS[0]
    monkeypatch.setattr(process, "FREE_PORTS", range(first, first + 3))
    monkeypatch.setattr(process, "why_taken", lambda host, port: None)
    assert process.free_ports(HOST, 1, avoid=[first, first + 2]) == [first + 1]
    with pytest.raises(ClusterError):
        process.free_ports(HOST, 2, avoid=[first, first + 2])
    assert process.next_port(HOST, [first], avoid=[first + 1]) == first + 2


def test_ports_end_at_the_last() -> None:
    assert process.consecutive(65_534, 2) == [65_534, 65_535]
    with pytest.raises(ClusterError):
        process.consecutive(65_534, 3)
