from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata.commands import Command, MetadataVersionError
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.invariants import check_invariants
from raftlog.metadata.snapshot import SNAPSHOT_VERSION, from_snapshot, snapshot_bytes
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.record.types import BrokerId
from tests.metadata.strategies import create, histories, register, run

# These bytes are on disks: whoever changes them raises SNAPSHOT_VERSION, and keeps reading these.
GOLDEN = (
    b'{"format":"raftlog-metadata","v":1,"index":2,"cluster_id":null,"created_ms":0,'
    b'"next_producer_id":0,"deleted_topic_ids":[],"brokers":1,"topics":1}\n'
    b'{"broker_id":1,"broker_epoch":1,"directory_id":"d","incarnation":"first",'
    b'"host":"localhost","port":8082,"rack":null,"software_version":"0.1.0","command_version":1}\n'
    b'{"topic_id":"00000000000000000000000000000007","name":"t","configs":{},'
    b'"partitions":[[0,[1],[1],[],1,0,0],[1,[1],[1],[],1,0,0]]}\n'
)


def small() -> MetadataImage:
    image = MetadataImage()
    register(image)
    create(image, "t", 7, (1,), (1,))
    return image


def test_format_never_changes() -> None:
    assert snapshot_bytes(small()) == GOLDEN
    assert from_snapshot(GOLDEN) == small()


@settings(max_examples=100, deadline=None)
@given(histories)
def test_snapshot_round_trips(history: list[Command]) -> None:
    image = run(history)
    restored = from_snapshot(snapshot_bytes(image))
    assert restored == image
    check_invariants(restored)


@settings(max_examples=100, deadline=None)
@given(histories, st.data())
def test_snapshot_and_tail_equal_full_replay(history: list[Command], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history)))
    restored = from_snapshot(snapshot_bytes(run(history[:cut])))
    assert run(history[cut:], restored) == run(history)


def test_equal_images_have_equal_bytes() -> None:
    # The tables remember in which order they were filled; that must not show.
    image, other = MetadataImage(), MetadataImage()
    for target, order in ((image, (1, 2, 3)), (other, (3, 1, 2))):
        for number in (1, 2, 3):
            register(target, number)
        target.brokers = {BrokerId(number): target.brokers[BrokerId(number)] for number in order}
        for number in order:
            create(target, f"topic-{number}", number, (1,))
    assert list(image.topics_by_name) != list(other.topics_by_name)
    assert image == other
    assert snapshot_bytes(image) == snapshot_bytes(other)


def test_newer_snapshot_is_not_guessed_at() -> None:
    newer = GOLDEN.replace(b'"v":1', b'"v":%d,"new":{}' % (SNAPSHOT_VERSION + 1))
    with pytest.raises(MetadataVersionError, match="upgrade this node"):
        from_snapshot(newer)


def test_unknown_field_is_not_lost_silently() -> None:
    for line in (b'"index":2', b'"host":"localhost"', b'"name":"t"', b",1,0,0]]"):
        changed = b'"new":1,' + line if line.startswith(b'"') else b",1,0,0,9]]"
        with pytest.raises(LogError) as raised:
            from_snapshot(GOLDEN.replace(line, changed))
        assert raised.value.entry is STORAGE_FAILED


@pytest.mark.parametrize("size", [0, 1, 50, len(GOLDEN) // 2, len(GOLDEN) - 1])
def test_part_of_a_snapshot_is_refused(size: int) -> None:
    with pytest.raises(LogError) as raised:
        from_snapshot(GOLDEN[:size])
    assert raised.value.entry is STORAGE_FAILED


def test_missing_row_is_noticed() -> None:
    lines = GOLDEN.splitlines(keepends=True)
    with pytest.raises(LogError, match="rows"):
        from_snapshot(b"".join(lines[:-1]))
    header = json.loads(lines[0])
    assert (header["brokers"], header["topics"]) == (1, 1)
