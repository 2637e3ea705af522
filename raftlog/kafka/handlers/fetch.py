"""Fetch returns the stored batches of many partitions, as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from raftlog.broker.fetch import Fetched, Isolation, MultiFetch, RoutedFetch
from raftlog.broker.limits import address_group
from raftlog.kafka.call import Call
from raftlog.kafka.handlers.brokers import current_leader
from raftlog.kafka.handlers.names import (
    FENCED_LEADER_EPOCH,
    code,
    epoch_error,
    partition_code,
    topic_name,
)
from raftlog.kafka.messages import fetch as messages
from raftlog.record.errors import NO_LEADER, LogError
from raftlog.record.types import Buffer, Offset, PartitionId

FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
FIRST_EPOCHS: Final = (-1, 0)
"""Session epochs of a full fetch. -1 is without a session, 0 requests a session, which never
begins."""
PARTITIONS_PER_TURN: Final = 256
ROOM_BYTES_MIN: Final = 1 << 20
"""Least bytes of the budget for a response with data. Its first batch is whole."""
LONE_BYTES: Final = 1 << 16
"""Bytes of a response to an address that holds nothing while the budget is full."""
ROOM_POLLS: Final = 50
ROOM_POLL_S: Final = 0.02
"""Seconds between two checks for room in the budget."""
CHUNK_BYTES: Final = 1 << 20
"""Bytes of one read, as many as clients fetch of a partition by default. No chunks are joined
then."""


class _Part:
    """One partition of the response."""

    __slots__ = ("error_code", "fetched", "pieces", "wanted")

    def __init__(self, wanted: messages.FetchPartition) -> None:
        self.wanted = wanted
        self.error_code = 0
        self.fetched: Fetched | None = None
        """Offsets of the first chunk."""
        self.pieces: list[Buffer] = []


async def fetch(call: Call, request: messages.FetchRequest) -> messages.FetchResponse:
    """1. Waits for `min_bytes`, then returns the batches there are, in the request's order."""
    if request.session_id:
        # There are no fetch sessions (KIP-227) here. The client continues with full fetches.
        return messages.FetchResponse(error_code=FETCH_SESSION_ID_NOT_FOUND)
    if request.session_epoch not in FIRST_EPOCHS:
        return messages.FetchResponse(error_code=INVALID_FETCH_SESSION_EPOCH)
    broker = call.broker
    isolation = Isolation.READ_COMMITTED if request.isolation_level == 1 else _UNCOMMITTED
    count = sum(len(topic.partitions) for topic in request.topics)
    plan = _plan(call, count, isolation)
    topics: list[tuple[messages.FetchTopic, str, list[_Part]]] = []
    parts: dict[tuple[str, int], _Part] = {}
    seen = 0
    for topic in request.topics:
        rows: list[_Part] = []
        try:
            name, error_code = topic_name(broker, topic.topic, topic.topic_id), 0
        except LogError as error:
            name, error_code = "", code(error)
        topics.append((topic, name, rows))
        for wanted in topic.partitions:
            seen += 1
            if seen % PARTITIONS_PER_TURN == 0:
                await broker.turns.wait()
            part = _Part(wanted)
            rows.append(part)
            part.error_code = error_code or epoch_error(
                broker, name, wanted.partition, wanted.current_leader_epoch
            )
            if not part.error_code and (name, wanted.partition) not in parts:
                parts[name, wanted.partition] = part
                plan.add(
                    name,
                    PartitionId(wanted.partition),
                    Offset(wanted.fetch_offset),
                    # A partition without bytes has its first batch all the same (KIP-74).
                    max_bytes=max(wanted.partition_max_bytes, 1),
                )
    # With an error the response leaves at once.
    wait_s = max(request.max_wait_ms, 0) / 1000 if parts and len(parts) == seen else 0.0
    if plan.is_at_end():
        await plan.wait(min_bytes=request.min_bytes, timeout_s=wait_s)
    max_bytes = 0 if plan.is_at_end() else max(request.max_bytes, 1)
    return await _read(call, plan, parts, max_bytes, partial(_response, call, topics, isolation))


def _plan(call: Call, count: int, isolation: Isolation) -> MultiFetch | RoutedFetch:
    """A fetch of `count` partitions, of this node or (for a gateway) of all."""
    service = call.broker.fetch
    if call.any_node:
        return service.routed(call.principal, count, isolation=isolation)
    return service.fetch(
        call.principal, count, any_replica=False, isolation=isolation, chunk_bytes=CHUNK_BYTES
    )


