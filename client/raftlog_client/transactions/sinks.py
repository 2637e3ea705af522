"""Sinks commit prepared transactions of many producers as one epoch.

They are for engines that write in epochs by many tasks, such as Spark. Each attempt of a task
prepares a transaction whose transactional id starts with `sink_transactional_id`. One call then
commits those of an epoch, and aborts the sink's other open transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from raftlog.api.common import Empty
from raftlog.api.transactions import SinkCommitRequest, SinkEpoch, SinkEpochRequest
from raftlog_client.metadata import COORDINATOR_PATIENCE_S, ClusterMetadata


def sink_transactional_id(sink_id: str, name: str) -> str:
    """Return the transactional id of a sink's producer. `name` is unique in the sink."""
    return f"sink/{sink_id}/{name}"


async def describe_sink(metadata: ClusterMetadata, sink_id: str) -> SinkEpoch:
    """Return a sink's newest committed epoch, -1 before the first, and its owner."""
    return await metadata.call_any(
        "GET", _path(sink_id), SinkEpoch, patience_s=COORDINATOR_PATIENCE_S
    )


async def commit_sink_epoch(
    metadata: ClusterMetadata,
    sink_id: str,
    epoch: int,
    transactional_ids: Sequence[str],
    *,
    owner: str,
) -> SinkEpoch:
    """Commit these prepared transactions as one epoch, all or nothing. Harmless to repeat.

    If the epoch is committed already, they are aborted. Raises ServerError: INVALID_TXN_STATE or
    UNKNOWN_TRANSACTION if a transaction is not (or no longer) prepared, SINK_OWNED,
    TRANSACTION_TOO_LARGE. Raises ConnectionLostError if it may or may not be committed.
    """
    return await metadata.call_any(
        "POST",
        f"{_path(sink_id)}/epochs/{epoch}",
        SinkEpoch,
        SinkEpochRequest(list(transactional_ids), owner),
        patience_s=COORDINATOR_PATIENCE_S,
    )


async def commit_sink(
    metadata: ClusterMetadata, sink_id: str, transactional_ids: Sequence[str], *, owner: str = ""
) -> None:
    """Commit these prepared transactions without an epoch, and abort all others of the sink.

    For a sink that commits once. Without ids, for a sink that gives up. Harmless to repeat within a
    minute, after which the ids of ended transactions are forgotten. Raises as `commit_sink_epoch`.
    After UNKNOWN_TRANSACTION, an earlier request may have committed them.
    """
    await metadata.call_any(
        "POST",
        f"{_path(sink_id)}/commit",
        Empty,
        SinkCommitRequest(list(transactional_ids), owner),
        patience_s=COORDINATOR_PATIENCE_S,
    )


def _path(sink_id: str) -> str:
    return f"/v1/sinks/{quote(sink_id, safe='')}"
