"""Mutated requests: nothing but mapped errors, and little memory, whatever bytes a client sends.

`python -m bench.attack --only kafka-decoders` runs as many as wanted, on all cores.
"""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress
from typing import Final

import pytest

from bench.attack.kafka_decoders import run_chunk, run_large_frames
from bench.attack.kafka_inputs import mutated
from raftlog.kafka.apis import APIS
from raftlog.kafka.framing import parse_head
from raftlog.schema.codec import ELEMENTS_MAX, codec_of
from raftlog.schema.errors import DecodeError

INPUTS: Final = 100_000
MEMORY_BYTES_MAX: Final = 8 << 20
"""Of one decoded message of 64 KiB at the most."""
SEED: Final = 14


def test_decoders_take_mutated_requests() -> None:
    outcome = run_chunk(f"{SEED}", INPUTS)
    assert outcome.frames == INPUTS
    assert not outcome.findings(slack=10)


def test_decoders_take_frames_at_the_bounds_and_none_beyond() -> None:
    outcome = run_large_frames("", 0)
    assert min(outcome.taken, outcome.refused) > 100
    assert not outcome.findings(slack=10)


def test_heads_take_any_bytes() -> None:
    chance = random.Random(SEED)
    head = bytes.fromhex("0003000c00000007000474657374") + b"\x01\x00\x02ab"
    for _ in range(20_000):
        for is_flexible in (False, True):
            with suppress(DecodeError):
                parse_head(mutated(chance, head), is_flexible=is_flexible)


@pytest.mark.parametrize("body", ["ffff3f", "ffffffff0f"])
def test_memory_of_a_decoded_message_is_bounded(body: str) -> None:
    """A frame of the largest size that is not Produce, full of the smallest elements."""
    codec = codec_of(APIS[3].request_type, 9)
    frame = bytes.fromhex(body) + bytes(1 << 20)
    tracemalloc.start()
    try:
        codec.decode(frame, 0, ELEMENTS_MAX)
    except DecodeError:
        pass
    else:
        raise AssertionError("a million elements were taken")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX
