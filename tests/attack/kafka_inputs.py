"""Hostile frames of the Kafka protocol, made from a seeded random generator. Pure.

A base is a sound request with random values; `mutated` breaks it in one to three places. `crowded`
and `tagged` are requests as large as may be, full of the smallest things that a decoder counts.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from raftlog.kafka.apis import APIS, Api
from raftlog.record.codec import BatchBuilder
from raftlog.record.compression import Compression
from raftlog.schema.codec import codec_of
from raftlog.schema.errors import EncodeError
from raftlog.schema.fields import Array, Kind, Nested, Primitive, StructLayout, WireType, layout_of
from raftlog.schema.varints import encode_uvarint
from tests.attack.inputs import TOPIC, batch_bomb, lying_batch

KIB: Final = 1 << 10
BASES: Final = 20
"""Sound requests of one version, from which mutated ones are made."""
CLIENT_ID: Final = b"attacker"
FIRST_TAG: Final = 1_000
"""The first tag of `unknown_tags`: none of Kafka's fields has it."""

_HEAD: Final = struct.Struct(">hhih")
_SIZE: Final = struct.Struct(">i")
STRINGS: Final = ("", "é", "ééé", TOPIC, TOPIC, "group", "__consumer_offsets", "a" * 249)
"""Names of topics, groups, configs, …: good ones, and bad ones."""
SOUND_SHARE: Final = 0.1
"""Of requests that are not mutated: their values are hostile enough for a handler."""
HEAD_SHARE: Final = 0.1
"""Of mutations that reach into the head: most such frames name no API."""


def versions() -> list[tuple[Api, int]]:
    """Every version of every API that a client may send."""
    return [(api, one) for api in APIS.values() for one in range(api.first, api.last + 1)]


def random_struct(chance: random.Random, layout: StructLayout) -> Any:
    """A message with random values in all of the version's fields."""
    return layout.struct_type(
        **{
            field.name: random_value(chance, field.wire_type) if field.is_present else field.default
            for field in layout.fields
        }
    )


def random_value(chance: random.Random, wire_type: WireType) -> Any:
    """A random value, small."""
    if wire_type.is_nullable and chance.random() < 0.2:
        return None
    if isinstance(wire_type, Nested):
        return random_struct(chance, wire_type.struct)
    if isinstance(wire_type, Array):
        return tuple(random_value(chance, wire_type.element) for _ in range(chance.randrange(3)))
    return _RANDOM.get(wire_type.kind, _small)(chance)


def _small(chance: random.Random) -> int:
    return chance.randrange(100)


def _bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(40))


def _records(chance: random.Random) -> bytes:
    """Half of them a sound record batch."""
    if chance.random() < 0.5:
        return _bytes(chance)
    return record_batch(*(_bytes(chance) for _ in range(chance.randint(1, 3))))


_RANDOM: Final[Mapping[Kind, Callable[[random.Random], Any]]] = {
    Kind.BOOL: lambda chance: chance.random() < 0.5,
    Kind.FLOAT64: random.Random.random,
    Kind.UUID: lambda chance: f"{chance.getrandbits(128):032x}",
    Kind.STRING: lambda chance: chance.choice(STRINGS),
    Kind.BYTES: _bytes,
    Kind.RECORDS: _records,
}
_EMPTY: Final[Mapping[Kind, Any]] = {
    Kind.BOOL: False,
    Kind.FLOAT64: 0.0,
    Kind.UUID: "0" * 32,
    Kind.STRING: "",
    Kind.BYTES: b"",
    Kind.RECORDS: b"",
}


def record_batch(*values: bytes, compression: Compression = Compression.NONE) -> bytes:
    """A sound record batch."""
    builder = BatchBuilder(compression)
    for value in values:
        builder.append(None, None, value, None)
    return bytes(builder.build())


def mutated(chance: random.Random, data: bytes, start: int = 0) -> bytes:
    """The bytes, broken in one to three places from `start` on."""
    changed = bytearray(data or b"\0")
    for _ in range(chance.randint(1, 3)):
        place = min(chance.randrange(start, max(len(changed), start + 1)), len(changed) - 1)
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


