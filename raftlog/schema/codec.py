"""The codec of one version of a message, compiled on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from raftlog.record.types import Buffer
from raftlog.schema.decoder import compile_decoders
from raftlog.schema.encoder import compile_encoders, compile_slicer
from raftlog.schema.fields import layout_of

M = TypeVar("M", bound=msgspec.Struct)

CODECS_MAX: Final = 1_024
"""Most compiled codecs kept. All messages have fewer versions. A codec takes 10 KiB."""
ELEMENTS_MAX: Final = 10_000
"""Most array elements of one message, over all its arrays, plus its unknown tagged fields. 1 MiB of
empty elements took 40 MiB. 32 MiB of tags blocked the event loop for 4 s."""


@dataclass(frozen=True, slots=True)
class Codec(Generic[M]):
    """The compiled functions of one version of a message.

    Encoders raise EncodeError if the version cannot hold a value. Examples are a number out of
    range, a string too long, and a value other than the default in an absent field.

    Decoders take the bytes, the position of the message, and the maximum number of array elements.
    They copy all values except `Records`, which are views of the bytes. They skip unknown tagged
    fields and count them as elements. They raise DecodeError for malformed bytes and for too many
    elements.
    """

    encode: Callable[[M], bytes]
    """Returns the message's bytes."""
    encode_pieces: Callable[[M], list[Buffer]]
    """Returns the message's bytes in pieces for `writelines`. `Records` are not copied."""
    decode: Callable[[Buffer, int, int], M]
    """Returns the message. It must end where the bytes end."""
    decode_prefix: Callable[[Buffer, int, int], tuple[M, int]]
    """Returns the message and the position after it."""


def codec_of(message_type: type[M], version: int) -> Codec[M]:
    """Return the codec of one version, which the first call compiles.

    Raises ValueError for an unknown version, TypeError for a Struct with wrong annotations.
    """
    codec: Codec[M] = _compiled(message_type, version)
    return codec


@lru_cache(maxsize=CODECS_MAX)
def slicer_of(message_type: type[M], version: int) -> Callable[[M], Iterator[bytes]]:
    """Return the encoder of one version of a message to slices.

    A slice has about 64 KiB. Together they are the message's bytes. Raises as `codec_of`.
    """
    return compile_slicer(layout_of(message_type, version))


@lru_cache(maxsize=CODECS_MAX)
def _compiled(message_type: type[msgspec.Struct], version: int) -> Codec[Any]:
    layout = layout_of(message_type, version)
    return Codec(*compile_encoders(layout), *compile_decoders(layout))
