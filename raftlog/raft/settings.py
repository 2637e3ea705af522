"""What a member is given: who it is, its bounds, its patience."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raftlog.raft.core import Timing
from raftlog.raft.messages import CHUNK_BYTES_MAX, COMMAND_BYTES_MAX

JOURNAL_BYTES_MAX: Final = 256 * 1024 * 1024
"""The journal, if snapshots fail for lack of room; proposals are rejected above it."""
DISK_RESERVE_BYTES: Final = 1024 * 1024
"""With less room than this, a leader rejects proposals: every entry must find room."""


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Who a member is to the others."""

    node_id: int
    directory_id: str
    """Identity of the data directory: another one under the same node id is another node."""
    software_version: str
    bootstrap_id: str | None = None
    """Digest of the voters it was told to begin a cluster with; None if it was told none."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Bounds and times of a quorum member. The defaults are right for all but tests."""

    timing: Timing = field(default_factory=Timing)
    command_bytes_max: int = COMMAND_BYTES_MAX
    uncommitted_entries_max: int = 10_000
    """Entries a leader has in its log beyond the commit index; more are refused."""
    proposal_s: float = 10.0
    """How long a proposal is waited for."""
    snapshot_entries: int = 10_000
    """Entries after which a snapshot is taken."""
    snapshot_bytes: int = 16 * 1024 * 1024
    """Growth of the journal after which a snapshot is taken."""
    entries_kept: int = 1_000
    """Entries kept behind a snapshot, for members that lag a little."""
    chunk_bytes: int = CHUNK_BYTES_MAX
    """Of a snapshot on its way to another member."""
