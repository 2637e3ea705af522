"""Strategies of messages, and their values as other implementations take them."""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from raftlog.schema.fields import (
    Array,
    FieldLayout,
    Kind,
    Nested,
    Primitive,
    StructLayout,
    WireType,
    layout_of,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.just("long" * 50)
BYTES = st.binary(max_size=5) | st.just(bytes(200))
INTEGERS = {
    Kind.INT8: (-(1 << 7), (1 << 7) - 1),
    Kind.INT16: (-(1 << 15), (1 << 15) - 1),
    Kind.UINT16: (0, (1 << 16) - 1),
    Kind.INT32: (-(1 << 31), (1 << 31) - 1),
    Kind.UINT32: (0, (1 << 32) - 1),
    Kind.INT64: (-(1 << 63), (1 << 63) - 1),
}


@cache
def messages(message_type: type[msgspec.Struct], version: int) -> st.SearchStrategy[Any]:
    """Messages with the default in every field that the version lacks."""
    return structs(layout_of(message_type, version))


def structs(layout: StructLayout) -> st.SearchStrategy[Any]:
    return st.builds(
        layout.struct_type,
        **{
            field.name: values(field.wire_type) if field.is_present else st.just(field.default)
            for field in layout.fields
        },
    )


def values(wire_type: WireType) -> st.SearchStrategy[Any]:
    chosen: st.SearchStrategy[Any]
    match wire_type:
        case Nested():
            chosen = structs(wire_type.struct)
        case Array():
            chosen = st.lists(values(wire_type.element), max_size=3).map(tuple)
        case Primitive():
            chosen = primitives(wire_type.kind)
    return st.none() | chosen if wire_type.is_nullable else chosen


def primitives(kind: Kind) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        return st.integers(*INTEGERS[kind])
    match kind:
        case Kind.BOOL:
            return st.booleans()
        case Kind.FLOAT64:
            return st.floats(allow_nan=False)
        case Kind.UUID:
            return st.uuids().map(lambda one: one.hex)
        case Kind.STRING:
            return TEXTS
        case _:
            return BYTES


def present_fields(layout: StructLayout) -> list[FieldLayout]:
    """Fields in the order of the wire."""
    plain = [field for field in layout.fields if field.is_present and field.tag is None]
    return plain + (layout.tagged if layout.is_flexible else [])


def plain_struct(layout: StructLayout, message: Any) -> dict[str, Any]:
    """The message as a dictionary of the fields that the version has."""
    return {
        field.name: plain(field.wire_type, getattr(message, field.name))
        for field in present_fields(layout)
    }


def plain(wire_type: WireType, value: Any) -> Any:
    if value is None:
        return None
    match wire_type:
        case Nested():
            return plain_struct(wire_type.struct, value)
        case Array():
            return [plain(wire_type.element, one) for one in value]
        case Primitive():
            return uuid.UUID(value) if wire_type.kind is Kind.UUID else value
