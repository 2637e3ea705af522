from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftlog.cluster import local, membership
from raftlog.cluster.errors import AlreadyManagedError, ClusterError
from raftlog.cluster.layout import Layout, manager_pid
from raftlog.cluster.local import LocalCluster
from raftlog.cluster.process import is_alive, load_records, start_ticks
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.usefixtures("fake_nodes")

Make = Callable[..., LocalCluster]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, told: list[str]) -> Iterator[Make]:
    def made(**chosen: object) -> LocalCluster:
        return LocalCluster(tmp_path / "cluster", tell=told.append, **chosen)  # type: ignore[arg-type]

    yield made
    for record in load_records(Layout.at(tmp_path / "cluster").processes).values():
        if is_alive(record):
            os.kill(record.pid, signal.SIGKILL)


def runs(pid: int | None) -> bool:
    return pid is not None and start_ticks(pid) is not None


def given(cluster: LocalCluster, node_id: int) -> dict[str, str]:
    """The arguments of the node's first start, replaced by those of its last one."""
    directory = cluster.layout.data_dir(cluster.manifest.node(node_id))
    found: dict[str, str] = json.loads((directory / "directory.json").read_text())
    return found


def behave(cluster: LocalCluster, node_id: int, how: str, *, begin: bool = True) -> None:
    directory = cluster.layout.data_dir(cluster.manifest.node(node_id))
    if begin:
        (directory / how).touch()
    else:
        (directory / how).unlink()


async def test_cluster_starts_serves_and_stops_with_the_controller_last(
    make: Make, told: list[str]
) -> None:
    async with make(nodes=3, base_port=0) as cluster:
        assert cluster.node_ids == (1, 2, 3)
        assert await cluster.controller() == 2
        assert cluster.servers == ",".join(cluster.addresses)
        status = await cluster.status()
        assert status.is_whole
        pids = [node.pid for node in status.nodes]
        assert all(map(runs, pids))
        assert manager_pid(cluster.layout) == status.manager_pid
    assert not any(map(runs, pids))
    assert told == ["stopping node 1", "stopping node 3", "stopping node 2"]
    assert manager_pid(cluster.layout) is None


async def test_directory_alone_starts_the_same_cluster_again(make: Make) -> None:
    async with make(nodes=2, base_port=0, flush="async") as cluster:
        manifest = cluster.manifest
    # The fake dies of --voters the second time.
    async with make() as cluster:
        assert cluster.manifest == manifest
        assert (await cluster.status()).flush == "async"


async def test_each_node_gets_a_kafka_listener_unless_there_are_to_be_none(make: Make) -> None:
    async with make(nodes=2, base_port=0) as cluster:
        known = cluster.manifest
        assert len({*known.ports, *known.kafka_ports}) == 4
        entry = cluster.add_entry()
        assert entry.kafka_port not in (None, *known.ports, *known.kafka_ports)
        addresses = [node.kafka for node in (await cluster.status()).nodes]
        assert addresses == [f"127.0.0.1:{port}" for port in cluster.manifest.kafka_ports]
        assert given(cluster, 1)["--kafka-listen"] == addresses[0]
        await cluster.drop_entry(entry.node_id)
    async with make() as cluster:
        assert cluster.manifest.kafka_ports == known.kafka_ports
    async with make(kafka=False) as cluster:
        assert [node.kafka for node in (await cluster.status()).nodes] == [None, None]
        assert given(cluster, 1)["--kafka-listen"] == "none"
    async with make(kafka=True, kafka_base_port=0) as cluster:
        assert len({*cluster.manifest.ports, *cluster.manifest.kafka_ports}) == 4


async def test_cluster_of_an_earlier_release_goes_on_without_kafka_listeners(make: Make) -> None:
    async with make(nodes=2, base_port=0, kafka=False) as cluster:
        before = cluster.manifest
        assert "--kafka-listen" not in given(cluster, 1)
    async with make() as cluster:
        assert cluster.manifest == before
        assert "--kafka-listen" not in given(cluster, 1)
        assert cluster.add_entry().kafka_port is None


async def test_taken_kafka_port_is_named_with_the_ways_on(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} of") as caught:
            await make(nodes=1, base_port=0, kafka_base_port=port).start()
        assert "--no-kafka" in (caught.value.hint or "")
    with pytest.raises(ClusterError, match="port 9001 cannot be a node's HTTP port and a Kafka"):
        make(base_port=9000, kafka_base_port=9001).new_manifest()
    usual = make().new_manifest()
    assert (usual.ports, usual.kafka_ports) == ((8082, 8083, 8084), (9092, 9093, 9094))


async def test_second_manager_is_refused_and_disturbs_nothing(make: Make) -> None:
    async with make(nodes=2, base_port=0) as cluster:
        with pytest.raises(AlreadyManagedError):
            await make().start()
        assert (await cluster.status()).is_whole


async def test_node_that_dies_comes_back_one_that_is_killed_stays_down(make: Make) -> None:
    async with make(nodes=2, base_port=0) as cluster:
        first = cluster.pid(1)
        await cluster.kill(1, stays_down=False)
        await until(lambda: cluster.pid(1) not in (None, first))
        await cluster.wait_ready(1)
        await cluster.kill(1)
        assert cluster.pid(1) is None
        status = await cluster.status()
        assert (status.nodes[0].state, status.nodes[0].restarts) == ("stopped", 1)
        await cluster.start_node(1)
        assert (await cluster.status()).is_whole
        second = cluster.pid(1)
        await cluster.restart(1)
        assert cluster.pid(1) != second
        with pytest.raises(ClusterError, match="no node 9"):
            await cluster.kill(9)


