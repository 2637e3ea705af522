"""A single voter that is stopped anywhere, any number of times: seeded, on the simulated disk."""

from __future__ import annotations

import asyncio
import random

from raftlog.quorum import Applied, LocalQuorum, LocalQuorumLimits
from tests.quorum.machine import RecordingMachine
from tests.simulation.disk import MachineStoppedError, SimulatedDisk

LIVES = 6
LIMITS = LocalQuorumLimits(snapshot_entries=7, snapshot_bytes=1500, round_bytes_max=60)


class Run:
    """What one seed did, and what must hold after each start."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed, yields=True)
        self.applied: dict[int, bytes] = {}
        self.proposed = 0
        self.term = 0
        self.snapshots = 0

    async def live(self) -> None:
        machine = RecordingMachine()
        self.disk.crash_in(self.random.randint(1, 60))
        try:
            quorum = await LocalQuorum.open(self.disk, "metadata", machine, LIMITS)
        except MachineStoppedError:
            return
        self.check_start(quorum, machine)
        while quorum.status().failure is None and self.random.random() < 0.95:
            count = self.random.randint(1, 5)
            await asyncio.gather(*(self.propose(quorum) for _ in range(count)))
        self.snapshots += quorum.status().snapshot_index > 0
        if self.random.random() < 0.3:
            await quorum.close()
        else:
            # Nothing may run on in a dead process.
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def propose(self, quorum: LocalQuorum[str]) -> None:
        self.proposed += 1
        command = b"command %d" % self.proposed
        outcome = await quorum.propose(command)
        if isinstance(outcome, Applied):
            assert outcome.index not in self.applied
            self.applied[outcome.index] = command

    def check_start(self, quorum: LocalQuorum[str], machine: RecordingMachine) -> None:
        recovered = dict(machine.commands)
        for index, command in self.applied.items():
            assert recovered.get(index) == command, f"acknowledged entry {index} is lost"
        # What a start has shown, acknowledged or not, later starts must show as well.
        self.applied = recovered
        assert quorum.status().term > self.term
        self.term = quorum.status().term

    async def run(self) -> None:
        for _ in range(LIVES):
            await self.live()
            self.disk.crash(power=self.random.random() < 0.6)
        machine = RecordingMachine()
        quorum = await LocalQuorum.open(self.disk, "metadata", machine, LIMITS)
        self.check_start(quorum, machine)
        await quorum.close()


async def test_no_crash_loses_what_was_acknowledged() -> None:
    snapshots = acknowledged = 0
    for seed in range(150):
        run = Run(seed)
        try:
            await run.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        snapshots += run.snapshots
        acknowledged += len(run.applied)
    assert snapshots > 50 and acknowledged > 1000, "the schedules reach too little"
