"""The parts of the judges: processes with deadlines, the cache of jars, verdicts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from tests.judges import catalog, jars
from tests.judges.catalog import Judge
from tests.judges.jars import UnavailableError
from tests.judges.programs import Program
from tests.judges.trial import Row, Trial, check_values


def rows(*values: bytes) -> list[Row]:
    return [Row(0, offset, None, value) for offset, value in enumerate(values)]


def test_values_that_are_missing_or_surplus_are_named() -> None:
    check_values([b"a", b"a", b"b"], rows(b"a", b"b", b"a"))
    with pytest.raises(AssertionError, match=r"1 of 3 values are missing \(b'c'\), 0 are surplus"):
        check_values([b"a", b"b", b"c"], rows(b"a", b"b"))
    with pytest.raises(AssertionError, match=r"0 of 2 values are missing \(\), 1 are surplus"):
        check_values([b"a", b"b"], rows(b"a", b"b", b"a"))


def python(directory: Path, code: str, deadline_s: float = 30.0) -> Program:
    return Program([sys.executable, "-c", code], directory, "program", deadline_s=deadline_s)


def test_a_program_gives_whole_lines_and_its_exit_code(tmp_path: Path) -> None:
    with python(tmp_path, "print('one'); print('two', end='', flush=True); input()") as program:
        assert program.wait_for("a line", program.lines) == ["one"]
        program.check_running()
        program.write("go")
        program.wait()
        assert program.lines() == ["one"]
    with python(tmp_path, "raise SystemExit(3)") as program:
        program.wait(3)


def test_a_program_that_ends_early_shows_its_errors(tmp_path: Path) -> None:
    with (
        python(tmp_path, "raise ValueError('the cause')") as program,
        pytest.raises(AssertionError, match=r"(?s)a line: the process ended.*the cause"),
    ):
        program.wait_for("a line", program.lines)


def test_a_program_has_a_deadline_and_ends_with_its_block(tmp_path: Path) -> None:
    with python(
        tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    ) as one:
        [pid] = one.wait_for("its id", one.lines)
        one.extend(0.1)
        with pytest.raises(AssertionError, match="no end before the deadline"):
            one.wait()
        with pytest.raises(AssertionError, match="more: not within 0 s"):
            one.wait_for("more", lambda: len(one.lines()) > 1)
    assert not psutil.pid_exists(int(pid))


def test_jars_are_those_of_the_same_pom_and_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jars.JARS_VARIABLE, str(tmp_path))
    with pytest.raises(UnavailableError, match="scripts/trial-kafka gets them"):
        jars.class_path("tools")
    found = [tmp_path / "a.jar", tmp_path / "b.jar"]
    for one in found:
        one.touch()
    kept = tmp_path / "tools.classpath"
    text = ":".join(map(str, found))
    kept.write_text(f"{jars._checksum('tools')}\n{text}\n")
    assert jars.class_path("tools") == found
    kept.write_text(f"{jars._checksum('spark')}\n{text}\n")
    with pytest.raises(UnavailableError):
        jars.class_path("tools")
    kept.write_text(f"{jars._checksum('tools')}\n{text}\n")
    found[1].unlink()
    with pytest.raises(UnavailableError):
        jars.class_path("tools")


def test_a_missing_program_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(jars.JARS_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(UnavailableError, match="no java: install a JDK"):
        jars.resolve()
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho jdk.compiler@17\n")
    java.chmod(0o755)
    with pytest.raises(UnavailableError, match="no mvn: install Maven"):
        jars.resolve()
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho the repository is away\nexit 1\n")
    maven.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"(?s)did not get the tools jars.*is away"):
        jars.resolve()
    with pytest.raises(UnavailableError):
        jars.class_path("tools")


class _Nodes:
    """A trial and its cluster, as `catalog.run` uses them."""

    def __init__(self) -> None:
        self.cluster = self
        self.calls: list[str] = []

    def check_nodes(self) -> None:
        self.calls.append("check")

    def heal(self) -> None:
        self.calls.append("heal")


@pytest.mark.parametrize(
    ("outcome", "verdict", "text", "calls"),
    [
        ("42 records", "passed", "42 records", ["check"]),
        (AssertionError("1 is missing"), "failed", "AssertionError: 1 is missing", ["heal"]),
        (TimeoutError("late"), "failed", "TimeoutError: late", ["heal"]),
        (UnavailableError("no kcat"), "skipped", "no kcat", []),
    ],
)
def test_a_judge_has_a_verdict_and_the_nodes_are_seen_to(
    outcome: Any, verdict: str, text: str, calls: list[str]
) -> None:
    def judge(_: Trial) -> str:
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    nodes = _Nodes()
    result = catalog.run(Judge("one", "one", judge), cast(Trial, nodes))
    assert (result.verdict, result.text, nodes.calls) == (verdict, text, calls)
