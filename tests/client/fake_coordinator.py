"""`/v1/groups` and `/v1/transactions` of the fake cluster: HTTP around the two coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web

from raftlog.api.groups import (
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    CommittedPartition,
    CommittedRequest,
    CommittedResponse,
    DeleteOffsetsRequest,
    GroupDescription,
    GroupList,
    GroupListing,
    GroupMember,
    GroupOffset,
    HeartbeatRequest,
    ResetPartition,
    ResetRequest,
    ResetResponse,
)
from raftlog.api.transactions import (
    EndRequest,
    InitRequest,
    TransactionDescription,
    TransactionList,
    TransactionListing,
    TransactionOffsets,
    TransactionPartition,
)
from raftlog.record.batch import RecordBatch
from raftlog.record.errors import GROUP_NOT_EMPTY, OFFSET_SUPERSEDED, UNKNOWN_GROUP, LogError
from tests.client.fake_groups import FakeGroup, FakeOffset
from tests.client.fake_partition import FakePartition
from tests.client.fake_transactions import FakeTransactions

if TYPE_CHECKING:
    from tests.client.fake_node import FakeCluster

T = TypeVar("T")


class _Topics(Mapping[str, tuple[str, int]]):
    """Id and partition count of the cluster's topics, as of now."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def __getitem__(self, name: str) -> tuple[str, int]:
        topic = self._cluster.topics[name]
        return topic.topic_id, len(topic.partitions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._cluster.topics)

    def __len__(self) -> int:
        return len(self._cluster.topics)


