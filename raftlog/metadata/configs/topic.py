"""Topic configs, in the one table of names, types, bounds and meanings.

Names, types and defaults are Kafka's where Kafka has them. Values are strings everywhere (requests,
commands, image) and become typed in one place, `TopicConfig.from_configs`. The deciding node
validates a value. Applying and reading never do, since this release must not refuse values written
by another. So readers ignore unknown names, and accept a known value outside its bounds. A value
that cannot be parsed is an error, because a guessed retention would delete data.

Kafka's other topic configs are accepted and kept without effect, see `configs/kafka.py`.

Precedence: set on the topic, else for the cluster (`AlterClusterSettings`), else for the node
(command line), else the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from raftlog.metadata.configs.kafka import INERT_CONFIG_TABLE
from raftlog.metadata.configs.values import (
    INT32_MAX,
    INT64_MAX,
    INTEGER,
    ConfigEntry,
    ConfigType,
    parse_bool,
    parse_float,
    parse_int,
    split_words,
    validate_entry,
)
from raftlog.record.errors import INVALID_CONFIG, QUOTED_CHARACTERS_MAX, LogError, quoted

MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
MIN_ISR: Final = "min.insync.replicas"
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
THROTTLED_RATE: Final = "leader.replication.throttled.rate"

_NONE: Final[Mapping[str, str]] = {}
_HOUR_MS: Final = 60 * 60 * 1000
_DAY_MS: Final = 24 * _HOUR_MS


class ConfigSource(StrEnum):
    """Where a config's value comes from."""

    TOPIC = "topic"
    CLUSTER = "cluster"
    NODE = "node"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """A config's value in force, and its source."""

    entry: ConfigEntry
    value: str
    source: ConfigSource
    synonyms: tuple[tuple[ConfigSource, str], ...]
    """Every place with a value, and the value there. The first is in force."""

    @property
    def is_default(self) -> bool:
        """Whether the value is the table's default, set for neither topic, cluster nor node."""
        return self.source is ConfigSource.DEFAULT


_ENTRIES = (
    ConfigEntry(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "What happens to old records: 'delete' drops whole segments by age and size, 'compact' "
        "keeps the newest record of each key; both may be combined.",
        choices=("compact", "delete"),
    ),
    ConfigEntry(
        "delete.retention.ms",
        ConfigType.LONG,
        str(_DAY_MS),
        "How long a compacted topic keeps a tombstone, so that a slow reader still learns of the "
        "deletion.",
        lower=0,
        upper=INT64_MAX,
    ),
    ConfigEntry(
        "flush",
        ConfigType.STRING,
        "sync",
        "What acks=all waits for: 'sync', the records are on disk; 'async', the operating system "
        "has them, and losing power on min.insync.replicas of them at once can lose the newest: "
        "the partition then stays offline until an operator accepts the loss.",
        choices=("sync", "async"),
    ),
    ConfigEntry(
        "index.interval.bytes",
        ConfigType.INT,
        "4096",
        "Bytes of log between two entries of the offset index.",
        lower=0,
        upper=INT32_MAX,
    ),
    ConfigEntry(
        THROTTLED_RATE,
        ConfigType.LONG,
        "0",
        "Bytes per second that a leader sends to each node for replicas that a reassignment adds; "
        "0: as fast as it can. Nothing else is throttled. It counts as set for the cluster: one "
        "connection carries the replicas of all topics.",
        lower=0,
        upper=INT64_MAX,
    ),
    ConfigEntry(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        "The largest record batch that is accepted, in bytes, as compressed by the producer.",
        lower=1,
        upper=MESSAGE_BYTES_MAX,
    ),
    ConfigEntry(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whether records keep the producer's timestamp (CreateTime) or get that of their append.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    ConfigEntry(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "A compacted log is compacted again once this part of it is new since the last time.",
        lower=0,
        upper=1,
    ),
    ConfigEntry(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        "How long a record is safe from compaction after it was written.",
        lower=0,
        upper=INT64_MAX,
    ),
    ConfigEntry(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        "With acks=all, a write is refused unless this many replicas are in sync. The default is 2 "
        "for topics of 3 replicas or more, else 1.",
        lower=1,
        upper=INT32_MAX,
    ),
    ConfigEntry(
        "retention.bytes",
        ConfigType.LONG,
        "-1",
        "Above this size of a partition its oldest segments are dropped; -1: no limit.",
        lower=-1,
        upper=INT64_MAX,
    ),
    ConfigEntry(
        "retention.ms",
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "Segments whose newest record is older than this are dropped; -1: no limit.",
        lower=-1,
        upper=INT64_MAX,
    ),
    ConfigEntry(
        "segment.bytes",
        ConfigType.INT,
        str(1024**3),
        "Size at which a segment is closed and the next one begun.",
        lower=1024,
        upper=INT32_MAX,
    ),
    ConfigEntry(
        "segment.ms",
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "Age at which a segment is closed even if it is not full.",
        lower=1,
        upper=INT64_MAX,
    ),
    ConfigEntry(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether a replica that was not in sync may lead when no other is left: the one alive with "
        "the longest log. It loses acknowledged records.",
    ),
)
CONFIG_TABLE: Final[Mapping[str, ConfigEntry]] = {entry.name: entry for entry in _ENTRIES}
"""The configs with effect."""
TOPIC_CONFIG_TABLE: Final[Mapping[str, ConfigEntry]] = dict(
    sorted({**CONFIG_TABLE, **INERT_CONFIG_TABLE}.items())
)
"""All configs that a topic accepts, with effect or not."""


