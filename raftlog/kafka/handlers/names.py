"""What the handlers share: topics by name or id, addresses of brokers, error codes."""

from __future__ import annotations

from typing import Final

from raftlog.broker.service import Broker
from raftlog.metadata.image import BrokerImage
from raftlog.record.errors import (
    DISK_FULL,
    ERROR_TABLE,
    FORBIDDEN,
    NO_CONTROLLER,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    NOT_READY,
    RETRIABLE,
    STORAGE_FAILED,
    UNKNOWN_TOPIC_ID,
    LogError,
)
from raftlog.record.types import TopicId

NONE: Final = 0
COORDINATOR_NOT_AVAILABLE: Final = 15
GROUP_AUTHORIZATION_FAILED: Final = 30
LISTENER_NOT_FOUND: Final = 72

_ABSENT: Final = frozenset(
    entry.code
    for entry in (
        DISK_FULL,
        NO_CONTROLLER,
        NO_LEADER,
        NOT_ENOUGH_REPLICAS,
        NOT_READY,
        RETRIABLE,
        STORAGE_FAILED,
    )
)
"""Errors of a coordinator's partition. Their own codes end clients of groups: a client finds the
coordinator again, and repeats its request, for COORDINATOR_NOT_AVAILABLE alone."""


def code(error: LogError) -> int:
    """Kafka's code of an error."""
    return error.entry.kafka_code


def code_of(our_code: int) -> int:
    """Kafka's code of a code of the error table; 0 is success in both."""
    return ERROR_TABLE[our_code].kafka_code if our_code else NONE


def coordinator_code(error: LogError, *, forbidden: int = GROUP_AUTHORIZATION_FAILED) -> int:
    """Kafka's code of a coordinator's error; `forbidden`: of a request without the right."""
    if error.entry is FORBIDDEN:
        return forbidden
    return COORDINATOR_NOT_AVAILABLE if error.entry.code in _ABSENT else code(error)


def topic_name(broker: Broker, name: str, topic_id: TopicId | None) -> str:
    """The topic's name: newer versions name topics by their ids alone.

    Raises LogError UNKNOWN_TOPIC_ID: a deleted topic's id is not that of its successor.
    """
    if topic_id is None:
        return name
    topic = broker.services.metadata.image.topics_by_id.get(topic_id)
    if topic is None:
        raise LogError(UNKNOWN_TOPIC_ID, f"There is no topic with id {topic_id}.")
    return topic.name


def endpoint(image: BrokerImage) -> tuple[str, int] | None:
    """Where Kafka clients reach a broker; None if it has no Kafka listener."""
    if image.kafka_host is None or image.kafka_port is None:
        return None
    return image.kafka_host, image.kafka_port
