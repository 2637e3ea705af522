"""The image as bytes: JSON lines, one row to a line, so that no step of it takes long.

Line 1 is the header, with the number of rows; then each broker, then each topic, in order of id and
name. Equal images have equal bytes, whatever the order in which they came to be.

Unlike in a command, an unknown field here is an error: every field of a snapshot is state, and to
ignore one would be to lose it at the next snapshot. A release that adds a field writes it under a
higher `v`, and only once the image holds something that the lower one cannot.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from raftlog.metadata.commands import MetadataVersionError
from raftlog.metadata.image import BrokerImage, MetadataImage, TopicImage
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.record.types import ProducerId, TopicId

SNAPSHOT_VERSION: Final = 1
"""The newest snapshot version that this node reads, and the one it writes."""

_FORMAT = "raftlog-metadata"


class _Version(msgspec.Struct, frozen=True):
    format: str
    v: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    v: int
    index: int
    cluster_id: str | None
    created_ms: int
    next_producer_id: ProducerId
    deleted_topic_ids: tuple[TopicId, ...]
    brokers: int
    topics: int


_ENCODER = msgspec.json.Encoder(order="deterministic")
_T = TypeVar("_T")


def snapshot_bytes(image: MetadataImage) -> bytes:
    """The image's bytes. An image that may change meanwhile must be copied first."""
    header = _Header(
        format=_FORMAT,
        v=SNAPSHOT_VERSION,
        index=image.applied_index,
        cluster_id=image.cluster_id,
        created_ms=image.created_ms,
        next_producer_id=image.next_producer_id,
        deleted_topic_ids=tuple(image.deleted_topic_ids),
        brokers=len(image.brokers),
        topics=len(image.topics_by_name),
    )
    lines = [_ENCODER.encode(header)]
    lines += [_ENCODER.encode(image.brokers[broker_id]) for broker_id in sorted(image.brokers)]
    lines += [_ENCODER.encode(image.topics_by_name[name]) for name in sorted(image.topics_by_name)]
    lines.append(b"")
    return b"\n".join(lines)


def from_snapshot(content: bytes) -> MetadataImage:
    """The image that these bytes hold.

    Raises MetadataVersionError for a newer version, LogError(STORAGE_FAILED) for anything that is
    not a whole snapshot.
    """
    lines = content.split(b"\n")
    version = _decode(_Version, lines[0])
    if version.format == _FORMAT and version.v > SNAPSHOT_VERSION:
        raise MetadataVersionError(
            f"The metadata snapshot is of version {version.v}, but this raftlog knows versions up "
            f"to {SNAPSHOT_VERSION}: upgrade this node."
        )
    header = _decode(_Header, lines[0])
    rows = header.brokers + header.topics
    if header.format != _FORMAT or len(lines) != rows + 2 or lines[-1] != b"":
        raise _damaged(f"{len(lines)} lines for {rows} rows of {header.format!r}")
    image = MetadataImage()
    image.applied_index = header.index
    image.cluster_id = header.cluster_id
    image.created_ms = header.created_ms
    image.next_producer_id = header.next_producer_id
    image.deleted_topic_ids = dict.fromkeys(header.deleted_topic_ids)
    for line in lines[1 : 1 + header.brokers]:
        broker = _decode(BrokerImage, line)
        image.brokers[broker.broker_id] = broker
    for line in lines[1 + header.brokers : -1]:
        topic = _decode(TopicImage, line)
        image.topics_by_id[topic.topic_id] = topic
        image.topics_by_name[topic.name] = topic
    return image


def _decode(kind: type[_T], line: bytes) -> _T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise _damaged(str(error)) from error


def _damaged(reason: str) -> LogError:
    return LogError(STORAGE_FAILED, f"The metadata snapshot is not valid: {reason}.")
