"""The codec of one version of a message, compiled when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from raftlog.record.types import Buffer
from raftlog.schema.decoder import compile_decoders
from raftlog.schema.encoder import compile_encoders
from raftlog.schema.fields import layout_of

M = TypeVar("M", bound=msgspec.Struct)

CODECS_MAX: Final = 1_024
"""Compiled codecs kept: the versions of all messages are fewer, 10 KiB each."""
ELEMENTS_MAX: Final = 10_000
"""Array elements of one message, all arrays together, and unknown tagged fields. 1 MiB of empty
elements took 40 MiB; 32 MiB of tags held the event loop for 4 s."""


@dataclass(frozen=True, slots=True)
class Codec(Generic[M]):
    """The compiled functions of one version of a message.

    Encoders raise EncodeError for a value beyond the version: a number out of range, a string too
    long, a value other than the default in an absent field.

    Decoders take bytes, the position of the message, and the most array elements to take. They copy
    all values but `Records`, which are views of the bytes, and skip unknown tagged fields, which
    count as elements. They raise DecodeError for malformed bytes, and for too many elements.
    """

    encode: Callable[[M], bytes]
    """The message's bytes."""
    encode_pieces: Callable[[M], list[Buffer]]
    """The same in pieces, for `writelines`: each `Records` is one, and not copied."""
    decode: Callable[[Buffer, int, int], M]
    """The message, up to the end of the bytes."""
    decode_prefix: Callable[[Buffer, int, int], tuple[M, int]]
    """The message, and the position after it."""


def codec_of(message_type: type[M], version: int) -> Codec[M]:
    """The codec of one version, compiled by the first call.

    Raises ValueError for an unknown version, TypeError for a Struct with wrong annotations.
    """
    codec: Codec[M] = _compiled(message_type, version)
    return codec


@lru_cache(maxsize=CODECS_MAX)
def _compiled(message_type: type[msgspec.Struct], version: int) -> Codec[Any]:
    layout = layout_of(message_type, version)
    return Codec(*compile_encoders(layout), *compile_decoders(layout))
