"""Histories survive their way through a file."""

from __future__ import annotations

from pathlib import Path

from tests.verification.history_file import load, save
from tests.verification.log_checker import main
from tests.verification.log_history import (
    DECODER,
    Assign,
    Compacted,
    Deletion,
    End,
    FinalRead,
    Lookup,
    Loss,
    Operation,
    Poll,
    Send,
)

P = "t-0"
HISTORY: list[Operation] = [
    Send(partition=P, producer="p", values=("a", "b"), invoked=1, completed=2, outcome="ok",
         offset=0, repeated=True),
    Send(partition=P, producer="p", values=("c",), invoked=3, acks=1, idempotent=False),
    Assign(partition=P, consumer="c", offset=0),
    Poll(partition=P, consumer="c", invoked=4, completed=5, start=0, next_offset=2,
         records=((0, "a"), (1, "b")), node="n1"),
    End(partition=P, invoked=6, completed=7, offset=2),
    FinalRead(partition=P, node="n1", start=0, end=2, records=((0, "a"), (1, "b"))),
    Lookup(partition=P, invoked=6, completed=7, time_ms=5, offset=0, found_ms=5),
    Compacted(partition=P, end=2),
    Loss(partition="other", step=8, offset=3),
    Deletion(partition="other", before=3),
]  # fmt: skip


def test_a_saved_history_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "history"
    save(path, HISTORY)
    assert list(load(path, DECODER)) == HISTORY


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history"
    save(path, HISTORY)
    path.write_bytes(path.read_bytes()[:-5])
    assert list(load(path, DECODER)) == HISTORY[:-1]


def test_a_file_is_judged(tmp_path: Path) -> None:
    save(tmp_path / "sound", HISTORY)
    assert main([str(tmp_path / "sound")]) == 0
    wrong = FinalRead(partition=P, node="n2", start=0, end=1, records=((0, "a"),))
    save(tmp_path / "wrong", [*HISTORY, wrong])
    assert main([str(tmp_path / "sound"), str(tmp_path / "wrong")]) == 1
