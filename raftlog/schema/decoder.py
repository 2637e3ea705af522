"""Generates the decoder of one version of a message.

The generated function reads each run of fixed-size fields with one `unpack_from`. Nested structs
and arrays are read inline. Its variables are `p` (position), `data` (bytes), `size` (number of
bytes) and `left` (array elements and unknown tagged fields still allowed).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, TypeAlias

from raftlog.record.types import Buffer
from raftlog.schema.errors import DecodeError
from raftlog.schema.fields import (
    FIXED_FORMATS,
    ZERO_UUID,
    Array,
    FieldLayout,
    Kind,
    Nested,
    Primitive,
    StructLayout,
    WireType,
    length_format,
    run_format,
    smallest_size,
)
from raftlog.schema.varints import decode_uvarint

STRING_BYTES_MAX: Final = 2**15 - 1
"""Most bytes of a string whose length is an int16. A response may hold a string of its request."""

Decode: TypeAlias = Callable[[Buffer, int, int], Any]
"""Takes bytes, position, and most array elements and unknown tagged fields. Raises DecodeError."""


def compile_decoders(layout: StructLayout) -> tuple[Decode, Decode]:
    """Return two decoders of a layout, for a whole buffer and for its beginning.

    The second decoder returns the message and the position after it.
    """
    writer = _Writer(layout)
    namespace = writer.namespace
    text = writer.source()
    exec(compile(text, f"<decoder of {layout.struct_type.__name__}>", "exec"), namespace)
    return namespace["decode"], namespace["decode_prefix"]


def decode_text(data: Buffer) -> str:
    """Return the text of a string, with U+FFFD for bytes that are no UTF-8.

    Kafka also replaces them. Raises DecodeError for a text that not every version can hold.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        text = str(data, "utf-8", "replace")
    size = len(text.encode())
    if size > STRING_BYTES_MAX:
        raise DecodeError(f"{len(data)} bytes that are no UTF-8 become {size} bytes")
    return text


def _out_of_bounds(position: int, length: int, size: int) -> DecodeError:
    """Return the error for an impossible length or count."""
    return DecodeError(f"{length} of {size - position} bytes or elements from byte {position} on")


