from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.cluster import NotWholeError, cancelled
from bench.replication import probes
from bench.replication.probes import Acknowledgements, by_http, wait_all_since, while_probing


def seen(*times: list[float]) -> Acknowledgements:
    """Probes by partition, acknowledged at these times, sent half a second earlier."""
    found = Acknowledgements(len(times))
    for partition, moments in enumerate(times):
        for moment in moments:
            found.note(partition, moment - 0.5, moment)
    return found


def test_a_gap_reaches_from_the_last_acknowledgement_before_it_to_the_first_after_it() -> None:
    assert seen([0.0, 1.0, 4.0, 4.5, 6.5]).gaps(2.0, 5.0) == [3.0]


def test_a_gap_before_the_window_does_not_count() -> None:
    assert seen([0.0, 7.0, 8.0, 9.0, 9.5]).gaps(8.5, 9.75) == [1.0]


def test_a_gap_that_has_not_ended_counts_up_to_the_end_of_the_window() -> None:
    assert seen([1.0, 2.0]).gaps(3.0, 9.0) == [7.0]


def test_a_partition_that_never_acknowledged_has_a_gap_as_long_as_the_window() -> None:
    assert seen([], [3.5]).gaps(3.0, 9.0) == [6.0, 5.5]


def test_clearing_keeps_what_a_gap_begins_with() -> None:
    found = seen([1.0, 2.0])
    found.errors["refused"] += 1
    found.clear()
    assert found.gaps(3.0, 9.0) == [7.0]
    assert not found.errors


async def test_recovery_asks_for_probes_that_were_sent_after_the_fault() -> None:
    found = seen([10.0], [10.0])
    assert found.has_all_since(9.4)
    assert not found.has_all_since(9.5)
    found.note(0, 9.6, 10.1)
    assert not found.has_all_since(9.5)
    found.note(1, 9.6, 10.2)
    assert found.has_all_since(9.5)
    # A late answer to an old probe does not undo this.
    found.note(1, 9.0, 10.3)
    await wait_all_since(found, 9.5, 0.0)
    with pytest.raises(NotWholeError, match="acknowledged anything"):
        await wait_all_since(found, 9.7, 0.0)


async def test_what_the_prober_ends_by_ends_the_trial() -> None:
    async def broken() -> None:
        raise ValueError("the prober")

    waiting = asyncio.Event()
    with pytest.raises(ValueError, match="the prober"):
        await while_probing(asyncio.ensure_future(broken()), waiting.wait())


class FakeNode:
    """Acknowledges partition 0, refuses partition 1, never answers for partition 2."""

    def __init__(self) -> None:
        self.requests = [0, 0, 0]
        self.refused_enough = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
                await reader.readexactly(length)
                partition = int(head.split(" ")[1].rsplit("/", 1)[1])
                self.requests[partition] += 1
                if partition == 2:
                    await asyncio.Event().wait()
                if self.requests[1] > 2 * probes.PROBES_WAITING_MAX:
                    self.refused_enough.set()
                row: dict[str, object] = {
                    "partition": partition,
                    "offset": 5,
                    "error_code": None,
                    "error": None,
                }
                if partition == 1:
                    row.update(offset=None, error_code=50302, error="no leader")
                body = json.dumps({"offsets": [row]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def probed(node: FakeNode, found: Acknowledgements) -> AsyncIterator[None]:
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    probing = asyncio.create_task(by_http({1: f"127.0.0.1:{port}"}, "t", found, 3))
    try:
        yield
    finally:
        await cancelled(probing)
        server.close()


async def test_probes_by_http_count_acknowledgements_only_and_wait_in_bounded_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "HTTP_PERIOD_S", 0.001)
    node, found = FakeNode(), Acknowledgements(3)
    async with probed(node, found), asyncio.timeout(20):
        await node.refused_enough.wait()
    assert found.gaps(0.0, 1e9)[1:] == [1e9, 1e9]
    assert found.gaps(0.0, 1e9)[0] < 1e9
    assert found.errors["50302: no leader"] > 0
    assert node.requests[2] == probes.PROBES_WAITING_MAX


async def test_a_node_that_is_gone_is_an_error_and_no_acknowledgement() -> None:
    found = Acknowledgements(1)
    probing = asyncio.create_task(by_http({1: "127.0.0.1:1"}, "t", found, 1))
    async with asyncio.timeout(20):
        while not found.errors:  # noqa: ASYNC110 - a counter is no event
            await asyncio.sleep(0.001)
    await cancelled(probing)
    assert not found.has_all_since(0.0)
