"""The v3 convention has consumer groups, members, their partitions and lags."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from raftlog.api import v3 as api
from raftlog.broker.groups import GroupView, MemberDescription
from raftlog.http.request import Request, ServerContext, partition_parameter
from raftlog.http.responses import json_response
from raftlog.http.routing import Handler, Route
from raftlog.record import errors
from raftlog.record.errors import ErrorEntry, LogError, quoted
from raftlog.rest.v3.listing import list_response
from raftlog.rest.v3.shapes import GroupLag, Shaper, consumer_path, group_path


async def list_groups(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return all groups, or an error while a coordinator is unknown.

    The list has no form for unknown groups.
    """
    found, incomplete = await context.broker.groups.groups(request.principal)
    if incomplete:
        raise LogError(errors.NOT_COORDINATOR, f"Not all groups are known: {incomplete[0]}")
    shaper = Shaper(request, context)
    objects = (
        shaper.group(group.group, group.kind, group.state, group.assignor, coordinator)
        for group, coordinator in found
    )
    return await list_response(request, shaper, "ConsumerGroup", "/consumer-groups", objects)


async def get_group(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one group."""
    view = await _view(request, context)
    group = view.description
    shaper = Shaper(request, context)
    return json_response(
        shaper.group(group.group, group.kind, group.state, group.assignor, view.coordinator)
    )


async def list_consumers(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the members of a group."""
    group = (await _view(request, context)).description
    shaper = Shaper(request, context)
    objects = (shaper.consumer(group.group, member) for member in group.members)
    path = f"{group_path(group.group)}/consumers"
    return await list_response(request, shaper, "Consumer", path, objects)


async def get_consumer(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one member."""
    view = await _view(request, context)
    member = _member(request, view)
    return json_response(Shaper(request, context).consumer(view.description.group, member))


async def list_assignments(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the partitions of a member."""
    view = await _view(request, context)
    group_id, member = view.description.group, _member(request, view)
    shaper = Shaper(request, context)
    objects = (
        shaper.assignment(group_id, member.member_id, *place) for place in _places(context, member)
    )
    path = f"{consumer_path(group_id, member.member_id)}/assignments"
    return await list_response(request, shaper, "ConsumerAssignment", path, objects)


async def get_assignment(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return one partition of a member."""
    view = await _view(request, context)
    member = _member(request, view)
    topic, number = request.path_parameters["topic"], partition_parameter(request)
    if (topic, number) not in _places(context, member):
        raise LogError(errors.NOT_FOUND, f"The member does not have {quoted(topic)}-{number}.")
    shaper = Shaper(request, context)
    return json_response(shaper.assignment(view.description.group, member.member_id, topic, number))


async def list_lags(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the lag of each partition with a committed offset."""
    view = await _view(request, context)
    group_id = view.description.group
    shaper = Shaper(request, context)
    objects = (shaper.lag(group_id, lag) for lag in _lags(view))
    return await list_response(
        request, shaper, "ConsumerLag", f"{group_path(group_id)}/lags", objects
    )


async def get_lag(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the lag of one partition."""
    view = await _view(request, context)
    place = (request.path_parameters["topic"], partition_parameter(request))
    for lag in _lags(view):
        if (lag.topic, lag.partition) == place:
            return json_response(Shaper(request, context).lag(view.description.group, lag))
    raise LogError(errors.NOT_FOUND, f"The group has no lag in {quoted(place[0])}-{place[1]}.")


async def get_lag_summary(request: Request, context: ServerContext) -> web.StreamResponse:
    """Return the largest lag of a group, and the sum of all."""
    view = await _view(request, context)
    lags = _lags(view)
    if not lags:
        raise LogError(
            errors.NOT_FOUND, "The group has no committed offset of a partition that is there."
        )
    return json_response(Shaper(request, context).lag_summary(view.description.group, lags))


async def _view(request: Request, context: ServerContext) -> GroupView:
    return await context.broker.groups.describe(request.principal, request.path_parameters["group"])


def _member(request: Request, view: GroupView) -> MemberDescription:
    """The member of the path. Raises LogError NOT_FOUND."""
    wanted = request.path_parameters["consumer"]
    for member in view.description.members:
        if member.member_id == wanted:
            return member
    raise LogError(errors.NOT_FOUND, f"The group has no member {quoted(wanted)}.")


def _places(context: ServerContext, member: MemberDescription) -> list[tuple[str, int]]:
    name = context.broker.groups.topic_name_or_id
    return [
        (name(topic.topic_id), number) for topic in member.assignment for number in topic.partitions
    ]


def _lags(view: GroupView) -> list[GroupLag]:
    """The lags of partitions with a committed offset and a known end."""
    members = {member.member_id: member for member in view.description.members}
    return [
        GroupLag(
            topic=offset.committed.topic,
            partition=offset.committed.partition,
            committed_offset=offset.committed.offset,
            end_offset=offset.end_offset,
            member=None if offset.member_id is None else members[offset.member_id],
        )
        for offset in view.offsets
        if offset.committed.offset >= 0 and offset.end_offset is not None
    ]


_GROUPS: Final = "/v3/clusters/{cluster}/consumer-groups"
_GROUP: Final = f"{_GROUPS}/{{group}}"
_CONSUMER: Final = f"{_GROUP}/consumers/{{consumer}}"
_PARTITION: Final = "{topic}/partitions/{partition}"


def _read(
    path: str, handler: Handler, summary: str, answer: object, *failures: ErrorEntry
) -> Route:
    found: list[ErrorEntry] = [errors.COORDINATOR_LOADING, errors.NOT_COORDINATOR]
    found += [errors.INVALID_GROUP, errors.UNKNOWN_GROUP] if "{group}" in path else []
    found += [errors.NOT_FOUND] if "{consumer}" in path else []
    return Route(
        "GET",
        path,
        handler,
        summary,
        tag="groups",
        response_type=answer,
        errors=(*found, *failures),
    )


ROUTES: Final = (
    _read(_GROUPS, list_groups, "List consumer groups", api.Listing[api.ConsumerGroup]),
    _read(_GROUP, get_group, "Describe a consumer group", api.ConsumerGroup),
    _read(
        f"{_GROUP}/consumers", list_consumers, "List a group's members", api.Listing[api.Consumer]
    ),
    _read(_CONSUMER, get_consumer, "Describe a member", api.Consumer),
    _read(
        f"{_CONSUMER}/assignments",
        list_assignments,
        "List a member's partitions",
        api.Listing[api.ConsumerAssignment],
    ),
    _read(
        f"{_CONSUMER}/assignments/{_PARTITION}",
        get_assignment,
        "Describe a partition of a member",
        api.ConsumerAssignment,
        errors.UNKNOWN_PARTITION,
    ),
    _read(
        f"{_GROUP}/lag-summary",
        get_lag_summary,
        "The largest lag of a group, and the sum of all",
        api.ConsumerGroupLagSummary,
        errors.NOT_FOUND,
    ),
    _read(f"{_GROUP}/lags", list_lags, "List the lags of a group", api.Listing[api.ConsumerLag]),
    _read(
        f"{_GROUP}/lags/{_PARTITION}",
        get_lag,
        "The lag of a group in one partition",
        api.ConsumerLag,
        errors.UNKNOWN_PARTITION,
        errors.NOT_FOUND,
    ),
)
