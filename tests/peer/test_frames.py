"""Framing: messages come out as sent, however cut; all other bytes end the connection."""

from __future__ import annotations

import pytest
from aiohttp._websocket.helpers import websocket_mask
from hypothesis import given
from hypothesis import strategies as st

from raftlog.peer.frames import (
    FRAME_BYTES_MAX,
    FrameError,
    FrameReader,
    close_frame,
    frame,
    pack_length,
)
from raftlog.world.network import MESSAGE_BYTES_MAX

MASK = b"\x01\x80\xff\x00"
masks = st.none() | st.binary(min_size=4, max_size=4)
batches = st.lists(
    st.lists(st.binary(max_size=300) | st.integers(0, 70_000).map(bytes), min_size=1, max_size=5),
    max_size=5,
)


def framed(messages: list[bytes], mask: bytes | None) -> bytes:
    pieces = [piece for message in messages for piece in (pack_length(len(message)), message)]
    return b"".join(frame(pieces, sum(map(len, pieces)), mask))


def reader(mask: bytes | None) -> FrameReader:
    return FrameReader(is_masked=mask is not None, bytes_max=FRAME_BYTES_MAX)


@given(batches, masks, st.lists(st.integers(1, 100_000), min_size=1, max_size=8))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    gathered: list[list[bytes]], mask: bytes | None, cuts: list[int]
) -> None:
    data = b"".join(framed(messages, mask) for messages in gathered)
    frames = reader(mask)
    found: list[bytes] = []
    position = turn = 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        found += frames.feed(data[position : position + size])
        position, turn = position + size, turn + 1
    assert found == [message for messages in gathered for message in messages]
    assert all(type(message) is bytes for message in found)


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("size", [0, 1, 121, 122, 65_531, 65_532, 70_000])
def test_every_form_of_a_head_can_come_byte_by_byte(size: int, mask: bytes | None) -> None:
    frames = reader(mask)
    data = framed([bytes(size), b"next"], mask) + close_frame(mask) + framed([b"late"], mask)
    found = [message for index in range(len(data)) for message in frames.feed(data[index:][:1])]
    assert found == [bytes(size), b"next"]
    assert frames.is_ended


@given(st.binary(min_size=1, max_size=300), st.booleans())
def test_random_bytes_are_messages_or_a_frame_error(noise: bytes, masked: bool) -> None:
    frames = reader(MASK if masked else None)
    try:
        for index in range(0, len(noise), 7):
            frames.feed(noise[index : index + 7])
    except FrameError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"\x02\x00",  # not the end of a message
        b"\x00\x00",  # a continuation
        b"\x81\x00",  # text
        b"\x89\x00",  # a ping
        b"\xc2\x00",  # compressed
        b"\x82\x80\x00\x00\x00\x00",  # masked by the called side
        b"\x82\x7f" + (FRAME_BYTES_MAX + 1).to_bytes(8, "big"),
        b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x82\x03abc",  # less than a length
        b"\x82\x05\x00\x00\x00\x02a",  # a message longer than its frame
        b"\x82\x05\x00\x00\x00\x00a",  # bytes behind the last message
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_what_no_node_sends_is_a_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        reader(None).feed(data)


def test_callers_frame_must_be_masked() -> None:
    with pytest.raises(FrameError):
        reader(MASK).feed(framed([b"x"], None))


def test_long_message_is_not_copied_again_with_each_piece() -> None:
    """Half of a message in small pieces: the reader must not parse in between."""
    frames = reader(None)
    data = framed([bytes(MESSAGE_BYTES_MAX)], None)
    assert frames.feed(data[:100]) == []
    assert frames._wanted_bytes == len(data)
    for start in range(100, len(data), 100_000):
        found = frames.feed(data[start : start + 100_000])
    assert [len(message) for message in found] == [MESSAGE_BYTES_MAX]


def test_limit_can_be_raised_between_frames() -> None:
    frames = FrameReader(is_masked=False, bytes_max=100)
    with pytest.raises(FrameError, match="over the limit of 100"):
        frames.feed(framed([bytes(97)], None))
    frames = FrameReader(is_masked=False, bytes_max=100)
    assert frames.feed(framed([bytes(96)], None)) == [bytes(96)]
    frames.allow(1_000)
    assert frames.feed(framed([bytes(97)], None)) == [bytes(97)]


@given(st.binary(max_size=100), st.binary(min_size=4, max_size=4))
def test_masking_is_the_one_of_rfc_6455(content: bytes, mask: bytes) -> None:
    size = len(content)
    pieces = [pack_length(size), content]
    sent = b"".join(frame(pieces, size + 4, mask))
    plain = b"".join(pieces)
    assert sent[2:6] == mask
    assert sent[6:] == bytes(byte ^ mask[i % 4] for i, byte in enumerate(plain))


def test_aiohttp_still_has_its_compiled_masking() -> None:
    """A private name. The one in Python, its fallback, takes 30 times as long."""
    assert "cyfunction" in repr(websocket_mask)
