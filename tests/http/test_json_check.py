"""JSON checked in slices, and cut into pieces: the same outcome however long the steps are."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from raftlog.broker.limits import WorkTurns
from raftlog.http import json_check
from raftlog.http.json_check import JsonCheck, array_pieces, check_body
from raftlog.record.errors import BODY_TOO_LARGE, INVALID_BODY, LogError
from raftlog.world.time import SystemClock

VALUES = st.recursive(
    st.none() | st.integers() | st.text('[]{}\\"é,: '),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{\\"a,}'), inner, max_size=3)
    ),
    max_leaves=30,
)


def depth_of(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case _:
            return 0


def is_accepted(body: bytes, cuts: list[int], depth_max: int) -> bool:
    check = JsonCheck(depth_max)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    try:
        for start, end in itertools.pairwise(edges):
            check.feed(body[start:end])
        check.finish()
    except LogError as error:
        assert error.entry is INVALID_BODY
        return False
    return True


@given(
    value=VALUES,
    depth_max=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 300), max_size=8),
    is_ascii=st.booleans(),
)
@example(value=[[[[[]]]]], depth_max=4, cuts=[1], is_ascii=True)
def test_slices_give_the_depth_that_counting_gives(
    value: object, depth_max: int, cuts: list[int], is_ascii: bool
) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert is_accepted(body, cuts, depth_max) == (depth_of(value) <= depth_max)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_slices_find_what_is_not_utf8(noise: bytes, cuts: list[int]) -> None:
    try:
        noise.decode()
    except UnicodeDecodeError:
        assert not is_accepted(noise, cuts, 500)
    else:
        assert is_accepted(noise, cuts, 500)


def test_depth_hidden_behind_brackets_in_strings_is_found() -> None:
    hidden = b'[[[[["]]]",[[[["]]]",[[[["[[["]]]]]]]]]]]'
    assert not is_accepted(hidden, [], 8)
    assert is_accepted(hidden, [], 13)


async def test_long_body_is_checked_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    feed = JsonCheck.feed
    monkeypatch.setattr(
        JsonCheck, "feed", lambda self, data: (fed.append(len(data)), feed(self, data))
    )
    turns = CountedTurns()
    body = b"[" + b"[]," * 500_000 + b"0]"
    await check_body(body, 64, turns)
    assert sum(fed) == len(body)
    assert max(fed) <= json_check.SLICE_BYTES
    assert turns.count == len(fed)


class CountedTurns(WorkTurns):
    """Counts the waits."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.count = 0

    async def wait(self) -> None:
        self.count += 1
        await super().wait()


@given(
    elements=st.lists(st.dictionaries(st.text('[{\\"a,}'), VALUES, max_size=3), max_size=60),
    separator=st.sampled_from([",", ", ", " ,\n  "]),
    slice_bytes=st.integers(3, 40),
    piece_bytes=st.integers(1, 100),
)
async def test_pieces_hold_the_elements_in_order(
    elements: list[dict[str, Any]], separator: str, slice_bytes: int, piece_bytes: int
) -> None:
    inner = separator.join(json.dumps(each) for each in elements).encode()
    head, tail = b'{"acks":1,"records":[', b'],"timeout":5}'
    body = head + inner + tail
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_check, "SLICE_BYTES", slice_bytes)
        patched.setattr(json_check, "PIECE_BYTES", piece_bytes)
        pieces = await array_pieces(
            body, len(head), len(body) - len(tail), 64, WorkTurns(SystemClock())
        )
    found: list[Any] = []
    for start, end in pieces:
        found += json.loads(b"[%b]" % body[start:end])
    assert found == elements


@given(
    noise=st.text('{}[]",:1a ', max_size=60).map(str.encode),
    slice_bytes=st.integers(3, 20),
    piece_bytes=st.integers(1, 20),
)
async def test_cutting_makes_no_valid_array_of_an_invalid_one(
    noise: bytes, slice_bytes: int, piece_bytes: int
) -> None:
    decoder = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
    try:
        whole = decoder.decode(b"[%b]" % noise)
    except (msgspec.DecodeError, msgspec.ValidationError):
        whole = None
    body = b'{"records":[' + noise + b"]}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_check, "SLICE_BYTES", slice_bytes)
        patched.setattr(json_check, "PIECE_BYTES", piece_bytes)
        try:
            pieces = await array_pieces(body, 12, len(body) - 2, 64, WorkTurns(SystemClock()))
            found: list[Any] = []
            for start, end in pieces:
                found += decoder.decode(b"[%b]" % body[start:end])
        except (msgspec.DecodeError, msgspec.ValidationError):
            assert whole is None
        else:
            assert whole == found


@pytest.mark.parametrize("size", [32, 64, 128, 1024])
async def test_elements_that_end_with_every_slice_are_cut_too(size: int) -> None:
    element = b'{"value":"' + b"x" * (size - 13) + b'"},'
    assert len(element) == size
    inner = (element * (4 * json_check.PIECE_BYTES // size))[:-1]
    for shift in range(3):
        body = b" " * shift + b"[" + inner + b"]"
        pieces = await array_pieces(body, shift + 1, len(body) - 1, 64, WorkTurns(SystemClock()))
        assert len(pieces) >= 3
        assert max(end - start for start, end in pieces) < 2 * json_check.PIECE_BYTES


async def test_element_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_check, "ELEMENT_BYTES_MAX", 1_000_000)
    body = b'[{"value":"' + b"x" * 2_000_000 + b'"}]'
    with pytest.raises(LogError) as caught:
        await array_pieces(body, 1, len(body) - 1, 64, WorkTurns(SystemClock()))
    assert caught.value.entry is BODY_TOO_LARGE


@given(st.binary(max_size=30))
def test_noise_is_accepted_or_refused_with_a_typed_error(noise: bytes) -> None:
    assume(noise)
    is_accepted(noise, [len(noise) // 2], 2)
