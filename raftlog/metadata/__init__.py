"""The metadata of a cluster: which topics, partitions and brokers there are, and who leads what.

Purpose: the one state machine that every node applies. A decision becomes a command (`commands`);
its bytes go through the quorum's log; applying it (`apply`) moves the image (`image`) and says what
changed (`delta`). A node acts only on what it has applied. Decisions are made upon requests
(`controller`), about brokers that come and go (`liveness`), leaders (`elections`) and replicas that
move (`reassignment`).

Rules: pure and deterministic. No I/O, clock, randomness or logging: times and ids come in as
arguments. The same commands in the same order give the same image and the same results on every
node and in every version that understands them. A command that cannot be carried out is a result
(`Refusal`), never an exception; a command that this version does not understand ends the node.

Must not know: how commands are agreed on or stored, logs and segments, HTTP.
"""
