"""An honest little cluster in this process, for the client's tests: `/v1` and its faults.

Keeps batches in memory, stamps offsets, recognises repeats by producer id and sequence (the last
five batches), refuses gaps, and long-polls. Faults are injected one request at a time.
Written against the client's contract, not against the node's code.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import orjson
from aiohttp import web

from raftlog.record.batch import RecordBatch, iterate_batches, split_batches
from raftlog.record.codec import decode
from raftlog.record.errors import (
    ERROR_TABLE,
    INVALID_BODY,
    NO_LEADER,
    TOPIC_EXISTS,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    ErrorEntry,
    LogError,
)
from raftlog.record.frames import (
    BATCHES_MEDIA_TYPE,
    AbortedTransaction,
    FetchFrame,
    ProduceFrame,
    encode_fetch_frame,
    parse_produce_frames,
)
from raftlog.record.header import parse_header
from raftlog.record.types import Offset, PartitionId, ProducerId
from tests.client.fake_coordinator import FakeCoordinator
from tests.client.fake_partition import MAX_MESSAGE_BYTES, FakePartition


@dataclass
class Fault:
    """The fault of one request: at most one of these."""

    error: ErrorEntry | None = None
    """The whole request is refused with this."""
    frame_errors: dict[int, ErrorEntry] = field(default_factory=dict)
    """Produce frames, by number, refused with nothing written."""
    delay_s: float = 0.0
    drop_before: bool = False
    """The connection breaks before anything is done."""
    drop_after: bool = False
    """The connection breaks after everything is done, without an answer."""
    answer: bytes | None = None
    """Answered with this instead, after everything is done."""
    frames_max: int | None = None
    """The connection breaks in the middle of the fetch frame after so many."""


@dataclass
class FakeTopic:
    name: str
    topic_id: str
    partitions: list[FakePartition]
    configs: dict[str, str] = field(default_factory=dict)


class FakeCluster:
    """Nodes that share one memory. Each answers on its own port, and serves its own partitions."""

    def __init__(self, node_count: int = 1) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.nodes = [FakeNode(self, number + 1) for number in range(node_count)]
        self.next_producer_id = 1000
        self.next_topic_number = 1
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        """By path: faults of the next requests, one after the other."""
        self.requests: dict[str, int] = defaultdict(int)
        """By path: how many came."""
        self.request_came = asyncio.Event()
        self.auto_create_topics = False
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self.body_bytes_max = 32 * 1024 * 1024
        self.is_framing_batches = False
        """Whether each fetched batch is a frame of its own."""
        self.coordinator = FakeCoordinator(self)
        self.fetched: list[tuple[int, int]] = []
        """The node that answered, and the offset, of each fetch frame with records."""
        self.produce_bodies: list[bytes] | None = None
        """Set to a list to keep the bodies of produce requests."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> FakeTopic:
        topic = FakeTopic(
            name,
            f"{self.next_topic_number:032x}",
            [
                FakePartition(name, number, self.nodes[number % len(self.nodes)].broker_id)
                for number in range(partitions)
            ],
            configs,
        )
        self.next_topic_number += 1
        self.topics[name] = topic
        return topic

    def add_partitions(self, name: str, total: int) -> None:
        partitions = self.topics[name].partitions
        for number in range(len(partitions), total):
            partitions.append(
                FakePartition(name, number, self.nodes[number % len(self.nodes)].broker_id)
            )

    def partition(self, topic: str, partition: int) -> FakePartition:
        known = self.topics.get(topic)
        if known is None:
            raise LogError(UNKNOWN_TOPIC, f"Topic {topic!r} not found.")
        if partition >= len(known.partitions):
            raise LogError(UNKNOWN_PARTITION)
        return known.partitions[partition]

    def check_topic_id(self, topic: str, topic_id: str | None) -> None:
        if topic_id is not None and self.topics[topic].topic_id != topic_id:
            raise LogError(UNKNOWN_TOPIC_ID, "another topic")

    def fail(self, path: str, *faults: Fault) -> None:
        self.faults[path].extend(faults)

    async def wait_for_requests(self, path: str, count: int) -> None:
        while self.requests[path] < count:
            await self.request_came.wait()

    async def __aenter__(self) -> FakeCluster:
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            await node.stop()


