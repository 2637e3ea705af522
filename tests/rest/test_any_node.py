"""Any node answers: two nodes, each with a server; requests go to the follower."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from raftlog.record.batch import split_batches
from raftlog.record.errors import NO_LEADER, RETRIABLE, LogError
from raftlog.record.types import BrokerId, LeaderEpoch, Offset, PartitionEpoch
from raftlog.rest.v2.topics import HIGH_WATERMARK_HEADER, NEXT_OFFSET_HEADER
from raftlog.routing.forwarding import Forwarder
from raftlog.routing.forwarding_server import ForwardingServer
from raftlog.world.network import Acceptor, Opened, Receiver, RefusedError
from raftlog.world.time import SystemClock
from tests.broker.data_fakes import DataNode, contents, waiting_readers
from tests.http.fakes import FakeMetadata
from tests.http.http_peers import Reply
from tests.rest.data_fakes import DataPeer, serving
from tests.rest.v1.test_batches import batch, fetch, frames, produce, want
from tests.rest.v1.test_tail import SSE, tailing
from tests.waiting import until

RECORDS = "/topics/t/partitions/0/records"


class LoopConnection:
    """One side of a connection within the process."""

    def __init__(self, hello: bytes) -> None:
        self.hello = hello
        self.address = "loop"
        self.queued_bytes = 0
        self.other: LoopConnection
        self.receiver: Receiver | None = None
        self.is_open = True

    def send(self, message: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.other._deliver, message)

    def _deliver(self, message: bytes) -> None:
        if self.is_open and self.receiver is not None:
            self.receiver.received(message)

    def close(self) -> None:
        for side in (self, self.other):
            if side.is_open:
                side.is_open = False
                if side.receiver is not None:
                    asyncio.get_running_loop().call_soon(side.receiver.closed)


@dataclass
class LoopNetwork:
    """One node's way to the others of the process, by their addresses in the metadata."""

    address: str
    acceptors: dict[str, Acceptor]

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        acceptor = self.acceptors.get(address)
        if acceptor is None:
            raise RefusedError(f"nobody listens at {address}")
        mine, theirs = LoopConnection(acceptor.hello(hello)), LoopConnection(hello)
        mine.other, theirs.other = theirs, mine
        theirs.receiver = acceptor.opened(theirs)
        mine.receiver = opened(mine)

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        return address not in self.acceptors

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        self.acceptors[self.address] = acceptor


@dataclass
class Two:
    """Node 1 leads topic `t`, of one partition, and node 2 follows; both lead some of `six`."""

    metadata: FakeMetadata
    leader: DataPeer
    other: DataPeer

    def lead(self, leader: int, epoch: int) -> None:
        """Make another node the leader of `t`, at once on both nodes."""
        image = self.metadata.image
        topic = image.topic("t")
        row = msgspec.structs.replace(
            topic.partitions[0],
            # Nothing flows between these two: the leader commits alone.
            isr=(BrokerId(max(leader, 1)),),
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            partition_epoch=PartitionEpoch(epoch),
        )
        after = msgspec.structs.replace(topic, partitions=(row,))
        image.topics_by_name["t"] = image.topics_by_id[topic.topic_id] = after
        for one in (self.leader, self.other):
            one.node.replicas.here("t", 0)
            one.node.partitions.on_metadata_applied()


@asynccontextmanager
async def two() -> AsyncIterator[Two]:
    metadata = FakeMetadata(brokers=2)
    acceptors: dict[str, Acceptor] = {}
    nodes: list[DataNode] = []
    servers: list[ForwardingServer] = []
    forwarders: list[Forwarder] = []
    fatal: list[str] = []
    for number in (1, 2):
        broker = metadata.image.brokers[BrokerId(number)]
        network = LoopNetwork(f"{broker.host}:{broker.port}", acceptors)
        forwarder = Forwarder(
            network,
            clock=SystemClock(),
            node_id=BrokerId(number),
            cluster_id=lambda: "fake-cluster",
            broker=metadata.image.brokers.get,
            on_fatal=fatal.append,
        )
        node = DataNode(metadata, number, forwarder)
        server = ForwardingServer(
            node.replicas,
            node.partitions.gate,
            network=network,
            clock=SystemClock(),
            node_id=BrokerId(number),
            cluster_id=lambda: "fake-cluster",
            on_fatal=fatal.append,
        )
        server.start()
        nodes.append(node)
        servers.append(server)
        forwarders.append(forwarder)
    await metadata.create_topic("t", replication_factor=2)
    await metadata.create_topic("six", partitions=6, replication_factor=1)
    async with serving(nodes[0]) as leader, serving(nodes[1]) as other:
        both = Two(metadata, leader, other)
        both.lead(1, 7)
        yield both
        for forwarder in forwarders:
            forwarder.close()
        for server in servers:
            await server.close()


