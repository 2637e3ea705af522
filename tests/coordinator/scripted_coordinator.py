"""A transaction coordinator with scripted answers, for the leaders that ask it."""

from __future__ import annotations

import asyncio
from collections import deque

from raftlog.coordinator.shard.service import AnyShard
from raftlog.coordinator.transactions.messages import (
    Failure,
    Request,
    Response,
    Verified,
    VerifyOrAdd,
)
from raftlog.record.errors import LogError


class ScriptedCoordinator:
    """Stands in for `Coordinators`: one question after the other, each with a scripted outcome."""

    def __init__(self) -> None:
        self.asked: list[VerifyOrAdd] = []
        self.outcomes: deque[LogError] = deque()
        """Of the next questions; then all are confirmed."""
        self.error: LogError | None = None
        self.response: Response | None = None
        """In place of the response to the questions."""
        self.shard: AnyShard | None = None
        """The one through which all batches of the partition go."""
        self.answers = asyncio.Event()
        self.answers.set()

    async def call_partition(
        self, _messages: object, _topic: object, _number: int, request: Request, **_named: object
    ) -> Response:
        assert isinstance(request, VerifyOrAdd)
        self.asked.append(request)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        if self.response is not None:
            return self.response
        outcomes = [
            Failure.of(self.outcomes.popleft()) if self.outcomes else None
            for _ in request.verifications
        ]
        return Verified(tuple(outcomes))

    def shard_of(self, _found: object) -> AnyShard | None:
        return self.shard
