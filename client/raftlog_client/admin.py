"""The admin client for topics, configs, groups, transactions and the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar
from urllib.parse import quote

import msgspec

from raftlog.api.cluster import (
    ClusterSettings,
    ClusterSettingsChange,
    DecommissionProgress,
    LeaderElection,
    LeadershipTransfer,
    NewDirectory,
    NewReassignment,
    NewReassignments,
    NewVoter,
    NodeInfo,
    NodeList,
    PartitionStatus,
    PartitionStatusList,
    QuorumInfo,
    ReassignmentList,
)
from raftlog.api.common import Empty
from raftlog.api.groups import (
    DeleteOffsetsRequest,
    GroupDescription,
    GroupList,
    ResetRequest,
    ResetResponse,
)
from raftlog.api.transactions import TransactionDescription, TransactionList
from raftlog.api.v3 import ConfigChange, ConfigChanges, Listing, TopicChange, TopicConfig
from raftlog.api.v3 import ConfigValue as NewConfig
from raftlog.api.v3 import NewTopic as TopicCreation
from raftlog.record.errors import NO_LEADER, NOT_FOUND
from raftlog.record.types import Offset
from raftlog_client.errors import (
    ClientClosedError,
    ConnectionLostError,
    RaftlogClientError,
    ServerError,
    server_error,
)
from raftlog_client.metadata import (
    BOOTSTRAP_TIMEOUT_MS,
    COORDINATOR_PATIENCE_S,
    METADATA_PATIENCE_S,
    ClusterClient,
    node_address,
)
from raftlog_client.offsets import delete_records, topic_offsets
from raftlog_client.routing import LeaderCalls
from raftlog_client.transport import NodeAddress
from raftlog_client.types import (
    ClusterInfo,
    ConfigEntry,
    NewTopic,
    PartitionOffsets,
    TopicDescription,
    TopicPartition,
)

ConfigValue = str | int | float | bool

LEADER_PATIENCE_S: Final = 2.0
"""Seconds to wait for the quorum's leader after another node responded for the quorum."""
REPLICAS_PATIENCE_S: Final = 2.0
"""Seconds after which `describe_replicas` leaves out a partition leader's response."""

T = TypeVar("T")


