from __future__ import annotations

import gc
import tracemalloc

import pytest
from msgspec.structs import replace

from raftlog.metadata.apply.apply import apply
from raftlog.metadata.commands import Command, CreateTopic, decode_command, encode_command
from raftlog.metadata.decisions.admin_plans import complete
from raftlog.metadata.decisions.placement import place
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.snapshot import from_snapshot, snapshot_pieces
from raftlog.record.errors import UNKNOWN_PARTITION, UNKNOWN_TOPIC, LogError
from raftlog.record.types import LeaderEpoch, PartitionId, TopicId
from tests.metadata.strategies import create, register

IMAGE_BYTES_MAX = 20_000_000
"""Measured: 12 to 14 MB, live as well as restored."""


def test_lookups_name_what_is_missing() -> None:
    image = MetadataImage()
    register(image)
    create(image, "a", 1, (1,), (1,))
    assert image.partition("a", 1) is image.topic("a").partitions[1]
    assert image.partition_count == 2
    with pytest.raises(LogError, match="'b' not found") as raised:
        image.topic("b")
    assert raised.value.entry is UNKNOWN_TOPIC
    for partition in (2, -1, 10**9):
        with pytest.raises(LogError, match="it has 2, numbered from 0") as raised:
            image.partition("a", partition)
        assert raised.value.entry is UNKNOWN_PARTITION


def test_the_newest_leader_epoch_is_of_a_partition_or_of_all() -> None:
    image = MetadataImage()
    register(image)
    create(image, "a", 1, (1,), (1,), (1,))
    topic = image.topic("a")
    rows = tuple(
        replace(row, leader_epoch=LeaderEpoch(epoch))
        for row, epoch in zip(topic.partitions, (4, 9, 2), strict=True)
    )
    image.topics_by_name["a"] = replace(topic, partitions=rows)
    assert image.newest_leader_epoch("a", None) == 9
    assert image.newest_leader_epoch("a", PartitionId(2)) == 2
    assert image.newest_leader_epoch("a", PartitionId(3)) == -1
    assert image.newest_leader_epoch("b", None) == -1


def test_copy_does_not_follow_the_original() -> None:
    image = MetadataImage()
    register(image)
    create(image, "a", 1, (1,))
    copy = image.copy()
    assert copy == image
    create(image, "b", 2, (1,))
    assert list(copy.topics_by_name) == ["a"]
    assert copy != image
    assert image != "something else"


def test_hundred_thousand_partitions_fit() -> None:
    image = MetadataImage()
    for broker_id in range(1, 7):
        register(image, broker_id)
    assignments = complete(place(image, 1_000, 3))
    tracemalloc.start()
    try:
        for number in range(100):
            command: Command = CreateTopic(
                topic_id=TopicId(f"{number:032x}"),
                name=f"topic-{number}",
                configs={},
                assignments=assignments,
            )
            # Through its bytes, as from a log: then no two commands share a tuple.
            command = decode_command(encode_command(command))
            apply(image, image.applied_index + 1, command)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
        restored = from_snapshot(snapshot_pieces(image))
        gc.collect()
        with_restored, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert image.partition_count == restored.partition_count == 100_000
    assert grown < IMAGE_BYTES_MAX
    assert with_restored - grown < IMAGE_BYTES_MAX
