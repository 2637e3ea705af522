"""Quorum members as processes of a simulated world, with the checker watching each event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raftlog.raft.interface import Applied, MemberIdentity, MemberSettings, Outcome, Refused
from raftlog.raft.member import RaftMember
from raftlog.raft.messages import Message
from raftlog.raft.rules import Timing
from raftlog.raft.voters import Voter, VoterSet, bootstrap_id
from raftlog.record.errors import LogError
from tests.simulation.life import Life, NodeDiedError
from tests.simulation.quorum.checker import Checker
from tests.simulation.quorum.recording_state_machine import RecordingStateMachine
from tests.simulation.world import Process, World
from tests.waiting import until

DIRECTORY = "metadata"
NEVER = 10**9


@dataclass
class MemberWorld:
    """Members 1 to `voter_count`, and observers after them, in one world."""

    world: World
    voter_count: int
    observer_count: int = 0
    settings: MemberSettings = field(default_factory=MemberSettings)
    checker: Checker = field(default_factory=Checker)
    members: dict[int, RaftMember[int]] = field(default_factory=dict)
    """Of the nodes that are up and open."""
    ledgers: dict[int, RecordingStateMachine] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    on_message: Callable[[int, int, Message], bool] | None = None
    """Sees each message as it leaves; False drops it."""
    commands: int = 0
    directory_ids: dict[int, str] = field(default_factory=dict)
    """Of nodes with another data directory than their first one."""

    def __post_init__(self) -> None:
        self.world.loop.after_event = self._after_event

    @property
    def node_ids(self) -> list[int]:
        return list(range(1, self.voter_count + self.observer_count + 1))

    @property
    def voters(self) -> VoterSet:
        """The voters at the cluster's begin."""
        return VoterSet(tuple(self._voter(node_id) for node_id in range(1, self.voter_count + 1)))

    def _voter(self, node_id: int) -> Voter:
        host, _, port = self.world.address(node_id).rpartition(":")
        return Voter(node_id, host, int(port))

    # Members

    def start_all(self) -> None:
        for node_id in self.node_ids:
            self.start(node_id)

    def start(self, node_id: int) -> Process:
        """Start a member; in `members` once recovered."""
        return self.world.start(node_id, self._main)

    def wipe(self, node_id: int) -> None:
        """Let a dead node lose its disk: its next life begins with an empty directory."""
        assert not self.world.is_up(node_id)
        disk = self.world.disk(node_id)
        for path in disk.paths():
            disk.remove(path)
        disk.sync_directory(DIRECTORY)
        self.directory_ids[node_id] = f"another-directory-{node_id}"
        # No acknowledgement rests on its old content any more.
        del self.checker.views[node_id]

    async def _main(self, process: Process) -> None:
        node_id, checker = process.node_id, self.checker
        ledger = RecordingStateMachine(checker.was_applied)
        member: RaftMember[int] = await RaftMember.open(
            disk=process.disk,
            directory=DIRECTORY,
            initial=self.voters,
            state_machine=ledger,
            identity=MemberIdentity(
                node_id,
                self.directory_ids.get(node_id, f"directory-{node_id}"),
                "0",
                bootstrap_id(self.voters),
            ),
            network=process.network,
            clock=process.clock,
            randomness=process.randomness,
            cluster_id=lambda: None,
            settings=self.settings,
        )
        checker.recovered(node_id, member._log)
        transmit = member._outbox._transmit

        def watched(peer: int, message: Message) -> None:
            checker.sent(node_id, peer, message)
            if self.on_message is None or self.on_message(node_id, peer, message):
                transmit(peer, message)

        member._outbox._transmit = watched
        member.on_failed(lambda reason: self.failures.append(f"node {node_id}: {reason}"))
        self.members[node_id] = member
        self.ledgers[node_id] = ledger
        process.on_end(lambda: self._gone(node_id, member))
        member.start(process.address)
        await asyncio.Event().wait()

    def _gone(self, node_id: int, member: RaftMember[int]) -> None:
        if self.members.get(node_id) is member:
            del self.members[node_id]
            del self.ledgers[node_id]

    def _after_event(self, life: Life) -> None:
        member = self.members.get(life.node_id)
        if member is not None:
            self.checker.after_event(life.node_id, member._core)

    # State

    def core(self, node_id: int) -> Any:
        return self.members[node_id]._core

    def leader(self) -> int | None:
        """The active leader of the highest term."""
        leading = [
            (member.term, node_id)
            for node_id, member in sorted(self.members.items())
            if member.is_active
        ]
        return max(leading)[1] if leading else None

    async def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait for a condition, in virtual time, and return its value."""

        def checked() -> Any:
            if not (result := condition()):
                self.check_failures()
            return result

        return await until(checked, self.describe, deadline_s=seconds, poll_s=0.005)

    async def elected(self) -> int:
        """Wait for an active leader."""
        leader: int = await self.until(self.leader)
        return leader

    def describe(self) -> str:
        """Each member's state, a line each."""
        return "\n".join(
            f"{node_id}: {member.status()} first={member._log.first_index} "
            f"voters={sorted(member.voters.ids)} peers={sorted(member.peers())}"
            for node_id, member in sorted(self.members.items())
        )

    def check_failures(self) -> None:
        assert not self.failures, self.failures

    # Actions of clients

    async def propose(self, node_id: int, command: bytes | None = None) -> Outcome[int] | None:
        """Propose a unique command at a node; None if the node died or the wait was given up."""
        if command is None:
            self.commands += 1
            command = b"command-%d" % self.commands
        member = self.members.get(node_id)
        if member is None:
            return None
        try:
            outcome = await self.world.processes[node_id].run(member.propose(command))
        except NodeDiedError:
            return None
        if isinstance(outcome, Applied):
            self.checker.was_acknowledged(command, outcome.index)
        elif isinstance(outcome, Refused):
            self.checker.was_refused(command)
        return outcome

    async def ask(self, node_id: int, what: Callable[[RaftMember[int]], Any]) -> bool:
        """Send a member a request that may be refused; return whether it succeeded."""
        member = self.members.get(node_id)
        if member is None:
            return False
        try:
            await self.world.processes[node_id].run(what(member))
        except (NodeDiedError, LogError):
            return False
        return True

    async def settle(self, seconds: float = 30.0) -> None:
        """Start and heal all members: all must agree, on every acknowledged command at least."""
        leader = await self.elected()
        deadline = asyncio.get_running_loop().time() + seconds
        while not isinstance(await self.propose(leader), Applied):
            self.check_failures()
            assert asyncio.get_running_loop().time() < deadline, "no progress after healing"
            leader = await self.elected()
        await self.until(self._agree, seconds)
        self.checker.check_outcomes()

    def _agree(self) -> bool:
        """Whether every member has applied all of the leader's entries."""
        leader = self.leader()
        if leader is None or len(self.members) < len(self.node_ids):
            return False
        newest = self.ledgers[leader]
        return all(ledger.digest == newest.digest for ledger in self.ledgers.values())


QUICK = MemberSettings(
    timing=Timing(),
    proposal_s=3.0,
    snapshot_entries=NEVER,
    snapshot_bytes=NEVER,
)
"""Members that take no snapshots."""
SNAPSHOTS = MemberSettings(
    timing=Timing(),
    proposal_s=3.0,
    snapshot_entries=12,
    snapshot_bytes=NEVER,
    entries_kept=3,
    chunk_bytes=200,
)
"""Members that take many snapshots, and send these in many chunks."""
