"""A dictionary with snapshots of one moment and a digest."""

from __future__ import annotations

import time
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_replicated.examples import table as table_module
from raftlog_replicated.examples.table import CHUNK_BYTES, Table
from raftlog_replicated.logs.pipeline import COMMAND_BYTES_MAX
from raftlog_replicated.snapshots.snapshots import CHUNK_BYTES_MAX, cut

KEYS: Final = st.sampled_from(["", "a", "b", "ab", "ä", "c" * 300])
CHANGES: Final = st.lists(st.tuples(KEYS, st.none() | st.text(max_size=3)), max_size=30)


def changed(table: Table[str], changes: list[tuple[str, str | None]]) -> dict[str, str]:
    """Change a table and return the same changes of a plain dictionary."""
    model = dict(table.items())
    for key, value in changes:
        before = model.pop(key, None)
        if value is not None:
            model[key] = value
        assert table.set(key, value) == before
        assert table.get(key) == value
    return model


@given(CHANGES)
def test_a_table_is_a_dictionary(changes: list[tuple[str, str | None]]) -> None:
    table = Table(str)
    model = changed(table, changes)
    assert dict(table.items()) == model
    assert len(table) == len(model)
    assert all(table.get(key) == model.get(key) for key, _ in changes)


@given(CHANGES, CHANGES, CHANGES)
def test_a_snapshot_is_of_the_moment_of_the_call(
    before: list[tuple[str, str | None]],
    meanwhile: list[tuple[str, str | None]],
    after: list[tuple[str, str | None]],
) -> None:
    table, other = Table(str), Table(str)
    model = changed(table, before)
    digest = table.digest()
    first = table.snapshot()
    later = changed(table, meanwhile)
    second = table.snapshot()
    changed(table, after)
    changed(other, after)
    other.restore(first)
    assert (dict(other.items()), other.digest()) == (model, digest)
    other.restore(second)
    assert dict(other.items()) == later
    other.restore(())
    assert (dict(other.items()), other.digest()) == ({}, Table(str).digest())


@given(CHANGES, CHANGES)
def test_digests_are_equal_for_equal_pairs_only(
    one: list[tuple[str, str | None]], other: list[tuple[str, str | None]]
) -> None:
    a, b = Table(str), Table(str)
    are_equal = changed(a, one) == changed(b, other)
    assert (a.digest() == b.digest()) == are_equal


def test_the_order_of_pairs_is_the_same_after_a_restore() -> None:
    table, other = Table(int), Table(int)
    for number in range(10_000):
        table.set(f"key-{number % 7_000}", number)
        table.set(f"key-{number // 3}", None)
    other.restore(table.snapshot())
    assert list(table.items()) == list(other.items())
    assert list(table.snapshot()) == list(other.snapshot())


@pytest.mark.parametrize("size", [10, 1_000, COMMAND_BYTES_MAX - 100])
def test_chunks_are_never_cut_apart(size: int) -> None:
    table, other = Table(str), Table(str)
    for number in range(3 * CHUNK_BYTES // size + 3):
        table.set(f"key-{number}", "v" * size)
    chunks = list(table.snapshot())
    assert len(chunks) > 2
    assert max(map(len, chunks)) <= CHUNK_BYTES + COMMAND_BYTES_MAX < CHUNK_BYTES_MAX
    assert len(list(cut(chunks))) == len(chunks)
    other.restore(chunks)
    assert other.digest() == table.digest()


KEYS_MANY: Final = 200_000
STOP_S_MAX: Final = 0.02


def test_no_step_of_a_snapshot_stops_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_hash", len)  # not measured here
    table = Table(str)
    for number in range(KEYS_MANY):
        table.set(f"key-{number}", "value")
    longest_s, chunks = 0.0, 0
    begun = time.thread_time()  # a step may wait for a busy machine besides
    for _ in table.snapshot():
        table.set("key-1", "changed")
        ended = time.thread_time()
        longest_s = max(longest_s, ended - begun)
        begun, chunks = ended, chunks + 1
    assert chunks > 10
    assert longest_s < STOP_S_MAX
