"""Reading whole a file that is small."""

from __future__ import annotations

from raftlog.world.disk import Disk


def read_small_file(disk: Disk, path: str, bytes_max: int) -> bytes | None:
    """A file's content; None if there is no such file. Blocks. Raises DiskError.

    One longer than `bytes_max` is cut there, so that its reader finds it damaged: None would
    say that it is missing.
    """
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read(0, min(file.size, bytes_max))
    finally:
        file.close()
