from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.cli.main import cli
from tests.cli.conftest import Run
from tests.cli.node import RunningNode


def completed(words: str, **environment: str) -> list[str]:
    """What bash offers for the last of the words, by the script that the command prints."""
    script = f"""
        eval "$(raftlog completion bash)"
        COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _raftlog_completion raftlog
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path, **environment},
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("raftlog topic cr", ["create"]),
        ("raftlog cluster config s", ["set"]),
        ("raftlog completion z", ["zsh"]),
        ("raftlog topic create --partit", ["--partitions"]),
    ],
)
def test_bash_completes_commands_and_options(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


def test_names_of_groups_and_transactional_ids_are_completed(
    run: Run, produce: Run, node: RunningNode, topic: str
) -> None:
    name = f"completed-{topic}"
    run("topic", "consume", topic, "--group", name)
    produce(topic, "1\n", "--transactional-id", name)
    for words in ("raftlog group describe", "raftlog group seek", "raftlog txn abort"):
        offered = completed(f"{words} completed-te", RAFTLOG_SERVERS=node.address)
        assert offered == [name]
    assert completed(f"raftlog group describe -X {node.address} completed-te") == [name]


def test_no_names_are_offered_without_a_cluster() -> None:
    assert completed("raftlog group describe x", RAFTLOG_SERVERS="127.0.0.1:9") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", shell])
    assert ended.value.code == 0
    assert f"_RAFTLOG_COMPLETE={shell}_complete" in capsys.readouterr().out
