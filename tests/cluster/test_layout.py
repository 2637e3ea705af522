from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.cluster import manifest as manifests
from raftlog.cluster.errors import AlreadyManagedError, ClusterError
from raftlog.cluster.layout import BEGUN_FILE, Layout, ManagerLock, manager_pid
from raftlog.cluster.manifest import Plan
from raftlog.node.directory import IDENTITY_FILE

MANIFEST = manifests.new_manifest(Plan(), [9001, 9002], "2026-01-01T00:00:00+00:00")
HOLD = """
import sys
from raftlog.cluster.layout import Layout, ManagerLock
lock = ManagerLock(Layout.at(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout.at(tmp_path / "cluster")
    made.prepare()
    return made


def test_file_that_tells_a_node_has_begun_is_the_nodes_own() -> None:
    assert BEGUN_FILE == IDENTITY_FILE


def test_node_has_begun_once_its_directory_says_who_it_is(layout: Layout) -> None:
    entry = MANIFEST.nodes[0]
    assert not layout.has_begun(entry)
    layout.data_dir(entry).mkdir()
    # Left by a first start that died before: the next one needs all arguments again.
    (layout.data_dir(entry) / "cluster.secret").touch()
    assert not layout.has_begun(entry)
    (layout.data_dir(entry) / IDENTITY_FILE).touch()
    assert layout.has_begun(entry)


def test_manifest_is_kept_and_its_absence_told(layout: Layout) -> None:
    assert layout.load_manifest() is None
    with pytest.raises(ClusterError, match="there is no cluster"):
        layout.require_manifest()
    layout.save_manifest(MANIFEST)
    assert layout.require_manifest() == MANIFEST


def test_secret_is_made_once_and_for_the_owner_alone(layout: Layout) -> None:
    layout.ensure_secret()
    secret = layout.secret.read_bytes()
    assert len(secret.strip()) >= 32
    assert layout.secret.stat().st_mode & 0o777 == 0o600
    layout.ensure_secret()
    assert layout.secret.read_bytes() == secret


def test_second_manager_is_refused_and_told_who_is_the_first(layout: Layout) -> None:
    assert manager_pid(layout) is None
    lock = ManagerLock(layout)
    assert manager_pid(layout) == os.getpid()
    with pytest.raises(AlreadyManagedError) as caught:
        ManagerLock(layout)
    assert caught.value.pid == os.getpid()
    lock.release()
    assert manager_pid(layout) is None
    ManagerLock(layout).release()


def test_killed_manager_holds_nothing(layout: Layout) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(layout.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert manager_pid(layout) == holder.pid
        holder.kill()
        holder.wait()
    assert manager_pid(layout) is None


def test_lost_directory_is_moved_aside_never_deleted(layout: Layout) -> None:
    entry = MANIFEST.nodes[0]
    assert layout.put_aside(entry) is None
    places = []
    for content in ("first", "second"):
        layout.data_dir(entry).mkdir()
        (layout.data_dir(entry) / "file").write_text(content)
        places.append(layout.put_aside(entry))
        assert not layout.data_dir(entry).exists()
    assert [(place / "file").read_text() for place in places if place] == ["first", "second"]
