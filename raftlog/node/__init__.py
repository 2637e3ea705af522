"""How a node comes to be: its settings, what its data directory says, and what follows from both.

Purpose: decide whether a start begins a cluster, joins one, or goes on with what is there, and
under which identity, address and secret; and remember it, so that a restart needs the data
directory alone.

Rules: decisions are pure (decide.py); files are written durably, before anything relies on them.
The cluster's secret leaves this package only as the value that `secret.py` returns: never in a
log line, an error, a `repr` or a help text.

Must not know: how members talk to each other, or what a metadata command means.
"""
