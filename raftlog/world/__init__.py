"""The world: what a node cannot decide by itself, behind small interfaces.

Purpose: clock, disk, network and randomness come in through here, so that the simulator runs the
very code that ships.

Rules: interfaces hold no policy; the real ones (`real_*`) hold no decisions. Everything above asks
for time, storage, other nodes and random bytes only through these interfaces. What several of those
above would write again on top of them stands here once (`alarm`, `small_files`).

Must not know: records, logs, topics, HTTP. Imports nothing of raftlog.
"""

from raftlog.world.disk import Buffer, Disk, DiskError, DiskFullError, File, read_small_file
from raftlog.world.network import Network
from raftlog.world.randomness import Randomness
from raftlog.world.time import Clock, Wakeup

__all__ = [
    "Buffer",
    "Clock",
    "Disk",
    "DiskError",
    "DiskFullError",
    "File",
    "Network",
    "Randomness",
    "Wakeup",
    "read_small_file",
]
