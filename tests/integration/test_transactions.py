"""Transactions of the Python client on real nodes: whole or not at all, whatever process dies.

Records, and the offsets of a group: read, process and write exactly once.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import pytest
from raftlog_client import Admin, Consumer, Producer, TopicPartition
from raftlog_client.errors import FencedError, ServerError, TransactionAbortableError

from bench.cluster import Cluster
from bench.node import LoneNode, MeasuredNode
from raftlog.coordinator.groups.kind import TOPIC as CONSUMER_OFFSETS
from raftlog.coordinator.transactions.kind import TOPIC as TRANSACTION_STATE
from raftlog.record.coordinators import partition_of

PARTITIONS = 3
TIMEOUT_S = 60.0


class Client:
    """Producers and readers of one topic with PARTITIONS partitions."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic

    async def create(self) -> None:
        async with Admin(bootstrap_servers=self.servers) as admin:
            await admin.create_topic(self.topic, partitions=PARTITIONS)

    def producer(self, transactional_id: str, **settings: Any) -> Producer[bytes, bytes]:
        return Producer(
            bootstrap_servers=self.servers, transactional_id=transactional_id, **settings
        )

    async def write(self, producer: Producer[bytes, bytes], word: bytes) -> None:
        """One record to each partition."""
        for number in range(PARTITIONS):
            await (await producer.send(self.topic, word, partition=number))

    async def read(self, isolation: str = "read_committed") -> list[bytes]:
        """The values readable now, without waiting for more, sorted."""
        places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        async with Consumer(
            bootstrap_servers=self.servers,
            isolation=isolation,  # type: ignore[arg-type]
        ) as consumer:
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends = await consumer.end_offsets(places)
            found: list[bytes] = []
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [record.value or b"" for record in records]
            return sorted(found)

    async def read_until(self, wanted: list[bytes]) -> None:
        """Wait until readers of committed records get exactly these."""
        while (found := await self.read()) != sorted(wanted):
            assert set(found) <= set(wanted), found
            await asyncio.sleep(0.05)


def play(servers: str, topic: str, act: Callable[[Client], Awaitable[None]]) -> None:
    async def within() -> None:
        client = Client(servers, topic)
        async with asyncio.timeout(TIMEOUT_S):
            await client.create()
            await act(client)

    asyncio.run(within())


async def ends(client: Client) -> None:
    async with client.producer("ends") as producer:
        async with producer.transaction():
            await client.write(producer, b"a")
            assert await client.read() == []
            assert await client.read("read_uncommitted") == [b"a"] * PARTITIONS
        await client.read_until([b"a"] * PARTITIONS)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await client.write(producer, b"b")
                raise ZeroDivisionError
        async with producer.transaction():
            await client.write(producer, b"c")
    await client.read_until([b"a"] * PARTITIONS + [b"c"] * PARTITIONS)
    assert await client.read("read_uncommitted") == sorted([b"a", b"b", b"c"] * PARTITIONS)


def test_a_transaction_is_seen_whole_or_not_at_all(shared_node: LoneNode) -> None:
    play(shared_node.address, "ends", ends)


def test_a_transaction_over_three_nodes_is_seen_whole_or_not_at_all(
    cluster: Cluster,
) -> None:
    play(cluster.nodes[1].address, "ends", ends)


async def fencing(client: Client) -> None:
    async with client.producer("fenced") as old:
        transaction = old.transaction()
        await transaction.begin()
        await client.write(old, b"old")
        async with client.producer("fenced") as new, new.transaction():
            await client.write(new, b"new")
        with pytest.raises(FencedError):
            await transaction.commit()
    await client.read_until([b"new"] * PARTITIONS)


def test_a_second_producer_of_the_id_fences_the_first(cluster: Cluster) -> None:
    play(cluster.nodes[2].address, "fenced", fencing)