def head(api: Api, version: int, number: int = 0) -> bytes:
    """The head of a request with this correlation id."""
    tags = b"\0" if api.is_request_flexible(version) else b""
    return _HEAD.pack(api.key, version, number, len(CLIENT_ID)) + CLIENT_ID + tags


def sized(body: bytes) -> bytes:
    """The frame of a request: its size, then the request."""
    return _SIZE.pack(len(body)) + body


def request(message: msgspec.Struct, version: int, number: int = 0) -> bytes:
    """The frame of a sound request."""
    api = api_of(message)
    return sized(head(api, version, number) + codec_of(api.request_type, version).encode(message))


def api_of(message: msgspec.Struct) -> Api:
    """The API of a request."""
    return _BY_TYPE[type(message)]


_BY_TYPE: Final = {api.request_type: api for api in APIS.values()}


def samples(chance: random.Random, api: Api, version: int, count: int) -> list[bytes]:
    """Bodies of sound requests."""
    layout, codec = layout_of(api.request_type, version), codec_of(api.request_type, version)
    return [codec.encode(random_struct(chance, layout)) for _ in range(count)]


class FrameMutator:
    """Mutated requests of one version of an API, without their size."""

    def __init__(self, chance: random.Random, api: Api, version: int) -> None:
        self._chance = chance
        first = head(api, version)
        self._body_start = len(first)
        self._bases = [first + one for one in samples(chance, api, version, BASES)]

    def frame(self) -> bytes:
        """A mutated request; most of them have a sound head, and some are sound."""
        chance = self._chance
        if chance.random() < SOUND_SHARE:
            return chance.choice(self._bases)
        start = 0 if chance.random() < HEAD_SHARE else self._body_start
        return mutated(chance, chance.choice(self._bases), start)


def smallest_struct(layout: StructLayout, **values: Any) -> Any:
    """A message of the smallest values but these, without tagged fields."""
    found = {
        field.name: smallest_value(field.wire_type)
        if field.is_present and field.tag is None
        else field.default
        for field in layout.fields
    }
    return layout.struct_type(**{**found, **values})


def smallest_value(wire_type: WireType) -> Any:
    """The smallest value but None."""
    if isinstance(wire_type, Nested):
        return smallest_struct(wire_type.struct)
    if isinstance(wire_type, Array):
        return ()
    return _EMPTY.get(wire_type.kind, 0)


def crowded(
    api: Api, version: int, count: int, name_of: Callable[[int], str] = lambda _: ""
) -> Iterator[bytes]:
    """For each array of the message, a sound request with `count` of its smallest elements.

    `name_of` gives the first string of each element.
    """
    layout, codec = layout_of(api.request_type, version), codec_of(api.request_type, version)
    for name, element in _arrays(layout):
        many = tuple(_named(element, name_of(number)) for number in range(count))
        yield head(api, version) + codec.encode(smallest_struct(layout, **{name: many}))


def _named(element: WireType, name: str) -> Any:
    """A small element with this name, if it has one."""
    if isinstance(element, Nested):
        for field in element.struct.fields:
            if field.is_present and _is_string(field.wire_type):
                return smallest_struct(element.struct, **{field.name: name})
    return name if _is_string(element) else smallest_value(element)


def _is_string(wire_type: WireType) -> bool:
    return isinstance(wire_type, Primitive) and wire_type.kind is Kind.STRING


class Values(NamedTuple):
    """Values of a request that repeats elements."""

    name: str
    """Every string, before the number of its element."""
    topic_id: str
    number_of: Callable[[int], int] = lambda _: 0
    """Number of each repeated element, by its place. It is every integer of the element."""
    suffix_of: Callable[[int], str] = lambda _: ""


