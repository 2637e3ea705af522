"""The /v1 routes serve group membership, committed offsets, descriptions and resets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api import groups as api
from raftlog.broker.groups import (
    ByDuration,
    Committer,
    ConsumerHeartbeatRequest,
    FetchedOffset,
    GroupService,
    MemberDescription,
    MemberReport,
    OffsetToCommit,
    PartitionOutcome,
    ResetRow,
    ResetTarget,
    ShiftBy,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToOffsetsOf,
    TopicPartitions,
    ToTimestamp,
    state_words,
)
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext
from raftlog.http.responses import empty_response, json_response
from raftlog.http.routing import Route
from raftlog.record import errors
from raftlog.record.errors import LogError
from raftlog.record.types import TopicId

NO_OFFSET: Final = -1
NO_LEADER_ID: Final = -1

_heartbeat_decoder = msgspec.json.Decoder(api.HeartbeatRequest)
_commit_decoder = msgspec.json.Decoder(api.CommitRequest)
_committed_decoder = msgspec.json.Decoder(api.CommittedRequest)
_reset_decoder = msgspec.json.Decoder(api.ResetRequest)
_delete_offsets_decoder = msgspec.json.Decoder(api.DeleteOffsetsRequest)


def _group(request: Request) -> str:
    return request.path_parameters["group"]


async def heartbeat(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/groups/{group}/heartbeat."""
    body = await read_json(request, context, _heartbeat_decoder)
    groups = context.broker.groups
    response = await groups.heartbeat(
        request.principal,
        ConsumerHeartbeatRequest(
            group=_group(request),
            member_id=body.member_id,
            member_epoch=body.member_epoch,
            instance_id=body.instance_id,
            rack_id=body.rack,
            client_id=body.client_id or "",
            client_host=request.remote or "",
            subscribed_names=None if body.topics is None else tuple(body.topics),
            subscribed_pattern=body.pattern,
            assignor=body.assignor,
            rebalance_timeout_ms=body.rebalance_timeout_ms,
            session_timeout_ms=body.session_timeout_ms,
            owned=None
            if body.owned is None
            else tuple(
                TopicPartitions(TopicId(topic.topic_id), tuple(sorted(topic.partitions)))
                for topic in body.owned
            ),
            max_wait_ms=body.max_wait_ms,
            sequence=body.sequence,
            report=None
            if (report := body.report) is None
            else MemberReport(
                report.position, report.primaries, report.endpoint, report.disconnect_timeout_ms
            ),
            hand_over_to=body.hand_over_to,
        ),
    )
    assignment = response.assignment
    return json_response(
        api.HeartbeatResponse(
            member_id=response.member_id,
            member_epoch=response.member_epoch,
            heartbeat_interval_ms=response.heartbeat_interval_ms,
            session_timeout_ms=response.session_timeout_ms,
            assignment=None
            if assignment is None
            else [
                api.AssignedPartitions(
                    groups.topic_name(topic.topic_id), topic.topic_id, list(topic.partitions)
                )
                for topic in assignment
            ],
        )
    )


