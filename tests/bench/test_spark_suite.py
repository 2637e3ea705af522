from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import main as program
from bench.report import Options, Result
from bench.spark.running import Meter, Used


def good(_options: Options) -> list[Result]:
    return [Result("good", "rows/s", runs=[1.0])]


def bad(_options: Options) -> list[Result]:
    raise RuntimeError("broken")


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(program.PARTS, "spark", {"good": good, "bad": bad})


def command(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(program.main, ["spark", *arguments, "--output", str(tmp_path)])
    return done.exit_code, done.output


def test_the_command_writes_what_there_is_and_fails_if_a_part_did(tmp_path: Path) -> None:
    code, output = command(tmp_path)
    assert code == 1
    assert "-- spark: good" in output
    assert "these failed, see above: bad" in output
    assert '"good"' in (tmp_path / "results.json").read_text()


def test_parts_are_those_of_the_suites_that_run(tmp_path: Path) -> None:
    assert command(tmp_path, "--only", "go")[0] == 0
    code, output = command(tmp_path, "--only", "gap-kill")
    assert code == 2
    assert "'gap-kill' is none of good, bad" in output


def test_the_cost_of_a_run_is_reported_by_row() -> None:
    assert Used(2.0, {"node": 1e-3}).details(1000) == {"seconds": 2.0, "node ns/row": 1000.0}
    used = Meter().used()
    assert used.seconds >= 0
    assert all(seconds >= 0 for seconds in used.processor.values())
