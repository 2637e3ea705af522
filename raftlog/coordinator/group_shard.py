"""All groups of one partition of `__consumer_offsets`: dispatch, replay, timers, bounds. Pure.

The shard decides which groups exist, of which kind, and whether they are empty. Requests are
validated here, whichever face they come from. The caller appends a decision's records, replays
them at once, and sends the response when they are committed (DESIGN.md, rules of a shard).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, assert_never

from raftlog.coordinator.consumer_decisions import (
    ConsumerDecisions,
    GroupSettings,
    MemberTimer,
)
from raftlog.coordinator.consumer_group import ConsumerGroup
from raftlog.coordinator.decision import CoordinatorRecord, Decision, Timers
from raftlog.coordinator.group_messages import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeatRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    Done,
    GroupList,
    GroupListing,
    GroupRequest,
    GroupResponse,
    ListGroupsRequest,
)
from raftlog.coordinator.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from raftlog.metadata.image import TOPIC_NAME_CHARACTERS_MAX, MetadataImage
from raftlog.record.errors import (
    BAD_REQUEST,
    INVALID_GROUP,
    INVALID_SESSION_TIMEOUT,
    TOO_MANY_GROUPS,
    UNKNOWN_GROUP,
    LogError,
    counted,
    quoted,
)

ID_CHARACTERS_MAX: Final = 255
"""Of the ids of groups, members, instances, racks and clients, and of a client's host."""
SUBSCRIBED_NAMES_MAX: Final = 10_000
"""Topics of one member by name: all of them are in one record."""
OWNED_PARTITIONS_MAX: Final = 100_000
"""Of one heartbeat."""
REBALANCE_TIMEOUT_MS_MAX: Final = 2**31 - 1
"""Kafka's clients use the largest int32 to say: never."""


class GroupShard:
    """The groups of one shard. A new one is empty: replay its log, then call `loaded`."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self.timers: Timers[MemberTimer] = Timers()
        """Ask for the next deadline after each decision; give what is due to `expire`."""
        self._consumer_groups: dict[str, ConsumerGroup] = {}
        self._decisions = ConsumerDecisions(settings, self.timers)

    # Queries

    def __len__(self) -> int:
        return len(self._consumer_groups)

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """The consumer group of the id, to check a commit against; None without one."""
        return self._consumer_groups.get(group_id)

    def has_news(self, group_id: str, member_id: str) -> bool:
        """Whether a heartbeat held open for the member must be decided again now."""
        group = self._consumer_groups.get(group_id)
        return group is None or group.has_news(member_id)

    def stale_groups(
        self, image: MetadataImage, changed: Collection[str] | None
    ) -> tuple[str, ...]:
        """Groups to `refresh`, one decision each, after topics were created, deleted or enlarged.

        `changed` names those topics. None stands for any: after a load, since the metadata may have
        changed after the last coordinator's last decision.
        """
        return tuple(
            group_id
            for group_id, group in self._consumer_groups.items()
            if self._decisions.is_stale(group, image, changed)
        )

    # Decisions

    def decide(
        self, request: GroupRequest, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[GroupResponse]:
        """Decide about a request. `now_ms` is monotonic, `time_ms` wall time. Raises LogError."""
        match request:
            case ConsumerHeartbeatRequest():
                return self._heartbeat(request, image, now_ms, time_ms)
            case DescribeGroupRequest():
                return Decision(self._existing(request.group).describe())
            case ListGroupsRequest():
                return Decision(self._list())
            case DeleteGroupRequest():
                decision = self._decisions.delete(self._existing(request.group))
                return Decision(Done(), decision.records)
        assert_never(request)

    def expire(self, timer: MemberTimer, image: MetadataImage, time_ms: int) -> Decision[None]:
        """Decide about a timer that is due, taken from `timers`."""
        group = self._consumer_groups.get(timer.group)
        if group is None or timer.member_id not in group.members:
            return Decision(None)
        return self._decisions.expire(group, timer.member_id, image, time_ms)

    def refresh(
        self,
        group_id: str,
        image: MetadataImage,
        changed: Collection[str] | None,
        time_ms: int,
    ) -> Decision[None]:
        """Follow a change of topics in one of the `stale_groups`, with the same `changed`."""
        group = self._consumer_groups.get(group_id)
        if group is None:
            return Decision(None)
        return self._decisions.refresh(group, image, changed, time_ms)

    def _heartbeat(
        self,
        request: ConsumerHeartbeatRequest,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
    ) -> Decision[GroupResponse]:
        _check_heartbeat(request, self._settings)
        group = self._consumer_groups.get(request.group)
        if group is None:
            if (
                request.member_epoch == JOIN_EPOCH
                and len(self._consumer_groups) >= self._settings.groups_max
            ):
                raise LogError(
                    TOO_MANY_GROUPS,
                    f"The coordinator of group {quoted(request.group)} has "
                    f"{counted(len(self._consumer_groups), 'group')}, the most it may have: delete "
                    "groups no longer used.",
                )
            # The replay of the decision's records makes the group that stays.
            group = ConsumerGroup(request.group)
        decision = self._decisions.heartbeat(group, request, image, now_ms, time_ms)
        return Decision(decision.response, decision.records)

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._consumer_groups.get(group_id)
        if group is None:
            raise LogError(UNKNOWN_GROUP, f"Group {quoted(group_id)} not found.")
        return group

    def _list(self) -> GroupList:
        return GroupList(
            tuple(
                GroupListing(group_id, "consumer", self._consumer_groups[group_id].state)
                for group_id in sorted(self._consumer_groups)
            )
        )

    # Replay

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record of the log, in its order."""
        key = record.key
        match key:
            case (
                ConsumerGroupMetadataKey()
                | ConsumerGroupMemberMetadataKey()
                | ConsumerGroupTargetAssignmentMetadataKey()
                | ConsumerGroupTargetAssignmentMemberKey()
                | ConsumerGroupCurrentMemberAssignmentKey()
                | ConsumerGroupRegularExpressionKey()
            ):
                group = self._consumer_groups.get(key.group)
                if group is None:
                    # Compaction may have removed the group's first records.
                    group = self._consumer_groups[key.group] = ConsumerGroup(key.group)
                group.replay(record)
                if group.is_void:
                    del self._consumer_groups[key.group]
            case _:
                raise AssertionError(f"not a record of a consumer group: {record}")

    def loaded(self, now_ms: int) -> None:
        """Set all timers, after the replay of the log."""
        for group in self._consumer_groups.values():
            self._decisions.loaded(group, now_ms)


