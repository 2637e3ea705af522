"""Questions to the cluster that both readers ask when they plan, and what they do about losses."""

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
    """The partitions to read, and their bounds, in two calls however many there are.

    Raises OptionsError: a topic or partition named in the options does not exist, if it must.
    Raises TopicGone: topics disappear faster than they can be asked about.
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
    """The same partitions' bounds as of now, in one call. Raises TopicGone."""
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
    """The offsets that a point stands for, within bounds, and what moving them there loses.

    Raises OptionsError: the point does not fit the partitions.
    """
    asked = planning.timestamps_to_query(point, snapshot.bounds)
    times = cluster.offsets_for_times(asked) if asked else {}
    return planning.clamp(planning.resolve(point, snapshot.bounds, times), snapshot.bounds)


def check_losses(losses: Sequence[str], options: SourceOptions) -> None:
    """Says in the log what is lost, if the query may lose it.

    Raises DataLossError: it may not.
    """
    if not losses:
        return
    if options.fail_on_data_loss:
        raise planning.loss_error(losses)
    _log.warning("records are gone, reading goes on: %s", planning.describe(losses))
