"""Subscriptions resolve topics by name and by RE2 pattern against the applied metadata. Pure.

Patterns come from users, and the coordinator runs in the event loop of a node. RE2 takes time in
proportion to the text, whatever the pattern. Python's `re` can take forever and is never used here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import re2

from raftlog.coordinator.groups.assignors import Subscriber
from raftlog.coordinator.groups.messages import MemberReport
from raftlog.coordinator.shard.records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
)
from raftlog.metadata.image import MetadataImage
from raftlog.record.coordinators import INTERNAL_TOPICS
from raftlog.record.errors import INVALID_PATTERN, LogError, quoted
from raftlog.record.types import TopicId

PATTERN_CHARACTERS_MAX: Final = 1_000
_PATTERN_MEMORY_BYTES: Final = 1 << 20
"""Most bytes of a compiled pattern. re2 keeps the last 128 patterns."""
_HASH_BYTES: Final = 8

Members: TypeAlias = Mapping[str, ConsumerGroupMemberMetadataValue]
"""Members by member id."""
Patterns: TypeAlias = Mapping[str, ConsumerGroupRegularExpressionValue]
"""Resolved patterns, by their text."""
Reports: TypeAlias = Mapping[str, MemberReport]
"""Reports by member id."""


def check_pattern(pattern: str) -> str:
    """The pattern itself, if valid. Raises LogError(INVALID_PATTERN)."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise LogError(
            INVALID_PATTERN,
            f"The topic pattern has {len(pattern)} characters; {PATTERN_CHARACTERS_MAX} are the "
            "most. Name the topics instead.",
        )
    _compiled(pattern)
    return pattern


def matched_topics(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """Sorted names that the pattern matches as a whole, without internal topics."""
    compiled = _compiled(pattern)
    return tuple(
        sorted(name for name in names if name not in INTERNAL_TOPICS and compiled.fullmatch(name))
    )


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise LogError(
            INVALID_PATTERN,
            f"The topic pattern {quoted(pattern)} is not valid in RE2's syntax: {reason}.",
        ) from error


def partition_counts(image: MetadataImage, names: Iterable[str]) -> dict[TopicId, int]:
    """Partitions of each topic of these names that exists."""
    counts: dict[TopicId, int] = {}
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is not None:
            counts[topic.topic_id] = len(topic.partitions)
    return counts


def metadata_hash(counts: Mapping[TopicId, int]) -> int:
    """64 signed bits that differ when a topic or a partition is created or deleted.

    They are 0 without topics, and the same on every node, so that a new coordinator finds changes
    since the last coordinator's decision.
    """
    if not counts:
        return 0
    digest = blake2b(digest_size=_HASH_BYTES)
    for topic_id, count in sorted(counts.items()):
        digest.update(f"{topic_id}:{count};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def resolve(
    pattern: str, image: MetadataImage, time_ms: int
) -> ConsumerGroupRegularExpressionValue:
    """The pattern's topics now."""
    topics = matched_topics(pattern, image.topics_by_name)
    return ConsumerGroupRegularExpressionValue(topics, image.applied_index, time_ms)


def resolved_again(
    patterns: Patterns, image: MetadataImage, changed: Collection[str] | None, time_ms: int
) -> dict[str, ConsumerGroupRegularExpressionValue]:
    """The patterns with other topics since the `changed` topics were created or deleted.

    None as `changed` stands for any topics.
    """
    found: dict[str, ConsumerGroupRegularExpressionValue] = {}
    for pattern, value in patterns.items():
        if changed is None:
            topics = matched_topics(pattern, image.topics_by_name)
        else:
            present = [name for name in {*changed} if name in image.topics_by_name]
            kept = set(value.topics).difference(changed)
            topics = tuple(sorted(kept.union(matched_topics(pattern, present))))
        if topics != value.topics:
            found[pattern] = ConsumerGroupRegularExpressionValue(
                topics, image.applied_index, time_ms
            )
    return found


def subscribed_names(members: Members, patterns: Patterns) -> set[str]:
    """Names of all topics to which any member subscribes, existing or not."""
    names: set[str] = set()
    names.update(*(member.subscribed_topic_names for member in members.values()))
    names.update(*(value.topics for value in patterns.values()))
    return names


def subscribers(
    members: Members,
    patterns: Patterns,
    image: MetadataImage,
    reports: Reports,
) -> dict[str, Subscriber]:
    """The members for an assignor. Equal subscriptions share a set."""
    topic_ids: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
    found: dict[str, Subscriber] = {}
    for member_id, member in members.items():
        key = (member.subscribed_topic_names, member.subscribed_topic_regex)
        topics = topic_ids.get(key)
        if topics is None:
            resolved = patterns.get(member.subscribed_topic_regex or "")
            names = {*member.subscribed_topic_names, *(resolved.topics if resolved else ())}
            topics = topic_ids[key] = frozenset(partition_counts(image, names))
        report = reports.get(member_id)
        if report is None:
            found[member_id] = Subscriber(topics, member.instance_id)
        else:
            found[member_id] = Subscriber(
                topics, member.instance_id, report.position, report.primaries
            )
    return found
