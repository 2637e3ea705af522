"""raftlog: a durable, ordered, replicated log service. One process is one node.

Rules: imports point down, `cli → node → server → coordinator → replication → (quorum | storage)
→ metadata → record → world`; import-linter holds it. Decisions are plain synchronous code; the
coroutines around them do I/O in the order that safety needs.
"""

__version__ = "0.5.0"
