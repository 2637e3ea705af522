"""Requests and responses of one kind of coordinator, checked always and encoded only between nodes.

A request reaches the shard on this node as the object that the caller built. Only a request to
another node is encoded. `checked` comes before both, so the coordinator's place never decides
whether a request is refused. The bounds are the annotations of the messages. Decoding enforces them
again on a request from another node.

The caller and the shard share a message. Frozen structs, tuples, frozen sets and bytes make that
safe. A request with any other collection is replaced by its decoded copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from raftlog.record.errors import INVALID_BODY, LogError
from raftlog.record.types import Buffer

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

Q = TypeVar("Q")
A = TypeVar("A")
_IsSound: TypeAlias = Callable[[Any], bool]


_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Messages(Generic[Q, A]):
    """The requests and responses of one kind of coordinator."""

    kind: str
    """Name of the kind."""
    _requests: msgspec.msgpack.Decoder[Q]
    _responses: msgspec.msgpack.Decoder[A]
    _tests: Mapping[type, _IsSound]

    @classmethod
    def of(cls, kind: str, request: Any, response: Any) -> Self:
        """The messages of a kind, with `request` and `response` as unions of tagged structs."""
        requests, responses = msgspec.msgpack.Decoder(request), msgspec.msgpack.Decoder(response)
        return cls(kind, requests, responses, sound_messages(request))

    def checked(self, request: Q) -> Q:
        """The request within its bounds and immutable. Raises LogError INVALID_BODY."""
        if self._tests[type(request)](request):
            return request
        return self.decode_request(self.encode_request(request))

    def encode_request(self, request: Q) -> bytes:
        """Encode a checked request for another node."""
        return _encode(request)

    def decode_request(self, data: Buffer) -> Q:
        """Decode a request of another node. Raises LogError INVALID_BODY."""
        try:
            return self._requests.decode(data)
        except msgspec.DecodeError as error:
            raise LogError(
                INVALID_BODY, f"The coordinator's request is not valid: {error}"
            ) from None

    def encode_response(self, response: A) -> bytes:
        """Encode a response for another node."""
        return _encode(response)

    def decode_response(self, data: Buffer) -> A:
        """Decode a response of another node."""
        return self._responses.decode(data)


def sound_messages(union: Any) -> dict[type, _IsSound]:
    """Compile a test for each struct of a union from the annotations of its fields.

    True means that decoding would return an equal and immutable message. False means that only
    decoding can answer.
    """
    found = inspect.type_info(union)
    members = found.types if isinstance(found, inspect.UnionType) else (found,)
    names: dict[str, Any] = {}
    tests: dict[type, _IsSound] = {}
    for member in members:
        assert isinstance(member, inspect.StructType)
        tests[member.cls] = names[_struct_test(member, names)]
    return tests


def _struct_test(found: inspect.StructType | inspect.NamedTupleType, names: dict[str, Any]) -> str:
    """Add the test of a type with fields to `names`, and return its name."""
    type_name = found.cls.__name__
    test_name = f"is_{type_name}"
    if test_name not in names:
        # A plain tuple could stand for a named tuple.
        is_struct = isinstance(found, inspect.StructType)
        parts = [] if is_struct else [f"type(v) is {type_name}"]
        for field in found.fields:
            parts += _conditions(field.type, f"v.{field.name}", names)
        names[type_name] = found.cls
        names[test_name] = _lambda(parts, names)
    assert names[type_name] is found.cls, "two types have one name"
    return test_name


def _lambda(parts: list[str], names: dict[str, Any]) -> _IsSound:
    test: _IsSound = eval(f"lambda v: {' and '.join(parts) or True}", names)
    return test


def _conditions(found: inspect.Type, value: str, names: dict[str, Any]) -> list[str]:
    """The expressions that are all true of a sound value. May be empty."""
    parts: list[str] = []
    match found:
        case inspect.NoneType() | inspect.BoolType():
            pass
        case inspect.StrType(min_length=None, max_length=length_max, pattern=None):
            parts += [] if length_max is None else [f"len({value}) <= {length_max}"]
        case inspect.BytesType(min_length=None, max_length=None):
            parts.append(f"type({value}) is bytes")
        case inspect.IntType(gt=None, lt=None, multiple_of=None, ge=least, le=most):
            least = INT64_MIN if least is None else least
            most = INT64_MAX if most is None else most
            parts.append(f"{least} <= {value} <= {most}")
        case inspect.StructType() | inspect.NamedTupleType():
            parts.append(f"{_struct_test(found, names)}({value})")
        case inspect.VarTupleType(min_length=None, max_length=length_max, item_type=item):
            parts += _collection("tuple", item, length_max, value, names)
        case inspect.FrozenSetType(min_length=None, max_length=length_max, item_type=item):
            parts += _collection("frozenset", item, length_max, value, names)
        case inspect.UnionType(types=(option, inspect.NoneType()) | (inspect.NoneType(), option)):
            if inner := _conditions(option, value, names):
                parts.append(f"({value} is None or {' and '.join(inner)})")
        case _:
            raise TypeError(f"{value}: messages of coordinators have no {found}")
    return parts


def _collection(
    kind: str, item: inspect.Type, length_max: int | None, value: str, names: dict[str, Any]
) -> list[str]:
    parts = [f"type({value}) is {kind}"]
    if length_max is not None:
        parts.append(f"len({value}) <= {length_max}")
    if isinstance(item, inspect.StructType | inspect.NamedTupleType):
        parts.append(f"all(map({_struct_test(item, names)}, {value}))")
    elif inner := _conditions(item, "v", names):
        test_name = f"is_item_{len(names)}"
        names[test_name] = _lambda(inner, names)
        parts.append(f"all(map({test_name}, {value}))")
    return parts
