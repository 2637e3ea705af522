"""Node-to-node connections: opened, authenticated, framed, kept.

Purpose: carry whole messages between the nodes of a cluster, over each node's own HTTP port.

Rules: both sides prove that they hold the cluster secret before any other byte counts. Every size
and wait is bounded. A message is delivered whole, once and in order, or the connection ends.

Must not know: what a message means. Imports nothing of raftlog but record.errors and world.
"""
