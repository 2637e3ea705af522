from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.raft.snapshots.format import (
    ORIGIN_BYTES,
    PIECE_BYTES_MAX,
    SnapshotDamagedError,
    SnapshotMeta,
    decode_snapshot,
    encode_origin,
    encode_snapshot,
)
from raftlog.raft.voters import parse_voters

VOTERS = parse_voters("1@a:1,2@b:2")
META = SnapshotMeta(7, 3, VOTERS)
PIECES = [b"some", b"", b"state"]


def encoded(meta: SnapshotMeta = META, pieces: list[bytes] | None = None) -> bytes:
    return b"".join(encode_snapshot(meta, PIECES if pieces is None else pieces))


def decoded(content: bytes) -> tuple[SnapshotMeta, list[bytes]]:
    def read(position: int, length: int) -> bytes:
        return content[position : position + length]

    meta, pieces = decode_snapshot(read, len(content))
    return meta, list(pieces)


@settings(deadline=None)
@given(
    index=st.integers(1, 2**62),
    term=st.integers(0, 2**62),
    received=st.booleans(),
    pieces=st.lists(st.binary(max_size=100), max_size=5),
)
def test_snapshot_round_trips(index: int, term: int, received: bool, pieces: list[bytes]) -> None:
    meta = SnapshotMeta(index, term, VOTERS, received)
    assert decoded(encoded(meta, pieces)) == (meta, pieces)


def test_snapshot_with_any_flipped_bit_is_refused() -> None:
    content = encoded()
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(SnapshotDamagedError):
            decoded(bytes(flipped))


def test_snapshot_with_any_missing_or_further_byte_is_refused() -> None:
    content = encoded()
    for size in range(len(content)):
        with pytest.raises(SnapshotDamagedError):
            decoded(content[:size])
    with pytest.raises(SnapshotDamagedError, match="behind its end"):
        decoded(content + b"x")


def test_pieces_of_another_snapshot_do_not_fit() -> None:
    parts = list(encode_snapshot(META, PIECES))
    others = list(encode_snapshot(SnapshotMeta(8, 3, VOTERS), PIECES))
    for number in range(1, len(parts)):
        with pytest.raises(SnapshotDamagedError):
            decoded(b"".join([*parts[:number], *others[number:]]))


def test_missing_repeated_and_swapped_pieces_are_refused() -> None:
    origin_and_meta, one, two, three, end = encode_snapshot(META, PIECES)
    for parts in [
        [origin_and_meta, one, three, end],
        [origin_and_meta, one, one, two, three, end],
        [origin_and_meta, two, one, three, end],
        [origin_and_meta, end],
        [origin_and_meta, one, two, three, end, end],
    ]:
        with pytest.raises(SnapshotDamagedError):
            decoded(b"".join(parts))


def test_receiver_marks_its_own_copy() -> None:
    sent = encoded()[ORIGIN_BYTES:]
    meta, pieces = decoded(encode_origin(received=True) + sent)
    assert meta == SnapshotMeta(7, 3, VOTERS, received=True)
    assert pieces == PIECES


def test_content_without_a_description_is_refused() -> None:
    whole = encoded()
    meta_only = next(encode_snapshot(META, []))
    with pytest.raises(SnapshotDamagedError, match="in the middle"):
        decoded(encode_origin(received=False))
    with pytest.raises(SnapshotDamagedError):
        decoded(whole[:ORIGIN_BYTES] + whole[len(meta_only) :])


def test_too_long_a_piece_is_not_written() -> None:
    with pytest.raises(AssertionError, match="a piece of"):
        encoded(META, [bytes(PIECE_BYTES_MAX + 1)])
    assert decoded(encoded(META, [bytes(PIECE_BYTES_MAX)]))[1] == [bytes(PIECE_BYTES_MAX)]


def test_snapshot_is_read_piece_by_piece() -> None:
    content = encoded(META, [bytes(10_000)] * 10)
    lengths: list[int] = []

    def read(position: int, length: int) -> bytes:
        lengths.append(length)
        return content[position : position + length]

    _, pieces = decode_snapshot(read, len(content))
    assert len(next(pieces)) == 10_000
    assert sum(lengths) < 11_000
    assert max(lengths) == 10_000
