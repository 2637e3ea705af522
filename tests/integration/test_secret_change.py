"""The secret of a running cluster is changed: no node stops, no write fails."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from raftlog_client import Producer

from bench.cluster import Cluster
from raftlog.node.secret import SECRET_FILE
from tests.integration.test_quorum_processes import members, stranger_of
from tests.waiting import until, wait_for_log, wait_until

TOPIC = "t"
SEND_TIMEOUT_S = 20.0


class Writer:
    """Writes one record after the other until stopped; a write that fails raises in `stop`."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._is_over = asyncio.Event()
        self.longest_s = 0.0
        self.written = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=self._servers) as producer:
            while not self._is_over.is_set():
                began_s = loop.time()
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await producer.send_and_wait(TOPIC, b"%d" % self.written)
                self.longest_s = max(self.longest_s, loop.time() - began_s)
                self.written += 1

    def stop(self) -> None:
        self._is_over.set()


def write_secret(path: Path, *lines: str) -> None:
    """As an operator does: aside, then renamed."""
    aside = path.with_name("aside")
    aside.touch(0o600)
    aside.write_text("".join(f"{line}\n" for line in lines))
    aside.replace(path)


def test_secret_changes_under_load_without_a_stop(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", 3) as cluster:
        cluster.start()
        old, new = cluster.secret, secrets.token_hex(32)
        cluster.nodes[1].create_topic(TOPIC, 6)
        # From now on each node has a file of its own.
        for node_id in (1, 2, 3):
            cluster.kill(node_id)
            cluster.revive(node_id)
        cluster.wait_active()
        pids = {node_id: node.pid for node_id, node in cluster.nodes.items()}

        def change(node_id: int, accepted: int, *lines: str) -> None:
            node = cluster.nodes[node_id]
            write_secret(node.data_dir / SECRET_FILE, *lines)
            wait_for_log(node, f"secret has changed: accepting {accepted},")

        async def main() -> Writer:
            writer = Writer(cluster.servers)
            writing = asyncio.create_task(writer.run())
            for accepted, lines in ((2, (new, old)), (1, (new,))):
                for node_id in (1, 2, 3):
                    await asyncio.to_thread(change, node_id, accepted, *lines)
                    assert not writing.done()
            await until(lambda: writing.done() or writer.written > 100)
            writer.stop()
            await writing
            return writer

        writer = asyncio.run(main())
        assert writer.written > 100, f"the longest took {writer.longest_s:.3f} s"
        assert {node_id: node.pid for node_id, node in cluster.nodes.items()} == pids
        cluster.wait_quiet()

        outsider = stranger_of(
            cluster, tmp_path / "old", 8, "--join", cluster.nodes[1].address, secret=old
        )
        insider = stranger_of(
            cluster, tmp_path / "new", 9, "--join", cluster.nodes[1].address, secret=new
        )
        try:
            outsider.launch()
            insider.launch()
            wait_for_log(outsider, "does not know this node's cluster secret")
            wait_until(lambda: members(cluster, 1, "observers") == [9], "observer 9")
        finally:
            outsider.kill()
            insider.kill()
