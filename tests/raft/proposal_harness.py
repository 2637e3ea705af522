"""A proposal router, and around it a core, a store and changes driven by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from raftlog.raft.interface import MemberSettings
from raftlog.raft.messages import Message, RequestKind
from raftlog.raft.proposals.router import ProposalRouter
from raftlog.record.errors import LogError
from tests.simulation.clock import ManualClock

SETTINGS = MemberSettings(uncommitted_entries_max=5, proposal_s=3.0)
ME, OTHER = 1, 2


class Log:
    last_index = 10


class Core:
    """A core that leads, follows or has no leader, as the test decides."""

    def __init__(self) -> None:
        self.log = Log()
        self.term = 4
        self.leader_id: int | None = ME
        self.commit_index = self.applied_index = 10
        self.connected = {OTHER}
        self.appended: list[tuple[int, bytes]] = []
        self.is_active = True
        self.rounds = self.confirmed = 0
        """Rounds of appends to all: begun, and answered by a majority."""

    @property
    def is_leader(self) -> bool:
        return self.leader_id == ME

    def is_connected(self, peer: int) -> bool:
        return peer in self.connected

    def send_round(self) -> int:
        assert self.is_leader
        self.rounds += 1
        return self.rounds - 1

    def is_confirmed(self, after: int) -> bool:
        return self.confirmed > after

    def append(self, kind: int, command: bytes) -> tuple[int, int]:
        assert self.is_leader
        self.appended.append((kind, command))
        self.log.last_index += 1
        return self.log.last_index, self.term


class Store:
    def __init__(self) -> None:
        self.free = 1 << 40
        self.journal_bytes = 0

    def free_bytes(self) -> int:
        return self.free


class Changes:
    """Changes of voters that last until the test ends the wait."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.error: LogError | None = None
        self.asked: list[tuple[str, int | None]] = []

    async def add(self, node_id: int) -> tuple[int, int]:
        return await self._change("add", node_id)

    async def remove(self, node_id: int) -> tuple[int, int]:
        return await self._change("remove", node_id)

    async def transfer_leadership(self, node_id: int | None) -> None:
        await self._change("hand over", node_id)

    async def _change(self, what: str, node_id: int | None) -> tuple[int, int]:
        self.asked.append((what, node_id))
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return 11, 4


class ProposalHarness:
    def __init__(self) -> None:
        self.core, self.store, self.changes = Core(), Store(), Changes()
        self.clock = ManualClock()
        self.sent: list[tuple[int, Any]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.wakes = 0
        router: Any = ProposalRouter
        self.router: ProposalRouter[str] = router(
            core=self.core,
            store=self.store,
            changes=self.changes,
            clock=self.clock,
            settings=SETTINGS,
            send=self.send,
            spawn=self.spawn,
            wake=self.wake,
            request_id=1000,
        )

    def send(self, peer: int, message: Message) -> None:
        self.sent.append((peer, message))

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def wake(self) -> None:
        self.wakes += 1

    def follow(self, leader: int | None) -> None:
        self.core.leader_id = leader

    async def submit(self, kind: RequestKind = RequestKind.COMMAND, argument: bytes = b"x") -> Any:
        outcome = self.router.submit(kind, argument)
        await asyncio.sleep(0)
        return outcome

    def confirm(self) -> None:
        """A majority answers all appends sent so far."""
        self.core.confirmed = self.core.rounds
        self.router.advance()

    def apply_all(self, term: int = 4) -> None:
        while self.core.applied_index < self.core.log.last_index:
            self.core.applied_index += 1
            self.core.commit_index = self.core.applied_index
            self.router.applied(self.core.applied_index, term, f"result {self.core.applied_index}")
