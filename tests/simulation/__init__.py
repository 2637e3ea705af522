"""The simulated world: whole nodes in one process, in virtual time, from one seed.

Simulation: the shipped code runs unchanged over a simulated clock, disk, network and chance.

Modules: `loop` (the event loop), `handles` (its callbacks and tasks), `life` (processes that die
silently), `world` (all parts together), `network`, `link`, `connection` (TCP's faults), `disk`,
`disk_tree`, `disk_times`, `faults` (the nemesis), `clock`, `sample` (a cluster for the simulator's
own tests). On top: `quorum/` (Raft members), `node_world` (whole nodes), `node_checker`, `records`,
`node_histories` (random ones), `test_cluster_*` (directed ones), `runner` (many seeds at once).

A test
------
::

    async def node(process: Process) -> None:          # what a node's process does
        member = await Member.open(process.disk, process.network, process.clock, ...)
        await asyncio.Event().wait()                   # returning would end the process

    async def main(world: World) -> None:              # the test's own code: outside of all nodes
        for node_id in (1, 2, 3):
            world.start(node_id, node)
        nemesis = Nemesis(world, (1, 2, 3), restart=lambda node_id: world.start(node_id, node))
        nemesis.start()
        await asyncio.sleep(10)                        # virtual seconds
        nemesis.heal_all()
        ...                                            # assert what must hold

    @pytest.mark.parametrize("seed", range(100))
    def test_it_holds(seed: int) -> None:
        run(seed, main)

Rules
-----
- Nodes reach each other by `process.network` only, at `world.address(node_id)`.
- Code outside of the nodes may inspect their objects (checkers do), and runs coroutines of theirs
  by `await process.run(coroutine)`, so that their work belongs to the process and dies with it
  (NodeDiedError). Keep a node's objects by process, and check `process.alive` before their use.
- `world.loop.after_event = check` calls `check(process)` after every callback of a living process.
- Crashes: `world.crash(node_id, power=...)` at once; `world.crash_after(node_id, n)` between its
  callbacks, at any await; `world.crash_in(node_id, n)` in the middle of the n-th change of
  its disk. A dead process runs no `finally` and receives nothing.
- An unhandled exception fails the run: in a callback, in a task, in a node's `main`.
- Chance comes from `process.randomness`, or `world.random(name)` outside. No real time, no threads,
  no iteration over sets of objects hashed by their address.

Replaying a seed
----------------
A failure names its seed and shows the end of the trace; the same seed does the same again, event by
event: `.venv/bin/pytest 'tests/...::test_it_holds[17]'`. With `RAFTLOG_SIMULATION_TRACE=file` the
whole trace is written there; `world.trace(...)` adds lines to it. Two runs of a seed whose
`world.digest()` differ are a defect of the test or of the code under test: compare their traces.
"""
