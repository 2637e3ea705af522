from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.quorum.snapshot import Snapshot, decode_snapshot, encode_snapshot
from raftlog.record.errors import STORAGE_FAILED, LogError


@given(index=st.integers(0, 2**63), state=st.binary(max_size=100))
def test_snapshot_round_trips(index: int, state: bytes) -> None:
    snapshot = Snapshot(index, state)
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_snapshot_with_any_flipped_bit_or_missing_byte_is_refused() -> None:
    content = encode_snapshot(Snapshot(7, b"some state"))
    damaged = [content[:size] for size in range(len(content))] + [content + b"x"]
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << (bit % 8)
        damaged.append(bytes(flipped))
    for bad in damaged:
        with pytest.raises(LogError) as raised:
            decode_snapshot(bad)
        assert raised.value.entry is STORAGE_FAILED
