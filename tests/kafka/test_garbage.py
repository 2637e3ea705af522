"""Mutated requests: nothing but DecodeError, and little memory, whatever bytes a client sends."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from raftlog.kafka.apis import APIS, Api
from raftlog.kafka.framing import parse_head
from raftlog.schema.codec import ELEMENTS_MAX, codec_of
from raftlog.schema.errors import DecodeError
from raftlog.schema.fields import Array, Kind, Nested, StructLayout, WireType, layout_of

INPUTS: Final = 100_000
MEMORY_BYTES_MAX: Final = 8 << 20
"""Of one decoded message of 64 KiB at the most."""
SEED: Final = 14


def random_struct(chance: random.Random, layout: StructLayout) -> Any:
    return layout.struct_type(
        **{
            field.name: random_value(chance, field.wire_type) if field.is_present else field.default
            for field in layout.fields
        }
    )


def random_value(chance: random.Random, wire_type: WireType) -> Any:
    if wire_type.is_nullable and chance.random() < 0.2:
        return None
    if isinstance(wire_type, Nested):
        return random_struct(chance, wire_type.struct)
    if isinstance(wire_type, Array):
        return tuple(random_value(chance, wire_type.element) for _ in range(chance.randrange(3)))
    return RANDOM.get(wire_type.kind, _small)(chance)


def _small(chance: random.Random) -> int:
    return chance.randrange(100)


def _bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(40))


RANDOM: Final[dict[Kind, Callable[[random.Random], Any]]] = {
    Kind.BOOL: lambda chance: chance.random() < 0.5,
    Kind.FLOAT64: random.Random.random,
    Kind.UUID: lambda chance: f"{chance.getrandbits(128):032x}",
    Kind.STRING: lambda chance: "é" * chance.randrange(4),
    Kind.BYTES: _bytes,
    Kind.RECORDS: _bytes,
}


def mutated(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0:
                changed[place] = chance.randrange(256)
            case 1:
                changed[place] ^= 1 << chance.randrange(8)
            case 2:
                del changed[place:]
                changed += b"\xff" * chance.randrange(8)
            case 3:
                changed[place:place] = chance.randbytes(chance.randint(1, 8))
            case 4:
                changed[place : place + 4] = b"\x7f\xff\xff\xff"
        if not changed:
            changed = bytearray(b"\0")
    return bytes(changed)


def samples(chance: random.Random, api: Api, version: int, count: int) -> list[bytes]:
    layout, codec = layout_of(api.request_type, version), api.request_codec(version)
    return [codec.encode(random_struct(chance, layout)) for _ in range(count)]


def test_decoders_take_mutated_requests() -> None:
    chance = random.Random(SEED)
    versions = [(api, v) for api in APIS.values() for v in range(api.first, api.last + 1)]
    refused = 0
    for api, version in versions:
        codec = api.request_codec(version)
        bases = samples(chance, api, version, 20)
        for _ in range(INPUTS // len(versions) + 1):
            try:
                codec.decode(mutated(chance, chance.choice(bases)), 0, ELEMENTS_MAX)
            except DecodeError:
                refused += 1
    assert INPUTS / 10 < refused < INPUTS


def test_heads_take_any_bytes() -> None:
    chance = random.Random(SEED)
    head = bytes.fromhex("0003000c00000007000474657374") + b"\x01\x00\x02ab"
    for _ in range(20_000):
        for is_flexible in (False, True):
            with suppress(DecodeError):
                parse_head(mutated(chance, head), is_flexible=is_flexible)


def test_memory_of_a_decoded_message_is_bounded() -> None:
    """A frame of the largest size that is not Produce, full of the smallest elements."""
    codec = codec_of(APIS[3].request_type, 9)
    frame = bytes.fromhex("ffff3f") + bytes(1 << 20)
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
