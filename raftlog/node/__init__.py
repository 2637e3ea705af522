"""A node has settings, a data directory, a start, and an assembly as a process.

Purpose: decide whether a start begins a cluster, joins a cluster, or resumes from the data
directory, and under which identity, address and secret. Remember the decision, so that a restart
needs only the data directory. Then assemble the node, register each start, and watch the disk.

Rules: decisions are pure (`start`). Files are written durably, before any code relies on them. The
cluster's secret leaves this package only as the return value of `secret.py`, never in a log line,
an error, a `repr` or a help text.

Must not know: the messages between members, or the meaning of metadata commands.
"""
