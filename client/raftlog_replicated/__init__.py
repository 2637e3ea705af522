"""raftlog_replicated: the core of replicated state: a service made fault-tolerant by a log.

Purpose: decide, from the log alone, which commands change a state, and with which results, so
that all replicas agree (Schneider, 1990) and a replaced primary changes nothing.

Rules: decisions are without I/O; a replica applies an entry exactly once, in the order of the log;
an unknown entry stops a replica. Each queue and table has a bound.

Must not know: nodes, partitions' leaders, how a log is kept; of raftlog only the public client.
"""
