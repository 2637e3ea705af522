"""The handlers share topics by name or id, error codes and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

from raftlog.broker.authorize import CLUSTER, Operation, Resource, group_resource, topic_resource
from raftlog.broker.service import Broker
from raftlog.kafka.call import Call
from raftlog.metadata.image import topic_name_fault
from raftlog.record import errors
from raftlog.record.errors import LogError
from raftlog.record.types import TopicId

T = TypeVar("T")
Item = TypeVar("Item")

NONE: Final = 0
COORDINATOR_NOT_AVAILABLE: Final = 15
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
UNSUPPORTED_VERSION: Final = 35
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_REPLICA_ASSIGNMENT: Final = 39
INVALID_REQUEST: Final = 42
LISTENER_NOT_FOUND: Final = 72
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75

ITEMS_PER_TURN: Final = 8
"""Items of a request that run at once, in one turn (2 ms). Each is a call of a
coordinator or a leader."""
NAMES_PER_TURN: Final = 100
"""Names looked up in the metadata in one turn (2 ms)."""
ROWS_PER_TURN: Final = 1_000
"""Rows of a response built in one turn (2 ms)."""
ITEMS_S_MAX: Final = 60.0
"""Longest seconds for all items of a request. No client waits longer for it."""
CONTROLLER_PAUSE_S: Final = 0.2
"""Seconds until a change that found no active controller is repeated."""
REQUEST_MS_MAX: Final = 300_000
"""Longest timeout of a request in milliseconds. A longer timeout counts as this."""

_CODES: Final = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
_OF_TOPICS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_OF_CLUSTER: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
_OF_GROUPS: Final = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)
UNKNOWN_OPERATIONS: Final = -(1 << 31)
"""Operations in the response to a request without authorized operations."""

_ABSENT: Final = frozenset(
    entry.code
    for entry in (
        errors.DISK_FULL,
        errors.NO_CONTROLLER,
        errors.NO_LEADER,
        errors.NOT_ENOUGH_REPLICAS,
        errors.NOT_READY,
        errors.RETRIABLE,
        errors.STORAGE_FAILED,
    )
)
"""Errors of a coordinator's partition. Their own codes end clients of groups. Only for
COORDINATOR_NOT_AVAILABLE does a client find the coordinator again, and repeat its request."""


def code(error: LogError) -> int:
    """Kafka's code of an error."""
    return error.entry.kafka_code


def partition_code(error: LogError) -> int:
    """Kafka's code of an error of a partition's data.

    A gateway without room for another forwarded request has done nothing of it. Clients repeat it
    for NOT_LEADER_OR_FOLLOWER. The code of OVERLOADED is only for requests to coordinators.
    """
    return errors.NO_LEADER.kafka_code if error.entry is errors.OVERLOADED else code(error)


def code_of(our_code: int) -> int:
    """Kafka's code of a code of the error table. 0 is success in both."""
    return errors.ERROR_TABLE[our_code].kafka_code if our_code else NONE


def coordinator_code(error: LogError, *, forbidden: int = GROUP_AUTHORIZATION_FAILED) -> int:
    """Kafka's code of a coordinator's error. `forbidden` is the code without the right."""
    if error.entry is errors.FORBIDDEN:
        return forbidden
    return COORDINATOR_NOT_AVAILABLE if error.entry.code in _ABSENT else code(error)


def cluster_code(error: LogError) -> int:
    """Kafka's code of an error of an operation on the cluster."""
    return CLUSTER_AUTHORIZATION_FAILED if error.entry is errors.FORBIDDEN else code(error)


def epoch_error(broker: Broker, name: str, number: int, current_epoch: int) -> int:
    """The code for a client with another leader epoch than this node's (KIP-320).

    -1 stands for a client without an epoch. NONE is for a fitting epoch, the code of the LogError
    for an unknown partition.
    """
    if current_epoch < 0:
        return NONE
    try:
        known = broker.services.metadata.image.partition(name, number).leader_epoch
    except LogError as error:
        return code(error)
    if current_epoch < known:
        return FENCED_LEADER_EPOCH
    return UNKNOWN_LEADER_EPOCH if current_epoch > known else NONE


