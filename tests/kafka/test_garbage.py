"""Mutated requests: nothing but mapped errors, whatever bytes a client sends.

`python -m tests.attack --only kafka-decoders` runs as many as wanted, on all cores.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Final

from raftlog.kafka.framing import parse_head
from raftlog.schema.errors import DecodeError
from tests.attack.kafka_decoders import run_chunk, run_large_frames
from tests.attack.kafka_inputs import mutated

INPUTS: Final = 100_000
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
