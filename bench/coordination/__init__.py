"""Consumer groups and transactions on three nodes: rebalances, commits, takeover, exactly once.

Each part starts a cluster of its own and returns results with their goals. The loads are those of
`raftlog bench` (raftlog.workloads).
"""
