"""What is started, used and closed: an `async with` of every client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Startable(ABC):
    """An async context manager that starts on entry and closes on exit, however that comes."""

    @abstractmethod
    async def start(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections. Closing twice is allowed."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
