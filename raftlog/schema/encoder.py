"""Generates the encoder of one version of a message.

The generated function packs each run of fixed-size fields, lengths included, with one `pack`. It
collects the parts in a list. Records end a piece and become a separate piece, without a copy.

A large message has another function, a generator that ends a slice after some elements of an
array. Its caller lets the event loop continue between two slices.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from raftlog.record.types import Buffer
from raftlog.schema.errors import EncodeError
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
)
from raftlog.schema.varints import SMALL_UVARINTS, encode_uvarint

Encode: TypeAlias = Callable[[Any], bytes]
EncodePieces: TypeAlias = Callable[[Any], list[Buffer]]
EncodeSlices: TypeAlias = Callable[[Any], Iterator[bytes]]

SLICE_BYTES: Final = 64 * 1024
"""Bytes of strings, bytes and numbers after which a slice ends."""
SLICE_PARTS: Final = 4_096
"""Parts after which a slice ends (2 ms). An element of an array has one part or more."""

_PARTS: Final = "parts"
_HELD: Final = "held"


def compile_encoders(layout: StructLayout) -> tuple[Encode, EncodePieces]:
    """Return two encoders of a layout, to bytes and to pieces. Both raise EncodeError.

    Raises TypeError for tagged records.
    """
    writer = _Writer(layout)
    namespace = writer.namespace
    text = writer.source()
    exec(compile(text, f"<encoder of {layout.struct_type.__name__}>", "exec"), namespace)
    return namespace["encode"], namespace["encode_pieces"]


def compile_slicer(layout: StructLayout) -> EncodeSlices:
    """Return an encoder of a layout to slices. It raises EncodeError at any slice."""
    writer = _Writer(layout, is_sliced=True)
    namespace = writer.namespace
    text = writer.slicer_source()
    exec(compile(text, f"<slicer of {layout.struct_type.__name__}>", "exec"), namespace)
    found: EncodeSlices = namespace["encode_slices"]
    return found


def _uuid(topic_id: str | None) -> bytes:
    if topic_id is None:
        return ZERO_UUID
    encoded = bytes.fromhex(topic_id)
    if len(encoded) != len(ZERO_UUID):
        raise EncodeError(f"{topic_id!r} is not a uuid")
    return encoded


class _Writer:
    """Writes the encoder's lines. `parts` collects bytes, `add` appends to the current list."""

    def __init__(self, layout: StructLayout, *, is_sliced: bool = False) -> None:
        self._layout = layout
        self._is_sliced = is_sliced
        self._lines: list[str] = []
        self._indent = 2
        self._count = 0
        self._fixed: list[tuple[str, str]] = []
        """Format and expression of each fixed field not yet packed."""
        self._parts = _PARTS
        self._has_records = False
        self.namespace: dict[str, Any] = {
            "EncodeError": EncodeError,
            # ValueError covers UnicodeEncodeError and wrong digits of a uuid.
            "Errors": (struct.error, ValueError),
            "SMALL": SMALL_UVARINTS,
            "join": b"".join,
            "pack": struct.pack,
            "uuid": _uuid,
            "uvarint": encode_uvarint,
        }

    def source(self) -> str:
        """Return the source text of both functions. One function calls the other."""
        self._struct(self._layout, "message")
        self._flush()
        if self._has_records:
            pieces = self._function("encode_pieces", f"pieces.append(join({_PARTS}))", "pieces")
            return "\n".join(
                [*pieces, "def encode(message):", "    return join(encode_pieces(message))"]
            )
        whole = self._function("encode", "pass", f"join({_PARTS})")
        return "\n".join([*whole, "def encode_pieces(message):", "    return [encode(message)]"])

    def slicer_source(self) -> str:
        """Return the source text of the generator of slices."""
        self._struct(self._layout, "message")
        self._flush()
        return "\n".join(self._function("encode_slices", f"yield join({_PARTS})", "None"))

    def _function(self, name: str, end: str, result: str) -> list[str]:
        message = self._layout.struct_type.__name__
        return [
            f"def {name}(message):",
            *(["    pieces = []"] if self._has_records else []),
            *([f"    {_HELD} = 0"] if self._is_sliced else []),
            f"    {_PARTS} = []",
            f"    {_PARTS}_add = {_PARTS}.append",
            "    try:",
            *(self._lines or ["        pass"]),
            "    except EncodeError:",
            "        raise",
            "    except Errors as error:",
            f"        raise EncodeError(f'{message}: {{error}}') from error",
            f"    {end}",
            f"    return {result}",
        ]

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _add(self, expression: str) -> None:
        """Append bytes outside a run."""
        self._flush()
        self._line(f"{self._parts}_add({expression})")

    def _flush(self) -> None:
        if not self._fixed:
            return
        run = struct.Struct(">" + "".join(format_ for format_, _ in self._fixed))
        packer = self._name("pack_")
        self.namespace[packer] = run.pack
        values = ", ".join(expression for _, expression in self._fixed)
        self._line(f"{self._parts}_add({packer}({values}))")
        self._fixed = []

    def _struct(self, layout: StructLayout, owner: str) -> None:
        for field in layout.fields:
            if not field.is_present:
                self._refuse_unless_default(layout, field, owner)
            elif field.tag is None:
                self._value(field.wire_type, f"{owner}.{field.name}", layout.is_flexible)
        if layout.is_flexible:
            self._tagged(layout.tagged, owner)

    def _refuse_unless_default(self, layout: StructLayout, field: FieldLayout, owner: str) -> None:
        if field.is_ignorable:
            return
        self._line(f"if {self._differs(field, owner)}:")
        where = f"{layout.struct_type.__name__}.{field.name}"
        self._line(f"    raise EncodeError('this version lacks {where}')")

    def _differs(self, field: FieldLayout, owner: str) -> str:
        """Return the condition that is true for a value other than the default."""
        value = f"{owner}.{field.name}"
        if field.default is None:
            return f"{value} is not None"
        constant = self._name("CONSTANT_")
        self.namespace[constant] = field.default
        return f"{value} != {constant}"

    def _tagged(self, fields: list[FieldLayout], owner: str) -> None:
        if not fields:
            self._fixed.append(("B", "0"))
            return
        self._flush()
        count, tags = self._name("n"), self._name("tags")
        self._line(f"{count} = 0")
        self._line(f"{tags} = []")
        outer = self._parts
        for field in fields:
            self._line(f"if {self._differs(field, owner)}:")
            self._indent += 1
            self._parts = self._name("tag")
            self._line(f"{self._parts} = []")
            self._line(f"{self._parts}_add = {self._parts}.append")
            self._value(field.wire_type, f"{owner}.{field.name}", is_flexible=True)
            self._flush()
            encoded = self._name("b")
            self._line(f"{encoded} = join({self._parts})")
            self._line(f"{count} += 1")
            head = encode_uvarint(field.tag or 0)
            self._line(f"{tags} += ({head!r}, uvarint(len({encoded})), {encoded})")
            self._indent -= 1
        self._parts = outer
        self._line(f"{self._parts}_add(SMALL[{count}])")
        self._line(f"{self._parts}.extend({tags})")

    def _value(self, wire_type: WireType, value: str, is_flexible: bool) -> None:
        if wire_type.is_optional and not wire_type.is_nullable:
            self._line(f"if {value} is None:")
            self._line(f"    raise EncodeError('this version has no None for {value}')")
        match wire_type:
            case Primitive():
                self._primitive(wire_type, value, is_flexible)
            case Array():
                self._array(wire_type, value, is_flexible)
            case Nested():
                self._nested(wire_type, value)

    def _primitive(self, primitive: Primitive, value: str, is_flexible: bool) -> None:
        kind = primitive.kind
        if kind is Kind.UUID:
            self._fixed.append(("16s", f"uuid({value})"))
        elif kind in FIXED_FORMATS:
            self._fixed.append((FIXED_FORMATS[kind], value))
        else:
            self._sized(primitive, value, is_flexible)

    def _sized(self, primitive: Primitive, value: str, is_flexible: bool) -> None:
        """Encode a string, bytes or records."""
        encoded, length = self._name("b"), self._name("n")
        self._line(f"{encoded} = {value}")
        convert = f"{encoded}.encode()" if primitive.kind is Kind.STRING else encoded
        if primitive.is_nullable:
            self._line(f"if {encoded} is None:")
            self._line(f"    {encoded}, {length} = b'', -1")
            self._line("else:")
            self._indent += 1
        if convert != encoded:
            self._line(f"{encoded} = {convert}")
        self._line(f"{length} = len({encoded})")
        self._count_held(length)
        if primitive.is_nullable:
            self._indent -= 1
        self._length(length_format(primitive), length, is_flexible)
        self._flush()
        if primitive.kind is not Kind.RECORDS or self._is_sliced:
            self._add(encoded)
            return
        if self._parts != _PARTS:
            raise TypeError(f"{value}: records cannot be tagged")
        self._has_records = True
        self._line(f"pieces.append(join({_PARTS}))")
        self._line(f"pieces.append({encoded})")
        self._line(f"{_PARTS}.clear()")

    def _array(self, array: Array, value: str, is_flexible: bool) -> None:
        elements, length = self._name("v"), self._name("n")
        self._line(f"{elements} = {value}")
        if array.is_nullable:
            self._line(f"if {elements} is None:")
            self._line(f"    {elements}, {length} = (), -1")
            self._line("else:")
            self._indent += 1
        self._line(f"{length} = len({elements})")
        if array.is_nullable:
            self._indent -= 1
        self._length("i", length, is_flexible)
        self._flush()
        format_ = run_format(array.element)
        if format_ is not None:
            self._count_held(f"8 * {length}")
            self._add(f"pack(f'>{{len({elements})}}{format_}', *{elements})")
            return
        one = self._name("m")
        self._line(f"for {one} in {elements}:")
        self._indent += 1
        self._value(array.element, one, is_flexible)
        self._flush()
        self._end_slice()
        self._indent -= 1

    def _count_held(self, size: str) -> None:
        """Count bytes of the current slice."""
        if self._is_sliced:
            self._line(f"{_HELD} += {size}")

    def _end_slice(self) -> None:
        """End the slice if it is large. Tagged fields are parts of one slice."""
        if not self._is_sliced or self._parts != _PARTS:
            return
        self._line(f"if {_HELD} >= {SLICE_BYTES} or len({_PARTS}) >= {SLICE_PARTS}:")
        self._line(f"    yield join({_PARTS})")
        self._line(f"    {_PARTS}.clear()")
        self._line(f"    {_HELD} = 0")

    def _nested(self, nested: Nested, value: str) -> None:
        name = self._name("m")
        self._line(f"{name} = {value}")
        if not nested.is_nullable:
            self._struct(nested.struct, name)
            return
        self._flush()
        self._line(f"if {name} is None:")
        self._line(f"    {self._parts}_add(b'\\xff')")
        self._line("else:")
        self._indent += 1
        self._fixed.append(("b", "1"))
        self._struct(nested.struct, name)
        self._flush()
        self._indent -= 1

    def _length(self, format_: str, length: str, is_flexible: bool) -> None:
        """Encode a length or count, with -1 for None."""
        if is_flexible:
            self._add(f"SMALL[{length} + 1] if {length} < 127 else uvarint({length} + 1)")
        else:
            self._fixed.append((format_, length))
