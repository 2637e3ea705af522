"""A pipeline of requests on one connection, split in all ways and cut at every byte.

Inside the value of the one large record a cut at each `INSIDE_STEP`-th byte is enough here;
`scripts/simulate kafka-cuts requests` cuts at all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.simulation.kafka.pipeline import (
    LARGE_BYTES,
    MANNER,
    TRIALS_PER_WORLD,
    Side,
    cut_at,
    streams,
)
from tests.simulation.streams import StreamManner, exactly

INSIDE_STEP: Final = 997
AROUND: Final = 100
"""Bytes at each end of the large value that are cut at, every one."""
MORE: Final = 40
"""Later trials have longer names, and so longer streams."""
SPLITS: Final = (
    StreamManner(piece_bytes_max=1, unread_bytes_max=100_000),
    StreamManner(read_bytes_max=1),
    StreamManner(piece_bytes_max=7, read_bytes_max=3),
    StreamManner(sent_bytes_max=64, unread_bytes_max=64),
    StreamManner(sent_bytes_max=50, unread_bytes_max=3_000, read_bytes_max=100),
    *(StreamManner(piece_bytes_max=size) for size in (30, 300, 3_000, 30_000)),
    *(exactly(StreamManner(read_bytes_max=size)) for size in (8, 32_768, 32_769, 65_536)),
)


@pytest.fixture(scope="module")
def whole() -> dict[Side, bytes]:
    requests, answers = streams(0, exactly(MANNER))
    return {"requests": requests, "answers": answers}


@pytest.mark.parametrize("manner", SPLITS, ids=repr)
def test_answers_are_the_same_bytes_however_the_streams_are_split(
    manner: StreamManner, whole: dict[Side, bytes]
) -> None:
    assert streams(0, manner) == (whole["requests"], whole["answers"])


def positions(whole: bytes) -> Sequence[int]:
    """Every byte but those inside of the large value."""
    value = b"x" * LARGE_BYTES
    begin = whole.find(value)
    if begin < 0:
        return range(len(whole) + MORE)
    inside = range(begin + AROUND, begin + LARGE_BYTES - AROUND)
    return [
        at
        for at in range(len(whole) + MORE)
        if at not in inside or (at - inside.start) % INSIDE_STEP == 0
    ]


@pytest.mark.parametrize("part", range(4))
def test_requests_are_cut_at_every_byte(part: int, whole: dict[Side, bytes]) -> None:
    _cut("requests", positions(whole["requests"])[part::4], is_late=True)


@pytest.mark.parametrize("part", range(4))
def test_answers_are_cut_at_every_byte(part: int, whole: dict[Side, bytes]) -> None:
    _cut("answers", positions(whole["answers"])[part::4], is_late=False)


def test_half_closed_connections(whole: dict[Side, bytes]) -> None:
    """At some bytes: the listener reads the rest, and ends the connection."""
    for side in whole:
        some = positions(whole[side])[::23]
        assert cut_at(side, "half-close", is_late=False, positions=some) == len(some)


def _cut(side: Side, at: Sequence[int], *, is_late: bool) -> None:
    for first in range(0, len(at), TRIALS_PER_WORLD):
        some = at[first : first + TRIALS_PER_WORLD]
        assert cut_at(side, "reset", is_late=is_late, positions=some) == len(some)
