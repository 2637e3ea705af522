"""`scripts/bench sources`: the claims of the articles that raftlog began with, measured.

Replication by hand against the log, payloads and batches, pauses, partitions; acknowledgements and
in-sync sets, with the nodes that may die; linger. docs/sources.md lists the claims.
"""