async def post(one: DataPeer, path: str, body: Any) -> Reply:
    return await one.peer.request("POST", path, json.dumps(body).encode())


async def get(one: DataPeer, path: str) -> Reply:
    return await one.peer.request("GET", path)


def records(*values: Any) -> dict[str, Any]:
    return {"records": [{"value": value} for value in values]}


async def test_v2_writes_and_reads_by_the_node_that_follows() -> None:
    async with two() as both:
        for path in ("/topics/t", "/topics/t/partitions/0"):
            reply = await post(both.other, path, records(1, "two"))
            assert reply.status == 200, reply.body
        assert [row["offset"] for row in reply.json["offsets"]] == [2, 3]
        assert [value for _, value in contents(both.leader.node.log("t"))] == [
            b"1",
            b'"two"',
        ] * 2
        assert not both.other.node.log("t").batches
        found = await get(both.other, f"{RECORDS}?offset=1&max_records=2")
        assert [row["value"] for row in found.json] == ["two", 1]
        assert found.headers[NEXT_OFFSET_HEADER.lower()] == "3"
        assert found.headers[HIGH_WATERMARK_HEADER.lower()] == "4"
        last = await get(both.other, f"{RECORDS}?offset=-1")
        assert [row["offset"] for row in last.json] == [3]
        assert len((await get(both.other, f"{RECORDS}?offset=-99")).json) == 4
        for offset, status in (("latest", 200), (9, 416)):
            assert (await get(both.other, f"{RECORDS}?offset={offset}")).status == status
        offsets = (await get(both.other, "/topics/t/partitions/0/offsets")).json
        assert offsets == {"beginning_offset": 0, "end_offset": 4}


async def test_large_and_idempotent_requests_are_passed_on() -> None:
    async with two() as both:
        big = "x" * 700_000
        reply = await post(both.other, "/topics/t", records(big, big))
        assert [row["offset"] for row in reply.json["offsets"]] == [0, 1]
        path = "/topics/t/partitions/0?producer_id=5&producer_epoch=0&sequence=0"
        both.leader.node.log("t").append_error = None
        for _ in range(2):
            reply = await post(both.other, path, records("once"))
            assert [row["offset"] for row in reply.json["offsets"]] == [2]


async def test_records_of_many_partitions_go_to_their_leaders() -> None:
    async with two() as both:
        body = {"records": [{"value": number, "partition": number} for number in range(6)]}
        reply = await post(both.other, "/topics/six", body)
        assert [row["offset"] for row in reply.json["offsets"]] == [0] * 6
        leaders = {row.leader for row in both.metadata.image.topic("six").partitions}
        assert leaders == {1, 2}, "the test is of both"


async def test_v3_writes_by_the_node_that_follows() -> None:
    async with two() as both:
        body = {"value": {"type": "JSON", "data": 1}}
        path = "/v3/clusters/-/topics/t/records"
        receipt = (await post(both.other, path, body)).json
        assert (receipt["error_code"], receipt["offset"]) == (200, 0)
        reply = await post(both.other, f"{path}:batch", {"entries": [{"id": "a", **body}]})
        assert reply.json["successes"][0]["offset"] == 1


