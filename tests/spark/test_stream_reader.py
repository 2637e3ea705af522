from __future__ import annotations

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from raftlog_spark.errors import ClusterUnavailable
from raftlog_spark.options import OptionsError, source_options
from raftlog_spark.source.offsets import JsonOffset, OffsetFormatError
from raftlog_spark.source.planning import DataLossError
from raftlog_spark.source.readers import (
    CATCH_UP_WAIT_S,
    IDLE_WAIT_S,
    LAG_INTERVAL_S,
    StreamReader,
)

from tests.spark.fake_cluster import FakeCluster

ALL = ReadAllAvailable()


class Clock:
    """Time that advances only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def cluster() -> FakeCluster:
    fake = FakeCluster()
    fake.create("t", 2)
    fake.append("t", 0, 10)
    fake.append("t", 1, 4)
    return fake


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(cluster: FakeCluster, clock: Clock) -> MakeReader:
    return MakeReader(cluster, clock)


class MakeReader:
    """Makes readers of topic t on the fake cluster, as Spark does at every start of a query."""

    def __init__(self, cluster: FakeCluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    def __call__(self, **options: str) -> StreamReader:
        given = {"bootstrap.servers": "h:1", "subscribe": "t"} | options
        if {"assign", "subscribePattern"} & options.keys():
            del given["subscribe"]
        return StreamReader(
            source_options(given).for_mode("stream"),
            ("offset",),
            connect=lambda servers: self._cluster,
            clock=self._clock,
            sleep=self._clock.sleep,
            wall=self._clock,
        )


def through_checkpoint(offset: JsonOffset) -> JsonOffset:
    loaded: JsonOffset = json.loads(json.dumps(offset))
    return loaded


def step(reader: StreamReader, start: JsonOffset, limit: ReadLimit = ALL) -> JsonOffset:
    return through_checkpoint(reader.latestOffset(start, limit))


def planned(reader: StreamReader, start: JsonOffset, end: JsonOffset) -> list[tuple[int, int, int]]:
    """Partition, first and end offset of each task."""
    tasks = [partition.value for partition in reader.partitions(start, end)]
    return [(task.partition, task.start, task.end) for task in tasks]


def begun(make: MakeReader) -> tuple[StreamReader, JsonOffset]:
    """A reader of the whole topic, and the end of its first batch."""
    reader = make(startingOffsets="earliest")
    return reader, step(reader, reader.initialOffset())


def test_the_initial_offset_is_always_the_same_and_asks_nobody(
    make: MakeReader, cluster: FakeCluster
) -> None:
    first = make().initialOffset()
    cluster.append("t", 0, 1)
    assert json.dumps(make().initialOffset()) == json.dumps(first)
    assert not cluster.asked


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"startingOffsets": "earliest"}, [(0, 0, 10), (1, 0, 4)]),
        ({}, []),
        ({"startingOffsets": '{"t": {"0": 7, "1": -2}}'}, [(0, 7, 10), (1, 0, 4)]),
        ({"startingTimestamp": "3"}, [(0, 3, 10), (1, 3, 4)]),
        ({"assign": '{"t": [1]}', "startingOffsets": "earliest"}, [(1, 0, 4)]),
        ({"subscribePattern": "t|u", "startingOffsets": "earliest"}, [(0, 0, 10), (1, 0, 4)]),
    ],
)
def test_a_stream_begins_where_its_options_say(
    make: MakeReader, options: dict[str, str], tasks: list[tuple[int, int, int]]
) -> None:
    reader = make(**options)
    start = reader.initialOffset()
    assert planned(reader, start, step(reader, start)) == tasks


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_first_batch_that_was_not_committed_is_replayed_exactly(
    make: MakeReader, cluster: FakeCluster, starting: str
) -> None:
    reader = make(startingOffsets=starting)
    start = reader.initialOffset()
    end = step(reader, start)
    before = planned(reader, start, end)
    cluster.append("t", 0, 5)
    cluster.create("t", 3)
    restarted = make(startingOffsets=starting)
    assert planned(restarted, through_checkpoint(restarted.initialOffset()), end) == before


def test_latest_means_the_moment_of_the_first_trigger(
    make: MakeReader, cluster: FakeCluster
) -> None:
    reader = make()
    end = step(reader, reader.initialOffset())
    cluster.append("t", 0, 2)
    restarted = make()
    assert planned(restarted, end, step(restarted, end)) == [(0, 10, 12)]


def test_an_idle_trigger_waits_a_little_and_returns_its_start_itself(
    make: MakeReader, cluster: FakeCluster, clock: Clock
) -> None:
    reader, end = begun(make)
    began_s = clock.now_s
    assert reader.latestOffset(end, ALL) is end
    assert 0 < clock.now_s - began_s <= IDLE_WAIT_S


def test_an_idle_trigger_ends_as_soon_as_there_are_records(
    make: MakeReader, cluster: FakeCluster, clock: Clock
) -> None:
    reader, end = begun(make)
    asked = cluster.asked["bounds"]

    def arrive(count: int) -> None:
        if count == asked + 3:
            cluster.append("t", 1, 1)

    cluster.on_bounds = arrive
    began_s = clock.now_s
    assert planned(reader, end, step(reader, end)) == [(1, 4, 5)]
    assert clock.now_s - began_s < IDLE_WAIT_S / 2


def test_a_trigger_with_records_asks_for_bounds_once(
    make: MakeReader, cluster: FakeCluster
) -> None:
    reader, end = begun(make)
    cluster.append("t", 0, 1)
    cluster.asked.clear()
    step(reader, end)
    assert cluster.asked == {"topics": 1, "bounds": 1}


def test_a_topic_deleted_during_an_idle_trigger_is_a_loss(
    make: MakeReader, cluster: FakeCluster
) -> None:
    reader, end = begun(make)
    asked = cluster.asked["bounds"]
    cluster.on_bounds = lambda count: cluster.delete("t") if count == asked + 2 else None
    with pytest.raises(DataLossError, match="the topic is deleted"):
        step(reader, end)


# Limits


def test_the_limit_of_the_options_is_told_to_spark(make: MakeReader) -> None:
    assert make().getDefaultReadLimit() == ALL
    assert make(maxOffsetsPerTrigger="5").getDefaultReadLimit() == ReadMaxRows(5)
    assert make(minOffsetsPerTrigger="5").getDefaultReadLimit() == ReadMinRows(5)
    both = make(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="9")
    assert both.getDefaultReadLimit() == ReadMaxRows(9)


def test_batches_are_no_larger_than_the_limit_and_together_everything(make: MakeReader) -> None:
    reader = make(startingOffsets="earliest", maxOffsetsPerTrigger="3")
    offset = reader.initialOffset()
    read: list[tuple[int, int]] = []
    for _ in range(5):
        end = step(reader, offset, reader.getDefaultReadLimit())
        tasks = planned(reader, offset, end)
        assert sum(last - first for _, first, last in tasks) <= 3
        read += [(part, at) for part, first, last in tasks for at in range(first, last)]
        offset = end
    assert sorted(read) == [(0, n) for n in range(10)] + [(1, n) for n in range(4)]


def test_everything_is_read_when_spark_says_so(make: MakeReader) -> None:
    reader = make(startingOffsets="earliest", maxOffsetsPerTrigger="3")
    start = reader.initialOffset()
    assert planned(reader, start, step(reader, start, ALL)) == [(0, 0, 10), (1, 0, 4)]


def test_too_few_records_wait_for_more_or_for_the_delay(
    make: MakeReader, cluster: FakeCluster, clock: Clock
) -> None:
    reader = make(minOffsetsPerTrigger="5", maxTriggerDelay="1m", startingOffsets="earliest")
    limit = reader.getDefaultReadLimit()
    end = step(reader, reader.initialOffset(), limit)
    cluster.append("t", 0, 3)
    assert reader.latestOffset(end, limit) is end
    cluster.append("t", 1, 2)
    enough = step(reader, end, limit)
    assert planned(reader, end, enough) == [(0, 10, 13), (1, 4, 6)]
    cluster.append("t", 0, 1)
    assert reader.latestOffset(enough, limit) is enough
    clock.sleep(60)
    assert planned(reader, enough, step(reader, enough, limit)) == [(0, 13, 14)]


def test_a_trigger_that_reads_all_there_is_does_not_wait_for_more(
    make: MakeReader, cluster: FakeCluster
) -> None:
    reader = make(minOffsetsPerTrigger="5", startingOffsets="earliest")
    end = step(reader, reader.initialOffset())
    cluster.append("t", 0, 1)
    assert planned(reader, end, step(reader, end, ALL)) == [(0, 10, 11)]


def test_large_ranges_are_cut_for_more_tasks(make: MakeReader) -> None:
    reader = make(startingOffsets="earliest", maxRecordsPerPartition="4")
    start = reader.initialOffset()
    assert len(planned(reader, start, step(reader, start))) == 4


# Runs over the existing records


def test_available_now_reads_what_was_there_when_it_began_and_ends(
    make: MakeReader, cluster: FakeCluster, clock: Clock
) -> None:
    reader = make(startingOffsets="earliest", maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10")
    reader.prepareForTriggerAvailableNow()
    cluster.append("t", 0, 100)
    cluster.create("t", 3)
    cluster.append("t", 2, 1)
    began_s = clock.now_s
    offset = reader.initialOffset()
    sizes: list[int] = []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) is not offset:
        sizes.append(sum(last - first for _, first, last in planned(reader, offset, end)))
        offset = through_checkpoint(end)
    assert sizes == [10, 4]
    assert clock.now_s == began_s


# Changes of the topic


def test_added_partitions_are_read_from_their_first_record(
    make: MakeReader, cluster: FakeCluster
) -> None:
    reader, end = begun(make)
    cluster.create("t", 3)
    cluster.append("t", 2, 2)
    assert planned(reader, end, step(reader, end)) == [(2, 0, 2)]


def test_a_topic_that_begins_to_match_is_read_from_its_first_record(
    make: MakeReader, cluster: FakeCluster
) -> None:
    reader = make(subscribePattern="new.*")
    end = step(reader, reader.initialOffset())
    cluster.create("new1")
    cluster.append("new1", 0, 2)
    restarted = make(subscribePattern="new.*")
    assert planned(restarted, end, step(restarted, end)) == [(0, 0, 2)]


def test_a_topic_that_does_not_exist_is_an_error_at_the_start(make: MakeReader) -> None:
    reader = make(subscribe="nope")
    with pytest.raises(OptionsError, match=r"topic nope does not exist.*topics there: t"):
        step(reader, reader.initialOffset())


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_topic_recreated_fails_the_stream_or_is_read_from_its_start(
    make: MakeReader, cluster: FakeCluster, is_strict: bool
) -> None:
    _, end = begun(make)
    cluster.delete("t")
    cluster.create("t", topic_id="another")
    cluster.append("t", 0, 12)
    reader = make(failOnDataLoss=str(is_strict))
    if is_strict:
        with pytest.raises(DataLossError, match="deleted and created again"):
            step(reader, end)
    else:
        assert planned(reader, end, step(reader, end)) == [(0, 0, 12)]


@pytest.mark.parametrize("is_strict", [True, False])
def test_retention_that_overtakes_fails_the_stream_or_skips(
    make: MakeReader, cluster: FakeCluster, is_strict: bool
) -> None:
    _, end = begun(make)
    cluster.append("t", 0, 10)
    cluster.log_starts["t", 0] = 15
    reader = make(failOnDataLoss=str(is_strict))
    if is_strict:
        with pytest.raises(DataLossError, match="begins at 15 by now"):
            step(reader, end)
    else:
        assert planned(reader, end, step(reader, end)) == [(0, 15, 20)]


def test_starting_offsets_that_are_gone_fail_the_stream_or_are_moved(
    make: MakeReader, cluster: FakeCluster
) -> None:
    cluster.log_starts["t", 0] = 5
    options = {"startingOffsets": '{"t": {"0": 3, "1": 9}}'}
    with pytest.raises(DataLossError, match=r"nothing before 5.*t/1 ends at 4"):
        step(make(**options), make().initialOffset())
    reader = make(**options, failOnDataLoss="false")
    start = reader.initialOffset()
    assert planned(reader, start, step(reader, start)) == [(0, 5, 10)]


def test_an_end_that_a_new_leader_has_to_catch_up_with_is_waited_for(
    make: MakeReader, cluster: FakeCluster
) -> None:
    reader, end = begun(make)
    whole = cluster.logs["t", 0]
    cluster.logs["t", 0] = whole[:8]
    asked = cluster.asked["bounds"]

    def catch_up(count: int) -> None:
        if count == asked + 4:
            cluster.logs["t", 0] = [*whole, b"new"]

    cluster.on_bounds = catch_up
    assert planned(reader, end, step(reader, end)) == [(0, 10, 11)]


def test_an_end_that_stays_back_is_a_loss(
    make: MakeReader, cluster: FakeCluster, clock: Clock
) -> None:
    reader, end = begun(make)
    del cluster.logs["t", 0][8:]
    began_s = clock.now_s
    with pytest.raises(DataLossError, match="ends at 8, though 10 was reached"):
        step(reader, end)
    assert clock.now_s - began_s >= CATCH_UP_WAIT_S


def test_a_checkpoint_of_another_source_is_refused(make: MakeReader) -> None:
    with pytest.raises(OffsetFormatError, match="checkpoint"):
        step(make(), {"t": {"0": 3}})


def test_progress_reports_show_the_ends_that_were_seen(make: MakeReader) -> None:
    reader = make()
    assert reader.reportLatestOffset() is None
    step(reader, reader.initialOffset())
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert latest["offsets"] == {"t": {"0": 10, "1": 4}}


def test_a_reader_that_is_connected_goes_to_executors(cluster: FakeCluster) -> None:
    options = source_options({"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    reader = StreamReader(options, ("offset",))
    reader._cluster = cluster
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._cluster is None
    reader.stop()
    assert cluster.is_closed


def test_processed_offsets_are_committed_to_the_named_group(
    make: MakeReader, cluster: FakeCluster
) -> None:
    reader = make(startingOffsets="earliest", commitToGroup="g")
    end = step(reader, reader.initialOffset())
    assert not cluster.committed, "the first batch has not been read"
    assert step(reader, end) == end
    first = ("g", {("t", 0): 10, ("t", 1): 4}, {"t": "id"})
    assert cluster.committed == [first]
    step(reader, end)
    assert cluster.committed == [first], "nothing is new"
    cluster.append("t", 1, 1)
    step(reader, step(reader, end))
    assert cluster.committed == [first, ("g", {("t", 0): 10, ("t", 1): 5}, {"t": "id"})]
    step(make(), end)
    assert len(cluster.committed) == 2, "no group is named"


def test_a_group_that_takes_no_offsets_does_not_end_the_query(
    make: MakeReader, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refusal = ClusterUnavailable("it has members")
    reader = make(startingOffsets="earliest", commitToGroup="g")
    end = step(reader, reader.initialOffset())
    for _ in range(3):
        assert step(reader, end) == end
    assert caplog.text.count("offsets of group 'g'") == 1
    assert "it has members" in caplog.text


def lag(reader: StreamReader) -> object:
    latest = reader.reportLatestOffset()
    assert latest is not None
    return latest["lag"]


def test_progress_tells_what_waits_and_for_how_long(
    make: MakeReader, cluster: FakeCluster, clock: Clock
) -> None:
    reader = make(startingOffsets="earliest")
    offset = step(reader, reader.initialOffset(), ReadMaxRows(7))
    assert lag(reader) == {"records": 7, "seconds": clock() - 5}, "partition 0 from offset 5 on"
    offset = step(reader, offset, ReadMaxRows(3))
    lag(reader)
    assert cluster.asked["written"] == 1, "not with every trigger"
    clock.sleep(LAG_INTERVAL_S)
    offset = step(reader, offset, ReadMaxRows(1))
    assert lag(reader) != {"records": 0, "seconds": 0.0}
    assert cluster.asked["written"] == 2
    step(reader, offset)
    assert lag(reader) == {"records": 0, "seconds": 0.0}


def test_an_age_that_nobody_tells_is_not_known(make: MakeReader, cluster: FakeCluster) -> None:
    cluster.refusal = ClusterUnavailable("no leader")
    reader = make(startingOffsets="earliest")
    step(reader, reader.initialOffset(), ReadMaxRows(4))
    assert lag(reader) == {"records": 10, "seconds": None}
