"""Limits that all listeners of a node share: bytes in flight, partitions per request, reads."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.record.errors import INVALID_BODY, OVERLOADED, LogError


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of the broker. Defaults and bounds are the node's (http/settings.py)."""

    auto_create_topics: bool
    """Whether a produce request to an unknown topic creates it."""
    bytes_in_flight_max: int
    """Bytes that all requests together may hold."""
    response_bytes_max: int
    """Upper bound of `max_bytes` of one fetch; larger values are lowered to it."""
    long_poll_s_max: float
    """Upper bound of a fetch's wait; longer ones are lowered to it."""
    partitions_per_request_max: int
    """Partitions that one request may name."""
    topic_labels_max: int
    """Topics with metrics of their own."""

    def check_partition_count(self, count: int) -> None:
        """Raise LogError INVALID_BODY if one request names too many partitions."""
        if count > self.partitions_per_request_max:
            raise LogError(
                INVALID_BODY,
                f"The request names {count} partitions; {self.partitions_per_request_max} may be.",
            )


class BytesInFlight:
    """Counts the bytes that requests hold: bodies received or worked on, large answers being sent.

    `take` refuses, and never waits: requests waiting for each other's bytes would wait for ever.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.refused = 0

    def take(self, size: int) -> None:
        """Hold `size` more bytes, or raise LogError OVERLOADED. Match each take by a `give`."""
        if self.used + size > self.bytes_max:
            self.refused += 1
            raise LogError(OVERLOADED)
        self.used += size

    def take_anyway(self, size: int) -> None:
        """Hold bytes over the limit: a finished answer, which to drop would help no request.

        They leave less room for bodies to come.
        """
        self.used += size

    def give(self, size: int) -> None:
        """Release bytes that were taken."""
        self.used -= size
        assert self.used >= 0, "more bytes in flight given back than taken"
