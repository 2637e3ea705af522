from __future__ import annotations

import os
import random
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cluster import Row
from bench.replication import gaps
from bench.replication.gaps import KILL, MOVE, Trial, gap_results
from bench.report import Options
from bench.wires import NoWiresError, Wires

ALL = (1, 2, 3)


def row(partition: int, leader: int) -> Row:
    return Row("gaps", partition, leader, ALL, ALL)


def test_the_victim_is_whoever_leads_most() -> None:
    rows = [row(0, 2), row(1, 3), row(2, 2)]
    for number in range(5):
        trial = gaps._choose_trial(KILL, rows, 2, random.Random(number))
        assert (trial.victim, trial.led, trial.was_controller) == (2, [0, 2], True)


def test_a_move_takes_one_partition_from_its_leader() -> None:
    trial = gaps._choose_trial(MOVE, [row(0, 3), row(1, 3)], 1, random.Random(2))
    assert trial.victim == 3
    assert len(trial.led) == 1


def test_the_distribution_is_held_against_the_goal_and_lists_every_trial() -> None:
    trials = [Trial(1, False, [0], gap_s=0.1) for _ in range(98)]
    trials += [Trial(1, True, [0], gap_s=0.6), Trial(2, False, [0], gap_s=0.7)]
    p50, p99, longest = gap_results(KILL, "client", trials)
    assert (p50.median, p99.median, longest.median) == (0.1, 0.7, 0.7)
    assert (p50.reached, p99.reached, longest.reached) == (None, False, None)
    assert [one.gap_s for one in p50.details["trials"]][97:] == [0.1, 0.6, 0.7]


def test_without_root_the_cut_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert gaps.gap_cut(Options()) == []
    assert "skipped: network namespaces need root" in capsys.readouterr().out


def test_what_was_built_is_taken_down_again_when_the_rest_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[tuple[str, ...]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(tuple(command[1:4]))
        is_refused = command[1:3] == ["netns", "add"] and command[3].endswith("-2")
        return SimpleNamespace(returncode=int(is_refused), stderr="not allowed")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/ip")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(NoWiresError, match="not allowed"), Wires(3):
        pytest.fail("there are no wires")
    bridge = commands[0][2]
    name = f"rlb{os.getpid()}"
    assert bridge == name
    assert commands[-3:] == [
        ("link", "del", f"{name}w1"),
        ("netns", "del", f"{name}-1"),
        ("link", "del", name),
    ]
