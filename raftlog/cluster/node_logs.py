"""The nodes' logs: files that the processes append to, kept short from outside.

A process writes to its file itself, not through the manager: so it lives on, and is not stopped by
a full pipe, when the manager is killed. The price is the way of rotation: a file that has grown is
copied and cut, as `logrotate copytruncate` does; a line written between both is lost.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LOG_BYTES_MAX: Final = 16 * 1024 * 1024
OLD_LOGS_MAX: Final = 3
TAIL_BYTES_MAX: Final = 16 * 1024
COPY_BYTES: Final = 1024 * 1024


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file, as far as they are in its last 16 KiB; none if it is missing."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES_MAX))
            content = file.read(TAIL_BYTES_MAX)
    except OSError:
        return []
    return content.decode(errors="replace").splitlines()[-lines:]


def rotate(path: Path, size_max: int) -> bool:
    """Keep a log that has grown too long as `….1`, and let it begin anew. Raises OSError.

    Returns whether it did. Blocks. The file keeps its inode: processes have it open to append.
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
        # To the end as it is by then: what comes while we copy is copied, too.
        while chunk := source.read(COPY_BYTES):
            target.write(chunk)
        target.flush()
        source.truncate(0)
    return True


def _old(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
