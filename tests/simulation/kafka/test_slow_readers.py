"""Clients that take their answers slowly, or not at all: what the listener holds for them ends."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

import pytest

from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.metadata import ApiVersionsRequest, MetadataRequest
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.kafka.settings import KafkaSettings
from tests.simulation.data.clients import encode
from tests.simulation.kafka.front import KafkaFront
from tests.simulation.kafka.pipeline import (
    API_VERSIONS,
    CLIENT,
    FETCH,
    METADATA,
    OLD,
    PRODUCE,
    Trials,
)
from tests.simulation.kafka.wire import frame_of
from tests.simulation.node_world import NodeWorld
from tests.simulation.streams import StreamManner, exactly
from tests.simulation.world import World, run

ANSWER_BYTES: Final = 50_000
"""Less than what a transport holds before its protocol is to pause."""
SMALL: Final = StreamManner(sent_bytes_max=1_000, unread_bytes_max=1_000)
STALL_S: Final = 2.0
RATE_MIN: Final = 1_000
IDLE_S: Final = 60.0


def slow(work: Any) -> None:
    """Run `work(trials)` at a node with small sockets' buffers and a record to read."""

    async def main(world: World) -> None:
        nodes = NodeWorld(world, node_count=1, voter_count=1)
        settings = KafkaSettings(
            write_stall_s=STALL_S, bytes_per_second_min=RATE_MIN, idle_s=IDLE_S
        )
        trials = Trials(world, KafkaFront(nodes, settings, manner=SMALL))
        await trials.open()
        wire = await trials.connect()
        row = PartitionProduceData(0, bytes(encode(["x" * ANSWER_BYTES])[0].data))
        await wire.ask(
            ProduceRequest(None, -1, 5_000, (TopicProduceData(OLD, None, (row,)),)), PRODUCE
        )
        wire.end("close")
        await trials._settled()
        await work(trials)

    run(0, main)


def fetch() -> FetchRequest:
    """Of all there is."""
    part = FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)
    return FetchRequest(min_bytes=1, topics=(FetchTopic(OLD, None, (part,)),))


def test_an_answer_is_no_longer_counted_once_its_client_has_it() -> None:
    """Though the connection stays, and asks for nothing more."""

    async def work(trials: Trials) -> None:
        wire = await trials.connect()
        in_flight = trials.front.listeners[1].broker.bytes_in_flight
        answer = await wire.ask(fetch(), FETCH)
        assert len(answer.responses[0].partitions[0].records) > ANSWER_BYTES
        await trials.front.nodes.until(lambda: not in_flight.used, 3.0)
        assert not wire.is_over

    slow(work)


@pytest.mark.parametrize("how", ["reads nothing", "reads nothing and half-closes"])
def test_a_client_that_does_not_take_a_small_answer_is_cut_off(how: str) -> None:
    async def work(trials: Trials) -> None:
        wire = await trials.connect()
        wire.pace_s = 10 * IDLE_S
        # The reader waits already: it takes one more piece.
        wire.begin(fetch(), FETCH)
        if "half-closes" in how:
            await asyncio.sleep(0.5)
            wire.end("half-close")
        await trials.front.nodes.until(lambda: not trials.front.leaks(), 3 * STALL_S)

    slow(work)


def test_nothing_is_answered_behind_a_request_that_makes_no_sense() -> None:
    """Though the transport still holds the answer before it."""

    async def work(trials: Trials) -> None:
        wire = await trials.connect(manner=exactly(SMALL))
        link = trials.front.streams.link(CLIENT, 1)
        # The requests arrive together: unread ones would reset the connection.
        link.block()
        first = wire.begin(fetch(), FETCH)
        nonsense = frame_of(MetadataRequest(), METADATA, 1)[4:-3] + b"\xff\xff\xff"
        wire.write(struct.pack(">i", len(nonsense)) + nonsense)
        versions = ApiVersionsRequest("test", "1")
        behind = [wire.begin(versions, API_VERSIONS) for _ in range(3)]
        link.unblock()
        answer = await first.answered
        assert len(answer.responses[0].partitions[0].records) > ANSWER_BYTES
        await trials.front.nodes.until(lambda: wire.is_over, 3 * STALL_S)
        assert not trials.complaints, trials.complaints
        for exchange in behind:
            assert exchange.answered.exception() is not None, exchange.answered.result()

    slow(work)


def test_a_slow_reader_gets_all_of_its_answer() -> None:
    """As long as it takes them at the minimum rate."""

    async def work(trials: Trials) -> None:
        wire = await trials.connect()
        wire.pace_s, wire.read_bytes_max = STALL_S / 4, 1_000
        async with asyncio.timeout(20 * STALL_S):
            answer = await wire.begin(fetch(), FETCH).answered
        assert len(answer.responses[0].partitions[0].records) > ANSWER_BYTES
        wire.end("close")

    slow(work)


def test_a_reader_below_the_minimum_rate_is_cut_off() -> None:
    """Though it takes some bytes all the time."""

    async def work(trials: Trials) -> None:
        wire = await trials.connect()
        wire.pace_s, wire.read_bytes_max = STALL_S / 4, int(STALL_S / 4 * RATE_MIN / 2)
        wire.begin(fetch(), FETCH)
        await trials.front.nodes.until(lambda: not trials.front.leaks(), 4 * STALL_S)

    slow(work)
