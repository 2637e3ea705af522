"""The group coordinator as a kind of shard: topic, record codec, requests, held heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Final, TypeAlias

import msgspec

from raftlog.coordinator.consumer_decisions import (
    HEARTBEATS_PER_SESSION,
    GroupSettings,
    GroupTimer,
)
from raftlog.coordinator.decision import CoordinatorRecord, Decision
from raftlog.coordinator.group_messages import (
    JOIN_EPOCH,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    DeleteGroupRequest,
    DescribeGroupRequest,
    Done,
    GroupRequest,
    GroupResponse,
    ListGroupsRequest,
)
from raftlog.coordinator.group_shard import GroupShard
from raftlog.coordinator.offset_messages import FetchOffsets
from raftlog.coordinator.record_codec import UnknownRecord, decode_offsets_record, encode_record
from raftlog.coordinator.records import GroupMetadataKey
from raftlog.coordinator.shard import Kind, Moment, Shard
from raftlog.record.errors import CORRUPT_BATCH, INVALID_BODY, UNSUPPORTED_FORMAT, LogError
from raftlog.record.types import Buffer
from raftlog.schema.errors import DecodeError

NAME: Final = "group"
TOPIC: Final = "__consumer_offsets"

GroupCoordinator: TypeAlias = Shard[GroupShard, GroupTimer]

_encode = msgspec.msgpack.Encoder().encode
_requests: Final[msgspec.msgpack.Decoder[GroupRequest]] = msgspec.msgpack.Decoder(GroupRequest)
_responses: Final[msgspec.msgpack.Decoder[GroupResponse]] = msgspec.msgpack.Decoder(GroupResponse)


def encode_request(request: GroupRequest) -> bytes:
    """The request as bytes, for `Coordinators.call`."""
    return _encode(request)


def decode_response(data: Buffer) -> GroupResponse:
    """The coordinator's response."""
    return _responses.decode(data)


def group_kind(settings: GroupSettings) -> Kind[GroupShard, GroupTimer]:
    """The kind, for all shards of a node."""

    def create(changed: Callable[[Hashable], None]) -> GroupShard:
        return GroupShard(settings, changed)

    return Kind(
        name=NAME,
        topic=TOPIC,
        create=create,
        encode_record=encode_record,
        decode_record=_decode_record,
        timers=lambda state: state.timers,
        loaded=lambda state, moment: state.loaded(moment.now_ms),
        expire=_expire,
        handle=_handle,
        topics_changed=_topics_changed,
    )


async def _handle(shard: GroupCoordinator, data: memoryview) -> Buffer:
    try:
        request = _requests.decode(data)
    except msgspec.DecodeError as error:
        raise LogError(INVALID_BODY, f"The coordinator's request is not valid: {error}") from None
    return _encode(await carry_out(shard, request))


async def carry_out(shard: GroupCoordinator, request: GroupRequest) -> GroupResponse:
    """The response to a request, once its records are committed. Raises LogError."""
    match request:
        case DescribeGroupRequest() | ListGroupsRequest() | FetchOffsets():
            return await shard.query(lambda state: state.read(request))
        case ConsumerHeartbeatRequest(max_wait_ms=max_wait_ms) if max_wait_ms > 0:
            return await _held(shard, request)
        case DeleteGroupRequest():
            while True:
                done = await _execute(shard, request)
                if not isinstance(done, Done) or done.is_complete:
                    return done
        case _:
            return await _execute(shard, request)


async def _execute(shard: GroupCoordinator, request: GroupRequest) -> GroupResponse:
    def decide(state: GroupShard) -> Decision[GroupResponse]:
        moment = shard.moment()
        return state.decide(request, moment.image, moment.now_ms, moment.time_ms)

    return await shard.execute(decide)


async def _held(shard: GroupCoordinator, request: ConsumerHeartbeatRequest) -> GroupResponse:
    """Answer a heartbeat once it has news, or its time is up.

    Decides twice: the first one refuses an old epoch and begins the session again, the second one
    gives the news. The end of the connection ends it in between, another heartbeat of the member
    with the first answer.
    """
    response = await _execute(shard, request)
    assert isinstance(response, ConsumerHeartbeatResponse)
    has_news = response.assignment is not None or response.member_epoch != request.member_epoch
    if has_news or request.member_epoch <= JOIN_EPOCH:
        return response
    group, member = request.group, request.member_id
    wait_ms = min(request.max_wait_ms, response.session_timeout_ms // HEARTBEATS_PER_SESSION)
    number = shard.state.hold(group, member)
    try:
        await shard.wait_until(
            group,
            lambda state: state.has_news(group, member) or not state.is_held(group, member, number),
            wait_ms / 1000,
        )
        if not shard.state.is_held(group, member, number):
            return response
        return await _execute(shard, request)
    finally:
        shard.state.release(group, member, number)


def _expire(state: GroupShard, timer: GroupTimer, moment: Moment) -> Decision[object]:
    decision = state.expire(timer, moment.image, moment.now_ms, moment.time_ms)
    return Decision(None, decision.records)


def _topics_changed(state: GroupShard, names: Collection[str], moment: Moment) -> None:
    state.topics_changed(names, moment.now_ms)


def _decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    try:
        record = decode_offsets_record(key, value)
    except DecodeError as error:
        raise LogError(CORRUPT_BATCH, f"A record of {TOPIC} is malformed: {error}") from error
    if isinstance(record, UnknownRecord):
        raise LogError(
            UNSUPPORTED_FORMAT,
            f"{TOPIC} has a record of key {record.key_number} in version {record.value_version}, "
            "which this release does not know: upgrade this node, or have a newer one lead the "
            "partition.",
        )
    if isinstance(record.key, GroupMetadataKey):
        if record.value is None:
            return None
        raise LogError(
            UNSUPPORTED_FORMAT,
            f"{TOPIC} has classic group {record.key.group!r}, which this release cannot serve.",
        )
    return record
