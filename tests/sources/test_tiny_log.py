"""The claims of the Tiny Log notes (gusbicalho), and of the article on Apache ZooKeeper and
replication in Kafka that they quote: light processes, easy membership, simple polls, in-sync sets.

docs/sources.md lists all claims, those with tests elsewhere too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
from click.testing import CliRunner

from bench.cluster import Cluster
from bench.node import LoneNode, MeasuredNode
from raftlog.cli.main import cli
from raftlog.record.errors import NO_LEADER, NOT_ENOUGH_REPLICAS
from raftlog.replication.partition import Acks
from tests.simulation.data.data_world import DataWorld, simulate_data
from tests.sources.simulated import (
    NODES,
    REPLICAS,
    T,
    known_as_committed,
    read_values,
    refusal,
    replica,
    send,
    write_numbered,
)
from tests.waiting import wait_until

ELEVEN: Final = tuple(range(4, 15))
LIGHT_MIB: Final = 100
"""`scripts/bench footprint` measures 60 MiB as its goal; other platforms differ a little."""
LIGHT_THREADS: Final = 16
MIB: Final = 1 << 20
WHOLE_S: Final = 60.0
RECORDS: Final = 20


# In-sync sets


def test_of_eleven_replicas_three_in_sync_commit_and_two_of_these_may_crash() -> None:
    """A majority of eleven would be six."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [ELEVEN], {"min.insync.replicas": "3"}, small_segments=False)
        values = await write_numbered(data)
        await data.in_sync()
        for node_id in ELEVEN[3:]:
            data.nodes.kill(node_id)
        await data.isr(T, *ELEVEN[:3])
        values += await write_numbered(data)
        await known_as_committed(data, len(values), *ELEVEN[:3])
        for node_id in ELEVEN[:2]:
            data.nodes.kill(node_id)
        survivor = ELEVEN[2]
        await data.led(T, survivor)
        assert await read_values(data, survivor, len(values)) == values
        assert (await refusal(data, survivor)).entry is NOT_ENOUGH_REPLICAS
        # Any two of the others make three again.
        for node_id in ELEVEN[-2:]:
            data.nodes.start(node_id)
        await data.isr(T, survivor, *ELEVEN[-2:])
        values += await write_numbered(data)
        assert await read_values(data, ELEVEN[-1], len(values)) == values
        for node_id in ELEVEN[:-2]:
            if node_id != survivor:
                data.nodes.start(node_id)

    simulate_data(test, node_count=ELEVEN[-1])


def test_eleven_replicas_with_three_in_sync_lose_nothing_by_a_third_crash_but_stop() -> None:
    """The eight others lack committed records, so none of them may lead."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [ELEVEN], {"min.insync.replicas": "3"}, small_segments=False)
        await write_numbered(data)
        await data.in_sync()
        for node_id in ELEVEN[3:]:
            data.nodes.kill(node_id)
        await data.isr(T, *ELEVEN[:3])
        await write_numbered(data)
        for node_id in ELEVEN[:3]:
            data.nodes.kill(node_id)
        for node_id in ELEVEN[3:]:
            data.nodes.start(node_id)
        await data.nodes.ready(*ELEVEN[3:])
        assert data.leader(T) is None
        assert (await refusal(data, ELEVEN[3])).entry is NO_LEADER
        data.nodes.start(ELEVEN[0])
        await data.led(T, ELEVEN[0])
        for node_id in ELEVEN[1:3]:
            data.nodes.start(node_id)

    simulate_data(test, node_count=ELEVEN[-1])


def test_a_write_waits_for_the_slowest_of_the_isr_until_that_has_left() -> None:
    """A majority quorum would ignore the slowest."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS], {"min.insync.replicas": "1"})
        await write_numbered(data)
        await data.in_sync()
        leader, fast, slow = REPLICAS
        data.world.pause(slow)
        pending = data.world.loop.create_task(send(data, leader, within_s=5.0))
        await data.nodes.until(lambda: replica(data, fast).log_end_offset == 4)
        assert slow in data.row(T).isr
        assert replica(data, leader).high_watermark == 3
        assert not pending.done()
        assert await pending == "ok"
        assert slow not in data.row(T).isr
        data.world.resume(slow)
        await data.isr(T, *REPLICAS)

    simulate_data(test, node_count=NODES)


def test_each_change_of_the_isr_is_in_the_metadata_that_survives_its_controller() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS])
        await write_numbered(data)
        await data.in_sync()
        data.nodes.kill(REPLICAS[2])
        await data.isr(T, *REPLICAS[:2])
        controller = await data.nodes.until(data.nodes.controller)
        data.nodes.kill(controller)
        successor = await data.nodes.until(
            lambda: next((one for one in [data.nodes.controller()] if one != controller), None)
        )
        row = data.nodes.image(successor).partition("t", 0)
        assert set(row.isr) == set(REPLICAS[:2])
        data.nodes.start(controller)
        data.nodes.start(REPLICAS[2])

    simulate_data(test, node_count=NODES)