class Admin(ClusterClient):
    """Administers a cluster. An async context manager.

    Reads are tried on each node in turn until `request_timeout_ms`. A change is repeated only if
    the last attempt certainly reached no node. Otherwise the error has `outcome_unknown`.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:8082",
        client_id: str = "raftlog-client",
        request_timeout_ms: float = 15_000,
        bootstrap_timeout_ms: float = BOOTSTRAP_TIMEOUT_MS,
        retry_backoff_ms: float = 20,
        retry_backoff_max_ms: float = 250,
    ) -> None:
        super().__init__(
            bootstrap_servers,
            client_id,
            request_timeout_ms=request_timeout_ms,
            bootstrap_timeout_ms=bootstrap_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        )
        self._is_started = False

    async def start(self, *, needs_ready_node: bool = True) -> None:
        """Connect. Raises ConnectionLostError if no node responds.

        Without `needs_ready_node` no node is called yet. Nodes without a quorum only respond to
        `describe_quorum` and `describe_nodes`.
        """
        if self._is_started:
            return
        self._transport.start()
        if needs_ready_node:
            try:
                await self._metadata.refresh(())
            except BaseException:
                await self._disconnect()
                raise
        self._is_started = True

    async def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        self._is_started = False
        await self._disconnect()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, ConfigValue] | None = None,
    ) -> TopicDescription:
        """Create a topic. The cluster's defaults replace absent settings.

        Raises ServerError (TOPIC_EXISTS, INVALID_TOPIC, INVALID_PARTITIONS, INVALID_CONFIG).
        """
        values = [NewConfig(key, config_text(value)) for key, value in (configs or {}).items()]
        body = TopicCreation(name, partitions, replication_factor, values)
        await self._change("POST", self._path("topics"), body)
        return await self.describe_topic(name)

    async def create_topics(self, topics: Iterable[NewTopic]) -> list[TopicDescription]:
        """Create topics in order. Raises as `create_topic` at the first failure.

        Earlier topics stay created.
        """
        return [
            await self.create_topic(
                topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=topic.configs,
            )
            for topic in topics
        ]

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its records. Raises TopicNotFoundError."""
        await self._change("DELETE", self._path("topics", name))

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics in order. Raises TopicNotFoundError at the first unknown topic.

        Earlier topics stay deleted.
        """
        for name in names:
            await self.delete_topic(name)

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self._require_started()
        return sorted((await self._metadata.refresh(None)).topics)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic's partitions, leaders and replicas. Raises TopicNotFoundError."""
        return (await self.describe_topics((name,)))[0]

    async def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicDescription]:
        """Return these topics, or all topics, by name. Raises TopicNotFoundError."""
        self._require_started()
        if names is None:
            view = await self._metadata.refresh(None)
            return [view.topics[name] for name in sorted(view.topics)]
        wanted = list(names)
        await self._metadata.refresh(wanted)
        return [await self._metadata.topic(name) for name in wanted]

    async def describe_configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Return a topic's configs with their effective values. Raises TopicNotFoundError."""
        answer = await self._read(self._path("topics", topic, "configs"), Listing[TopicConfig])
        return {
            entry.name: ConfigEntry(
                entry.name,
                entry.value,
                entry.is_default,
                entry.source,
                is_read_only=entry.is_read_only,
                is_sensitive=entry.is_sensitive,
                note="" if entry.note is msgspec.UNSET else entry.note,
            )
            for entry in answer.data
        }

    async def alter_configs(
        self,
        topic: str,
        configs: Mapping[str, ConfigValue] | None = None,
        *,
        unset: Iterable[str] = (),
    ) -> None:
        """Set configs of a topic and reset those of `unset`. All change or none.

        Raises TopicNotFoundError, ServerError (INVALID_CONFIG).
        """
        changes = [
            ConfigChange(name, config_text(value)) for name, value in (configs or {}).items()
        ]
        changes += [ConfigChange(name, operation="DELETE") for name in unset]
        if changes:
            path = self._path("topics", topic, "configs:alter")
            await self._change("POST", path, ConfigChanges(changes))

    async def create_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to `total` partitions. The number never shrinks.

        Records of a key may then go to another partition. Raises TopicNotFoundError, ServerError
        (INVALID_PARTITIONS).
        """
        await self._change("PATCH", self._path("topics", topic), TopicChange(total))

    async def offsets(
        self, topics: Iterable[str], *, at_hand_after_ms: float | None = None
    ) -> dict[TopicPartition, PartitionOffsets]:
        """Return readable offsets of all partitions of these topics.

        With `at_hand_after_ms`, return the offsets known after this time and leave out partitions
        without a leader. Raises TopicNotFoundError, ServerError(NO_LEADER).
        """
        self._require_started()
        at_hand_after_s = None if at_hand_after_ms is None else at_hand_after_ms / 1000
        return await topic_offsets(self._metadata, topics, at_hand_after_s=at_hand_after_s)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete each partition's records below an offset. -1 deletes all readable records.

        Returns the partitions' log start offsets. Raises the first partition's error, if any, once
        all were tried.
        """
        self._require_started()
        return await delete_records(self._metadata, offsets)

    async def list_groups(self) -> GroupList:
        """Return all consumer groups. `incomplete` gives reasons for missing groups."""
        return await self._read("/v1/groups", GroupList, patience_s=COORDINATOR_PATIENCE_S)

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's members with their partitions, and each partition's offsets and lag.

        Raises ServerError(UNKNOWN_GROUP).
        """
        return await self._read(
            _group_path(group), GroupDescription, patience_s=COORDINATOR_PATIENCE_S
        )

    async def delete_group(self, group: str) -> None:
        """Delete a group with its committed offsets.

        Raises ServerError: UNKNOWN_GROUP, or GROUP_NOT_EMPTY while it has members.
        """
        await self._change("DELETE", _group_path(group))

    async def reset_offsets(
        self,
        group: str,
        topics: Iterable[str | TopicPartition] | None = None,
        *,
        to: Literal["earliest", "latest"] | None = None,
        to_offset: int | None = None,
        to_timestamp_ms: int | None = None,
        by_duration_ms: int | None = None,
        shift_by: int | None = None,
        like_group: str | None = None,
        validate_only: bool = False,
    ) -> ResetResponse:
        """Set the committed offsets of an empty group to exactly one of these targets.

        `topics` are whole topics or partitions, or None for all that the group has committed.
        `by_duration_ms` selects the first record of that many last milliseconds. `like_group`
        selects the offsets of another group. `validate_only` returns the rows without a change.
        Each row may have an error. Raises ServerError: UNKNOWN_GROUP, GROUP_NOT_EMPTY. Raises
        ValueError.
        """
        targets = (to, to_offset, to_timestamp_ms, by_duration_ms, shift_by, like_group)
        if sum(target is not None for target in targets) != 1:
            raise ValueError("reset_offsets needs exactly one target, such as to='earliest'")
        self._require_started()
        return await self._metadata.call_any(
            "POST",
            f"{_group_path(group)}/reset",
            ResetResponse,
            ResetRequest(
                topics=None if topics is None else _by_topic(topics),
                to=to,
                to_offset=None if to_offset is None else Offset(to_offset),
                to_timestamp_ms=to_timestamp_ms,
                by_duration_ms=by_duration_ms,
                shift_by=shift_by,
                like_group=like_group,
                validate_only=validate_only,
            ),
            # A repeated shift moves the offsets twice.
            is_idempotent=shift_by is None or validate_only,
        )

    async def delete_offsets(self, group: str, topics: Iterable[str | TopicPartition]) -> None:
        """Delete committed offsets of topics or partitions that no member subscribes to.

        Raises ServerError: UNKNOWN_GROUP, GROUP_NOT_EMPTY.
        """
        body = DeleteOffsetsRequest(_by_topic(topics))
        await self._change("POST", f"{_group_path(group)}/offsets/delete", body)

    async def list_transactions(self) -> TransactionList:
        """Return all transactional ids. `incomplete` gives reasons for missing ids."""
        return await self._read(
            "/v1/transactions", TransactionList, patience_s=COORDINATOR_PATIENCE_S
        )

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return a transactional id with the partitions of its open transaction."""
        return await self._read(
            _transaction_path(transactional_id),
            TransactionDescription,
            patience_s=COORDINATOR_PATIENCE_S,
        )

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open or prepared transaction and fence its producer.

        Raises ServerError(INVALID_TXN_STATE) without an open transaction.
        """
        await self._change("POST", f"{_transaction_path(transactional_id)}/fence", Empty())

    async def describe_cluster(self) -> ClusterInfo:
        """Return the cluster's name, its active controller and its nodes."""
        self._require_started()
        return (await self._metadata.refresh(())).cluster_info()

    async def describe_nodes(self) -> tuple[NodeInfo, ...]:
        """Return every node of the cluster with its address, vote and fencing."""
        return (await self._read("/v1/nodes", NodeList)).nodes

    async def describe_each_node(self) -> dict[int, NodeInfo]:
        """Return every node's description of itself, by number. Silent nodes are left out.

        Only this gives `opening`, `replicas_open` and `clock_skew_ms`. Creating a topic of
        thousands of partitions takes seconds.
        """

        async def ask(node: NodeInfo) -> NodeInfo | None:
            assert node.host
            assert node.port
            try:
                nodes = await self._metadata.call_node(
                    node_address(node.host, node.port),
                    "GET",
                    "/v1/nodes",
                    NodeList,
                    timeout_s=LEADER_PATIENCE_S,
                )
            except (ConnectionLostError, ServerError):
                return None
            return next((other for other in nodes.nodes if other.node_id == node.node_id), None)

        nodes = [node for node in await self.describe_nodes() if node.host and node.port]
        answers = await asyncio.gather(*map(ask, nodes))
        return {answer.node_id: answer for answer in answers if answer is not None}

    async def describe_quorum(self) -> QuorumInfo:
        """Return the metadata quorum as its leader sees it, else as any node does."""
        info = await self._read("/v1/quorum", QuorumInfo)
        leader = next((voter for voter in info.voters if voter.is_leader), None)
        if leader is None or leader.node_id == info.node_id or not (leader.host and leader.port):
            return info
        try:
            return await self._metadata.call_node(
                node_address(leader.host, leader.port),
                "GET",
                "/v1/quorum",
                QuorumInfo,
                timeout_s=LEADER_PATIENCE_S,
            )
        except (ConnectionLostError, ServerError):
            return info

    async def add_voter(self, node_id: int) -> None:
        """Give a vote to a connected observer. Raises ServerError(ILLEGAL_STATE) for other nodes.

        See `raftlog quorum describe`.
        """
        await self._change("POST", "/v1/quorum/voters", NewVoter(node_id))

    async def remove_voter(self, node_id: int) -> None:
        """Remove a node's vote. Raises ServerError(ILLEGAL_STATE) for no vote, or the last."""
        await self._change("DELETE", f"/v1/quorum/voters/{int(node_id)}")

    async def remove_node(self, node_id: int) -> None:
        """Unregister a node that has left permanently.

        Another node with an empty data directory may then join under its id. Raises ServerError:
        NOT_FOUND, or ILLEGAL_STATE while the node is alive, has a vote, or holds replicas.
        """
        await self._change("DELETE", f"/v1/nodes/{int(node_id)}")

    async def replace_node(self, node_id: int, directory_id: str) -> None:
        """Give a node's place and replicas, after a disk loss, to an empty directory.

        `raftlog serve --replace` calls this before the node starts. Harmless to repeat. Raises
        ServerError: NOT_FOUND, or ILLEGAL_STATE while the node is alive or has a vote.
        """
        await self._change("POST", f"/v1/nodes/{int(node_id)}/replace", NewDirectory(directory_id))

    async def decommission_node(self, node_id: int) -> None:
        """Move all replicas of a node to other nodes.

        See `describe_decommission`. Harmless to repeat. Raises ServerError: NOT_FOUND, or
        ILLEGAL_STATE if there are too few other nodes.
        """
        await self._change("POST", f"/v1/nodes/{int(node_id)}/decommission")

    async def cancel_decommission(self, node_id: int) -> None:
        """Cancel a decommission. The remaining replicas stay. Raises ServerError(NOT_FOUND)."""
        await self._change("DELETE", f"/v1/nodes/{int(node_id)}/decommission")

    async def describe_decommission(self, node_id: int) -> DecommissionProgress:
        """Return the number of replicas left on a node. Raises ServerError(NOT_FOUND)."""
        return await self._read(f"/v1/nodes/{int(node_id)}/decommission", DecommissionProgress)

    async def set_maintenance(self, node_id: int, *, enabled: bool) -> None:
        """Start or end a node's maintenance. Raises ServerError(NOT_FOUND).

        During maintenance the node leads only partitions without another leader. Maintenance lasts
        over restarts.
        """
        method = "PUT" if enabled else "DELETE"
        await self._change(method, f"/v1/nodes/{int(node_id)}/maintenance")

    async def elect_leader(
        self, topic: str, partition: int, broker: int | None = None, *, unclean: bool = False
    ) -> None:
        """Elect a replica as leader. None selects the best replica except the present leader.

        `unclean` also allows a replica that is not in sync if no other can lead. Without a
        `broker`, that is the live replica with the longest log. The committed records that it lacks
        are lost permanently. Raises TopicNotFoundError, ServerError(ILLEGAL_STATE).
        """
        path = f"/v1/topics/{quote(topic, safe='')}/partitions/{int(partition)}/leader"
        await self._change("POST", path, LeaderElection(broker, unclean))

    async def describe_replicas(self, topic: str) -> dict[int, PartitionStatus]:
        """Return the replicas' progress by partition. Raises TopicNotFoundError.

        Partitions whose leader does not respond are left out.
        """
        partitions = [
            TopicPartition(topic, info.partition)
            for info in (await self.describe_topic(topic)).partitions
        ]
        found: dict[int, PartitionStatus] = {}

        def settle(
            partition: TopicPartition, outcome: PartitionStatus | RaftlogClientError
        ) -> None:
            if isinstance(outcome, PartitionStatus):
                found[partition.partition] = outcome
            # A node of an earlier release does not know the path.
            elif not outcome.retriable and not _is_unknown_path(outcome):
                raise outcome

        await LeaderCalls(self._metadata).query_once(
            self._replicas, partitions, settle, timeout_s=REPLICAS_PATIENCE_S
        )
        return found

    async def describe_reassignments(self) -> ReassignmentList:
        """Return the partitions under reassignment."""
        return await self._read("/v1/reassignments", ReassignmentList)

    async def reassign(self, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Move partitions to these nodes, the preferred leader first.

        All are checked before the first move starts. Records are copied in the background. Raises
        TopicNotFoundError, ServerError (INVALID_PARTITIONS, ILLEGAL_STATE).
        """
        moves = [
            NewReassignment(place.topic, place.partition, tuple(nodes))
            for place, nodes in replicas.items()
        ]
        await self._change("POST", "/v1/reassignments", NewReassignments(moves))

    async def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Cancel a partition's reassignment.

        Raises TopicNotFoundError, ServerError (ILLEGAL_STATE without a reassignment).
        """
        path = f"/v1/reassignments/{quote(topic, safe='')}/{int(partition)}"
        await self._change("DELETE", path)

    async def transfer_leadership(self, node_id: int | None = None) -> None:
        """Transfer the quorum's leadership to a voter, by default to any other voter.

        Raises ServerError(ILLEGAL_STATE).
        """
        await self._change("POST", "/v1/quorum/transfer", LeadershipTransfer(node_id))

    async def describe_cluster_settings(self, *, fresh: bool = False) -> ClusterSettings:
        """Return the topic configs set for the whole cluster, as applied by some node.

        `fresh` includes every change acknowledged before this call and fails without a quorum.
        """
        path = "/v1/cluster/settings" + ("?fresh=true" if fresh else "")
        # A fresh response needs the quorum, so it may take an election.
        patience_s = self._metadata.request_timeout_s if fresh else METADATA_PATIENCE_S
        return await self._read(path, ClusterSettings, patience_s=patience_s)

    async def alter_cluster_settings(
        self, values: Mapping[str, ConfigValue] | None = None, *, unset: Iterable[str] = ()
    ) -> ClusterSettings:
        """Set topic configs of the cluster and reset those of `unset`. All change or none.

        A topic's own config takes precedence. Returns the new settings. Raises
        ServerError(INVALID_CONFIG).
        """
        texts = {name: config_text(value) for name, value in (values or {}).items()}
        self._require_started()
        return await self._metadata.call_any(
            "PUT",
            "/v1/cluster/settings",
            ClusterSettings,
            ClusterSettingsChange(texts, list(unset)),
            is_idempotent=False,
        )

    def _path(self, *segments: str) -> str:
        self._require_started()
        cluster = quote(self._metadata.view.cluster_id or "-", safe="")
        return "/".join((f"/v3/clusters/{cluster}", *(quote(part, safe=":") for part in segments)))

    async def _replicas(
        self, address: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, PartitionStatus | RaftlogClientError]:
        """Query a leader for the replicas of partitions of one topic."""
        path = f"/v1/topics/{quote(partitions[0].topic, safe='')}/partitions"
        answer = await self._metadata.call_node(
            address, "GET", path, PartitionStatusList, timeout_s=timeout_s
        )
        found = {row.partition: row for row in answer.partitions}
        missing = server_error(NO_LEADER.code)
        return {partition: found.get(partition.partition, missing) for partition in partitions}

    async def _read(
        self, path: str, kind: type[T], *, patience_s: float = METADATA_PATIENCE_S
    ) -> T:
        self._require_started()
        return await self._metadata.call_any("GET", path, kind, patience_s=patience_s)

    async def _change(self, method: str, path: str, body: msgspec.Struct | None = None) -> None:
        self._require_started()
        await self._metadata.call_any(method, path, Empty, body, is_idempotent=False)

    def _require_started(self) -> None:
        if not self._is_started:
            raise ClientClosedError("The admin client is closed, or was never started.")


def _group_path(group: str) -> str:
    return f"/v1/groups/{quote(group, safe='')}"


def _transaction_path(transactional_id: str) -> str:
    return f"/v1/transactions/{quote(transactional_id, safe='')}"


def _by_topic(topics: Iterable[str | TopicPartition]) -> dict[str, list[int] | None]:
    """Group partitions by topic, with None for all partitions of a topic."""
    found: dict[str, list[int] | None] = {}
    for entry in topics:
        if isinstance(entry, str):
            found[entry] = None
        elif (numbers := found.setdefault(entry.topic, [])) is not None:
            numbers.append(entry.partition)
    return found


def _is_unknown_path(error: RaftlogClientError) -> bool:
    return isinstance(error, ServerError) and error.entry is NOT_FOUND


def config_text(value: ConfigValue) -> str:
    """Return a config's value in the cluster's form, with true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