async def test_paused_node_holds_still_and_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "ANSWER_TIMEOUT_S", 0.5)
    async with make(nodes=2, base_port=0) as cluster:
        cluster.pause(1)
        assert (await cluster.status()).nodes[0].state == "paused"
        cluster.resume(1)
        await cluster.wait_ready(1)
        cluster.pause(1)
        # Stopped in order, paused or not.
    assert cluster.layout.processes.exists()


async def test_stopped_node_stays_so_over_a_restart_of_the_cluster(make: Make) -> None:
    async with make(nodes=3, base_port=0) as cluster:
        await cluster.stop_node(3)
    async with make() as cluster:
        assert [node.state for node in (await cluster.status()).nodes] == [
            "running", "running", "stopped",
        ]  # fmt: skip
        assert (await cluster.status()).is_whole
        await cluster.start_node(3)
    assert not cluster.layout.require_manifest().node(3).stopped


async def test_taken_port_is_named_before_anything_runs(make: Make) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = make(nodes=1, base_port=port)
        with pytest.raises(ClusterError, match=f"port {port} of"):
            await cluster.start()
    assert cluster.layout.load_manifest() is None
    assert manager_pid(cluster.layout) is None


async def test_cluster_that_cannot_serve_says_why_and_leaves_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make(nodes=2, base_port=0) as cluster:
        behave(cluster, 1, "die")
        behave(cluster, 2, "die")
    cluster = make()
    with pytest.raises(ClusterError, match="I was told to die") as caught:
        await cluster.start()
    assert "node 1" in str(caught.value) and "node 2" in str(caught.value)
    assert "cluster status" in (caught.value.hint or "")
    assert manager_pid(cluster.layout) is None


async def test_minority_that_is_not_ready_is_told_and_does_not_hold_up(
    make: Make, told: list[str]
) -> None:
    async with make(nodes=3, base_port=0) as cluster:
        behave(cluster, 3, "busy")
    cluster = make()
    assert await cluster.start(timeout_s=1.0) == [3]
    try:
        assert "node 3 is not ready: I am busy." in told
        with pytest.raises(ClusterError, match=r"I am busy\."):
            await cluster.wait_ready(3, timeout_s=0.1)
        assert not (await cluster.status()).is_whole
        behave(cluster, 3, "busy", begin=False)
        assert await cluster.wait_ready() == []
    finally:
        await cluster.stop()


async def test_without_a_controller_it_is_not_ready(make: Make) -> None:
    cluster = make(nodes=1, base_port=0)
    with pytest.raises(ClusterError, match="no active controller"):
        await cluster.start(timeout_s=0.5)


async def test_nodes_left_behind_are_taken_over_as_they_are(make: Make, told: list[str]) -> None:
    cluster = make(nodes=3, base_port=0)
    await cluster.start()
    pids = [cluster.pid(node_id) for node_id in cluster.node_ids]
    await cluster.kill(3)
    await cluster.release()
    assert runs(pids[0]) and runs(pids[1])
    async with make() as again:
        assert [again.pid(1), again.pid(2)] == pids[:2]
        assert again.pid(3) != pids[2]
        assert f"node 1 runs already, as process {pids[0]}" in told
        # A process of another parent is watched all the same.
        await again.kill(1, stays_down=False)
        await until(lambda: again.pid(1) not in (None, pids[0]))
        await again.wait_ready()
    assert not any(map(runs, pids))


async def test_left_behind_nodes_do_not_suffer_for_the_port_of_another(make: Make) -> None:
    cluster = make(nodes=2, base_port=0)
    await cluster.start()
    first = cluster.pid(1)
    await cluster.kill(2)
    port = cluster.manifest.node(2).port
    await cluster.release()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(ClusterError, match=f"port {port} of"):
            await make().start()
        assert runs(first)
    async with make() as again:
        assert again.pid(1) == first


async def test_new_entry_joins_and_a_dropped_one_is_kept_aside(make: Make) -> None:
    async with make(nodes=2, base_port=0) as cluster:
        entry = cluster.add_entry()
        cluster.launch(entry.node_id)
        await cluster.wait_ready(entry.node_id)
        joined = (cluster.layout.data_dir(entry) / "directory.json").read_text()
        assert ",".join(cluster.addresses[:2]) in joined
        pid = cluster.pid(1)
        aside = await cluster.drop_entry(1)
        assert aside is not None and (aside / "directory.json").exists()
        assert not runs(pid)
        assert cluster.node_ids == (2, 3)
        assert (await cluster.status()).is_whole


async def test_logs_are_rotated_while_the_nodes_write(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "ROTATE_EVERY_S", 0.01)
    monkeypatch.setattr(local, "LOG_BYTES_MAX", 10)
    async with make(nodes=2, base_port=0) as cluster:
        log = cluster.layout.log(1)
        with log.open("ab") as file:
            file.write(b"a long line, as lines go\n")
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: log.with_name("node-1.log.1").exists() and not log.stat().st_size)


async def test_signal_of_any_kind_reaches_the_process(make: Make) -> None:
    async with make(nodes=2, base_port=0) as cluster:
        first = cluster.pid(1)
        await cluster.kill(1, signal.SIGTERM)
        await until(lambda: cluster.pid(1) not in (None, first))
