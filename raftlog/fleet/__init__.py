"""Fleets of nodes on machines: clusters described in a file, and made so.

Purpose: `raftlog fleet plan|apply|status` and `scripts/deploy`. A reconciler compares the file with
the clusters, and takes one step after the other until both agree; a driver carries each step out,
on this machine (`local_driver`) or over ssh (`ssh_driver`).

Rules: decisions are pure (spec, plan, safety); one node at a time; a step may be repeated; a data
directory is never deleted; data is never presumed lost; every wait has a deadline, and every
failure names the cluster, the cause and the next step.

Must not know: how a node works inside. It uses the command line of `raftlog serve`, the HTTP
interface, and the client.
"""