async def leader_of(client: Client, topic: str, partition: int) -> int:
    async with Admin(bootstrap_servers=client.servers) as admin:
        leader = (await admin.describe_topic(topic)).partitions[partition].leader
        assert leader is not None
        return leader


@pytest.mark.parametrize(
    ("role", "is_commit"),
    [
        ("coordinator", True),
        ("leader", False),
        # The simulator kills nodes in every step of a transaction.
        pytest.param("coordinator", False, marks=pytest.mark.full),
        pytest.param("leader", True, marks=pytest.mark.full),
    ],
)
def test_a_transaction_outlives_a_killed_node(
    cluster: Cluster, role: str, *, is_commit: bool
) -> None:
    name = f"killed-{role}-{is_commit}"

    async def act(client: Client) -> None:
        async with client.producer(name) as producer:
            transaction = producer.transaction()
            await transaction.begin()
            await client.write(producer, b"a")
            if role == "coordinator":
                victim = await leader_of(client, TRANSACTION_STATE, partition_of(name, 16))
            else:
                victim = await leader_of(client, client.topic, 0)
            cluster.kill(victim)
            if is_commit:
                await client.write(producer, b"b")
                await transaction.commit()
            else:
                await transaction.abort()
            async with producer.transaction():
                await client.write(producer, b"c")
            cluster.nodes[victim].relaunch()
            await asyncio.to_thread(cluster.nodes[victim].wait_ready)
        whole = [b"a"] * PARTITIONS + [b"b"] * PARTITIONS if is_commit else []
        await client.read_until(whole + [b"c"] * PARTITIONS)

    play(cluster.servers, name, act)


def json_values(node: LoneNode, topic: str, isolation: str) -> list[Any]:
    path = f"/topics/{topic}/partitions/0/records?isolation={isolation}"
    return [record["value"] for record in node.request("GET", path)]


def tailed(node: LoneNode, topic: str, count: int) -> list[Any]:
    """The first records of a committed tail from the start."""
    path = f"/v1/topics/{topic}/tail?partition=0&offset=earliest&isolation=read_committed"
    request = urllib.request.Request(
        f"http://{node.address}{path}", headers={"Accept": "application/x-ndjson"}
    )
    found: list[Any] = []
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        while len(found) < count:
            line = answer.readline().strip()
            if line:
                found.append(json.loads(line)["value"])
    return found


def test_json_reads_have_no_markers_and_committed_ones_no_aborted_records(
    shared_node: LoneNode,
) -> None:
    async def act(client: Client) -> None:
        async with client.producer("json") as producer:
            transaction = producer.transaction()
            await transaction.begin()
            await client.write(producer, b"1")
            await transaction.abort()
            async with producer.transaction():
                await client.write(producer, b"2")
            await transaction.begin()
            await client.write(producer, b"3")
            await client.read_until([b"2"] * PARTITIONS)
            for isolation, wanted in (("read_uncommitted", [1, 2, 3]), ("read_committed", [2])):
                values = await asyncio.to_thread(json_values, shared_node, client.topic, isolation)
                assert values == wanted, isolation
            await transaction.commit()
            await client.read_until([b"2", b"3"] * PARTITIONS)
            assert await asyncio.to_thread(tailed, shared_node, client.topic, 2) == [2, 3]

    play(shared_node.address, "json", act)


def test_json_writes_through_any_node_join_a_transaction(cluster: Cluster) -> None:
    async def act(client: Client) -> None:
        nodes = list(cluster.nodes.values())
        for is_commit in (False, True):
            await asyncio.to_thread(json_transaction, nodes, client.topic, is_commit=is_commit)
        await client.read_until([b'"True"'] * PARTITIONS * len(nodes))
        found = await client.read("read_uncommitted")
        assert len(found) == 2 * PARTITIONS * len(nodes)

    play(cluster.nodes[1].address, "json-writes", act)


