"""The /v1 routes produce and fetch stored record batches of many partitions in one request.

They serve clients that know the leaders. A partition led elsewhere fails with 50301. Each partition
has its own outcome.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from raftlog.api.records import FetchRequest, LeaderAddress, ProduceResult, ProduceResults
from raftlog.broker.fetch import FETCH_FRAME_BYTES, Fetched, Isolation, PartitionFetch
from raftlog.broker.produce import FRAMES_PER_TURN, BatchesAppended
from raftlog.broker.service import Broker
from raftlog.http.body import read_body, read_json
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import (
    bytes_response,
    json_response,
    require_media_type,
    stream_response,
    write_pieces,
)
from raftlog.http.routing import Route
from raftlog.record import errors
from raftlog.record.errors import LogError
from raftlog.record.frames import (
    BATCHES_MEDIA_TYPE,
    FetchFrame,
    ProduceFrame,
    encode_fetch_frame,
    parse_produce_frames,
)
from raftlog.record.types import Buffer, Offset, PartitionId
from raftlog.rest.json.produce_options import TRANSACTIONAL_QUERY, transactional_options
from raftlog.rest.v2.topics import ISOLATIONS

PARTITIONS_PER_TURN: Final = 256
"""Partitions resolved or written out in one turn. Errors alone take 2 ms."""

_fetch_decoder = msgspec.json.Decoder(FetchRequest)


async def produce_batches(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/produce. Each frame is written whole or not at all, with its own result."""
    require_media_type(request, (BATCHES_MEDIA_TYPE,))
    options = transactional_options(request, context.limits)
    body = await read_body(request, context)
    broker = context.broker
    frames: list[ProduceFrame] = []
    for frame in parse_produce_frames(body, frames_max=context.limits.partitions_per_request_max):
        frames.append(frame)
        if len(frames) % FRAMES_PER_TURN == 0:
            await broker.turns.wait()
    outcomes = await broker.produce.append_batches(request.principal, frames, options)
    results = []
    for index, (frame, outcome) in enumerate(zip(frames, outcomes, strict=True), start=1):
        if index % PARTITIONS_PER_TURN == 0:
            await broker.turns.wait()
        results.append(_result(frame, outcome, broker))
    return json_response(ProduceResults(results))


def _result(
    frame: ProduceFrame, outcome: BatchesAppended | LogError, broker: Broker
) -> ProduceResult:
    if isinstance(outcome, LogError):
        return _failed(frame.topic, frame.partition, outcome, broker)
    return ProduceResult(
        topic=frame.topic,
        partition=frame.partition,
        base_offset=outcome.base_offset,
        last_offset=outcome.last_offset,
        log_append_time=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start_offset,
    )


def _failed(topic: str, number: PartitionId, error: LogError, broker: Broker) -> ProduceResult:
    leader: LeaderAddress | msgspec.UnsetType = msgspec.UNSET
    epoch: int | msgspec.UnsetType = msgspec.UNSET
    if error.entry is errors.NO_LEADER:
        epoch, node = broker.produce.current_leader(topic, number)
        # The node names no other leader while the metadata names itself as the leader.
        if node is not None and node.broker_id != broker.node_id:
            leader = LeaderAddress(node.broker_id, node.host, node.port)
    return ProduceResult(
        topic,
        number,
        error_code=error.entry.code,
        message=error.message,
        leader=leader,
        leader_epoch=epoch,
    )


async def fetch_batches(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/fetch. Each partition has one or more frames. An error is also a frame."""
    body = await read_json(request, context, _fetch_decoder)
    if not body.partitions:
        raise LogError(errors.INVALID_BODY, "The body is not valid: there are no partitions.")
    isolation = ISOLATIONS[body.isolation]
    fetch = context.broker.fetch.fetch(
        request.principal, len(body.partitions), any_replica=body.any_replica, isolation=isolation
    )
    turns = context.broker.turns
    for index, wanted in enumerate(body.partitions, start=1):
        if index % PARTITIONS_PER_TURN == 0:
            await turns.wait()
        fetch.add(
            wanted.topic,
            PartitionId(wanted.partition),
            wanted.offset,
            max_bytes=wanted.max_bytes,
            end_offset=wanted.end_offset,
            topic_id=wanted.topic_id,
        )
    if fetch.is_at_end():
        await fetch.wait(min_bytes=body.min_bytes, timeout_s=body.max_wait_ms / 1000)
    pieces: list[Buffer] = []
    size = held = 0
    response: web.StreamResponse | None = None
    count = 0
    async for partition, fetched in fetch.chunks(body.max_bytes):
        count += 1
        if count % PARTITIONS_PER_TURN == 0:
            # Errors and empty partitions are written without a wait for anything.
            await turns.wait()
        head, data = encode_fetch_frame(_frame(partition, fetched, isolation))
        pieces += (head, data)
        size += len(head) + len(data)
        if size > held:
            # The bytes stay until the other partitions are read and a slow reader has taken them.
            context.hold(request, size - held)
            held = size
        if size >= FETCH_FRAME_BYTES:
            if response is None:
                response = stream_response(request, BATCHES_MEDIA_TYPE)
                await response.prepare(request)
            await write_pieces(request, response, pieces)
            pieces, size = [], 0
    if response is None:
        return bytes_response(b"".join(pieces), BATCHES_MEDIA_TYPE)
    if pieces:
        await write_pieces(request, response, pieces)
    return response


def _frame(partition: PartitionFetch, fetched: Fetched, isolation: Isolation) -> FetchFrame:
    error = partition.error
    stable: Offset | None = None
    if isolation is Isolation.READ_COMMITTED and error is None:
        is_said = fetched.aborted or fetched.last_stable_offset < fetched.high_watermark
        stable = fetched.last_stable_offset if is_said else None
    return FetchFrame(
        topic=partition.topic,
        partition=partition.number,
        error_code=0 if error is None else error.entry.code,
        high_watermark=fetched.high_watermark,
        log_start_offset=fetched.log_start_offset,
        next_offset=fetched.next_offset,
        data=fetched.data if error is None else error.message.encode(),
        last_stable_offset=stable,
        aborted=fetched.aborted if stable is not None else (),
    )


ROUTES: Final = (
    Route(
        "POST",
        "/v1/produce",
        produce_batches,
        "Write record batches to many partitions. The body has frames (raftlog.record.frames), "
        "each with a separate result.",
        tag="batches",
        query=TRANSACTIONAL_QUERY,
        request_type=bytes,
        request_media_types=(BATCHES_MEDIA_TYPE,),
        response_type=ProduceResults,
        errors=(
            errors.BAD_REQUEST,
            errors.BODY_TOO_LARGE,
            errors.UNSUPPORTED_MEDIA_TYPE,
            errors.INVALID_BODY,
            errors.CORRUPT_BATCH,
            errors.MALFORMED_BATCH,
        ),
    ),
    Route(
        "POST",
        "/v1/fetch",
        fetch_batches,
        "Read record batches of many partitions. The response has frames (raftlog.record.frames),"
        " one or more for each partition, errors included.",
        tag="batches",
        request_type=FetchRequest,
        response_media_types=(BATCHES_MEDIA_TYPE,),
        errors=(errors.INVALID_BODY,),
        cancel_on_disconnect=True,
    ),
)
