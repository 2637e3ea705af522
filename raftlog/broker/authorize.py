"""Authorization of a principal's operation on a resource.

Operations and resources are Kafka's, so that ACLs of either protocol are one table. Every entry
point of the broker calls its `Authorize` function once per resource, before it reads or changes
anything. A refusal is LogError FORBIDDEN (or UNAUTHORIZED, for a principal without an identity). A
listener returns the typed error of its protocol.

| entry point | operation | resource |
|---|---|---|
| produce | WRITE | TOPIC |
| automatic and explicit topic creation | CREATE | TOPIC |
| producer ids | IDEMPOTENT_WRITE | CLUSTER |
| fetch, tail | READ | TOPIC |
| offsets, topic description | DESCRIBE | TOPIC |
| topic and record deletion | DELETE | TOPIC |
| new partitions | ALTER | TOPIC |
| topic configs, cluster settings | DESCRIBE_CONFIGS, ALTER_CONFIGS | TOPIC, CLUSTER |
| transaction init, writes, ends, sink epochs | WRITE | TRANSACTIONAL_ID |
| transaction description | DESCRIBE | TRANSACTIONAL_ID |
| group membership, consumer instances, commits, resets | READ | GROUP, and TOPIC of each offset |
| committed offsets, group description | DESCRIBE | GROUP |
| group and offset deletion | DELETE | GROUP |
| coordinators of groups, of transactional ids | DESCRIBE | GROUP, TRANSACTIONAL_ID |
| description of nodes, quorum, reassignments | DESCRIBE | CLUSTER |
| change of nodes, quorum, reassignments | ALTER | CLUSTER |

Topics with names in `__…` are internal. Clients may read and describe them, and no right allows
more (`guard_internal_topics`). Nodes use metadata and partitions without this package.

The addresses of the brokers need no right, as in Kafka's Metadata and DescribeCluster, because a
client needs them first.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from raftlog.record.coordinators import INTERNAL_TOPICS
from raftlog.record.errors import FORBIDDEN, LogError


class Operation(StrEnum):
    """Kafka's ACL operations."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    """Requests between brokers."""
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"


class ResourceType(StrEnum):
    """Kafka's resource types, as far as they exist here."""

    TOPIC = "TOPIC"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    GROUP = "GROUP"


class Resource(NamedTuple):
    """The object of an operation."""

    type: ResourceType
    name: str


class Principal(NamedTuple):
    """The identity of a client, written `User:name` as in Kafka."""

    type: str
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")
ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""A client without authentication."""

Authorize: TypeAlias = Callable[[Principal, Operation, Resource], None]
"""Raises LogError to refuse. Must neither block nor wait."""


@lru_cache(maxsize=1024)
def topic_resource(name: str) -> Resource:
    """The topic of that name, which need not exist. Cached, because every produce and fetch needs
    it."""
    return Resource(ResourceType.TOPIC, name)


def transactional_id_resource(transactional_id: str) -> Resource:
    """The transactional id, which need not exist."""
    return Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)


def group_resource(group_id: str) -> Resource:
    """The group, which need not exist."""
    return Resource(ResourceType.GROUP, group_id)


def allow_all(_principal: Principal, _operation: Operation, _resource: Resource) -> None:
    """Refuse nothing, because there are no ACLs yet."""


def may_describe(authorize: Authorize, principal: Principal, resource: Resource) -> bool:
    """Whether the principal has DESCRIBE. Lists leave out resources without it."""
    return is_allowed(authorize, principal, Operation.DESCRIBE, resource)


def is_allowed(
    authorize: Authorize, principal: Principal, operation: Operation, resource: Resource
) -> bool:
    """Whether the principal may perform the operation. Raises LogError UNAUTHORIZED."""
    try:
        authorize(principal, operation, resource)
    except LogError as error:
        if error.entry is not FORBIDDEN:
            raise
        return False
    return True


_ON_INTERNAL_TOPICS: Final = frozenset(
    {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
)


def guard_internal_topics(authorize: Authorize) -> Authorize:
    """`authorize`, after a refusal of all but reading where the topic is internal."""

    def guarded(principal: Principal, operation: Operation, resource: Resource) -> None:
        if (
            resource.type is ResourceType.TOPIC
            and operation not in _ON_INTERNAL_TOPICS
            and resource.name in INTERNAL_TOPICS
        ):
            raise LogError(
                FORBIDDEN,
                f"Topic {resource.name} is internal: its name is reserved for the cluster. Clients "
                "may read it, not create, write, alter or delete it.",
            )
        authorize(principal, operation, resource)

    return guarded
