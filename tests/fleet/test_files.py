"""The files beside the fleet's file: the lock, the record, the secret."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from raftlog.fleet.errors import FleetError
from raftlog.fleet.files import Applied, FleetFiles
from raftlog.fleet.spec import ClusterSpec, FleetSpec, parse

LOG = ClusterSpec(driver="local", log="a", name="a", dir="/a")
SSH = ClusterSpec(driver="ssh", name="s", hosts=("h1", "h2"), logs=("x", "y"))


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    return FleetFiles(tmp_path / "fleet.toml")


def test_one_apply_at_a_time(files: FleetFiles) -> None:
    with (
        files.locked(),
        pytest.raises(FleetError, match=r"another apply .* \(process \d+\)"),
        FleetFiles(files.file).locked(),
    ):
        raise AssertionError("two at once")
    with files.locked():
        pass


def test_record_is_kept(files: FleetFiles) -> None:
    assert files.load_applied() == Applied()
    text = (
        '[[cluster]]\nname = "s"\ndriver = "ssh"\nhosts = ["h1", { address = "h2", rack = "b" }]\n'
    )
    applied = Applied(parse(text, Path("/d")).cluster)
    files.save_applied(applied)
    assert files.load_applied() == applied
    files.path("applied").write_text("{")
    with pytest.raises(FleetError, match=r"fleet\.toml\.applied cannot be read"):
        files.load_applied()


def test_run_begins_with_past_hosts_and_logs_and_ends_without() -> None:
    now = replace(SSH, hosts=("h2", "h3"), logs=("y", "z"))
    merged = Applied((SSH, LOG)).merged(FleetSpec((now,)))
    first, gone = merged.clusters
    assert [machine.name for machine in first.machines] == ["h1", "h2", "h3"]
    assert first.listed == ("y", "z", "x")
    assert gone == LOG
    assert merged.finished(FleetSpec((now,)), []).clusters == (now, LOG)
    assert merged.finished(FleetSpec((now,)), ["a"]).clusters == (now,)


def test_secret_is_made_once_and_for_its_owner_alone(files: FleetFiles) -> None:
    assert files.secret() is None
    secret = files.ensure_secret(None)
    assert files.ensure_secret("another") == secret == files.secret()
    assert stat.S_IMODE(files.path("secret").stat().st_mode) == 0o600
    files.path("secret").unlink()
    assert files.ensure_secret("known\n") == "known\n"
