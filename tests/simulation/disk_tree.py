"""What a simulated disk holds: files and directories, as they are and as they would be afterwards.

Each knows two states: what was written, which a process sees, and what is durable, which a power
cut leaves at the least.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Inode:
    """A file: what was written, and what would be left after a power cut at the least."""

    written: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    equal_bytes: int = 0
    """So many first bytes are the same in both: only the others must be copied by a sync."""
    lost: bool = False
    """A sync failed: the bytes that were unsynced then never reach the disk."""

    @classmethod
    def durable(cls, content: bytes) -> Inode:
        """A file that is the same before and after a power cut."""
        return cls(bytearray(content), bytearray(content), len(content))

    def truncate(self, size: int) -> None:
        """Cut what was written."""
        del self.written[size:]
        self.equal_bytes = min(self.equal_bytes, size)

    def sync(self) -> None:
        """Make what was written durable."""
        if not self.lost:
            self.synced[self.equal_bytes :] = self.written[self.equal_bytes :]
            self.equal_bytes = len(self.written)


@dataclass(eq=False)
class Directory:
    """Names, and the names that are durable."""

    entries: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)

    def set(self, name: str, entry: Inode | Directory | None) -> None:
        """Change a name, in memory."""
        _set(self.entries, name, entry)

    def set_durable(self, name: str, entry: Inode | Directory | None) -> None:
        """Change a name, on the disk."""
        _set(self.durable, name, entry)


NameChange = list[tuple[Directory, str, Inode | Directory | None]]
"""Names that change together: a renaming is two."""


def _set(names: dict[str, Inode | Directory], name: str, entry: Inode | Directory | None) -> None:
    if entry is None:
        names.pop(name, None)
    else:
        names[name] = entry


def parts_of(path: str) -> list[str]:
    """A path, taken apart."""
    parts = [part for part in path.split("/") if part]
    assert ".." not in parts, f"illegal path {path!r}"
    return parts


def paths_of(directory: Directory, above: str) -> list[str]:
    """The files in a directory and below it, each with `above` before its path."""
    paths: list[str] = []
    for name, entry in directory.entries.items():
        path = above + name
        paths += paths_of(entry, path + "/") if isinstance(entry, Directory) else [path]
    return paths


def used_by(directory: Directory) -> int:
    """Sum of the lengths of all files in a directory and below it."""
    return sum(
        used_by(entry) if isinstance(entry, Directory) else len(entry.written)
        for entry in directory.entries.values()
    )
