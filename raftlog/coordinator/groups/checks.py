"""Checks of requests to a group coordinator, whichever listener they come from. Pure."""

from __future__ import annotations

from typing import Final

from raftlog.coordinator.groups.classic.messages import (
    ClassicHeartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from raftlog.coordinator.groups.messages import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeatRequest,
)
from raftlog.coordinator.groups.settings import GroupSettings
from raftlog.metadata.image import TOPIC_NAME_CHARACTERS_MAX
from raftlog.record.errors import (
    BAD_REQUEST,
    INVALID_GROUP,
    INVALID_SESSION_TIMEOUT,
    LogError,
    quoted,
)

ID_CHARACTERS_MAX: Final = 255
"""Most characters of an id, and of a client's host."""
SUBSCRIBED_NAMES_MAX: Final = 10_000
"""Most topics of a member by name. A record has all of them."""
OWNED_PARTITIONS_MAX: Final = 100_000
"""Most owned partitions of a heartbeat."""
REBALANCE_TIMEOUT_MS_MAX: Final = 2**31 - 1
"""Largest int32, which Kafka's clients use for no timeout."""
PARTS_MAX: Final = 10_000
"""Most members of a leave, and most assignments of a sync."""


def check_heartbeat(request: ConsumerHeartbeatRequest, settings: GroupSettings) -> None:
    """Raise LogError for values out of bounds."""
    check_group_id(request.group)
    check_length("member id", request.member_id, least=1)
    if request.instance_id is not None:
        check_length("instance id", request.instance_id, least=1)
    check_length("rack id", request.rack_id or "")
    check_length("client id", request.client_id)
    check_length("client host", request.client_host)
    names = request.subscribed_names or ()
    if len(names) > SUBSCRIBED_NAMES_MAX:
        raise LogError(
            BAD_REQUEST,
            f"A subscription of {len(names)} topics by name is over {SUBSCRIBED_NAMES_MAX}: use a "
            "pattern.",
        )
    for name in names:
        check_length("topic name", name, least=1, most=TOPIC_NAME_CHARACTERS_MAX)
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        raise LogError(BAD_REQUEST, f"There is no member epoch {request.member_epoch}.")
    owned = sum(len(topic.partitions) for topic in request.owned or ())
    if owned > OWNED_PARTITIONS_MAX:
        raise LogError(BAD_REQUEST, f"{owned} owned partitions are over {OWNED_PARTITIONS_MAX}.")
    rebalance_ms = request.rebalance_timeout_ms
    if rebalance_ms is not None and not 1 <= rebalance_ms <= REBALANCE_TIMEOUT_MS_MAX:
        raise LogError(
            BAD_REQUEST,
            f"A rebalance timeout of {rebalance_ms} ms is not between 1 and "
            f"{REBALANCE_TIMEOUT_MS_MAX}.",
        )
    if request.session_timeout_ms is not None:
        _check_session_timeout(request.session_timeout_ms, settings)
    if request.hand_over_to is not None:
        check_length("instance id", request.hand_over_to, least=1)
        if request.member_epoch <= JOIN_EPOCH or not request.sequence:
            raise LogError(
                BAD_REQUEST,
                "Only a member hands over, by a report: send its epoch, and a sequence.",
            )
    if request.report is not None:
        check_length("endpoint", request.report.endpoint or "")
        if request.report.position < 0 or request.report.primaries < 0:
            raise LogError(BAD_REQUEST, "A position, and a count of primaries, is at least 0.")
        disconnect_ms = request.report.disconnect_timeout_ms
        if disconnect_ms is not None and not 1 <= disconnect_ms <= settings.session_timeout_ms_max:
            raise LogError(
                BAD_REQUEST,
                f"A disconnect timeout of {disconnect_ms} ms is not between 1 and "
                f"{settings.session_timeout_ms_max}.",
            )


def check_join(request: JoinGroup, settings: GroupSettings) -> None:
    """Raise LogError for values out of bounds, except those that the group checks."""
    _check_author(request.group_id, request.member_id, request.instance_id)
    if not request.member_id:
        check_length("member id", request.new_member_id, least=1)
    check_length("client id", request.client_id)
    check_length("client host", request.client_host)
    check_length("protocol type", request.protocol_type)
    for protocol in request.protocols:
        check_length("protocol name", protocol.name, least=1)
    if not -1 <= request.rebalance_timeout_ms <= REBALANCE_TIMEOUT_MS_MAX:
        raise LogError(
            BAD_REQUEST,
            f"A rebalance timeout of {request.rebalance_timeout_ms} ms is over "
            f"{REBALANCE_TIMEOUT_MS_MAX}.",
        )
    _check_session_timeout(request.session_timeout_ms, settings)


def check_sync(request: SyncGroup) -> None:
    """Raise LogError for values out of bounds."""
    _check_author(request.group_id, request.member_id, request.instance_id)
    _check_count("assignments", len(request.assignments))


def check_classic_heartbeat(request: ClassicHeartbeat) -> None:
    """Raise LogError for values out of bounds."""
    _check_author(request.group_id, request.member_id, request.instance_id)


def check_leave(request: LeaveGroup) -> None:
    """Raise LogError for values out of bounds."""
    check_group_id(request.group_id)
    _check_count("members", len(request.members))


def check_group_id(group_id: str) -> str:
    """The id itself if valid. Raises LogError(INVALID_GROUP)."""
    if not 1 <= len(group_id) <= ID_CHARACTERS_MAX or not group_id.strip():
        raise LogError(
            INVALID_GROUP,
            f"Group id {quoted(group_id)} is not valid: use 1 to {ID_CHARACTERS_MAX} characters, "
            "not spaces only.",
        )
    return group_id


def _check_session_timeout(session_ms: int, settings: GroupSettings) -> None:
    least_ms, most_ms = settings.session_timeout_ms_min, settings.session_timeout_ms_max
    if not least_ms <= session_ms <= most_ms:
        raise LogError(
            INVALID_SESSION_TIMEOUT,
            f"A session timeout of {session_ms} ms is not between {least_ms} and {most_ms}, the "
            "cluster's bounds.",
        )


def _check_author(group_id: str, member_id: str, instance_id: str | None) -> None:
    check_group_id(group_id)
    check_length("member id", member_id)
    if instance_id is not None:
        check_length("instance id", instance_id, least=1)


def _check_count(noun: str, count: int) -> None:
    if count > PARTS_MAX:
        raise LogError(BAD_REQUEST, f"{count} {noun} are over {PARTS_MAX}.")


def check_length(noun: str, text: str, *, least: int = 0, most: int = ID_CHARACTERS_MAX) -> None:
    """Raise LogError(BAD_REQUEST) for a text that is too short or too long."""
    if not least <= len(text) <= most:
        raise LogError(
            BAD_REQUEST, f"A {noun} has {least} to {most} characters; this one has {len(text)}."
        )
