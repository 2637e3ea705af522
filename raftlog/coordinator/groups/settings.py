"""All groups of a shard share settings and bounds, timers, and numbers of held requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from raftlog.coordinator.shard.decision import Counts, Timers
from raftlog.metadata.configs.broker import (
    GROUP_HEARTBEAT,
    GROUP_INITIAL_DELAY,
    GROUP_SESSION,
    GROUP_SESSION_MAX,
    GROUP_SESSION_MIN,
    GROUP_SIZE,
    GROUPS,
    INSTANCE_TIMEOUT,
    INSTANCES,
    OFFSETS_RETENTION,
    coordinator_number,
)

MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Bounds of the groups of a shard, of both kinds. Times are in milliseconds."""

    session_timeout_ms: int = coordinator_number({}, GROUP_SESSION)
    """Session timeout of a member that names none."""
    session_timeout_ms_min: int = coordinator_number({}, GROUP_SESSION_MIN)
    session_timeout_ms_max: int = coordinator_number({}, GROUP_SESSION_MAX)
    heartbeat_interval_ms_max: int = coordinator_number({}, GROUP_HEARTBEAT)
    """Longest heartbeat interval, however long the session is. A heartbeat brings the new
    assignment."""
    initial_rebalance_delay_ms: int = coordinator_number({}, GROUP_INITIAL_DELAY)
    """Time for which an empty classic group waits for further members."""
    members_max: int = coordinator_number({}, GROUP_SIZE)
    """Most members of a group. A rebalance writes a record for each member with a new target. In a
    classic group, ids that have not joined yet count."""
    classic_bytes_max: int = 480 * 1024
    """Most bytes of metadata, and of assignments, of all members of a classic group. A record has
    both and must fit into the topic's `max.message.bytes`."""
    groups_max: int = coordinator_number({}, GROUPS)
    """Most groups of a shard."""
    retention_ms: int = coordinator_number({}, OFFSETS_RETENTION) * MINUTE_MS
    """Time from the moment a group is empty until its offsets expire."""
    sweep_interval_ms: int = 10 * 60 * 1000
    """Time between two sweeps for expired offsets."""
    instances_max: int = coordinator_number({}, INSTANCES)
    """Most REST consumer instances of a shard."""
    instance_timeout_ms: int = coordinator_number({}, INSTANCE_TIMEOUT)
    """Time without requests after which such an instance ends."""

    def following(self, cluster: Mapping[str, str]) -> GroupSettings:
        """These settings, with those that are set for the cluster."""
        found = {
            field_name: coordinator_number(cluster, name) * unit
            for field_name, (name, unit) in _CLUSTER_SETTINGS.items()
            if name in cluster
        }
        return replace(self, **found) if found else self


_CLUSTER_SETTINGS: Final = {
    "session_timeout_ms": (GROUP_SESSION, 1),
    "session_timeout_ms_min": (GROUP_SESSION_MIN, 1),
    "session_timeout_ms_max": (GROUP_SESSION_MAX, 1),
    "heartbeat_interval_ms_max": (GROUP_HEARTBEAT, 1),
    "initial_rebalance_delay_ms": (GROUP_INITIAL_DELAY, 1),
    "members_max": (GROUP_SIZE, 1),
    "groups_max": (GROUPS, 1),
    "retention_ms": (OFFSETS_RETENTION, MINUTE_MS),
    "instances_max": (INSTANCES, 1),
    "instance_timeout_ms": (INSTANCE_TIMEOUT, 1),
}
"""The cluster setting of a field, and its unit."""


class TimerKind(StrEnum):
    """The timers of a group and its members."""

    SESSION = "session"
    """Starts at the last heartbeat. Removes the member, or the id that a classic group handed
    out."""
    REBALANCE = "rebalance"
    """Removes a stuck member that gives up no partitions from a consumer group. Ends a classic
    group's wait for members to join."""
    SYNC = "sync"
    """Ends a classic group's wait for members to sync."""


class MemberTimer(NamedTuple):
    """A timer of a member, or of a classic group if the id is empty."""

    kind: TimerKind
    group: str
    member_id: str = ""


class ShardTimer(StrEnum):
    """The timers of a shard."""

    SWEEP = "sweep"
    """Searches for expired offsets and groups."""
    REFRESH = "refresh"
    """Follows a change of topics."""


class InstanceTimerKind(StrEnum):
    """The timers of REST consumer instances."""

    IDLE = "instance-idle"
    """Starts at the last request. Ends the instance."""
    STEP = "instance-step"
    """Has the instances of a changed group follow their targets."""


class InstanceTimer(NamedTuple):
    """A timer of an instance, or of all instances of a group."""

    kind: InstanceTimerKind
    group: str
    instance: str
    """Name of the instance, or empty for all of the group."""


GroupTimer: TypeAlias = MemberTimer | ShardTimer | InstanceTimer


@dataclass(slots=True)
class Shared:
    """The soft state that all groups of a shard share."""

    settings: GroupSettings
    """Settings in force."""
    counts: Counts = field(default_factory=Counter)
    timers: Timers[GroupTimer] = field(default_factory=Timers)
    last_ticket: int = 0
    """Newest number of a request held by a classic group."""

    def next_ticket(self) -> int:
        """A number that no held request of the shard has had."""
        self.last_ticket += 1
        return self.last_ticket
