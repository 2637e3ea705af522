"""A transaction coordinator with scripted answers, for the leaders that ask it."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from raftlog.coordinator.shard.service import AnyShard
from raftlog.coordinator.transactions.messages import (
    Failure,
    Request,
    Verified,
    VerifyOrAdd,
)
from raftlog.record.errors import LogError

_encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


class ScriptedCoordinator:
    """Stands in for `Coordinators`: one question after the other, each with a scripted outcome."""

    def __init__(self) -> None:
        self.asked: list[VerifyOrAdd] = []
        self.outcomes: deque[LogError] = deque()
        """Of the next questions; then all are confirmed."""
        self.error: LogError | None = None
        self.shard: AnyShard | None = None
        """The one through which all batches of the partition go."""
        self.answers = asyncio.Event()
        self.answers.set()

    async def call_partition(
        self, _topic: object, _number: int, request: bytes, **_named: object
    ) -> bytes:
        decoded = _requests.decode(request)
        assert isinstance(decoded, VerifyOrAdd)
        self.asked.append(decoded)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        outcomes = [
            Failure.of(self.outcomes.popleft()) if self.outcomes else None
            for _ in decoded.verifications
        ]
        return _encode(Verified(tuple(outcomes)))

    def shard_of(self, _found: object) -> AnyShard | None:
        return self.shard
