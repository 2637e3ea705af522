"""Files and directories of a simulated disk, present and after a power cut.

Each has two states: the written one, visible to processes, and the durable one, which a power cut
leaves at the least.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Inode:
    """A file: its written bytes, and the least left after a power cut."""

    written: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    equal_bytes: int = 0
    """So many first bytes are the same in both: only the others must be copied by a sync."""
    lost: bool = False
    """A sync failed: bytes unsynced then never reach the disk."""

    @classmethod
    def durable(cls, content: bytes) -> Inode:
        """A file, the same before and after a power cut."""
        return cls(bytearray(content), bytearray(content), len(content))

    def truncate(self, size: int) -> None:
        """Truncate the written bytes."""
        del self.written[size:]
        self.equal_bytes = min(self.equal_bytes, size)

    def sync(self) -> None:
        """Make the written bytes durable."""
        if not self.lost:
            self.synced[self.equal_bytes :] = self.written[self.equal_bytes :]
            self.equal_bytes = len(self.written)


@dataclass(eq=False)
class Directory:
    """Present names, and durable names."""

    entries: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)

    def set(self, name: str, entry: Inode | Directory | None) -> None:
        """Change a name, in memory."""
        _set(self.entries, name, entry)

    def set_durable(self, name: str, entry: Inode | Directory | None) -> None:
        """Change a name, on the disk."""
        _set(self.durable, name, entry)


NameChange = list[tuple[Directory, str, Inode | Directory | None]]
"""Names changed together: two in a rename."""


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
    """The files in and below a directory, each with `above` before its path."""
    paths: list[str] = []
    for name, entry in directory.entries.items():
        path = above + name
        paths += paths_of(entry, path + "/") if isinstance(entry, Directory) else [path]
    return paths


def used_by(directory: Directory) -> int:
    """Sum of the lengths of all files in and below a directory."""
    return sum(
        used_by(entry) if isinstance(entry, Directory) else len(entry.written)
        for entry in directory.entries.values()
    )