def json_transaction(nodes: Sequence[MeasuredNode], topic: str, *, is_commit: bool) -> None:
    """Each node gets a record for every partition: most of them forward it."""
    path = "/v1/transactions/json-writes"
    producer = nodes[0].request("POST", f"{path}/init", {})
    assert not producer.pop("is_prepared", False)
    identity = urlencode({"transactional_id": "json-writes", **producer})
    body = {"records": [{"value": str(is_commit)}]}
    for sequence, node in enumerate(nodes):
        for partition in range(PARTITIONS):
            query = f"{identity}&sequence={sequence}"
            place = f"/topics/{topic}/partitions/{partition}"
            (written,) = node.request("POST", f"{place}?{query}", body)["offsets"]
            assert written["offset"] is not None, written
    nodes[1].request("POST", f"{path}/{'commit' if is_commit else 'abort'}", producer)


def test_an_operator_finds_a_transaction_and_ends_it(node: LoneNode) -> None:
    async def act(client: Client) -> None:
        async with (
            Admin(bootstrap_servers=node.address) as admin,
            client.producer("hung/one") as producer,
        ):
            transaction = producer.transaction()
            await transaction.begin()
            await client.write(producer, b"a")
            (listed,) = (await admin.list_transactions()).transactions
            assert (listed.transactional_id, listed.state) == ("hung/one", "ongoing")
            described = await admin.describe_transaction("hung/one")
            places = [(place.topic, place.partition) for place in described.partitions]
            assert places == [(client.topic, number) for number in range(PARTITIONS)]
            await admin.abort_transaction("hung/one")
            with pytest.raises(FencedError):
                await transaction.commit()
        assert await client.read("read_uncommitted") == [b"a"] * PARTITIONS
        await client.read_until([])

    play(node.address, "hung", act)


def test_a_sink_epoch_commits_prepared_transactions_and_aborts_the_others(
    shared_node: LoneNode,
) -> None:
    names = [f"sink/lake/{number}" for number in range(3)]

    def commit_epoch() -> Any:
        body = {"transactional_ids": names[:2]}
        return shared_node.request("POST", "/v1/sinks/lake/epochs/7", body)

    async def act(client: Client) -> None:
        for name in names:
            async with client.producer(name) as producer:
                transaction = producer.transaction()
                await transaction.begin()
                await client.write(producer, name[-1:].encode())
                await transaction.prepare()
        assert await client.read() == []
        for _ in range(2):
            assert await asyncio.to_thread(commit_epoch) == {"sink": "lake", "epoch": 7}
        await client.read_until(sorted([b"0", b"1"] * PARTITIONS))
        found = await asyncio.to_thread(shared_node.request, "GET", "/v1/sinks/lake")
        assert found == {"sink": "lake", "epoch": 7}

    play(shared_node.address, "sinks", act)


def test_a_transaction_without_an_end_is_aborted_after_its_timeout(shared_node: LoneNode) -> None:
    async def act(client: Client) -> None:
        async with client.producer("slow", transaction_timeout_ms=300) as producer:
            transaction = producer.transaction()
            await transaction.begin()
            await client.write(producer, b"a")
            async with client.producer("quick") as other, other.transaction():
                await client.write(other, b"b")
            # Below the last stable offset once the first one has ended.
            await client.read_until([b"b"] * PARTITIONS)
            with pytest.raises(TransactionAbortableError):
                await transaction.commit()
            async with producer.transaction():
                await client.write(producer, b"c")
            await client.read_until([b"b"] * PARTITIONS + [b"c"] * PARTITIONS)

    play(shared_node.address, "slow", act)


# Offsets in a transaction


