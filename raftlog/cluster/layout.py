"""The cluster's directory, with its files, the manager's lock and the nodes' logs.

```
cluster.json      the manifest            node-N/      data directory of node N
cluster.secret    the nodes' secret       logs/        node-N.log, manager.log, older ones .1 to .3
manager.lock      held by the manager,    lost/        data directories of replaced nodes
                  holds its process id    processes.json  which processes run, for the next manager
control.sock      the control socket
```

A node appends to its log file itself, not through the manager. So the node outlives a killed
manager, and no full pipe stops the node. The price is the way of rotation. A long file is copied
and truncated, as `logrotate copytruncate` does, and a line written between both is lost.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raftlog.cluster import manifest as manifests
from raftlog.cluster.errors import AlreadyManagedError, ClusterError
from raftlog.cluster.manifest import Manifest, NodeEntry

SECRET_BYTES: Final = 32
FILE_BYTES_MAX: Final = 256 * 1024
LOCK_PATIENCE_S: Final = 0.5
"""A process that checks the lock takes the lock for a moment."""
LOCK_RETRY_S: Final = 0.02
BEGUN_FILE: Final = "directory.json"
"""File in a node's data directory with its identity, written before all else."""
_OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below a cluster's directory, which is absolute."""

    root: Path

    @classmethod
    def at(cls, directory: str | Path) -> Layout:
        """The layout of the cluster in this directory."""
        return cls(Path(directory).absolute())

    @property
    def manifest(self) -> Path:
        """The manifest."""
        return self.root / "cluster.json"

    @property
    def secret(self) -> Path:
        """The secret by which the nodes know each other."""
        return self.root / "cluster.secret"

    @property
    def lock(self) -> Path:
        """Locked by the manager as long as it runs."""
        return self.root / "manager.lock"

    @property
    def control(self) -> Path:
        """The socket on which the manager listens."""
        return self.root / "control.sock"

    @property
    def processes(self) -> Path:
        """The file of running processes."""
        return self.root / "processes.json"

    @property
    def manager_log(self) -> Path:
        """Log of a detached manager."""
        return self.root / "logs" / "manager.log"

    def data_dir(self, entry: NodeEntry) -> Path:
        """A node's data directory."""
        return self.root / entry.directory

    def log(self, node_id: int) -> Path:
        """Log of a node's processes, in sequence."""
        return self.root / "logs" / f"node-{node_id}.log"

    def has_begun(self, entry: NodeEntry) -> bool:
        """Whether a node's data directory has its identity, and so suffices to start the node."""
        return (self.data_dir(entry) / BEGUN_FILE).exists()

    def prepare(self) -> None:
        """Make the directories. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.root / "logs").mkdir(exist_ok=True, mode=0o700)

    def load_manifest(self) -> Manifest | None:
        """The manifest, or None if there is no cluster yet. Raises ClusterError, OSError."""
        content = read_file(self.manifest)
        return None if content is None else manifests.decoded(content, str(self.manifest))

    def require_manifest(self) -> Manifest:
        """The manifest. Raises ClusterError, OSError."""
        found = self.load_manifest()
        if found is None:
            raise ClusterError(
                f"there is no cluster in {self.root}",
                f"`raftlog cluster up --dir {self.root}` makes one.",
            )
        return found

    def save_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest, durably. Raises OSError."""
        replace_file(self.manifest, manifests.encoded(manifest))

    def ensure_secret(self) -> None:
        """Make the cluster's secret, unless there is one. Raises OSError."""
        if not self.secret.exists():
            replace_file(self.secret, secrets.token_hex(SECRET_BYTES).encode() + b"\n")

    def put_aside(self, entry: NodeEntry) -> Path | None:
        """Move a node's data directory to `lost/`. Return its new path, or None without any.

        Data is never deleted, since a damaged disk may have the last copy of a record.
        """
        source = self.data_dir(entry)
        if not source.exists():
            return None
        lost = self.root / "lost"
        lost.mkdir(exist_ok=True, mode=0o700)
        for attempt in range(1, 1_000):
            target = lost / f"{entry.directory}.{attempt}"
            if not target.exists():
                source.rename(target)
                sync_directory(self.root)
                return target
        raise ClusterError(f"{lost} is full of lost directories", "Move them elsewhere.")


class ManagerLock:
    """Held by the managing process. Released by the system at its end."""

    def __init__(self, layout: Layout) -> None:
        """Take the lock. Raises AlreadyManagedError, OSError."""
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
        try:
            is_held = _flock(descriptor, fcntl.LOCK_EX, LOCK_PATIENCE_S)
            if is_held:
                os.truncate(descriptor, 0)
                os.write(descriptor, b"%d\n" % os.getpid())
        except BaseException:
            os.close(descriptor)
            raise
        if not is_held:
            os.close(descriptor)
            raise AlreadyManagedError(str(layout.root), _pid_in(layout.lock))
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another process be the manager."""
        if self._descriptor >= 0:
            os.truncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1


def manager_pid(layout: Layout) -> int | None:
    """The manager's process id. 0 if not known yet, None without a manager. Raises OSError."""
    try:
        descriptor = os.open(layout.lock, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        # The lock is shared, as two checks must not take each other for a manager.
        return None if _flock(descriptor, fcntl.LOCK_SH, 0) else _pid_in(layout.lock)
    finally:
        os.close(descriptor)


def read_file(path: Path) -> bytes | None:
    """Read a small file. None without a file. Raises OSError."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file as a whole, durably, readable only for its owner. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int, patience_s: float) -> bool:
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(LOCK_RETRY_S)
        else:
            return True


def _pid_in(path: Path) -> int:
    content = (read_file(path) or b"").strip()
    return int(content) if content.isdigit() else 0


LOG_BYTES_MAX: Final = 16 * 1024 * 1024
OLD_LOGS_MAX: Final = 3
TAIL_BYTES_MAX: Final = 16 * 1024
COPY_BYTES: Final = 1024 * 1024


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file, within its last 16 KiB. None of them without a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES_MAX))
            content = file.read(TAIL_BYTES_MAX)
    except OSError:
        return []
    return content.decode(errors="replace").splitlines()[-lines:]


def rotate(path: Path, size_max: int) -> bool:
    """Rotate a log over its limit to `….1`, and truncate the file. Raises OSError.

    Returns whether a rotation was due. Blocks. The file keeps its inode, as processes append to it.
    """
    try:
        if path.stat().st_size <= size_max:
            return False
    except FileNotFoundError:
        return False
    for number in range(OLD_LOGS_MAX, 1, -1):
        newer = _old(path, number - 1)
        if newer.exists():
            newer.replace(_old(path, number))
    with path.open("r+b") as source, _old(path, 1).open("wb") as target:
        # The copy ends at the end as of then, so lines written during the copy are also copied.
        while chunk := source.read(COPY_BYTES):
            target.write(chunk)
        target.flush()
        source.truncate(0)
    return True


def _old(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
