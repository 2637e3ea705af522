"""Changes of voters and of the leader, executed by the leader.

The changes follow Raft's change of a single server (Ongaro 2014, sections 4.1 and 4.2, with the
correction of 2015). Voters change one at a time. Only a leader with a committed entry of its
current term changes them, and only once the previous change is committed. Every member follows the
newest set in its log as soon as the set is appended (`RaftLog`), and reverts if the set's entry is
replaced.

Two rules are added for operators. A newcomer must have caught up, and a change without enough live
members to commit is refused instead of started. A leader is never removed while leading. It
transfers leadership first, so that no leader counts votes for a set without itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raftlog.raft.core import RaftCore
from raftlog.raft.log.log import VOTERS
from raftlog.raft.peers.hello import QuorumHello
from raftlog.raft.voters import Voter, VoterSet, encode_voters, parse_voters
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER, RETRIABLE, LogError
from raftlog.world import Clock

LAG_ENTRIES_MAX: Final = 1_000
"""Entries that a caught-up newcomer may lag. It gets these in a moment."""
CATCH_UP_S: Final = 10.0
TRANSFER_S: Final = 2.0
POLL_S: Final = 0.02
RESIGN_TIMEOUT_S: Final = 0.5

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class VoterChanges:
    """Executes changes, on the leader."""

    core: RaftCore
    clock: Clock
    hello_of: Callable[[int], QuorumHello | None]
    """The hello of a connected peer, or of this member."""
    pump: Callable[[], None]
    """Have new entries sent."""

    async def add(self, node_id: int) -> tuple[int, int]:
        """Append the set with a further voter and return its entry's index and term.

        Raises LogError.
        """
        self._check_may_change()
        self.core.log.voters.add(self._voter(node_id))
        await self._wait_caught_up(node_id)
        # Another change may have come first during the wait.
        self._check_may_change()
        voters = self.core.log.voters.add(self._voter(node_id))
        self._check_majority_answers(voters)
        return self._append(voters)

    async def remove(self, node_id: int) -> tuple[int, int]:
        """Append the set without a voter. Raises LogError.

        NO_CONTROLLER, if the voter is the leader itself, once leadership is transferred.
        """
        self._check_may_change()
        voters = self.core.log.voters.remove(node_id)
        self._check_majority_answers(voters)
        if node_id == self.core.me:
            await self.transfer_leadership(None)
            raise LogError(NO_CONTROLLER, "Another member leads now: send the change to it.")
        return self._append(voters)

    async def transfer_leadership(self, node_id: int | None) -> None:
        """Transfer leadership to a voter. Raises LogError if no voter took over in time."""
        core = self.core
        if node_id == core.me and core.is_leader:
            return
        deadline = self.clock.monotonic() + TRANSFER_S
        asked_at = -TRANSFER_S
        while core.is_leader:
            target = self._successor(node_id)
            now = self.clock.monotonic()
            if now >= deadline:
                raise LogError(
                    RETRIABLE,
                    f"Node {target or node_id or '?'} did not take over in {TRANSFER_S} s.",
                )
            # The request is sent again only after an election's time, since the first election may
            # be under way.
            if target is not None and now - asked_at >= TRANSFER_S / 4 and core.transfer_to(target):
                asked_at = now
                self.pump()
            await self.clock.sleep(POLL_S)

    async def resign_leadership(self) -> None:
        """Transfer leadership, if this member leads.

        Give up soon, as nothing depends on the result.
        """
        core = self.core
        if not core.is_leader or core.log.voters.ids == {core.me}:
            return
        try:
            async with asyncio.timeout(RESIGN_TIMEOUT_S):
                await self.transfer_leadership(None)
        except (LogError, TimeoutError) as error:
            logger.info("no voter has taken over the leadership of the quorum: %s", error)

    def refresh(self) -> None:
        """Append the same voters with the addresses and directories of their present hellos.

        The votes stay the same, so this needs no care beyond one change at a time. Peers find a
        moved voter by its new address, and get the directories of a new cluster's voters.
        """
        core, voters = self.core, self.core.log.voters
        if not core.is_active or core.log.voters_index > core.commit_index:
            return
        said = VoterSet(tuple(self._current_voter(voter) for voter in voters.voters))
        if said != voters:
            self._append(said)

    def _current_voter(self, voter: Voter) -> Voter:
        try:
            return self._voter(voter.node_id)
        except LogError:
            # Not connected, or with an address in its hello which no voter set may have.
            return voter

    def _successor(self, node_id: int | None) -> int | None:
        """The voter to transfer leadership to, either as requested or with the newest log."""
        core = self.core
        if node_id is not None:
            if node_id not in core.log.voters.ids:
                raise LogError(ILLEGAL_STATE, f"Node {node_id} is not a voter: it cannot lead.")
            return node_id
        others = sorted(core.log.voters.ids - {core.me})
        if not others:
            raise LogError(ILLEGAL_STATE, "There is no other voter to lead.")
        return max(others, key=lambda peer: core.match_index(peer) or 0)

    def _voter(self, node_id: int) -> Voter:
        hello = self.hello_of(node_id)
        if hello is None:
            raise LogError(
                ILLEGAL_STATE,
                f"Node {node_id} is not connected to the controller: start it with --join first.",
            )
        try:
            (voter,) = parse_voters(f"{node_id}@{hello.address}").voters
        except ValueError as error:
            raise LogError(ILLEGAL_STATE, f"Node {node_id} cannot be a voter: {error}.") from error
        return Voter(node_id, voter.host, voter.port, hello.directory_id)

    async def _wait_caught_up(self, node_id: int) -> None:
        core = self.core
        deadline = self.clock.monotonic() + CATCH_UP_S
        while core.is_leader:
            match_index = core.match_index(node_id) or 0
            if match_index >= core.commit_index - LAG_ENTRIES_MAX and match_index > 0:
                return
            if self.clock.monotonic() >= deadline:
                raise LogError(
                    ILLEGAL_STATE,
                    f"Node {node_id} has not caught up in {CATCH_UP_S:.0f} s: it has entry "
                    f"{match_index} of {core.commit_index}.",
                )
            await self.clock.sleep(POLL_S)
        raise LogError(NO_CONTROLLER)

    def _check_may_change(self) -> None:
        core = self.core
        if not core.is_leader:
            raise LogError(NO_CONTROLLER)
        if not core.is_active:
            raise LogError(NO_CONTROLLER, "The controller has just been elected; try again.")
        if core.log.voters_index > core.commit_index:
            raise LogError(
                ILLEGAL_STATE, "Another change of voters is not committed yet; try again."
            )

    def _check_majority_answers(self, voters: VoterSet) -> None:
        """Refuse a set without a majority of fresh voters. It could never be committed."""
        core = self.core
        alive = sum(core.is_fresh(node_id) for node_id in voters.ids)
        if alive < voters.majority:
            raise LogError(
                ILLEGAL_STATE,
                f"Of the voters {sorted(voters.ids)} that would be left, only {alive} answer, and "
                f"{voters.majority} must: the change could not be committed.",
            )

    def _append(self, voters: VoterSet) -> tuple[int, int]:
        index_and_term = self.core.append(VOTERS, encode_voters(voters))
        self.pump()
        return index_and_term
