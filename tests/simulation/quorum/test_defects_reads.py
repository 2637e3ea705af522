"""Stale reads: barriers answered by a deposed leader.

Each defect has a trace, run with the shipped code and with its guard switched off.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from raftlog.raft.interface import Applied
from raftlog.raft.messages import AppendAnswer, Message, encode_message
from raftlog.raft.rules import Timing
from tests.simulation.quorum.member_world import QUICK, MemberWorld
from tests.simulation.quorum.switches import (
    late_answers_confirm,
    leadership_is_not_confirmed,
    violation,
)
from tests.simulation.world import World, run

Patch = pytest.MonkeyPatch
UNAWARE = replace(QUICK, timing=Timing(fallback_s=30.0))
"""Leaders that take long to notice their isolation."""


async def a_deposed_leader_is_asked(world: World) -> None:
    """Messages of its former followers arrive after the request."""
    members = MemberWorld(world, 3, settings=UNAWARE)
    members.start_all()
    leader = await members.elected()
    await members.settle()
    others = [node_id for node_id in members.node_ids if node_id != leader]
    late: list[tuple[int, Message]] = []

    def hold_back(source: int, target: int, message: Message) -> bool:
        is_answer = target == leader and isinstance(message, AppendAnswer)
        if is_answer:
            late.append((source, message))
        return not is_answer

    members.on_message = hold_back
    await members.until(lambda: {source for source, _ in late} == set(others))
    world.network.partition([leader], others)
    members.on_message = None
    await members.until(lambda: members.leader() in others)
    outcome = await members.propose(await members.elected())
    assert isinstance(outcome, Applied)
    member = members.members[leader]
    assert member._core.is_leader
    assert member.applied_index < outcome.index
    asked = asyncio.ensure_future(members.ask(leader, lambda member: member.read_barrier()))
    await asyncio.sleep(0.01)
    for source, message in late:
        frame = encode_message(message)
        world.processes[leader].context.copy().run(member.received, source, frame)
    await asyncio.sleep(0.1)
    assert not asked.done() or member.applied_index >= outcome.index, "a fresh read was stale"
    world.network.heal()
    assert await asked, "it is asked of the next leader"
    assert member.applied_index >= outcome.index
    await members.settle()


def test_barrier_of_a_deposed_leader_holds() -> None:
    """A leader that was cut off answers no read, as another may lead by now.

    Source: Ongaro 2014, section 6.4.
    """
    run(1, a_deposed_leader_is_asked)


def test_barrier_of_a_deposed_leader_without_guard_fails(monkeypatch: Patch) -> None:
    leadership_is_not_confirmed(monkeypatch)
    with violation(match="a fresh read was stale"):
        run(1, a_deposed_leader_is_asked)


def test_barrier_confirmed_by_late_answers_holds() -> None:
    """An answer shows its sender's state when it left, perhaps before the request came."""
    run(1, a_deposed_leader_is_asked)


def test_barrier_confirmed_by_late_answers_without_guard_fails(monkeypatch: Patch) -> None:
    late_answers_confirm(monkeypatch)
    with violation(match="a fresh read was stale"):
        run(1, a_deposed_leader_is_asked)
