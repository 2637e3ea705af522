from __future__ import annotations

import pytest
from raftlog_spark.cluster import Bounds
from raftlog_spark.errors import TopicGone
from raftlog_spark.options import OptionsError, source_options
from raftlog_spark.source.offsets import LATEST, SameTime
from raftlog_spark.source.planning import Snapshot
from raftlog_spark.source.readers import (
    SNAPSHOT_ATTEMPTS_MAX,
    refresh,
    resolve_point,
    take_snapshot,
)

from tests.spark.fake_cluster import FakeCluster

OPTIONS = source_options({"bootstrap.servers": "h:1", "subscribePattern": "t.*"})


@pytest.fixture
def cluster() -> FakeCluster:
    fake = FakeCluster()
    for topic in ("t1", "t2", "u"):
        fake.create(topic)
        fake.append(topic, 0, 5)
    return fake


def test_a_snapshot_takes_two_calls_and_a_later_look_one(cluster: FakeCluster) -> None:
    snapshot = take_snapshot(cluster, OPTIONS, must_exist=True)
    bounds = {("t1", 0): Bounds(0, 5), ("t2", 0): Bounds(0, 5)}
    assert snapshot == Snapshot({"t1": "id", "t2": "id"}, bounds)
    assert cluster.asked == {"topics": 1, "bounds": 1}
    cluster.append("t2", 0, 1)
    assert refresh(cluster, OPTIONS, snapshot).bounds["t2", 0] == Bounds(0, 6)
    assert cluster.asked == {"topics": 1, "bounds": 2}


def test_a_topic_that_disappears_in_between_is_not_in_the_snapshot(cluster: FakeCluster) -> None:
    cluster.on_bounds = lambda count: cluster.delete("t1") if count == 1 else None
    assert take_snapshot(cluster, OPTIONS, must_exist=True).topic_ids == {"t2": "id"}


def test_topics_that_disappear_all_the_time_are_an_error(cluster: FakeCluster) -> None:
    def always(count: int) -> None:
        cluster.delete(f"t{count}")
        cluster.create(f"t{count + 1}")

    cluster.on_bounds = always
    with pytest.raises(TopicGone):
        take_snapshot(cluster, OPTIONS, must_exist=False)
    assert cluster.asked["bounds"] == SNAPSHOT_ATTEMPTS_MAX


def test_a_topic_that_is_named_must_exist_if_the_caller_says_so(cluster: FakeCluster) -> None:
    named = source_options({"bootstrap.servers": "h:1", "subscribe": "t1,v"})
    assert take_snapshot(cluster, named, must_exist=False).topic_ids == {"t1": "id"}
    with pytest.raises(OptionsError, match=r"topic v does not exist on h:1: .*\(topics there: t1,"):
        take_snapshot(cluster, named, must_exist=True)


def test_nothing_to_read_asks_for_no_bounds(cluster: FakeCluster) -> None:
    nothing = source_options({"bootstrap.servers": "h:1", "subscribePattern": "x"})
    assert take_snapshot(cluster, nothing, must_exist=True) == Snapshot({}, {})
    assert cluster.asked["bounds"] == 0


def test_times_are_asked_for_only_if_a_point_has_them(cluster: FakeCluster) -> None:
    snapshot = take_snapshot(cluster, OPTIONS, must_exist=True)
    assert resolve_point(cluster, LATEST, snapshot) == ({("t1", 0): 5, ("t2", 0): 5}, ())
    assert cluster.asked["times"] == 0
    resolved, _ = resolve_point(cluster, SameTime(3, "error"), snapshot)
    assert resolved == {("t1", 0): 3, ("t2", 0): 3}
