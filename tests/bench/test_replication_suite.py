from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import main as program
from bench.main import choose_parts
from bench.replication.catch_up import Paced
from bench.replication.produce import Workload
from bench.report import Options, Result
from raftlog.workloads.load import send_many
from tests.bench.fakes import fake_cluster


def good(_options: Options) -> list[Result]:
    return [Result("good", "s", runs=[1.0])]


def bad(_options: Options) -> list[Result]:
    raise RuntimeError("broken")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(program.PARTS, "cluster", {"bad": bad, "good": good})


def test_parts_are_chosen_by_how_their_names_begin() -> None:
    parts = list(program.PARTS["cluster"])
    assert choose_parts([], parts) == parts
    assert choose_parts(["gap-m", "produce"], parts) == ["produce", "gap-move"]
    assert len(choose_parts(["gap"], parts)) == 4
    with pytest.raises(ValueError, match="nonsense"):
        choose_parts(["gap", "nonsense"], parts)


@pytest.mark.usefixtures("parts")
def test_a_failed_part_is_reported_and_the_others_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results, failed = program.run_parts("cluster", ["bad", "good"], Options())
    assert [result.name for result in results] == ["good"]
    assert failed == ["bad"]
    assert "broken" in capsys.readouterr().err


@pytest.mark.usefixtures("parts")
def test_the_command_writes_what_there_is_and_fails_if_a_part_did(tmp_path: Path) -> None:
    done = CliRunner().invoke(program.main, ["cluster", "--quick", "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert "these failed, see above: bad" in done.output
    assert '"good"' in (tmp_path / "results.json").read_text()


def test_an_unknown_part_is_wrong_usage() -> None:
    assert CliRunner().invoke(program.main, ["cluster", "--only", "nonsense"]).exit_code == 2


def test_sigterm_ends_the_suite_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(_options: Options) -> list[Result]:
        os.kill(os.getpid(), signal.SIGTERM)
        return []

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(program.PARTS, "cluster", {"terminated": terminated})
    with pytest.raises(KeyboardInterrupt):
        program.run_parts("cluster", ["terminated"], Options())
    assert signal.getsignal(signal.SIGTERM) == before


def test_all_nodes_are_killed_with_the_manager(tmp_path: Path) -> None:
    with fake_cluster(tmp_path) as cluster:
        cluster.start()
        cluster.pause(2)
        pids = [node.pid for node in cluster.nodes.values()]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_processor_time_is_reported_by_process_and_megabyte() -> None:
    workload = Workload("w", send_many, 1_000, 1)
    used = {"node1": (1.0, 0.5), "node2": (0.5, 0.0), "client": (0.25, 0.25)}
    workload.note(100_000, 2.0, used, 3)
    assert workload.rate.runs == [50.0]
    assert workload.node_cpu.runs == [20.0]
    assert workload.client_cpu.runs == [5.0]
    found = workload.rate.details["run 1"]["processor"]["node1"]
    assert found == {"user ms/MB": 10.0, "system ms/MB": 5.0, "share of a core": 0.75}


def test_the_pace_between_two_moments_is_what_was_acknowledged_between_them() -> None:
    paced = Paced([(0.0, 1_000_000), (1.0, 3_000_000), (2.0, 5_000_000), (9.0, 6_000_000)])
    assert paced.rate_mb_s(0.0, 2.0) == 2.0
    assert paced.rate_mb_s(3.0, 9.0) == 0.0
    assert paced.total() == 6_000_000
