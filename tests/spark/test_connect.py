"""Spark Connect: a client without Java and without raftlog, and a server that has both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.node import LoneNode

from .fault_parts import ROOT
from .sink_parts import create
from .test_local_cluster import PROGRAM_TIMEOUT_S, with_all_its_own, without_java


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server's address."""
    log = tmp_path / "server.log"
    command = [sys.executable, "-m", "tests.spark.programs", "connect_server"]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line)["server"]
        finally:
            with_all_its_own(process)


def test_a_thin_client_writes_reads_and_copies_exactly_once(
    server: str, spark_node: LoneNode, topic_name: str, tmp_path: Path
) -> None:
    nodes = spark_node.address
    topics = [create(nodes, name) for name in (topic_name, f"{topic_name}-out")]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.spark.connect_client", server, nodes, *topics),
            str(tmp_path / "checkpoint"),
        ],
        env=without_java(tmp_path / "bin"),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    expected = sorted(map(str, range(100)))
    assert found["ended"]
    assert sorted(found["rows"]) == expected
    assert sorted(found["copied"]) == expected
    assert found["raftlog"] == [], "the client has no raftlog"
    # The write's markers count as offsets.
    assert found["lags"][0] >= 60
    assert found["lags"][-1] == 0
