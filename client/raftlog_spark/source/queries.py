"""Queries of both readers to the cluster during planning, and the handling of losses."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from raftlog_spark.errors import TopicGone
from raftlog_spark.options import OptionsError, SourceOptions
from raftlog_spark.source import planning
from raftlog_spark.source.offsets import Partition
from raftlog_spark.source.planning import Snapshot
from raftlog_spark.source.start_points import StartPoint

if TYPE_CHECKING:
    from raftlog_spark.cluster import Bounds, Cluster

SNAPSHOT_ATTEMPTS_MAX = 3
TOPICS_SHOWN = 20

_log = logging.getLogger(__name__)


def take_snapshot(cluster: Cluster, options: SourceOptions, *, must_exist: bool) -> Snapshot:
    """The partitions to read, and their bounds, in two calls for any number of partitions.

    Raises OptionsError if a topic or partition named in the options does not exist, with
    `must_exist`. Raises TopicGone if topics disappear between the calls, repeatedly.
    """
    for attempt in range(SNAPSHOT_ATTEMPTS_MAX):
        topics = cluster.topics()
        absent = planning.missing(options.subscription, topics)
        if must_exist and absent:
            existing = ", ".join(sorted(topics)[:TOPICS_SHOWN]) or "none"
            raise OptionsError(
                f"{absent[0]} does not exist on {options.bootstrap_servers}: create it, or correct "
                f"the name (topics there: {existing})"
            )
        selected = planning.select_partitions(options.subscription, topics)
        topic_ids = {topic: topic_id for (topic, _), topic_id in selected.items()}
        try:
            return Snapshot(topic_ids, _bounds(cluster, options, topic_ids, selected))
        except TopicGone:
            if attempt + 1 == SNAPSHOT_ATTEMPTS_MAX:
                raise
    raise AssertionError("the loop above returns or raises")


def refresh(cluster: Cluster, options: SourceOptions, before: Snapshot) -> Snapshot:
    """The current bounds of the same partitions, in one call. Raises TopicGone."""
    return before._replace(bounds=_bounds(cluster, options, before.topic_ids, before.bounds))


def _bounds(
    cluster: Cluster,
    options: SourceOptions,
    topics: Collection[str],
    partitions: Collection[Partition],
) -> dict[Partition, Bounds]:
    if not topics:
        return {}
    bounds = cluster.bounds(sorted(topics), isolation=options.isolation)
    return {part: bounds[part] for part in partitions if part in bounds}


def resolve_point(
    cluster: Cluster, point: StartPoint, snapshot: Snapshot
) -> tuple[dict[Partition, int], Sequence[str]]:
    """The offsets of a point, clamped to the bounds, and texts of the losses. Raises OptionsError
    if the point does not fit the partitions."""
    timestamps = planning.timestamps_to_query(point, snapshot.bounds)
    times = cluster.offsets_for_times(timestamps) if timestamps else {}
    return planning.clamp(planning.resolve(point, snapshot.bounds, times), snapshot.bounds)


def check_losses(losses: Sequence[str], options: SourceOptions) -> None:
    """Log losses that the query tolerates. Raises DataLossError if `failOnDataLoss` is set."""
    if not losses:
        return
    if options.fail_on_data_loss:
        raise planning.loss_error(losses)
    _log.warning("records are gone, reading continues: %s", planning.describe(losses))
