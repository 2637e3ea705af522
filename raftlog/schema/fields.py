"""Annotations of messages, and their resolution for one version.

A message is a `msgspec.Struct` with its fields in the order of the wire:

    class Member(Struct, frozen=True):
        VERSIONS: ClassVar = Versions(0, 4, flexible=4)

        member_id: str
        instance_id: Annotated[str | None, Field(since=3, default=None)]
        timeout_ms: Int32
        topics: tuple[str, ...]
        rack: Annotated[str | None, Field(tag=0, default=None)]

`str`, `bytes`, `bool` and `float` need no annotation. Numbers carry their size (`Int32`). `| None`
makes a field nullable, `tuple[X, ...]` an array, another Struct a nested struct. A nested Struct
has the versions of its message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import calcsize
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET
from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields

from raftlog.record.types import Buffer, TopicId

ZERO_UUID: Final = bytes(16)
"""Wire value of None for a nullable uuid."""
NESTING_MAX: Final = 16
"""Most levels of nested types, against a type that contains itself. Kafka's deepest has five."""


class Kind(Enum):
    """A primitive type of the wire."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    FLOAT64 = "float64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"


FIXED_FORMATS: Final = {
    Kind.BOOL: "?",
    Kind.INT8: "b",
    Kind.INT16: "h",
    Kind.UINT16: "H",
    Kind.INT32: "i",
    Kind.UINT32: "I",
    Kind.INT64: "q",
    Kind.FLOAT64: "d",
    Kind.UUID: "16s",
}
"""Kinds of fixed size, with their format for the `struct` module."""

Int8: TypeAlias = Annotated[int, Kind.INT8]
Int16: TypeAlias = Annotated[int, Kind.INT16]
Uint16: TypeAlias = Annotated[int, Kind.UINT16]
Int32: TypeAlias = Annotated[int, Kind.INT32]
Uint32: TypeAlias = Annotated[int, Kind.UINT32]
Int64: TypeAlias = Annotated[int, Kind.INT64]
Uuid: TypeAlias = Annotated[TopicId, Kind.UUID]
"""32 hexadecimal digits, 16 bytes on the wire."""
OptionalUuid: TypeAlias = Annotated[TopicId | None, Kind.UUID]
"""A Uuid or None, which is the zero uuid on the wire."""
Records: TypeAlias = Annotated[Buffer, Kind.RECORDS]
"""Record batches, decoded as a view of the message's bytes and encoded without a copy."""

_PLAIN_KINDS: Final = {str: Kind.STRING, bytes: Kind.BYTES, bool: Kind.BOOL, float: Kind.FLOAT64}


_NULLABLE_KINDS: Final = frozenset([Kind.UUID, Kind.STRING, Kind.BYTES, Kind.RECORDS])


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a message."""

    first: int
    last: int
    flexible: int | None = None
    """First version with compact lengths and tagged fields (KIP-482), or None."""

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def is_flexible(self, version: int) -> bool:
        """Whether the version has compact lengths and tagged fields."""
        return self.flexible is not None and version >= self.flexible


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Facts about a field that its type cannot express."""

    since: int = 0
    """The first version with this field."""
    until: int | None = None
    """Last version with this field, or None for the message's last version."""
    tag: int | None = None
    """Number of a tagged field, which only flexible versions have."""
    nullable_since: int = 0
    """First version that allows None on the wire."""
    default: object = UNSET
    """Decoded value if the field is absent. UNSET stands for the default of the Struct."""
    is_ignorable: bool = False
    """Whether versions without this field drop any value. Else they encode only the default."""


_PLAIN_FIELD: Final = Field()


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive of the wire."""

    kind: Kind
    is_optional: bool
    """Whether the Struct allows None."""
    is_nullable: bool
    """Whether the wire allows None in this version."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array of any length."""

    element: WireType
    is_optional: bool
    is_nullable: bool


@dataclass(frozen=True, slots=True)
class Nested:
    """A struct inside another struct."""

    struct: StructLayout
    is_optional: bool
    is_nullable: bool


WireType: TypeAlias = Primitive | Array | Nested


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """A field in one version."""

    name: str
    wire_type: WireType
    is_present: bool
    tag: int | None
    """Tagged fields follow all others, by ascending tag."""
    default: object
    """UNSET for a field that is in every message."""
    is_ignorable: bool


@dataclass(frozen=True, slots=True)
class StructLayout:
    """A struct in one version, with its fields in the Struct's order."""

    struct_type: type[msgspec.Struct]
    fields: tuple[FieldLayout, ...]
    is_flexible: bool

    @property
    def tagged(self) -> list[FieldLayout]:
        """Tagged fields in the order of the wire."""
        found = [field for field in self.fields if field.is_present and field.tag is not None]
        return sorted(found, key=lambda field: field.tag or 0)


