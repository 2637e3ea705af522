"""Sources of the cluster's secret, its place, and its secrecy."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from raftlog.node.secret import SECRET_FILE, obtain_secret
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
    settings = NodeSettings(data_dir=str(directory), **values)
    return obtain_secret(settings, start, directory, SystemRandomness())


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
    assert obtained(tmp_path, start) == GIVEN.encode()


def test_secret_from_a_file_is_remembered_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text(f"{GIVEN}\n")
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
    ("secret", "complaint"), [("too short", "fewer than 16"), ("long" * 2_000, "more than 4096")]
)
def test_unusable_secret_is_refused_without_being_repeated(
    tmp_path: Path, secret: str, complaint: str
) -> None:
    file = tmp_path / "given"
    file.write_text(secret)
    for values in ({"cluster_secret": secret}, {"cluster_secret_file": str(file)}):
        with pytest.raises(StartError, match=complaint) as refused:
            obtained(tmp_path, **values)
        assert secret not in str(refused.value)
