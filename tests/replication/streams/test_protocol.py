"""The bytes of the streams: round trips, and typed refusals of all other bytes."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.peer.hello import ProtocolError, encode_hello
from raftlog.record.header import LOG_APPEND_TIME_BIT
from raftlog.record.types import BrokerEpoch, LeaderEpoch, Offset, TopicId
from raftlog.replication.streams.protocol import (
    CONTROL_BYTES_MAX,
    ENTRIES_MAX,
    HANDLE_MAX,
    HEADER_BYTES,
    PRODUCERS_BYTES_MAX,
    PRODUCERS_PIECE_BYTES,
    PROTOCOL,
    Acks,
    Diverged,
    FromFollower,
    FromLeader,
    Marks,
    Ping,
    Refused,
    Restart,
    StreamHello,
    Subscribe,
    Subscription,
    Unsubscribe,
    decode_data,
    decode_from_follower,
    decode_from_leader,
    decode_stream_hello,
    encode,
    encode_data,
    is_data,
)
from raftlog.storage.compaction.plan import NO_HORIZON, DeletionHorizon
from raftlog.storage.producers.entry import BATCHES_REMEMBERED_MAX
from raftlog.storage.producers.state import PRODUCERS_MAX, ProducerStates
from raftlog.world.network import RejectedError
from tests.storage.producers.test_state import header

HANDLES = st.integers(1, HANDLE_MAX)
NUMBERS = st.integers(0, 2**62)
OFFSETS = NUMBERS.map(Offset)
EPOCHS = st.integers(-1, 2**31 - 1).map(LeaderEpoch)
HORIZONS = st.builds(DeletionHorizon, OFFSETS, EPOCHS)
TRIPLES = st.lists(st.tuples(HANDLES, NUMBERS, NUMBERS), max_size=20)
SUBSCRIPTIONS = st.builds(
    Subscription,
    handle=HANDLES,
    topic_id=st.text("0123456789abcdef", min_size=32, max_size=32).map(TopicId),
    partition=st.integers(0, 2**31 - 1),
    leader_epoch=EPOCHS,
    offset=OFFSETS,
    last_epoch=EPOCHS,
    durable_end=OFFSETS,
    log_start_offset=OFFSETS,
    horizon=HORIZONS,
)
FROM_FOLLOWER = (
    st.builds(Subscribe, st.lists(SUBSCRIPTIONS, max_size=20))
    | st.builds(Unsubscribe, st.lists(HANDLES, max_size=20))
    | st.builds(Acks, TRIPLES)
    | st.just(Ping())
)
FROM_LEADER = (
    st.builds(Diverged, HANDLES, EPOCHS, NUMBERS)
    | st.builds(
        Restart,
        HANDLES,
        NUMBERS,
        st.binary(max_size=100),
        st.booleans(),
        HORIZONS,
        st.booleans(),
    )
    | st.builds(Refused, HANDLES, st.integers(0, 99999), st.text(max_size=100))
    | st.builds(Marks, TRIPLES)
    | st.just(Ping())
)

FARTHEST = DeletionHorizon(Offset(2**62), LeaderEpoch(2**31 - 1))


@given(FROM_FOLLOWER)
def test_what_a_follower_says_comes_out_as_it_went_in(message: FromFollower) -> None:
    content = encode(message)
    assert not is_data(content)
    assert decode_from_follower(content) == message


@given(FROM_LEADER)
def test_what_a_leader_says_comes_out_as_it_went_in(message: FromLeader) -> None:
    content = encode(message)
    assert not is_data(content)
    assert decode_from_leader(content) == message


@given(
    handle=HANDLES,
    base=st.integers(0, 2**62 - 1),
    count=st.integers(1, 1000),
    high_watermark=OFFSETS,
    log_start=OFFSETS,
    buffers=st.lists(st.binary(max_size=50), min_size=1).filter(any),
    flags=st.integers(0, 3),
)
def test_data_comes_out_as_it_went_in(
    *,
    handle: int,
    base: int,
    count: int,
    high_watermark: Offset,
    log_start: Offset,
    buffers: list[bytes],
    flags: int,
) -> None:
    content = encode_data(
        handle, Offset(base), Offset(base + count), high_watermark, log_start, buffers, flags
    )
    assert is_data(content)
    data = decode_data(content)
    assert data[:-1] == (flags, handle, base, base + count, high_watermark, log_start)
    assert data.payload == b"".join(buffers)
    assert data.payload.obj is content, "a view, not a copy"


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_such(content: bytes) -> None:
    for decode in (decode_from_follower, decode_from_leader):
        try:
            decode(content)
        except ProtocolError:
            continue
    with suppress(ProtocolError):
        decode_data(b"\xc1" + content)


@given(FROM_FOLLOWER | FROM_LEADER, st.data())
def test_damaged_messages_are_refused_as_such(
    message: FromFollower | FromLeader, data: st.DataObject
) -> None:
    content = bytearray(encode(message))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for decode in (decode_from_follower, decode_from_leader):
        try:
            decode(bytes(content[:cut]))
        except ProtocolError:
            continue


def test_each_side_understands_only_what_the_other_says() -> None:
    with pytest.raises(ProtocolError):
        decode_from_follower(encode(Marks([(1, 2, 3)])))
    with pytest.raises(ProtocolError):
        decode_from_leader(encode(Acks([(1, 2, 3)])))


@pytest.mark.parametrize(
    "message",
    [
        Unsubscribe([1] * (ENTRIES_MAX + 1)),
        Unsubscribe([0]),
        Unsubscribe([HANDLE_MAX + 1]),
        Acks([(1, -1, 0)]),
        Acks([(1, 2**62 + 1, 0)]),
    ],
)
def test_messages_beyond_the_bounds_are_refused(message: FromFollower) -> None:
    with pytest.raises(ProtocolError):
        decode_from_follower(encode(message))


def test_a_long_message_is_refused_unread() -> None:
    content = encode(Refused(1, 2, "x" * CONTROL_BYTES_MAX))
    with pytest.raises(ProtocolError, match="bytes that is no data"):
        decode_from_leader(content)


def test_the_longest_messages_are_within_the_bound() -> None:
    entry = Subscription(
        handle=HANDLE_MAX,
        topic_id=TopicId("a" * 64),
        partition=2**31 - 1,
        leader_epoch=LeaderEpoch(2**31 - 1),
        offset=Offset(2**62),
        last_epoch=LeaderEpoch(2**31 - 1),
        durable_end=Offset(2**62),
        log_start_offset=Offset(2**62),
        horizon=FARTHEST,
    )
    content = encode(Subscribe([entry] * ENTRIES_MAX))
    assert len(content) < CONTROL_BYTES_MAX
    decode_from_follower(content)


def test_the_longest_piece_of_a_restart_is_within_the_bound() -> None:
    content = encode(Restart(HANDLE_MAX, 2**62, bytes(PRODUCERS_PIECE_BYTES), True, FARTHEST, True))
    assert len(content) < CONTROL_BYTES_MAX
    decode_from_leader(content)
    longer = encode(
        Restart(HANDLE_MAX, 2**62, bytes(PRODUCERS_PIECE_BYTES + 1), True, NO_HORIZON, False)
    )
    with pytest.raises(ProtocolError):
        decode_from_leader(longer)


def test_the_longest_snapshot_is_one_that_a_leader_may_send() -> None:
    states = ProducerStates()
    base = 2**61
    for number in range(BATCHES_REMEMBERED_MAX):
        states.update(
            header(
                2**62,
                2**31 - 10 + number,
                epoch=2**15 - 1,
                base_offset=base + number,
                attributes=LOG_APPEND_TIME_BIT,
                max_timestamp_ms=2**61,
            ),
            now_ms=2**61,
        )
    one = len(states.to_bytes(Offset(2**62), now_ms=2**61))
    # Counts of records are below 2^31, and take four bytes more than here.
    assert (one + 4 * (BATCHES_REMEMBERED_MAX + 1)) * PRODUCERS_MAX < PRODUCERS_BYTES_MAX


@pytest.mark.parametrize(
    ("handle", "base", "following", "high_watermark", "log_start", "flags"),
    [
        (0, 0, 1, 0, 0, 0),
        (1, 1, 1, 0, 0, 0),
        (1, -1, 1, 0, 0, 0),
        (1, 0, 1, -1, 0, 0),
        (1, 0, 1, 0, -1, 0),
        (1, 0, 1, 0, 0, 4),
    ],
)
def test_impossible_data_is_refused(
    *, handle: int, base: int, following: int, high_watermark: int, log_start: int, flags: int
) -> None:
    content = encode_data(
        handle,
        Offset(base),
        Offset(following),
        Offset(high_watermark),
        Offset(log_start),
        [b"x"],
        flags,
    )
    with pytest.raises(ProtocolError):
        decode_data(content)


def test_data_without_batches_is_refused() -> None:
    content = encode_data(1, Offset(0), Offset(1), Offset(0), Offset(0), [])
    assert len(content) == HEADER_BYTES
    with pytest.raises(ProtocolError):
        decode_data(content)


def test_hellos_come_out_as_they_went_in() -> None:
    hello = StreamHello(node_id=3, broker_epoch=BrokerEpoch(7), directory_id="d", cluster_id="c")
    assert decode_stream_hello(encode_hello(hello)) == hello


def test_a_hello_of_another_protocol_is_refused_with_the_reason() -> None:
    newer = msgspec.json.encode({"protocol": PROTOCOL + 1, "something": "else"})
    with pytest.raises(RejectedError, match="versions"):
        decode_stream_hello(newer)
