"""A state machine with equal states after equal histories only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

PIECE_BYTES = 64


class RecordingStateMachine:
    """Remembers every command in order; its state is their number and a digest."""

    def __init__(self, on_apply: Callable[[int, bytes, str], None]) -> None:
        self._on_apply = on_apply
        self.commands: list[bytes] = []
        self.index = 0
        self.digest = ""

    def apply(self, index: int, command: bytes) -> int:
        self.index = index
        self.commands.append(command)
        self.digest = hashlib.sha256(self.digest.encode() + command).hexdigest()
        self._on_apply(index, command, self.digest)
        return len(self.commands)

    def snapshot(self) -> Callable[[], Iterator[bytes]]:
        lines = [b"%d" % self.index, self.digest.encode(), *self.commands]
        content = b"\n".join(lines)

        def pieces() -> Iterator[bytes]:
            for start in range(0, len(content), PIECE_BYTES):
                yield content[start : start + PIECE_BYTES]

        return pieces

    def restore(self, index: int, pieces: Iterable[bytes]) -> Callable[[], None]:
        applied_index, digest, *commands = b"".join(pieces).split(b"\n")
        assert int(applied_index) <= index

        def install() -> None:
            self.index, self.digest = int(applied_index), digest.decode()
            self.commands = commands

        return install
