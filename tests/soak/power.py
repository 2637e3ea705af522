"""Disks that lose power: an ext4 file system in a file for each node, with a boot id of its own.

A cut is the shutdown ioctl of ext4 without a flush of the journal: data that was not synced is gone
at the next mount, as after a power cut, while the machine goes on. A node distinguishes a power cut
from a crash by the machine's boot id, so each node sees a boot id of its own, which changes with
every cut. Needs root, loop devices, mkfs.ext4 and mount namespaces.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from bench.cluster import LOOPBACK, Place

EXT4_SHUTDOWN: Final = 0x8004587D
NO_JOURNAL_FLUSH: Final = struct.pack("I", 2)
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
TOOLS: Final = ("mkfs.ext4", "mount", "umount", "losetup", "unshare")
ENTER: Final = ("unshare", "--mount", "--propagation", "slave")
"""Slave: an unmount must reach all namespaces, or the file system stays mounted as it was."""
COMMAND_TIMEOUT_S: Final = 30.0
UNMOUNT_TRIES: Final = 500
UNMOUNT_PAUSE_S: Final = 0.02


class NoDisksError(Exception):
    """Disks that can lose power are not available on this machine."""


class LoopDisk:
    """One node's disk and boot id. Use it as a context manager.

    The disk is mounted below `directory`; the node's data directory is `data_dir`, inside.
    Raises NoDisksError.
    """

    def __init__(self, image: Path, directory: Path, *, mib: int) -> None:
        self._parent = directory
        self.directory = directory / "disk"
        self._image = image
        self._mib = mib
        self._boot_id = image.with_suffix(".boot-id")
        self._undo = ExitStack()

    @property
    def data_dir(self) -> Path:
        """The node's data directory, beside `lost+found` on the disk."""
        return self.directory / "data"

    @property
    def place(self) -> Place:
        """The place of the node: on loopback, with this disk's boot id."""
        script = f'mount --bind "{self._boot_id}" {BOOT_ID} && exec "$@"'
        return Place(LOOPBACK.host, (*ENTER, "sh", "-c", script, "node"))

    def cut_power(self) -> None:
        """Drop all data that was not synced, and mount again. The node must have ended."""
        self.fail()
        self.replug()

    def fail(self) -> None:
        """Fail every write and sync from now on, and drop all data that was not synced."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_SHUTDOWN, NO_JOURNAL_FLUSH)
        finally:
            os.close(descriptor)

    def replug(self) -> None:
        """Mount a failed disk again. The node must have ended."""
        self._unmount()
        self._new_boot_id()
        self._mount()

    def fill(self) -> Path:
        """Fill the disk; return the file to delete to free the space."""
        ballast = self.directory / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 512):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return ballast

    def __enter__(self) -> LoopDisk:
        if os.geteuid() != 0:
            raise NoDisksError("loop devices need root")
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise NoDisksError(f"there is no {', '.join(missing)} here")
        _run(*ENTER, "true")
        with self._image.open("wb") as file:
            file.truncate(self._mib << 20)
        _run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0", str(self._image))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._new_boot_id()
        with ExitStack() as stack:
            _run("mount", "--bind", str(self._parent), str(self._parent))
            stack.callback(_run, "umount", str(self._parent))
            _run("mount", "--make-shared", str(self._parent))
            self._mount()
            stack.callback(self._unmount)
            self.data_dir.mkdir()
            self._undo = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()

    def _new_boot_id(self) -> None:
        self._boot_id.write_text(f"{uuid.uuid4()}\n")

    def _mount(self) -> None:
        # No periodic commit of the journal during a test, so unsynced data is lost.
        _run("mount", "-o", "loop,commit=300", str(self._image), str(self.directory))

    def _unmount(self) -> None:
        """Unmount everywhere: a mount before would find the old file system, with its data."""
        for _ in range(UNMOUNT_TRIES):
            if self.directory.is_mount():
                # A killed process may hold the mount for a moment more.
                with suppress(NoDisksError):
                    _run("umount", str(self.directory))
            elif not _run("losetup", "--associated", str(self._image)):
                return
            time.sleep(UNMOUNT_PAUSE_S)
        raise NoDisksError(f"{self.directory} cannot be unmounted")


def _run(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise NoDisksError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
