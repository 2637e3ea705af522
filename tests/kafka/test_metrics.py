"""The counts of the listener: requests by API, durations, bytes, connections by their end."""

from __future__ import annotations

import asyncio
import struct

import pytest

from raftlog.kafka.metrics import EndReason
from raftlog.kafka.settings import KafkaSettings
from tests.kafka.peers import DEADLINE_S, KafkaNode, RawClient, kafka_node
from tests.kafka.test_connection import VERSIONS, fetch, produce
from tests.waiting import until

PREFIX = "raftlog_kafka_"


def samples(one: KafkaNode) -> dict[tuple[str, ...], float]:
    """By name without its prefix, and labels in the order of their names."""
    return {
        (sample.name.removeprefix(PREFIX), *(v for _, v in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in one.listener.metric_families()
        for sample in family.samples
    }


def sizes(client: RawClient, *frames: bytes) -> int:
    client.writer.write(b"".join(frames))
    return sum(map(len, frames))


async def answered_bytes(client: RawClient) -> int:
    """Size of the next answer."""
    async with asyncio.timeout(DEADLINE_S):
        (size,) = struct.unpack(">i", await client.reader.readexactly(4))
        await client.reader.readexactly(size)
    return 4 + int(size)


async def test_requests_are_counted_by_api_and_version_with_their_bytes() -> None:
    async with kafka_node() as one, one.client() as client:
        small = sizes(client, *(client.frame(produce(b"x"), 9) for _ in range(3)))
        large = sizes(client, client.frame(produce(bytes(100_000)), 8))
        versions = sizes(client, client.frame(VERSIONS, 3))
        answers = [await answered_bytes(client) for _ in range(5)]
        found = samples(one)
    assert found["requests_total", "Produce", "9"] == 3
    assert found["requests_total", "Produce", "8"] == 1
    assert found["requests_total", "ApiVersions", "3"] == 1
    assert found["request_bytes_total", "Produce"] == small + large
    assert found["request_bytes_total", "ApiVersions"] == versions
    assert found["response_bytes_total", "Produce"] == sum(answers[:4])
    assert found["response_bytes_total", "ApiVersions"] == answers[4]
    assert found["request_seconds_count", "Produce"] == 4
    assert found["request_seconds_bucket", "Produce", "+Inf"] == 4
    assert "Fetch" not in {key[1] for key in found if len(key) > 1}


async def test_a_held_request_counts_as_in_flight_and_by_its_wait() -> None:
    async with kafka_node() as one, one.client() as client:
        await client.send(fetch(0, wait_ms=200), 12)
        await until(lambda: samples(one)["requests_in_flight",] == 1)
        assert ("requests_total", "Fetch", "12") not in samples(one)
        await client.receive()
        found = samples(one)
    assert found["requests_in_flight",] == 0
    assert found["request_seconds_sum", "Fetch"] >= 0.19
    assert found["request_seconds_bucket", "Fetch", "0.1"] == 0
    assert found["request_seconds_bucket", "Fetch", "10.0"] == 1


async def test_a_request_that_waits_for_memory_is_shown() -> None:
    async with kafka_node(bytes_in_flight_max=400_000) as one, one.client() as client:
        one.broker.bytes_in_flight.reserve(90_000, "127.0.0.1")
        await client.send(produce(bytes(50_000)), 9)
        await until(lambda: samples(one)["requests_waiting_for_memory",] == 1)
        one.broker.bytes_in_flight.release(90_000, "127.0.0.1")
        await client.receive()
        assert samples(one)["requests_waiting_for_memory",] == 0


@pytest.mark.parametrize(
    ("settings", "sent", "reason"),
    [
        (KafkaSettings(idle_s=0.1), b"", EndReason.IDLE),
        (KafkaSettings(receive_s=0.1), b"\0\0\0\x40\0\x12\0\3", EndReason.SLOW_SENDER),
        (KafkaSettings(), struct.pack(">ihh", 100, 99, 0), EndReason.MALFORMED),
        (KafkaSettings(connections_per_address_max=0), b"", EndReason.TOO_MANY),
    ],
)
async def test_connections_are_counted_by_the_reason_of_their_end(
    settings: KafkaSettings, sent: bytes, reason: EndReason
) -> None:
    async with kafka_node(settings) as one, one.client() as client:
        client.writer.write(sent)
        assert await client.ends()
        await until(lambda: samples(one)["connections_ended_total", reason] == 1)
        found = samples(one)
        assert found["connections",] == 0
        assert found["connections_accepted_total",] == 1
        ended = {
            key[1]: value for key, value in found.items() if key[0].startswith("connections_e")
        }
        assert sum(ended.values()) == 1
        assert set(ended) == set(EndReason)


async def test_a_client_that_leaves_a_slow_one_and_one_without_an_answer() -> None:
    async with kafka_node(KafkaSettings(write_stall_s=0.1, shutdown_s=1.0)) as one:
        async with one.client() as client:
            assert (await client.ask(VERSIONS, 3)).error_code == 0
            assert samples(one)["connections",] == 1
        await until(lambda: one.listener.metrics.ended[EndReason.CLIENT] == 1)
        async with one.client() as client:
            await client.send(produce(b"a", topic="unknown", acks=0), 9)
            assert await client.ends()
        await until(lambda: one.listener.metrics.ended[EndReason.ERROR] == 1)
        async with one.client() as writer, one.client() as reader:
            for _ in range(8):
                await writer.ask(produce(bytes(1_000_000)), 9)
            reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(64):
                await reader.send(fetch(0), 12)
            await until(lambda: one.listener.metrics.ended[EndReason.SLOW_READER] == 1)


async def test_a_listener_that_closes_counts_its_connections() -> None:
    async with kafka_node() as one, one.client() as client:
        assert (await client.ask(VERSIONS, 3)).error_code == 0
        await one.listener.close()
        await until(lambda: one.listener.metrics.ended[EndReason.STOPPING] == 1)