def _check_heartbeat(request: ConsumerHeartbeatRequest, settings: GroupSettings) -> None:
    """Raise LogError for values out of bounds."""
    check_group_id(request.group)
    _check_length("member id", request.member_id, least=1)
    if request.instance_id is not None:
        _check_length("instance id", request.instance_id, least=1)
    _check_length("rack id", request.rack_id or "")
    _check_length("client id", request.client_id)
    _check_length("client host", request.client_host)
    names = request.subscribed_names or ()
    if len(names) > SUBSCRIBED_NAMES_MAX:
        raise LogError(
            BAD_REQUEST,
            f"A subscription of {len(names)} topics by name is over {SUBSCRIBED_NAMES_MAX}: use a "
            "pattern.",
        )
    for name in names:
        _check_length("topic name", name, least=1, most=TOPIC_NAME_CHARACTERS_MAX)
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
    session_ms = request.session_timeout_ms
    least_ms, most_ms = settings.session_timeout_ms_min, settings.session_timeout_ms_max
    if session_ms is not None and not least_ms <= session_ms <= most_ms:
        raise LogError(
            INVALID_SESSION_TIMEOUT,
            f"A session timeout of {session_ms} ms is not between {least_ms} and {most_ms}, the "
            "cluster's bounds.",
        )


def check_group_id(group_id: str) -> str:
    """The id itself, if valid. Raises LogError(INVALID_GROUP)."""
    if not 1 <= len(group_id) <= ID_CHARACTERS_MAX or not group_id.strip():
        raise LogError(
            INVALID_GROUP,
            f"Group id {quoted(group_id)} is not valid: use 1 to {ID_CHARACTERS_MAX} characters, "
            "not spaces only.",
        )
    return group_id


def _check_length(noun: str, text: str, *, least: int = 0, most: int = ID_CHARACTERS_MAX) -> None:
    if not least <= len(text) <= most:
        raise LogError(
            BAD_REQUEST, f"A {noun} has {least} to {most} characters; this one has {len(text)}."
        )
