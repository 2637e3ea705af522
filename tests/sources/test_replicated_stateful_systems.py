"""The claims of "Building Replicated Stateful Systems using Kafka as a Commit Log" (Verma, 2018):
synchronous replication by hand, and what the log takes over: order, single writes, atomic writes to
several partitions, replicas at their own pace.

docs/sources.md lists all claims, those with tests elsewhere too; `scripts/bench sources` measures
the claims about time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from raftlog_client import Admin, Consumer, FencedError, Producer, TopicPartition
from raftlog_replicated.types import EVENTUAL

from bench.node import LoneNode
from bench.sources.hand_replicas import ByHand, running_replicas
from tests.simulation.replicated.harness import caught_up, get, primary_of, put, replica, run
from tests.simulation.replicated.world import NAMES, World

pytestmark = pytest.mark.full  # a source against real clusters; the simulator has these cases too

RECORDS: Final = 300
REPLICAS: Final = 3
TIMEOUT_S: Final = 60.0
STOPPED_S: Final = 0.5


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    """One node for all tests; each test has a topic of its own."""
    process = LoneNode(tmp_path_factory.mktemp("node") / "data", flush="async")
    process.start()
    try:
        yield process
    finally:
        process.stop()


# Replication by hand


@pytest.mark.parametrize("is_side_by_side", [False, True], ids=["in turn", "side by side"])
def test_by_hand_the_slowest_replica_is_in_the_path_of_every_write(
    tmp_path: Path, *, is_side_by_side: bool
) -> None:
    """A replica that stops, stops the writes; through the log it does not (the next test)."""

    async def write() -> None:
        primary = ByHand([one.address for one in running], is_side_by_side=is_side_by_side)
        found = running[1].process
        await primary.put([b"before"])
        found.send_signal(signal.SIGSTOP)
        putting = asyncio.create_task(primary.put([b"x"]))
        try:
            done, _ = await asyncio.wait({putting}, timeout=STOPPED_S)
            assert not done
        finally:
            found.send_signal(signal.SIGCONT)
        await putting
        primary.close()
        for one in running:
            assert await one.values() == [b"before", b"x"]

    with running_replicas(tmp_path, 2, is_flushed=True) as running:
        asyncio.run(write())


def test_through_the_log_each_replica_keeps_its_own_pace_and_ends_in_the_state_of_the_primary() -> (
    None
):
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        slow, fast = (name for name in NAMES if name != primary)
        for name in (slow, fast):
            await caught_up(world, name)
        world.processes[slow].life.paused = True
        position = replica(world, slow).position
        for number in range(RECORDS):
            await put(world, primary, f"key{number % 7}", str(number))
        await caught_up(world, fast)
        assert replica(world, slow).position == position
        world.loop.resume(world.processes[slow].life)
        await caught_up(world, slow)
        states = {replica(world, name).machine.digest() for name in NAMES}
        assert len(states) == 1
        assert await get(world, slow, f"key{(RECORDS - 1) % 7}", EVENTUAL) == str(RECORDS - 1)

    run(scenario)


def test_a_write_that_is_repeated_after_a_lost_answer_happens_once() -> None:
    async def scenario(world: World) -> None:
        primary = await primary_of(world)
        first = await put(world, primary, "x", "1", request_id="only")
        await put(world, primary, "x", "2")
        again = await put(world, primary, "x", "1", request_id="only")
        assert again.result == first.result
        for name in NAMES:
            await caught_up(world, name)
            assert await get(world, name, "x", EVENTUAL) == "2"

    run(scenario)


# The log


async def test_replicas_in_groups_of_their_own_all_read_one_partition_in_the_order_of_the_writes(
    node: LoneNode,
) -> None:
    topic = "one-partition"
    wanted = [b"%d" % number for number in range(RECORDS)]

    async def read(number: int) -> list[bytes | None]:
        async with Consumer(
            topic,
            bootstrap_servers=node.address,
            group_id=f"replica-{number}",
            auto_offset_reset="earliest",
        ) as reader:
            return [(await reader.getone()).value for _ in wanted]

    async with (
        asyncio.timeout(TIMEOUT_S),
        Admin(bootstrap_servers=node.address) as admin,
        Producer(bootstrap_servers=node.address) as producer,
    ):
        await admin.create_topic(topic, partitions=1)
        sent = [await producer.send(topic, value, partition=0) for value in wanted]
        written = await asyncio.gather(*sent)
        offsets = [one.offset for one in written]
        assert all(before < after for before, after in pairwise(offsets))
        assert await asyncio.gather(*map(read, range(REPLICAS))) == [wanted] * REPLICAS


async def test_a_write_is_in_the_partitions_of_all_replicas_or_in_none(node: LoneNode) -> None:
    """Also where the writer dies in the middle: its successor aborts the open transaction."""
    topic = "a-partition-each"

    def writer() -> Producer[bytes, bytes]:
        return Producer(bootstrap_servers=node.address, transactional_id="primary")

    async def write(producer: Producer[bytes, bytes], value: bytes, *partitions: int) -> None:
        for partition in partitions:
            await (await producer.send(topic, value, partition=partition))

    async def read(partition: int) -> list[bytes | None]:
        place = TopicPartition(topic, partition)
        async with Consumer(bootstrap_servers=node.address, auto_offset_reset="earliest") as reader:
            reader.assign([place])
            return [(await reader.getone()).value for _ in range(2)]

    async with asyncio.timeout(TIMEOUT_S), Admin(bootstrap_servers=node.address) as admin:
        await admin.create_topic(topic, partitions=REPLICAS)
        async with writer() as first:
            async with first.transaction():
                await write(first, b"1", *range(REPLICAS))
            half = first.transaction()
            await half.begin()
            await write(first, b"half", 0, 1)
            async with writer() as second, second.transaction():
                await write(second, b"2", *range(REPLICAS))
            with pytest.raises(FencedError):
                await half.commit()
            found = await asyncio.gather(*map(read, range(REPLICAS)))
    assert found == [[b"1", b"2"]] * REPLICAS


async def test_a_consumer_begins_at_the_offset_that_it_names(node: LoneNode) -> None:
    topic = "offsets"
    place = TopicPartition(topic, 0)
    async with (
        asyncio.timeout(TIMEOUT_S),
        Admin(bootstrap_servers=node.address) as admin,
        Producer(bootstrap_servers=node.address) as producer,
        Consumer(bootstrap_servers=node.address) as reader,
    ):
        await admin.create_topic(topic, partitions=1)
        await producer.send_many(topic, [b"%d" % number for number in range(RECORDS)])
        reader.assign([place])
        reader.seek(place, RECORDS // 2)
        assert (await reader.getone()).value == b"%d" % (RECORDS // 2)
