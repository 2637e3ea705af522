"""/v1 record batches as they are stored: produce and fetch, many partitions in one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from raftlog.api.records import (
    NO_OFFSET,
    FetchPartition,
    FetchRequest,
    LeaderAddress,
    ProduceResult,
    ProduceResults,
)
from raftlog.http.body import read_body, read_json
from raftlog.http.context import ServerContext
from raftlog.http.request import Request
from raftlog.http.responses import (
    bytes_response,
    json_response,
    require_media_type,
    stream_response,
    write_pieces,
)
from raftlog.record.batch import split_batches
from raftlog.record.errors import INVALID_BODY, NO_LEADER, UNKNOWN_TOPIC, LogError
from raftlog.record.frames import (
    BATCHES_MEDIA_TYPE,
    FetchFrame,
    ProduceFrame,
    encode_fetch_frame,
    parse_produce_frames,
)
from raftlog.record.types import Buffer, Offset, PartitionId
from raftlog.replication.partition import Partition
from raftlog.rest.append import topic_for_produce
from raftlog.rest.produce_options import ProduceOptions, produce_options
from raftlog.rest.v1_offsets import check_partition_count
from raftlog.rest.waiting import wait_for_data

FETCH_CHUNK_BYTES = 256 * 1024
"""Batches are read and sent in chunks of this size: about what a slow reader makes us hold."""


_fetch_decoder = msgspec.json.Decoder(FetchRequest)


async def produce_batches(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/produce. Frames fare apart: each is written whole or not at all, with its result."""
    require_media_type(request, (BATCHES_MEDIA_TYPE,))
    options = produce_options(request, context.limits)
    body = await read_body(request, context)
    frames = parse_produce_frames(body, frames_max=context.limits.partitions_per_request_max)
    if len({frame[:2] for frame in frames}) != len(frames):
        # Two frames would be two appends at the same time, in no certain order.
        raise LogError(INVALID_BODY, "Two frames are of one partition; put its batches into one.")
    if len(frames) == 1:
        results = [await _produce_frame(frames[0], options, context)]
    else:
        results = await asyncio.gather(
            *(_produce_frame(frame, options, context) for frame in frames)
        )
    return json_response(ProduceResults(results))


async def _produce_frame(
    frame: ProduceFrame, options: ProduceOptions, context: ServerContext
) -> ProduceResult:
    topic, number, data = frame
    known = False
    try:
        await topic_for_produce(topic, context)
        known = True
        partition = context.services.replicas.partition(topic, number)
        batches = split_batches(data, max_message_bytes=partition.log.config.max_message_bytes)
        appended = await partition.append(batches, acks=options.acks, timeout_s=options.timeout_s)
    except LogError as error:
        if known:
            counters = context.metrics.topic(topic)
            counters.produce_requests += 1
            counters.failed_produce_requests += 1
        return _refused(topic, number, error, context)
    counters = context.metrics.topic(topic)
    counters.produce_requests += 1
    counters.bytes_in += len(data)
    counters.messages_in += sum(batch.header.record_count for batch in batches)
    first = appended[0]
    return ProduceResult(
        topic,
        number,
        first.base_offset,
        appended[-1].last_offset,
        first.log_append_time_ms,
        partition.log_start_offset,
    )


def _refused(
    topic: str, number: PartitionId, error: LogError, context: ServerContext
) -> ProduceResult:
    leader: LeaderAddress | msgspec.UnsetType = msgspec.UNSET
    epoch: int | msgspec.UnsetType = msgspec.UNSET
    if error.entry is NO_LEADER:
        image = context.services.metadata.image
        row = image.partition(topic, number)
        epoch = row.leader_epoch
        broker = image.brokers.get(row.leader)
        # This node itself is none, if it leads by the metadata and yet refuses.
        if broker is not None and row.leader != context.services.node_id:
            leader = LeaderAddress(broker.broker_id, broker.host, broker.port)
    return ProduceResult(
        topic,
        number,
        error_code=error.entry.code,
        message=error.message,
        leader=leader,
        leader_epoch=epoch,
    )


@dataclass(slots=True)
class _Want:
    """How far the answer has come with one partition."""

    topic: str
    number: PartitionId
    offset: Offset
    bytes_left: int
    partition: Partition | None = None
    error: LogError | None = None
    frames_sent: int = 0
    any_replica: bool = False
    end_offset: Offset | None = None

    def is_done(self) -> bool:
        """Whether no record that is wanted can follow."""
        return self.end_offset is not None and self.offset >= self.end_offset

    def is_at_end(self) -> bool:
        """Whether nothing is to be read now: then a wait makes sense."""
        partition = self.partition
        return (
            partition is not None
            and not self.is_done()
            and partition.high_watermark <= self.offset <= partition.log_end_offset
        )


