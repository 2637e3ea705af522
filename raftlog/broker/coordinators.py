"""Coordinators of groups and transactional ids, for clients that call them directly.

Any other node forwards such a call.
"""

from __future__ import annotations

from raftlog.broker.authorize import (
    Authorize,
    Operation,
    Principal,
    group_resource,
    transactional_id_resource,
)
from raftlog.broker.node import NodeServices
from raftlog.coordinator.groups import kind as group_kind
from raftlog.coordinator.groups.checks import check_group_id
from raftlog.coordinator.transactions import kind as transaction_kind
from raftlog.coordinator.transactions.messages import shard_key
from raftlog.metadata.image import BrokerImage


class CoordinatorLookup:
    """Finds coordinators and creates their internal topics with the first use."""

    def __init__(self, services: NodeServices, authorize: Authorize) -> None:
        self._services = services
        self._authorize = authorize

    async def of_group(self, principal: Principal, group_id: str) -> BrokerImage | None:
        """The coordinator of a group, or None while there is none. Raises LogError."""
        self._authorize(principal, Operation.DESCRIBE, group_resource(group_id))
        return await self._found(group_kind.NAME, check_group_id(group_id))

    async def of_transactional_id(
        self, principal: Principal, transactional_id: str
    ) -> BrokerImage | None:
        """The coordinator of a transactional id, as `of_group`. Raises LogError."""
        self._authorize(principal, Operation.DESCRIBE, transactional_id_resource(transactional_id))
        return await self._found(transaction_kind.NAME, shard_key(transactional_id))

    async def _found(self, kind: str, key: str) -> BrokerImage | None:
        broker_id = await self._services.coordinators.coordinator_of(kind, key)
        return self._services.metadata.image.brokers.get(broker_id)
