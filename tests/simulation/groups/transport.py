"""The way of a client's requests: a network, and the REST face's handlers on the nodes.

In the place of `raftlog_client.transport.Transport`. A request may be delayed or get lost, and so
may its answer; what a client no longer waits for goes on, except where the face's route ends it
with the connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
from raftlog_client.errors import ConnectionLostError, ServerError

from raftlog.api.cluster import (
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from raftlog.api.groups import CommitRequest, CommitResponse, CommittedResponse, HeartbeatRequest
from raftlog.broker.authorize import ANONYMOUS, allow_all
from raftlog.broker.groups import GroupService
from raftlog.broker.limits import BrokerSettings
from raftlog.broker.offsets import OffsetService
from raftlog.broker.shared import Closing
from raftlog.node.assembly import NodeCore
from raftlog.record.errors import (
    FENCED_MEMBER_EPOCH,
    NOT_READY,
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.rest.v1 import groups as v1_groups
from tests.simulation.groups.ledger import Heard, Ledger, Lookup, Place
from tests.simulation.life import Life, NodeDiedError
from tests.simulation.node_world import NodeWorld

T = TypeVar("T")

SETTINGS: Final = BrokerSettings(
    auto_create_topics=False,
    bytes_in_flight_max=1 << 26,
    requests_in_flight_max=10_000,
    response_bytes_max=1 << 20,
    long_poll_s_max=30.0,
    partitions_per_request_max=10_000,
    topic_labels_max=10,
)
REQUEST_TIMEOUT_MS: Final = 10_000.0
LATENCY_S: Final = 0.002
LATE_S: Final = ((0.0, 1.0), (4.0, 7.0))
"""Long delays: shorter, or longer, than a client waits for a commit's answer."""
LOST_S: Final = 60.0
"""A client gives up before a lost message is known to be lost."""

METADATA: Final = "/v1/metadata?topics="

_ROUTES: Final = {
    route.path.removeprefix("/v1/groups/{group}/"): route
    for route in v1_groups.ROUTES
    if route.method == "POST"
}


def metadata_of(core: NodeCore, topic: str) -> MetadataResponse:
    """A topic's leaders, as the node knows them. A node's host is its id."""
    image = core.services.metadata.image
    found = image.topics_by_name.get(topic)
    rows = () if found is None else found.partitions
    return MetadataResponse(
        cluster_id="",
        controller_id=-1,
        brokers=[MetadataBroker(node_id, str(node_id), 0) for node_id in sorted(image.brokers)],
        topics=[
            MetadataTopic(
                topic,
                None if found is None else found.topic_id,
                UNKNOWN_TOPIC.code if found is None else None,
                [
                    MetadataPartition(
                        row.partition, row.leader, row.leader_epoch, row.replicas, row.isr
                    )
                    for row in rows
                ],
            )
        ],
    )


@dataclass
class Face:
    """The services of groups on all nodes, and the network in front."""

    nodes: NodeWorld
    ledger: Ledger
    late: float = 0.0
    """Share of the requests, and of the answers, that are delayed for long."""
    late_names: frozenset[str] = frozenset(_ROUTES)
    """The requests that may be."""
    _services: dict[int, tuple[NodeCore, GroupService]] = field(default_factory=dict)

    def groups(self, core: NodeCore) -> GroupService:
        """The service of a running node."""
        node_id = int(core.services.node_id)
        known = self._services.get(node_id)
        if known is None or known[0] is not core:
            offsets = OffsetService(core.services, SETTINGS, allow_all)
            service = GroupService(core.services, offsets, allow_all, Closing())
            known = self._services[node_id] = (core, service)
        return known[1]

    async def call(self, node_id: int, work: Callable[[GroupService], Coroutine[Any, Any, T]]) -> T:
        """An operator's request. Raises LogError, NodeDiedError."""

        async def serve(core: NodeCore) -> T:
            if core.not_ready is not None:
                raise LogError(NOT_READY, core.not_ready)
            return await work(self.groups(core))

        return await self.nodes.call(node_id, lambda core: Deferred(serve, core))  # type: ignore[arg-type,return-value]


@dataclass
class Deferred:
    """Creates the coroutine only when awaited: a node that dies first leaves none behind."""

    serve: Callable[[NodeCore], Coroutine[Any, Any, Any]]
    core: NodeCore

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.serve(self.core).__await__()

    def close(self) -> None:
        """There is nothing to close."""