async def commit(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/groups/{group}/offsets."""
    body = await read_json(request, context, _commit_decoder)
    outcomes = await context.broker.groups.commit(
        request.principal,
        _group(request),
        offsets_to_commit(body.offsets),
        Committer(body.member_id, body.member_epoch),
    )
    return json_response(commit_response(outcomes))


async def committed(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/groups/{group}/committed."""
    body = await read_json(request, context, _committed_decoder)
    found = await context.broker.groups.committed(
        request.principal, _group(request), body.topics, require_stable=body.require_stable
    )
    return json_response(api.CommittedResponse([_committed_offset(offset) for offset in found]))


async def list_groups(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/groups."""
    found, incomplete = await context.broker.groups.groups(request.principal)
    return json_response(
        api.GroupList(
            [
                api.GroupListing(
                    group=group.group,
                    kind=group.kind,
                    state=state_words(group.state),
                    members=group.members,
                    coordinator=NO_LEADER_ID if leader is None else leader,
                )
                for group, leader in found
            ],
            incomplete,
        )
    )


async def describe_group(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/groups/{group}."""
    groups = context.broker.groups
    view = await groups.describe(request.principal, _group(request))
    description = view.description
    offsets = []
    for offset, end_offset, member_id in view.offsets:
        is_known = end_offset is not None and offset.offset != NO_OFFSET
        offsets.append(
            api.GroupOffset(
                topic=offset.topic,
                partition=offset.partition,
                offset=offset.offset,
                end_offset=NO_OFFSET if end_offset is None else end_offset,
                lag=max(0, (end_offset or 0) - offset.offset) if is_known else NO_OFFSET,
                member_id=member_id,
                metadata=offset.metadata,
            )
        )
    return json_response(
        api.GroupDescription(
            group=description.group,
            kind=description.kind,
            state=state_words(description.state),
            epoch=description.epoch,
            assignor=description.assignor,
            coordinator=NO_LEADER_ID if view.coordinator is None else view.coordinator,
            members=[_member(groups, member) for member in description.members],
            offsets=offsets,
        )
    )


async def delete_group(request: Request, context: ServerContext) -> web.StreamResponse:
    """DELETE /v1/groups/{group}."""
    await context.broker.groups.delete(request.principal, _group(request))
    return empty_response()


async def reset(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/groups/{group}/reset."""
    body = await read_json(request, context, _reset_decoder)
    rows = await context.broker.groups.reset(
        request.principal,
        _group(request),
        body.topics,
        _target(body),
        validate_only=body.validate_only,
    )
    return json_response(
        api.ResetResponse(not body.validate_only, [_reset_row(row, error) for row, error in rows])
    )


async def delete_offsets(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/groups/{group}/offsets/delete."""
    body = await read_json(request, context, _delete_offsets_decoder)
    await context.broker.groups.delete_offsets(request.principal, _group(request), body.topics)
    return empty_response()


def offsets_to_commit(offsets: Iterable[api.OffsetCommit]) -> list[OffsetToCommit]:
    """Convert the offsets of a request for the broker."""
    return [
        OffsetToCommit(
            topic=offset.topic,
            partition=offset.partition,
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            topic_id=None if offset.topic_id is None else TopicId(offset.topic_id),
            expected=offset.expected,
        )
        for offset in offsets
    ]


def commit_response(outcomes: Iterable[PartitionOutcome]) -> api.CommitResponse:
    """The response to a commit."""
    return api.CommitResponse(
        [
            api.CommittedPartition(outcome.topic, outcome.partition, *_error(outcome.error_code))
            for outcome in outcomes
        ]
    )


def _target(body: api.ResetRequest) -> ResetTarget:
    """The one target of the request. Raises LogError(INVALID_BODY)."""
    targets: list[ResetTarget] = []
    if body.to is not None:
        if body.to not in ("earliest", "latest"):
            raise LogError(errors.INVALID_BODY, f"'to' is 'earliest' or 'latest', not {body.to!r}.")
        targets.append(ToEarliest() if body.to == "earliest" else ToLatest())
    if body.to_offset is not None:
        targets.append(ToOffset(body.to_offset))
    if body.to_timestamp_ms is not None:
        targets.append(ToTimestamp(body.to_timestamp_ms))
    if body.by_duration_ms is not None:
        targets.append(ByDuration(body.by_duration_ms))
    if body.shift_by is not None:
        targets.append(ShiftBy(body.shift_by))
    if body.like_group is not None:
        targets.append(ToOffsetsOf(body.like_group))
    if len(targets) != 1:
        raise LogError(errors.INVALID_BODY, f"A reset has one target; this one has {len(targets)}.")
    return targets[0]


def _reset_row(row: ResetRow, error: LogError | None) -> api.ResetPartition:
    before = NO_OFFSET if row.old_offset is None else row.old_offset
    return api.ResetPartition(
        topic=row.topic,
        partition=row.partition,
        before=before,
        offset=before if row.new_offset is None else row.new_offset,
        error_code=None if error is None else error.entry.code,
        message=None if error is None else error.message,
    )


def _committed_offset(offset: FetchedOffset) -> api.CommittedOffset:
    error_code, message = _error(offset.error_code)
    return api.CommittedOffset(
        offset.topic,
        offset.partition,
        offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        topic_id=offset.topic_id,
        error_code=error_code,
        message=message,
    )


def _member(groups: GroupService, member: MemberDescription) -> api.GroupMember:
    return api.GroupMember(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        state="stable" if member.assignment == member.target else "reconciling",
        topics=list(member.subscribed_names),
        pattern=member.subscribed_pattern,
        assignment=_assigned(groups, member.assignment),
        target=_assigned(groups, member.target),
        position=None if member.report is None else member.report.position,
        endpoint=None if member.report is None else member.report.endpoint,
    )


def _assigned(
    groups: GroupService, assignment: Iterable[TopicPartitions]
) -> list[api.AssignedPartitions]:
    return [
        api.AssignedPartitions(
            groups.topic_name_or_id(topic.topic_id), topic.topic_id, list(topic.partitions)
        )
        for topic in assignment
    ]


def _error(code: int) -> tuple[int | None, str | None]:
    return (code, errors.ERROR_TABLE[code].message) if code else (None, None)


_GROUP: Final = "/v1/groups/{group}"
_ERRORS: Final = (errors.INVALID_GROUP, errors.COORDINATOR_LOADING, errors.NOT_COORDINATOR)

_post = partial(Route, "POST", tag="groups")
_get = partial(Route, "GET", tag="groups")
_delete = partial(Route, "DELETE", tag="groups", status=204)

ROUTES: Final = (
    _post(
        f"{_GROUP}/heartbeat",
        heartbeat,
        "Join a group, stay in it, or leave it (KIP-848). The node may delay the response for "
        "`max_wait_ms`, until the member has something to do.",
        request_type=api.HeartbeatRequest,
        response_type=api.HeartbeatResponse,
        errors=(
            errors.INVALID_BODY,
            errors.INVALID_PATTERN,
            errors.INVALID_SESSION_TIMEOUT,
            errors.UNKNOWN_MEMBER,
            errors.FENCED_MEMBER_EPOCH,
            errors.FENCED_INSTANCE_ID,
            errors.UNRELEASED_INSTANCE_ID,
            errors.ILLEGAL_STATE,
            errors.INCONSISTENT_PROTOCOL,
            errors.GROUP_FULL,
            errors.TOO_MANY_GROUPS,
            *_ERRORS,
        ),
        # Nothing is lost, because a member without a response repeats all its state.
        cancel_on_disconnect=True,
    ),
    _post(
        f"{_GROUP}/offsets",
        commit,
        "Commit offsets, as a member, or without a member while the group is empty. Each "
        "partition succeeds or fails separately (40935 if the offset is not the `expected` "
        "offset).",
        request_type=api.CommitRequest,
        response_type=api.CommitResponse,
        errors=(
            errors.INVALID_BODY,
            errors.UNKNOWN_MEMBER,
            errors.STALE_MEMBER_EPOCH,
            errors.TOO_MANY_GROUPS,
            *_ERRORS,
        ),
    ),
    _post(
        f"{_GROUP}/committed",
        committed,
        "Committed offsets of some partitions, or of all with a committed offset",
        request_type=api.CommittedRequest,
        response_type=api.CommittedResponse,
        errors=(errors.INVALID_BODY, *_ERRORS),
    ),
    _get(
        "/v1/groups",
        list_groups,
        "All groups. `incomplete` has the reason if some are missing",
        response_type=api.GroupList,
    ),
    _get(
        _GROUP,
        describe_group,
        "A group with its members, committed offsets and lags",
        response_type=api.GroupDescription,
        errors=(errors.UNKNOWN_GROUP, *_ERRORS),
    ),
    _delete(
        _GROUP,
        delete_group,
        "Delete an empty group with its offsets",
        errors=(errors.UNKNOWN_GROUP, errors.GROUP_NOT_EMPTY, *_ERRORS),
    ),
    _post(
        f"{_GROUP}/reset",
        reset,
        "Set the committed offsets of an empty group, or show what would be set",
        request_type=api.ResetRequest,
        response_type=api.ResetResponse,
        errors=(
            errors.INVALID_BODY,
            errors.UNKNOWN_GROUP,
            errors.UNKNOWN_TOPIC,
            errors.GROUP_NOT_EMPTY,
            *_ERRORS,
        ),
    ),
    _post(
        f"{_GROUP}/offsets/delete",
        delete_offsets,
        "Forget committed offsets of topics that no member subscribes to",
        request_type=api.DeleteOffsetsRequest,
        status=204,
        errors=(errors.INVALID_BODY, errors.UNKNOWN_GROUP, errors.GROUP_NOT_EMPTY, *_ERRORS),
    ),
)
