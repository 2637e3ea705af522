"""Spark Connect: a client without Java and without raftlog, and a server that has both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .fault_parts import ROOT
from .sink_parts import create
from .test_local_cluster import PROGRAM_TIMEOUT_S, without_java


def test_a_thin_client_writes_reads_and_copies_exactly_once(
    connect_server: str, servers: str, topic: str, tmp_path: Path
) -> None:
    out = create(servers, f"{topic}-out")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.spark.connect_client"),
            *(connect_server, servers, topic, out),
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
