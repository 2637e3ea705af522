"""What a node tells of its replicas and of the cluster, in the field's names."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from prometheus_client.core import Metric

from raftlog.coordinator.shard.status import CoordinatorStatus, GroupLag
from raftlog.http.metrics import LoopLag, coordinator_metrics, service_metrics
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.record.types import BrokerId
from raftlog.replication.manager import ReplicationStatus, count_led
from raftlog.replication.partition import Acks
from raftlog.world.time import SystemClock
from tests.replication.one_node import OneNode
from tests.replication.pair import ack, attach, nodes, one, row, send

from .fakes import FakeNode

MANAGER = "kafka_server_replicamanager"
CONTROLLER = "kafka_controller_kafkacontroller"


def samples(node: FakeNode) -> dict[tuple[str, str], float]:
    """By name and label."""
    families: list[Metric] = list(service_metrics(node.services, 10))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def put(image: MetadataImage, *rows: PartitionImage) -> None:
    topic = image.topics_by_name["t"]
    topic = replace(topic, partitions=rows)
    image.topics_by_name["t"] = image.topics_by_id[topic.topic_id] = topic


async def test_partitions_are_counted_by_the_applied_metadata() -> None:
    node = FakeNode(brokers=3)
    await node.metadata.create_topic("t", partitions=1)
    put(
        node.metadata.image,
        row(1, 1, replicas=(1, 2, 3), isr=(1, 2, 3)),
        row(1, 1, replicas=(1, 2, 3), isr=(1, 2)),
        row(1, 1, replicas=(2, 1), isr=(1,)),
        row(2, 1, replicas=(2, 1), isr=(2,)),
        row(3, 1, replicas=(3,), isr=(3,)),
        row(NO_LEADER_ID, 1, replicas=(3, 1), isr=()),
    )
    found = samples(node)
    assert found[f"{MANAGER}_partitioncount", ""] == 5
    assert found[f"{MANAGER}_leadercount", ""] == 3
    assert found[f"{MANAGER}_underreplicatedpartitions", ""] == 2
    assert found[f"{CONTROLLER}_globalpartitioncount", ""] == 6
    assert found[f"{CONTROLLER}_offlinepartitionscount", ""] == 1
    assert found[f"{CONTROLLER}_preferredreplicaimbalancecount", ""] == 2


async def test_what_replication_says_has_the_names_of_the_field() -> None:
    node = FakeNode(brokers=3)
    node.replication = ReplicationStatus(
        isr_shrinks=1,
        isr_expands=2,
        under_min_isr=3,
        at_min_isr=4,
        bytes_in=5,
        bytes_out=6,
        leaders_connected=7,
        followers_connected=8,
        lag_records={BrokerId(3): 9, BrokerId(2): 0},
        offline=10,
        distrusted=11,
        repairs=12,
        repairs_postponed=15,
        requests_forwarded=13,
        requests_taken=14,
    )
    found = samples(node)
    expected = {
        f"{MANAGER}_isrshrinks_total": 1,
        f"{MANAGER}_isrexpands_total": 2,
        f"{MANAGER}_underminisrpartitioncount": 3,
        f"{MANAGER}_atminisrpartitioncount": 4,
        "kafka_server_brokertopicmetrics_replicationbytesin_total": 5,
        "kafka_server_brokertopicmetrics_replicationbytesout_total": 6,
        "raftlog_replication_leaders_connected": 7,
        "raftlog_replication_followers_connected": 8,
        f"{MANAGER}_offlinereplicacount": 10,
        "raftlog_replication_distrusted_replicas": 11,
        "raftlog_replication_repairs": 12,
        "raftlog_replication_repairs_postponed": 15,
        "raftlog_forwarding_requests_sent_total": 13,
        "raftlog_forwarding_requests_taken_total": 14,
        "raftlog_log_scrubbed_bytes_total": 4096,
        "raftlog_log_scrub_damage_total": 2,
        "raftlog_log_producer_ids": 4,
        "raftlog_log_producer_ids_refused_total": 3,
        "raftlog_clock_skew_seconds": -1.5,
    }
    assert {name: found[name, ""] for name in expected} == expected
    assert found["raftlog_replication_follower_lag_records_max", "2"] == 0
    assert found["raftlog_replication_follower_lag_records_max", "3"] == 9


async def test_the_lag_of_a_follower_is_what_it_does_not_have_durably() -> None:
    leader, follower = nodes(1, 2)
    await leader.open(row(1, 1, replicas=(1, 2)))
    await follower.open(row(1, 1, replicas=(1, 2)))
    for values in ((b"a", b"b"), (b"c",)):
        await leader.partition.append(one(*values), acks=Acks.LEADER, timeout_s=60)
    assert count_led([leader.partition]).lag_records == {2: 3}, "nothing was heard of it"
    feed = attach(leader, follower)
    await send(leader, follower)
    assert count_led([leader.partition]).lag_records == {2: 3}
    ack(leader, follower, feed)
    assert count_led([leader.partition, follower.partition]).lag_records == {2: 0}
    await leader.partition.log.flush()
    leader.partition.update(row(1, 1, replicas=(1, 2), isr=(1,), partition_epoch=99), 2)
    counted = count_led([leader.partition])
    assert (counted.under_min_isr, counted.at_min_isr) == (1, 0)
    leader.partition.update(row(1, 1, replicas=(1, 2), isr=(1,), partition_epoch=100), 1)
    counted = count_led([leader.partition])
    assert (counted.under_min_isr, counted.at_min_isr) == (0, 1)


def test_labels_of_groups_are_bounded_and_the_largest_lags_have_them() -> None:
    node = FakeNode()
    status = CoordinatorStatus(
        groups=Counter({("classic", "stable"): 2}),
        consumer_instances=5,
        transactions=Counter({"prepared": 3}),
        oldest_transaction_ms=1_500,
        parked_transactions=2,
        lags=[GroupLag("b", "t", 9), GroupLag("a", "t", 5), GroupLag("a", "u", 1)],
        other_lags=10,
    )
    node.services.coordination = lambda: status
    node.services.replicas.led = lambda: iter(
        SimpleNamespace(topic=topic, high_watermark=9, last_stable_offset=stable)
        for topic, stable in (("t", 4), ("t", 2), ("u", 9), ("v", 8))
    )
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in coordinator_metrics(node.services, 1)
        for sample in family.samples
    }
    assert found["raftlog_groups", "classic", "stable"] == 2
    assert found["raftlog_consumer_instances",] == 5
    assert found["raftlog_transactions", "prepared"] == 3
    assert found["raftlog_transaction_seconds_max",] == 1.5
    assert found["raftlog_transactions_parked",] == 2
    lags = {key[1:]: value for key, value in found.items() if "group_lag" in key[0]}
    assert lags == {("b", "t"): 9, ("__other__", "__other__"): 16}
    held = {key[1]: value for key, value in found.items() if "stable_offset" in key[0]}
    assert held == {"t": 7, "__other__": 1}


async def test_changes_of_in_sync_sets_are_counted_by_their_leader() -> None:
    node = OneNode()
    await node.open()
    node.create(1, 2, 3)
    await node.settled()
    replicas = node.replicas
    node.fence(3)
    node.change(isr=(1,))
    assert (replicas.isr_shrinks, replicas.isr_expands) == (1, 0)
    node.change(isr=(1, 2), unclean=True)
    assert (replicas.isr_shrinks, replicas.isr_expands) == (1, 1)
    node.change(leader=2)
    node.change(isr=(2,))
    assert (replicas.isr_shrinks, replicas.isr_expands) == (1, 1), "it is another one's"
    assert replicas.offline_count == 0
    node.here().log.declare_damaged("for a test")
    assert replicas.offline_count == 1
    await node.close()


async def test_lag_of_the_event_loop_is_its_timers_delay_and_the_loops_own_work_in_it() -> None:
    class LateClock(SystemClock):
        """Its sleeps take as long as the test says, at once."""

        now = 0.0

        def monotonic(self) -> float:
            return self.now

        async def sleep(self, seconds: float) -> None:
            nonlocal thread_time_s
            delay_s, worked_s = next(delays)
            intervals_s.append(seconds)
            self.now += seconds + delay_s
            thread_time_s += worked_s
            await asyncio.sleep(0)

    thread_time_s = 0.0
    intervals_s: list[float] = []
    # Delay, and processor time of the loop's thread meanwhile: in the last two, the machine had no
    # processor for the loop; in the first the loop worked before the timer was due.
    delays = iter([(0.0, 0.02), (0.003, 0.02), (0.07, 0.08), (0.3, 0.004), (3.0, 0.02)])
    lag = LoopLag(LateClock(), lambda: thread_time_s)
    with pytest.raises(RuntimeError):  # the iterator's end
        await lag.measure()
    found = {
        (sample.name.removeprefix("raftlog_event_loop_"), sample.labels.get("le")): sample.value
        for family in lag.metrics()
        for sample in family.samples
    }
    assert found["lag_seconds_bucket", "0.005"] == 2
    assert found["lag_seconds_bucket", "0.05"] == 2
    assert found["lag_seconds_bucket", "0.1"] == 3
    assert found["lag_seconds_bucket", "2.5"] == 4
    assert found["lag_seconds_bucket", "+Inf"] == found["lag_seconds_count", None] == 5
    assert found["lag_seconds_sum", None] == pytest.approx(3.373)
    assert found["hold_seconds_bucket", "0.0005"] == 1
    assert found["hold_seconds_bucket", "0.05"] == 4
    assert found["hold_seconds_bucket", "0.1"] == found["hold_seconds_count", None] == 5
    assert found["hold_seconds_sum", None] == pytest.approx(0.003 + 0.07 + 0.004 + 0.02)
    assert intervals_s == [0.02] * 5, "it works"


async def test_an_idle_event_loop_is_measured_less_often() -> None:
    class Clock(SystemClock):
        async def sleep(self, seconds: float) -> None:
            nonlocal thread_time_s
            intervals_s.append(seconds)
            thread_time_s += next(worked_s)

    thread_time_s = 0.0
    intervals_s: list[float] = []
    worked_s = iter([0.001, 0.001, 0.001, 0.001, 0.001, 0.05, 0.0])
    with pytest.raises(RuntimeError):  # the iterator's end
        await LoopLag(Clock(), lambda: thread_time_s).measure()
    assert intervals_s == [0.02, 0.04, 0.08, 0.16, 0.16, 0.16, 0.02, 0.04]