async def test_a_long_poll_at_the_follower_ends_with_the_leaders_record() -> None:
    async with two() as both:
        asked = asyncio.create_task(get(both.other, f"{RECORDS}?timeout=60000"))
        partition = both.leader.node.replicas.here("t", 0)
        await until(lambda: waiting_readers(partition))
        await post(both.leader, "/topics/t", records(5))
        assert [row["value"] for row in (await asked).json] == [5]
        await until(lambda: not waiting_readers(partition))


async def test_a_tail_at_the_follower_gives_all_partitions() -> None:
    async with two() as both:
        path = "/v1/topics/six/tail?offset=earliest"
        async with tailing(both.other, path, f"Accept: {SSE}") as tail:
            for number in range(6):
                body = {"records": [{"value": number, "partition": number}]}
                await post(both.leader, "/topics/six", body)
                assert json.loads((await tail.event())["data"])["value"] == number


async def test_writing_goes_on_when_the_lead_moves() -> None:
    async with two() as both:
        await post(both.other, "/topics/t", records(1))
        both.lead(-1, 8)
        asked = asyncio.create_task(post(both.other, "/topics/t", records(2)))
        await asyncio.sleep(0.05)
        assert not asked.done()
        both.lead(2, 9)
        assert (await asked).status == 200
        assert [value for _, value in contents(both.other.node.log("t"))] == [b"2"]


async def test_an_unknown_outcome_stays_unknown() -> None:
    async with two() as both:
        both.leader.node.log("t").append_error = LogError(RETRIABLE, "in doubt")
        reply = await post(both.other, "/topics/t", records(1))
        assert reply.error_code == RETRIABLE.code


async def test_records_are_deleted_by_the_node_that_follows() -> None:
    async with two() as both:
        await post(both.leader, "/topics/t", records(1, 2, 3))
        reply = await post(both.other, "/v1/delete-records", {"offsets": {"t": {"0": 2}}})
        assert reply.json["results"][0]["log_start_offset"] == 2


async def test_raw_endpoints_name_the_leader() -> None:
    async with two() as both:
        one = frames(("t", 0, batch(b"a")))
        (result,) = (await produce(both.other, one)).json["results"]
        broker = both.metadata.image.brokers[BrokerId(1)]
        assert result["error_code"] == 50301
        assert result["leader"] == {"node_id": 1, "host": broker.host, "port": broker.port}
        assert result["leader_epoch"] == 7
        (frame,) = await fetch(both.other, want("t", 0))
        assert frame.error_code == 50301
        assert f"{broker.host}:{broker.port}" in frame.message
        assert (await post(both.other, "/v1/offsets", {"topics": ["t"]})).error_code == 50301
        (result,) = (await produce(both.leader, one)).json["results"]
        assert "leader" not in result
        # The leader by the metadata refuses: the request must not go round in a circle.
        both.leader.node.replicas.offline["t", 0] = LogError(NO_LEADER, "cut off")
        (result,) = (await produce(both.leader, one)).json["results"]
        assert ("leader" in result, result["leader_epoch"]) == (False, 7)
        both.lead(-1, 8)
        (result,) = (await produce(both.other, one)).json["results"]
        assert ("leader" in result, result["leader_epoch"]) == (False, 8)


