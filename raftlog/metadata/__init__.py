"""The metadata of a cluster, which is its topics, partitions, brokers and partition leaders.

Purpose: the one state machine applied by every node. A decision becomes a command (`commands`), and
its bytes go through the quorum's log. Applying the command (`apply`) changes the image (`image`)
and yields the difference (`delta`). A node acts only on applied metadata. Decisions are plans for
requests (`admin_plans`), brokers that come and go (`liveness`), leaders (`elections`) and moving
replicas (`reassignment`, `decommission`).

Rules: pure and deterministic. No I/O, clock, randomness or logging. Times and ids come in as
arguments. The same commands in the same order give the same image and the same results on every
node and in every version with these commands. A command that cannot be executed is a result
(`Refusal`), never an exception. A command unknown to this version ends the node.

Must not know: agreement on commands and their storage, logs and segments, HTTP.
"""
