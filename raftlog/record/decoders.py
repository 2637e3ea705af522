"""JSON decoders that threads share.

msgspec publishes the description of a struct type before it is complete. Two threads that decode by
the same new type at the same time can crash the process. So each decoder is made under a lock.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_making: Final = threading.Lock()
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type, which has no other. Any thread may call it."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _making:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder
