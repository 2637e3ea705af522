"""Sources of the cluster's secret, its place, and its secrecy."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.node.secret import (
    SECRET_FILE,
    STRENGTH_BITS_MIN,
    SecretFile,
    Secrets,
    keep_secrets,
    obtain_secrets,
    strength_bits,
)
from raftlog.node.settings import NodeSettings
from raftlog.node.start import Begin, Join, Restart, Start, StartError
from raftlog.raft.voters import parse_voters
from raftlog.world.randomness import SystemRandomness

GIVEN = "correct horse battery staple"
ALONE = Begin(None)
OTHERS: list[Start] = [
    Begin(parse_voters("1@a:1,2@b:1")),
    Join(("a:1",)),
    Restart(began_alone=False),
]


def obtained(directory: Path, start: Start = ALONE, **values: str) -> bytes:
    """The only secret."""
    (secret,) = obtained_all(directory, start, **values)
    return secret


def obtained_all(directory: Path, start: Start = ALONE, **values: str) -> Secrets:
    settings = NodeSettings(data_dir=str(directory), **values)
    return obtain_secrets(settings, start, directory, SystemRandomness())


def put(path: Path, *lines: str, mode: int = 0o600) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(mode)
    return str(path)


def test_cluster_of_one_makes_a_secret_for_its_owner_alone_and_keeps_it(tmp_path: Path) -> None:
    first = obtained(tmp_path)
    assert len(first) >= 32
    path = tmp_path / SECRET_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert obtained(tmp_path, Restart(began_alone=True)) == first
    assert [entry.name for entry in tmp_path.iterdir()] == [SECRET_FILE]


def test_every_cluster_has_another_secret(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert obtained(tmp_path / "a") != obtained(tmp_path / "b")


@pytest.mark.parametrize("start", OTHERS)
def test_node_among_others_must_be_given_the_secret_once(tmp_path: Path, start: Start) -> None:
    with pytest.raises(StartError, match="--cluster-secret-file, or set RAFTLOG_CLUSTER_SECRET"):
        obtained(tmp_path, start)
    assert not (tmp_path / SECRET_FILE).exists()
    assert obtained(tmp_path, start, cluster_secret=GIVEN) == GIVEN.encode()
    keep_secrets(tmp_path, (GIVEN.encode(),))
    assert obtained(tmp_path, start) == GIVEN.encode()


def test_secret_from_a_file_is_remembered_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "given"
    put(file, GIVEN)
    data_dir = tmp_path / "d"
    data_dir.mkdir()
    assert obtained(data_dir, cluster_secret_file=str(file)) == GIVEN.encode()
    file.unlink()
    assert obtained(data_dir) == GIVEN.encode()
    with pytest.raises(FileNotFoundError):
        obtained(data_dir, cluster_secret_file=str(file))


def test_given_secret_goes_before_the_remembered_one_and_replaces_it(tmp_path: Path) -> None:
    obtained(tmp_path)
    assert obtained(tmp_path, cluster_secret=GIVEN) == GIVEN.encode()
    assert obtained(tmp_path) == GIVEN.encode()
    assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        ("too short", "fewer than 16"),
        ("long" * 2_000, "more than 4096"),
        ("s" * 16, "too easy to guess: `openssl rand -hex 32` prints a good one"),
        ("0123456789abcdef", "too easy to guess"),
        ("abcabcabcabcabcabcabc", "too easy to guess"),
    ],
)
def test_unusable_secret_is_refused_without_being_repeated(
    tmp_path: Path, secret: str, complaint: str
) -> None:
    file = tmp_path / "given"
    put(file, secret)
    for values in ({"cluster_secret": secret}, {"cluster_secret_file": str(file)}):
        with pytest.raises(StartError, match=complaint) as refused:
            obtained(tmp_path, **values)
        assert secret not in str(refused.value)


def test_random_secrets_are_strong_enough_and_patterns_are_not() -> None:
    for _ in range(200):
        for made in (secrets.token_hex(16), secrets.token_urlsafe(12), secrets.token_hex(32)):
            assert strength_bits(made.encode()) > STRENGTH_BITS_MIN
    for easy in ("x" * 40, "0123456789" * 2, "abababababababab", "zyxwvutsrqponmlkjihgf", ""):
        assert strength_bits(easy.encode()) < STRENGTH_BITS_MIN, easy
    assert strength_bits("schlüsselwörterbuch".encode()) > STRENGTH_BITS_MIN


def test_weak_secret_of_a_running_cluster_restarts_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster of an earlier release must not stand still after an upgrade."""
    put(tmp_path / SECRET_FILE, "s" * 16)
    assert obtained(tmp_path) == b"s" * 16
    assert "too easy to guess: change it" in caplog.text
    assert obtained(tmp_path, cluster_secret="s" * 16) == b"s" * 16
    with pytest.raises(StartError, match="too easy to guess"):
        obtained(tmp_path, cluster_secret="t" * 16)


