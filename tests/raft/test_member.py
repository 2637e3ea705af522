"""A single voter: recovery, a full disk, final failures, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.raft.interface import Applied, Outcome, Refused, Role, Unknown
from raftlog.raft.member import CALLBACKS_MAX, RaftMember
from raftlog.raft.messages import CONTROL_BYTES_MAX
from raftlog.record.errors import (
    BODY_TOO_LARGE,
    DISK_FULL,
    ILLEGAL_STATE,
    NO_CONTROLLER,
    NOT_READY,
    STORAGE_FAILED,
    LogError,
)
from raftlog.world import DiskError, DiskFullError
from tests.examples import examples
from tests.simulation.quorum.member_world import QUICK, SNAPSHOTS, MemberWorld
from tests.simulation.world import World, run
from tests.waiting import DEADLINE_S

JOURNAL = "metadata/journal"


class Alone:
    """A node that is the only voter."""

    def __init__(self, members: MemberWorld) -> None:
        self.members = members
        self.world = members.world
        self.has_failed = asyncio.Event()

    @property
    def member(self) -> RaftMember[int]:
        return self.members.members[1]

    @property
    def disk(self) -> Any:
        return self.world.disk(1)

    @property
    def values(self) -> list[bytes]:
        return self.members.ledgers[1].commands

    async def propose(self, command: bytes) -> Outcome[int]:
        outcome = await self.members.propose(1, command)
        assert outcome is not None
        return outcome

    async def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.world.processes[1].run(work)

    async def start(self) -> None:
        self.members.start(1)
        await self.members.until(lambda: 1 in self.members.members)
        self.member.on_failed(lambda _: self.has_failed.set())

    async def restart(self, *, power: bool = True) -> None:
        self.world.crash(1, power=power)
        await self.start()

    async def failure(self) -> str:
        """Wait until the member fails, as intended; return the reason."""
        async with asyncio.timeout(DEADLINE_S):
            await self.has_failed.wait()
        (reason,) = self.members.failures
        self.members.failures.clear()
        return reason


def alone(work: Callable[[Alone], Coroutine[Any, Any, None]], config: Any = QUICK) -> None:
    async def main(world: World) -> None:
        members = MemberWorld(world, 1, settings=config)
        node = Alone(members)
        await node.start()
        await members.elected()
        await work(node)
        members.check_failures()

    run(1, main)


def test_commands_are_applied_in_order_and_answered_with_their_results() -> None:
    async def work(node: Alone) -> None:
        outcomes = [await node.propose(b"%d" % number) for number in range(3)]
        assert [o.result for o in outcomes if isinstance(o, Applied)] == [1, 2, 3]
        assert node.values == [b"0", b"1", b"2"]

    alone(work)


def test_a_restart_applies_everything_before_any_election(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(node: Alone) -> None:
        for number in range(5):
            await node.propose(b"%d" % number)
        term = node.member.term
        seen: list[tuple[int, list[bytes], bool]] = []

        def start(member: Any, address: str) -> None:
            seen.append((member.term, list(member._state_machine.commands), member.is_active))
            real_start(member, address)

        real_start = RaftMember.start
        monkeypatch.setattr(RaftMember, "start", start)
        await node.restart()
        assert seen == [(term, [b"0", b"1", b"2", b"3", b"4"], False)]
        await node.members.elected()
        assert node.member.term == term + 1

    alone(work)


def test_a_start_on_a_full_disk_serves_reads_and_recovers_by_itself() -> None:
    async def work(node: Alone) -> None:
        await node.propose(b"before")
        node.disk.capacity_bytes = node.disk.used_bytes()
        await node.restart()
        await asyncio.sleep(3.0)
        assert node.values == [b"before"]
        assert not node.member.is_active, "its term is not durable"
        refused = await node.propose(b"meanwhile")
        assert isinstance(refused, Refused)
        assert refused.entry is DISK_FULL
        with pytest.raises(LogError) as raised:
            await node.ask(node.member.read_barrier())
        assert raised.value.entry is NO_CONTROLLER, "for want of a leader, not of room"
        node.disk.capacity_bytes = None
        await node.members.elected()
        assert isinstance(await node.propose(b"after"), Applied)
        assert node.values == [b"before", b"after"]

    alone(work)


def test_a_disk_that_fills_up_leaves_commands_open_until_there_is_room() -> None:
    async def work(node: Alone) -> None:
        node.disk.fail_next("append", JOURNAL, DiskFullError)
        outcome = await node.propose(b"waits")
        assert isinstance(outcome, Applied)

    alone(work)


def test_an_exception_of_the_state_machine_stops_the_member_for_good() -> None:
    async def work(node: Alone) -> None:
        def broken(index: int, command: bytes) -> int:
            raise RuntimeError("a defect")

        told: list[str] = []
        node.member.on_failed(told.append)
        node.members.ledgers[1].apply = broken  # type: ignore[method-assign]
        outcome = await node.propose(b"poison")
        assert isinstance(outcome, Unknown), "it is in the log, so the next start applies it"
        assert await node.failure() == "node 1: RuntimeError: a defect"
        assert told == ["RuntimeError: a defect"]
        again = await node.propose(b"next")
        assert isinstance(again, Refused)
        assert again.entry is STORAGE_FAILED
        member = node.member
        assert not member.is_active
        assert member.leader_id is None
        assert member.status().failure == "RuntimeError: a defect"
        late: list[str] = []
        member.on_failed(late.append)
        assert late == told, "who asks late is told at once"
        await node.ask(member.close())

    alone(work)


@pytest.mark.parametrize("operation", ["sync", "append"])
def test_a_failure_of_the_disk_stops_the_member_for_good(operation: str) -> None:
    async def work(node: Alone) -> None:
        await node.propose(b"before")
        node.disk.fail_next(operation, JOURNAL)
        outcome = await node.propose(b"lost?")
        assert isinstance(outcome, Unknown)
        assert "DiskError" in await node.failure()
        assert b"lost?" not in node.values, "what may not be durable is not applied"
        await asyncio.sleep(1.0)
        await node.ask(node.member.close())

    alone(work)


def test_a_failure_of_the_disk_at_the_start_is_raised() -> None:
    async def work(node: Alone) -> None:
        await node.propose(b"before")
        world = node.world
        world.crash(1)
        errors: list[BaseException] = []

        async def main(process: Any) -> None:
            process.disk.fail_next("sync")
            try:
                await node.members._main(process)
            except DiskError as error:
                errors.append(error)

        world.start(1, main)
        await node.members.until(lambda: errors)

    alone(work)


def test_closing_leaves_what_waits_open_and_refuses_the_rest() -> None:
    async def work(node: Alone) -> None:
        node.disk.times.stick(0.5)
        waiting = asyncio.ensure_future(node.members.propose(1, b"waits"))
        await asyncio.sleep(0.1)
        member = node.member
        closing = asyncio.ensure_future(node.ask(member.close()))
        await asyncio.sleep(0)
        assert isinstance(await waiting, Unknown)
        refused = await node.propose(b"late")
        assert isinstance(refused, Refused)
        assert refused.entry is NOT_READY
        with pytest.raises(LogError):
            await node.ask(member.read_barrier())
        assert not member.is_active
        await closing
        await node.restart()
        assert b"waits" in node.values, "it was made durable first"

    alone(work)


def test_closing_does_not_wait_for_room_on_a_full_disk() -> None:
    async def work(node: Alone) -> None:
        await node.propose(b"before")
        node.disk.capacity_bytes = node.disk.used_bytes()
        await node.restart()
        await asyncio.sleep(1.0)
        assert node.member._log.lsn > node.member._log.durable_lsn
        await asyncio.wait_for(node.ask(node.member.close()), 2.0)

    alone(work)


def test_after_closing_nothing_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.raft.core.APPLIES_PER_TICK_MAX", 1)

    async def work(node: Alone) -> None:
        member = node.member
        node.disk.times.stick(0.2)
        proposals = [asyncio.ensure_future(node.members.propose(1)) for _ in range(2_000)]
        await asyncio.sleep(0.1)
        await node.ask(member.close())
        applied = member.applied_index
        assert applied < member._log.durable_index, "there was something to apply"
        await asyncio.sleep(1.0)
        assert member.applied_index == applied
        await asyncio.gather(*proposals)

    alone(work)


def test_long_commands_are_applied_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.raft.core.APPLIED_BYTES_PER_TICK_MAX", 100)

    async def work(node: Alone) -> None:
        core = node.member._core
        applied: list[int] = []
        tick = core.tick

        def counted() -> None:
            before = core.applied_index
            tick()
            applied.append(core.applied_index - before)

        monkeypatch.setattr(core, "tick", counted)
        # All of them become durable at once.
        node.disk.times.stick(0.2)
        proposals = [asyncio.ensure_future(node.propose(b"%060d" % each)) for each in range(20)]
        outcomes = await asyncio.gather(*proposals)
        assert all(isinstance(outcome, Applied) for outcome in outcomes)
        assert max(applied) == 2

    alone(work)


def test_a_command_over_the_limit_is_refused_at_once() -> None:
    async def work(node: Alone) -> None:
        refused = await node.propose(bytes(101))
        assert isinstance(refused, Refused)
        assert refused.entry is BODY_TOO_LARGE
        assert "101 bytes is over the limit of 100" in refused.message
        assert isinstance(await node.propose(bytes(100)), Applied)

    alone(work, replace(QUICK, command_bytes_max=100))


def test_barriers_write_nothing_and_need_no_room() -> None:
    async def work(node: Alone) -> None:
        await asyncio.sleep(1.5)
        outcome = await node.propose(b"before")
        assert isinstance(outcome, Applied)
        member, disk = node.member, node.disk
        disk.capacity_bytes = disk.used_bytes()
        assert isinstance(await node.propose(b"refused"), Refused)
        before = member.status(), disk.contents(JOURNAL)

        async def many() -> list[int]:
            return list(await asyncio.gather(*(member.read_barrier() for _ in range(500))))

        assert set(await node.ask(many())) == {outcome.index}
        assert (member.status(), disk.contents(JOURNAL)) == before

    alone(work)


def test_a_barrier_of_a_single_voter_waits_for_what_its_disk_has_only() -> None:
    async def work(node: Alone) -> None:
        await asyncio.sleep(1.5)
        node.disk.times.stick(0.5)
        proposed = asyncio.ensure_future(node.propose(b"not durable yet"))
        await asyncio.sleep(0.01)
        member = node.member
        assert member.status().last_index > await node.ask(member.read_barrier())
        assert not proposed.done()
        outcome = await proposed
        assert isinstance(outcome, Applied)
        assert await node.ask(member.read_barrier()) == outcome.index

    alone(work)


def test_the_status_tells_how_things_stand() -> None:
    async def work(node: Alone) -> None:
        for number in range(14):
            await node.propose(b"%d" % number)
        await asyncio.sleep(0.5)
        status = node.member.status()
        assert status.role is Role.LEADER
        assert (status.leader_id, status.is_active, status.term) == (1, True, 1)
        # The base, the leader's no-op, the commands, and where the voter is to be found.
        assert status.last_index == status.commit_index == status.applied_index == 17
        assert status.snapshot_index >= 12
        assert status.journal_bytes == len(node.disk.contents(JOURNAL))
        assert status.elections == 1
        assert status.syncs.count >= 14
        assert 0 < status.syncs.seconds_max <= status.syncs.seconds_sum
        assert status.failure is None
        assert node.member.peers() == {}
        assert node.member.applied_index == 17
        assert sorted(node.member.voters.ids) == [1]

    alone(work, SNAPSHOTS)


def test_single_voter_transfers_and_sends_to_no_member() -> None:
    async def work(node: Alone) -> None:
        await node.ask(node.member.resign_leadership())
        assert node.member.is_active
        assert node.member.send(2, b"hello") is False
        with pytest.raises(AssertionError):
            node.member.send(2, bytes(CONTROL_BYTES_MAX + 1))
        with pytest.raises(LogError, match="no other voter") as raised:
            await node.ask(node.member.transfer_leadership(None))
        assert raised.value.entry is ILLEGAL_STATE
        await node.ask(node.member.transfer_leadership(1))

    alone(work)


def test_callbacks_are_bounded() -> None:
    async def work(node: Alone) -> None:
        for _ in range(CALLBACKS_MAX):
            node.member.on_role_changed(lambda: None)
        with pytest.raises(AssertionError):
            node.member.on_role_changed(lambda: None)

    alone(work)


STEPS = st.lists(
    st.one_of(st.binary(min_size=1, max_size=4), st.sampled_from(["kill", "power"])), max_size=25
)


@settings(max_examples=examples(25), deadline=None)
@given(STEPS)
def test_any_commands_with_restarts_between_give_the_state_of_applying_them_in_order(
    steps: list[bytes | str],
) -> None:
    async def work(node: Alone) -> None:
        expected: list[bytes] = []
        for number, step in enumerate(steps):
            if isinstance(step, bytes):
                # Unique, as the checker needs, and without the recording state machine's separator.
                command = b"%d:%s" % (number, step.hex().encode())
                assert isinstance(await node.propose(command), Applied)
                expected.append(command)
            else:
                await node.restart(power=step == "power")
                await node.members.elected()
        assert node.values == expected

    alone(work, SNAPSHOTS)
