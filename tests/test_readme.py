"""The README's programs, pasted as they are into a shell, and the first one of docs/kafka.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from raftlog.cluster.process import clean_environment, free_ports
from tests.language import ROOT

README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK: Final = re.compile(r"^```(?:python|bash) (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS: Final = dict(BLOCK.findall(README))
INSTALLS: Final = re.compile(r"^.*\.venv/bin/activate.*\n", re.MULTILINE)
"""Lines that make or enter the environment, which runs this test already."""
STOPS: Final = 2_000_000
LINES_MAX: Final = 150
WORDS_MAX: Final = 1_200
TIMEOUT_S: Final = 240


def environment(**settings: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**clean_environment(os.environ), "PATH": path, **settings}


def shell(source: str, directory: Path, **settings: str) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", INSTALLS.sub("", source)],
        cwd=directory,
        env=environment(**settings),
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout


def test_every_program_of_the_readme_is_run() -> None:
    assert README.count("```") == 2 * len(BLOCKS)
    assert set(BLOCKS) == {"serve", "curl", "hello", "cluster"}


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX
    assert len(README.split()) <= WORDS_MAX


@contextmanager
def first_node(directory: Path, **settings: str) -> Iterator[str]:
    """The node of the block `serve`, on a free port. Yields its address."""
    (port,) = free_ports("127.0.0.1", 1)
    address = f"127.0.0.1:{port}"
    command = INSTALLS.sub("", BLOCKS["serve"]).replace("/tmp", str(directory)).split()
    with (directory / "serve.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment(RAFTLOG_LISTEN=address, **settings), stdout=log, stderr=log
        )
        try:
            retry = "--retry 60 --retry-all-errors --retry-delay 1"
            shell(f"curl -sS -f {retry} http://{address}/ready", directory)
            yield address
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def test_a_first_node_serves_curl_and_python(tmp_path: Path) -> None:
    with first_node(tmp_path) as address:
        written = shell(
            BLOCKS["curl"].replace("localhost:8082", address), tmp_path, RAFTLOG_SERVERS=address
        )
        program = tmp_path / "hello.py"
        program.write_text(BLOCKS["hello"].replace("localhost:8082", address))
        printed = shell(f"python {program}", tmp_path)
    read = [line for line in written.splitlines() if line.startswith('{"topic":"rides"')]
    assert [json.loads(line)["value"] for line in read] == ['{"km":12}', '{"km":7}']
    place, record = printed.splitlines()
    assert re.fullmatch(r"partition \d offset \d", place)
    assert record.startswith("Record(topic='rides'")


def test_a_kafka_client_writes_unchanged(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    (port,) = free_ports("127.0.0.1", 1)
    listener = f"127.0.0.1:{port}"
    with first_node(tmp_path, RAFTLOG_KAFKA_LISTEN=listener) as address:
        program = tmp_path / "kafka_program.py"
        program.write_text(dict(BLOCK.findall(page))["kafka"].replace("127.0.0.1:9092", listener))
        commands = f"raftlog topic create rides; python {program}; raftlog topic consume rides"
        read = shell(commands, tmp_path, RAFTLOG_SERVERS=address)
    assert read == "12 km\n"


@pytest.mark.full  # three real nodes; tests/integration kills nodes as well
def test_three_nodes_lose_no_record_when_one_is_killed(tmp_path: Path) -> None:
    source = BLOCKS["cluster"].replace("/tmp", str(tmp_path)).replace("8091", "0")
    reads = "raftlog topic consume stops >stops.txt\nraftlog cluster down"
    # The killed node may be on its way back: then `health` exits with 1, as it should.
    source = source.replace("cluster health", "cluster health || true")
    source = source.replace("raftlog cluster down", reads)
    try:
        shell(source, tmp_path)
    finally:
        shell(f"raftlog cluster down --dir {tmp_path}/raftlog-three", tmp_path)
    numbers = (tmp_path / "stops.txt").read_text().split()
    assert len(numbers) == STOPS
    assert set(map(int, numbers)) == set(range(1, STOPS + 1))
