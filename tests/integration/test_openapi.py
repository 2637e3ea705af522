"""Every route of a real node against its description, by schemathesis.

Two runs: with random names, most of which do not exist, and with names that exist. Left out are the
producers' binary frames and the endless tail, which schemathesis cannot send or read. Answers of
422 to a body that its schema allows are right: a schema cannot say everything (two records of one
request name different partitions, say).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.node import LoneNode

SECONDS = 20
CHECKS = """
[checks.positive_data_acceptance]
enabled = false

[checks.negative_data_rejection]
# 207: the entries of records:batch are judged one by one.
expected-statuses = ["4xx", 207]

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501, 503, 504]
"""
NAMES = """
[parameters]
"path.cluster" = "-"
"path.topic" = "t"
"path.partition" = 0
"path.broker" = 1
"path.config" = "retention.ms"
"path.group" = "g"
"path.instance" = "i"
# 0: a write that is not committed at once has an unknown outcome, which is an error of 500.
"query.timeout" = 5000
"""
FORBIDDEN_WRITES = re.compile(
    r"Authentication failed: \d operations? returned only 401/403 responses\n\n"
    r"403 Forbidden.*\n( *- (POST|PUT|DELETE) /\S*topics\b\S*\n)+"
)
"""A warning, if it changes no topic but an internal one, the name of which it has read."""
OPERATIONS = "^/v1/(produce|topics/.*/tail|quorum/transfer|cluster/settings)"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param("", id="random", marks=pytest.mark.full),  # as long as the other run
        pytest.param(NAMES, id="existing"),
    ],
)
def test_every_answer_is_as_described(node: LoneNode, tmp_path: Path, names: str) -> None:
    node.create_topic("t", 2)
    node.request("POST", "/consumers/g", {"name": "i"})
    config = tmp_path / "schemathesis.toml"
    config.write_text(names + CHECKS)
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(config)),
        *("--no-color", "run", f"http://{node.address}/openapi.json", "--seed", "1"),
        *("--phases", "coverage,fuzzing", "--max-time", str(SECONDS), "--continue-on-failure"),
        *("--request-timeout", "30", "--exclude-path-regex", OPERATIONS),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
    phases = done.stdout.partition("SUMMARY")[0]
    phases = FORBIDDEN_WRITES.sub("", phases)
    assert "failed" not in phases, done.stdout[-4_000:]