class _Writer:
    """Writes the decoder's lines.

    A value is a Python expression. `_flush` assigns the variables of pending fields of fixed size,
    and every other read calls `_flush` first.
    """

    def __init__(self, layout: StructLayout) -> None:
        self._layout = layout
        self._lines: list[str] = []
        self._indent = 2
        self._count = 0
        self._fixed: list[tuple[str, str]] = []
        """Format and variable of each fixed field not yet read."""
        self._has_records = False
        self.namespace: dict[str, Any] = {
            "DecodeError": DecodeError,
            "Errors": (struct.error, IndexError),
            "ZERO_UUID": ZERO_UUID,
            "out_of_bounds": _out_of_bounds,
            "text": decode_text,
            "unpack_from": struct.unpack_from,
            "uvarint": decode_uvarint,
        }

    def source(self) -> str:
        """Return the source text of both functions."""
        value = self._struct(self._layout)
        self._flush()
        whole = [
            "        if p != size:",
            "            raise DecodeError(f'{size - p} bytes follow the message')",
            f"        return {value}",
        ]
        prefix = [f"        return {value}, p"]
        return "\n".join(
            [*self._function("decode", whole), *self._function("decode_prefix", prefix)]
        )

    def _function(self, name: str, end: list[str]) -> list[str]:
        message = self._layout.struct_type.__name__
        return [
            f"def {name}(data, p, left):",
            "    size = len(data)",
            *(["    view = memoryview(data)"] if self._has_records else []),
            "    try:",
            *self._lines,
            *end,
            "    except Errors as error:",
            f"        raise DecodeError(f'{message}, at byte {{p}}: {{error}}') from error",
        ]

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _constant(self, value: object) -> str:
        if type(value) in {NoneType, bool, int, str, bytes}:
            return repr(value)
        name = self._name("CONSTANT_")
        self.namespace[name] = value
        return name

    def _read_fixed(self, format_: str) -> str:
        name = self._name("v")
        self._fixed.append((format_, name))
        return name

    def _flush(self) -> None:
        if not self._fixed:
            return
        run = struct.Struct(">" + "".join(format_ for format_, _ in self._fixed))
        unpack = self._name("unpack_")
        self.namespace[unpack] = run.unpack_from
        self._line(f"{', '.join(name for _, name in self._fixed)}, = {unpack}(data, p)")
        self._line(f"p += {run.size}")
        self._fixed = []

    def _struct(self, layout: StructLayout) -> str:
        values = {}
        for field in layout.fields:
            if not field.is_present:
                values[field.name] = self._constant(field.default)
            elif field.tag is None:
                values[field.name] = self._value(field.wire_type, layout.is_flexible)
        if layout.is_flexible:
            values.update(self._tagged(layout.tagged))
        struct_type = self._constant(layout.struct_type)
        return f"{struct_type}({', '.join(values[field.name] for field in layout.fields)})"

    def _tagged(self, fields: list[FieldLayout]) -> dict[str, str]:
        """Decode the tagged fields. Unknown tags are skipped (KIP-482) and count as elements."""
        values = {}
        for field in fields:
            values[field.name] = self._name("v")
            self._line(f"{values[field.name]} = {self._constant(field.default)}")
        count = self._uvarint()
        self._line(f"if {count}:")
        self._indent += 1
        last = self._name("last")
        self._line(f"{last} = -1")
        self._line(f"for _ in range({count}):")
        self._indent += 1
        tag, end = self._uvarint(), self._uvarint()
        self._line(f"{end} += p")
        self._line(f"if {end} > size or {tag} <= {last}:")
        self._line(f"    raise DecodeError(f'tag {{{tag}}} before byte {{p}}: too long, or twice')")
        self._line(f"{last} = {tag}")
        known = "".join(f"{field.tag}, " for field in fields)
        self._line(f"if {tag} not in ({known}):")
        self._line("    left -= 1")
        self._line("    if left < 0:")
        self._line("        raise DecodeError(f'too many unknown tags before byte {p}')")
        for field in fields:
            self._line(f"if {tag} == {field.tag}:")
            self._indent += 1
            value = self._value(field.wire_type, is_flexible=True)
            self._flush()
            self._line(f"{values[field.name]} = {value}")
            self._line(f"if p != {end}:")
            self._line(f"    raise DecodeError(f'tag {field.tag} does not end at byte {{{end}}}')")
            self._indent -= 1
        self._line(f"p = {end}")
        self._indent -= 2
        return values

    def _value(self, wire_type: WireType, is_flexible: bool) -> str:
        match wire_type:
            case Primitive():
                return self._primitive(wire_type, is_flexible)
            case Array():
                return self._array(wire_type, is_flexible)
            case Nested():
                return self._nested(wire_type)

    def _primitive(self, primitive: Primitive, is_flexible: bool) -> str:
        kind = primitive.kind
        if kind is Kind.UUID:
            name = self._read_fixed("16s")
            if primitive.is_optional:
                return f"None if {name} == ZERO_UUID else {name}.hex()"
            return f"{name}.hex()"
        if kind in FIXED_FORMATS:
            return self._read_fixed(FIXED_FORMATS[kind])
        return self._sized(primitive, is_flexible)

    def _sized(self, primitive: Primitive, is_flexible: bool) -> str:
        """Decode a string, bytes or records."""
        length = self._length(length_format(primitive), is_flexible)
        name = self._name("v")
        if primitive.is_nullable:
            self._line(f"if {length} == -1:")
            self._line(f"    {name} = None")
            self._line("else:")
            self._indent += 1
        end = self._name("end")
        self._line(f"{end} = p + {length}")
        self._line(f"if not p <= {end} <= size:")
        self._line(f"    raise out_of_bounds(p, {length}, size)")
        match primitive.kind:
            case Kind.STRING:
                self._line(f"{name} = text(data[p:{end}])")
            case Kind.BYTES:
                self._line(f"{name} = bytes(data[p:{end}])")
            case _:
                self._has_records = True
                self._line(f"{name} = view[p:{end}]")
        self._line(f"p = {end}")
        if primitive.is_nullable:
            self._indent -= 1
        return name

    def _array(self, array: Array, is_flexible: bool) -> str:
        length = self._length("i", is_flexible)
        name = self._name("v")
        if array.is_nullable:
            self._line(f"if {length} == -1:")
            self._line(f"    {name} = None")
            self._line("else:")
            self._indent += 1
        element_size = smallest_size(array.element, is_flexible=is_flexible)
        self._line(f"left -= {length}")
        self._line(f"if {length} < 0 or left < 0 or {length} * {element_size} > size - p:")
        self._line(f"    raise out_of_bounds(p, {length}, size)")
        format_ = run_format(array.element)
        if format_ is not None:
            self._line(f"{name} = unpack_from(f'>{{{length}}}{format_}', data, p)")
            self._line(f"p += {length} * {struct.calcsize(format_)}")
        else:
            self._line(f"{name} = []")
            self._line(f"for _ in range({length}):")
            self._indent += 1
            value = self._value(array.element, is_flexible)
            self._flush()
            self._line(f"{name}.append({value})")
            self._indent -= 1
            self._line(f"{name} = tuple({name})")
        if array.is_nullable:
            self._indent -= 1
        return name

    def _nested(self, nested: Nested) -> str:
        if not nested.is_nullable:
            return self._struct(nested.struct)
        is_there = self._read_fixed("b")
        self._flush()
        name = self._name("v")
        self._line(f"if {is_there} < 0:")
        self._line(f"    {name} = None")
        self._line("else:")
        self._indent += 1
        value = self._struct(nested.struct)
        self._flush()
        self._line(f"{name} = {value}")
        self._indent -= 1
        return name

    def _length(self, format_: str, is_flexible: bool) -> str:
        """Decode a length or count. Rejects -1 (None) for a field that is not nullable."""
        if is_flexible:
            name = self._uvarint()
            self._line(f"{name} -= 1")
            return name
        name = self._read_fixed(format_)
        self._flush()
        return name

    def _uvarint(self) -> str:
        self._flush()
        name = self._name("n")
        self._line(f"{name} = data[p]")
        self._line("p += 1")
        self._line(f"if {name} > 127:")
        self._line(f"    {name}, p = uvarint(data, p - 1)")
        return name
