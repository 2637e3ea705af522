"""A state machine with a record of all commands, for tests of the quorum."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator


class RecordingMachine:
    def __init__(self) -> None:
        self.commands: list[tuple[int, bytes]] = []
        self.restored_index = 0
        self.fail_at: bytes | None = None

    def apply(self, index: int, command: bytes) -> str:
        if command == self.fail_at:
            raise RuntimeError("a defect in the state machine")
        expected = self.commands[-1][0] + 1 if self.commands else 1
        assert index == expected
        self.commands.append((index, command))
        return f"result {index}"

    def snapshot(self) -> Callable[[], Iterator[bytes]]:
        captured = list(self.commands)
        return lambda: iter([json.dumps([[i, c.decode("latin-1")] for i, c in captured]).encode()])

    def restore(self, index: int, pieces: Iterable[bytes]) -> Callable[[], None]:
        commands = [(i, c.encode("latin-1")) for i, c in json.loads(b"".join(pieces))]
        assert commands[-1][0] == index

        def install() -> None:
            self.commands = commands
            self.restored_index = index

        return install

    @property
    def values(self) -> list[bytes]:
        return [command for _, command in self.commands]
