"""Node-to-node connections, and the one channel for all protocols between nodes.

Purpose: carry whole messages between the nodes of a cluster, over each node's own HTTP port; open,
register, keep alive and redial a protocol's connections (`channel`), so that a protocol brings only
a channel name, a receiver and its messages. DESIGN.md: the map, and how to add a protocol.

Rules: both sides prove to hold the cluster secret before any other byte counts. Every size and wait
is bounded. A message is delivered whole, once and in order, or the connection ends. A background
task's unexpected failure ends the node (`tasks`).

Must not know: the meaning of a message. Imports nothing of raftlog but record and world.
"""
