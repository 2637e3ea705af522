"""What a new user meets first: a wrong address, a consumer without topics, records that wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from raftlog_client import (
    Admin,
    Consumer,
    IllegalStateError,
    NoNodeAvailableError,
    Producer,
    ProducerRecord,
    SerializationError,
    ServerError,
)

from raftlog.record.errors import NOT_ENOUGH_REPLICAS, NOT_READY
from tests.client.fake_node import FakeCluster, Fault
from tests.waiting import DEADLINE_S

CLIENTS: list[Callable[..., Any]] = [
    Producer,
    Admin,
    lambda **settings: Consumer("t", **settings),
]


@pytest.mark.parametrize("make", CLIENTS, ids=["producer", "admin", "consumer"])
async def test_wrong_port_is_an_error_within_five_seconds(make: Callable[..., Any]) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(NoNodeAvailableError) as caught:
        async with make(bootstrap_servers="127.0.0.1:1"):
            pass
    assert asyncio.get_running_loop().time() - started < 5
    text = str(caught.value)
    assert text.startswith("No raftlog node answers at 127.0.0.1:1: Connection refused. Is it run")
    assert text.count("127.0.0.1") == 1
    assert not caught.value.outcome_unknown


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>"])
async def test_port_of_another_service_is_an_error_that_names_the_address(answer: bytes) -> None:

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(NoNodeAvailableError, match=f"^No raftlog node answers at {address}: "):
            async with Admin(bootstrap_servers=address, bootstrap_timeout_ms=200):
                pass


async def test_foreign_http_server_is_an_error_that_asks_for_the_port() -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>")
        writer.close()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(ServerError, match=r"'<html>'\. Is its port right\?"):
            async with Admin(bootstrap_servers=address):
                pass


async def test_node_that_answers_is_given_time_to_become_ready(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raftlog_client.metadata.WAIT_REPORTED_S", 0.02)
    single.fail("/v1/metadata", *[Fault(error=NOT_READY)] * 70)
    async with Admin(
        bootstrap_servers=single.bootstrap,
        bootstrap_timeout_ms=1000,
        retry_backoff_ms=20,
        retry_backoff_max_ms=20,
    ) as admin:
        assert await admin.describe_topic("t")
    waits = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage()[:23] for record in waits] == ["waiting for the cluster"]


async def test_consumer_without_topics_says_what_to_name(single: FakeCluster) -> None:
    async with Consumer(bootstrap_servers=single.bootstrap) as consumer:
        for read in (consumer.getmany(), consumer.getone(), anext(aiter(consumer))):
            with pytest.raises(IllegalStateError, match="name topics in Consumer"):
                await read
        consumer.assign([])
        assert await consumer.getmany() == {}
        await consumer.subscribe(["t"])
        await consumer.unsubscribe()
        assert await consumer.getmany() == {}


@pytest.mark.parametrize("timestamp", [1.5, 1_700_000_000.0, True, "1700000000000"])
async def test_timestamp_that_is_no_whole_number_is_refused(
    single: FakeCluster, timestamp: Any
) -> None:
    async with Producer(bootstrap_servers=single.bootstrap) as producer:
        with pytest.raises(SerializationError, match=r"whole milliseconds since 1970"):
            await producer.send("t", b"x", timestamp_ms=timestamp)
        with pytest.raises(SerializationError, match=r"whole milliseconds since 1970"):
            await producer.send_many("t", [ProducerRecord(b"k", b"x", timestamp_ms=timestamp)])
        sent = await producer.send_and_wait("t", b"x", timestamp_ms=1_700_000_000_000)
        assert (sent.offset, sent.timestamp) == (0, 1_700_000_000_000)


async def stalls(
    single: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[], None],
) -> list[str]:
    """The log lines of one record that waits until `end`."""
    monkeypatch.setattr("raftlog_client.produce.accumulator.STALL_S", 0.05)
    monkeypatch.setattr("raftlog_client.producer.LOOK_INTERVAL_S", 0.01)
    found: list[str] = []
    async with Producer(bootstrap_servers=single.bootstrap, retry_backoff_ms=1) as producer:
        future = await producer.send("t", b"x")
        async with asyncio.timeout(DEADLINE_S):
            while not found:
                await asyncio.sleep(0.01)
                found = [
                    record.getMessage()
                    for record in caplog.records
                    if record.getMessage().startswith("waiting for partition")
                ]
        # The next looks report nothing again.
        await asyncio.sleep(0.1)
        end()
        assert (await future).offset == 0
    return [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("waiting for partition")
    ]


async def test_wait_for_a_leader_is_reported_once(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partition = single.topics["t"].partitions[0]
    leader, partition.leader = partition.leader, -1
    lines = await stalls(single, monkeypatch, caplog, lambda: partition.lead(leader))
    assert lines == ["waiting for partition 0 of t: no leader"]


async def test_wait_for_replicas_is_reported_with_the_refusal(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = Fault(frame_errors={0: NOT_ENOUGH_REPLICAS})
    single.fail("/v1/produce", *[refusals] * 10_000)
    lines = await stalls(single, monkeypatch, caplog, single.faults["/v1/produce"].clear)
    assert lines == [f"waiting for partition 0 of t: {NOT_ENOUGH_REPLICAS.message}"]


async def test_silent_leader_is_reported(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    single.fail("/v1/produce", Fault(delay_s=0.3))
    lines = await stalls(single, monkeypatch, caplog, lambda: None)
    address = single.bootstrap
    assert lines == [f"waiting for partition 0 of t: {address} has not answered yet"]


async def test_open_batch_that_lingers_is_no_stall(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raftlog_client.produce.accumulator.STALL_S", 0.02)
    monkeypatch.setattr("raftlog_client.producer.LOOK_INTERVAL_S", 0.01)
    async with Producer(bootstrap_servers=single.bootstrap, linger_ms=150) as producer:
        await producer.send_and_wait("t", b"x", partition=0)
    assert "waiting" not in caplog.text