async def _read(
    call: Call,
    plan: MultiFetch | RoutedFetch,
    parts: dict[tuple[str, int], _Part],
    max_bytes: int,
    build: Callable[[], Awaitable[messages.FetchResponse]],
) -> messages.FetchResponse:
    """Read the partitions, within the bytes that the client's address may hold.

    The response's bytes are reserved from the budget before they are read, until the client has
    them. So many slow readers hold no more than one address may.
    """
    budget, group = call.broker.bytes_in_flight, address_group(call.address)
    wanted = min(max_bytes, sum(part.wanted.partition_max_bytes for part in parts.values()))
    taken = await _room(call, group, wanted) if max_bytes > 0 else 0
    budget.force_reserve(taken, group)
    try:
        async for partition, fetched in plan.chunks(min(max_bytes, taken)):
            part = parts[partition.topic, partition.number]
            if part.fetched is None:
                part.fetched = fetched
            if partition.error is not None:
                part.error_code = partition_code(partition.error)
            elif fetched.data:
                part.pieces.append(fetched.data)
                part.fetched = fetched if len(part.pieces) == 1 else _merged(part.fetched, fetched)
        return await build()
    finally:
        # The connection reserves the bytes of the response before another task runs.
        budget.release(taken, group)


async def _response(
    call: Call,
    topics: Sequence[tuple[messages.FetchTopic, str, list[_Part]]],
    isolation: Isolation,
) -> messages.FetchResponse:
    nodes: dict[int, messages.NodeEndpoint] = {}
    responses: list[messages.FetchableTopicResponse] = []
    count = 0
    for topic, name, rows in topics:
        partitions: list[messages.PartitionData] = []
        for part in rows:
            count += 1
            if count % PARTITIONS_PER_TURN == 0:
                await call.broker.turns.wait()
            partitions.append(_answer(call, name, part, isolation, nodes))
        responses.append(
            messages.FetchableTopicResponse(topic.topic, topic.topic_id, tuple(partitions))
        )
    return messages.FetchResponse(responses=tuple(responses), node_endpoints=tuple(nodes.values()))


async def _room(call: Call, group: str, wanted: int) -> int:
    """Bytes that the response may have now. 0 means that the address held its share for a while.

    Then the response has no data, and the client fetches again. An address that holds nothing gets
    a few bytes in any case, because others may hold the whole budget.
    """
    broker, budget = call.broker, call.broker.bytes_in_flight
    most = min(max(wanted, ROOM_BYTES_MIN), broker.fetch.settings.response_bytes_max)
    least = min(ROOM_BYTES_MIN, budget.per_client_max // 4)
    for _ in range(ROOM_POLLS):
        room = budget.room(group)
        if room >= least:
            return min(most, room)
        if not budget.used_by(group):
            return min(most, LONE_BYTES)
        if broker.closing.is_set():
            break
        await asyncio.sleep(ROOM_POLL_S)
    return 0


_UNCOMMITTED: Final = Isolation.READ_UNCOMMITTED


def _merged(first: Fetched, later: Fetched) -> Fetched:
    """Offsets of both chunks."""
    aborted = dict.fromkeys((*first.aborted, *later.aborted))
    return Fetched(
        data=first.data,
        next_offset=later.next_offset,
        high_watermark=later.high_watermark,
        log_start_offset=later.log_start_offset,
        last_stable_offset=later.last_stable_offset,
        aborted=tuple(aborted),
    )


def _answer(
    call: Call,
    name: str,
    part: _Part,
    isolation: Isolation,
    nodes: dict[int, messages.NodeEndpoint],
) -> messages.PartitionData:
    number, fetched = part.wanted.partition, part.fetched
    if part.error_code or fetched is None:
        leader = messages.LeaderIdAndEpoch()
        moved = NO_LEADER.kafka_code, FENCED_LEADER_EPOCH
        if part.error_code in moved and name:
            leader = _leader(call, name, number, nodes)
        return messages.PartitionData(
            number, part.error_code, -1, aborted_transactions=None, current_leader=leader
        )
    aborted = None
    if isolation is Isolation.READ_COMMITTED:
        aborted = tuple(messages.AbortedTransaction(*each) for each in fetched.aborted)
    pieces = part.pieces
    return messages.PartitionData(
        partition_index=number,
        error_code=0,
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        log_start_offset=fetched.log_start_offset,
        aborted_transactions=aborted,
        records=pieces[0] if len(pieces) == 1 else b"".join(pieces),
    )


def _leader(
    call: Call, name: str, number: int, nodes: dict[int, messages.NodeEndpoint]
) -> messages.LeaderIdAndEpoch:
    """The leader that a response names (KIP-951). Its address is added to `nodes`."""
    known = current_leader(call, name, number) if call.version >= 16 else None
    if known is None:
        return messages.LeaderIdAndEpoch()
    endpoint = known.endpoint
    nodes[endpoint.broker_id] = messages.NodeEndpoint(
        endpoint.broker_id, endpoint.host, endpoint.port, endpoint.rack
    )
    return messages.LeaderIdAndEpoch(endpoint.broker_id, known.epoch)