def deadline_of(timeout_ms: int) -> float:
    """The event loop's time at which a request with this timeout, received now, ends."""
    timeout_s = min(max(timeout_ms, 1), REQUEST_MS_MAX) / 1000
    return asyncio.get_running_loop().time() + timeout_s


async def by(deadline: float, work: Callable[[], Awaitable[T]]) -> T:
    """The result of a part of a request. Raises LogError REQUEST_TIMEOUT at the deadline.

    It is repeated while the cluster has no active controller, since nothing was changed then.
    librdkafka gives up at NOT_CONTROLLER.
    """
    refusal = LogError(errors.REQUEST_TIMEOUT, "The request's time was over before this was begun.")
    while asyncio.get_running_loop().time() < deadline:
        try:
            async with asyncio.timeout_at(deadline):
                return await work()
        except TimeoutError:
            raise LogError(
                errors.REQUEST_TIMEOUT,
                "The request timed out before its outcome was known. It may have succeeded.",
            ) from None
        except LogError as error:
            if error.entry is not errors.NO_CONTROLLER:
                raise
            refusal = error
        await asyncio.sleep(CONTROLLER_PAUSE_S)
    raise refusal


async def each(call: Call, work: Callable[[Item], Awaitable[T]], items: Iterable[Item]) -> list[T]:
    """The results of a request's items in their order, a few at a time. Each item counts once.

    Calls of a coordinator or partition on this node never suspend. Without turns of the event loop,
    thousands would hold it. Raises LogError REQUEST_TIMEOUT.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ITEMS_S_MAX
    results: list[T] = []
    distinct = list(dict.fromkeys(items))
    for start in range(0, len(distinct), ITEMS_PER_TURN):
        if start:
            await call.broker.turns.wait()
            if loop.time() > deadline:
                raise LogError(errors.REQUEST_TIMEOUT, f"{start} items took {ITEMS_S_MAX:g} s.")
        results += await asyncio.gather(*map(work, distinct[start : start + ITEMS_PER_TURN]))
    return results


async def in_turns(
    call: Call, items: Iterable[Item], per_turn: int = ITEMS_PER_TURN
) -> AsyncIterator[Item]:
    """The items, so many in a turn of the event loop.

    It is for a loop whose body may not suspend.
    """
    for number, item in enumerate(items):
        if number and number % per_turn == 0:
            await call.broker.turns.wait()
        yield item


def numbers_by_topic(topics: Iterable[tuple[Item, Iterable[int]]]) -> dict[Item, tuple[int, ...]]:
    """The partitions of each topic, each topic and each partition once."""
    found: dict[Item, dict[int, None]] = {}
    for topic, numbers in topics:
        found.setdefault(topic, {}).update(dict.fromkeys(numbers))
    return {topic: tuple(numbers) for topic, numbers in found.items()}


def topic_operations(call: Call, name: str) -> int:
    """The operations on a topic that the client may perform, as a bit per code."""
    return _permitted(call, topic_resource(name), _OF_TOPICS)


def cluster_operations(call: Call) -> int:
    """The operations on the cluster that the client may perform."""
    return _permitted(call, CLUSTER, _OF_CLUSTER)


def group_operations(call: Call, group_id: str) -> int:
    """The operations on a group that the client may perform."""
    return _permitted(call, group_resource(group_id), _OF_GROUPS)


def _permitted(call: Call, resource: Resource, operations: Iterable[Operation]) -> int:
    permitted = call.broker.admin.permitted(call.principal, resource, operations)
    return sum(1 << _CODES[operation] for operation in permitted)


def unknown_topic_code(name: str) -> int:
    """The code for a topic that does not exist. Clients wait for one that may come."""
    entry = errors.UNKNOWN_TOPIC if topic_name_fault(name) is None else errors.INVALID_TOPIC
    return entry.kafka_code


def topic_name(broker: Broker, name: str, topic_id: TopicId | None) -> str:
    """The topic's name, which newer versions replace by the id.

    Raises LogError UNKNOWN_TOPIC_ID, because a deleted topic's id is not that of its successor.
    """
    if topic_id is None:
        return name
    topic = broker.services.metadata.image.topics_by_id.get(topic_id)
    if topic is None:
        raise LogError(errors.UNKNOWN_TOPIC_ID, f"There is no topic with id {topic_id}.")
    return topic.name
