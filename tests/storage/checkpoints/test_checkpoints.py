from __future__ import annotations

from unittest.mock import patch

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.types import Offset
from raftlog.storage.checkpoints.checkpoints import (
    CheckpointUnreadable,
    NodeCheckpoint,
    ReplicaCheckpoint,
    StartKind,
    decode_checkpoint,
    encode_checkpoint,
    start_kind,
)


def replica(offset: int = 0, *, boot_id: str = "", clean: bool = False) -> ReplicaCheckpoint:
    """A checkpoint with `offset` in most places."""
    return ReplicaCheckpoint(
        recovery_point=Offset(offset),
        flushed_offset=Offset(offset),
        log_start_offset=Offset(0),
        high_watermark=Offset(offset),
        segment_base_offset=Offset(0),
        segment_position=offset,
        offset_index_entries=1,
        time_index_entries=1,
        boot_id=boot_id,
        clean=clean,
    )


@given(st.booleans(), st.dictionaries(st.text(max_size=20), st.integers(0, 2**63 - 1), max_size=5))
def test_a_checkpoint_comes_back_as_it_was(clean: bool, offsets: dict[str, int]) -> None:
    node = NodeCheckpoint(clean, {name: replica(offset) for name, offset in offsets.items()})
    assert decode_checkpoint(encode_checkpoint(node)) == node


@given(st.booleans(), st.integers(0, 7), st.integers(1, 3))
def test_pieces_make_the_same_document(clean: bool, count: int, piece: int) -> None:
    node = NodeCheckpoint(clean, {f"t/{number}": replica(number) for number in range(count)})
    with patch("raftlog.storage.checkpoints.checkpoints.REPLICAS_PER_PIECE_MAX", piece):
        data = encode_checkpoint(node)
    assert data == encode_checkpoint(node)
    assert msgspec.json.encode(node) in data


def test_any_changed_or_missing_byte_is_noticed() -> None:
    data = encode_checkpoint(NodeCheckpoint(True, {"t/0": replica(5)}))
    for position in range(len(data)):
        assert isinstance(decode_checkpoint(data[:position]), CheckpointUnreadable)
        changed = bytearray(data)
        changed[position] ^= 1
        read = decode_checkpoint(bytes(changed))
        assert isinstance(read, CheckpointUnreadable) or read == decode_checkpoint(data)


def test_what_a_start_expects() -> None:
    here = replica(boot_id="now")
    before = replica(boot_id="before")
    clean = replica(boot_id="before", clean=True)
    node = NodeCheckpoint(False, {"here": here, "before": before, "clean": clean})
    assert start_kind(None, "here", "now") is StartKind.POWER_LOSS
    assert start_kind(node, "unknown", "now") is StartKind.POWER_LOSS
    assert start_kind(node, "here", "now") is StartKind.PROCESS_CRASH
    assert start_kind(node, "before", "now") is StartKind.POWER_LOSS
    assert start_kind(node, "clean", "now") is StartKind.POWER_LOSS
    stopped = NodeCheckpoint(True, node.replicas)
    assert start_kind(stopped, "clean", "now") is StartKind.CLEAN
    assert start_kind(stopped, "before", "now") is StartKind.POWER_LOSS
