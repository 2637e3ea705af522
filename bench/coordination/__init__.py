"""Consumer groups and transactions on three nodes: rebalances, commits, takeover, exactly once.

The loads are those of `raftlog bench` (raftlog.workloads).
"""
