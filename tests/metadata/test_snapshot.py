from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.metadata import snapshot
from raftlog.metadata.commands import AlterClusterSettings, Command, MetadataVersionError
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.snapshot import (
    PIECE_BYTES_MAX,
    PIECE_BYTES_MIN,
    SNAPSHOT_VERSION,
    from_snapshot,
    snapshot_pieces,
)
from raftlog.metadata.state_machine import check_invariants
from raftlog.record.errors import STORAGE_FAILED, LogError
from raftlog.record.types import BrokerId, TopicId
from tests.examples import examples
from tests.metadata.strategies import (
    alter_broker,
    carry_out,
    create,
    histories,
    register,
    run,
    set_row,
)

_KAFKA = b'"kafka_host":"k","kafka_port":9092'
_NO_KAFKA = b'"kafka_host":null,"kafka_port":null'
# These bytes are on disks: a change of them raises SNAPSHOT_VERSION, and keeps these readable.
GOLDEN = (
    b'{"format":"raftlog-metadata","v":2,"index":7,"cluster_id":null,"created_ms":0,'
    b'"next_producer_id":0,"cluster_settings":{"flush":"async"},"deleted_topic_ids":1,'
    b'"brokers":2,"topics":1}\n'
    b'["00000000000000000000000000000009"]\n'
    b'{"broker_id":1,"broker_epoch":1,"directory_id":"d","incarnation":"first",'
    b'"host":"localhost","port":8082,"rack":null,"software_version":"0.1.0","command_version":5,'
    b'"fenced":false,"controlled_shutdown":false,"maintenance":true,"decommissioning":false}\n'
    b'{"broker_id":2,"broker_epoch":3,"directory_id":"d","incarnation":"first",'
    b'"host":"localhost","port":8082,"rack":null,"software_version":"0.1.0","command_version":5,'
    b'"fenced":true,"controlled_shutdown":false,"maintenance":false,"decommissioning":false}\n'
    b'{"topic_id":"00000000000000000000000000000007","name":"t","configs":{"a":"b"},'
    b'"partitions":2}\n'
    b"[[0,[1],[1],[],1,0,0,[],[],-1],[1,[1,2],[],[1],-1,3,4,[2],[1],2]]\n"
)
# Of an image with the address of a Kafka listener.
GOLDEN_3 = (
    GOLDEN.replace(b'"v":2', b'"v":3')
    .replace(b'"decommissioning":false}', b'"decommissioning":false,%s}' % _KAFKA, 1)
    .replace(b'"decommissioning":false}', b'"decommissioning":false,%s}' % _NO_KAFKA, 1)
)
# Written by the release before.
GOLDEN_1 = (
    GOLDEN.replace(b'"v":2', b'"v":1')
    .replace(b',"maintenance":true,"decommissioning":false', b"")
    .replace(b',"maintenance":false,"decommissioning":false', b"")
    .replace(b",[],[],-1]", b",[],[]]")
    .replace(b",[2],[1],2]", b",[2],[1]]")
)


def small() -> MetadataImage:
    image = MetadataImage()
    register(image)
    register(image, 2, fenced=True)
    create(image, "t", 7, (1,), (1,), configs={"a": "b"})
    carry_out(image, AlterClusterSettings(values={"flush": "async"}))
    alter_broker(image, 1, maintenance=True)
    image.applied_index += 1
    image.deleted_topic_ids[TopicId(f"{9:032x}")] = None
    one, two = BrokerId(1), BrokerId(2)
    set_row(
        image,
        "t",
        1,
        replicas=(one, two),
        isr=(),
        elr=(one,),
        leader=-1,
        leader_epoch=3,
        partition_epoch=4,
        adding=(two,),
        removing=(one,),
        unclean_epoch=2,
    )
    return image


def test_snapshot_of_the_release_before_is_read() -> None:
    image = small()
    alter_broker(image, 1, maintenance=False)
    image.applied_index -= 1
    set_row(image, "t", 1, unclean_epoch=-1)
    assert len(GOLDEN_1) < len(GOLDEN) - 90
    assert from_snapshot([GOLDEN_1]) == image


def whole(image: MetadataImage) -> bytes:
    return b"".join(snapshot_pieces(image))


def test_format_never_changes() -> None:
    assert whole(small()) == GOLDEN
    assert from_snapshot([GOLDEN]) == small()


def test_kafka_address_makes_the_version_that_older_releases_do_not_read() -> None:
    image = small()
    one = BrokerId(1)
    image.brokers[one] = replace(image.brokers[one], kafka_host="k", kafka_port=9092)
    assert whole(image) == GOLDEN_3
    assert from_snapshot([GOLDEN_3]) == image


@settings(max_examples=examples(100), deadline=None)
@given(histories)
def test_snapshot_round_trips(history: list[Command]) -> None:
    image = run(history)
    restored = from_snapshot(snapshot_pieces(image))
    assert restored == image
    check_invariants(restored)


@settings(max_examples=examples(100), deadline=None)
@given(histories, st.data())
def test_snapshot_and_tail_equal_full_replay(history: list[Command], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history)))
    restored = from_snapshot(snapshot_pieces(run(history[:cut])))
    assert run(history[cut:], restored) == run(history)


@given(st.lists(st.integers(0, len(GOLDEN)), max_size=5))
def test_pieces_may_be_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(GOLDEN)]
    pieces = [GOLDEN[start:end] for start, end in itertools.pairwise(edges)]
    assert from_snapshot(pieces) == small()


def test_large_image_comes_in_pieces_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small lines and pieces, so that a small image has many of either.
    monkeypatch.setattr(snapshot, "IDS_PER_LINE", 7)
    monkeypatch.setattr(snapshot, "REPLICAS_PER_LINE", 10)
    monkeypatch.setattr(snapshot, "PIECE_BYTES_MIN", 500)
    monkeypatch.setattr(snapshot, "PIECE_BYTES_MAX", 600)
    image = MetadataImage()
    for broker_id in (1, 2, 3):
        register(image, broker_id)
    for number in range(10):
        create(image, f"t{number}", number, *[(1, 2, 3), (2, 3, 1)] * 10, configs={"a": "b" * 900})
    for number in range(100, 120):
        image.deleted_topic_ids[TopicId(f"{number:032x}")] = None
    pieces = list(snapshot_pieces(image))
    assert all(len(piece) <= 600 for piece in pieces)
    assert len(pieces) > 20
    assert max(len(line) for line in b"".join(pieces).split(b"\n")) < 1_100
    assert from_snapshot(pieces) == image


def test_pieces_fit_what_a_quorum_takes() -> None:
    assert PIECE_BYTES_MIN == 64 * 1024
    assert PIECE_BYTES_MAX == 1024 * 1024


def test_equal_images_have_equal_bytes() -> None:
    # The tables remember the order of insertions, which must not show.
    image, other = MetadataImage(), MetadataImage()
    for target, order in ((image, (1, 2, 3)), (other, (3, 1, 2))):
        for number in (1, 2, 3):
            register(target, number)
        target.brokers = {BrokerId(number): target.brokers[BrokerId(number)] for number in order}
        for number in order:
            create(target, f"topic-{number}", number, (1,))
    assert list(image.topics_by_name) != list(other.topics_by_name)
    assert image == other
    assert whole(image) == whole(other)


def test_equal_brokers_are_one_tuple_after_a_restore() -> None:
    image = MetadataImage()
    for broker_id in (1, 2):
        register(image, broker_id)
    create(image, "a", 1, (1, 2), (2, 1))
    create(image, "b", 2, (1, 2))
    restored = from_snapshot(snapshot_pieces(image))
    one, other = restored.partition("a", 0), restored.partition("b", 0)
    assert one.replicas is one.isr is other.replicas is other.isr


def test_newer_snapshot_is_not_guessed_at() -> None:
    newer = GOLDEN.replace(b'"v":2', b'"v":%d,"new":{}' % (SNAPSHOT_VERSION + 1))
    with pytest.raises(MetadataVersionError, match="upgrade this node"):
        from_snapshot([newer])


@pytest.mark.parametrize(
    ("known", "changed"),
    [
        (b'"index":7', b'"new":1,"index":7'),
        (b'"host":"localhost"', b'"new":1,"host":"localhost"'),
        (b'"name":"t"', b'"new":1,"name":"t"'),
        (b",1,0,0,[],[],-1]", b",1,0,0,[],[],-1,9]"),
    ],
)
def test_unknown_field_is_not_lost_silently(known: bytes, changed: bytes) -> None:
    assert known in GOLDEN
    with pytest.raises(LogError) as raised:
        from_snapshot([GOLDEN.replace(known, changed)])
    assert raised.value.entry is STORAGE_FAILED


@pytest.mark.parametrize("size", [0, 1, 50, len(GOLDEN) // 2, len(GOLDEN) - 1])
def test_part_of_a_snapshot_is_refused(size: int) -> None:
    with pytest.raises(LogError) as raised:
        from_snapshot([GOLDEN[:size]])
    assert raised.value.entry is STORAGE_FAILED


@pytest.mark.parametrize("missing", range(6))
def test_missing_row_is_noticed(missing: int) -> None:
    lines = GOLDEN.splitlines(keepends=True)
    del lines[missing]
    with pytest.raises(LogError, match="not valid"):
        from_snapshot(lines)


@pytest.mark.parametrize(
    ("announced", "counted"),
    [
        (b'"deleted_topic_ids":1', b'"deleted_topic_ids":0'),
        (b'"brokers":2', b'"brokers":1'),
        (b'"topics":1', b'"topics":0'),
        (b'"partitions":2', b'"partitions":1'),
        (b'"partitions":2', b'"partitions":3'),
        (b'"broker_id":2', b'"broker_id":1'),
        (b"raftlog-metadata", b"something-else"),
    ],
)
def test_rows_must_be_those_announced(announced: bytes, counted: bytes) -> None:
    assert GOLDEN.count(announced) == 1
    with pytest.raises(LogError, match="not valid"):
        from_snapshot([GOLDEN.replace(announced, counted)])


def test_more_than_was_announced_is_noticed() -> None:
    for more in (b"x", b"\n", b"{}\n"):
        with pytest.raises(LogError, match="not valid"):
            from_snapshot([GOLDEN, more])


def test_header_names_the_rows() -> None:
    header = json.loads(GOLDEN.splitlines()[0])
    assert (header["brokers"], header["topics"], header["deleted_topic_ids"]) == (2, 1, 1)
