"""A small state machine: balances, and the places of applied commands, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec
from raftlog_replicated.codec import StructCodec
from raftlog_replicated.types import At


class Add(msgspec.Struct, tag=True, frozen=True):
    """Add to a balance; a result below zero is refused."""

    name: str
    amount: int


class Fail(msgspec.Struct, tag=True, frozen=True):
    """Raise an exception in `apply`."""


class Balance(msgspec.Struct, frozen=True):
    """The balance after a command."""

    amount: int
    is_refused: bool = False


def codec() -> StructCodec[Add | Fail, Balance]:
    """A codec of its own."""
    return StructCodec(Add | Fail, Balance)  # type: ignore[arg-type]


class Ledger:
    """Balances by name."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.applied: list[At] = []

    def apply(self, command: Add | Fail, at: At) -> Balance:
        """Add, unless the balance would be negative."""
        if isinstance(command, Fail):
            raise RuntimeError("planted")  # noqa: TRY004
        self.applied.append(at)
        amount = self.balances.get(command.name, 0) + command.amount
        if amount < 0:
            return Balance(amount - command.amount, is_refused=True)
        self.balances[command.name] = amount
        return Balance(amount)

    def snapshot(self) -> Iterator[bytes]:
        """A chunk for each balance."""
        return iter([msgspec.msgpack.encode(one) for one in self.balances.items()])

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace all balances."""
        self.balances = dict(msgspec.msgpack.decode(one, type=tuple[str, int]) for one in chunks)

    def digest(self) -> bytes:
        """Of the sorted balances."""
        return sha256(msgspec.msgpack.encode(sorted(self.balances.items()))).digest()