def layout_of(message_type: type[msgspec.Struct], version: int) -> StructLayout:
    """Return the message's layout in one version.

    Raises ValueError for an unknown version, TypeError for annotations that form no message.
    """
    versions = getattr(message_type, "VERSIONS", None)
    if not isinstance(versions, Versions):
        raise TypeError(f"{message_type.__name__} has no VERSIONS")
    if version not in versions:
        raise ValueError(
            f"{message_type.__name__} has versions {versions.first} to {versions.last}, "
            f"not {version}"
        )
    return _Resolver(versions, version).struct(message_type, 0)


def smallest_size(wire_type: WireType, *, is_flexible: bool) -> int:
    """Return the fewest bytes of a value on the wire."""
    match wire_type:
        case Nested(is_nullable=True):
            return 1
        case Nested():
            inner = (
                smallest_size(field.wire_type, is_flexible=is_flexible)
                for field in wire_type.struct.fields
                if field.is_present and field.tag is None
            )
            return sum(inner) + is_flexible
        case Primitive() if wire_type.kind in FIXED_FORMATS:
            return calcsize(FIXED_FORMATS[wire_type.kind])
        case _:
            return 1 if is_flexible else calcsize(length_format(wire_type))


def length_format(wire_type: WireType) -> str:
    """Return the format of a value's length or count in versions that are not flexible."""
    return "h" if isinstance(wire_type, Primitive) and wire_type.kind is Kind.STRING else "i"


def run_format(element: WireType) -> str | None:
    """Return the format of elements that one call can unpack (numbers), else None."""
    if isinstance(element, Primitive) and element.kind is not Kind.UUID:
        return FIXED_FORMATS.get(element.kind)
    return None


class _Resolver:
    """Resolves the annotations of one message for one version."""

    def __init__(self, versions: Versions, version: int) -> None:
        self._version = version
        self._is_flexible = versions.is_flexible(version)

    def struct(self, struct_type: type[msgspec.Struct], depth: int) -> StructLayout:
        if depth > NESTING_MAX:
            raise TypeError(f"{struct_type.__name__} is nested in over {NESTING_MAX} levels")
        hints = get_type_hints(struct_type, include_extras=True)
        layout = StructLayout(
            struct_type,
            tuple(
                self._field(info, hints[info.name], depth, f"{struct_type.__name__}.{info.name}")
                for info in struct_fields(struct_type)
            ),
            self._is_flexible,
        )
        tags = [field.tag for field in layout.tagged]
        if len(set(tags)) < len(tags):
            raise TypeError(f"{struct_type.__name__} has a duplicate tag")
        return layout

    def _field(self, info: FieldInfo, hint: Any, depth: int, where: str) -> FieldLayout:
        annotation, metadata = _unwrapped(hint)
        field = next((entry for entry in metadata if isinstance(entry, Field)), _PLAIN_FIELD)
        is_present = field.since <= self._version and (
            field.until is None or self._version <= field.until
        )
        if field.tag is not None:
            is_present = is_present and self._is_flexible
        default = field.default
        if default is UNSET and info.default is not msgspec.NODEFAULT:
            default = info.default
        if default is UNSET and (field.tag is not None or not is_present):
            raise TypeError(f"{where} needs a default: version {self._version} may lack it")
        wire_type = self._wire_type(annotation, metadata, field.nullable_since, depth, where)
        return FieldLayout(
            name=info.name,
            wire_type=wire_type,
            is_present=is_present,
            tag=field.tag,
            default=default,
            is_ignorable=field.is_ignorable,
        )

    def _wire_type(
        self,
        annotation: Any,
        metadata: tuple[object, ...],
        nullable_since: int,
        depth: int,
        where: str,
    ) -> WireType:
        kind = next((entry for entry in metadata if isinstance(entry, Kind)), None)
        is_optional = False
        if get_origin(annotation) in {Union, UnionType}:
            rest = [part for part in get_args(annotation) if part is not NoneType]
            is_optional = len(rest) < len(get_args(annotation))
            if kind is None:
                if len(rest) != 1:
                    raise TypeError(f"{where} has several types")
                annotation, more = _unwrapped(rest[0])
                kind = next((entry for entry in more if isinstance(entry, Kind)), None)
        is_nullable = is_optional and self._version >= nullable_since
        kind = kind or _PLAIN_KINDS.get(annotation)
        if kind is not None:
            if is_optional and kind not in _NULLABLE_KINDS:
                raise TypeError(f"{where}: {kind.value} cannot be None on the wire")
            return Primitive(kind, is_optional, is_nullable)
        if get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,):
            inner, more = _unwrapped(get_args(annotation)[0])
            element = self._wire_type(inner, more, 0, depth + 1, where)
            return Array(element, is_optional, is_nullable)
        if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            return Nested(self.struct(annotation, depth + 1), is_optional, is_nullable)
        raise TypeError(f"{where} has no wire type: {annotation}")


def _unwrapped(annotation: Any) -> tuple[Any, tuple[object, ...]]:
    """Return an annotation's type and its metadata."""
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()
