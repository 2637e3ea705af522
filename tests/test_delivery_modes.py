"""The programs of docs/delivery-modes.md, run against real nodes, and killed in their work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bench.node import LoneNode
from tests.language import ROOT

EXAMPLES: Final = ROOT / "docs" / "examples"
PAGE: Final = ROOT / "docs" / "delivery-modes.md"
TIMEOUT_S: Final = 280.0
ROW: Final = re.compile(r"^([a-z-]+) +(\d+) +(\d+) +(\d+)$", re.MULTILINE)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    node = LoneNode(tmp_path / "data", flush="async")
    node.start()
    try:
        yield node
    finally:
        node.stop()


def test_the_page_names_every_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.iterdir() if path.name not in text] == []


@pytest.mark.full  # a program of the documents; kills of real processes are in tests/integration
def test_each_delivery_mode_keeps_its_promise_through_kills() -> None:
    program = [sys.executable, EXAMPLES / "kill_and_count.py", "--orders", "600", "--kills", "2"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {mode: (int(lost), int(more)) for mode, _, lost, more in ROW.findall(done.stdout)}
    assert found["at-most-once"][1] == 0
    assert found["at-least-once"][0] == 0
    assert found["exactly-once"] == (0, 0)
    # A worker spends nearly all its time within a batch: two kills of each of two cannot all miss.
    assert found["at-most-once"][0] + found["at-least-once"][1] > 0, done.stdout


def values(node: LoneNode, topic: str, isolation: str) -> list[Any]:
    """The values in partition 0, page after page."""
    found: list[Any] = []
    start = 0
    while True:
        path = f"/topics/{topic}/partitions/0/records?offset={start}&isolation={isolation}"
        page = node.request("GET", f"{path}&max_records=10000")
        if not page:
            return found
        found += [record["value"] for record in page]
        start = page[-1]["offset"] + 1


@pytest.mark.full  # a program of the documents, killed within each of its transactions
def test_curl_copies_exactly_once_though_it_is_killed_within_each_transaction(
    node: LoneNode,
) -> None:
    for topic in ("source", "copy"):
        node.create_topic(topic, 1)
    numbers = [{"number": number} for number in range(350)]
    for start in range(0, 350, 50):
        body = {"records": [{"value": value} for value in numbers[start : start + 50]]}
        node.request("POST", "/topics/source/partitions/0", body)
    program = ["bash", str(EXAMPLES / "exactly_once.sh"), "source", "copy"]
    environment = {**os.environ, "RAFTLOG_SERVERS": node.address}
    for _ in range(3):
        before = len(values(node, "copy", "read_uncommitted"))
        copying = subprocess.Popen(
            program, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + TIMEOUT_S
        while len(values(node, "copy", "read_uncommitted")) == before:
            assert time.monotonic() < deadline
            assert copying.poll() is None
        os.killpg(copying.pid, signal.SIGKILL)
        copying.wait()
    subprocess.run(program, env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
    copied = values(node, "copy", "read_committed")
    assert copied == numbers
    attempts = Counter(one["number"] for one in values(node, "copy", "read_uncommitted"))
    assert max(attempts.values()) > 1, "a kill left a transaction to abort"


def test_the_shell_script_is_short() -> None:
    assert len((EXAMPLES / "exactly_once.sh").read_text(encoding="utf-8").splitlines()) <= 25
