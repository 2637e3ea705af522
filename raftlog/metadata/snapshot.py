"""The image as JSON lines, in pieces, so that no step takes long.

Line 1 is the header, with the number of rows. Next are the ids of deleted topics, oldest first, a
thousand to a line, then each broker and each topic, in order of id and name, each topic followed by
its partitions, about a thousand to a line. Equal images have equal bytes, whatever the order of
their changes. The pieces are cut anywhere, so only their sum has a meaning.

Encoding and decoding hold the interpreter for a line at a time. That bounds the lines, as the event
loop must not wait longer while another thread makes a snapshot.

Unlike in a command, an unknown field here is an error. Every field of a snapshot is state, and an
ignored field would be lost at the next snapshot. A release with a new field writes a higher `v`,
and only once the image holds state beyond the lower version.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeVar

import msgspec

from raftlog.metadata.commands import MetadataVersionError
from raftlog.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.record.types import BrokerId, ProducerId, TopicId

SNAPSHOT_VERSION: Final = 3
"""The newest snapshot version that this node reads.

1 has no `unclean_epoch` of partitions, and no `maintenance` and `decommissioning` of brokers.
2 has no Kafka addresses of brokers, and is written for an image without any.
"""
_KAFKA_FIELDS: Final = ("kafka_host", "kafka_port")
"""Fields of brokers, from version 3."""
PIECE_BYTES_MIN: Final = 64 * 1024
"""Every piece but the last is at least this large ..."""
PIECE_BYTES_MAX: Final = 1024 * 1024
"""... and none is larger than this."""
IDS_PER_LINE: Final = 1_000
REPLICAS_PER_LINE: Final = 3_000
"""Replicas of the partitions on one line, for 1,000 partitions of three replicas. 35 kB, under 1
ms."""

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
    cluster_settings: Mapping[str, str]
    deleted_topic_ids: int
    brokers: int
    topics: int


class _Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic_id: TopicId
    name: str
    configs: Mapping[str, str]
    partitions: int


_ENCODER = msgspec.json.Encoder(order="deterministic")
_VERSION = msgspec.json.Decoder(_Version)
_HEADER = msgspec.json.Decoder(_Header)
_IDS: msgspec.json.Decoder[tuple[TopicId, ...]] = msgspec.json.Decoder(tuple[TopicId, ...])
_BROKER = msgspec.json.Decoder(BrokerImage)
_BrokerOfVersion2: Final = msgspec.defstruct(
    "_BrokerOfVersion2",
    [
        (field.name, field.type)
        for field in msgspec.structs.fields(BrokerImage)
        if field.name not in _KAFKA_FIELDS
    ],
)
_TOPIC = msgspec.json.Decoder(_Topic)
_PARTITIONS: msgspec.json.Decoder[list[PartitionImage]] = msgspec.json.Decoder(list[PartitionImage])
_T = TypeVar("_T")


def snapshot_pieces(image: MetadataImage) -> Iterator[bytes]:
    """The image's bytes. Copy an image first if it may change during the iteration."""
    gathered: list[bytes] = []
    size = 0
    for line in _lines(image):
        gathered += (line, b"\n")
        size += len(line) + 1
        if size >= PIECE_BYTES_MIN:
            yield from _cut(b"".join(gathered))
            gathered.clear()
            size = 0
    if gathered:
        yield from _cut(b"".join(gathered))


def from_snapshot(pieces: Iterable[bytes]) -> MetadataImage:
    """Decode an image.

    Raises MetadataVersionError for a newer version, LogError(STORAGE_FAILED) for anything but a
    whole snapshot.
    """
    lines = _Lines(pieces)
    header = _header(lines.next())
    image = MetadataImage()
    image.applied_index = header.index
    image.cluster_id = header.cluster_id
    image.created_ms = header.created_ms
    image.next_producer_id = header.next_producer_id
    image.cluster_settings = header.cluster_settings
    while len(image.deleted_topic_ids) < header.deleted_topic_ids:
        ids = _decode(_IDS, lines.next())
        known = len(image.deleted_topic_ids)
        image.deleted_topic_ids.update(dict.fromkeys(ids))
        if not known < len(image.deleted_topic_ids) <= header.deleted_topic_ids:
            raise _damaged("other deleted topics than announced")
    for _ in range(header.brokers):
        broker = _decode(_BROKER, lines.next())
        image.brokers[broker.broker_id] = broker
    shared: dict[tuple[BrokerId, ...], tuple[BrokerId, ...]] = {}
    for _ in range(header.topics):
        topic = _topic(lines, shared)
        image.topics_by_id[topic.topic_id] = topic
        image.topics_by_name[topic.name] = topic
    lines.end()
    if len(image.brokers) != header.brokers or len(image.topics_by_id) != header.topics:
        raise _damaged("a row comes twice")
    return image


