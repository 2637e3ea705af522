"""Small interfaces to time, storage, randomness and the other nodes.

Purpose: a node reaches clock, disk, network and randomness only through this package, so that the
simulator runs the shipped code.

Rules: interfaces hold no policy. The real implementations hold no decisions. All packages above use
time, storage, other nodes and random bytes only through these interfaces. Helpers that several
packages need stand here once (`Backoff`, `Wakeup`, `ClusterClock`,
`read_small_file`).

Must not know: records, logs, topics, HTTP. Imports nothing of raftlog.
"""

from raftlog.world.backoff import Backoff
from raftlog.world.disk import (
    Buffer,
    Disk,
    DiskError,
    DiskFullError,
    File,
    Sync,
    read_small_file,
)
from raftlog.world.network import Network
from raftlog.world.randomness import Randomness
from raftlog.world.time import Clock, Wakeup

__all__ = [
    "Backoff",
    "Buffer",
    "Clock",
    "Disk",
    "DiskError",
    "DiskFullError",
    "File",
    "Network",
    "Randomness",
    "Sync",
    "Wakeup",
    "read_small_file",
]
