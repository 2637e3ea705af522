"""Which topics a consumer follows: some by name, or all whose name matches a pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence

from raftlog_client.metadata import ClusterView
from raftlog_client.types import TopicPartition


class Subscription:
    """Names or a pattern, never both. Raises ValueError for both, or a malformed pattern."""

    def __init__(self, names: Sequence[str], pattern: str | re.Pattern[str] | None = None) -> None:
        if names and pattern is not None:
            raise ValueError("subscribe to topics or to a pattern, not to both")
        self.names = tuple(dict.fromkeys(names))
        try:
            self._pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ValueError(f"malformed pattern {pattern!r}: {error}") from error

    @property
    def is_active(self) -> bool:
        """Whether anything is subscribed."""
        return bool(self.names) or self._pattern is not None

    @property
    def names_to_ask(self) -> Sequence[str] | None:
        """The topics to refresh metadata of; None for all."""
        return self.names if self._pattern is None else None

    def topics(self, view: ClusterView) -> set[str]:
        """The subscribed topics; with a pattern, those of the view that match."""
        if self._pattern is None:
            return set(self.names)
        return {name for name in view.topics if self._pattern.fullmatch(name)}

    def partitions(self, view: ClusterView) -> list[TopicPartition]:
        """All partitions of the subscribed topics that exist."""
        return [
            TopicPartition(name, info.partition)
            for name in sorted(self.topics(view))
            if name in view.topics
            for info in view.topics[name].partitions
        ]
