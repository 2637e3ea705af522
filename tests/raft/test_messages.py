"""The messages' bytes: all go round, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raftlog.raft.messages import (
    APPEND_BYTES_MAX,
    CHUNK_BYTES_MAX,
    COMMAND_BYTES_MAX,
    CONTROL_BYTES_MAX,
    ENTRIES_PER_APPEND_MAX,
    Append,
    AppendAnswer,
    Control,
    Forward,
    Forwarded,
    Message,
    MessageError,
    Ping,
    PreVote,
    PreVoteGranted,
    RequestKind,
    RequestVote,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    decode_message,
    encode_message,
)
from raftlog.world.network import MESSAGE_BYTES_MAX

NUMBERS = st.integers(0, 2**62)
BYTES = st.binary(max_size=40)
ENTRIES = st.lists(st.tuples(NUMBERS, BYTES), max_size=5)
KINDS: dict[type[Any], list[st.SearchStrategy[Any]]] = {
    RequestVote: [NUMBERS, NUMBERS],
    Vote: [],
    PreVote: [NUMBERS, NUMBERS, NUMBERS],
    PreVoteGranted: [NUMBERS],
    Append: [NUMBERS, NUMBERS, NUMBERS, NUMBERS, ENTRIES],
    AppendAnswer: [NUMBERS, st.booleans(), st.booleans(), NUMBERS],
    TimeoutNow: [],
    SnapshotChunk: [NUMBERS, NUMBERS, NUMBERS, NUMBERS, BYTES],
    SnapshotAnswer: [NUMBERS, NUMBERS, NUMBERS],
    Forward: [NUMBERS, st.sampled_from(RequestKind), BYTES],
    Forwarded: [NUMBERS, NUMBERS, NUMBERS, st.integers(0, 10**6), st.text(max_size=40)],
    Control: [BYTES],
    Ping: [NUMBERS, BYTES],
}
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    [st.builds(kind, NUMBERS, *fields) for kind, fields in KINDS.items()]
)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | BYTES,
    lambda inside: st.lists(inside, max_size=7) | st.dictionaries(st.text(), inside, max_size=3),
    max_leaves=12,
)


def rejected(frame: bytes) -> str:
    with pytest.raises(MessageError, match="not a quorum message") as raised:
        decode_message(frame)
    return str(raised.value)


def packed(*fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


def test_all_kinds_are_tried_here() -> None:
    tags = sorted(kind.__struct_config__.tag for kind in KINDS)
    assert tags == list(range(1, 14)), "a kind's number never changes and is never used again"


@given(MESSAGES)
def test_every_message_goes_round(message: Message) -> None:
    frame = encode_message(message)
    decoded = decode_message(frame)
    assert decoded == message
    assert type(decoded) is type(message)
    assert encode_message(decoded) == frame


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x92\x02")
def test_any_bytes_are_a_message_or_a_message_error(frame: bytes) -> None:
    try:
        message = decode_message(frame)
    except MessageError:
        return
    assert decode_message(encode_message(message)) == message


@given(MESSAGES, st.data())
def test_damaged_messages_give_nothing_but_a_message_error(
    message: Message, data: st.DataObject
) -> None:
    frame = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MessageError):
        decode_message(bytes(frame))


@given(MESSAGES, st.data())
def test_a_message_that_is_cut_or_followed_by_something_is_rejected(
    message: Message, data: st.DataObject
) -> None:
    frame = encode_message(message)
    rejected(frame[: data.draw(st.integers(0, len(frame) - 1))])
    rejected(frame + data.draw(st.binary(min_size=1, max_size=5)))


@given(st.integers(1, 13), st.lists(PLAIN, max_size=7))
def test_wrong_types_are_rejected(tag: int, fields: list[Any]) -> None:
    try:
        message = decode_message(packed(tag, *fields))
    except MessageError:
        return
    expected = [tag, *[list(f) if isinstance(f, tuple) else f for f in fields]]
    assert msgspec.msgpack.decode(encode_message(message)) == expected, "nothing is coerced"


@given(st.integers().filter(lambda tag: not 1 <= tag <= 13) | st.text() | st.none())
@example(0)
@example(14)
@example(-1)
@example(2**64)
def test_unknown_kinds_are_rejected(tag: int | str | None) -> None:
    if isinstance(tag, int) and not -(2**63) <= tag < 2**64:
        return
    rejected(packed(tag, 1))


def test_text_that_is_no_text_is_rejected() -> None:
    frame = bytearray(encode_message(Forwarded(1, 2, 3, 4, 0, "abcd")))
    frame[-1] = 0xFF
    rejected(bytes(frame))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ((2, 1, 1), "at most length"),
        ((2,), "at least length"),
        ((2, -1), ">= 0"),
        ((2, 2**62 + 1), "<= "),
        ((2, True), "got `bool`"),
        ((2, 1.0), "got `float`"),
        ((10, 1, 1, 5, b""), "enum"),
        ((6, 1, 1, 1, False, 1), "Expected `bool`"),
        ((5, 1, 1, 1, 1, 1, [(1, "text")]), "got `str`|base64|Invalid"),
        ((5, 1, 1, 1, 1, 1, [(1,)]), "length"),
        ((12, 1, [1, 2]), "got `array`"),
    ],
)
def test_a_field_that_does_not_fit_is_named(fields: tuple[Any, ...], why: str) -> None:
    with pytest.raises(MessageError, match=why):
        decode_message(packed(*fields))


def test_a_map_is_no_message() -> None:
    rejected(msgspec.msgpack.encode({"type": 2, "term": 1}))


def test_nested_arrays_without_end_are_rejected() -> None:
    rejected(b"\x91" * 100_000)
    rejected(b"\x92\x02" + b"\x91" * 100_000)


@pytest.mark.parametrize(
    ("longest", "too_long"),
    [
        (
            Append(1, 1, 1, 1, 1, [(1, bytes(COMMAND_BYTES_MAX + 1))]),
            Append(1, 1, 1, 1, 1, [(1, bytes(COMMAND_BYTES_MAX + 2))]),
        ),
        (
            Append(1, 1, 1, 1, 1, [(1, b"\x00")] * ENTRIES_PER_APPEND_MAX),
            Append(1, 1, 1, 1, 1, [(1, b"\x00")] * (ENTRIES_PER_APPEND_MAX + 1)),
        ),
        (
            SnapshotChunk(1, 1, 1, 1, 1, bytes(CHUNK_BYTES_MAX)),
            SnapshotChunk(1, 1, 1, 1, 1, bytes(CHUNK_BYTES_MAX + 1)),
        ),
        (
            Forward(1, 1, RequestKind.COMMAND, bytes(COMMAND_BYTES_MAX)),
            Forward(1, 1, RequestKind.COMMAND, bytes(COMMAND_BYTES_MAX + 1)),
        ),
        (Control(1, bytes(CONTROL_BYTES_MAX)), Control(1, bytes(CONTROL_BYTES_MAX + 1))),
        (Ping(1, 1, bytes(16 * 1024)), Ping(1, 1, bytes(16 * 1024 + 1))),
    ],
)
def test_each_size_has_a_limit(longest: Message, too_long: Message) -> None:
    frame = encode_message(longest)
    assert decode_message(frame) == longest
    assert len(frame) <= MESSAGE_BYTES_MAX, "the network would end the connection"
    rejected(encode_message(too_long))


def test_the_fullest_append_is_one_message_of_the_network() -> None:
    share = APPEND_BYTES_MAX // ENTRIES_PER_APPEND_MAX
    entries = [(2**62, bytes(share))] * ENTRIES_PER_APPEND_MAX
    full = Append(2**62, 2**62, 2**62, 2**62, 2**62, entries)
    assert len(encode_message(full)) < MESSAGE_BYTES_MAX / 8
