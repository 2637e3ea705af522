"""A whole cluster on one machine: its processes started, watched, replaced and stopped.

Purpose: `raftlog cluster up` and its relatives, and `LocalCluster` (local.py) for programs: demo,
tests, bench. One directory holds all of it: the manifest, the secret, a data directory for each
node, the logs.

Theory of operation: the *manager* is the process that holds the directory's lock. It starts each
node as a `raftlog serve` of its own, hears of its end by a pidfd, and starts it again. It runs in
the foreground or, detached, is talked to through a Unix socket (control.py). Nodes do not need it:
they live on when it is killed, and the next manager takes them over.

Rules: what to do next is decided by plain functions (manifest.py, restarts.py); nothing that a node
wrote is ever deleted; every wait has a deadline; a failure says which node, why, and what to do.

Must not know: how a node works inside. It knows the command line of `raftlog serve`, the HTTP
interface, and the client.
"""
