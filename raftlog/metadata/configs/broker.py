"""Settings of all brokers that an operator changes while the cluster runs.

They are cluster settings like the topic configs that are set for the whole cluster, in the same
table of the image and by the same command, so every node applies a change at the same index of the
metadata log, without a restart. Validation happens before the proposal. A reader takes the default
for a value that is no number, and the nearest bound for a value out of bounds, because a bad value
must not break the arithmetic of leases.

`LEASE_BOUND` is not the operator's. The active controller keeps it (controller/sessions.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog.metadata.configs.kafka import INERT_CONFIG_TABLE
from raftlog.metadata.configs.topic import (
    CONFIG_TABLE,
    ConfigDescription,
    ConfigSource,
    described,
    inert_config,
    unknown_config,
)
from raftlog.metadata.configs.values import INTEGER, ConfigEntry, ConfigType, validate_entry

SESSION_TIMEOUT: Final = "broker.session.timeout.ms"
REBALANCE_DELAY: Final = "leader.rebalance.delay.ms"
REPLICA_LAG: Final = "replica.lag.time.max.ms"
SCRUB_RATE: Final = "log.scrub.bytes.per.second"
DISK_RESERVE: Final = "disk.reserve.bytes"
INSTANCE_TIMEOUT: Final = "consumer.instance.timeout.ms"
INSTANCES: Final = "consumer.instances.max"
GROUP_SESSION_MIN: Final = "group.min.session.timeout.ms"
GROUP_SESSION_MAX: Final = "group.max.session.timeout.ms"
GROUP_SESSION: Final = "group.consumer.session.timeout.ms"
GROUP_HEARTBEAT: Final = "group.consumer.heartbeat.interval.ms"
GROUP_INITIAL_DELAY: Final = "group.initial.rebalance.delay.ms"
GROUP_SIZE: Final = "group.max.size"
GROUPS: Final = "group.coordinator.max.groups"
OFFSETS_RETENTION: Final = "offsets.retention.minutes"
TRANSACTION_TIMEOUT: Final = "transaction.max.timeout.ms"
TRANSACTION_PREPARED: Final = "transaction.prepared.timeout.ms"
TRANSACTIONAL_ID_RETENTION: Final = "transactional.id.expiration.ms"
LEASE_BOUND: Final = "controller.lease.bound.ms"
"""Setting of the longest session timeout, in ms, that a lease may still rest on. Without it, the
default timeout is meant."""

NO_REBALANCE: Final = -1
"""Value of `REBALANCE_DELAY` that leaves leaders where they are."""

_HOUR_MS: Final = 60 * 60 * 1000
_DAY_MS: Final = 24 * _HOUR_MS

_ENTRIES = (
    ConfigEntry(
        SESSION_TIMEOUT,
        ConfigType.INT,
        "1500",
        "Milliseconds of silence after which a broker is fenced and others lead its partitions. A "
        "leader that is cut off from the controller stops to lead before this time is over.",
        # Three heartbeats fit into the lease of the shortest.
        lower=1000,
        upper=60_000,
    ),
    ConfigEntry(
        DISK_RESERVE,
        ConfigType.LONG,
        str(4 << 20),
        "Bytes of free disk space that appends leave to checkpoints, indexes and the metadata log; "
        "with less room a node rejects writes with DISK_FULL.",
        # The bound is above the room below which the quorum rejects proposals (1 MiB), since
        # records must not take it.
        lower=2 << 20,
        upper=1 << 40,
    ),
    ConfigEntry(
        REBALANCE_DELAY,
        ConfigType.LONG,
        str(30_000),
        "Milliseconds for which a broker must have been back before it is given the leadership of "
        "partitions with their preferred replica on it; -1: never.",
        lower=NO_REBALANCE,
        upper=_DAY_MS,
    ),
    ConfigEntry(
        SCRUB_RATE,
        ConfigType.LONG,
        str(8 << 20),
        "Bytes per second at which each node reads finished segments again to find damage; 0: "
        "never.",
        lower=0,
        upper=1 << 40,
    ),
    ConfigEntry(
        REPLICA_LAG,
        ConfigType.LONG,
        "2000",
        "Milliseconds for which a follower may lack records before it leaves the in-sync set.",
        # The bound is above the heartbeat interval. A node with a hanging disk finds out about its
        # successor before the successor can commit without the node (controller/DESIGN.md).
        lower=1000,
        upper=10 * 60 * 1000,
    ),
    ConfigEntry(
        INSTANCE_TIMEOUT,
        ConfigType.INT,
        "300000",
        "Milliseconds without a request after which a REST consumer instance ends.",
        # A read contacts its coordinator again every second.
        lower=5000,
        upper=_DAY_MS,
    ),
    ConfigEntry(
        INSTANCES,
        ConfigType.INT,
        "1000",
        "Most REST consumer instances of one coordinator, which is a partition of "
        "`__consumer_offsets`: further ones get TOO_MANY_INSTANCES.",
        lower=0,
        upper=100_000,
    ),
    ConfigEntry(
        GROUP_HEARTBEAT,
        ConfigType.INT,
        "5000",
        "Longest interval in milliseconds between two heartbeats of a consumer group's member; a "
        "third of its session timeout if that is shorter.",
        lower=500,
        upper=60_000,
    ),
    ConfigEntry(
        GROUP_SESSION,
        ConfigType.INT,
        "45000",
        "Milliseconds of silence after which a consumer group's member that names no session "
        "timeout is removed.",
        lower=1000,
        upper=_HOUR_MS,
    ),
    ConfigEntry(
        GROUPS,
        ConfigType.INT,
        "10000",
        "Most groups of one coordinator, which is a partition of `__consumer_offsets`: joins and "
        "commits of further ones get TOO_MANY_GROUPS.",
        lower=1,
        upper=1_000_000,
    ),
    ConfigEntry(
        GROUP_INITIAL_DELAY,
        ConfigType.INT,
        "300",
        "Milliseconds for which an empty classic group waits for further members before its first "
        "rebalance.",
        lower=0,
        upper=60_000,
    ),
    ConfigEntry(
        GROUP_SESSION_MAX,
        ConfigType.INT,
        "300000",
        "Longest session timeout in milliseconds that a member of a group may name.",
        lower=1000,
        upper=_HOUR_MS,
    ),
    ConfigEntry(
        GROUP_SIZE,
        ConfigType.INT,
        "1000",
        "Most members of one group: further joins get GROUP_FULL.",
        lower=1,
        # The targets of all members are one batch.
        upper=5_000,
    ),
    ConfigEntry(
        GROUP_SESSION_MIN,
        ConfigType.INT,
        # Leases of replicated services fit three attempts of a heartbeat, of 0.1 s each.
        "500",
        "Shortest session timeout in milliseconds that a member of a group may name.",
        lower=500,
        upper=_HOUR_MS,
    ),
    ConfigEntry(
        OFFSETS_RETENTION,
        ConfigType.INT,
        str(7 * 24 * 60),
        "Minutes for which committed offsets are kept once their group is without members.",
        lower=1,
        upper=10 * 366 * 24 * 60,
    ),
    ConfigEntry(
        TRANSACTION_TIMEOUT,
        ConfigType.INT,
        str(15 * 60_000),
        "Longest transaction timeout in milliseconds that a producer may ask for.",
        lower=1000,
        upper=_DAY_MS,
    ),
    ConfigEntry(
        TRANSACTION_PREPARED,
        ConfigType.LONG,
        str(_DAY_MS),
        "Milliseconds after which a prepared transaction is reported as overdue; only an operator "
        "ends it.",
        lower=60_000,
        upper=366 * _DAY_MS,
    ),
    ConfigEntry(
        TRANSACTIONAL_ID_RETENTION,
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "Milliseconds without a transaction after which a transactional id is forgotten.",
        # Longer than any transaction.
        lower=_DAY_MS,
        upper=3660 * _DAY_MS,
    ),
)
BROKER_CONFIG_TABLE: Final[Mapping[str, ConfigEntry]] = {entry.name: entry for entry in _ENTRIES}
SESSION_TIMEOUT_S_DEFAULT: Final = int(BROKER_CONFIG_TABLE[SESSION_TIMEOUT].default) / 1000


def session_timeout_s(settings: Mapping[str, str]) -> float:
    """Seconds of silence after which a broker is to be fenced."""
    return _number(settings, SESSION_TIMEOUT) / 1000


def lease_bound_s(settings: Mapping[str, str]) -> float:
    """The longest session timeout, in seconds, that any lease may rest on now."""
    return _parsed(settings, LEASE_BOUND, BROKER_CONFIG_TABLE[SESSION_TIMEOUT]) / 1000


def lease_bound_change(timeout_s: float) -> tuple[dict[str, str], tuple[str, ...]]:
    """Values and removals by which the lease bound becomes this timeout."""
    if timeout_s == SESSION_TIMEOUT_S_DEFAULT:
        return {}, (LEASE_BOUND,)
    return {LEASE_BOUND: str(round(timeout_s * 1000))}, ()


def rebalance_delay_s(settings: Mapping[str, str]) -> float | None:
    """Seconds that a preferred leader must have been back. None if it gets nothing back."""
    delay_ms = _number(settings, REBALANCE_DELAY)
    return None if delay_ms == NO_REBALANCE else delay_ms / 1000


def replica_lag_max_s(settings: Mapping[str, str]) -> float:
    """Seconds for which a member of the ISR may lack records."""
    return _number(settings, REPLICA_LAG) / 1000


def scrub_bytes_per_s(settings: Mapping[str, str]) -> int:
    """Bytes per second that the scrubber may read. 0 for none."""
    return _number(settings, SCRUB_RATE)


def disk_reserve_bytes(settings: Mapping[str, str]) -> int:
    """Bytes of free disk space that appends leave."""
    return _number(settings, DISK_RESERVE)


def coordinator_number(settings: Mapping[str, str], name: str) -> int:
    """A setting of groups or transactions, in the setting's unit."""
    return _number(settings, name)


