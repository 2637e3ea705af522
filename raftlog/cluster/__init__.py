"""A whole cluster on one machine, with processes started, watched, replaced and stopped.

Purpose: `raftlog cluster up` and its relatives, and `LocalCluster` (local.py) for programs such as
demo, tests and bench. One directory holds the manifest, the secret, a data directory for each node,
and the logs.

Theory of operation: the *manager* is the process with the directory's lock. It starts each node as
a separate `raftlog serve`, notices its end by a pidfd, and starts it again. It runs in the
foreground or, detached, takes requests on a Unix socket (control.py). Nodes do not need the
manager. After its death they keep serving, and the next manager adopts their processes.

Rules: plain functions decide (manifest.py, restarts.py). A node's files are never deleted. Every
wait has a deadline. A failure names the node, the cause and the next step.

Must not know: how a node works inside. It uses the command line of `raftlog serve`, the HTTP
interface, and the client.
"""
