"""The registration of a start beside nodes of an older release."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import RegisterBroker, encode_command
from raftlog.metadata.image import BrokerImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.node.registration import KAFKA_ADDRESS_RETRY_S, Registration
from raftlog.raft.interface import Applied
from raftlog.record.types import BrokerId
from tests.controller.clock import SteppedClock

ONE, TWO = BrokerId(1), BrokerId(2)


class OneNodeQuorum:
    """A quorum that applies each command at once. Others' commands appear behind the barrier."""

    def __init__(self, machine: MetadataStateMachine) -> None:
        self.machine = machine
        self.lacks_room = False
        self.rejected_by: dict[str, Any] = {}
        self.behind_the_barrier: list[RegisterBroker] = []

    def apply(self, command: RegisterBroker) -> ApplyResult:
        index = self.machine.image.applied_index + 1
        return self.machine.apply(index, encode_command(command))

    async def propose(self, command: bytes) -> Applied[ApplyResult]:
        index = self.machine.image.applied_index + 1
        return Applied(index, self.machine.apply(index, command))

    async def read_barrier(self) -> int:
        for command in self.behind_the_barrier:
            self.apply(command)
        self.behind_the_barrier.clear()
        return self.machine.image.applied_index


def start_of(
    broker_id: BrokerId,
    *,
    incarnation: str = "i",
    command_version: int = 4,
    kafka: tuple[str, int] | None = None,
) -> RegisterBroker:
    host, port = kafka or (None, None)
    return RegisterBroker(
        broker_id=broker_id,
        directory_id=f"d{broker_id}",
        incarnation=incarnation,
        host="h",
        port=1,
        software_version="0",
        command_version=command_version,
        kafka_host=host,
        kafka_port=port,
    )


class Start:
    """A start of node 2, which has a Kafka listener."""

    def __init__(self) -> None:
        self.machine = MetadataStateMachine()
        self.quorum = OneNodeQuorum(self.machine)
        self.clock = SteppedClock()
        self.command = start_of(TWO, kafka=("k", 9092))
        self.registration = Registration(
            node_id=TWO,
            quorum=cast(Any, self.quorum),
            state_machine=self.machine,
            controller=cast(Any, None),
            clock=self.clock,
            on_fatal=pytest.fail,
        )

    @property
    def row(self) -> BrokerImage:
        return self.machine.image.brokers[TWO]


async def test_kafka_address_is_registered_where_all_brokers_know_such() -> None:
    start = Start()
    start.quorum.apply(start_of(ONE))
    epoch = await start.registration.register(start.command)
    assert (start.row.kafka_host, start.row.kafka_port) == ("k", 9092)
    await start.registration.add_kafka_address(start.command)
    assert start.row.broker_epoch == epoch == start.machine.image.applied_index


async def test_older_broker_that_this_node_has_not_heard_of_yet_keeps_the_address_out() -> None:
    """It would stop at the newer command."""
    start = Start()
    start.quorum.behind_the_barrier.append(start_of(ONE, command_version=3))
    await start.registration.register(start.command)
    assert start.row.kafka_host is None


async def test_address_is_added_once_the_last_older_broker_is_upgraded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = Start()
    start.quorum.apply(start_of(ONE, command_version=3))
    epoch = await start.registration.register(start.command)
    adding = asyncio.ensure_future(start.registration.add_kafka_address(start.command))
    await start.clock.advance(3 * KAFKA_ADDRESS_RETRY_S)
    assert start.row.kafka_host is None
    assert caplog.text.count("node 1 runs an older release") == 1
    start.quorum.apply(start_of(ONE, incarnation="upgraded"))
    before = start.row
    await start.clock.advance(KAFKA_ADDRESS_RETRY_S)
    await start.clock.advance(KAFKA_ADDRESS_RETRY_S)
    assert adding.done()
    assert start.row == replace(before, kafka_host="k", kafka_port=9092)
    assert start.row.broker_epoch == epoch


async def test_node_without_a_kafka_listener_needs_no_barrier() -> None:
    start = Start()
    start.quorum.behind_the_barrier.append(start_of(ONE))
    await start.registration.register(start_of(TWO))
    assert start.quorum.behind_the_barrier
    assert start.row.kafka_host is None
