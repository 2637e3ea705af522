import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.cli.common.output import counted, write_table
from tests.cli.conftest import Run
from tests.cli.node import RAFTLOG, RunningNode

ESCAPE = "\x1b["


def run_on_terminal(node: RunningNode, *arguments: str, typed: bytes = b"") -> tuple[int, str]:
    """Exit code and the whole output on a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*RAFTLOG, *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**node.environment, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, typed)
        seen = b""
        try:
            while chunk := os.read(ours, 65_536):
                seen += chunk
        except OSError:
            pass  # Linux's report of a closed other end.
        os.close(ours)
    return process.returncode, seen.decode()


def test_table_for_programs_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("name", "in sync"), [("a", 1), ("long name", None), ("b", 1000)])
    assert capsys.readouterr().out == (
        "NAME       IN-SYNC\na                1\nlong name        -\nb             1000\n"
    )


def test_table_without_rows_is_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("a", "b"), [])
    assert capsys.readouterr().out == "A  B\n"


def test_counted() -> None:
    assert [counted(number, "line") for number in (0, 1, 2000)] == [
        "0 lines", "1 line", "2,000 lines",
    ]  # fmt: skip


def test_person_gets_a_laid_out_table(node: RunningNode, topic: str) -> None:
    code, seen = run_on_terminal(node, "topic", "describe", topic)
    assert code == 0
    assert ESCAPE in seen
    assert "partition" in seen


def test_person_gets_a_progress_bar_that_goes_away(
    node: RunningNode, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"x" * 99 + b"\n" * 20_000)
    code, seen = run_on_terminal(node, "topic", "produce", topic, str(file))
    assert code == 0
    assert "20,000 records" in seen
    assert "MB/s" in seen
    assert ESCAPE in seen


def test_person_is_asked_before_records_are_deleted(
    node: RunningNode, run: Run, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_text("x\n")
    run("topic", "produce", topic, str(file))
    trim = ("topic", "trim-prefix", topic, "--offset", "end")
    code, seen = run_on_terminal(node, *trim, typed=b"n\n")
    assert code == 130
    assert "Delete the records" in seen
    assert run("topic", "consume", topic).stdout == "x\n"
    code, seen = run_on_terminal(node, *trim, typed=b"y\n")
    assert code == 0
    assert run("topic", "consume", topic).stdout == ""


def test_pipe_pays_nothing_for_decoration(node: RunningNode, topic: str) -> None:
    program = "import sys; from raftlog.cli.main import cli\ntry: cli.main(sys.argv[1:])\n"
    program += "finally: print('rich' in sys.modules)"
    for arguments in (["describe", topic], ["consume", topic], ["produce", topic]):
        result = subprocess.run(
            [sys.executable, "-c", program, "topic", *arguments],
            env=node.environment, capture_output=True, text=True, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert result.stdout.endswith("False\n")
        assert ESCAPE not in result.stdout