class FakeNode:
    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.port = 0
        self.rack: str | None = None
        self.stopped: asyncio.Event | None = None
        """Set to an event to stop the process as SIGSTOP does, until the event is set."""
        self.stopped_after: asyncio.Event | None = None
        """The same, once a request is carried out and not answered yet."""
        self.view: dict[str, Any] | None = None
        """This node's metadata of topics, if behind the others."""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        for method, path, handler in (
            ("POST", "/v1/produce", self.produce),
            ("POST", "/v1/fetch", self.fetch),
            ("GET", "/v1/metadata", self.metadata),
            ("POST", "/v1/metadata", self.metadata_to_produce),
            ("POST", "/v1/offsets", self.offsets),
            ("POST", "/v1/offsets-for-times", self.offsets_for_times),
            ("POST", "/v1/producer-ids", self.producer_ids),
            ("POST", "/v1/delete-records", self.delete_records),
            ("POST", "/v3/clusters/fake/topics", self.create_topic),
            *self.cluster.coordinator.routes(),
        ):
            app.router.add_route(method, path, self._with_faults(path, handler))
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening, as a killed process: a later `start` takes the same port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _with_faults(self, path: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.cluster.requests[path] += 1
            self.cluster.request_came.set()
            self.cluster.request_came = asyncio.Event()
            queue = self.cluster.faults[path]
            fault = queue.popleft() if queue else Fault()
            if fault.drop_before:
                _drop(request)
                return web.Response()
            await request.read()
            if self.stopped is not None:
                await self.stopped.wait()
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            try:
                if fault.error is not None:
                    refuse(fault.error)
                response: web.StreamResponse = await handler(request, fault)
            except LogError as error:
                return web.json_response(
                    {"error_code": error.entry.code, "message": error.message},
                    status=error.entry.http_status,
                )
            if self.stopped_after is not None:
                await self.stopped_after.wait()
            if fault.drop_after:
                _drop(request)
            if fault.answer is not None:
                return web.Response(body=fault.answer)
            return response

        return handle

    async def produce(self, request: web.Request, fault: Fault) -> web.Response:
        assert request.content_type == BATCHES_MEDIA_TYPE
        body = await request.read()
        if len(body) > self.cluster.body_bytes_max:
            raise LogError(ERROR_TABLE[41301])
        if self.cluster.produce_bodies is not None:
            self.cluster.produce_bodies.append(body)
        frames = list(parse_produce_frames(body, frames_max=10_000))
        if len({frame[:2] for frame in frames}) != len(frames):
            raise LogError(INVALID_BODY, "Two frames are of one partition.")
        results = [
            self._produce_frame(
                frame, fault.frame_errors.get(number), request.query.get("transactional_id")
            )
            for number, frame in enumerate(frames)
        ]
        return web.json_response({"results": results})

    def _produce_frame(
        self, frame: ProduceFrame, refusal: ErrorEntry | None, transactional_id: str | None
    ) -> dict[str, Any]:
        result: dict[str, Any] = {
            "topic": frame.topic,
            "partition": frame.partition,
            "base_offset": -1,
            "last_offset": -1,
            "log_append_time": -1,
            "log_start_offset": 0,
            "error_code": None,
            "message": None,
        }
        try:
            if refusal is not None:
                refuse(refusal)
            partition = self._led(frame.topic, frame.partition)
            batches = split_batches(
                frame.data,
                max_message_bytes=self.cluster.max_message_bytes,
                allow_transactional=transactional_id is not None,
            )
            if transactional_id is not None:
                self.cluster.coordinator.check_batches(transactional_id, partition, batches)
            first, last = partition.append_frame(batches)
        except LogError as error:
            return result | {"error_code": error.entry.code, "message": error.message}
        return result | {"base_offset": first, "last_offset": last}

    async def fetch(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        wanted = orjson.loads(await request.read())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wanted.get("max_wait_ms", 500) / 1000
        while True:
            frames, size, has_errors, events = self._read(wanted)
            remaining = deadline - loop.time()
            if has_errors or size >= wanted.get("min_bytes", 1) or remaining <= 0:
                break
            waits = [asyncio.ensure_future(event.wait()) for event in events]
            await asyncio.wait(
                waits, timeout=remaining, return_when=asyncio.FIRST_COMPLETED
            ) if waits else await asyncio.sleep(remaining)
            for wait in waits:
                wait.cancel()
        response = web.StreamResponse(headers={"Content-Type": BATCHES_MEDIA_TYPE})
        with suppress(ConnectionResetError):  # the client has left
            await response.prepare(request)
            if self.cluster.is_framing_batches:
                frames = [part for frame in frames for part in _by_batch(frame)]
            for number, frame in enumerate(frames):
                head, data = encode_fetch_frame(frame)
                await response.write(head)
                if number == fault.frames_max:
                    await response.write(data[: len(data) // 2])
                    await asyncio.sleep(0.05)
                    _drop(request)
                await response.write(data)
            await response.write_eof()
        return response

    def _read(
        self, wanted: dict[str, Any]
    ) -> tuple[list[FetchFrame], int, bool, list[asyncio.Event]]:
        frames: list[FetchFrame] = []
        events = []
        room = wanted.get("max_bytes", 1 << 25)
        size = 0
        has_errors = False
        for want in wanted["partitions"]:
            code, high_watermark, log_start, next_offset = 0, 0, 0, want["offset"]
            data: bytes = b""
            stable: Offset | None = None
            aborted: list[AbortedTransaction] = []
            try:
                partition, high_watermark = self._readable(wanted, want)
                self.cluster.check_topic_id(want["topic"], want.get("topic_id"))
                log_start = partition.log_start_offset
                events.append(partition.appended)
                end_offset = min(want.get("end_offset", 1 << 62), high_watermark)
                if wanted.get("isolation") == "read_committed":
                    end_offset = min(end_offset, partition.last_stable_offset)
                if room > 0 and not end_offset <= want["offset"] <= partition.end_offset:
                    data, next_offset = partition.read(
                        want["offset"], min(room, want.get("max_bytes", 1 << 20)), end_offset
                    )
                if wanted.get("isolation") == "read_committed":
                    stable, aborted = _stable_part(partition, want["offset"], next_offset)
            except LogError as error:
                code, data, has_errors = error.entry.code, error.message.encode(), True
            else:
                size += len(data)
                room -= len(data)
                if data:
                    self.cluster.fetched.append((self.broker_id, want["offset"]))
            frames.append(
                FetchFrame(
                    want["topic"],
                    PartitionId(want["partition"]),
                    code,
                    Offset(high_watermark),
                    Offset(log_start),
                    Offset(next_offset),
                    data,
                    stable,
                    aborted,
                )
            )
        return frames, size, has_errors, events

    async def metadata_to_produce(self, request: web.Request, _: Fault) -> web.Response:
        names = orjson.loads(await request.read())["topics"]
        for name in names:
            if self.cluster.auto_create_topics and name not in self.cluster.topics:
                self.cluster.create_topic(name, 2)
        return self._metadata(",".join(names))

    async def metadata(self, request: web.Request, _: Fault) -> web.Response:
        return self._metadata(request.query.get("topics"))

    def _metadata(self, asked: str | None) -> web.Response:
        topics = self.cluster.topics
        names = sorted(topics) if asked is None else [name for name in asked.split(",") if name]
        return web.json_response(
            {
                "cluster_id": "fake",
                "controller_id": 1,
                "brokers": [
                    {
                        "broker_id": node.broker_id,
                        "host": "127.0.0.1",
                        "port": node.port,
                        "rack": node.rack,
                    }
                    for node in self.cluster.nodes
                ],
                "topics": [
                    (self.view or {}).get(name) or topic_json(topics[name])
                    if name in topics
                    else {
                        "name": name,
                        "topic_id": None,
                        "error_code": UNKNOWN_TOPIC.code,
                        "partitions": [],
                    }
                    for name in names
                ],
            }
        )

    async def offsets(self, request: web.Request, _: Fault) -> web.Response:
        answer: dict[str, Any] = {}
        body = orjson.loads(await request.read())
        wanted = body["topics"]
        for name in wanted:
            self.cluster.partition(name, 0)
            topic = self.cluster.topics[name]
            numbers = wanted[name] if isinstance(wanted, dict) else range(len(topic.partitions))
            answer[name] = {
                "topic_id": topic.topic_id,
                "partitions": {
                    str(number): self._row(
                        name,
                        number,
                        lambda partition: {
                            "beginning_offset": partition.log_start_offset,
                            "end_offset": partition.end_offset,
                            "high_watermark": partition.end_offset,
                            "last_stable_offset": partition.last_stable_offset,
                        },
                        any_node=body.get("any_node", False),
                    )
                    for number in numbers
                },
            }
        return web.json_response({"topics": answer})

    async def offsets_for_times(self, request: web.Request, _: Fault) -> web.Response:
        answer: dict[str, dict[str, Any]] = {}
        body = orjson.loads(await request.read())
        for name, partitions in body["timestamps"].items():
            self.cluster.partition(name, 0)
            answer[name] = {
                number: self._row(
                    name,
                    int(number),
                    partial(_first_since, timestamp),
                    any_node=body.get("any_node", False),
                )
                for number, timestamp in partitions.items()
            }
        ids = {name: self.cluster.topics[name].topic_id for name in answer}
        return web.json_response({"offsets": answer, "topic_ids": ids})

    def _row(
        self, name: str, number: int, tell: Callable[[FakePartition], Any], *, any_node: bool
    ) -> Any:
        """The leader's row of a partition; with `any_node`, an error of its own."""
        try:
            partition = self.cluster.partition(name, number)
            if not any_node:
                partition = self._led(name, number)
        except LogError as error:
            if not any_node:
                raise
            return _row_error(error.entry, error.message)
        if partition.leader < 0:
            return _row_error(NO_LEADER, NO_LEADER.message)
        return tell(partition)

    async def producer_ids(self, _: web.Request, __: Fault) -> web.Response:
        self.cluster.next_producer_id += 1
        return web.json_response(
            {"producer_id": self.cluster.next_producer_id, "producer_epoch": 0}
        )

    async def delete_records(self, request: web.Request, _: Fault) -> web.Response:
        results = []
        for name, partitions in orjson.loads(await request.read())["offsets"].items():
            for number, offset in partitions.items():
                result = {"topic": name, "partition": int(number), "log_start_offset": -1}
                try:
                    partition = self._led(name, int(number))
                except LogError as error:
                    result |= {"error_code": error.entry.code, "message": error.message}
                else:
                    start = partition.end_offset if offset == -1 else offset
                    partition.log_start_offset = max(partition.log_start_offset, start)
                    result |= {"log_start_offset": partition.log_start_offset}
                results.append({"error_code": None, "message": None} | result)
        return web.json_response({"results": results})

    async def create_topic(self, request: web.Request, _: Fault) -> web.Response:
        new = orjson.loads(await request.read())
        if new["topic_name"] in self.cluster.topics:
            refuse(TOPIC_EXISTS)
        self.cluster.create_topic(new["topic_name"], new.get("partitions_count", 1))
        return web.json_response({"kind": "KafkaTopic"}, status=201)

    def _readable(self, wanted: dict[str, Any], want: dict[str, Any]) -> tuple[FakePartition, int]:
        """A partition to fetch from this node, and its end here; LogError NO_LEADER."""
        found = self.cluster.partition(want["topic"], want["partition"])
        end = found.follower_ends.get(self.broker_id, found.end_offset)
        is_follower = found.leader != self.broker_id and self.broker_id in found.replicas
        if wanted.get("any_replica") and is_follower and want["offset"] <= end:
            return found, end
        return self._led(want["topic"], want["partition"]), found.end_offset

    def _led(self, topic: str, partition: int) -> FakePartition:
        found = self.cluster.partition(topic, partition)
        if found.leader != self.broker_id:
            raise LogError(NO_LEADER, f"{topic}-{partition} is led by {found.leader}.")
        return found


def _stable_part(
    partition: FakePartition, start: int, end: int
) -> tuple[Offset | None, list[AbortedTransaction]]:
    """Only what a frame of a read_committed answer must say."""
    aborted = [
        AbortedTransaction(ProducerId(producer_id), Offset(first))
        for producer_id, first, marker in partition.aborted
        if first < end and marker >= start
    ]
    stable = partition.last_stable_offset
    if not aborted and stable == partition.end_offset:
        return None, []
    return Offset(stable), aborted


def _by_batch(frame: FetchFrame) -> list[FetchFrame]:
    """A frame for each of its batches."""
    if frame.error_code or not frame.data:
        return [frame]
    return [
        frame._replace(data=batch.data, next_offset=batch.header.next_offset)
        for batch in iterate_batches(frame.data)
    ]


def _first_since(timestamp_ms: int, partition: FakePartition) -> dict[str, int] | None:
    for data in partition.batches:
        batch = RecordBatch(parse_header(data), data)
        for record in decode(batch, decompressed_bytes_max=1 << 28):
            if (record.timestamp or 0) >= timestamp_ms:
                return {"offset": record.offset, "timestamp": record.timestamp or 0}
    return None


def topic_json(topic: FakeTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": None,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replicas or [partition.leader],
                "isr": partition.replicas or [partition.leader]
                if partition.isr is None
                else partition.isr,
            }
            for partition in topic.partitions
        ],
    }


def _row_error(entry: ErrorEntry, message: str) -> dict[str, Any]:
    """A row of offsets, or of times: the client ignores the other's fields."""
    names = ("beginning_offset", "end_offset", "high_watermark", "last_stable_offset")
    offsets = dict.fromkeys((*names, "offset", "timestamp"), -1)
    return {**offsets, "error_code": entry.code, "message": message}


def refuse(entry: ErrorEntry) -> NoReturn:
    raise LogError(entry)


def _drop(request: web.Request) -> None:
    """Break the connection as a crash would."""
    assert request.transport is not None
    request.transport.abort()


def all_values(partitions: Sequence[FakePartition]) -> list[bytes | None]:
    return [value for partition in partitions for value in partition.values()]