async def test_offsets_of_all_partitions_by_one_call_to_any_node() -> None:
    async with two() as both:
        body = {"records": [{"value": n, "partition": n, "timestamp": 100 + n} for n in range(6)]}
        await post(both.leader, "/topics/six", body)
        topic = both.metadata.image.topic("six")
        leaders = [row.leader for row in topic.partitions]
        gone = leaders.index(BrokerId(1))
        forwarder = both.other.node.partitions.forwarder
        assert forwarder is not None
        before = forwarder.requests
        wanted = {"topics": ["six", "t"], "any_node": True}
        reply = await post(both.other, "/v1/offsets", wanted)
        row = {"beginning_offset": 0, "end_offset": 1, "high_watermark": 1, "last_stable_offset": 1}
        assert reply.json["topics"]["six"] == {
            "topic_id": topic.topic_id,
            "partitions": {str(n): row for n in range(6)},
        }
        assert reply.json["topics"]["t"]["partitions"]["0"]["end_offset"] == 0
        assert forwarder.requests - before == 1
        timestamps = {"six": {str(n): 100 + n + (n == 5) for n in range(6)}}
        wanted = {"timestamps": timestamps, "any_node": True}
        times = (await post(both.other, "/v1/offsets-for-times", wanted)).json
        assert times["topic_ids"] == {"six": topic.topic_id}
        assert times["offsets"]["six"] == {
            **{str(n): {"offset": 0, "timestamp": 100 + n} for n in range(5)},
            "5": None,
        }
        # An error of one partition is an error of that partition alone.
        both.leader.node.replicas.offline["six", gone] = LogError(NO_LEADER, "cut off")
        wanted = {"topics": {"six": list(range(6))}, "any_node": True}
        rows = (await post(both.other, "/v1/offsets", wanted)).json["topics"]["six"]["partitions"]
        assert [n for n, one in rows.items() if "error_code" in one] == [str(gone)]
        assert (rows[str(gone)]["error_code"], rows[str(gone)]["end_offset"]) == (50301, -1)
        wanted = {"timestamps": timestamps, "any_node": True}
        found = (await post(both.other, "/v1/offsets-for-times", wanted)).json["offsets"]["six"]
        assert found[str(gone)]["error_code"] == 50301
        assert sum("error_code" in one for one in found.values() if one is not None) == 1
        for topics, code in (({"six": [6]}, 40402), (["none"], 40401)):
            wanted = {"topics": topics, "any_node": True}
            assert (await post(both.other, "/v1/offsets", wanted)).error_code == code


async def follow(both: Two, known: int) -> None:
    """Node 2 has all three records of `t`, and knows the first `known` to be committed."""
    await post(both.leader, "/topics/t", records(1))
    await post(both.leader, "/topics/t", records(2))
    log = both.other.node.log("t")
    for data in both.leader.node.log("t").batches:
        batches = split_batches(data, max_message_bytes=1 << 20)
        await log.appender.append(batches, LeaderEpoch(7))
    await asyncio.sleep(0)
    both.other.node.replicas.here("t", 0).follower_role.update_watermarks(
        leader_epoch=LeaderEpoch(7), high_watermark=Offset(known), log_start_offset=Offset(0)
    )


async def test_any_replica_answers_up_to_what_it_knows() -> None:
    async with two() as both:
        await follow(both, 1)
        near = await get(both.other, f"{RECORDS}?replica=any")
        assert [row["value"] for row in near.json] == [1]
        assert near.headers[HIGH_WATERMARK_HEADER.lower()] == "1"
        assert len((await get(both.other, RECORDS)).json) == 2
        (frame,) = await fetch(both.other, want("t", 0), any_replica=True)
        assert (frame.error_code, frame.next_offset, frame.high_watermark) == (0, 1, 1)
        # At the replica's end a reader waits as at the log's end; the leader answers beyond.
        assert (await get(both.other, f"{RECORDS}?replica=any&offset=2")).json == []
        assert (await get(both.other, f"{RECORDS}?replica=any&offset=3")).status == 416
        (frame,) = await fetch(both.other, want("t", 0, offset=2), any_replica=True)
        assert (frame.error_code, bytes(frame.data)) == (0, b"")
        (frame,) = await fetch(both.other, want("t", 0, offset=3), any_replica=True)
        assert frame.error_code == 50301
        assert (await get(both.other, f"{RECORDS}?replica=all")).status == 400


async def test_a_long_poll_at_any_replica_ends_with_what_it_learns() -> None:
    async with two() as both:
        await follow(both, 1)
        body = {"partitions": [want("t", 0, offset=1)], "max_wait_ms": 60_000, "any_replica": True}
        asked = [
            asyncio.create_task(get(both.other, f"{RECORDS}?replica=any&offset=1&timeout=60000")),
        ]
        partition = both.other.node.replicas.here("t", 0)
        await until(lambda: waiting_readers(partition))
        partition.follower_role.update_watermarks(
            leader_epoch=LeaderEpoch(7), high_watermark=Offset(2), log_start_offset=Offset(0)
        )
        assert [row["value"] for row in (await asked[0]).json] == [2]
        assert (await post(both.other, "/v1/fetch", body)).status == 200
