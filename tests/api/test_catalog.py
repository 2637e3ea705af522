"""The catalog's entries: encoded, decoded, and read by older and newer code."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.api.catalog import CatalogEntry, decode_entry, encode_entry

ENTRIES = st.builds(
    CatalogEntry,
    log=st.text(min_size=1),
    cluster=st.text(),
    cluster_id=st.text(),
    addresses=st.lists(st.text(), max_size=5).map(tuple),
    partitions=st.integers(1, 10_000),
    state=st.sampled_from(("creating", "online", "degraded", "removed")),
)


@given(ENTRIES)
def test_entries_survive_their_encoding(entry: CatalogEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


def test_fields_of_a_newer_writer_are_ignored() -> None:
    entry = CatalogEntry(log="orders", cluster="orders-1", state="online")
    document = json.loads(encode_entry(entry)) | {"colour": "red", "version": 2}
    assert decode_entry(json.dumps(document).encode()).version == 2


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b'{"log": "a"}', b'{"log": "", "cluster": "c", "state": "online"}',
     b'{"log": "a", "cluster": "c", "state": "asleep"}', b"\xff"],
)  # fmt: skip
def test_value_that_is_no_entry_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="not a catalog entry"):
        decode_entry(value)
