"""The metadata behind a real quorum member, of one voter, in a simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata.apply.apply import ApplyResult, apply
from raftlog.metadata.commands import Command, MetadataVersionError, encode_command
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import Applied, MemberIdentity, MemberSettings, RaftMember
from raftlog.raft.voters import Voter, VoterSet
from tests.examples import examples
from tests.metadata.strategies import histories
from tests.simulation.world import Process, World, run

NODE = 1
SNAPSHOTS = MemberSettings(snapshot_entries=5, entries_kept=2)


async def opened(process: Process, machine: MetadataStateMachine) -> RaftMember[ApplyResult]:
    host, _, port = process.address.rpartition(":")
    return await RaftMember.open(
        disk=process.disk,
        directory="metadata",
        initial=VoterSet((Voter(NODE, host, int(port)),)),
        state_machine=machine,
        identity=MemberIdentity(NODE, "directory", "0"),
        network=process.network,
        clock=process.clock,
        randomness=process.randomness,
        cluster_id=lambda: None,
        settings=SNAPSHOTS,
    )


async def one_life(
    world: World, live: Callable[[Process, RaftMember[ApplyResult]], Awaitable[None]]
) -> MetadataStateMachine:
    """Start the node, run until `live` returns, and cut its power."""
    machine = MetadataStateMachine()
    done = asyncio.Event()

    async def main(process: Process) -> None:
        member = await opened(process, machine)
        member.start(process.address)
        while not member.is_active:
            await process.clock.sleep(0.05)
        await live(process, member)
        done.set()
        await asyncio.Event().wait()

    world.start(NODE, main)
    await done.wait()
    world.crash(NODE, power=True)
    return machine


@settings(max_examples=examples(20), deadline=None)
@given(history=histories, seed=st.integers(0, 1000))
def test_history_survives_the_quorum(history: list[Command], seed: int) -> None:
    async def main(world: World) -> None:
        expected = MetadataImage()
        half = len(history) // 2
        for part in (history[:half], history[half:], []):

            async def live(
                process: Process, member: RaftMember[ApplyResult], part: list[Command] = part
            ) -> None:
                for command in part:
                    outcome = await member.propose(encode_command(command))
                    assert isinstance(outcome, Applied)
                    assert outcome.result == apply(expected, outcome.index, command)

            machine = await one_life(world, live)
            expected.applied_index = machine.image.applied_index
            assert machine.image == expected

    run(seed, main)


def test_node_stops_at_a_command_of_a_newer_release() -> None:
    told: list[str] = []

    async def live(process: Process, member: RaftMember[ApplyResult]) -> None:
        member.on_failed(told.append)
        await member.propose(b'{"type":"merge_topics","v":2}')

    async def reopen(process: Process) -> None:
        with pytest.raises(MetadataVersionError, match="upgrade this node"):
            await opened(process, MetadataStateMachine())
        told.append("refused to start")

    async def main(world: World) -> None:
        await one_life(world, live)
        world.start(NODE, reopen)
        await asyncio.sleep(1)

    run(1, main)
    assert "upgrade this node" in told[0]
    assert told[1:] == ["refused to start"]
