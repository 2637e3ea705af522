"""Entries as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_replicated.codec import (
    Commands,
    Digest,
    Entry,
    Fence,
    WallFence,
    decode_entry,
    encode_entry,
)
from raftlog_replicated.errors import UnknownEntryError

numbers = st.integers(0, 2**63 - 1)
entries = st.one_of(
    st.builds(Fence, numbers, st.text(), st.none() | st.text()),
    st.builds(WallFence, numbers, st.text(), st.none() | st.text()),
    st.builds(
        Commands,
        numbers,
        numbers,
        st.lists(st.binary(), max_size=4),
        st.dictionaries(st.integers(0, 3), st.text()),
    ),
    st.builds(Digest, numbers, numbers, st.binary()),
)


@given(entries)
def test_entries_survive(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(st.binary())
def test_other_bytes_are_refused_by_type(data: bytes) -> None:
    try:
        entry = decode_entry(data)
    except UnknownEntryError:
        return
    assert decode_entry(encode_entry(entry)) == entry


def test_a_kind_of_a_later_release_is_not_skipped() -> None:
    with pytest.raises(UnknownEntryError):
        decode_entry(b"\x92\x04\x01")


def test_the_format_is_fixed() -> None:
    """Bytes of this release: logs are read by all later ones."""
    assert encode_entry(Fence(7, "a", "h:1")) == b"\x94\x03\x07\xa1a\xa3h:1"
    assert encode_entry(WallFence(7, "a", "h:1")) == b"\x94\x00\x07\xa1a\xa3h:1"
    assert (
        encode_entry(Commands(7, 1, [b"x"], {0: "r"}))
        == b"\x95\x01\x07\x01\x91\xc4\x01x\x81\x00\xa1r"
    )
    assert encode_entry(Digest(7, 2, b"d")) == b"\x94\x02\x07\x02\xc4\x01d"
