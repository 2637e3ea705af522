from __future__ import annotations

from pathlib import Path

from raftlog.cluster.layout import OLD_LOGS_MAX, rotate, tail


def test_short_or_missing_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert not rotate(path, 10)
    path.write_bytes(b"0123456789")
    assert not rotate(path, 10)
    assert path.read_bytes() == b"0123456789"


def test_process_goes_on_writing_to_the_log_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as process:
        process.write(b"before, and more\n")
        assert rotate(path, 10)
        process.write(b"after\n")
    assert path.read_bytes() == b"after\n"
    assert (tmp_path / "log.1").read_bytes() == b"before, and more\n"


def test_number_of_old_logs_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(OLD_LOGS_MAX + 3):
        path.write_bytes(b"%d" % number * 20)
        assert rotate(path, 10)
    kept = sorted(file.name for file in tmp_path.iterdir())
    assert kept == ["log", "log.1", "log.2", "log.3"]
    newest = OLD_LOGS_MAX + 2
    assert [(tmp_path / f"log.{n}").read_bytes()[:1] for n in (1, 2, 3)] == [
        b"%d" % (newest - n) for n in range(3)
    ]


def test_tail_is_the_last_lines_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail(path, 3) == []
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert tail(path, 2) == ["line 99998", "line 99999"]
    path.write_bytes(b"x" * 1_000_000)
    assert len(tail(path, 5)[0]) <= 16 * 1024
