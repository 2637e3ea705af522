"""The benchmark harness: programs that measure, never tests.

Purpose: what raftlog does on the machine at hand, against its stated figures and, later, against
its peers. `scripts/bench` runs it, prints a table, writes JSON and a plot.

Rules: the node is a process of its own, started as a user starts it; the client is the shipped one;
latency is open loop (a late send counts from when it was due); every result names its parameters;
the median of the runs is what counts, and all runs are kept.

Must not know: the insides of the node. One program does (quorum_node.py), because the quorum is
measured without the HTTP in front of it. Histories of operations are judged by
tests/linearizability.
"""
