"""Traffic counters per topic as plain integers, which a listener's metrics page reads.

Label sets are bounded. The first `labels_max` topics in use have separate counters, and all others
share one. A deleted topic's counts move to the shared counters, and its place becomes free.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, fields
from typing import Final

OTHER_TOPICS: Final = "__other__"
"""Label of the shared counters. No topic can have this name."""


@dataclass(slots=True)
class TopicCounters:
    """Traffic of one topic, or of all topics without labels, since the start."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    failed_produce_requests: int = 0
    failed_fetch_requests: int = 0

    def add(self, other: TopicCounters) -> None:
        """Add the counts of `other`."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class TopicMetrics:
    """The counters of all topics. Everything runs in the event loop, without a lock."""

    def __init__(self, labels_max: int) -> None:
        self._labels_max = labels_max
        self._topics: dict[str, TopicCounters] = {}
        self._other = TopicCounters()

    def topic(self, name: str) -> TopicCounters:
        """The counters of an existing topic. Unknown names would let any client fill the labels."""
        counters = self._topics.get(name)
        if counters is None:
            if len(self._topics) >= self._labels_max:
                return self._other
            counters = self._topics[name] = TopicCounters()
        return counters

    def keep_topics(self, existing: Container[str]) -> None:
        """Drop the labels of all other topics."""
        for name in [name for name in self._topics if name not in existing]:
            self._other.add(self._topics.pop(name))

    def rows(self) -> Iterator[tuple[str, TopicCounters]]:
        """Label and counters of topics by name, then of the shared counters."""
        yield from sorted(self._topics.items())
        yield OTHER_TOPICS, self._other