def find_broker_config(name: str) -> ConfigEntry:
    """The table's row of that name. Raises LogError(INVALID_CONFIG) if there is none."""
    entry = BROKER_CONFIG_TABLE.get(name)
    if entry is None:
        raise unknown_config("broker config", name, BROKER_CONFIG_TABLE)
    return entry


def validate_cluster_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Normalise broker configs, and topic configs for the whole cluster.

    Raises LogError(INVALID_CONFIG) for an unknown name or a value out of bounds.
    """
    return {
        name: validate_entry(find_cluster_setting(name), value) for name, value in settings.items()
    }


def find_cluster_setting(name: str) -> ConfigEntry:
    """The row of a broker or topic config. Raises LogError(INVALID_CONFIG) without such a row."""
    entry = BROKER_CONFIG_TABLE.get(name) or CONFIG_TABLE.get(name)
    if name in INERT_CONFIG_TABLE:
        raise inert_config(name)
    if entry is None:
        raise unknown_config("broker or topic config", name, (*BROKER_CONFIG_TABLE, *CONFIG_TABLE))
    return entry


def operator_settings(settings: Mapping[str, str]) -> Mapping[str, str]:
    """The settings without the entry that the controller keeps."""
    if LEASE_BOUND not in settings:
        return settings
    return {name: value for name, value in settings.items() if name != LEASE_BOUND}


def describe_broker_configs(settings: Mapping[str, str]) -> list[ConfigDescription]:
    """Every broker config with its value and the value's source."""
    places = ((ConfigSource.CLUSTER, settings),)
    return [described(entry, places, default=entry.default) for entry in _ENTRIES]


def _number(settings: Mapping[str, str], name: str) -> int:
    return _parsed(settings, name, BROKER_CONFIG_TABLE[name])


def _parsed(settings: Mapping[str, str], name: str, entry: ConfigEntry) -> int:
    value = settings.get(name)
    if value is None or INTEGER.fullmatch(value) is None:
        return int(entry.default)
    assert entry.lower is not None
    assert entry.upper is not None
    return min(max(int(value), entry.lower), entry.upper)
