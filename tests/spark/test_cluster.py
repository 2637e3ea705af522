"""Synchronous access: from any thread, any process, to one node or three of which one dies."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from raftlog_client import Admin
from raftlog_spark import cluster as connecting
from raftlog_spark import errors
from raftlog_spark.cluster import Background, Bounds, Cluster, TopicInfo
from raftlog_spark.errors import ClusterUnavailable, RaftlogSparkError, TopicGone

from bench import cluster as bench_cluster
from bench.node import LoneNode
from raftlog.record.errors import NOT_READY
from tests.client.fake_node import FakeCluster, Fault
from tests.spark.fault_parts import make_whole
from tests.spark.query_parts import append, blocking, encoded, values_in
from tests.spark.sink_parts import TIMEOUT_S, create, leader


@pytest.fixture
def running() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


def test_a_long_wait_is_logged_and_goes_on(
    running: Background, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connecting, "WAIT_LOGGED_S", 0.01)

    async def until_logged_twice() -> str:
        while caplog.text.count("waiting for raftlog") < 2:  # noqa: ASYNC110  a log has no event
            await asyncio.sleep(0.005)
        return "done"

    with caplog.at_level(logging.WARNING):
        assert running.run(until_logged_twice(), "reading 't'") == "done"
    assert "s: reading 't'" in caplog.text


def test_the_error_of_the_work_is_the_caller_s(
    running: Background, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        running.run(fail(), "failing")
    assert not caplog.text


OFFSETS = "/v1/offsets"


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    """Two nodes; the topics `t` of three partitions and `u` of one."""
    async with FakeCluster(2) as cluster:
        cluster.create_topic("t", 3)
        cluster.create_topic("u", 1)
        yield cluster


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Cluster]:
    with Cluster(fake.bootstrap, request_timeout_s=5.0) as one:
        yield one


def threads() -> int:
    return sum(thread.name == "raftlog-spark" for thread in threading.enumerate())


async def make_topic(address: str, name: str, partitions: int = 1, replicas: int = 1) -> None:
    async with Admin(bootstrap_servers=address) as admin:
        # The records' timestamps are years old.
        await admin.create_topic(
            name,
            partitions=partitions,
            replication_factor=replicas,
            configs={"retention.ms": "-1"},
        )


async def delete_topic(address: str, name: str) -> None:
    async with Admin(bootstrap_servers=address) as admin:
        await admin.delete_topic(name)


def test_all_of_it_on_a_real_node(spark_node: LoneNode) -> None:
    asyncio.run(make_topic(spark_node.address, "all", partitions=3))
    with Cluster(spark_node.address) as cluster:
        info = cluster.topics()["all"]
        assert info.partitions == 3
        assert cluster.bounds(["all"], isolation="read_committed") == {
            ("all", number): Bounds(0, 0) for number in range(3)
        }
        values = [b"%05d" % number for number in range(1000)]
        with cluster.writer("all") as writer:
            for start in range(0, 1000, 10):
                data = encoded(*values[start : start + 10], timestamp_ms=1_000 + start)
                writer.write(1, data, 10)
            assert writer.flush().records == 1000
        bounds = cluster.bounds(["all"], isolation="read_uncommitted")
        assert bounds["all", 1] == Bounds(0, 1000)
        chunks = cluster.read("all", info.topic_id, 1, 15, 985, fetch_bytes=3_000)
        assert values_in(chunks, 15, 985) == values[15:985]
        times = {("all", 1): 1_015, ("all", 0): 0}
        assert cluster.offsets_for_times(times) == {("all", 1): 20, ("all", 0): None}
        asyncio.run(delete_topic(spark_node.address, "all"))
        with pytest.raises(TopicGone, match="all"):
            cluster.bounds(["all"], isolation="read_committed")
        asyncio.run(make_topic(spark_node.address, "all"))
        with pytest.raises(errors.TopicRecreated) as caught:
            list(cluster.read("all", info.topic_id, 0, 0, 10))
        assert caught.value.topic_id == info.topic_id
        assert caught.value.found_id == cluster.topics()["all"].topic_id


def test_a_forked_process_connects_again_and_leaves_its_parents_connections_alone(
    spark_node: LoneNode,
) -> None:
    asyncio.run(make_topic(spark_node.address, "fork", partitions=1))
    with Cluster(spark_node.address) as cluster:
        info = cluster.topics()["fork"]
        with cluster.writer("fork") as writer:
            writer.write(0, encoded(b"a", b"b"), 2)
        child = os.fork()
        if not child:
            # Nothing of the test's own may run in here.
            code = 1
            try:
                found = values_in(cluster.read("fork", info.topic_id, 0, 0, 2))
                cluster.close()
                code = 0 if found == [b"a", b"b"] and not threads() else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert values_in(cluster.read("fork", info.topic_id, 0, 0, 2)) == [b"a", b"b"]


async def test_topics_and_their_ids(fake: FakeCluster, cluster: Cluster) -> None:
    topics = await blocking(cluster.topics)
    assert topics == {
        "t": TopicInfo(fake.topics["t"].topic_id, 3),
        "u": TopicInfo(fake.topics["u"].topic_id, 1),
    }


async def test_bounds_of_all_partitions_are_one_call(fake: FakeCluster, cluster: Cluster) -> None:
    await append(f"127.0.0.1:{fake.nodes[0].port}", "t", 0, [encoded(b"a"), encoded(b"b", b"c")])
    fake.topics["t"].partitions[0].log_start_offset = 1
    fake.topics["t"].partitions[0].unstable_count = 1
    bounds = await blocking(lambda: cluster.bounds(["t", "u"], isolation="read_uncommitted"))
    assert fake.requests[OFFSETS] == 1
    empty = Bounds(0, 0)
    assert bounds == {
        ("t", 0): Bounds(1, 3),
        ("t", 1): empty,
        ("t", 2): empty,
        ("u", 0): empty,
    }
    bounds = await blocking(lambda: cluster.bounds(["t"], isolation="read_committed"))
    assert bounds["t", 0] == Bounds(1, 2)
    assert await blocking(lambda: cluster.bounds([], isolation="read_committed")) == {}


async def test_more_partitions_than_a_call_may_name_are_several_calls(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_client.offsets.PARTITIONS_PER_CALL_MAX", 2)
    bounds = await blocking(lambda: cluster.bounds(["t", "u"], isolation="read_uncommitted"))
    assert (len(bounds), fake.requests[OFFSETS]) == (4, 3)
    times = dict.fromkeys(bounds, 0)
    assert len(await blocking(lambda: cluster.offsets_for_times(times))) == 4
    assert fake.requests["/v1/offsets-for-times"] == 2


async def test_only_what_has_no_leader_is_asked_for_again(
    fake: FakeCluster, cluster: Cluster
) -> None:
    partition = fake.topics["t"].partitions[1]
    before = partition.leader
    partition.lead(-1)
    asking = asyncio.create_task(
        blocking(lambda: cluster.bounds(["t"], isolation="read_uncommitted"))
    )
    await asyncio.wait_for(fake.wait_for_requests(OFFSETS, 3), 5.0)
    assert not asking.done()
    partition.lead(before)
    assert len(await asking) == 3


async def test_a_partition_without_leader_is_an_error_in_the_end(fake: FakeCluster) -> None:
    fake.topics["t"].partitions[1].lead(-1)
    with (
        Cluster(fake.bootstrap, request_timeout_s=0.3) as cluster,
        pytest.raises(ClusterUnavailable, match="t-1"),
    ):
        await blocking(lambda: cluster.bounds(["t"], isolation="read_uncommitted"))


async def test_offsets_for_times_of_each_partition(fake: FakeCluster, cluster: Cluster) -> None:
    batches = [encoded(b"a", timestamp_ms=10), encoded(b"b", timestamp_ms=20)]
    await append(f"127.0.0.1:{fake.nodes[0].port}", "t", 0, batches)
    times = {("t", 0): 11, ("t", 1): 0}
    found = await blocking(lambda: cluster.offsets_for_times(times))
    assert found == {("t", 0): 1, ("t", 1): None}
    assert await blocking(lambda: cluster.offsets_for_times({})) == {}


async def test_a_topic_that_does_not_exist_is_named(fake: FakeCluster, cluster: Cluster) -> None:
    with pytest.raises(TopicGone) as caught:
        await blocking(lambda: cluster.bounds(["t", "v"], isolation="read_committed"))
    assert caught.value.topic == "v"
    with pytest.raises(TopicGone) as caught:
        await blocking(lambda: cluster.offsets_for_times({("t", 0): 1, ("w", 0): 1}))
    assert caught.value.topic == "w"


async def test_refusals_that_pass_are_tried_again(fake: FakeCluster, cluster: Cluster) -> None:
    fake.fail(OFFSETS, Fault(error=NOT_READY), Fault(drop_before=True))
    assert await blocking(lambda: cluster.bounds(["u"], isolation="read_committed"))
    fake.fail(OFFSETS, Fault(answer=b'{"topics": {"u": {}}}'))
    with pytest.raises(RaftlogSparkError, match="malformed"):
        await blocking(lambda: cluster.bounds(["u"], isolation="read_committed"))


async def test_it_works_where_a_loop_is_running(fake: FakeCluster) -> None:
    """As in a notebook: the call blocks this very loop, so the node is in another thread's."""
    started, done = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        async with FakeCluster(1) as other:
            other.create_topic("x", 2)
            address.append(other.bootstrap)
            started.set()
            await asyncio.to_thread(done.wait, 20.0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait(20.0)
    try:
        with Cluster(address[0]) as cluster:
            assert cluster.topics()["x"].partitions == 2
    finally:
        done.set()
        thread.join()


async def test_a_cluster_pickles_as_its_settings(fake: FakeCluster, cluster: Cluster) -> None:
    await blocking(cluster.topics)
    with pickle.loads(pickle.dumps(cluster)) as copy:
        assert await blocking(copy.topics) == await blocking(cluster.topics)


async def test_nothing_is_begun_before_it_is_needed_and_nothing_is_left(
    fake: FakeCluster,
) -> None:
    before = threads()
    cluster = Cluster(fake.bootstrap)
    assert threads() == before
    cluster.close()
    for _ in range(2):
        await blocking(cluster.topics)
        assert threads() == before + 1
        await blocking(cluster.close)
        assert threads() == before
        cluster.close()


def test_bad_settings_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="bootstrap_servers"):
        Cluster("h:x")
    with pytest.raises(ValueError, match="request_timeout_s"):
        Cluster("h:1", request_timeout_s=0)
    with Cluster("h:1") as cluster, pytest.raises(ValueError, match="isolation"):
        cluster.bounds(["t"], isolation="none")