@dataclass
class ClientTransport:
    """One client's connections to all nodes."""

    face: Face
    life: Life | None
    chance: random.Random
    unreachable: set[int] = field(default_factory=set)
    """Nodes that the client does not reach, nor they the client."""
    request_timeout_s: float = REQUEST_TIMEOUT_MS / 1000

    async def call(
        self,
        address: str,
        _method: str,
        path: str,
        _kind: type[T],
        body: msgspec.Struct | None = None,
        *,
        timeout_s: float,
    ) -> T:
        """Like `Transport.call`."""
        loop = asyncio.get_running_loop()
        if path.startswith(METADATA):
            subject, name, ends_with_connection = path.removeprefix(METADATA), METADATA, False
        else:
            subject, name = path.removeprefix("/v1/groups/").split("/", 1)
            ends_with_connection = _ROUTES[name].cancel_on_disconnect
        exchange = loop.create_task(
            self._exchange(int(address.partition(":")[0]), unquote(subject), name, body),
            context=contextvars.Context(),
        )

        def close() -> None:
            if ends_with_connection:
                exchange.cancel()

        if self.life is not None:
            self.life.on_end(close)
        try:
            await asyncio.wait((exchange,), timeout=timeout_s)
        finally:
            if self.life is not None:
                self.life.forget_on_end(close)
            if not exchange.done():
                close()
        if not exchange.done():
            raise ConnectionLostError("no answer in time", outcome_unknown=True)
        answer = exchange.result()
        if answer is None:
            raise ConnectionLostError("the connection broke", outcome_unknown=True)
        if isinstance(answer, LogError):
            raise ServerError(answer.entry, answer.message)
        result: T = answer
        return result

    async def _travel(self, node_id: int, name: str) -> None:
        late = self.chance.random() < self.face.late and name in self.face.late_names
        latency_s = self.chance.uniform(*self.chance.choice(LATE_S)) if late else LATENCY_S
        await asyncio.sleep(LOST_S if node_id in self.unreachable else latency_s)

    async def _exchange(self, node_id: int, group: str, name: str, body: Any) -> Any:
        """The answer or error; None if the connection breaks."""
        ledger, loop = self.face.ledger, self.face.nodes.world.loop
        sent, sent_s = ledger.step(), loop.now
        attempt = None
        if isinstance(body, CommitRequest):
            offsets = {(one.topic, one.partition): int(one.offset) for one in body.offsets}
            attempt = ledger.attempt(group, body.member_id, body.member_epoch, offsets)
            for one in body.offsets:
                place = Place(group, one.topic, one.topic_id or "", one.partition)
                if body.member_id and ledger.processed(place).end < one.offset:
                    ledger.complain(f"{place}: {one.offset} is ahead of what was processed")
            numbered = [
                msgspec.structs.replace(one, metadata=str(attempt.number)) for one in body.offsets
            ]
            body = msgspec.structs.replace(body, offsets=numbered)
        if isinstance(body, HeartbeatRequest):
            ledger.newest[group, body.member_id] = sent
            if body.member_epoch < 0:
                ledger.removed[group, body.member_id] = "left"
        await self._travel(node_id, name)
        request = SimpleNamespace(
            body=body, path_parameters={"group": group}, principal=ANONYMOUS, remote="client"
        )

        async def serve(core: NodeCore) -> Any:
            if core.not_ready is not None:
                raise LogError(NOT_READY, core.not_ready)
            if name == METADATA:
                return metadata_of(core, group)
            context = SimpleNamespace(broker=SimpleNamespace(groups=self.face.groups(core)))
            return await _ROUTES[name].handler(request, context)  # type: ignore[arg-type]

        try:
            answer: Any = await self.face.nodes.call(
                node_id,
                lambda core: Deferred(serve, core),  # type: ignore[arg-type,return-value]
            )
        except NodeDiedError:
            return None
        except LogError as error:
            answer = error
        self.face.nodes.world.trace(f"{self.life} {sent} by {node_id}: {body}: {answer}")
        if isinstance(body, HeartbeatRequest):
            is_newest = ledger.newest[group, body.member_id] == sent
            self._note_heartbeat(group, body, answer, sent_s, is_newest=is_newest)
        elif isinstance(answer, CommitResponse) and attempt is not None:
            attempt.ended = {
                (row.topic, row.partition): ledger.step()
                for row in answer.results
                if row.error_code is None
            }
        elif isinstance(answer, CommittedResponse):
            ended = ledger.step()
            ledger.lookups += [
                Lookup(group, row.topic, row.partition, row.offset, row.metadata, sent, ended)
                for row in answer.offsets
                if row.error_code is None
            ]
        await self._travel(node_id, name)
        return answer

    def _note_heartbeat(
        self, group: str, body: HeartbeatRequest, answer: Any, sent_s: float, *, is_newest: bool
    ) -> None:
        ledger = self.face.ledger
        if isinstance(answer, LogError):
            # A lost answer may cost a member its epoch (FENCED_MEMBER_EPOCH), never its session.
            # The refusal of a late copy reaches no client. A mere heartbeat may meet an epoch that
            # a late copy of an earlier one moved on: the member repeats all its state, and has lost
            # nothing unless that report is refused, too.
            is_fenced = answer.entry is UNKNOWN_MEMBER or (
                answer.entry is FENCED_MEMBER_EPOCH and body.sequence > 0
            )
            if is_fenced and is_newest and body.member_epoch > 0:
                now_s = self.face.nodes.world.loop.now
                ledger.fenced(group, body.member_id, now_s, answer.message)
        elif answer.member_epoch > 0:
            heard = Heard(sent_s, answer.session_timeout_ms / 1000)
            ledger.answered(group, body.member_id, heard)


async def take_body(request: Any, _context: object, _decoder: object) -> Any:
    """In the place of `read_json`: requests travel as they are."""
    return request.body


def give_body(answer: Any) -> Any:
    """In the place of `json_response`."""
    return answer