async def fetch_batches(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/fetch. One or more frames for each partition; errors are frames, too."""
    asked = await read_json(request, context, _fetch_decoder)
    check_partition_count(len(asked.partitions), context)
    if not asked.partitions:
        raise LogError(INVALID_BODY, "The body is not valid: there are no partitions.")
    limits = context.limits
    wants = [_want(one, context, any_replica=asked.any_replica) for one in asked.partitions]
    if all(want.is_at_end() for want in wants):
        await wait_for_data(
            context,
            [(want.partition, want.offset) for want in wants if want.partition is not None],
            timeout_s=min(asked.max_wait_ms, limits.long_poll_ms_max) / 1000,
            min_bytes=asked.min_bytes,
        )
    max_bytes = min(asked.max_bytes or limits.response_bytes_max, limits.response_bytes_max)
    pieces: list[Buffer] = []
    size = 0
    response: web.StreamResponse | None = None
    async for head, data in _frames(wants, max_bytes, context):
        pieces += (head, data)
        size += len(head) + len(data)
        if size >= FETCH_CHUNK_BYTES:
            if response is None:
                # What a slow reader makes us keep, until it has taken it all.
                context.hold(request, FETCH_CHUNK_BYTES)
                response = stream_response(BATCHES_MEDIA_TYPE)
                await response.prepare(request)
            await write_pieces(request, response, pieces)
            pieces, size = [], 0
    if response is None:
        return bytes_response(b"".join(pieces), BATCHES_MEDIA_TYPE)
    if pieces:
        await write_pieces(request, response, pieces)
    return response


def _want(asked: FetchPartition, context: ServerContext, *, any_replica: bool) -> _Want:
    want = _Want(asked.topic, PartitionId(asked.partition), Offset(asked.offset), asked.max_bytes)
    want.end_offset = None if asked.end_offset is None else Offset(asked.end_offset)
    try:
        if asked.topic_id is not None:
            _check_topic_id(asked.topic, asked.topic_id, context)
        want.partition = context.services.replicas.partition(asked.topic, asked.partition)
    except LogError as error:
        if any_replica and error.entry is not UNKNOWN_TOPIC:
            want.partition = _followed(asked, context)
            want.any_replica = True
        if want.partition is None:
            want.error = error
    else:
        context.metrics.topic(asked.topic).fetch_requests += 1
    return want


def _check_topic_id(name: str, topic_id: str, context: ServerContext) -> None:
    """LogError UNKNOWN_TOPIC unless the topic of that name is the one that is meant."""
    present = context.services.metadata.image.topic(name).topic_id
    if present != topic_id:
        raise LogError(
            UNKNOWN_TOPIC, f"Topic {name!r} is another one here: {present}, not {topic_id}."
        )


def _followed(asked: FetchPartition, context: ServerContext) -> Partition | None:
    """This node's replica, if it follows and is far enough; otherwise the leader must be asked."""
    topic = context.services.metadata.image.topics_by_name.get(asked.topic)
    if topic is None:
        return None
    found = context.services.replicas.replica(topic.topic_id, PartitionId(asked.partition))
    if found is None or found.is_closed:
        return None
    is_there = found.log_start_offset <= asked.offset <= found.log_end_offset
    return found if is_there else None


async def _frames(
    wants: Sequence[_Want], bytes_left: int, context: ServerContext
) -> AsyncIterator[tuple[bytes, Buffer]]:
    """Frames, a chunk of each partition in turn, until every partition or the answer is full."""
    turns = list(wants)
    while turns:
        unfinished: list[_Want] = []
        for want in turns:
            if want.frames_sent and min(bytes_left, want.bytes_left) <= 0:
                continue
            limit = min(FETCH_CHUNK_BYTES, bytes_left, want.bytes_left)
            frame = await _next_frame(want, limit, context)
            size = len(frame.data)
            if size == 0 and want.frames_sent:
                continue
            want.frames_sent += 1
            yield encode_fetch_frame(frame)
            if want.error is None and size and not context.closing.is_set():
                bytes_left -= size
                want.bytes_left -= size
                # A read gives one batch at least: only a full chunk may be followed by another.
                if limit == FETCH_CHUNK_BYTES and want.offset < frame.high_watermark:
                    unfinished.append(want)
        turns = unfinished


async def _next_frame(want: _Want, max_bytes: int, context: ServerContext) -> FetchFrame:
    """The partition's next batches; none if `max_bytes` is 0 or there are none."""
    partition = want.partition
    if partition is not None and want.error is None:
        try:
            if max_bytes <= 0:
                high, start = partition.high_watermark, partition.log_start_offset
                return FetchFrame(want.topic, want.number, 0, high, start, want.offset, b"")
            fetched = await partition.read(
                want.offset,
                max_bytes=max_bytes,
                end_offset=want.end_offset,
                any_replica=want.any_replica,
            )
        except LogError as failure:
            want.error = failure
            context.metrics.topic(partition.topic).failed_fetch_requests += 1
        else:
            want.offset = fetched.next_offset
            context.metrics.topic(partition.topic).bytes_out += len(fetched.data)
            return FetchFrame(
                want.topic,
                want.number,
                0,
                fetched.high_watermark,
                fetched.log_start_offset,
                fetched.next_offset,
                fetched.data,
            )
    error = want.error or LogError(UNKNOWN_TOPIC)
    start = Offset(NO_OFFSET) if partition is None else partition.log_start_offset
    high = Offset(NO_OFFSET) if partition is None else partition.high_watermark
    return FetchFrame(
        want.topic, want.number, error.entry.code, high, start, want.offset, error.message.encode()
    )
