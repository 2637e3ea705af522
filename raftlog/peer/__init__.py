"""Node-to-node connections, and the one channel for all protocols between nodes.

Purpose: Carry whole messages between the nodes of a cluster over each node's HTTP port. Open,
register, keep alive and redial a protocol's connections (`channel`), so that a protocol adds only a
channel name, a receiver and its messages. DESIGN.md shows the map and how to add a protocol.

Rules: Both sides prove that they hold the cluster secret before any other byte counts. Every size
and wait is bounded. A message is delivered whole, once and in order, or the connection ends. A
background task's unexpected failure ends the node (`tasks`).

Must not know: The meaning of a message. Imports only record and world from raftlog.
"""