@pytest.mark.parametrize(
    ("mode", "is_roots", "is_private"),
    [
        (0o600, False, True),
        (0o400, False, True),
        (0o640, False, False),
        (0o604, False, False),
        (0o644, False, False),
        (0o620, False, False),
        (0o640, True, True),
        (0o440, True, True),
        (0o600, True, True),
        (0o644, True, False),
        (0o660, True, False),
    ],
)
def test_secret_file_is_refused_if_others_have_access(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    is_roots: bool,
    is_private: bool,
) -> None:
    file = put(tmp_path / "given", GIVEN, mode=mode)
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        fields = list(real(descriptor))
        fields[stat.ST_UID] = 0 if is_roots else 1000
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", fstat)
    if is_private:
        assert obtained(tmp_path, cluster_secret_file=file) == GIVEN.encode()
        return
    with pytest.raises(StartError, match=rf"\(mode {mode:o}\): run `chmod 600 {file}`") as refused:
        obtained(tmp_path, cluster_secret_file=file)
    assert GIVEN not in str(refused.value)


def test_remembered_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    put(tmp_path / SECRET_FILE, GIVEN, mode=0o604)
    with pytest.raises(StartError, match="chmod 600"):
        obtained(tmp_path)


def test_two_lines_are_two_secrets_for_a_while(tmp_path: Path) -> None:
    file = put(tmp_path / "given", "a new and better secret", "", GIVEN)
    both = (b"a new and better secret", GIVEN.encode())
    assert obtained_all(tmp_path, cluster_secret_file=file) == both
    assert obtained_all(tmp_path) == both, "remembered, in their order"
    put(tmp_path / "given", GIVEN, GIVEN)
    assert obtained_all(tmp_path, cluster_secret_file=file) == (GIVEN.encode(),)
    put(tmp_path / "given", "one secret of three", "two secrets of three", "three of three")
    with pytest.raises(StartError, match="more than 2 lines"):
        obtained_all(tmp_path, cluster_secret_file=file)


NEW = "a new and better secret"


@pytest.mark.parametrize("is_given", [True, False])
def test_changed_file_is_used_without_a_restart_and_remembered(
    tmp_path: Path, is_given: bool
) -> None:
    given = put(tmp_path / "given", GIVEN)
    values = {"cluster_secret_file": given} if is_given else {}
    obtained(tmp_path, cluster_secret_file=given)
    path = tmp_path / ("given" if is_given else SECRET_FILE)
    file = SecretFile(NodeSettings(data_dir="d", **values), tmp_path, (GIVEN.encode(),))
    assert file.reread() is None
    put(path, NEW, GIVEN)
    assert file.reread() == (NEW.encode(), GIVEN.encode())
    assert file.reread() is None
    assert obtained_all(tmp_path) == (NEW.encode(), GIVEN.encode())
    put(path, NEW)
    assert file.reread() == (NEW.encode(),)
    assert obtained_all(tmp_path) == (NEW.encode(),)


def test_unusable_change_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    given = put(tmp_path / "given", GIVEN)
    settings = NodeSettings(data_dir="d", cluster_secret_file=given)
    file = SecretFile(settings, tmp_path, obtained_all(tmp_path, cluster_secret_file=given))
    spoilt: list[tuple[Callable[[], object], str]] = [
        (lambda: put(tmp_path / "given", "short"), "fewer than 16"),
        (lambda: put(tmp_path / "given", "s" * 16), "too easy to guess"),
        (lambda: put(tmp_path / "given", NEW, mode=0o644), "chmod 600"),
        ((tmp_path / "given").unlink, "No such file"),
    ]
    for spoil, complaint in spoilt:
        spoil()
        caplog.clear()
        for _ in range(3):
            assert file.reread() is None
        assert len(caplog.records) == 1
        assert complaint in caplog.text
        assert obtained(tmp_path) == GIVEN.encode()
    put(tmp_path / "given", NEW)
    assert file.reread() == (NEW.encode(),)


def test_secret_given_as_such_is_not_reread(tmp_path: Path) -> None:
    settings = NodeSettings(data_dir="d", cluster_secret=GIVEN)
    file = SecretFile(settings, tmp_path, obtained_all(tmp_path, cluster_secret=GIVEN))
    put(tmp_path / SECRET_FILE, NEW)
    assert file.is_fixed
    assert file.reread() is None


def test_restart_keeps_a_given_secret_only_when_it_has_not_been_refused(tmp_path: Path) -> None:
    made = obtained(tmp_path)
    restart = Restart(began_alone=True)
    assert obtained(tmp_path, restart, cluster_secret=GIVEN) == GIVEN.encode()
    assert obtained(tmp_path, restart) == made
    keep_secrets(tmp_path, (GIVEN.encode(),))
    assert obtained(tmp_path, restart) == GIVEN.encode()
