"""Three real nodes in three racks: a consumer reads its rack's follower, until that is killed."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raftlog_client import Admin, Consumer, Producer, TopicPartition

from bench.cluster import Cluster, Place

RACKS = ("a", "b", "c")
RECORDS = 500
TIMEOUT_S = 60.0
PLACE = TopicPartition("t", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    places = [Place("127.0.0.1", ("env", f"RAFTLOG_RACK={rack}")) for rack in RACKS]
    with Cluster(tmp_path / "cluster", 3, places=places) as processes:
        processes.start()
        yield processes


def bytes_read(cluster: Cluster, node_id: int) -> float:
    """Bytes of the topic's batches that the node has given to readers."""
    url = f"http://{cluster.nodes[node_id].address}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if "bytesout_total{" in line and 'topic="t"' in line
    )


async def write(producer: Producer, start: int, count: int) -> None:
    for number in range(start, start + count):
        await producer.send("t", b"%d" % number, partition=0)
    await producer.flush()


async def read(consumer: Consumer[Any, Any], start: int, count: int) -> None:
    """Exactly these records come, in order."""
    found: list[bytes] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            found.append((await consumer.getone()).value)
    assert found == [b"%d" % number for number in range(start, start + count)]


def test_records_come_from_the_follower_in_the_rack_until_it_dies(
    cluster: Cluster,
) -> None:
    asyncio.run(read_from_the_rack(cluster))


async def read_from_the_rack(cluster: Cluster) -> None:
    addresses = cluster.servers
    async with (
        Admin(bootstrap_servers=addresses) as admin,
        Producer(bootstrap_servers=addresses) as producer,
    ):
        await admin.create_topic("t", partitions=1)
        [row] = (await admin.describe_topic("t")).partitions
        assert row.leader is not None and set(row.isr) == {1, 2, 3}
        follower = next(number for number in row.replicas if number != row.leader)
        await write(producer, 0, RECORDS)
        async with Consumer(
            "t",
            bootstrap_servers=addresses,
            client_rack=RACKS[follower - 1],
            auto_offset_reset="earliest",
        ) as consumer:
            await read(consumer, 0, RECORDS)
            assert bytes_read(cluster, follower) > 0
            assert bytes_read(cluster, row.leader) == 0
            cluster.kill(follower)
            await write(producer, RECORDS, RECORDS)
            await read(consumer, RECORDS, RECORDS)
            assert bytes_read(cluster, row.leader) > 0
            await consumer.seek_to_end(PLACE, last=1)
            await read(consumer, 2 * RECORDS - 1, 1)
            # Back and in sync, it serves again.
            cluster.restart(follower)
            number = 2 * RECORDS
            async with asyncio.timeout(TIMEOUT_S):
                cluster.nodes[follower].wait_ready()
                while not bytes_read(cluster, follower):
                    await write(producer, number, 1)
                    await read(consumer, number, 1)
                    number += 1
                    await asyncio.sleep(0.2)