def repeated(api: Api, version: int, values: Values, count: int) -> Iterator[bytes]:
    """For each array of a message and of its elements, a sound request with many elements.

    The elements and the elements in them are at most `count`. Every other array has one element.
    """
    layout, codec = layout_of(api.request_type, version), codec_of(api.request_type, version)
    for path, elements in _array_paths(layout):
        message = _full_struct(layout, path, values, count // elements, 0)
        with suppress(EncodeError):
            yield head(api, version) + codec.encode(message)


def _array_paths(layout: StructLayout) -> Iterator[tuple[tuple[str, ...], int]]:
    """The fields that lead to each array, and the array elements that one element brings."""
    for name, element in _arrays(layout):
        inner = list(_array_paths(element.struct)) if isinstance(element, Nested) else []
        yield (name,), 1 + len(inner)
        yield from (((name, *path), elements) for path, elements in inner)


_KNOWN: Final[Mapping[str, Any]] = {"resource_type": 2, "acks": -1, "config_operation": 1}
"""Values by field, with which a request gets past the first check."""


def _full_struct(
    layout: StructLayout, path: tuple[str, ...], values: Values, count: int, place: int
) -> Any:
    """A message with an element in each array, and `count` of them in the array of the path."""
    found: dict[str, Any] = {}
    for field in layout.fields:
        if not field.is_present or field.tag is not None:
            found[field.name] = field.default
        elif field.name in _KNOWN:
            found[field.name] = _KNOWN[field.name]
        else:
            is_on_path = path[:1] == (field.name,)
            rest = path[1:] if is_on_path else ()
            times = count if is_on_path and not rest else 1
            found[field.name] = _full_value(field.wire_type, rest, values, count, (place, times))
    return layout.struct_type(**found)


def _full_value(
    wire_type: WireType,
    path: tuple[str, ...],
    values: Values,
    count: int,
    place_and_times: tuple[int, int],
) -> Any:
    place, times = place_and_times
    if isinstance(wire_type, Nested):
        return _full_struct(wire_type.struct, path, values, count, place)
    if isinstance(wire_type, Array):
        return tuple(
            _full_value(wire_type.element, path, values, count, (place + n, 1))
            for n in range(times)
        )
    if wire_type.kind is Kind.STRING:
        return values.name + values.suffix_of(place)
    if wire_type.kind is Kind.UUID:
        return values.topic_id
    smallest = smallest_value(wire_type)
    is_number = wire_type.kind in {Kind.INT32, Kind.INT64}
    return values.number_of(place) if is_number else smallest


def claimed(api: Api, version: int, count: int) -> Iterator[bytes]:
    """For each array, a short request that claims `count` elements and has none of them."""
    layout, codec = layout_of(api.request_type, version), codec_of(api.request_type, version)
    empty = codec.encode(smallest_struct(layout))
    for name, element in _arrays(layout):
        one = (smallest_value(element),)
        full = codec.encode(smallest_struct(layout, **{name: one}))
        place = next(n for n in range(len(empty)) if empty[n] != full[n])
        if layout.is_flexible:
            claim, end = encode_uvarint(count + 1), place + 1
        else:
            claim, end = _SIZE.pack(count), place + 1
            place = end - _SIZE.size
        yield head(api, version) + empty[:place] + claim + empty[end:]


def _arrays(layout: StructLayout) -> Iterator[tuple[str, WireType]]:
    """Name and element of each array of a message; tagged fields left out."""
    for field in layout.fields:
        if field.is_present and field.tag is None and isinstance(field.wire_type, Array):
            yield field.name, field.wire_type.element


def unknown_tags(size: int) -> bytes:
    """A section of about `size` bytes of small tagged fields that no message has."""
    tags, count = bytearray(), 0
    while len(tags) < size:
        tags += encode_uvarint(FIRST_TAG + count) + b"\0"
        count += 1
    return encode_uvarint(count) + bytes(tags)


def tagged(api: Api, version: int, tags: bytes) -> bytes:
    """A request in a flexible version, small but for these tagged fields."""
    body = codec_of(api.request_type, version).encode(
        smallest_struct(layout_of(api.request_type, version))
    )
    assert body.endswith(b"\0"), "there are tagged fields"
    return head(api, version) + body[:-1] + tags


def compressed_bombs() -> Iterator[bytes]:
    """Record batches that inflate, of every codec: sound ones, and lies with a correct CRC."""
    for codec in Compression:
        if codec is not Compression.NONE:
            yield batch_bomb(codec, 8 << 20, 1000)
            yield batch_bomb(codec, 1 << 17, 1)
            yield lying_batch(codec, 64 << 20)
