"""Records on a cluster of real processes: any node's address will do, and a killed one is not
missed: the others have everything. (Promises of a single node: test_promises.py.)"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
from collections import Counter, defaultdict
from typing import Any

import pytest
from raftlog_client import Admin, Consumer, Producer, Record, TopicPartition
from raftlog_client.types import RecordMetadata

from bench.cluster import Cluster
from bench.node import MeasuredNode
from tests.waiting import wait_until

PARTITIONS = 6
RECORDS = 10_000
TIMEOUT_S = 30.0
START_MS = 1_700_000_000_000

BytesRecord = Record[bytes | None, bytes | None]


def places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def raftlog(node: MeasuredNode, *arguments: str, text: str = "") -> str:
    """The output of a command, which is given the address of one node."""
    command = [sys.executable, "-m", "raftlog.cli", *arguments, "--servers", node.address]
    ended = subprocess.run(
        command, input=text.encode(), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode()


async def read(consumer: Consumer[Any, Any], count: int) -> dict[int, list[BytesRecord]]:
    """So many records, by partition."""
    found: defaultdict[int, list[BytesRecord]] = defaultdict(list)
    async with asyncio.timeout(TIMEOUT_S):
        while sum(map(len, found.values())) < count:
            for place, records in (await consumer.getmany(timeout_ms=500)).items():
                found[place.partition] += records
    return found


async def write(address: str, topic: str) -> None:
    """Keyed records with a timestamp each: `START_MS` and their number."""
    async with Producer(bootstrap_servers=address) as producer:
        await asyncio.gather(
            *[
                await producer.send(
                    topic, b"v%d" % number, key=b"k%d" % number, timestamp_ms=START_MS + number
                )
                for number in range(RECORDS)
            ]
        )


def test_the_client_reads_and_writes_through_any_one_node(cluster: Cluster) -> None:
    asyncio.run(read_and_write(cluster.nodes[2].address))


async def read_and_write(address: str) -> None:
    async with Admin(bootstrap_servers=address) as admin:
        # The records are of 2023: default retention would delete them at any time.
        keep_all = {"retention.ms": -1}
        topic = await admin.create_topic("rides", partitions=PARTITIONS, configs=keep_all)
        assert {info.leader for info in topic.partitions} == {1, 2, 3}
        await write(address, "rides")
        ends = {
            place: found.end_offset for place, found in (await admin.offsets(["rides"])).items()
        }
        assert list(ends) == places("rides")
        assert sum(ends.values()) == RECORDS
        async with Consumer(
            "rides", bootstrap_servers=address, auto_offset_reset="earliest"
        ) as consumer:
            found = await read(consumer, RECORDS)
            pairs = [(record.key, record.value) for part in found.values() for record in part]
            assert sorted(pairs) == sorted((b"k%d" % n, b"v%d" % n) for n in range(RECORDS))
            for partition, records in found.items():
                assert [record.offset for record in records] == list(range(len(records)))
                assert len(records) == ends[TopicPartition("rides", partition)]
            assert await consumer.end_offsets(ends) == ends
            wanted_ms = START_MS + RECORDS // 2
            times = await consumer.offsets_for_times(dict.fromkeys(ends, wanted_ms))
            for place, at in times.items():
                expected = next(r for r in found[place.partition] if r.timestamp >= wanted_ms)
                assert at == (expected.offset, expected.timestamp)
            future = dict.fromkeys(ends, START_MS * 2)
            assert await consumer.offsets_for_times(future) == dict.fromkeys(ends, None)
            keep = {place: end - 1 for place, end in ends.items()}
            assert await admin.delete_records(keep) == keep
            assert await consumer.beginning_offsets(ends) == keep
            await consumer.seek_to_beginning()
            kept = await read(consumer, PARTITIONS)
            assert {place.partition: [end] for place, end in keep.items()} == {
                partition: [record.offset for record in records]
                for partition, records in kept.items()
            }


def test_latest_begins_at_the_end_of_every_partition(cluster: Cluster) -> None:
    asyncio.run(read_latest(cluster.nodes[3].address))


async def read_latest(address: str) -> None:
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic("news", partitions=PARTITIONS)
    async with Producer(bootstrap_servers=address) as producer:
        for place in places("news"):
            await producer.send_and_wait("news", b"old", partition=place.partition)
        async with Consumer("news", bootstrap_servers=address) as consumer:
            for place in places("news"):
                await producer.send_and_wait("news", b"new", partition=place.partition)
            found = await read(consumer, PARTITIONS)
    assert {partition: [r.value for r in records] for partition, records in found.items()} == {
        partition: [b"new"] for partition in range(PARTITIONS)
    }


def test_the_command_line_needs_one_address(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    raftlog(node, "topic", "create", "words", "-p", str(PARTITIONS))
    lines = [f"k{number}\tw{number}" for number in range(50)]
    raftlog(
        node, "topic", "produce", "words", "--key-separator", "\t", text="\n".join(lines) + "\n"
    )
    described = json.loads(raftlog(node, "topic", "describe", "words", "--format", "json"))
    assert sum(row["end_offset"] for row in described["partitions"]) == len(lines)
    assert {row["leader"] for row in described["partitions"]} == {1, 2, 3}
    assert sorted(raftlog(node, "topic", "consume", "words", "-k").splitlines()) == sorted(lines)


def test_any_node_answers_for_a_partition_and_names_its_leader_to_clients_that_ask_it_alone(
    cluster: Cluster,
) -> None:
    first, second = cluster.nodes[1], cluster.nodes[2]
    first.request("POST", "/v3/clusters/-/topics", {"topic_name": "asked", "partitions_count": 3})
    leaders = {
        row["leader"]: row["partition"] for row in first.request("GET", "/topics/asked/partitions")
    }
    partition = leaders[2]
    path = f"/topics/asked/partitions/{partition}"
    body = {"records": [{"value": "from anywhere"}]}
    # The topic exists on the node that created it; the other nodes learn of it soon.
    written = wait_until(lambda: answer_or_none(first, "POST", path, body), "leader")
    assert [entry["offset"] for entry in written["offsets"]] == [0]
    for node in cluster.nodes.values():
        found = wait_until(lambda n=node: answer_or_none(n, "GET", f"{path}/offsets"), "offsets")
        assert found == {"beginning_offset": 0, "end_offset": 1}
        (record,) = node.request("GET", f"{path}/records?offset=earliest")
        assert record["value"] == "from anywhere"
    # The client's own requests are for the leader: other nodes answer with the leader's address.
    query = {"topics": {"asked": [partition]}}
    with pytest.raises(urllib.error.HTTPError) as caught:
        first.request("POST", "/v1/offsets", query)
    with caught.value as answer:
        refusal = json.loads(answer.read())
    assert refusal["error_code"] == 50301
    assert second.address in refusal["message"]
    rows = second.request("POST", "/v1/offsets", query)["topics"]["asked"]["partitions"]
    assert rows[str(partition)]["end_offset"] == 1


def answer_or_none(node: MeasuredNode, method: str, path: str, body: Any = None) -> Any:
    try:
        return node.request(method, path, body)
    except urllib.error.HTTPError as error:
        with error:
            return None


def test_a_killed_node_costs_no_record(cluster: Cluster) -> None:
    asyncio.run(write_through_a_kill(cluster))


async def write_through_a_kill(cluster: Cluster) -> None:
    servers = cluster.servers
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("safe", partitions=PARTITIONS)
        async with (
            Producer(bootstrap_servers=servers) as producer,
            Consumer("safe", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        ):
            is_over = asyncio.Event()
            writing = asyncio.create_task(write_until(producer, is_over))
            async with asyncio.timeout(TIMEOUT_S):
                before = await read(consumer, 200)
                await asyncio.to_thread(cluster.kill, 2)
                await asyncio.to_thread(wait_for_loss, cluster, 2)
                # The other nodes have all records and go on: every partition is read and written.
                after = await read_of_all(consumer)
                at_hand = await admin.offsets(["safe"])
                assert len(at_hand) == PARTITIONS
                cluster.restart(2)
                await asyncio.to_thread(cluster.nodes[2].wait_ready)
                await asyncio.to_thread(wait_for_return, cluster, 2)
                is_over.set()
                acknowledged = await writing
                read_before = sum(map(len, [*before.values(), *after.values()]))
                rest = await read(consumer, len(acknowledged) - read_before)
            assert await consumer.getmany(timeout_ms=200) == {}
    seen = Counter[bytes]()
    for partition in range(PARTITIONS):
        records = [*before[partition], *after[partition], *rest[partition]]
        assert [record.offset for record in records] == list(range(len(records)))
        for record in records:
            assert record.value is not None
            seen[record.value] += 1
            at = acknowledged[record.value]
            assert (at.partition, at.offset) == (record.partition, record.offset)
    assert seen == Counter(acknowledged.keys())


async def read_of_all(consumer: Consumer[Any, Any]) -> dict[int, list[BytesRecord]]:
    """Records of every partition."""
    found: defaultdict[int, list[BytesRecord]] = defaultdict(list)
    while len(found) < PARTITIONS:
        for place, records in (await consumer.getmany(timeout_ms=500)).items():
            found[place.partition] += records
    return found


def wait_for_loss(cluster: Cluster, node_id: int) -> None:
    """Wait until the metadata shows no leadership of a killed node."""
    alive = next(node for node in cluster.nodes.values() if node.is_running)
    path = "/topics/safe/partitions"
    wait_until(
        lambda: node_id not in {row["leader"] for row in alive.request("GET", path)},
        f"loss of node {node_id}",
    )


def wait_for_return(cluster: Cluster, node_id: int) -> None:
    """Return once the node is in sync again, with all others."""
    path = "/topics/safe/partitions"
    wait_until(
        lambda: all(
            len(row["replicas"]) == len(cluster.nodes)
            and all(replica["in_sync"] for replica in row["replicas"])
            for row in cluster.nodes[node_id].request("GET", path)
        ),
        f"node {node_id} to catch up",
    )


async def write_until(producer: Producer[Any, Any], is_over: asyncio.Event) -> dict[bytes, Any]:
    """Write to all partitions in turn; return the acknowledged position of each value."""
    acknowledged: dict[bytes, RecordMetadata] = {}
    pending: set[asyncio.Task[None]] = set()

    async def send(number: int) -> None:
        value = b"%d" % number
        acknowledged[value] = await producer.send_and_wait(
            "safe", value, partition=number % PARTITIONS
        )

    number = 0
    while not is_over.is_set():
        pending.add(asyncio.create_task(send(number)))
        number += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*pending)
    return acknowledged
