"""The benchmark harness: programs that measure, never tests.

Purpose: figures of raftlog on the machine at hand, against stated goals and peers.

Rules: nodes are processes of their own, started as a user starts a node; several nodes are always a
`raftlog.cluster`; the client is the shipped one; latency is open loop (a late send counts from its
due time); every result names its parameters; the median of the runs counts, and all runs are kept.

Must not know: the insides of the node, apart from quorum_node.py. Programs that judge are tests:
`tests/soak`, `tests/attack`, `tests/judges`, `tests/trial`, `tests/containers`.
"""
