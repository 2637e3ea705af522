"""Kafka's topic configs, with all names of Kafka 4.3 and the rows without effect here.

Connect, Streams and Kafka's tools create topics with configs of Kafka, and fail if a name is not
known. So a topic accepts and keeps each of them, after a check of the value's type. A describe
returns it, with a note. Nothing reads the rows of this table for a decision. Configs with effect
are in `configs`, with their rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from raftlog.metadata.configs.values import (
    INT32_MAX,
    INT64_MAX,
    ConfigEntry,
    ConfigType,
    WordForm,
)

KAFKA_TOPIC_CONFIGS: Final = frozenset(
    {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.downconversion.enable",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""Every topic config of Kafka 4.3 (org.apache.kafka.common.config.TopicConfig, and the two lists of
throttled replicas)."""

REPLICAS_CHARACTERS_MAX: Final = 16 * 1024
"""Characters of the longest list of throttled replicas, about 2,000 replicas. The command of a
change holds it."""

_HOUR_MS: Final = 60 * 60 * 1000
_REPLICA: Final = WordForm(re.compile(r"\*|[0-9]{1,10}:[0-9]{1,10}"), "partition:broker, or '*'")


def _inert(
    name: str,
    kind: ConfigType,
    default: str,
    doc: str,
    bounds: tuple[int | None, int | None] = (None, None),
    *,
    choices: tuple[str, ...] = (),
) -> ConfigEntry:
    """The row of a config without effect."""
    lower, upper = bounds
    return ConfigEntry(
        name, kind, default, doc, lower=lower, upper=upper, choices=choices, has_effect=False
    )


def _throttled(name: str, doc: str) -> ConfigEntry:
    return ConfigEntry(
        name,
        ConfigType.LIST,
        "",
        doc,
        word_form=_REPLICA,
        characters_max=REPLICAS_CHARACTERS_MAX,
        has_effect=False,
    )


_ENTRIES: Final = (
    _inert(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        "Effort of gzip where a broker compresses; -1: gzip's own default. Here producers "
        "compress, and no broker.",
        (-1, 9),
    ),
    _inert(
        "compression.lz4.level",
        ConfigType.INT,
        "9",
        "Effort of LZ4 where a broker compresses. Here producers compress, and no broker.",
        (1, 17),
    ),
    _inert(
        "compression.zstd.level",
        ConfigType.INT,
        "3",
        "Effort of Zstandard where a broker compresses. Here producers compress, and no broker.",
        (-131_072, 22),
    ),
    _inert(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Compression of stored batches. Here a batch is stored as its producer compressed it.",
        choices=("gzip", "lz4", "producer", "snappy", "uncompressed", "zstd"),
    ),
    _inert(
        "file.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        "How long the file of a deleted segment stays on the disk.",
        (0, INT64_MAX),
    ),
    _inert(
        "flush.messages",
        ConfigType.LONG,
        str(INT64_MAX),
        "Number of records after which a log is fsynced. Here `flush` decides when an append is "
        "durable.",
        (1, INT64_MAX),
    ),
    _inert(
        "flush.ms",
        ConfigType.LONG,
        str(INT64_MAX),
        "Time after which a log is fsynced. Here `flush` decides when an append is durable.",
        (0, INT64_MAX),
    ),
    _throttled(
        "follower.replication.throttled.replicas",
        "Followers whose replication is throttled. Here `leader.replication.throttled.rate` is "
        "for all replicas that a reassignment adds.",
    ),
    _throttled(
        "leader.replication.throttled.replicas",
        "Leaders whose replication is throttled. Here `leader.replication.throttled.rate` is for "
        "all replicas that a reassignment adds.",
    ),
    _inert(
        "local.retention.bytes",
        ConfigType.LONG,
        "-2",
        "Size of a partition on the broker's own disk with tiered storage; -2: as "
        "retention.bytes. There is no tiered storage here.",
        (-2, INT64_MAX),
    ),
    _inert(
        "local.retention.ms",
        ConfigType.LONG,
        "-2",
        "Time for which segments stay on the broker's own disk with tiered storage; -2: as "
        "retention.ms. There is no tiered storage here.",
        (-2, INT64_MAX),
    ),
    _inert(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        str(INT64_MAX),
        "Longest time for which a record of a compacted topic may stay uncompacted.",
        (1, INT64_MAX),
    ),
    _inert(
        "message.downconversion.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether batches are converted to older formats for old consumers. Nor does Kafka 4.",
    ),
    _inert(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        str(_HOUR_MS),
        "How far a record's timestamp may be ahead of the broker's clock.",
        (0, INT64_MAX),
    ),
    _inert(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        str(INT64_MAX),
        "How far a record's timestamp may be behind the broker's clock.",
        (0, INT64_MAX),
    ),
    _inert(
        "preallocate",
        ConfigType.BOOLEAN,
        "false",
        "Whether the file of a new segment takes its whole size on the disk at once.",
    ),
    _inert(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        "false",
        "Whether no more segments go to tiered storage. There is no tiered storage here.",
    ),
    _inert(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        "false",
        "Whether segments in tiered storage are deleted once it is switched off for the topic. "
        "There is no tiered storage here.",
    ),
    _inert(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether older segments go to tiered storage. There is no tiered storage here: all "
        "segments stay on the disks of the replicas.",
    ),
    _inert(
        "segment.index.bytes",
        ConfigType.INT,
        "10485760",
        "Size at which the offset index of a segment is full, and the segment is closed.",
        (4, INT32_MAX),
    ),
    _inert(
        "segment.jitter.ms",
        ConfigType.LONG,
        "0",
        "Random time by which segments are closed before segment.ms, so that not all close at "
        "once.",
        (0, INT64_MAX),
    ),
)
INERT_CONFIG_TABLE: Final[Mapping[str, ConfigEntry]] = {entry.name: entry for entry in _ENTRIES}
