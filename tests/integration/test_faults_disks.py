"""Power cuts, failing and full disks under load (rows 10, 12, 13, 17, 18 of
tests/simulation/data/FAULTS.md).

Each node has an ext4 file system of its own in a file, which needs root and loop devices; skipped
without.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bench.cluster import Cluster
from tests.integration.faulted import NODES, Load, cluster_on, disks, hurt
from tests.soak.power import LoopDisk
from tests.waiting import wait_for_log, wait_until

MIB = 160
VICTIM = 2
LOSS = "may lack acknowledged records after a power cut"
ASYNC = {"flush": "async"}
PATH = "/topics/all-async"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disks")


@pytest.fixture(scope="module")
def own(directory: Path) -> Iterator[Mapping[int, LoopDisk]]:
    with disks(directory, NODES, mib=MIB) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(directory: Path, own: Mapping[int, LoopDisk]) -> Iterator[Cluster]:
    """Three voters, each on a disk of its own."""
    with cluster_on(directory, own) as processes:
        yield processes


def cut(cluster: Cluster, own: Mapping[int, LoopDisk], *node_ids: int) -> None:
    """Cut the power of nodes, and restore it; the nodes stay down."""
    cluster.kill(*node_ids)
    for node_id in node_ids:
        own[node_id].cut_power()


def test_a_cut_loses_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    with disks(tmp_path, [1], mib=32) as alone:
        disk = alone[1]
        kept, lost = disk.data_dir / "kept", disk.data_dir / "lost"
        with kept.open("wb") as file:
            file.write(b"k" * 5000)
            file.flush()
            os.fsync(file.fileno())
            file.write(b"x" * 5000)
        parent = os.open(disk.data_dir, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)
        lost.write_bytes(b"l" * 5000)
        disk.cut_power()
        assert kept.read_bytes() == b"k" * 5000
        assert not lost.exists()


def test_promise_1_power_cuts_of_one_node_and_then_of_all_cost_no_acknowledged_record(
    cluster: Cluster, own: Mapping[int, LoopDisk], tmp_path: Path
) -> None:
    async def act(load: Load) -> None:
        await asyncio.to_thread(cut, cluster, own, VICTIM)
        await load.back(VICTIM)
        await asyncio.to_thread(cut, cluster, own, *NODES)
        await load.back(*NODES)

    hurt(cluster, "cut", tmp_path, act)


@pytest.mark.full  # the simulator has this fault too
def test_promise_2_a_node_whose_power_was_cut_without_syncs_is_not_believed(
    cluster: Cluster, own: Mapping[int, LoopDisk], tmp_path: Path
) -> None:
    """With the others alive, and as the only node that was in sync to the end."""
    first, second, third = NODES

    async def act(load: Load) -> None:
        await asyncio.to_thread(cut, cluster, own, first)
        await load.back(first)
        await asyncio.to_thread(cluster.kill, third)
        await load.until_out_of_sync(third)
        await asyncio.to_thread(cluster.kill, second)
        await asyncio.to_thread(cut, cluster, own, first)
        # With node 3, which lacks records, there is a quorum that could elect node 1.
        await asyncio.to_thread(cluster.restart, first, third)
        await asyncio.to_thread(cluster.wait_answering)
        await asyncio.to_thread(cluster.wait_active)
        await load.back(second)
        await asyncio.to_thread(wait_for_log, cluster.nodes[first], LOSS)

    hurt(cluster, "cut-async", tmp_path, act, ASYNC)


@pytest.mark.full  # the simulator has this fault too
def test_promise_2_a_partition_whose_replicas_all_lost_power_says_so_and_serves_no_shorter_log(
    cluster: Cluster, own: Mapping[int, LoopDisk]
) -> None:
    body = {"topic_name": "all-async", "configs": [{"name": "flush", "value": "async"}]}
    cluster.nodes[1].request("POST", "/v3/clusters/-/topics", body)
    written = cluster.nodes[1].request("POST", PATH, {"records": [{"value": 1}]})
    assert written["offsets"][0]["offset"] == 0
    cut(cluster, own, *NODES)
    cluster.restart(*NODES)
    cluster.wait_active()
    for node in cluster.nodes.values():
        node.wait_ready()
        wait_for_log(node, "power was lost with flush=async", "are gone")

    def is_leaderless() -> bool:
        (row,) = cluster.nodes[1].request("GET", "/topics/all-async/partitions")
        return bool(row["leader"] == -1)

    wait_until(is_leaderless, "partition without leader")
    with pytest.raises(urllib.error.HTTPError) as caught:
        cluster.nodes[1].request("GET", f"{PATH}/partitions/0/records?offset=0")
    with caught.value as answer:
        assert json.loads(answer.read())["error_code"] == 50301
    # After accepting the loss, an operator can elect a leader with the remaining records.
    leader = "/v1/topics/all-async/partitions/0/leader"
    cluster.nodes[1].request("POST", leader, {"broker": 1, "unclean": True})
    wait_until(lambda: not is_leaderless(), "unclean leader")


@pytest.mark.full  # the simulator has this fault too
def test_what_a_node_with_a_full_disk_leads_is_led_by_others_until_there_is_room(
    cluster: Cluster, own: Mapping[int, LoopDisk], tmp_path: Path
) -> None:
    async def act(load: Load) -> None:
        ballast = await asyncio.to_thread(own[VICTIM].fill)
        await load.until_led_without(VICTIM)
        await load.until_out_of_sync(VICTIM)
        await load.progress()
        ballast.unlink()
        await load.whole()
        await load.progress()

    hurt(cluster, "full", tmp_path, act)


@pytest.mark.full  # the simulator has this fault too
def test_a_disk_that_fails_ends_its_node_alone(
    cluster: Cluster, own: Mapping[int, LoopDisk], tmp_path: Path
) -> None:
    async def act(load: Load) -> None:
        node = cluster.nodes[VICTIM]
        await asyncio.to_thread(own[VICTIM].fail)
        await asyncio.to_thread(wait_until, lambda: node.has_ended, "end of the node")
        await load.until_led_without(VICTIM)
        await load.progress()
        cluster.kill(VICTIM)
        await asyncio.to_thread(own[VICTIM].replug)
        await load.back(VICTIM)

    hurt(cluster, "failed", tmp_path, act)
