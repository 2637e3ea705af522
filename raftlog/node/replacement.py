"""A replacement remembers the vote of a lost node from its removal to its return.

`serve --replace` takes the lost node's vote away before the new directory may join, and the node
gets a vote again once it has caught up. In between the node may die. The file `replacement.json`
records that a vote is due, from before the removal until it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from raftlog.metadata.apply.apply import ApplyResult
from raftlog.raft import RaftMember
from raftlog.record.errors import LogError
from raftlog.world import Clock, Disk

REPLACEMENT_FILE: Final = "replacement.json"
VOTE_RETRY_S: Final = 0.5
REPORT_S: Final = 10.0
"""Interval of log lines with the same reason for a vote that is not given."""

NoteVote: TypeAlias = Callable[[], Awaitable[None]]
TakePlace: TypeAlias = Callable[[Sequence[str], int, str, NoteVote], Awaitable[None]]
"""Gets a lost node's place, by live nodes' addresses, node id and new directory's id. The last
argument is awaited before the lost node's vote is removed. Harmless to repeat. Raises ValueError
with a message for the operator."""

logger = logging.getLogger(__name__)


class Replacement:
    """The vote that a node in a lost node's place gets back. Lives in the event loop."""

    def __init__(self, disk: Disk, *, is_due: bool) -> None:
        self._disk = disk
        self.is_due = is_due
        """Whether the node has a vote to get back."""

    @classmethod
    def load(cls, disk: Disk) -> Replacement:
        """Read whether a vote is due. Blocks. Raises DiskError."""
        return cls(disk, is_due=disk.exists(REPLACEMENT_FILE))

    async def note_vote(self) -> None:
        """Remember, durably, that the lost node's vote is due. Raises DiskError."""
        content = b'{"vote": true}'
        await self._disk.run(lambda: self._disk.replace(REPLACEMENT_FILE, content))
        self.is_due = True

    async def regain_vote(
        self, quorum: RaftMember[ApplyResult], node_id: int, clock: Clock
    ) -> None:
        """Request the vote until it is given. Raises DiskError."""
        reported, report_at = "", 0.0
        while node_id not in quorum.voters.ids:
            try:
                await quorum.add_voter(node_id)
            except LogError as error:
                # Not caught up yet, another change under way, or no leader. All of these pass.
                now = clock.monotonic()
                if error.message != reported or now >= report_at:
                    logger.info("the lost node's vote is not given yet: %s", error.message)
                    reported, report_at = error.message, now + REPORT_S
                await clock.sleep(VOTE_RETRY_S)
        await self._disk.run(self._forget)
        self.is_due = False
        logger.info("node %d has the lost node's place and vote", node_id)

    def _forget(self) -> None:
        self._disk.remove(REPLACEMENT_FILE)
        self._disk.sync_directory("")