def _lines(image: MetadataImage) -> Iterator[bytes]:
    has_kafka = any(broker.kafka_host is not None for broker in image.brokers.values())
    yield _ENCODER.encode(
        _Header(
            format=_FORMAT,
            v=SNAPSHOT_VERSION if has_kafka else 2,
            index=image.applied_index,
            cluster_id=image.cluster_id,
            created_ms=image.created_ms,
            next_producer_id=image.next_producer_id,
            cluster_settings=image.cluster_settings,
            deleted_topic_ids=len(image.deleted_topic_ids),
            brokers=len(image.brokers),
            topics=len(image.topics_by_name),
        )
    )
    ids = iter(image.deleted_topic_ids)
    while some := tuple(islice(ids, IDS_PER_LINE)):
        yield _ENCODER.encode(some)
    for broker_id in sorted(image.brokers):
        row: object = image.brokers[broker_id]
        if not has_kafka:
            row = msgspec.convert(row, _BrokerOfVersion2, from_attributes=True)
        yield _ENCODER.encode(row)
    for name in _sorted(image.topics_by_name):
        topic = image.topics_by_name[name]
        rows = topic.partitions
        yield _ENCODER.encode(_Topic(topic.topic_id, topic.name, topic.configs, len(rows)))
        step = max(1, REPLICAS_PER_LINE // len(rows[0].replicas))
        for first in range(0, len(rows), step):
            yield _ENCODER.encode(rows[first : first + step])


def _sorted(names: Iterable[str]) -> Iterator[str]:
    # One sort of 100,000 names would hold the interpreter for tens of milliseconds.
    rest = iter(names)
    runs = []
    while some := sorted(islice(rest, 1_000)):
        runs.append(some)
    return heapq.merge(*runs)


def _cut(piece: bytes) -> Iterator[bytes]:
    if len(piece) <= PIECE_BYTES_MAX:
        yield piece
        return
    for first in range(0, len(piece), PIECE_BYTES_MAX):
        yield piece[first : first + PIECE_BYTES_MAX]


class _Lines:
    """The lines of bytes that come in pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._ready: list[bytes] = []
        self._rest: list[bytes] = []

    def next(self) -> bytes:
        """The next line, without its end. Raises LogError if there is none."""
        while not self._ready:
            piece = next(self._pieces, None)
            if piece is None:
                raise _damaged("it ends too early")
            *whole, rest = piece.split(b"\n")
            if whole:
                whole[0] = b"".join((*self._rest, whole[0]))
                self._rest.clear()
                whole.reverse()
                self._ready = whole
            self._rest.append(rest)
        return self._ready.pop()

    def end(self) -> None:
        """Check for the end."""
        if self._ready or any(self._rest) or any(self._pieces):
            raise _damaged("there is more than was announced")


def _header(line: bytes) -> _Header:
    version = _decode(_VERSION, line)
    if version.format != _FORMAT:
        raise _damaged(f"its format is {version.format[:40]!r}")
    if version.v > SNAPSHOT_VERSION:
        raise MetadataVersionError(
            f"The metadata snapshot is of version {version.v}, but this raftlog knows versions up "
            f"to {SNAPSHOT_VERSION}: upgrade this node."
        )
    return _decode(_HEADER, line)


def _topic(lines: _Lines, shared: dict[tuple[BrokerId, ...], tuple[BrokerId, ...]]) -> TopicImage:
    head = _decode(_TOPIC, lines.next())
    rows: list[PartitionImage] = []
    while len(rows) < head.partitions:
        decoded = _decode(_PARTITIONS, lines.next())
        if not 0 < len(decoded) <= head.partitions - len(rows):
            raise _damaged(f"other partitions than announced for {head.name}")
        # Few combinations of brokers stand for many partitions. One tuple for all equal
        # combinations halves the image's memory.
        rows += [
            PartitionImage(
                partition=row.partition,
                replicas=shared.setdefault(row.replicas, row.replicas),
                isr=shared.setdefault(row.isr, row.isr),
                elr=shared.setdefault(row.elr, row.elr),
                leader=row.leader,
                leader_epoch=row.leader_epoch,
                partition_epoch=row.partition_epoch,
                adding=shared.setdefault(row.adding, row.adding),
                removing=shared.setdefault(row.removing, row.removing),
                unclean_epoch=row.unclean_epoch,
            )
            for row in decoded
        ]
    return TopicImage(head.topic_id, head.name, head.configs, tuple(rows))


def _decode(decoder: msgspec.json.Decoder[_T], line: bytes) -> _T:
    try:
        return decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise _damaged(str(error)) from error


def _damaged(reason: str) -> LogError:
    return LogError(STORAGE_FAILED, f"The metadata snapshot is not valid: {reason}.")