def test_a_replica_that_recovers_finds_the_leader_in_the_metadata_and_gets_what_it_missed() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS])
        values = await write_numbered(data)
        await data.in_sync()
        first, *others = REPLICAS
        data.nodes.kill(first)
        await data.led(T, *others)
        values += await write_numbered(data)
        data.nodes.start(first)
        await data.isr(T, *REPLICAS)
        assert await read_values(data, first, len(values)) == values

    simulate_data(test, node_count=NODES)


def test_acks_1_does_not_wait_for_the_isr() -> None:
    """Records beyond the ISR's end are not shown to readers."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [REPLICAS], {"min.insync.replicas": "2"})
        await write_numbered(data)
        await data.in_sync()
        leader, *followers = REPLICAS
        for node_id in followers:
            data.world.pause(node_id)
        assert await send(data, leader, acks=Acks.LEADER) == "ok"
        assert replica(data, leader).log_end_offset == 4
        assert replica(data, leader).high_watermark == 3
        for node_id in followers:
            data.world.resume(node_id)

    simulate_data(test, node_count=NODES)


# Processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, all ready."""
    with Cluster(tmp_path_factory.mktemp("tiny") / "cluster", 3) as processes:
        processes.start()
        yield processes


def run(node: MeasuredNode, *arguments: str) -> str:
    """The output of a command. AssertionError: the command failed."""
    done = CliRunner().invoke(cli, arguments, env={"RAFTLOG_SERVERS": node.address})
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def write(node: MeasuredNode, directory: Path, topic: str, lines: str) -> None:
    """Write lines as records."""
    file = directory / "lines"
    file.write_text(lines)
    run(node, "topic", "produce", topic, str(file))


def test_a_process_is_light(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        process = psutil.Process(node.pid)
        assert node.rss_bytes() < LIGHT_MIB * MIB
        assert process.num_threads() <= LIGHT_THREADS
        assert process.children() == []


def test_a_killed_process_is_started_again_and_needs_nothing_else(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.nodes[1]
    node.create_topic("kept", 1)
    write(node, tmp_path, "kept", "1\n")
    cluster.kill(3)
    write(node, tmp_path, "kept", "2\n")
    cluster.revive(3)

    def in_sync(isr: int) -> bool:
        row = cluster.nodes[1].request("GET", "/v1/metadata?topics=kept")["topics"][0]
        return len(row["partitions"][0]["isr"]) == isr

    wait_until(lambda: in_sync(3), "full ISR", deadline_s=WHOLE_S)
    # From its own replica.
    read = "/topics/kept/partitions/0/records?offset=earliest&replica=any"
    wait_until(
        lambda: len(cluster.nodes[3].request("GET", read)) == 2,
        "record of the time when it was away",
        deadline_s=WHOLE_S,
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    """One node with a topic of RECORDS numbered records."""
    node = LoneNode(tmp_path_factory.mktemp("log") / "data", flush="async")
    node.start()
    try:
        node.create_topic("tiny", 1)
        lines = "".join(f"{number}\n" for number in range(RECORDS))
        write(node, node.data_dir.parent, "tiny", lines)
        yield node
    finally:
        node.stop()


@pytest.mark.parametrize(("start", "count"), [(0, 5), (7, 3), (18, 5), (RECORDS, 5)])
def test_a_consumer_polls_at_most_n_messages_from_an_offset(
    log: LoneNode, start: int, count: int
) -> None:
    wanted = list(range(start, min(start + count, RECORDS)))
    path = f"/topics/tiny/partitions/0/records?offset={start}&max_records={count}"
    assert [one["offset"] for one in log.request("GET", path)] == wanted
    if start < RECORDS:  # at the end the command waits for records
        arguments = ("--offset", str(start), "--count", str(count), "--format", "json")
        printed = run(log, "topic", "consume", "tiny", *arguments).splitlines()
        assert [json.loads(line)["offset"] for line in printed] == wanted


def test_a_consumer_polls_the_latest_message(log: LoneNode) -> None:
    printed = run(log, "topic", "consume", "tiny", "--offset", "-1")
    assert printed == f"{RECORDS - 1}\n"
    [latest] = log.request("GET", "/topics/tiny/partitions/0/records?offset=-1")
    assert latest["offset"] == RECORDS - 1


def test_one_process_is_a_cluster_that_holds_its_log_through_kill_9(tmp_path: Path) -> None:
    node = LoneNode(tmp_path / "data", flush="sync")
    node.start()
    try:
        node.create_topic("alone", 1)
        write(node, tmp_path, "alone", "kept\n")
        node.kill()
        node.relaunch()
        node.wait_ready()
        assert run(node, "topic", "consume", "alone") == "kept\n"
    finally:
        node.kill()
