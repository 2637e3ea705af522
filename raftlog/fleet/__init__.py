"""Fleets of nodes on machines, with clusters made as a file describes them.

Purpose: `raftlog fleet plan|apply|status` and `scripts/deploy`. A reconciler compares the file with
the clusters, and executes step after step until both agree. A driver executes each step, on this
machine (`drivers/local.py`) or over ssh (`drivers/ssh.py`).

Rules: decisions are pure (spec, plan, safety). One node changes at a time. A step may be repeated.
A data directory is never deleted, and data is never presumed lost. Every wait has a deadline, and
every failure names the cluster, the cause and the next step.

Must not know: how a node works inside. It uses the command line of `raftlog serve`, the HTTP
interface, and the client.
"""
