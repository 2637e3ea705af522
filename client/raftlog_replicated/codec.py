"""Commands and results as MessagePack, by their types. Pure."""

from __future__ import annotations

from typing import Generic

import msgspec

from raftlog_replicated.errors import UnknownEntryError
from raftlog_replicated.types import Command, Result


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