class Chain:
    """Copies the numbers of one topic to another, each in a transaction with its offset."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.group = f"{client.topic}-group"
        self.source = f"{client.topic}-in"

    async def create(self, count: int) -> None:
        """A source of `count` numbers."""
        async with Admin(bootstrap_servers=self.client.servers) as admin:
            await admin.create_topic(self.source, partitions=PARTITIONS)
        async with Producer(bootstrap_servers=self.client.servers) as producer:
            for number in range(count):
                place = number % PARTITIONS
                await producer.send(self.source, b"%d" % number, partition=place)

    def consumer(self) -> Consumer[Any, Any]:
        return Consumer(
            self.source,
            bootstrap_servers=self.client.servers,
            group_id=self.group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=None,
            session_timeout_ms=2_000,
        )

    async def step(
        self,
        consumer: Consumer[Any, Any],
        producer: Producer[bytes, bytes],
        *,
        fails: bool = False,
    ) -> int:
        """Copy some numbers; how many."""
        batch = await consumer.getmany(timeout_ms=300, max_records=7)
        records = [record for some in batch.values() for record in some]
        if not records:
            return 0
        async with producer.transaction() as tx:
            for record in records:
                await producer.send(self.client.topic, record.value, partition=record.partition)
            await tx.commit_offsets(consumer)
            if fails:
                raise ZeroDivisionError
        return len(records)

    async def committed(self) -> int:
        """The sum of the group's committed offsets, without those of open transactions."""
        async with Admin(bootstrap_servers=self.client.servers) as admin:
            try:
                described = await admin.describe_group(self.group)
            except ServerError:
                return 0
            return sum(max(one.offset, 0) for one in described.offsets)

    async def wait_committed(self, count: int) -> None:
        while (found := await self.committed()) != count:
            assert found < count
            await asyncio.sleep(0.05)


def places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


async def offsets_with_the_commit(client: Client) -> None:
    chain = Chain(client)
    await chain.create(6)
    async with client.producer("offsets") as producer:
        transaction = producer.transaction()
        for is_commit in (False, True):
            await transaction.begin()
            await transaction.commit_offsets(dict.fromkeys(places(chain.source), 2), chain.group)
            async with Admin(bootstrap_servers=client.servers) as admin:
                described = await admin.describe_transaction("offsets")
            wanted = (CONSUMER_OFFSETS, partition_of(chain.group, 16))
            assert [(one.topic, one.partition) for one in described.partitions] == [wanted]
            assert await chain.committed() == 0
            await (transaction.commit() if is_commit else transaction.abort())
        await chain.wait_committed(2 * PARTITIONS)


def test_offsets_count_with_the_commit_of_their_transaction(shared_node: LoneNode) -> None:
    play(shared_node.address, "offsets", offsets_with_the_commit)


def test_offsets_over_three_nodes_count_with_the_commit(cluster: Cluster) -> None:
    play(cluster.nodes[3].address, "offsets", offsets_with_the_commit)


async def reader_waits(client: Client) -> None:
    chain = Chain(client)
    await chain.create(30)
    async with client.producer("stable") as producer:
        async with chain.consumer() as first:
            transaction = producer.transaction()
            await transaction.begin()
            await transaction.commit_offsets(
                dict.fromkeys(places(chain.source), 4), first.group_metadata()
            )
        async with chain.consumer() as second:
            assert not await second.getmany(timeout_ms=500), "the offsets may change yet"
            await transaction.commit()
            found: list[int] = []
            while len(found) < 30 - 4 * PARTITIONS:
                for records in (await second.getmany(timeout_ms=200)).values():
                    found += [int(record.value) for record in records]
            assert sorted(found) == list(range(4 * PARTITIONS, 30))


def test_the_next_reader_waits_for_the_end_of_the_transaction(shared_node: LoneNode) -> None:
    play(shared_node.address, "stable", reader_waits)


async def zombies(client: Client) -> None:
    chain = Chain(client)
    await chain.create(12)
    async with client.producer("zombie") as old, chain.consumer() as consumer:
        assert await chain.step(consumer, old)
        done = await chain.committed()
        transaction = old.transaction()
        await transaction.begin()
        await old.send(client.topic, b"zombie", partition=0)
        async with client.producer("zombie") as new, new.transaction():
            await client.write(new, b"new")
        with pytest.raises(TransactionAbortableError):
            await transaction.commit_offsets(dict.fromkeys(places(chain.source), 4), chain.group)
        with pytest.raises(FencedError):
            await transaction.abort()
    async with client.producer("stale") as producer:
        async with chain.consumer() as consumer:
            stale = consumer.group_metadata()
        transaction = producer.transaction()
        for member in (stale, stale._replace(member_id="never", member_epoch=1)):
            await transaction.begin()
            await producer.send(client.topic, b"stale", partition=0)
            with pytest.raises(TransactionAbortableError):
                await transaction.commit_offsets(dict.fromkeys(places(chain.source), 4), member)
            await transaction.abort()
        async with chain.consumer() as consumer:
            alive = consumer.group_metadata()
            older = alive._replace(member_epoch=alive.member_epoch + 1)
            for member in (older, None):
                await transaction.begin()
                with pytest.raises(TransactionAbortableError):
                    await transaction.commit_offsets(
                        dict.fromkeys(places(chain.source), 4), member or chain.group
                    )
                await transaction.abort()
    assert await chain.committed() == done
    found = await client.read()
    assert b"zombie" not in found
    assert b"stale" not in found


def test_a_fenced_producer_and_a_stale_member_commit_no_offsets(
    cluster: Cluster,
) -> None:
    play(cluster.nodes[1].address, "zombies", zombies)


async def copied_once(client: Client) -> None:
    count = 60
    chain = Chain(client)
    await chain.create(count)
    for fails in (True, False, True, False):
        # Another process: the consumer and the producer of before are gone.
        async with client.producer("copy") as producer, chain.consumer() as consumer:
            for _ in range(3):
                if not fails:
                    await chain.step(consumer, producer)
                    continue
                try:
                    await chain.step(consumer, producer, fails=True)
                except ZeroDivisionError:
                    await consumer.seek_to_committed()
    async with client.producer("copy") as producer, chain.consumer() as consumer:
        while await chain.committed() < count:
            await chain.step(consumer, producer)
    await client.read_until([b"%d" % number for number in range(count)])
    assert len(await client.read("read_uncommitted")) > count, "some attempts were aborted"


def test_read_process_write_is_exactly_once_over_restarts(shared_node: LoneNode) -> None:
    play(shared_node.address, "copied", copied_once)


@pytest.mark.parametrize("role", ["group", "transaction"])
def test_read_process_write_outlives_a_killed_coordinator(cluster: Cluster, role: str) -> None:
    count = 60

    async def act(client: Client) -> None:
        chain = Chain(client)
        await chain.create(count)
        async with client.producer(f"chain-{role}") as producer, chain.consumer() as consumer:
            done = await chain.step(consumer, producer)
            place = (CONSUMER_OFFSETS, partition_of(chain.group, 16))
            if role == "transaction":
                place = (TRANSACTION_STATE, partition_of(f"chain-{role}", 16))
            victim = await leader_of(client, *place)
            transaction = producer.transaction()
            await transaction.begin()
            batch = await consumer.getmany(timeout_ms=2_000, max_records=9)
            for record in (one for some in batch.values() for one in some):
                await producer.send(client.topic, record.value, partition=record.partition)
                done += 1
            await transaction.commit_offsets(consumer)
            cluster.kill(victim)
            await transaction.commit()
            await chain.wait_committed(done)
            while await chain.committed() < count:
                try:
                    await chain.step(consumer, producer)
                except TransactionAbortableError:
                    await consumer.seek_to_committed()
            cluster.nodes[victim].relaunch()
            await asyncio.to_thread(cluster.nodes[victim].wait_ready)
        await client.read_until([b"%d" % number for number in range(count)])

    play(cluster.servers, f"chain-{role}", act)
