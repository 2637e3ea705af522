"""kafka-python's own encoder of Kafka's message definitions, fed with ours."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec

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
from tests.schema.strategies import plain_struct, present_fields

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's way to read its own files
    from kafka.protocol.schemas.fields import StructField

LACKING = frozenset([Kind.UINT32])
"""Kinds that kafka-python does not have."""


def kafka_python_bytes(message: msgspec.Struct, version: int) -> bytes:
    """The message encoded by kafka-python."""
    layout = layout_of(type(message), version)
    schema = StructField({"name": "Message", "type": "data", "versions": "0+", **_fields(layout)})
    encoded: bytes = schema.encode(
        plain_struct(layout, message),
        version=version,
        compact=layout.is_flexible,
        tagged=layout.is_flexible,
    )
    return encoded


def _fields(layout: StructLayout) -> dict[str, Any]:
    return {"fields": [_field(field) for field in present_fields(layout)]}


def _field(field: FieldLayout) -> dict[str, Any]:
    wire_type = field.wire_type
    definition = {"name": field.name, "versions": "0+", "type": _type_name(wire_type)}
    if wire_type.is_nullable:
        definition["nullableVersions"] = "0+"
    innermost = wire_type.element if isinstance(wire_type, Array) else wire_type
    if isinstance(innermost, Nested):
        definition |= _fields(innermost.struct)
    if field.tag is not None:
        is_number = isinstance(field.default, int)
        default = "null" if field.default is None else str(field.default) if is_number else ""
        if isinstance(wire_type, Primitive) and wire_type.kind is Kind.UUID:
            default = ""
        definition |= {"tag": field.tag, "taggedVersions": "0+", "default": default}
    return definition


def _type_name(wire_type: WireType) -> str:
    match wire_type:
        case Array():
            return "[]" + _type_name(wire_type.element)
        case Nested():
            return wire_type.struct.struct_type.__name__
        case Primitive():
            assert wire_type.kind not in LACKING
            return wire_type.kind.value