class FakeCoordinator:
    """The coordinator of every group and transactional id, behind every node."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.groups: dict[str, FakeGroup] = {}
        self.transactions = FakeTransactions(self._new_producer_id)
        self.holds_heartbeats = True
        self._changed = asyncio.Event()
        """Set, and replaced, with each heartbeat."""

    def routes(self) -> list[tuple[str, str, Callable[..., Any]]]:
        group, transaction = "/v1/groups/{group}", "/v1/transactions/{id}"
        return [
            ("POST", f"{group}/heartbeat", self.heartbeat),
            ("POST", f"{group}/offsets", self.commit),
            ("POST", f"{group}/committed", self.committed),
            ("POST", f"{group}/reset", self.reset),
            ("POST", f"{group}/offsets/delete", self.delete_offsets),
            ("GET", "/v1/groups", self.list_groups),
            ("GET", group, self.describe_group),
            ("DELETE", group, self.delete_group),
            ("POST", f"{transaction}/init", self.init),
            ("POST", f"{transaction}/commit", self.commit_transaction),
            ("POST", f"{transaction}/abort", self.abort),
            ("POST", f"{transaction}/prepare", self.prepare),
            ("POST", f"{transaction}/offsets", self.add_offsets),
            ("POST", f"{transaction}/fence", self.fence),
            ("GET", "/v1/transactions", self.list_transactions),
            ("GET", transaction, self.describe_transaction),
        ]

    def group(self, name: str) -> FakeGroup:
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = FakeGroup(_Topics(self.cluster))
        return found

    # Groups

    async def heartbeat(self, request: web.Request, _: object) -> web.Response:
        body = await _decoded(request, HeartbeatRequest)
        group = self.group(request.match_info["group"])
        loop = asyncio.get_running_loop()
        deadline = loop.time() + body.max_wait_ms / 1000
        while (
            self.holds_heartbeats
            and loop.time() < deadline
            and not group.has_news(body.member_id, loop.time())
        ):
            # Sessions end and topics grow without an event.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.02)
        if request.transport is None:
            # The client has given up this heartbeat.
            return web.Response()
        response = group.heartbeat(body, loop.time())
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return _answer(response)

    async def commit(self, request: web.Request, _: object) -> web.Response:
        body = await _decoded(request, CommitRequest)
        superseded = self.group(request.match_info["group"]).commit(body, _now())
        return _answer(
            CommitResponse(
                [
                    CommittedPartition(
                        one.topic,
                        one.partition,
                        OFFSET_SUPERSEDED.code
                        if (one.topic, one.partition) in superseded
                        else None,
                    )
                    for one in body.offsets
                ]
            )
        )

    async def committed(self, request: web.Request, _: object) -> web.Response:
        body = await _decoded(request, CommittedRequest)
        group = self.group(request.match_info["group"])
        wanted = (
            list(group.offsets)
            if body.topics is None
            else [(name, n) for name, numbers in body.topics.items() for n in numbers]
        )
        return _answer(CommittedResponse([self._row(group, *one) for one in wanted]))

    def _row(self, group: FakeGroup, topic: str, partition: int) -> CommittedOffset:
        try:
            found = group.committed(topic, partition)
        except LogError as error:
            return CommittedOffset(
                topic, partition, -1, error_code=error.entry.code, message=error.message
            )
        if found is None:
            return CommittedOffset(topic, partition, -1)
        return CommittedOffset(
            topic, partition, found.offset, metadata=found.metadata, topic_id=found.topic_id
        )

    async def reset(self, request: web.Request, _: object) -> web.Response:
        body = await _decoded(request, ResetRequest)
        group = self._known(request)
        if group.members:
            raise LogError(GROUP_NOT_EMPTY)
        rows = []
        for topic, partition in list(group.offsets):
            before = group.offsets[topic, partition].offset
            led = self.cluster.partition(topic, partition)
            offset = led.log_start_offset if body.to == "earliest" else led.end_offset
            if body.to_offset is not None:
                offset = body.to_offset
            if body.shift_by is not None:
                offset = before + body.shift_by
            rows.append(ResetPartition(topic, partition, before, offset))
            if not body.validate_only:
                group.offsets[topic, partition] = FakeOffset(offset)
        return _answer(ResetResponse(not body.validate_only, rows))

    async def delete_offsets(self, request: web.Request, _: object) -> web.Response:
        body = await _decoded(request, DeleteOffsetsRequest)
        group = self._known(request)
        for topic, partition in list(group.offsets):
            numbers = body.topics.get(topic, [])
            if topic in body.topics and (numbers is None or partition in numbers):
                del group.offsets[topic, partition]
        return web.json_response({})

    async def list_groups(self, _: web.Request, __: object) -> web.Response:
        return _answer(
            GroupList(
                [
                    GroupListing(
                        name,
                        "consumer",
                        "stable" if group.members else "empty",
                        len(group.members),
                        1,
                    )
                    for name, group in self.groups.items()
                ]
            )
        )

    async def describe_group(self, request: web.Request, _: object) -> web.Response:
        name = request.match_info["group"]
        group = self._known(request)
        members = [
            GroupMember(
                one.member_id,
                one.epoch,
                one.instance_id,
                "client",
                "/127.0.0.1",
                "stable",
                list(one.topics),
                one.pattern,
                group._named(one.assigned),
                group._named(group.target.get(one.member_id, ())),
                one.report and one.report.position,
                one.report and one.report.endpoint,
            )
            for one in group.members.values()
        ]
        offsets = [
            GroupOffset(topic, number, found.offset, end, end - found.offset)
            for (topic, number), found in group.offsets.items()
            for end in (self.cluster.partition(topic, number).end_offset,)
        ]
        state = "stable" if members else "empty"
        return _answer(
            GroupDescription(name, "consumer", state, group.epoch, "uniform", 1, members, offsets)
        )

    async def delete_group(self, request: web.Request, _: object) -> web.Response:
        self._known(request).delete()
        del self.groups[request.match_info["group"]]
        return web.json_response({})

    def _known(self, request: web.Request) -> FakeGroup:
        found = self.groups.get(request.match_info["group"])
        if found is None:
            raise LogError(UNKNOWN_GROUP)
        return found

    # Transactions

    def check_batches(
        self, transactional_id: str, partition: FakePartition, batches: Sequence[RecordBatch]
    ) -> None:
        self.transactions.check_batches(transactional_id, partition, batches, _now())

    async def init(self, request: web.Request, _: object) -> web.Response:
        body = await _decoded(request, InitRequest)
        found = self.transactions.init(request.match_info["id"], body, _now())
        return _answer(found.answer())

    async def commit_transaction(self, request: web.Request, _: object) -> web.Response:
        return await self._end(request, is_commit=True)

    async def abort(self, request: web.Request, _: object) -> web.Response:
        return await self._end(request, is_commit=False)

    async def _end(self, request: web.Request, *, is_commit: bool) -> web.Response:
        body = await _decoded(request, EndRequest)
        found = self.transactions.get(request.match_info["id"], _now())
        found.end(body, is_commit=is_commit)
        return _answer(found.answer())

    async def prepare(self, request: web.Request, _: object) -> web.Response:
        body = await _decoded(request, EndRequest)
        found = self.transactions.get(request.match_info["id"], _now())
        found.prepare(body)
        return _answer(found.answer())

    async def add_offsets(self, request: web.Request, _: object) -> web.Response:
        body = await _decoded(request, TransactionOffsets)
        found = self.transactions.get(request.match_info["id"], _now())
        group = self.group(body.group)
        found.check(body.producer_id, body.producer_epoch)
        group.check_commit(body.member_id, body.member_epoch, _now())
        found.add(body.producer_id, body.producer_epoch, _now())
        group.add_to_transaction(body.producer_id, body.offsets)
        found.groups[body.group] = group
        return _answer(
            CommitResponse([CommittedPartition(one.topic, one.partition) for one in body.offsets])
        )

    async def fence(self, request: web.Request, _: object) -> web.Response:
        self.transactions.get(request.match_info["id"], _now()).fence()
        return web.json_response({})

    async def list_transactions(self, _: web.Request, __: object) -> web.Response:
        return _answer(
            TransactionList(
                [
                    TransactionListing(name, one.producer_id, one.epoch, one.state, 1, 0)
                    for name, one in self.transactions.by_id.items()
                ]
            )
        )

    async def describe_transaction(self, request: web.Request, _: object) -> web.Response:
        name = request.match_info["id"]
        found = self.transactions.get(name, _now())
        return _answer(
            TransactionDescription(
                name,
                found.producer_id,
                found.epoch,
                found.state,
                1,
                int(found.timeout_s * 1000),
                0,
                0,
                0,
                [TransactionPartition(*one) for one in found.partitions],
            )
        )

    def _new_producer_id(self) -> int:
        self.cluster.next_producer_id += 1
        return self.cluster.next_producer_id


async def _decoded(request: web.Request, kind: type[T]) -> T:
    return msgspec.json.decode(await request.read(), type=kind)


def _answer(body: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def _now() -> float:
    return asyncio.get_running_loop().time()
