from __future__ import annotations

import pytest
from raftlog_spark.options import source_options
from raftlog_spark.source.planning import DataLossError, Range
from raftlog_spark.source.readers import read_task

from tests.spark.fake_cluster import FakeCluster

STRICT = source_options({"bootstrap.servers": "h:1", "subscribe": "t"})
LENIENT = source_options({"bootstrap.servers": "h:1", "subscribe": "t", "failOnDataLoss": "false"})


@pytest.fixture
def cluster() -> FakeCluster:
    fake = FakeCluster()
    fake.create("t")
    fake.append("t", 0, 20)
    return fake


def offsets(cluster: FakeCluster, task: Range | None, *, strict: bool = True) -> list[int]:
    options = STRICT if strict else LENIENT
    batches = read_task(options, ("offset",), task, connect=lambda servers: cluster)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_task_reads_its_range_and_closes_its_connection(cluster: FakeCluster) -> None:
    assert offsets(cluster, Range("t", "id", 0, 5, 9)) == [5, 6, 7, 8]
    assert cluster.is_closed


def test_the_task_of_an_empty_plan_reads_nothing_and_asks_nobody(cluster: FakeCluster) -> None:
    assert offsets(cluster, None) == []
    assert not cluster.asked


def test_records_deleted_since_the_plan_fail_the_task(cluster: FakeCluster) -> None:
    cluster.log_starts["t", 0] = 7
    with pytest.raises(DataLossError, match=r"offsets 5 to 6 were deleted.*failOnDataLoss=false"):
        offsets(cluster, Range("t", "id", 0, 5, 9))


@pytest.mark.parametrize(("log_start", "left"), [(7, [7, 8]), (9, []), (15, [])])
def test_a_query_that_may_lose_records_reads_what_is_left(
    cluster: FakeCluster, log_start: int, left: list[int]
) -> None:
    cluster.log_starts["t", 0] = log_start
    assert offsets(cluster, Range("t", "id", 0, 5, 9), strict=False) == left


def test_records_deleted_while_they_are_read_come_once(cluster: FakeCluster) -> None:
    found: list[int] = []
    task = Range("t", "id", 0, 0, 12)
    for batch in read_task(LENIENT, ("offset",), task, connect=lambda servers: cluster):
        found += batch.column("offset").to_pylist()
        cluster.log_starts["t", 0] = 6
    assert found == [0, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("again", [True, False])
def test_a_topic_deleted_since_the_plan_is_a_loss(cluster: FakeCluster, again: bool) -> None:
    cluster.delete("t")
    if again:
        cluster.create("t", topic_id="another")
        cluster.append("t", 0, 20)
    task = Range("t", "id", 0, 5, 9)
    assert offsets(cluster, task, strict=False) == []
    with pytest.raises(DataLossError, match="the topic was deleted"):
        offsets(cluster, task)
