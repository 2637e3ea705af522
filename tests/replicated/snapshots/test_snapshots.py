"""Which snapshots count, and which part of the log they replace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_replicated.errors import SnapshotError
from raftlog_replicated.snapshots.snapshots import (
    CHUNK_BYTES_MAX,
    Catalogue,
    Manifest,
    Sum,
    chunk_key,
    cut,
    encode_manifest,
    join,
)


def manifest(name: str, position: int, chunks: tuple[bytes, ...] = ()) -> Manifest:
    total = Sum()
    for chunk in chunks:
        total.add(chunk)
    return Manifest(name, position, position, 0, 0, total.chunks, total.size_bytes, total.sha256)


def catalogue(*manifests: Manifest) -> Catalogue:
    found = Catalogue()
    for one in manifests:
        found.add(one.snapshot_id.encode(), encode_manifest(one))
    return found


def test_two_are_kept_and_the_log_begins_at_the_older() -> None:
    assert catalogue().trim_offset is None
    assert catalogue(manifest("a", 5)).trim_offset is None
    three = catalogue(manifest("b", 7), manifest("a", 5), manifest("c", 9))
    assert [one.snapshot_id for one in three.newest_first] == ["c", "b", "a"]
    assert [one.snapshot_id for one in three.obsolete] == ["a"]
    assert three.trim_offset == 7


def test_a_tombstone_and_a_torn_manifest_end_a_snapshot() -> None:
    found = catalogue(manifest("a", 5), manifest("b", 7), manifest("c", 9))
    found.add(b"a", None)
    found.add(b"c", encode_manifest(manifest("c", 9))[:-3])
    found.add(None, b"x")
    found.add(b"unknown", None)
    assert [one.snapshot_id for one in found.newest_first] == ["b"]


@given(st.lists(st.binary(max_size=9), max_size=5), st.data())
def test_any_change_of_the_chunks_is_found(chunks: list[bytes], data: st.DataObject) -> None:
    expected = manifest("a", 1, tuple(chunks))
    given_chunks = data.draw(st.permutations(chunks) | st.lists(st.binary(max_size=9), max_size=5))
    found = Sum()
    for chunk in given_chunks:
        found.add(chunk)
    if given_chunks == chunks:
        found.check(expected)
    else:
        with pytest.raises(SnapshotError):
            found.check(expected)


def test_a_long_chunk_is_cut_and_joined_again() -> None:
    long = bytes(range(256)) * (2 * CHUNK_BYTES_MAX // 256 + 1)
    exact = bytes(CHUNK_BYTES_MAX)
    chunks = [b"a", long, b"", exact]
    pieces = list(cut(chunks))
    assert len(pieces) == 6
    assert max(map(len, pieces)) == CHUNK_BYTES_MAX + 1
    assert list(join(pieces)) == chunks
    with pytest.raises(SnapshotError, match="no end"):
        list(join(pieces[:2]))


def test_keys_begin_with_the_snapshot() -> None:
    assert chunk_key("a-7", 12) == b"a-7/00000012"