def find_entry(name: str) -> ConfigEntry:
    """The row of the name, with effect or not. Raises LogError(INVALID_CONFIG) if there is none."""
    entry = TOPIC_CONFIG_TABLE.get(name)
    if entry is None:
        raise unknown_config("topic config", name, TOPIC_CONFIG_TABLE)
    return entry


def unknown_config(kind: str, name: str, known: Iterable[str]) -> LogError:
    """The error for a name that is not `known`, with the likeliest known name."""
    close = get_close_matches(name[:QUOTED_CHARACTERS_MAX], known, 1)
    advice = f" Did you mean {close[0]}?" if close else ""
    return LogError(INVALID_CONFIG, f"There is no {kind} {quoted(name)}.{advice}")


def validate(name: str, value: str) -> str:
    """The value, normalised. Raises LogError(INVALID_CONFIG) for an unknown name or bad value."""
    return validate_entry(find_entry(name), value)


def validate_all(configs: Mapping[str, str]) -> dict[str, str]:
    """All values, normalised. Raises LogError(INVALID_CONFIG)."""
    return {name: validate(name, value) for name, value in configs.items()}


def validate_defaults(configs: Mapping[str, str]) -> dict[str, str]:
    """Normalise the node's topic configs, all with effect. Raises LogError(INVALID_CONFIG)."""
    for name in configs:
        if name in INERT_CONFIG_TABLE:
            raise inert_config(name)
    return validate_all(configs)


def inert_config(name: str) -> LogError:
    """The error for a config without effect as a default of many topics.

    Kafka's tools set them on topics. An operator's default must not be silently without effect.
    """
    return LogError(
        INVALID_CONFIG,
        f"{name} has no effect in raftlog: a topic keeps it for Kafka's tools, but it is no "
        "default of a node or cluster.",
    )


def min_isr_default(replication_factor: int) -> int:
    """min.insync.replicas of a topic, where no config sets it."""
    return 2 if replication_factor >= 3 else 1


def throttled_rate(cluster: Mapping[str, str]) -> int:
    """Bytes per second for replicas added by a reassignment. 0 for no limit.

    The cluster's settings decide. A value without a number counts as no limit, since no records are
    at stake.
    """
    value = cluster.get(THROTTLED_RATE, "0")
    return max(0, int(value)) if INTEGER.fullmatch(value) else 0


def is_unclean_election_enabled(configs: Mapping[str, str], cluster: Mapping[str, str]) -> bool:
    """Whether the topic, or the cluster for the topic, allows unclean elections.

    Any value except `true` counts as no, because losing records takes a clear yes.
    """
    value = configs.get(UNCLEAN_ELECTION, cluster.get(UNCLEAN_ELECTION, "false"))
    return value.lower() == "true"


