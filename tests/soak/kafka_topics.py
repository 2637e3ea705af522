"""The topics, groups and orders of a soak of Kafka's clients, and the values of its records."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

LONE: Final = "kafka-lone"
"""Written by the writers."""
INPUT: Final = "kafka-input"
SIDE: Final = "kafka-side"
"""Written by the transactors, with `INPUT`."""
PARTITIONS: Final = 6
"""Of each topic."""
Protocol = Literal["classic", "consumer"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("classic", "consumer")

COMMON: Final[dict[str, Any]] = {
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 1_000,
    # Otherwise librdkafka forgets all brokers once none answers, and a group's coordinator among
    # them: a transaction then waits for that handle, for minutes (its issue 5511).
    "metadata.recovery.strategy": "none",
}


def copies_of(protocol: str) -> str:
    """The topic that the processors of a protocol write."""
    return f"kafka-copies-{protocol}"


def group_of(protocol: str) -> str:
    """The group of the processors of a protocol."""
    return f"kafka-{protocol}"


TOPICS: Final = (LONE, INPUT, SIDE, *map(copies_of, PROTOCOLS))


class KafkaOrder(msgspec.Struct, frozen=True):
    """The work of a process."""

    name: str
    """Also the transactional id of a transactor or processor."""
    role: Literal["writer", "transactor", "processor"]
    servers: str
    """The Kafka listeners."""
    history: str
    rate: float = 0.0
    """Records a second of a writer or transactor."""
    message_timeout_ms: int = 120_000
    """Of a writer: a value that is not acknowledged by then has an unknown outcome."""
    is_once: bool = True
    """Whether every value must be in the log once, in order: no epoch of the producer ends."""
    protocol: Protocol = "classic"
    """Of a processor's group."""


def copy_value(tag: str, source: str) -> str:
    """A processor's copy: `tag` makes every attempt another value."""
    return f"{tag}={source}"


def source_of(copy: str) -> str:
    """The inverse of `copy_value`."""
    return copy.partition("=")[2]


def source_text(partition: int, offset: int, value: str) -> str:
    """An input record, in a copy."""
    return f"{value}@{partition}:{offset}"
