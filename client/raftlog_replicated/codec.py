"""Commands, results and the entries of a state's log as MessagePack, by their types. Pure.

An entry is a record, an array with a number for the kind. A field is never removed and its meaning
never changes. A new kind, or a field with an effect on the state, gets a new number. An older
replica then stops (UnknownEntryError) instead of skipping an entry.
"""

from __future__ import annotations

from typing import Final, Generic, TypeAlias

import msgspec

from raftlog_replicated.errors import UnknownEntryError
from raftlog_replicated.types import Command, Position, Result, Term


class StructCodec(Generic[Command, Result]):
    """A codec for types known to msgspec, mostly tagged structs and their unions."""

    def __init__(self, command: type[Command], result: type[Result]) -> None:
        """`command`: a type, or a union of tagged structs. Raises TypeError for any other."""
        self._commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(command)
        self._results: msgspec.msgpack.Decoder[Result] = msgspec.msgpack.Decoder(result)
        encoder = msgspec.msgpack.Encoder()
        self.encode_command = encoder.encode
        self.encode_result = encoder.encode

    def decode_command(self, data: bytes) -> Command:
        """Raises UnknownEntryError for bytes of another type."""
        try:
            return self._commands.decode(data)
        except msgspec.DecodeError as error:
            raise UnknownEntryError(f"An unknown command: {error}") from error

    def decode_result(self, data: bytes) -> Result:
        """Raises UnknownEntryError for bytes of another type."""
        try:
            return self._results.decode(data)
        except msgspec.DecodeError as error:
            raise UnknownEntryError(f"An unknown result: {error}") from error


DIGEST_EVERY: Final = 10_000
"""Commands from one digest to the next."""


class Fence(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """A replica becomes the primary. It counts if its term is larger than all before.

    The timestamps of its commands differ by the primary's monotonic time.
    """

    term: Term
    replica: str
    endpoint: str | None = None


class WallFence(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """A fence of release 0.5.0, whose commands have the primary's wall clock as timestamps."""

    term: Term
    replica: str
    endpoint: str | None = None


class Commands(msgspec.Struct, array_like=True, tag=1, frozen=True, gc=False):
    """A batch of commands, in order. It counts if its term is the last counted fence's."""

    term: Term
    number: int
    """Number of the batch in its term, from 0. The primary finds its own batches by it."""
    payloads: list[bytes]
    requests: dict[int, str] = {}
    """Request ids, by the place of the command."""


class Digest(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """The primary's state after an entry. Counts as commands do."""

    term: Term
    position: Position
    """Position of the state, which is the number of the entry after it."""
    digest: bytes


Entry: TypeAlias = Fence | WallFence | Commands | Digest

_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
encode_entry = msgspec.msgpack.Encoder().encode
"""An entry as the value of a record."""


def decode_entry(data: bytes) -> Entry:
    """An entry from the value of a record. Raises UnknownEntryError."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise UnknownEntryError(f"An unknown entry: {error}") from error
