"""Messages of forwarding: round trips, and refusals of all other bytes."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.peer.hello import ProtocolError, encode_hello
from raftlog.routing import forwarding_messages as messages
from raftlog.routing.forwarding_messages import (
    Answer,
    Append,
    Appended,
    Assembly,
    Bounds,
    BoundsOfMany,
    Cancel,
    Coordinate,
    Coordinated,
    Delete,
    Failure,
    FindTime,
    FindTimeInMany,
    FoundTime,
    FoundTimes,
    MarkerWritten,
    Marks,
    MarksOfMany,
    Message,
    Piece,
    Read,
    ReadReplica,
    Request,
    Wait,
    Waited,
    WriteMarker,
    check_hello,
    decode,
    encode,
    own_hello,
)
from raftlog.world.network import MESSAGE_BYTES_MAX, RejectedError

numbers = st.integers(0, 2**63 - 1)
partitions = st.integers(0, 2**31 - 1)
topic_ids = st.text("0123456789abcdef", min_size=32, max_size=32)
isolations = st.integers(0, 1)
places = {"topic_id": topic_ids, "partition": partitions}
operations = st.one_of(
    st.builds(Append, **places, acks=st.integers(-1, 1)),
    st.builds(
        Read,
        **places,
        offset=numbers,
        max_bytes=st.integers(0, messages.BODY_BYTES_MAX),
        end_offset=st.none() | numbers,
        isolation=isolations,
    ),
    st.builds(
        ReadReplica,
        **places,
        offset=numbers,
        max_bytes=st.integers(0, messages.BODY_BYTES_MAX),
    ),
    st.builds(Bounds, **places),
    st.builds(Coordinate, **places, may_change=st.booleans(), is_held=st.booleans()),
    st.builds(
        Wait,
        st.lists(st.tuples(topic_ids, partitions, numbers), min_size=1, max_size=5).map(tuple),
    ),
    st.builds(FindTime, **places, timestamp_ms=numbers, isolation=isolations),
    st.builds(
        WriteMarker,
        **places,
        producer_id=numbers,
        producer_epoch=st.integers(0, 2**15 - 1),
        coordinator_epoch=st.integers(0, 2**31 - 1),
        commit=st.booleans(),
        is_epoch_next=st.booleans(),
        coordinator=st.none() | partitions,
    ),
    st.builds(Delete, **places, before=st.integers(-1, 2**63 - 1)),
    st.builds(
        BoundsOfMany, st.lists(st.tuples(topic_ids, partitions), min_size=1, max_size=5).map(tuple)
    ),
    st.builds(
        FindTimeInMany,
        st.lists(st.tuples(topic_ids, partitions, numbers), min_size=1, max_size=5).map(tuple),
    ),
)
outcomes = st.one_of(
    st.builds(Coordinated),
    st.builds(
        Appended,
        st.lists(st.tuples(numbers, numbers, st.integers(-1, 2**62), st.booleans())).map(tuple),
    ),
    st.builds(Marks, numbers, numbers, numbers, numbers, st.integers(0, messages.ABORTED_MAX)),
    st.just(MarkerWritten()),
    st.just(Waited()),
    st.builds(FoundTime, st.none() | st.tuples(numbers, numbers)),
    st.builds(Failure, st.integers(0, 99_999), st.text(max_size=200)),
    st.builds(
        MarksOfMany,
        st.lists(st.tuples(numbers, numbers, numbers) | st.integers(0, 99_999)).map(tuple),
    ),
    st.builds(
        FoundTimes,
        st.lists(st.tuples(numbers, numbers) | st.integers(0, 99_999) | st.none()).map(tuple),
    ),
)
heads = st.one_of(
    st.builds(Request, numbers, st.integers(0, 60_000), operations),
    st.builds(Answer, numbers, outcomes),
    st.builds(Cancel, numbers),
    st.builds(Piece, numbers),
)


@given(heads)
def test_what_is_encoded_is_decoded(head: Message) -> None:
    (encoded,) = encode(head)
    decoded, body = decode(encoded)
    assert decoded == head
    assert not body


@given(st.lists(st.binary(max_size=200), max_size=6), st.integers(1, 64))
def test_a_body_in_pieces_comes_back_whole(parts: list[bytes], piece_bytes: int) -> None:
    whole = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "PIECE_BYTES", piece_bytes)
        head = Answer(7, Marks(1, 2, 3, 2), len(whole))
        encoded = list(encode(head, parts))
    first, part = decode(encoded[0])
    assert first == head
    assembly = Assembly(head)
    body = assembly.take(part)
    for message in encoded[1:]:
        assert body is None
        piece, part = decode(message)
        assert piece == Piece(7)
        assert 0 < part.nbytes <= piece_bytes
        body = assembly.take(part)
    assert body is not None
    assert bytes(body) == whole


def test_no_message_is_longer_than_the_network_takes() -> None:
    body = bytes(3 * messages.PIECE_BYTES + 1)
    encoded = list(encode(Answer(1, Marks(0, 0, 0, 0), len(body)), [body]))
    assert len(encoded) == 4
    assert max(map(len, encoded)) <= MESSAGE_BYTES_MAX


@given(st.binary(max_size=100))
def test_other_bytes_are_refused_and_nothing_else_happens(content: bytes) -> None:
    with suppress(ProtocolError):
        decode(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x09\x92",
        b"\xff\xff\xff\xff",
        b"\0\0\0\1\x92",
        b"\0\0\0\3\x92\x09\x01",
        b"\0\0\0\3\x92\x02\xff",
    ],
)
def test_what_is_cut_off_or_out_of_bounds_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(content)


def test_the_largest_questions_and_answers_fit_into_a_head() -> None:
    most, number = messages.WANTS_MAX, 2**63 - 1
    place = ("f" * 64, 2**31 - 1)
    for operation in (BoundsOfMany((place,) * most), FindTimeInMany(((*place, number),) * most)):
        (encoded,) = encode(Request(number, 60_000, operation))
        assert len(encoded) <= messages.HEAD_BYTES_MAX
    for outcome in (MarksOfMany(((number,) * 3,) * most), FoundTimes(((number,) * 2,) * most)):
        (encoded,) = encode(Answer(number, outcome))
        assert len(encoded) <= messages.HEAD_BYTES_MAX


def test_a_head_that_is_too_long_is_refused() -> None:
    length = messages.HEAD_BYTES_MAX + 1
    with pytest.raises(ProtocolError, match="too long"):
        decode(length.to_bytes(4, "big") + bytes(length))


def test_a_body_is_neither_longer_than_announced_nor_endless() -> None:
    head = Answer(1, Marks(0, 0, 0, 0), 5)
    assembly = Assembly(head)
    assert assembly.take(memoryview(b"123")) is None
    with pytest.raises(ProtocolError, match="longer"):
        assembly.take(memoryview(b"456"))
    with pytest.raises(ProtocolError, match="empty"):
        Assembly(head).take(memoryview(b""))


OWN = own_hello("c", 2, 1)


def test_hellos_of_the_same_cluster_and_right_node_are_taken() -> None:
    theirs = own_hello("c", 1, 2)
    assert check_hello(encode_hello(theirs), OWN) == theirs


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"{}",
        b"\xff",
        b'{"protocol":2}',
        b'{"protocol":2,"channel":"data"}',
        b" " * 20_000,
        encode_hello(msgspec.structs.replace(own_hello("c", 1, 2), protocol=1)),
        encode_hello(msgspec.structs.replace(own_hello("c", 1, 2), channel="quorum")),
        encode_hello(own_hello("other", 1, 2)),
        encode_hello(own_hello("c", 1, 3)),
    ],
)
def test_all_others_are_rejected(content: bytes) -> None:
    with pytest.raises(RejectedError):
        check_hello(content, OWN)
