from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.http.json_stream import JsonSplitter
from raftlog.record.errors import BODY_TOO_LARGE, INVALID_BODY, LogError

TEXT = st.text('ab{}[]"\\\n é', max_size=8)
OBJECTS = st.dictionaries(TEXT, st.recursive(TEXT | st.integers(), st.lists, max_leaves=4))


def split(
    *chunks: bytes, limit: int = 1000, depth_max: int = 64
) -> tuple[list[bytes], LogError | None, int]:
    splitter = JsonSplitter(limit, depth_max)
    objects: list[bytes] = []
    for chunk in chunks:
        error = splitter.take(chunk, objects)
        if error is not None:
            return objects, error, splitter.pending_bytes
    return objects, None, splitter.pending_bytes


@pytest.mark.parametrize("between", ["", "\n", " \r\n\t ", "\n\n"])
def test_objects_are_found_with_and_without_blanks_between(between: str) -> None:
    objects = ['{"a":1}', "{}", '{"b":{"c":["}"]}}', '{"d":"\\"}{"}']
    found, error, pending = split((between + between.join(objects) + between).encode())
    assert [text.decode() for text in found] == objects
    assert error is None
    assert pending == 0


@given(
    st.lists(OBJECTS, max_size=5),
    st.sampled_from(["", "\n", " "]),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.booleans(),
)
def test_cutting_the_stream_anywhere_changes_nothing(
    objects: list[Any], between: str, sizes: list[int], ensure_ascii: bool
) -> None:
    stream = between.join(
        json.dumps(one, ensure_ascii=ensure_ascii, indent=len(between) or None) for one in objects
    ).encode()
    chunks: list[bytes] = []
    position = 0
    while position < len(stream):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(stream[position : position + size])
        position += size
    found, error, pending = split(*chunks, limit=100_000)
    assert [json.loads(text) for text in found] == objects
    assert error is None
    assert pending == 0


@given(st.text('{}[]"\\ a', max_size=40))
def test_quick_and_careful_search_agree_on_any_text(text: str) -> None:
    stream = b"{" + text.encode()
    whole, whole_error, _ = split(stream)
    cut, cut_error, _ = split(*[stream[n : n + 1] for n in range(len(stream))])
    assert whole == cut
    assert (whole_error is None) == (cut_error is None)


@pytest.mark.parametrize("depth", [5, 6, 7, 50])
def test_nesting_may_be_deeper_than_usual(depth: int) -> None:
    nested = b'{"a":' * depth + b'"}"' + b"}" * depth
    found, error, pending = split(nested + nested)
    assert (found, error, pending) == ([nested, nested], None, 0)


def test_unfinished_object_is_pending() -> None:
    found, error, pending = split(b'{"a":1}{"b', b'":"}')
    assert found == [b'{"a":1}']
    assert error is None
    assert pending == len(b'{"b":"}')


@pytest.mark.parametrize("stream", [b"1", b'{"a":1},{"b":2}', b"[{}]", b"}", b'"a"', b"\xff"])
def test_anything_but_objects_is_an_error_after_what_came_before(stream: bytes) -> None:
    found, error, _ = split(stream)
    assert error is not None
    assert error.entry is INVALID_BODY
    assert found == ([b'{"a":1}'] if stream.startswith(b"{") else [])


def test_object_over_the_limit_is_refused_before_its_end() -> None:
    _, error, pending = split(b'{"a":"', b"x" * 60, b"x" * 60, b"x" * 60, limit=100)
    assert error is not None
    assert error.entry is BODY_TOO_LARGE
    assert pending < 200


@pytest.mark.parametrize("opening", [b'{"a":', b'{"a":[', b'{"a":[{"b":"}]",'])
def test_nesting_over_the_limit_is_refused_at_its_bracket_and_not_at_the_end(
    opening: bytes,
) -> None:
    brackets = opening.count(b"{") + opening.count(b"[")
    stream = b'{"first":1}' + opening + b"[" * 1_000
    found, error, _ = split(stream, limit=9_999, depth_max=brackets + 1_000)
    assert (found, error) == ([b'{"first":1}'], None)
    found, error, _ = split(stream, limit=9_999, depth_max=brackets + 999)
    assert found == [b'{"first":1}']
    assert error is not None
    assert error.entry is INVALID_BODY
    assert "nested deeper" in error.message


def test_work_is_linear_in_a_long_string_that_comes_in_small_pieces() -> None:
    splitter = JsonSplitter(1 << 30, 64)
    objects: list[bytes] = []
    splitter.take(b'{"a":"', objects)
    for _ in range(20_000):
        splitter.take(b"x" * 100, objects)
    splitter.take(b'"}', objects)
    assert len(objects[0]) == 2_000_008


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_any_bytes_give_objects_or_a_typed_error(chunks: list[bytes]) -> None:
    found, error, pending = split(*chunks, limit=50)
    assert error is None or error.entry in (INVALID_BODY, BODY_TOO_LARGE)
    assert all(text.startswith(b"{") and text.endswith((b"}", b"]")) for text in found)
    assert pending >= 0
