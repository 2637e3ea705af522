"""Sinks: prepared transactions of many producers, committed as one epoch.

For engines that write in epochs by many tasks, such as Spark. Each attempt of a task prepares a
transaction whose transactional id begins with `sink_transactional_id`; then one call commits those
of an epoch, and aborts what else of the sink is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from raftlog.api.common import Empty
from raftlog.api.transactions import SinkCommitRequest, SinkEpoch, SinkEpochRequest
from raftlog_client.metadata import COORDINATOR_PATIENCE_S, ClusterMetadata


def sink_transactional_id(sink_id: str, name: str) -> str:
    """The transactional id of one of a sink's producers; `name` is unique in the sink."""
    return f"sink/{sink_id}/{name}"


async def describe_sink(metadata: ClusterMetadata, sink_id: str) -> SinkEpoch:
    """The newest committed epoch of a sink, and its owner; -1 before the first."""
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
    """Commit these prepared transactions as one epoch: all or nothing, and harmless to repeat.

    Of an epoch that is committed already, they are aborted. Raises ServerError: INVALID_TXN_STATE
    or UNKNOWN_TRANSACTION if one of them is not prepared (any more), SINK_OWNED,
    TRANSACTION_TOO_LARGE; ConnectionLostError: it may or may not be committed.
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

    For a sink that commits once; with no ids for one that gives up. Harmless to repeat within a
    minute: then the ids of ended transactions are forgotten. Raises as `commit_sink_epoch`.
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