def describe(
    configs: Mapping[str, str],
    defaults: Mapping[str, str],
    *,
    replication_factor: int,
    cluster: Mapping[str, str] = _NONE,
) -> list[ConfigDescription]:
    """Every config of a topic with its own `configs`, on a node with `defaults`.

    `cluster` are the cluster's settings.
    """
    places = (
        (ConfigSource.TOPIC, configs),
        (ConfigSource.CLUSTER, cluster),
        (ConfigSource.NODE, defaults),
    )
    return [
        described(entry, places, default=_default(entry, replication_factor))
        for entry in TOPIC_CONFIG_TABLE.values()
    ]


def described(
    entry: ConfigEntry,
    places: Iterable[tuple[ConfigSource, Mapping[str, str]]],
    *,
    default: str,
) -> ConfigDescription:
    """A config with values in some of these places. The first value is in force."""
    synonyms = (
        *((source, values[entry.name]) for source, values in places if entry.name in values),
        (ConfigSource.DEFAULT, default),
    )
    source, value = synonyms[0]
    return ConfigDescription(entry, value, source, synonyms)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configs in force for one topic, typed. See the table for the meaning of each."""

    cleanup_policy: frozenset[str]
    delete_retention_ms: int
    flush: str
    index_interval_bytes: int
    leader_replication_throttled_rate: int
    max_message_bytes: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @classmethod
    def from_configs(
        cls,
        configs: Mapping[str, str],
        defaults: Mapping[str, str],
        *,
        replication_factor: int,
        cluster: Mapping[str, str] = _NONE,
    ) -> TopicConfig:
        """The configs in force for a topic with set `configs`, on a node with `defaults`.

        `cluster` are the cluster's settings, below the topic's and above the node's. Raises
        LogError(INVALID_CONFIG) if a value is not of its config's type.
        """
        text = {
            name: _effective(entry, configs, cluster, defaults, replication_factor)[0]
            for name, entry in CONFIG_TABLE.items()
        }

        def integer(name: str) -> int:
            return parse_int(CONFIG_TABLE[name], text[name])

        return cls(
            cleanup_policy=frozenset(split_words(text["cleanup.policy"])),
            delete_retention_ms=integer("delete.retention.ms"),
            flush=text["flush"],
            index_interval_bytes=integer("index.interval.bytes"),
            leader_replication_throttled_rate=integer(THROTTLED_RATE),
            max_message_bytes=integer("max.message.bytes"),
            message_timestamp_type=text["message.timestamp.type"],
            min_cleanable_dirty_ratio=parse_float(
                CONFIG_TABLE["min.cleanable.dirty.ratio"], text["min.cleanable.dirty.ratio"]
            ),
            min_compaction_lag_ms=integer("min.compaction.lag.ms"),
            min_insync_replicas=integer("min.insync.replicas"),
            retention_bytes=integer("retention.bytes"),
            retention_ms=integer("retention.ms"),
            segment_bytes=integer("segment.bytes"),
            segment_ms=integer("segment.ms"),
            unclean_leader_election_enable=parse_bool(
                CONFIG_TABLE["unclean.leader.election.enable"],
                text["unclean.leader.election.enable"],
            ),
        )


def _effective(
    entry: ConfigEntry,
    configs: Mapping[str, str],
    cluster: Mapping[str, str],
    defaults: Mapping[str, str],
    replication_factor: int,
) -> tuple[str, ConfigSource]:
    for source, values in (
        (ConfigSource.TOPIC, configs),
        (ConfigSource.CLUSTER, cluster),
        (ConfigSource.NODE, defaults),
    ):
        if entry.name in values:
            return values[entry.name], source
    return _default(entry, replication_factor), ConfigSource.DEFAULT


def _default(entry: ConfigEntry, replication_factor: int) -> str:
    return str(min_isr_default(replication_factor)) if entry.name == MIN_ISR else entry.default
