"""The metadata of a cluster: its topics, partitions and brokers, and the leader of each partition.

Purpose: the one state machine applied by every node. A decision becomes a command (`commands`); its
bytes go through the quorum's log; applying the command (`apply`) changes the image (`image`) and
yields the difference (`delta`). A node acts only on applied metadata. Decisions are plans: for
requests (`admin_plans`), brokers that come and go (`liveness`), leaders (`elections`) and moving
replicas (`reassignment`, `decommission`).

Rules: pure and deterministic. No I/O, clock, randomness or logging: times and ids come in as
arguments. The same commands in the same order give the same image and the same results on every
node and in every version with these commands. A command that cannot be carried out is a result
(`Refusal`), never an exception; a command unknown to this version ends the node.

Must not know: agreement on commands and their storage, logs and segments, HTTP.
"""
