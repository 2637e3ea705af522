"""The exactly-once loop and full-speed transactions, small, on a real node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from raftlog_client import Admin, TopicPartition

from bench.coordination.transactions import copy_exactly_once, write_at_full_speed
from raftlog.workloads.load import send_many
from tests.cli.node import RunningNode, running_node
from tests.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


async def test_exactly_once_copies_everything_and_commits_the_end(node: RunningNode) -> None:
    async with Admin(bootstrap_servers=node.address) as admin:
        for name in ("source", "target"):
            await admin.create_topic(name, partitions=3)
        await send_many(node.address, "source", 100, 2_000)
        found = await copy_exactly_once(
            node.address, "source", "target", "copy", partitions=3, transaction_s=0.01
        )
        # `send_many` sends one more, before its clock starts.
        assert found.records == 2_001
        assert found.transactions >= 1
        ends = await admin.offsets(["source", "target"])
        rows = (await admin.describe_group("copy")).offsets
        assert {row.partition: row.offset for row in rows} == {
            number: ends[TopicPartition("source", number)].end_offset for number in range(3)
        }
        # A commit returns with its decision; the markers, which have offsets, too, come after it.
        written = 0
        async with asyncio.timeout(DEADLINE_S):
            while written <= found.records:
                ends = await admin.offsets(["target"])
                written = sum(one.end_offset for one in ends.values())


async def test_transactions_of_a_length_are_counted(node: RunningNode) -> None:
    async with Admin(bootstrap_servers=node.address) as admin:
        await admin.create_topic("lengths", partitions=2)
    found = await write_at_full_speed(
        node.address,
        "lengths",
        record_bytes=100,
        seconds=1.0,
        transactional_id="lengths",
        transaction_s=0.02,
    )
    assert found.transactions >= 2
    assert found.records > 0
    plain = await write_at_full_speed(node.address, "lengths", record_bytes=100, seconds=0.1)
    assert (plain.transactions, plain.records > 0) == (0, True)