def test_no_cluster_is_told_with_what_to_do() -> None:
    with (
        Cluster("127.0.0.1:1", request_timeout_s=0.3) as cluster,
        pytest.raises(ClusterUnavailable, match="try again"),
    ):
        cluster.topics()


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnavailable("why"),
        TopicGone("why", topic="t", topic_id="x"),
        errors.TopicRecreated("why", topic="t", topic_id="x", found_id="y"),
        errors.OffsetOutOfRange("why", topic="t", partition=1, offset=2, lowest=3),
        errors.WriteFailed("why", topic="t", outcome_unknown=True),
    ],
)
def test_errors_pickle_with_their_facts(error: RaftlogSparkError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, copy.__dict__) == (type(error), error.args, error.__dict__)
    assert str(copy) == "why"


def test_a_leader_that_is_killed_costs_neither_readers_nor_writers_a_record(
    spark_cluster: bench_cluster.Cluster, topic_name: str
) -> None:
    count, size = 300, 20
    values = [b"%06d" % number * 100 for number in range(count * size)]
    half = threading.Event()
    go_on = threading.Event()
    servers = spark_cluster.servers
    topic = create(servers, topic_name, 1, replicas=3)

    def write(cluster: Cluster) -> int:
        with cluster.writer(topic) as writer:
            for number in range(count):
                writer.write(0, encoded(*values[number * size : (number + 1) * size]), size)
                if number == count // 2:
                    half.set()
                    go_on.wait(20.0)
            return writer.flush().records

    with Cluster(servers) as cluster:
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write, cluster)
            assert half.wait(20.0)
            # Some batches are in flight at this moment.
            spark_cluster.kill(leader(servers, topic))
            go_on.set()
            assert writing.result(TIMEOUT_S) == count * size
        make_whole(spark_cluster)

        info = cluster.topics()[topic]
        whole = {(topic, 0): Bounds(0, count * size)}
        assert cluster.bounds([topic], isolation="read_committed") == whole
        chunks = cluster.read(topic, info.topic_id, 0, 0, count * size, fetch_bytes=100_000)
        taken = [next(chunks) for _ in range(3)]
        spark_cluster.kill(leader(servers, topic))
        taken += chunks
        assert values_in(taken) == values
        assert cluster.bounds([topic], isolation="read_committed") == whole
