"""The memory of a data directory, and the uses refused by the directory."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raftlog.node.directory import (
    IDENTITY_FILE,
    METADATA_DIRECTORY,
    REMEMBERED_FILE,
    DirectoryState,
    IdentityError,
    claim,
    load_state,
    remember,
    remembered_settings,
    warn_if_shared,
)
from raftlog.node.settings import NodeSettings
from raftlog.node.start import Begin, Join, decide_start
from raftlog.raft.log.store import JOURNAL_NAME, SNAPSHOT_NAME
from raftlog.storage.manager import REPLICAS
from raftlog.world.randomness import SystemRandomness
from raftlog.world.real_disk import FileSystemDisk
from tests.simulation.disk import MachineStoppedError, SimulatedDisk

THREE = "1@10.0.0.1:8082,2@10.0.0.2:8082,3@10.0.0.3:8082"
RANDOMNESS = SystemRandomness()


def settings(node_id: int = 2, **values: Any) -> NodeSettings:
    return NodeSettings(data_dir="d", node_id=node_id, **values)


def make_journal(disk: SimulatedDisk, name: str = JOURNAL_NAME) -> None:
    disk.make_directory(METADATA_DIRECTORY)
    disk.sync_directory("")
    disk.replace(f"{METADATA_DIRECTORY}/{name}", b"x")


def claimed(disk: SimulatedDisk, **values: Any) -> DirectoryState:
    state = load_state(disk)
    claim(disk, settings(**values), state, RANDOMNESS)
    return load_state(disk)


def test_new_directory_is_claimed_once_and_for_all() -> None:
    disk = SimulatedDisk(1)
    assert load_state(disk) == DirectoryState(None, False)
    first = claimed(disk, voters=THREE).identity
    assert first is not None
    assert (first.node_id, first.first_start.voters, first.first_start.join) == (2, THREE, None)
    assert claimed(disk).identity == first
    make_journal(disk)
    assert claimed(disk, join="a:1").identity == first
    disk.crash(power=True)
    assert load_state(disk) == DirectoryState(first, True)


def test_wiped_directory_gets_another_identity() -> None:
    first, second = (claimed(SimulatedDisk(1)).identity for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.directory_id != second.directory_id


def test_directory_of_another_node_is_refused() -> None:
    disk = SimulatedDisk(1)
    claimed(disk)
    with pytest.raises(IdentityError, match="belongs to node 2, not to node 3"):
        claimed(disk, node_id=3)


def test_unfinished_first_start_keeps_its_identity_when_repeated() -> None:
    disk = SimulatedDisk(1)
    first = claimed(disk, join="mistyped:1").identity
    second = claimed(disk, join="right:1").identity
    assert first is not None
    assert second is not None
    assert (second.directory_id, second.first_start.join) == (first.directory_id, "right:1")


def test_unfinished_start_in_a_lost_nodes_place_is_repeated_without_its_options() -> None:
    disk = SimulatedDisk(1)
    first = claimed(disk, join="a:1", replace=2).identity
    assert first is not None and first.first_start.replaces
    start = decide_start(settings(listen="0.0.0.0:8082"), load_state(disk))
    assert start == Join(("a:1",), replaces=True)


def test_first_start_that_is_cut_off_leaves_nothing_or_all_of_how_it_was_asked_for() -> None:
    """A voter with a failed first start must not begin a cluster of its own when started
    plainly."""
    outcomes: set[bool] = set()
    for seed in range(40):
        disk = SimulatedDisk(seed)
        disk.crash_in(seed % 8 + 1)
        with suppress(MachineStoppedError):
            claimed(disk, voters=THREE)
        disk.crash(power=True)
        state = load_state(disk)
        outcomes.add(state.identity is None)
        if state.identity is not None:
            start = decide_start(settings(listen="0.0.0.0:8082"), state)
            assert isinstance(start, Begin)
            assert start.voters is not None
            assert len(start.voters.voters) == 3
    assert outcomes == {True, False}


@pytest.mark.parametrize("left", ["snapshot", "replicas", "remembered"])
def test_directory_that_was_in_use_needs_its_journal(left: str) -> None:
    disk = SimulatedDisk(1)
    claimed(disk)
    match left:
        case "snapshot":
            make_journal(disk, SNAPSHOT_NAME)
        case "replicas":
            disk.make_directory(f"{REPLICAS}/t-0")
        case _:
            remember(disk, settings())
    with pytest.raises(IdentityError, match="metadata/journal is missing: restore it") as refused:
        load_state(disk)
    assert "`raftlog serve --replace 2 --join …`" in str(refused.value)


def test_metadata_without_an_identity_belongs_to_no_node() -> None:
    disk = SimulatedDisk(1)
    make_journal(disk)
    with pytest.raises(IdentityError, match=r"no directory\.json"):
        load_state(disk)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"directory_id":1}'])
def test_damaged_identity_is_an_error_that_names_the_file(content: bytes) -> None:
    disk = SimulatedDisk(1)
    disk.replace(IDENTITY_FILE, content)
    with pytest.raises(IdentityError, match=r"directory\.json in the data directory is damaged"):
        load_state(disk)


def test_addresses_and_rack_are_remembered_for_later_starts(tmp_path: Path) -> None:
    assert remembered_settings(tmp_path / "missing") == {}
    assert remembered_settings(tmp_path) == {}
    disk = FileSystemDisk(str(tmp_path))
    try:
        given = settings(listen="0.0.0.0:8082", rack="r1", voters=THREE)
        claim(disk, given, load_state(disk), RANDOMNESS)
        expected = {
            "node_id": 2,
            "listen": "0.0.0.0:8082",
            "advertised": "10.0.0.2:8082",
            "rack": "r1",
        }
        assert remembered_settings(tmp_path) == expected  # of the first start, if cut off
        remember(disk, given)
        assert remembered_settings(tmp_path) == expected
        assert remembered_settings(tmp_path, listen="0.0.0.0:8082") == expected
        moved = remembered_settings(tmp_path, listen="0.0.0.0:9")
        assert "advertised" not in moved
        remember(disk, settings(listen="127.0.0.1:1"))
        assert remembered_settings(tmp_path) == {"node_id": 2, "listen": "127.0.0.1:1"}
    finally:
        disk.close()


def test_kafka_addresses_are_remembered_until_others_are_given(tmp_path: Path) -> None:
    disk = FileSystemDisk(str(tmp_path))
    try:
        given = settings(kafka_listen="0.0.0.0:9092", kafka_advertise="gateway=lb:9092")
        claim(disk, given, load_state(disk), RANDOMNESS)
        for _ in range(2):  # of the first start, then of the last one
            found = remembered_settings(tmp_path)
            assert found["kafka_listen"] == "0.0.0.0:9092"
            assert found["kafka_advertise"] == "gateway=lb:9092"
            remember(disk, given)
        same = remembered_settings(tmp_path, kafka_listen="0.0.0.0:9092")
        assert same["kafka_advertise"] == "gateway=lb:9092"
        for other in ("0.0.0.0:9093", "none"):
            assert "kafka_advertise" not in remembered_settings(tmp_path, kafka_listen=other)
        remember(disk, settings(kafka_listen="none"))
        assert not {"kafka_listen", "kafka_advertise"} & remembered_settings(tmp_path).keys()
    finally:
        disk.close()


def test_no_secret_is_remembered_in_the_clear(tmp_path: Path) -> None:
    disk = FileSystemDisk(str(tmp_path))
    try:
        given = settings(cluster_secret="correct horse battery staple")
        claim(disk, given, load_state(disk), RANDOMNESS)
        remember(disk, given)
    finally:
        disk.close()
    for name in (IDENTITY_FILE, REMEMBERED_FILE):
        assert "horse" not in (tmp_path / name).read_text()


def test_what_a_later_release_remembers_besides_is_ignored(tmp_path: Path) -> None:
    (tmp_path / IDENTITY_FILE).write_text(json.dumps({"directory_id": "d", "node_id": 3, "x": 1}))
    (tmp_path / REMEMBERED_FILE).write_text(json.dumps({"listen": "a:1", "colour": "red"}))
    assert remembered_settings(tmp_path) == {"node_id": 3, "listen": "a:1"}


def test_full_disk_is_no_reason_not_to_start(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk(1)
    claimed(disk)
    disk.capacity_bytes = 0
    remember(disk, settings())
    assert "not remembered" in caplog.text
    assert not disk.exists(REMEMBERED_FILE)


def test_directory_open_to_others_is_warned_of_and_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o700)
    warn_if_shared(tmp_path)
    assert caplog.text == ""
    for mode in (0o750, 0o755):
        tmp_path.chmod(mode)
        caplog.clear()
        warn_if_shared(tmp_path)
        assert f"(mode {mode:o}): run `chmod -R go= {tmp_path}`" in caplog.text
        assert tmp_path.stat().st_mode & 0o777 == mode
